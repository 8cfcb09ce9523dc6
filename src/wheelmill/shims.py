"""Makes the directory of compiler shims that stands first on the build's PATH.

bin/NAME        two lines of sh per compiler, for PATH
gate            gate.c, compiled: ccache's prefix, and what waits in the launcher's place; else two lines of sh as well
launch.py       three lines that import the launcher, so that Python reads its compiled form
config.json     what the launcher is to do
"""

import hashlib
import json
import os
import py_compile
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from ._process import Runner
from .errors import CommandFailedError, EnvironmentUnfitError

CONFIG_FORMAT = 1
CACHE_NAMES = frozenset({"ccache", "sccache", "distcc", "icecc"})
IDENTITY_PROGRAMS = ("cc1", "cc1plus", "collect2", "as", "ld")
"""The programs behind a gcc driver that make the bytes."""
MODULE = "wheelmill_launcher"
BOOT = f"""import sys
sys.path.insert(0, __file__.rpartition("/")[0])
from {MODULE} import main
main()
"""
ARCH = re.compile(r"[0-9]+\.[0-9][af]?(\+PTX)?")
GATE = Path(__file__).with_name("gate.c")
GATE_FLAGS = ("-std=c99", "-O2")
GATE_BY_HAND = 2
"""Its exit status where it is called by hand."""
SAFE_PATH = re.compile(r"[^\s:]+")
"""CCACHE_PREFIX is split at blanks, PATH at colons."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCompiler:
    """The real gcc and g++ of this machine, past any cache that stands in their place."""

    cc: Path
    cxx: Path
    version: str
    """The first line of g++ --version."""
    identity: str
    """sha256 over both drivers and the programs behind them: what ccache and the realisation hash."""
    triplet: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Nvcc:
    """The real nvcc, and the name in the toolkit view under which it runs, so that the view is its root."""

    real: Path
    view: Path
    identity: str
    """The toolkit's digest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectCache:
    """ccache and where it keeps its objects. None in its place: no cache."""

    ccache: Path
    directory: Path
    max_size: str = "20G"


@dataclass(frozen=True, kw_only=True, slots=True)
class ShimSpec:
    """What the shims need to know. Every path is as the build sees it, inside the sandbox."""

    python: Path
    """A real interpreter: through a pyenv shim each start takes 240 ms instead of 10."""
    socket: Path
    host: HostCompiler
    nvcc: Nvcc | None = None
    cache: ObjectCache | None = None
    archs: tuple[str, ...] = ()
    arch_mode: Literal["hold", "check"] = "hold"
    seeded: bool = False
    """Whether nvcc knows -frandom-seed."""
    preload: Path | None = None
    """What is loaded into nvcc's programs where it does not."""
    threads: int = 1
    release: bool = False
    strip_links: bool = True
    prefix_maps: tuple[str, ...] = ()
    host_flags: tuple[str, ...] = ()
    nvcc_flags: tuple[str, ...] = ()
    link_objects: tuple[str, ...] = ()
    source_root: Path | None = None
    refusals: Path | None = None
    gate: Path | None = None
    """The compiled gate, by its path outside; None: the launcher's own, in Python."""
    seen_as: Path | None = None
    """The shim directory's path inside the sandbox, where that differs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shims:
    """A directory of shims, by its path inside the sandbox."""

    directory: Path
    bin: Path
    """For the front of PATH."""
    gate: Path
    config: Path
    names: tuple[str, ...]
    tools: Mapping[str, Path] = field(default_factory=dict)
    """Each shim by name; the toolkit view's bin/nvcc is a link to, or a copy of, the one for nvcc."""


def make_shims(directory: Path, spec: ShimSpec) -> Shims:
    """Write shims, launcher and configuration. Raises EnvironmentUnfitError for a path they cannot carry."""
    seen = spec.seen_as or directory
    for path in (seen, spec.python, spec.socket):
        if not SAFE_PATH.fullmatch(str(path)):
            raise EnvironmentUnfitError(
                f"cannot make compiler shims with {path}: blanks and colons have a meaning in PATH and CCACHE_PREFIX",
                advice="Give a cache (--cache) and a TMPDIR without them.",
            )
    for arch in spec.archs:
        if not ARCH.fullmatch(arch):
            raise ValueError(f"{arch!r} is no architecture; resolve names before making shims")
    (directory / "bin").mkdir(parents=True, exist_ok=True)
    tools = compilers(spec)
    start = f"exec {shlex.quote(str(spec.python))} -S -I {seen}/launch.py"
    for name in tools:
        _write_script(directory / "bin" / name, f'{start} {seen}/config.json {name} "$@"')
    if spec.gate is None:
        _write_script(directory / "gate", f'{start} --gate "$@"')
    else:
        _write(directory / "gate", spec.gate.read_bytes(), mode=0o755)
    _write(directory / "launch.py", BOOT)
    _write_launcher(directory / f"{MODULE}.py")
    config = make_config(spec, seen, tools)
    _write(directory / "config.json", json.dumps(config, indent=1, sort_keys=True) + "\n")
    return Shims(
        directory=seen,
        bin=seen / "bin",
        gate=seen / "gate",
        config=seen / "config.json",
        names=tuple(sorted(tools)),
        tools={name: seen / "bin" / name for name in sorted(tools)},
    )


def compilers(spec: ShimSpec) -> dict[str, dict[str, object]]:
    """Name every shim with the real compiler behind it.

    Debian's Python calls `x86_64-linux-gnu-gcc`. cc stands for gcc whatever the machine's own link says.
    """
    host, tools = spec.host, dict[str, dict[str, object]]()
    for names, real in (
        (("gcc", "cc", f"{host.triplet}-gcc"), host.cc),
        (("g++", "c++", f"{host.triplet}-g++"), host.cxx),
    ):
        for name in names:
            tools[name] = {"family": "host", "real": str(real), "argv0": str(real), "stat": _stat(real)}
    if spec.nvcc is not None:
        real = spec.nvcc.real
        tools["nvcc"] = {
            "family": "nvcc",
            "real": str(real),
            "argv0": str(spec.nvcc.view),
            "stat": _stat(real),
        }
    return tools


def make_config(spec: ShimSpec, seen: Path, tools: Mapping[str, object]) -> dict[str, object]:
    """Give the launcher's configuration."""
    return {
        "v": CONFIG_FORMAT,
        "shim_dir": str(seen / "bin"),
        "gate": str(seen / "gate"),
        "native": spec.gate is not None,
        "socket": str(spec.socket),
        "tools": dict(tools),
        "archs": list(spec.archs),
        "arch_mode": spec.arch_mode,
        "seeded": spec.seeded,
        "preload": None if spec.preload is None else str(spec.preload),
        "threads": spec.threads,
        "release": spec.release,
        "strip_links": spec.strip_links,
        "prefix_maps": list(spec.prefix_maps),
        "flags": {"host": list(spec.host_flags), "nvcc": list(spec.nvcc_flags)},
        "link_objects": list(spec.link_objects),
        "source_root": str(spec.source_root or ""),
        "refusals": None if spec.refusals is None else str(spec.refusals),
        "ccache": None if spec.cache is None else str(spec.cache.ccache),
        "ccache_env": {} if spec.cache is None else ccache_environment(spec, spec.cache),
    }


def ccache_environment(spec: ShimSpec, cache: ObjectCache) -> dict[str, str]:
    """Give ccache's settings: the whole of them, a user's ccache.conf has no say.

    Not set: CCACHE_NOHASHDIR and CCACHE_BASEDIR (nvcc's bytes hold the real path of the source, so another
    directory must miss). CCACHE_SLOPPINESS is for the change time of headers alone: torch's share
    their files with uv's cache, so any install on the machine changes it, and ccache was seen to compile every unit
    twice meanwhile and to keep nothing (its counter modified_input_file); contents and modification times still count.
    """
    toolkit = "none" if spec.nvcc is None else spec.nvcc.identity
    return {
        "CCACHE_DIR": str(cache.directory),
        "CCACHE_CONFIGPATH": str(PurePosixPath(os.devnull)),
        "CCACHE_DEPEND": "1",
        "CCACHE_COMPILERCHECK": f"string:{toolkit}+{spec.host.identity}",
        "CCACHE_MAXSIZE": cache.max_size,
        "CCACHE_SLOPPINESS": "include_file_ctime",
    }


def host_compilers(which: Callable[[str, str], str | None], runner: Runner, env: Mapping[str, str]) -> HostCompiler:
    """Find the real gcc and g++ and tell which they are.

    `which(name, path)` looks along a search path. Raises EnvironmentUnfitError when one is missing.
    """
    cc, cxx = (find_compiler(name, env.get("PATH", ""), which) for name in ("gcc", "g++"))
    version = _ask(runner, env, cxx, "--version").splitlines()[0]
    triplet = _ask(runner, env, cc, "-dumpmachine")
    programs = {cc, cxx}
    for driver in (cc, cxx):
        for name in IDENTITY_PROGRAMS:
            said = _ask(runner, env, driver, f"-print-prog-name={name}")
            found = said if said.startswith("/") else which(said, env.get("PATH", "")) if said else None
            if found is not None:
                programs.add(Path(found))
    digests = sorted({digest(path) for path in programs if path.is_file()})
    identity = hashlib.sha256("\n".join([version, triplet, *digests]).encode()).hexdigest()
    return HostCompiler(cc=cc, cxx=cxx, version=version, identity=identity, triplet=triplet)


def find_compiler(name: str, path: str, which: Callable[[str, str], str | None]) -> Path:
    """Find a compiler on PATH that is none of the caches that pose as one. Raises EnvironmentUnfitError."""
    entries = [entry for entry in path.split(":") if entry]
    for entry in entries:
        found = which(name, entry)
        if found is not None and Path(found).resolve().name not in CACHE_NAMES:
            return Path(found)
    raise EnvironmentUnfitError(
        f"no {name} on PATH ({path}); the package's host code cannot be compiled",
        advice="Install one: `apt-get install g++` or `dnf install gcc-c++`.",
    )


def digest(path: Path) -> str:
    """Give a file's sha256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _ask(runner: Runner, env: Mapping[str, str], compiler: Path, question: str) -> str:
    try:
        said = runner.run([str(compiler), question], env={**env, "LC_ALL": "C"}).stdout.strip()
    except CommandFailedError as error:
        raise EnvironmentUnfitError(
            f"{compiler} does not answer {question}:\n{error}",
            advice="Install a working one: `apt-get install g++` or `dnf install gcc-c++`.",
        ) from error
    if not said and not question.startswith("-print"):
        raise EnvironmentUnfitError(
            f"{compiler} says nothing to {question}",
            advice="Install a working one: `apt-get install g++` or `dnf install gcc-c++`.",
        )
    return said


def _stat(path: Path) -> list[int] | None:
    """Give what tells the launcher that a compiler was exchanged; None where only the sandbox has it."""
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def compile_gate(directory: Path, compiler: Path, runner: Runner, *, tmp: Path) -> Path | None:
    """Compile gate.c; None where this compiler cannot, or makes what does not run.

    Linked statically where that can be: one that waits costs 0.07 MB then, else 0.11 (250 measured, PSS).
    """
    directory.mkdir(exist_ok=True)
    target = directory / "gate.bin"
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TMPDIR": str(tmp)}
    for linked in (("-static",), ()):
        argv = [str(compiler), *GATE_FLAGS, *linked, str(GATE), "-o", str(target)]
        try:
            runner.run(argv, env=env)
            if runner.run([str(target)], env=env, check=False).returncode == GATE_BY_HAND:
                return target
        except (CommandFailedError, EnvironmentUnfitError):
            continue
    return None


def compile_launcher(directory: Path, python: Path, runner: Runner) -> None:
    """Compile the launcher for the Python that runs it: inside a sandbox its folder cannot be written."""
    code = (
        "import py_compile, sys; py_compile.compile(sys.argv[1], doraise=True, "
        "invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"
    )
    argv = [str(python), "-S", "-I", "-c", code, str(directory / f"{MODULE}.py")]
    runner.run(argv, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"})


def _write_launcher(target: Path) -> None:
    """Copy the launcher with its compiled form: compiling it anew takes 20 ms of every start.

    By hash and unchecked: the sandbox may show the file with another time. Another Python ignores it.
    """
    source = Path(__file__).with_name("_launcher.py")
    _write(target, source.read_text("utf-8"))
    py_compile.compile(str(target), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def _write_script(path: Path, line: str) -> None:
    _write(path, f"#!/bin/sh\n{line}\n", mode=0o755)


def _write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    temporary.chmod(mode)
    temporary.replace(path)
