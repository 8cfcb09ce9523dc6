"""Leaks put back on purpose, each found and named; and rebuilds of real wheels from the wheels alone."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from wheelmill.compare import Comparison, compare
from wheelmill.packing import sample
from wheelmill.wheel_file import content, write_wheel

ROOT = Path(__file__).parents[2]
EPOCH = 1_700_000_000
INFO = "demo-1.0.dist-info"
TEXTS = {
    f"{INFO}/METADATA": b"Metadata-Version: 2.4\nName: demo\nVersion: 1.0\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
}
PYTHON_C = """
const char *place(void) { return __FILE__; }
const char *moment(void) { return __DATE__ " " __TIME__; }
int work(int x) { return x * 3; }
"""
KERNEL = """
#include <string>
namespace { std::string starts_early("x"); }
__global__ void k(float *a) { a[threadIdx.x] = 1; }
void launch(float *a) { k<<<1, 1>>>(a); }
const char *name() { return starts_early.c_str(); }
"""
pytestmark = pytest.mark.integration

Build = Callable[[str], dict[str, bytes]]


def packed(folder: Path, files: dict[str, bytes]) -> Path:
    """Write a wheel canonically, so that nothing but its contents counts."""
    folder.mkdir(parents=True, exist_ok=True)
    members = [content(name, data) for name, data in {**TEXTS, **files}.items()]
    return write_wheel(members, folder / "demo-1.0-py3-none-any.whl", epoch=EPOCH).path


def compiled(folder: Path, argv: list[str], source: str, **env: str) -> bytes:
    """Compile a source in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / argv[-1]
    path.write_text(source)
    place = {"PATH": os.environ["PATH"], "LC_ALL": "C", "TMPDIR": str(folder), **env}
    subprocess.run([*argv[:-1], str(path)], cwd=folder, env=place, check=True, capture_output=True)
    return (folder / "out.so").read_bytes()


def gcc(folder: Path, **env: str) -> bytes:
    argv = ["gcc", "-O2", "-g0", "-fPIC", "-shared", "-s", "-o", "out.so", "x.c"]
    return compiled(folder, argv, PYTHON_C, **{"SOURCE_DATE_EPOCH": str(EPOCH), **env})


def both(tmp_path: Path, one: bytes, other: bytes) -> Comparison:
    return compare(packed(tmp_path / "one", {"demo.so": one}), packed(tmp_path / "other", {"demo.so": other}))


def test_no_leak_no_difference(tmp_path: Path) -> None:
    """The same source at the same place, twice."""
    same = gcc(tmp_path / "a")
    assert both(tmp_path, same, gcc(tmp_path / "a")).grade == "identical"


def test_a_path_leaks(tmp_path: Path) -> None:
    """__FILE__ of another folder: the string is shown from both."""
    found = both(tmp_path, gcc(tmp_path / "here"), gcc(tmp_path / "there"))
    assert found.grade == "different"
    [difference] = [each for each in found.differences if each.section == ".rodata"]
    assert "here/x.c', not '" in difference.detail
    assert difference.detail.endswith("there/x.c'")


def test_an_epoch_leaks(tmp_path: Path) -> None:
    """__DATE__ follows SOURCE_DATE_EPOCH, where there is one."""
    found = both(tmp_path, gcc(tmp_path / "a"), gcc(tmp_path / "a", SOURCE_DATE_EPOCH="1600000000"))
    assert found.grade == "different"
    assert any("Nov 14 2023" in each.detail and "Sep 13 2020" in each.detail for each in found.differences)


@pytest.mark.network
def test_a_process_id_leaks(tmp_path: Path, toolkit_root: Path) -> None:
    """Without --objdir-as-tempdir nvcc names temporary files by its process id, and symbols by those."""
    nvcc = str(toolkit_root / "bin" / "nvcc")
    argv = [nvcc, "-shared", "-Xcompiler", "-fPIC", "-cudart", "none", "-arch=sm_100", "-o", "out.so", "x.cu"]
    one, other = (compiled(tmp_path / "a", argv, KERNEL) for _ in range(2))
    found = both(tmp_path, one, other)
    assert found.grade == "same-code"
    named = [each for each in found.differences if "tmpxft_" in each.symbol]
    assert named, [each.line() for each in found.differences]
    assert {each.kind for each in found.differences} == {"metadata"}


def zipped(path: Path, files: dict[str, tuple[bytes, int]], *, level: int = 6, date: int = 2023) -> Path:
    """Write a wheel as a backend does: modes as they are, one level, one date."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, (data, mode) in files.items():
            info = zipfile.ZipInfo(name, (date, 1, 1, 0, 0, 0))
            info.external_attr, info.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, data, compresslevel=level)
    return path


def on_disk(folder: Path, mask: int) -> dict[str, tuple[bytes, int]]:
    """Give files with the modes that they get under a umask."""
    folder.mkdir()
    before = os.umask(mask)
    try:
        for name, data in TEXTS.items():
            (folder / name.rpartition("/")[2]).write_bytes(data)
    finally:
        os.umask(before)
    paths = {name: folder / name.rpartition("/")[2] for name in TEXTS}
    return {name: (path.read_bytes(), path.stat().st_mode & 0o777) for name, path in paths.items()}


def test_a_umask_leaks(tmp_path: Path) -> None:
    """Into the modes of an archive that a backend packs; ours has two modes."""
    one = zipped(tmp_path / "a.whl", on_disk(tmp_path / "a", 0o022))
    other = zipped(tmp_path / "b.whl", on_disk(tmp_path / "b", 0o077))
    found = compare(one, other)
    assert found.grade == "same-content"
    assert [each.detail for each in found.differences] == ["mode 0o100644, not 0o100600, and 1 more"]


def test_a_compression_level_leaks(tmp_path: Path) -> None:
    """The same contents, packed by another level: or by another zlib."""
    noise = {"demo/data.txt": (sample(), 0o644)}
    texts = {name: (data, 0o644) for name, data in TEXTS.items()}
    one, other = (zipped(tmp_path / f"{level}.whl", {**texts, **noise}, level=level) for level in (6, 9))
    found = compare(one, other)
    assert found.grade == "same-content"
    assert [each.detail.split()[:2] for each in found.differences] == [["packed", "size"]]


def test_the_order_of_a_set_leaks(tmp_path: Path) -> None:
    """A module written from a set, under two hash seeds."""
    code = "print('\\n'.join(f'{name} = 1' for name in {f'name{n}' for n in range(9)}))"
    texts = [
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True)
        for seed in ("1", "2")
    ]
    one, other = (packed(tmp_path / str(n), {"demo/names.py": each.stdout}) for n, each in enumerate(texts))
    found = compare(one, other)
    assert found.grade == "different"
    [difference] = [each for each in found.differences if each.kind == "content"]
    assert difference.detail.startswith("line 1: 'name")


# whole builds ----------------------------------------------------------------------------------------


class Mill:
    """The program, with a cache that outlives the tests."""

    def __init__(self, cache: Path, house: Path) -> None:
        self.cache, self.house = cache, house

    def run(self, *words: str, recipes: bool = True, **env: str) -> "subprocess.CompletedProcess[str]":
        common = ["--cache", str(self.cache), "--wheelhouse", str(self.house), "--stack", "cu130"]
        extra = ["--recipes", str(ROOT / "tests" / "recipes")] if recipes else []
        argv = [sys.executable, "-m", "wheelmill", *words, *common, *extra]
        return subprocess.run(argv, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def mill(test_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mill]:
    made = Mill(test_cache / "line", tmp_path_factory.mktemp("rebuild") / "wheelhouse")
    yield made
    shutil.rmtree(made.cache / "rebuilds", ignore_errors=True)


@pytest.mark.network
def test_rebuild_finds_clock_and_chance(mill: Mill) -> None:
    """Exit 9, with the string and the line; `build --rounds 2` lets such a wheel not in."""
    built = mill.run("build", "leaky")
    assert built.returncode == 0, built.stderr
    wheel = built.stdout.strip()
    done = mill.run("rebuild", wheel, "--json")
    assert done.returncode == 9, done.stderr
    document = json.loads(done.stdout)
    assert document["grade"] == "different"
    places = {(each["member"].rpartition("/")[2], each["kind"]): each["detail"] for each in document["differences"]}
    assert "built at" in places["_c.cpython-312-x86_64-linux-gnu.so", "host-code"]
    assert places["order.py", "content"].startswith("line ")
    assert Path(document["rebuilt"]).is_file()
    Path(wheel).unlink()
    Path(f"{wheel}.build.json").unlink()
    twice = mill.run("build", "leaky", "--rounds", "2")
    assert twice.returncode == 9
    assert "round 2 of leaky gave another wheel (different)" in twice.stderr
    assert not Path(wheel).exists()


@pytest.mark.network
def test_a_wheel_alone_is_enough(mill: Mill, tmp_path: Path) -> None:
    """Copied away from its recipe, with everything around varied: the same bytes; a stranger's needs --trust."""
    built = mill.run("build", "torch-cuda-ext")
    assert built.returncode == 0, built.stderr
    wheel = Path(shutil.copy(built.stdout.strip(), tmp_path))
    refused = mill.run("rebuild", str(wheel), recipes=False)
    assert refused.returncode == 2
    assert "was not made from this checkout, and a rebuild runs its code:" in refused.stderr
    done = mill.run("rebuild", str(wheel), "--trust", "--vary", "--json", recipes=False, TZ="Asia/Tokyo")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["grade"], document["differences"], document["rebuilt"]) == ("identical", [], None)
    assert {"path", "umask", "locale", "zone", "cores", "jobs"} <= set(document["varied"])
    assert f"of {ROOT}" not in done.stderr


REAL_FOLDERS = """
import sys
from wheelmill import pipeline
from wheelmill.__main__ import main
from wheelmill.sandbox import Rung
pipeline.probe = lambda *_, **__: Rung(name="none", reason="barred for a test")
sys.argv[0] = "wheelmill"
main()
"""


@pytest.mark.network
@pytest.mark.skipif(os.geteuid() != 0 or Path("/wheelmill").exists(), reason="needs root, and /wheelmill to itself")
def test_real_folders_give_the_same_code(mill: Mill, tmp_path: Path) -> None:
    """Where namespaces are barred root's builds run at the fixed paths all the same; the wheel says so."""
    first = mill.run("build", "torch-cuda-ext")
    words = ["--cache", str(mill.cache), "--wheelhouse", str(tmp_path), "--stack", "cu130"]
    argv = [sys.executable, "-c", REAL_FOLDERS, "build", "torch-cuda-ext", *words]
    argv += ["--recipes", str(ROOT / "tests" / "recipes")]
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert [path.name for path in Path("/wheelmill").iterdir()] == [".wheelmill"]
    finally:
        shutil.rmtree("/wheelmill", ignore_errors=True)
    assert "  ! no namespaces: barred for a test." in done.stderr
    found = compare(Path(first.stdout.strip()), Path(done.stdout.strip()))
    assert found.grade == "same-code"
    assert {each.member.rpartition("/")[2] for each in found.differences} == {
        "RECORD",
        "wheelmill.cdx.json",
        "wheelmill.json",
    }


def test_recipes_that_are_not_committed_are_told(tmp_path: Path) -> None:
    """The commit that the recipes lie in; a change of recipe, stack or patch makes it dirty, anything else does not."""
    sys.path.insert(0, str(ROOT / "tests" / "unit"))
    from samples import write_catalog

    from wheelmill._process import SystemRunner
    from wheelmill.catalog import load_catalog
    from wheelmill.derivation import Selection, instantiate
    from wheelmill.pipeline import origin_of

    recipes = write_catalog(tmp_path)
    derivation = instantiate(load_catalog((recipes,)), Selection(name="demo", stack="cu130"))
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    tools = SimpleNamespace(runtime=SimpleNamespace(env=env), runner=SystemRunner())
    assert origin_of(derivation, tools).to_json() == {"commit": None, "dirty": False}
    for words in (["init", "-q"], ["add", "recipes", "patches"], ["commit", "-q", "-m", "x"]):
        named = ["-c", "user.name=x", "-c", "user.email=x@example.invalid"]
        subprocess.run(["git", "-C", str(tmp_path), *named, *words], check=True, env=env)
    (tmp_path / "notes.txt").write_text("x")
    clean = origin_of(derivation, tools)
    assert (len(clean.commit), clean.dirty) == (40, False)
    patch = tmp_path / "patches" / "demo" / "1.0" / "0001-why.patch"
    patch.write_text(patch.read_text() + "\n")
    assert origin_of(derivation, tools).dirty
