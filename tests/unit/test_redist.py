"""NVIDIA's archives become a toolkit: from a folder of made-up archives, with a made-up compiler."""

import errno
import hashlib
import io
import shutil
import tarfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmill import cli, redist
from wheelmill._process import Completed
from wheelmill._uv import Uv
from wheelmill.arch import Arch
from wheelmill.catalog import load_catalog
from wheelmill.derivation import Selection, instantiate
from wheelmill.errors import DiskFullError, FetchError, HashMismatchError, RecipeError, ToolkitError
from wheelmill.lock import parse_lock
from wheelmill.places import IndexSettings
from wheelmill.redist import VARIABLE, Meter, base_url, merge, provide, unpacked
from wheelmill.runtime import Directories
from wheelmill.stack import Prebuilt, Stack
from wheelmill.toolkit import Machine, Need, choose, redistributed_toolkit
from wheelmill.toolkit_recipe import Component, Redistributable, ToolkitRecipe, parse_toolkit
from wheelmill.wire import Wire

RECIPES = Path(__file__).parents[2] / "recipes"
SHIPPED = (RECIPES / "toolkits/cuda-12.8.toml").read_text("utf-8")


@dataclass
class Notes:
    """A reporter that keeps what it is told."""

    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def step(self, text: str) -> None:
        self.lines.append(text)

    def note(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Compiler:
    """A runner whose only program is a made-up nvcc."""

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, check: bool = True
    ) -> Completed:
        assert (Path(argv[0]).name, cwd, check is None, "HOME" in env) == ("nvcc", None, False, False)
        said = {"--version": "release 12.8, V12.8.93\n", "--list-gpu-code": "sm_90\nsm_100\n"}[argv[1]]
        return Completed(argv=tuple(argv), returncode=0, stdout=said, stderr="", seconds=0.0)

    def stream(self, *args: object, **kwargs: object) -> Completed:
        raise AssertionError((args, kwargs))


def archive(path: Path, files: Mapping[str, str | bytes], *, top: str = "x-archive/") -> None:
    """Write an archive; a text that begins with `->` is a link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:xz", preset=0) as content:
        for name, text in files.items():
            member = tarfile.TarInfo(top + name)
            body = text.encode() if isinstance(text, str) else text
            member.mode = 0o755 if "/bin/" in f"/{name}" else 0o644
            if body.startswith(b"->"):
                member.type, member.linkname, body = tarfile.SYMTYPE, body[2:].decode(), b""
            member.size = len(body)
            content.addfile(member, io.BytesIO(body))


NVCC = {"bin/nvcc": b"\x7fELF", "bin/nvcc.profile": "TOP", "include/crt/host_config.h": "", "LICENSE": "words of nvcc"}
CUDART = {
    "include/cuda.h": "cuda",
    "lib/libcudart.so": "->libcudart.so.12",
    "lib/libcudart.so.12": "runtime",
    "LICENSE": "words of cudart",
}


class Mirror:
    """A folder of archives, and the machine that fetches from it."""

    def __init__(self, root: Path) -> None:
        self.root, self.components, self.notes = root, dict[str, Component](), Notes()
        self.add("cuda_cudart", CUDART)
        self.add("cuda_nvcc", NVCC)

    def add(self, name: str, files: Mapping[str, str | bytes], *, top: str = "x-archive/") -> Path:
        path = f"{name}/linux-x86_64/{name}-linux-x86_64-12.8.93-archive.tar.xz"
        file = self.root / "mirror" / path
        archive(file, files, top=top)
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        self.components[name] = Component(name=name, version="12.8.93", path=path, sha256=digest, size=len(content))
        return file

    @property
    def machine(self) -> Machine:
        return Machine(
            env={VARIABLE: str(self.root / "mirror")},
            runner=Compiler(),
            directories=Directories(cache=self.root / "cache", wheelhouse=self.root / "wheelhouse"),
            cwd=self.root,
            roots=(),
        )

    @property
    def need(self) -> Need:
        pinned = Redistributable(
            base_url="https://cuda.invalid/redist/",
            release="12.8.2",
            license_url="https://cuda.invalid/eula/",
            from_build_lock=(),
            components=tuple(self.components[name] for name in sorted(self.components)),
        )
        recipe = ToolkitRecipe(
            name="cuda-12.8",
            file="recipes/toolkits/cuda-12.8.toml",
            cuda="12.8",
            accepts=("12.8",),
            headers=("cuda.h", "crt/host_config.h"),
            libraries=("cudart",),
            gcc_below=15,
            wheels=None,
            redistributable=pinned,
            needs_license="NVIDIA's",
        )
        return Need(recipe=recipe, lock=None, build_lock=parse_lock("", file="b.txt"), stack=STACK, archs=STACK.archs)

    def provide(self, *, offline: bool = False) -> Path:
        uv = Uv(runner=Compiler(), env={}, index=IndexSettings(urls=()), offline=offline)
        return provide(self.need, self.machine, uv=uv, python=Path("/none"), report=self.notes).root

    def refused(self, kind: type[Exception], *, offline: bool = False) -> FetchError:
        """Fetch, and give the error that must come of it; nothing may be left that looks like a toolkit."""
        with pytest.raises(kind) as caught:
            self.provide(offline=offline)
        assert not list(self.root.glob("cache/toolkits/*/*"))
        with pytest.raises(ToolkitError):
            choose(self.need, self.machine, given=None)
        return caught.value  # type: ignore[return-value]


STACK = Stack(
    name="cu128",
    file="recipes/stacks/cu128.toml",
    summary="",
    python="3.12",
    cuda="12.8",
    toolkit="cuda-12.8",
    archs=(Arch.parse("10.0"),),
    platform="manylinux_2_28",
    cut_off="",
    build_requires=(),
    run_requires=(),
    build_lock="",
    run_lock="",
    packages={},
    prebuilt={"torch": Prebuilt(name="torch", version="2.9.1", file="torch.whl", sha256="0" * 64)},
)


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    return Mirror(tmp_path)


# the whole way ---------------------------------------------------------------------------------------


def test_archives_become_one_toolkit(mirror: Mirror) -> None:
    """The archives' folders are one tree, licences lie beside it, links and exec bits are kept; then it is chosen."""
    root = mirror.provide()

    files = sorted(str(path.relative_to(root.parent)) for path in root.parent.rglob("*") if not path.is_dir())
    assert files == [
        "files/bin/nvcc",
        "files/bin/nvcc.profile",
        "files/include/crt/host_config.h",
        "files/include/cuda.h",
        "files/lib/libcudart.so",
        "files/lib/libcudart.so.12",
        "licenses/cuda_cudart.txt",
        "licenses/cuda_nvcc.txt",
    ]
    assert (root / "lib/libcudart.so").readlink() == Path("libcudart.so.12")
    assert (root / "bin/nvcc").stat().st_mode & 0o777 == 0o755
    assert (root.parent / "licenses/cuda_nvcc.txt").read_text() == "words of nvcc"
    chosen = choose(mirror.need, mirror.machine, given=None)
    assert (chosen.root, chosen.provider, chosen.pinned) == (root, "redistributable", True)
    assert (chosen.cuda, chosen.nvcc_version, chosen.digest) == ("12.8", "12.8.93", root.parent.name)


def test_what_is_here_is_not_fetched_again(mirror: Mirror) -> None:
    """The second time neither mirror nor store is asked."""
    root = mirror.provide()
    shutil.rmtree(mirror.root / "mirror")
    shutil.rmtree(mirror.root / "cache/store")

    assert mirror.provide() == root
    assert mirror.notes.lines[-2:] == [f"CUDA 12.8 (nvcc 12.8.93): {root}", f"licences: {root.parent}/licenses"]


def test_the_store_suffices_offline(mirror: Mirror) -> None:
    """Archives in the store make a toolkit without a network; without them all are named at once."""
    error = mirror.refused(FetchError, offline=True)
    assert str(error) == (
        "not in the store, and --offline forbids the network:\n"
        "  cuda_cudart-linux-x86_64-12.8.93-archive.tar.xz\n"
        "  cuda_nvcc-linux-x86_64-12.8.93-archive.tar.xz"
    )
    assert error.advice == "Run `wheelmill fetch cuda-12.8 --accept-license` with a network, then try again."

    root = mirror.provide()
    shutil.rmtree(root)
    assert mirror.provide(offline=True) == root


def test_a_folder_of_a_killed_run_is_no_toolkit(mirror: Mirror) -> None:
    """What lies half-made beside the place is not taken, and does not hinder the next run."""
    home = redistributed_toolkit(mirror.need, mirror.machine.directories).root.parent
    (home / "partial-x/files/bin").mkdir(parents=True)
    (home / "licenses").mkdir()
    (home / "licenses/cuda_nvcc.txt").write_text("words of nvcc")

    with pytest.raises(ToolkitError):
        choose(mirror.need, mirror.machine, given=None)
    assert mirror.provide() == home / "files"
    assert sorted(path.name for path in home.iterdir()) == ["files", "licenses"]


def test_other_bytes_are_refused(mirror: Mirror) -> None:
    """A file that is not the pinned one reaches neither store nor toolkit; recipe and key are named."""
    file = mirror.add("cuda_nvcc", NVCC)
    pinned = mirror.components["cuda_nvcc"].sha256
    file.write_bytes(b"other")

    error = mirror.refused(HashMismatchError)

    assert str(error) == (
        f"hash mismatch for {file.as_uri()} (pinned in recipes/toolkits/cuda-12.8.toml: "
        "redistributable.components.cuda_nvcc)\n"
        f"  expected {pinned}\n  actual   {hashlib.sha256(b'other').hexdigest()}"
    )


def test_a_missing_archive_is_named(mirror: Mirror) -> None:
    """What the mirror lacks is told with the address and every way on."""
    file = mirror.add("cuda_nvcc", NVCC)
    file.unlink()

    error = mirror.refused(FetchError)

    assert str(error) == f"cannot get {file.as_uri()}: listed, but not there"
    assert error.advice == (
        "Check the way there (HTTPS_PROXY), or name a mirror or folder with the same paths: "
        "`WHEELMILL_CUDA_REDIST=URL`. What has come is kept: the same command goes on."
    )


@pytest.mark.parametrize(
    ("files", "top", "said"),
    [
        ({"one/a": "", "two/b": ""}, "", "it has one, two at its top, where one folder is wanted"),
        ({"nvcc": ""}, "", "it has nvcc at its top, where one folder is wanted"),
        ({}, "", "it has nothing at its top, where one folder is wanted"),
        ({"doc/x": ""}, "x-archive/", "its folder x-archive has none of bin, include, lib, nvvm"),
        ({"bin/../../../x": ""}, "x-archive/", "'x-archive/bin/../../../x' would be extracted to"),
        ({"bin/nvcc": "->/etc/passwd"}, "x-archive/", "'x-archive/bin/nvcc' is a link to an absolute path"),
    ],
)
def test_an_archive_of_another_shape_is_named(mirror: Mirror, files: dict[str, str], top: str, said: str) -> None:
    """Right digest, wrong content: then the recipe pins a wrong file."""
    mirror.add("cuda_nvcc", files, top=top)

    error = mirror.refused(FetchError)

    start = "cuda_nvcc-linux-x86_64-12.8.93-archive.tar.xz is no archive of NVIDIA's shape: "
    assert str(error).startswith(start + said)
    assert error.advice == (
        "Its digest is the pinned one: correct recipes/toolkits/cuda-12.8.toml: redistributable.components.cuda_nvcc."
    )


def test_what_is_no_xz_archive_is_named(mirror: Mirror) -> None:
    """A page of a proxy under the pinned name, pinned by mistake."""
    file = mirror.add("cuda_nvcc", NVCC)
    file.write_bytes(b"<html>")
    pinned = replace(mirror.components["cuda_nvcc"], sha256=hashlib.sha256(b"<html>").hexdigest())
    mirror.components["cuda_nvcc"] = pinned

    assert str(mirror.refused(FetchError)).startswith(f"{pinned.file} is no archive of NVIDIA's shape: ")


def test_what_does_not_serve_is_not_kept(mirror: Mirror) -> None:
    """Archives that lack what the recipe demands leave nothing behind; every reason is told."""
    mirror.add("cuda_cudart", {"include/cuda.h": ""})

    error = mirror.refused(ToolkitError)

    assert str(error) == "the toolkit made of NVIDIA's archives does not serve stack cu128: library libcudart missing"
    assert error.advice.startswith("Correct [redistributable] in recipes/toolkits/cuda-12.8.toml, or ")


def test_a_full_disk_is_named(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room left for the download, or for what comes of it: exit status 6, and what to do."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(redist, "take", full)
        assert str(mirror.refused(DiskFullError)) == f"no room left on the disk of {mirror.root}/cache/store"
    with monkeypatch.context() as patched:
        patched.setattr(tarfile.TarFile, "extractall", full)
        error = mirror.refused(DiskFullError)
    assert str(error).startswith(f"no room left on the disk of {mirror.root}/cache/toolkits/")
    assert error.exit_status == 6


def test_one_failure_ends_the_other_downloads(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once one archive cannot be had, the others do not go on for minutes; their bytes are kept for the next run."""
    real: Callable[..., Path] = redist.take

    def take(url: str, *, wire: Wire, name: str, **rest: object) -> Path:
        if "cudart" in name:
            raise FetchError("no")
        while True:
            wire.progress(name, 1, None)

    monkeypatch.setattr(redist, "take", take)
    assert str(mirror.refused(FetchError)) == "no"
    monkeypatch.setattr(redist, "take", real)
    assert mirror.provide().is_dir()


# pieces ----------------------------------------------------------------------------------------------


def test_the_first_of_two_stays_and_the_second_is_told(tmp_path: Path) -> None:
    """Equal content is no matter; other content, or a folder where a file is, is a warning."""
    one, two, notes = tmp_path / "one", tmp_path / "two", Notes()
    for root, text in ((one, "1"), (two, "2")):
        (root / "in").mkdir(parents=True)
        (root / "in/same.h").write_text("same")
        (root / "in/differs.h").write_text(text)
        (root / "in/__init__.py").touch()
        (root / "in/link").symlink_to(text)
    (one / "in/file").write_text("a file")
    (two / "in/file").mkdir()
    (two / "in/more.h").touch()

    merge(one, tmp_path / "all", notes)
    merge(two, tmp_path / "all", notes)

    assert sorted(path.name for path in (tmp_path / "all/in").iterdir()) == [
        *("differs.h", "file", "link", "more.h", "same.h")
    ]
    assert (tmp_path / "all/in/differs.h").read_text() == "1"
    assert notes.warnings == [
        f"in/{name} comes twice, with other content: the first one stays" for name in ("differs.h", "file", "link")
    ]


def test_progress_is_told_in_tenths() -> None:
    """A large file tells each tenth once, a small one its end; all stop when told to."""
    notes = Notes()
    big = Component(name="big", version="1", path="a/big", sha256="", size=100_000_000)
    small = Component(name="small", version="1", path="a/small", sha256="", size=16_180)
    meter = Meter(notes, (big, small))
    for done in (1, 9_999_999, 10_000_000, 19_000_000, 35_000_000, 100_000_000):
        meter("big", done, None)
    meter("small", 16_179, None)
    meter("small", 16_180, None)

    assert notes.lines == [
        "big: 10.00 of 100.00 MB",
        "big: 35.00 of 100.00 MB",
        "big: 100.00 of 100.00 MB",
        "small: 0.02 of 0.02 MB",
    ]
    meter.stop.set()
    with pytest.raises(CancelledError):
        meter("big", 1, None)


def test_a_mirror_is_a_url_or_a_folder(mirror: Mirror) -> None:
    """The variable replaces NVIDIA's address; a slash at the end does not matter."""
    pinned = mirror.need.recipe.redistributable
    assert pinned is not None
    assert base_url(pinned, {}) == base_url(pinned, {VARIABLE: ""}) == "https://cuda.invalid/redist/"
    assert base_url(pinned, {VARIABLE: "http://127.0.0.1:1/x"}) == "http://127.0.0.1:1/x/"
    assert base_url(pinned, {VARIABLE: "/srv/cuda/"}) == "file:///srv/cuda/"


def test_a_login_in_a_mirror_is_not_shown(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords reach neither progress nor failure."""
    machine = replace(mirror.machine, env={VARIABLE: "https://me:secret@cuda.invalid"})
    uv = Uv(runner=Compiler(), env={}, index=IndexSettings(urls=()))

    def take(*_: object, **__: object) -> Path:
        raise redist.UnreachableError("answered 403 Forbidden", again=False)

    monkeypatch.setattr(redist, "take", take)
    with pytest.raises(FetchError, match=r"^cannot get https://\*\*\*@cuda.invalid/cuda_.*: answered 403") as caught:
        provide(mirror.need, machine, uv=uv, python=Path("/none"), report=mirror.notes)
    assert "secret" not in str(caught.value) + "".join(mirror.notes.lines)


def test_an_archive_unpacks_to_its_folder(tmp_path: Path) -> None:
    """The one folder is given."""
    archive(tmp_path / "a.tar.xz", NVCC)
    (tmp_path / "into").mkdir()
    assert unpacked(tmp_path / "a.tar.xz", tmp_path / "into") == tmp_path / "into/x-archive"


# the recipe ------------------------------------------------------------------------------------------


def parsed(text: str) -> ToolkitRecipe:
    return parse_toolkit(tomllib.loads(text), file="t.toml")


def test_the_shipped_recipe_pins_nvidias_archives() -> None:
    """Every archive is NVIDIA's for x86-64, under its own name and version, once."""
    pinned = parsed(SHIPPED).redistributable
    assert pinned is not None
    assert pinned.base_url == "https://developer.download.nvidia.com/compute/cuda/redist/"
    assert (pinned.release, pinned.nvcc) == ("12.8.2", "12.8.93")
    for each in pinned.components:
        assert each.path == f"{each.name}/linux-x86_64/{each.name}-linux-x86_64-{each.version}-archive.tar.xz"
    assert len({each.sha256 for each in pinned.components}) == len(pinned.components) == 7
    assert round(sum(each.size for each in pinned.components) / 1e6) == 82


def test_the_pins_are_inputs_of_the_derivation() -> None:
    """What is built with stack cu128 depends on the archives; a toolkit of wheels has none."""
    catalog = load_catalog((RECIPES,))
    ours = instantiate(catalog, Selection(name="flash-attn", stack="cu128"))
    theirs = instantiate(catalog, Selection(name="flash-attn", stack="cu130"))
    pinned = ours.toolkit.redistributable
    assert pinned is not None
    assert ours.toolkit_inputs["redistributable"] == pinned.inputs
    assert theirs.toolkit_inputs["redistributable"] is None
    first, *others = pinned.components
    other = replace(pinned, components=(replace(first, sha256="0" * 64), *others))
    assert replace(ours, toolkit=replace(ours.toolkit, redistributable=other)).drv != ours.drv


def test_the_build_lock_decides_the_toolkit_too(mirror: Mirror) -> None:
    """The same archives with other wheels are another toolkit; wheels that the lock lacks are named, all at once."""
    pinned = mirror.need.recipe.redistributable
    assert pinned is not None
    recipe = replace(mirror.need.recipe, redistributable=replace(pinned, from_build_lock=("nvidia-a", "nvidia-b")))
    need = replace(mirror.need, recipe=recipe)

    def digest(text: str) -> str:
        lock = parse_lock(text, file="b.txt")
        return redistributed_toolkit(replace(need, build_lock=lock), mirror.machine.directories).digest

    locked = f"nvidia-a==1 --hash=sha256:{'a' * 64}\nnvidia-b==1 --hash=sha256:{'b' * 64}\n"
    assert digest(locked) == digest(locked + f"torch==1 --hash=sha256:{'c' * 64}\n")
    assert digest(locked) != digest(locked.replace("b" * 64, "c" * 64))
    with pytest.raises(RecipeError) as caught:
        digest("")
    assert str(caught.value) == (
        "recipes/toolkits/cuda-12.8.toml: redistributable.from-build-lock: the build lock b.txt lacks: nvidia-a, nvidia-b"
    )
    assert caught.value.advice == "Correct the list, or lock again: `wheelmill lock cu128`."


@given(
    st.permutations(["cuda_nvcc", "cuda_cudart", "cuda_cccl"]), st.text("0123456789abcdef", min_size=64, max_size=64)
)
def test_the_digest_is_of_content_alone(names: list[str], digest: str) -> None:
    """Order, address and size do not enter; names and digests do."""

    def made(names: Sequence[str], digest: str, size: int = 1, base: str = "https://a.invalid") -> str:
        tables = "".join(
            f'[redistributable.components.{name}]\nversion = "1"\npath = "{name}.tar.xz"\n'
            f'sha256 = "{digest if name == "cuda_cccl" else "e" * 64}"\nsize = {size}\n'
            for name in names
        )
        head = (
            'name = "t"\ncuda = "12.8"\naccepts = ["12.8"]\ngcc-below = 15\nneeds-license = "L"\n[redistributable]\n'
            f'base-url = "{base}"\nrelease = "1"\nlicense-url = "https://a.invalid"\n'
        )
        found = parsed(head + tables).redistributable
        assert found is not None
        return found.digest

    usual = sorted(names)
    assert made(names, digest) == made(usual, digest, 7, "https://b.invalid/x")
    assert (made(names, digest) == made(usual, "d" * 64)) == (digest == "d" * 64)
    assert made(usual[1:], digest) != made(usual, digest)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("gcc-below = 15", 'gcc-below = "15"', "gcc-below: must be an integer, found a string: '15'"),
        ('needs-license = "NVIDIA', 'needs-licence = "NVIDIA', "needs-license: missing; did you mean"),
        (
            '"https://developer',
            '"http://developer',
            "redistributable.base-url: must be an address that begins with https://, found 'http://developer",
        ),
        ("license-url", "licence-url", "redistributable.license-url: missing; did you mean 'license-url' where"),
        ('"nvidia-cublas-cu12"', '"nvidia_cublas_cu12"', "redistributable.from-build-lock: item 0 must be written"),
        ('"nvidia-cufft-cu12"', '"nvidia-cublas-cu12"', "redistributable.from-build-lock: item 2 is there twice"),
        ("components.cuda_nvcc]", "components.cuda_x]", "redistributable.components: lacks cuda_nvcc, the compiler"),
        ("components.cuda_cccl]", 'components."../x"]', 'redistributable.components."../x": is not the name of a'),
        ("size = 928524", "size = -1", "redistributable.components.cuda_cccl.size: must not be negative"),
        ("size = 928524", "bytes = 928524", "redistributable.components.cuda_cccl.size: missing"),
        ('"cuda_cccl/', '"/cuda_cccl/', "redistributable.components.cuda_cccl.path: must be a relative path"),
        (
            "cccl-linux-x86_64-12.8.90-archive.tar.xz",
            "x.zip",
            "redistributable.components.cuda_cccl.path: must end with",
        ),
        ("0740e9e0", "0740E9E0", "redistributable.components.cuda_cccl.sha256: must be a sha256 of 64 lower-case"),
    ],
)
def test_a_recipe_that_cannot_be_meant(old: str, new: str, said: str) -> None:
    """Each slip names file and key path."""
    assert old in SHIPPED
    with pytest.raises(RecipeError) as caught:
        parsed(SHIPPED.replace(old, new, 1))
    assert str(caught.value).startswith(f"t.toml: {said}")


# the command -----------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    return cli.main(("fetch", *words)), capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "next: Read https://docs.nvidia.com/cuda/eula/, then `wheelmill fetch cuda-12.8 --accept-license`."),
        (("--stack", "cu130"), "then `wheelmill fetch cuda-12.8 --accept-license`."),
        (("cuda-13.0", "flash-attn"), "then `wheelmill fetch cuda-12.8 --accept-license`."),
    ],
)
def test_the_licence_is_named_before_anything_starts(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --accept-license: exit status 2, the licence, where to read it, and the exact command."""
    status, err = run(capsys, "cuda-12.8", *words, "--cache", str(tmp_path), "--recipes", str(RECIPES))

    assert status == 2
    assert err.startswith(
        "error: cuda-12.8 comes under a licence that only you can accept: "
        "NVIDIA CUDA Toolkit End User License Agreement\n"
    )
    assert said in err
    assert not list(tmp_path.iterdir())


def test_toolkits_come_before_packages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A name is a toolkit or a package; an accepted licence brings the stack's toolkit along with packages."""
    asked: list[str] = []
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(cli, "fetch_toolkit", lambda stack, _: asked.append(stack.toolkit))
    monkeypatch.setattr(cli, "fetch_all", lambda derivations, _: asked.extend(each.name for each in derivations))

    def fetched(*words: str) -> list[str]:
        asked.clear()
        assert run(capsys, *words, "--recipes", str(RECIPES))[0] == 0
        return list(asked)

    assert fetched("cuda-12.8", "--accept-license") == ["cuda-12.8"]
    assert fetched("cuda-13.0") == ["cuda-13.0"]
    assert fetched("flash-attn") == ["flash-attn"]
    assert fetched("flash-attn", "cuda-12.8", "--accept-license") == ["cuda-12.8", "flash-attn"]
    assert fetched("flash-attn", "--accept-license") == ["cuda-12.8", "flash-attn"]
    assert fetched("flash-attn", "--accept-license", "--stack", "cu130") == ["flash-attn"]
    assert fetched("flash-attn", "--accept-license", "--cuda-home", "/x") == ["flash-attn"]
    assert fetched("--accept-license")[0] == "cuda-12.8"


def test_the_help_names_the_mirror(capsys: pytest.CaptureFixture[str]) -> None:
    """The variable is documented where it counts."""
    with pytest.raises(SystemExit):
        cli.make_parser().parse_args(["fetch", "--help"])
    assert f"set {VARIABLE}=URL" in capsys.readouterr().out
