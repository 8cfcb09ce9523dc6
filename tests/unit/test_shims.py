import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from wheelmill import shims
from wheelmill._process import Completed
from wheelmill.errors import CommandFailedError, EnvironmentUnfitError
from wheelmill.shims import HostCompiler, Nvcc, ObjectCache, ShimSpec, compile_gate, host_compilers, make_shims

HOST = HostCompiler(
    cc=Path("/opt/gcc/bin/gcc"),
    cxx=Path("/opt/gcc/bin/g++"),
    version="g++ 12.2.0",
    identity="1234",
    triplet="x86_64-linux-gnu",
)


def spec(**fields: object) -> ShimSpec:
    whole = {"python": Path("/usr/bin/python3.12"), "socket": Path("/run/s"), "host": HOST, **fields}
    return ShimSpec(**whole)  # type: ignore[arg-type]


def config(directory: Path) -> dict[str, object]:
    read: dict[str, object] = json.loads((directory / "config.json").read_text("utf-8"))
    return read


def test_every_name_has_a_shim(tmp_path: Path) -> None:
    """Debian's Python calls the triplet's names, so these have shims as well."""
    shims = make_shims(tmp_path, spec(nvcc=Nvcc(real=Path("/t/nvcc"), view=Path("/v/bin/nvcc"), identity="t")))

    names = ("c++", "cc", "g++", "gcc", "nvcc", "x86_64-linux-gnu-g++", "x86_64-linux-gnu-gcc")
    assert shims.names == names
    assert tuple(sorted(path.name for path in shims.bin.iterdir())) == names
    assert all(os.access(shims.bin / name, os.X_OK) for name in names)
    assert shims.tools["nvcc"] == tmp_path / "bin/nvcc"


def test_a_shim_is_two_lines(tmp_path: Path) -> None:
    """A shim starts the real Python without site, the gate likewise."""
    shims = make_shims(tmp_path, spec(seen_as=Path("/wheelmill/tools")))
    start = "exec /usr/bin/python3.12 -S -I /wheelmill/tools/launch.py"

    assert (tmp_path / "bin/g++").read_text("utf-8") == (f'#!/bin/sh\n{start} /wheelmill/tools/config.json g++ "$@"\n')
    assert (tmp_path / "gate").read_text("utf-8") == f'#!/bin/sh\n{start} --gate "$@"\n'
    assert shims.bin == Path("/wheelmill/tools/bin")
    assert config(tmp_path)["shim_dir"] == "/wheelmill/tools/bin"


def test_a_compiled_gate_stands_where_the_script_did(tmp_path: Path) -> None:
    """The cache names its prefix by the path, which is one and the same; the launcher is told which it is."""
    make_shims(tmp_path / "python", spec())
    (tmp_path / "gate.bin").write_bytes(b"\x7fELF")
    shims = make_shims(tmp_path / "compiled", spec(gate=tmp_path / "gate.bin"))

    assert shims.gate.read_bytes() == b"\x7fELF"
    assert os.access(shims.gate, os.X_OK)
    assert config(tmp_path / "python")["native"] is False
    assert config(tmp_path / "compiled")["native"] is True
    assert shims.gate.name == "gate"


def test_nvcc_runs_under_its_name_in_the_view(tmp_path: Path) -> None:
    """Nvcc takes its root from its own name, which must be the toolkit view's."""
    make_shims(tmp_path, spec(nvcc=Nvcc(real=Path("/t/nvcc"), view=Path("/v/bin/nvcc"), identity="t")))

    tools = config(tmp_path)["tools"]
    assert isinstance(tools, dict)
    assert tools["nvcc"] == {"family": "nvcc", "real": "/t/nvcc", "argv0": "/v/bin/nvcc", "stat": None}


def test_the_cache_hashes_toolkit_and_compiler(tmp_path: Path) -> None:
    """The cache sees the digests of what the shims hide, and no setting of the user's."""
    cache = ObjectCache(ccache=Path("/x/ccache"), directory=Path("/cache"), max_size="1G")
    make_shims(tmp_path, spec(cache=cache, nvcc=Nvcc(real=Path("/n"), view=Path("/v"), identity="tk")))

    assert config(tmp_path)["ccache"] == "/x/ccache"
    assert config(tmp_path)["ccache_env"] == {
        "CCACHE_DIR": "/cache",
        "CCACHE_CONFIGPATH": "/dev/null",
        "CCACHE_DEPEND": "1",
        "CCACHE_COMPILERCHECK": "string:tk+1234",
        "CCACHE_MAXSIZE": "1G",
        "CCACHE_SLOPPINESS": "include_file_ctime",
    }


def test_without_a_cache(tmp_path: Path) -> None:
    """No cache is a null."""
    make_shims(tmp_path, spec())

    assert config(tmp_path)["ccache"] is None


def test_the_same_shims_twice_are_the_same_bytes(tmp_path: Path) -> None:
    """Shims can be made again over the old ones."""

    def read() -> dict[str, bytes]:
        files = (path for path in sorted(tmp_path.rglob("*")) if path.is_file())
        return {str(path.relative_to(tmp_path)): path.read_bytes() for path in files}

    make_shims(tmp_path, spec())
    first = read()
    make_shims(tmp_path, spec())

    assert read() == first
    assert any(name.endswith(".pyc") for name in first)


def test_the_launcher_is_compiled_beforehand(tmp_path: Path) -> None:
    """The compiled form is trusted by hash, since a sandbox may show another time."""
    make_shims(tmp_path, spec())
    [compiled] = (tmp_path / "__pycache__").iterdir()

    # PEP 552: bit 0 means "by hash", bit 1 "check the source".
    assert compiled.read_bytes()[4:8] == b"\x01\0\0\0"


@pytest.mark.parametrize("path", ["/a b/shims", "/a:b/shims"])
def test_paths_that_cannot_be_carried(tmp_path: Path, path: str) -> None:
    """A blank would cut CCACHE_PREFIX in two, a colon PATH."""
    with pytest.raises(EnvironmentUnfitError) as caught:
        make_shims(tmp_path, spec(seen_as=Path(path)))

    assert str(caught.value) == (
        f"cannot make compiler shims with {path}: blanks and colons have a meaning in PATH and CCACHE_PREFIX"
    )


def test_names_of_gpus_are_no_archs(tmp_path: Path) -> None:
    """Names are resolved before, here only numbers count."""
    with pytest.raises(ValueError, match="'blackwell' is no architecture"):
        make_shims(tmp_path, spec(archs=("10.0", "blackwell")))


class Compiler:
    """A runner that compiles as it is told, with the statuses of its runs in turn."""

    def __init__(self, *statuses: int) -> None:
        self.statuses, self.commands = list(statuses), list[list[str]]()

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],  # noqa: ARG002 - as Runner has it
        cwd: Path | None = None,  # noqa: ARG002
        check: bool = True,
    ) -> Completed:
        self.commands.append(list(argv))
        status = self.statuses.pop(0)
        if status and check:
            raise CommandFailedError(argv, status)
        return Completed(argv=tuple(argv), returncode=status, stdout="", stderr="", seconds=0.0)

    stream = None


@pytest.mark.parametrize(
    ("statuses", "linked"),
    [([0, 2], ["-static"]), ([1, 0, 2], []), ([0, 1, 0, 2], []), ([1, 1], None), ([0, 127, 0, 127], None)],
)
def test_the_gate_is_compiled_and_tried(tmp_path: Path, statuses: list[int], linked: list[str] | None) -> None:
    """Statically where that can be; what does not run when it is tried is no gate."""
    compiler = Compiler(*statuses)

    gate = compile_gate(tmp_path, Path("/usr/bin/gcc"), compiler, tmp=tmp_path)  # type: ignore[arg-type]

    assert gate == (None if linked is None else tmp_path / "gate.bin")
    if linked is not None:
        source = str(Path(shims.__file__).with_name("gate.c"))
        command = ["/usr/bin/gcc", "-std=c99", "-O2", *linked, source, "-o", f"{tmp_path}/gate.bin"]
        assert compiler.commands[-2:] == [command, [f"{tmp_path}/gate.bin"]]


# The host's compilers


class Answers:
    """A runner that plays compilers."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self.answers = answers

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],  # noqa: ARG002 - as Runner has it
        cwd: Path | None = None,  # noqa: ARG002
        check: bool = True,  # noqa: ARG002
    ) -> Completed:
        question = argv[1].partition("=")
        answer = self.answers.get(argv[1], question[2] if question[1] else None)
        if answer is None:
            raise CommandFailedError(argv, 1)
        return Completed(argv=tuple(argv), returncode=0, stdout=answer, stderr="", seconds=0.0)

    def stream(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: Path | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> Completed:
        raise NotImplementedError


def which(name: str, path: str) -> str | None:
    found = Path(path) / name
    return str(found) if found.exists() else None


SPOKEN = {"--version": "g++ (X) 12.2.0\nmore", "-dumpmachine": "x86_64-linux-gnu"}


def compilers(root: Path, content: str = "real") -> Path:
    for name in ("gcc", "g++", "ld", "as"):
        root.mkdir(exist_ok=True)
        (root / name).write_text(f"{content} {name}", "utf-8")
    return root


def test_caches_in_the_compilers_place_are_passed(tmp_path: Path) -> None:
    """A link to ccache is not the compiler; the one behind it on PATH is."""
    masks = tmp_path / "lib-ccache"
    masks.mkdir()
    (tmp_path / "ccache").write_text("", "utf-8")
    for name in ("gcc", "g++"):
        (masks / name).symlink_to(tmp_path / "ccache")
    real = compilers(tmp_path / "bin")

    host = host_compilers(which, Answers(SPOKEN), {"PATH": f"{masks}:{real}"})

    assert (host.cc, host.cxx) == (real / "gcc", real / "g++")
    assert (host.version, host.triplet) == ("g++ (X) 12.2.0", "x86_64-linux-gnu")


def test_identity_is_content(tmp_path: Path) -> None:
    """The same compilers elsewhere are the same; another linker is another host."""
    one, two = compilers(tmp_path / "one"), compilers(tmp_path / "two")
    first, same = (host_compilers(which, Answers(SPOKEN), {"PATH": str(path)}) for path in (one, two))
    (two / "ld").write_text("mold", "utf-8")
    other = host_compilers(which, Answers(SPOKEN), {"PATH": str(two)})

    assert first.identity == same.identity != other.identity


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    """The advice has the command for either family of distributions."""
    with pytest.raises(EnvironmentUnfitError) as caught:
        host_compilers(which, Answers({}), {"PATH": str(tmp_path)})

    assert str(caught.value) == f"no gcc on PATH ({tmp_path}); the package's host code cannot be compiled"
    assert caught.value.advice == "Install one: `apt-get install g++` or `dnf install gcc-c++`."


@pytest.mark.parametrize("spoken", [{}, {"--version": ""}])
def test_a_broken_compiler_is_named(tmp_path: Path, spoken: dict[str, str]) -> None:
    """A compiler that does not even tell its version is of no use."""
    real = compilers(tmp_path / "bin")

    with pytest.raises(EnvironmentUnfitError, match=r"bin/g\+\+ (does not answer|says nothing to) --version"):
        host_compilers(which, Answers(spoken), {"PATH": str(real)})
