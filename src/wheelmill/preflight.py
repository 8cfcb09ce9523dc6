"""What can be known before a build starts: each finding with advice; `build` stops at errors, `doctor` shows all."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from ._uv import uv_binary
from .environment import COMPLETE, environment_key
from .errors import EnvironmentUnfitError, ResourcesError, ToolkitError, WheelmillError
from .interpreter import Interpreter, find_interpreter
from .limits import Limits
from .lock import Lock
from .toolkit import Machine, Need, choose, survey

Status = Literal["ok", "warn", "error", "skip"]

GIB = 2**30
OLDEST_GCC = 9
"""torch's headers are C++17; gcc 9 is the first release whose C++17 library is complete (GCC 9 release notes)."""
LEAST_MEMORY = 6 * GIB
"""A backward unit of flash-attn 2.8.3 peaks at 5.9 GiB."""
ENVIRONMENT_BYTES = 12 * GIB
"""torch with its CUDA libraries takes 4.8 GB, the toolkit 1.9 GB, and uv's cache holds both a second time."""
WORK_BYTES = 3 * GIB
TMP_BYTES = 1 * GIB
WHEEL_BYTES = 1 * GIB

LEAKS = (
    *("NVCC_*", "CUDA_INC_PATH", "CUDAHOSTCXX", "CUDACXX", "CUDAARCHS", "PYTORCH_NVCC", "CC", "CXX"),
    *("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"),
    *("LIBRARY_PATH", "LD_PRELOAD", "CMAKE_*", "FLASH_*", "TORCH_*", "VLLM_*", "CCACHE_*", "SCCACHE_*"),
)
"""Variables that change what compilers and the packages' own builds do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at, as every command shows it and `--json` prints it."""

    id: str
    status: Status
    subject: str
    message: str
    advice: str = ""

    def to_json(self) -> dict[str, str]:
        """Give it as JSON fields."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """Free space where a folder lies, and the file system it is on."""

    device: int
    free: int


def space_at(path: Path) -> Space:
    """Ask the file system of a folder, or of the nearest one above it that exists."""
    here = existing(path)
    return Space(device=here.stat().st_dev, free=shutil.disk_usage(here).free)


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """What is going to be built, and on what machine."""

    need: Need
    build_lock: Lock
    machine: Machine
    python: Path | str | None = None
    cuda_home: str | None = None
    limits: Limits | None = None
    space: Callable[[Path], Space] = space_at


def checks(situation: Situation, *, thorough: bool = False) -> tuple[Finding, ...]:
    """Look at everything that a build needs of this machine; nothing is changed, nothing is fetched.

    `thorough` adds what only `doctor` shows: every toolkit on the machine.
    """
    interpreter = find(situation)
    findings = [
        *interpreter_findings(situation, interpreter),
        *compiler_findings(situation),
        *toolkit_findings(situation, thorough=thorough),
        *uv_findings(situation),
        *environment_findings(situation, interpreter),
        *folder_findings(situation),
        *space_findings(situation, interpreter),
        *memory_findings(situation.limits),
        *variable_findings(situation.machine.env),
    ]
    return tuple(findings)


def require(findings: Iterable[Finding]) -> None:
    """Raise when a finding is an error: the class of the first, the text of all."""
    errors = [finding for finding in findings if finding.status == "error"]
    if not errors:
        return
    first, *others = errors
    classes: dict[str, type[WheelmillError]] = {"toolkit": ToolkitError, "disk-space": ResourcesError}
    lines = [first.message, *(f"also: {other.message}" for other in others)]
    advice = " ".join(dict.fromkeys(finding.advice for finding in errors if finding.advice))
    raise classes.get(first.id, EnvironmentUnfitError)("\n".join(lines), advice=advice)


def find(situation: Situation) -> Interpreter | EnvironmentUnfitError:
    """Find the stack's interpreter; not finding it is an answer here."""
    machine = situation.machine
    try:
        return find_interpreter(
            situation.need.stack.python, given=situation.python, env=machine.env, runner=machine.runner
        )
    except EnvironmentUnfitError as error:
        return error


def interpreter_findings(situation: Situation, interpreter: Interpreter | EnvironmentUnfitError) -> Iterator[Finding]:
    """Look for the stack's CPython with its headers."""
    subject = f"CPython {situation.need.stack.python}"
    if isinstance(interpreter, EnvironmentUnfitError):
        yield Finding(
            id="interpreter", status="error", subject=subject, message=str(interpreter), advice=interpreter.advice
        )
        return
    message = f"CPython {interpreter.version} at {interpreter.path}"
    yield Finding(id="interpreter", status="ok", subject=subject, message=message)


def compiler_findings(situation: Situation) -> Iterator[Finding]:
    """Look for gcc and g++ of one release that the toolkit takes."""
    versions = {name: compiler_version(name, situation.machine) for name in ("gcc", "g++")}
    below = situation.need.recipe.gcc_below
    for name, version in versions.items():
        major = int(version.split(".")[0]) if version[:1].isdigit() else 0
        status: Status = "error"
        install = "`apt install build-essential` or `dnf install gcc gcc-c++`."
        if not version:
            message, advice = f"{name} is missing", f"Install it: {install}"
        elif not major:
            message, advice = f"{name} does not run: {version}", f"Install it again: {install}"
        elif major >= below:
            message = f"{name} {version} is newer than CUDA {situation.need.recipe.cuda} takes (below {below})"
            advice = f"Install gcc-{below - 1} and g++-{below - 1}, and put them first on PATH under their plain names."
        elif major < OLDEST_GCC:
            message, advice = f"{name} {version} is older than torch's headers need ({OLDEST_GCC})", install
        elif len(set(versions.values())) > 1:
            message = f"gcc is {versions['gcc'] or 'missing'}, g++ is {versions['g++'] or 'missing'}"
            status, advice = "warn", "Install both from one release."
        else:
            status, message, advice = "ok", f"{name} {version}", ""
        yield Finding(id="host-compiler", status=status, subject=name, message=message, advice=advice)


def compiler_version(name: str, machine: Machine) -> str:
    """Ask a compiler on PATH for its version; empty where there is none, its words where it fails."""
    path = machine.env.get("PATH", "")
    found = shutil.which(name, path=path)
    if found is None:
        return ""
    env = {"PATH": path, "LC_ALL": "C"}
    done = machine.runner.run((found, "-dumpfullversion", "-dumpversion"), env=env, check=False)
    said = (done.stdout if done.returncode == 0 else done.stderr or done.stdout).strip().splitlines()
    return said[0] if said else f"status {done.returncode}"


def toolkit_findings(situation: Situation, *, thorough: bool) -> Iterator[Finding]:
    """Look for a CUDA toolkit that fits, here or to be had."""
    need, machine = situation.need, situation.machine
    subject = f"CUDA {need.recipe.cuda}"
    try:
        chosen = choose(need, machine, given=situation.cuda_home)
    except ToolkitError as error:
        yield Finding(id="toolkit", status="error", subject=subject, message=str(error), advice=error.advice)
    else:
        here = "" if chosen.root.is_dir() else ", to be fetched"
        message = f"CUDA {chosen.cuda} (nvcc {chosen.nvcc_version}) from {chosen.provider}{here}: {chosen.root}"
        yield Finding(id="toolkit", status="ok", subject=subject, message=message)
    for found in survey(need, machine) if thorough else ():
        status: Status = "ok" if found.fits else "skip"
        message = f"{found}; known by {', '.join(found.origins)}"
        yield Finding(id="toolkit-found", status=status, subject=str(found.root), message=message)
    if thorough:
        driver = machine.driver
        message = f"driver {driver}" if driver else "no NVIDIA driver: wheels can be built here, not run"
        yield Finding(id="driver", status="ok" if driver else "skip", subject="NVIDIA driver", message=message)


def uv_findings(situation: Situation) -> Iterator[Finding]:
    """Look whether our own uv runs."""
    try:
        program = uv_binary()
        said = situation.machine.runner.run((str(program), "--version"), env={"LC_ALL": "C"}).stdout.strip()
    except WheelmillError as error:
        yield Finding(id="uv", status="error", subject="uv", message=str(error), advice=error.advice)
    else:
        yield Finding(id="uv", status="ok", subject="uv", message=said)


def environment_findings(situation: Situation, interpreter: Interpreter | EnvironmentUnfitError) -> Iterator[Finding]:
    """Look for ninja in the build environment: without it torch compiles one file at a time."""
    root = environment_root(situation, interpreter)
    lock = situation.build_lock
    if root is not None and (root / COMPLETE).is_file():
        if os.access(root / "bin/ninja", os.X_OK):
            yield Finding(id="ninja", status="ok", subject="ninja", message=f"ninja in {root}")
        else:
            yield Finding(id="ninja", status="warn", subject="ninja", message=f"no ninja in {root}", advice=NO_NINJA)
    elif "ninja" in lock.pins:
        message = f"ninja {lock.pins['ninja'].version} comes with the build environment, which is not made yet"
        yield Finding(id="ninja", status="skip", subject="ninja", message=message)
    else:
        message = f"{lock.file} has no ninja: torch would compile one file at a time"
        yield Finding(id="ninja", status="warn", subject="ninja", message=message, advice=NO_NINJA)


NO_NINJA = "Add `ninja` to the stack's `build-requires` and run `wheelmill lock STACK`."


def environment_root(situation: Situation, interpreter: Interpreter | EnvironmentUnfitError) -> Path | None:
    """Give the place of the build environment, where the interpreter is known."""
    if isinstance(interpreter, EnvironmentUnfitError):
        return None
    environments = situation.machine.directories.environments
    return environments / environment_key(situation.build_lock, interpreter)


def folders(situation: Situation) -> dict[str, Path]:
    """Name the folders that a build writes."""
    directories = situation.machine.directories
    tmp = Path(situation.machine.env.get("TMPDIR") or "/tmp")  # noqa: S108 - what the tools themselves fall back to
    return {"cache": directories.cache, "wheelhouse": directories.wheelhouse, "TMPDIR": tmp}


def folder_findings(situation: Situation) -> Iterator[Finding]:
    """Look whether every folder can be written."""
    options = {"cache": "--cache DIR", "wheelhouse": "--wheelhouse DIR", "TMPDIR": "TMPDIR=DIR"}
    for name, path in folders(situation).items():
        here = existing(path)
        if here.is_dir() and os.access(here, os.W_OK | os.X_OK):
            yield Finding(id="writable", status="ok", subject=name, message=f"{name} {path} can be written")
        else:
            why = "cannot be written" if here.is_dir() else f"cannot be made: {here} is a file"
            yield Finding(
                id="writable",
                status="error",
                subject=name,
                message=f"{name} {path} {why}",
                advice=f"Change its owner or mode, or take another folder: `{options[name]}`.",
            )


def existing(path: Path) -> Path:
    """Give the nearest path at or above this one that exists."""
    return next(each for each in (path, *path.parents) if each.exists())


def space_findings(situation: Situation, interpreter: Interpreter | EnvironmentUnfitError) -> Iterator[Finding]:
    """Look for room, file system by file system: folders that share one share its space."""
    root = environment_root(situation, interpreter)
    made = root is not None and (root / COMPLETE).is_file()
    wanted = {"cache": WORK_BYTES + (0 if made else ENVIRONMENT_BYTES), "wheelhouse": WHEEL_BYTES, "TMPDIR": TMP_BYTES}
    shared: dict[int, list[str]] = {}
    spaces = {name: situation.space(path) for name, path in folders(situation).items()}
    for name, space in spaces.items():
        shared.setdefault(space.device, []).append(name)
    for names in shared.values():
        need, free = sum(wanted[name] for name in names), spaces[names[0]].free
        places = " and ".join(f"{name} ({folders(situation)[name]})" for name in names)
        enough = free >= need
        yield Finding(
            id="disk-space",
            status="ok" if enough else "error",
            subject=", ".join(names),
            message=f"{places}: {free / GIB:.1f} GiB free, a build needs about {need / GIB:.0f}",
            advice="" if enough else "Free space (`wheelmill gc`), or use another disk: `--cache DIR`, TMPDIR.",
        )


def memory_findings(limits: Limits | None) -> Iterator[Finding]:
    """Look whether one large compile fits."""
    if limits is None:
        return
    few = limits.memory_bytes < LEAST_MEMORY
    yield Finding(
        id="memory",
        status="warn" if few else "ok",
        subject="memory",
        message=f"{limits.memory_bytes / GIB:.1f} GiB usable, {limits.cpus:g} cpus",
        advice="The largest units will be refused; `wheelmill plan` says which jobs fit." if few else "",
    )


def variable_findings(env: Mapping[str, str]) -> Iterator[Finding]:
    """Look for variables that steer compilers: they do not reach a build, which may surprise."""
    leaking = sorted(name for name in env if env[name] and any(fnmatchcase(name, form) for form in LEAKS))
    for name in leaking:
        yield Finding(
            id="variable",
            status="warn",
            subject=name,
            message=f"{name} is set here and does not reach the build",
            advice="What a build must see belongs into the recipe's `environment`.",
        )
    if not leaking:
        message = "no variable that steers compilers is set"
        yield Finding(id="variable", status="ok", subject="environment", message=message)
