"""The build environment: a virtual environment that a lock pins, and the variables that a build may see."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ._process import Runner
from ._uv import Uv
from .errors import EnvironmentUnfitError
from .interpreter import Interpreter
from .lock import Lock
from .runtime import Directories
from .toolkit import replace_text

FORMAT = 1
"""Raised when an environment is made another way, so that an old one is not taken for a new one."""
COMPLETE = "wheelmill-complete.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildEnvironment:
    """A complete virtual environment."""

    root: Path
    python: Path
    bin: Path
    site_packages: Path

    @classmethod
    def at(cls, root: Path, release: str) -> "BuildEnvironment":
        """Name the parts of the environment at `root`, for a CPython of this `major.minor`."""
        return cls(
            root=root,
            python=root / "bin/python",
            bin=root / "bin",
            site_packages=root / f"lib/python{release}/site-packages",
        )


def environment_key(lock: Lock, interpreter: Interpreter) -> str:
    """Name an environment by everything that decides what is in it: lock, interpreter, and how it is made."""
    parts = (str(FORMAT), lock.digest, str(interpreter.path), interpreter.version, interpreter.abi)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def create(lock: Lock, interpreter: Interpreter, *, directories: Directories, uv: Uv) -> BuildEnvironment:
    """Give the environment that a lock pins, making it where it is not there yet.

    A venv holds its own path, so it cannot be made aside and renamed: it is made in place under a lock, and its
    last file says that it is complete. One without that file is what a kill left behind, and is removed.
    Raises HashMismatchError, FetchError or ResourcesError.
    """
    root = directories.environments / environment_key(lock, interpreter)
    environment = BuildEnvironment.at(root, interpreter.release)
    if (root / COMPLETE).is_file():
        return environment
    directories.environments.mkdir(parents=True, exist_ok=True)
    with locked(root.with_suffix(".lock")):
        if (root / COMPLETE).is_file():
            return environment
        shutil.rmtree(root, ignore_errors=True)
        fill(environment, lock, interpreter, uv=uv)
    return environment


def fill(environment: BuildEnvironment, lock: Lock, interpreter: Interpreter, *, uv: Uv) -> None:
    """Make a virtual environment, and mark it complete; nothing is left of one that fails."""
    root = environment.root
    log = root.with_suffix(".log")
    log.unlink(missing_ok=True)
    try:
        uv.venv(root, python=interpreter.path, lock=lock, log=log)
        into = ("--python", str(environment.python))
        uv.install(lock, file=root / "requirements.txt", into=into, site=environment.site_packages, log=log)
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise
    note = {"lock": lock.digest, "python": str(interpreter.path), "version": interpreter.version}
    replace_text(root / COMPLETE, json.dumps(note, indent=1, sort_keys=True) + "\n")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock; the kernel frees it when we die, however that happens."""
    with path.open("w", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


# requirements ----------------------------------------------------------------------------------------

PROBE = """\
import importlib.metadata as metadata, importlib.util, json, sys

def modules(found):
    listed = (found.read_text("top_level.txt") or "").split()
    files = [file.parts for file in found.files or ()]
    own = [parts[0] for parts in files if len(parts) == 2 and parts[1] == "__init__.py"]
    single = [parts[0][:-3] for parts in files if len(parts) == 1 and parts[0].endswith(".py")]
    return sorted(set(listed or own or single))

def importable(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False

said = {}
for name in sys.argv[1:]:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        said[name] = None
        continue
    names = [each for each in modules(found) if each.isidentifier()]
    said[name] = {"version": found.version, "broken": [each for each in names if not importable(each)]}
print(json.dumps(said))
"""
"""Asks from inside: the requirements must be met there, and what our own interpreter holds says nothing."""

TOOLS = ("ninja", "cmake")
"""Requirements that are of use only as a program in the environment's bin."""


def check_requirements(environment: BuildEnvironment, requirements: tuple[str, ...], runner: Runner) -> tuple[str, ...]:
    """Give every build requirement that is not met, before any hook of the package runs.

    A hook would stop at the first import that fails, and the next retry at the next one. Nothing is imported for
    real: torch alone takes seconds.
    """
    wanted = [Requirement(text) for text in requirements]
    names = sorted({canonicalize_name(each.name) for each in wanted})
    env = {"PATH": f"{environment.bin}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    done = runner.run((str(environment.python), "-I", "-c", PROBE, *names), env=env)
    found: dict[str, dict[str, object] | None] = json.loads(done.stdout)
    problems = (
        unmet(each, found.get(canonicalize_name(each.name)), environment) or idle(each, environment, runner)
        for each in wanted
    )
    return tuple(problem for problem in problems if problem)


def unmet(wanted: Requirement, found: dict[str, object] | None, environment: BuildEnvironment) -> str:
    """Say why one requirement is not met, else nothing."""
    if found is None:
        return f"{wanted} (missing)"
    version, broken = str(found["version"]), found["broken"]
    try:
        fits = wanted.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        fits = False
    if not fits:
        return f"{wanted} (found {version})"
    if isinstance(broken, list) and broken:
        return f"{wanted} (found {version}, but `import {broken[0]}` would fail)"
    name = canonicalize_name(wanted.name)
    if name in TOOLS and not os.access(environment.bin / name, os.X_OK):
        return f"{wanted} (found {version}, but not its program {environment.bin / name})"
    return ""


def idle(wanted: Requirement, environment: BuildEnvironment, runner: Runner) -> str:
    """Say that a requirement which is of use only as a program does not run, else nothing.

    torch asks ninja for its version too, and compiles one file at a time where that fails.
    """
    name = canonicalize_name(wanted.name)
    if name not in TOOLS:
        return ""
    program = environment.bin / name
    try:
        done = runner.run((str(program), "--version"), env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}, check=False)
    except EnvironmentUnfitError as error:
        return f"{wanted} ({error})"
    return "" if done.returncode == 0 else f"{wanted} ({program} ends with status {done.returncode})"


def demand(environment: BuildEnvironment, requirements: tuple[str, ...], runner: Runner, *, lock: Lock) -> None:
    """Raise EnvironmentUnfitError that lists every unmet build requirement at once."""
    if missing := check_requirements(environment, requirements, runner):
        lines = [f"the build environment lacks {len(missing)} of {len(requirements)} build requirements"]
        lines += [f"  {problem}" for problem in missing]
        raise EnvironmentUnfitError(
            "\n".join((*lines, f"  environment: {environment.root}", f"  lock: {lock.file}")),
            advice="Add them to the stack's `build-requires` and run `wheelmill lock STACK`.",
        )


# variables -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildPaths:
    """The folders of a build, as the build sees them (inside the sandbox `/wheelmill/…`)."""

    shims: Path
    environment: Path
    view: Path
    home: Path
    tmp: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildSettings:
    """What decides the variables of a build beyond its folders.

    `package`: the recipe's and the variant's environment, the arch variables and the local version variable.
    `max_jobs` is a cap, the governor admits; `cccl`: whether the toolkit keeps CCCL in `include/cccl`.
    """

    package: Mapping[str, str]
    source_date_epoch: int
    max_jobs: int
    nvcc_threads: int
    cccl: bool


def build_variables(paths: BuildPaths, settings: BuildSettings) -> dict[str, str]:
    """Give the complete environment of a build: nothing of the user's gets in.

    CC and CXX stay unset: torch turns CC into `-ccbin`, and the compilers come by PATH, where the shims are first.
    The package's own variables cannot replace ours: the recipe parser refuses them.
    """
    jobs = str(settings.max_jobs)
    view = str(paths.view)
    ours = {
        "PATH": f"{paths.shims}:{paths.environment}/bin:{view}/bin:/usr/bin:/bin",
        "HOME": str(paths.home),
        "TMPDIR": str(paths.tmp),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "SOURCE_DATE_EPOCH": str(settings.source_date_epoch),
        "CUDA_HOME": view,
        "CUDA_PATH": view,
        "CUDAToolkit_ROOT": view,
        "CUDACXX": f"{view}/bin/nvcc",
        # Without a driver `-lcuda` is found nowhere else: torch gives lib64 only. NVIDIA's own images set the same.
        "LIBRARY_PATH": f"{view}/lib64/stubs",
        "MAX_JOBS": jobs,
        "CMAKE_BUILD_PARALLEL_LEVEL": jobs,
        "NVCC_THREADS": str(settings.nvcc_threads),
        # torch would take the launcher for an unknown compiler and start it twice more per build; preflight has
        # compared gcc with the toolkit's own bounds, which torch's table lacks from CUDA 12 on.
        "TORCH_DONT_CHECK_COMPILER_ABI": "1",
        "VLLM_DISABLE_SCCACHE": "1",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_OFFLINE": "1",
        "UV_NO_CONFIG": "1",
    }
    if settings.cccl:
        # CUDA 13 moved CCCL to include/cccl; nvcc finds it by nvcc.profile, g++ (and so FlashMLA's .cpp) by this
        # alone. It comes after every -I and -isystem, so a package's own CCCL still wins.
        ours["CPLUS_INCLUDE_PATH"] = f"{view}/include/cccl"
    return dict(sorted({**settings.package, **ours}.items()))
