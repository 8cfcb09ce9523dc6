"""The whole line on a small real torch extension: real nvcc, torch, ccache, auditwheel; then pip and uv install it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import uv

from wheelmill._process import descendants
from wheelmill.inspection import inspect_wheel
from wheelmill.records import read_records

ROOT = Path(__file__).parents[2]
WHEEL = "torch_cuda_ext-1.0.0+cu130.torch2.11.0.sm100-1-cp312-cp312-manylinux_2_28_x86_64.whl"
INDEX = "cu130-torch2.11.0-sm100"

pytestmark = [pytest.mark.integration, pytest.mark.network]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A cache that outlives the tests, and a wheelhouse that does not."""

    cache: Path
    house: Path
    recipes: Path

    def argv(self, *words: str) -> list[str]:
        common = ["--cache", str(self.cache), "--wheelhouse", str(self.house), "--recipes", str(self.recipes)]
        return [sys.executable, "-m", "wheelmill", *words, "--stack", "cu130", *common]

    def run(self, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.argv(*words), cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False
        )


@pytest.fixture
def bench(test_cache: Path, tmp_path: Path) -> Bench:
    return Bench(cache=test_cache / "line", house=tmp_path / "wheelhouse", recipes=ROOT / "tests" / "recipes")


@pytest.fixture(scope="module")
def built(test_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, dict[str, object]]:
    """Build the extension once, with an empty object cache."""
    house = tmp_path_factory.mktemp("line") / "wheelhouse"
    bench = Bench(cache=test_cache / "line", house=house, recipes=ROOT / "tests" / "recipes")
    shutil.rmtree(bench.cache / "objects", ignore_errors=True)
    done = bench.run("build", "torch-cuda-ext", "--json")
    assert done.returncode == 0, done.stderr
    return bench, json.loads(done.stdout)


def test_the_wheel_is_what_was_asked_for(built: tuple[Bench, dict[str, object]]) -> None:
    """One JSON document on stdout; the wheel holds sm_100 and nothing else, and pins its torch."""
    bench, document = built
    [entry] = document["builds"]
    assert (document["schema"], entry["name"], entry["status"]) == (1, "torch-cuda-ext", "built")
    assert Path(entry["wheel"]) == bench.house / WHEEL
    assert (entry["cache_hits"], entry["error"]) == (0, None)
    assert entry["peak_memory_bytes"] > 2**27
    inspection = inspect_wheel(bench.house / WHEEL)
    assert inspection.requires_torch == "torch==2.11.0"
    [extension] = inspection.elf
    assert (extension.device_code.sass, extension.device_code.ptx) == ({"sm_100": 2}, {})
    assert extension.rpath is None
    assert "libcudart.so.13" in extension.needed


def test_wheelhouse_holds_record_log_and_index(built: tuple[Bench, dict[str, object]]) -> None:
    """Beside the wheel lie its build record with every compile, and its log; an index points to it."""
    bench, document = built
    record = json.loads((bench.house / f"{WHEEL}.build.json").read_text())
    assert record["drv"] == document["builds"][0]["drv"]
    units = {unit["source"]: unit for unit in record["units"] if unit["source"].startswith("csrc/")}
    assert sorted(units) == ["csrc/axpy.cu", "csrc/ops.cpp", "csrc/square.cu"]
    assert units["csrc/axpy.cu"]["archs_used"] == ["sm_100"]
    assert record["external"]["libc10.so"] == "torch"
    assert record["found"]["toolkit_provider"] == "wheels"
    assert "csrc/axpy.cu" in (bench.house / f"{WHEEL}.log").read_text()
    assert (bench.house / "simple" / INDEX / "torch-cuda-ext" / "index.html").is_file()


def test_a_second_build_finds_the_wheel(built: tuple[Bench, dict[str, object]]) -> None:
    """The same derivation is not built again, whatever the jobs."""
    bench, document = built
    done = bench.run("build", "torch-cuda-ext", "--json", "--max-jobs", "1")
    [entry] = json.loads(done.stdout)["builds"]
    assert (entry["status"], entry["sha256"]) == ("present", document["builds"][0]["sha256"])


def test_a_rebuild_into_another_wheelhouse_takes_finished_objects(
    built: tuple[Bench, dict[str, object]], bench: Bench
) -> None:
    """The object cache serves every compile, and the bytes are the same."""
    _, document = built
    done = bench.run("build", "torch-cuda-ext", "--json")
    assert done.returncode == 0, done.stderr
    [entry] = json.loads(done.stdout)["builds"]
    assert entry["cache_hits"] == 3
    assert entry["sha256"] == document["builds"][0]["sha256"]


def test_another_arch_is_another_wheel(bench: Bench) -> None:
    """`--arch` decides name, index and device code."""
    done = bench.run("build", "torch-cuda-ext", "--arch", "9.0;12.0+PTX")
    assert done.returncode == 0, done.stderr
    wheel = Path(done.stdout.strip())
    assert wheel.name == WHEEL.replace("sm100", "sm90.sm120ptx")
    [extension] = inspect_wheel(wheel).elf
    found = extension.device_code
    assert (found.sass, found.ptx) == ({"sm_90": 2, "sm_120": 2}, {"sm_120": 2})


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_installers_take_it_from_the_index_by_name(
    built: tuple[Bench, dict[str, object]], installer: str, tmp_path: Path
) -> None:
    """By exact local version, no sdists, in a clean environment; the digest in the index is checked."""
    bench, _ = built
    target = tmp_path / "site"
    url = (bench.house / "simple" / INDEX).as_uri()
    requirement = "torch-cuda-ext==1.0.0+cu130.torch2.11.0.sm100"
    argv = {
        "pip": [sys.executable, "-m", "pip", "--isolated", "install", "--python-version", "3.12", "--no-deps"],
        "uv": [uv.find_uv_bin(), "pip", "install", "--no-config", "--python-version", "3.12", "--no-deps"],
    }[installer]
    argv += ["--only-binary", ":all:", "--index-url", url, "--target", str(target), requirement]
    subprocess.run(argv, check=True, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    assert (target / "torch_cuda_ext" / "__init__.py").is_file()


def test_verify_and_inspect_agree(built: tuple[Bench, dict[str, object]]) -> None:
    """A wheel carries what it claims to be, so verify needs no recipe."""
    bench, _ = built
    done = bench.run("verify", str(bench.house / WHEEL), "--json")
    assert done.returncode == 0, done.stderr
    findings = {finding["id"]: finding["status"] for finding in json.loads(done.stdout)["findings"]}
    assert set(findings.values()) == {"ok"}
    assert list(findings) == [
        *("archive", "names", "record", "platform", "floor", "elf", "libraries", "symbols", "requires-torch"),
        *("run-path", "device-code", "kernels", "contents", "paths"),
    ]


def copied_recipes(tmp_path: Path, old: str, new: str) -> Path:
    """Copy recipe and project, with one change to the project's sources, and the digest that belongs to it."""
    from wheelmill.fetch import tree_digest

    project = tmp_path / "projects" / "torch-cuda-ext"
    shutil.copytree(ROOT / "tests" / "projects" / "torch-cuda-ext", project)
    source = project / "csrc" / "square.cu"
    assert old in source.read_text()
    source.write_text(source.read_text().replace(old, new))
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    recipe = (ROOT / "tests" / "recipes" / "torch-cuda-ext.toml").read_text()
    before = tree_digest(ROOT / "tests" / "projects" / "torch-cuda-ext")
    (recipes / "torch-cuda-ext.toml").write_text(recipe.replace(before, tree_digest(project)))
    return recipes


def test_a_failing_compile_is_named(bench: Bench, tmp_path: Path) -> None:
    """The report is the last thing printed: the unit first, then what the compiler said, log and next step."""
    recipes = copied_recipes(tmp_path, "x[i] * x[i]", "x[i] * nonsense")
    done = Bench(cache=bench.cache, house=bench.house, recipes=recipes).run("build", "torch-cuda-ext")
    assert done.returncode == 1
    report = done.stderr[done.stderr.index("error: ") :]
    assert report.startswith("error: nvcc failed on csrc/square.cu with status ")
    assert 'identifier "nonsense" is undefined' in report
    assert len(report.splitlines()) <= 25
    assert not list(bench.house.glob("*.whl"))


SLOW = "x[i] * x[i]"


def slow_kernel() -> str:
    """Source that keeps cicc busy for a minute."""
    return "x[i]" + "".join(f" * sinf(x[i] + {number}.5f) * powf(x[i], {number}.25f)" for number in range(1500))


def name_of(pid: int) -> str:
    """Give the name of a living process, else nothing."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def family_at_work(running: "subprocess.Popen[bytes]") -> list[int]:
    """Wait until a compiler is at work; give every process of the build."""
    deadline = time.monotonic() + 120
    while True:
        family = descendants(running.pid)
        if any(name_of(pid) == "cicc" for pid in family):
            return family
        assert time.monotonic() < deadline, "no compiler came up"
        assert running.poll() is None, "the build ended before it could be stopped"
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_no_compiler(bench: Bench, tmp_path: Path, number: signal.Signals) -> None:
    """Exit 130, no process of the build is left, and the next start goes on with the finished objects."""
    recipes = copied_recipes(tmp_path, SLOW, slow_kernel())
    slow = Bench(cache=bench.cache, house=bench.house, recipes=recipes)
    with subprocess.Popen(
        slow.argv("build", "torch-cuda-ext"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as running:
        family = family_at_work(running)
        running.send_signal(number)
        _, said = running.communicate(timeout=20)
    assert running.returncode == 130
    assert b"Run the same command again" in said
    assert [name_of(pid) for pid in family if name_of(pid)] == []
    assert not list(bench.house.glob("*.whl"))


def test_records_survive_in_the_workplace_of_a_failure(bench: Bench, tmp_path: Path) -> None:
    """What failed keeps its records, one line per compile, with argv and exit status."""
    recipes = copied_recipes(tmp_path, "x[i] * x[i]", "x[i] * other_nonsense")
    done = Bench(cache=bench.cache, house=bench.house, recipes=recipes).run("build", "torch-cuda-ext")
    [line] = [line for line in done.stderr.splitlines() if line.strip().startswith("compiles: ")]
    records = read_records(Path(line.split(": ", 1)[1]))
    failed = [record for record in records if record.exit != 0]
    assert {record.source for record in failed} == {"csrc/square.cu"}
    assert "-gencode" in " ".join(failed[-1].argv)
