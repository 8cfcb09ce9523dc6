"""Doctor: preflight's checks, and what only a person wants to know of a machine."""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import EnvironmentUnfitError
from .interpreter import probe_environment
from .limits import read
from .plan import spell_seconds
from .preflight import GIB, Finding, Situation, Status, checks, program_version
from .sandbox import Rung
from .toolkit import Machine, survey

NAMESPACES = ("user", "mount", "pid", "net", "ipc", "uts")
PROGRAMS = {
    "git": "sources come as archives, so builds do without",
    "ninja": "a build takes the one of its own environment",
    "cmake": "a build takes the one of its own environment",
    "ccache": "a build takes the one that comes with wheelmill",
    "patchelf": "wheelmill takes its own",
}
"""Programs that people look for, and what part they have."""

TORCH_PROBE = """\
import importlib.util, json, os, runpy
spec = importlib.util.find_spec("torch")
file = os.path.join(spec.submodule_search_locations[0], "version.py") if spec else ""
said = runpy.run_path(file) if os.path.isfile(file) else {}
print(json.dumps({key: said.get(key) for key in ("__version__", "cuda", "hip")} if said else None))
"""
"""Reads torch's version file; importing torch takes seconds, and fails where its libraries do."""


def examine(
    situation: Situation, *, root: Path = Path("/"), now: Callable[[], float] = time.time
) -> tuple[Finding, ...]:
    """Look at everything, also at what stops no build."""
    return (
        *checks(situation),
        *survey_findings(situation),
        *torch_findings(situation),
        *program_findings(situation.machine),
        *namespace_findings(situation.machine),
        cgroup_finding(root),
        *leftover_findings(situation.machine, now()),
    )


def survey_findings(situation: Situation) -> Iterator[Finding]:
    """Give every toolkit on the machine, and whether it fits."""
    for found in survey(situation.need, situation.machine):
        status: Status = "ok" if found.fits else "warn" if found.other_minor and not found.problems else "skip"
        codes = f"; makes {', '.join(found.archs)}" if found.archs else ""
        message = f"{found}{codes}; known by {', '.join(found.origins)}"
        advice = "It is taken where it is given: `--cuda-home`." if status == "warn" else ""
        yield Finding(id="toolkit-found", status=status, subject=str(found.root), message=message, advice=advice)


# torch -----------------------------------------------------------------------------------------------


def torch_findings(situation: Situation) -> Iterator[Finding]:
    """Look at the torch of the environment whose interpreter was given: wheels may be meant to run there."""
    python = given_python(situation)
    if python is None:
        return
    stack = situation.need.stack
    wanted = situation.need.torch
    status, message, advice = "warn", "", f"Install the stack's: `wheelmill install --stack {stack.name} --into ENV`."
    found = installed_torch(python, situation.machine)
    if isinstance(found, str):
        status, message, advice = "skip", found, ""
    elif found.get("hip"):
        message = f"torch {found['__version__']} is built for ROCm {found['hip']}: CUDA wheels do not run beside it"
    elif not found.get("cuda"):
        message = f"torch {found['__version__']} is built for the CPU alone: CUDA wheels do not run beside it"
    elif (str(found["__version__"]).partition("+")[0], found["cuda"]) != (stack.torch.version, stack.cuda):
        message = f"torch {found['__version__']} (CUDA {found['cuda']}), where stack {stack.name} is for {wanted}"
    else:
        status, message, advice = "ok", f"torch {found['__version__']}, built with CUDA {found['cuda']}", ""
    yield Finding(id="torch", status=as_status(status), subject=str(python), message=message, advice=advice)


def as_status(word: str) -> Status:
    """Take a word for a status; anything else is a warning."""
    match word:
        case "ok" | "skip" | "error":
            return word
        case _:
            return "warn"


def given_python(situation: Situation) -> Path | None:
    """Give the interpreter that the user named, as it was named: a link in a venv is the venv's."""
    if situation.python is None:
        return None
    machine = situation.machine
    path = situation.machine.cwd / situation.python
    found = shutil.which(str(situation.python), path=machine.env.get("PATH", ""))
    return path if path.is_file() else Path(found) if found else None


def installed_torch(python: Path, machine: Machine) -> dict[str, object] | str:
    """Read which torch an environment has; a sentence where it has none or cannot be asked."""
    try:
        done = machine.runner.run(
            (str(python), "-I", "-c", TORCH_PROBE), env=probe_environment(machine.env), check=False
        )
        said = json.loads(done.stdout)
    except (EnvironmentUnfitError, ValueError):
        return "cannot be asked for its torch"
    return said if isinstance(said, dict) else "has no torch"


# the system ------------------------------------------------------------------------------------------


def program_findings(machine: Machine) -> Iterator[Finding]:
    """Look at the programs on PATH that people expect to matter."""
    for name, part in PROGRAMS.items():
        found = shutil.which(name, path=machine.env.get("PATH", ""))
        said = program_version(Path(found), machine) if found else ""
        message = f"{found}: {said}; {part}" if found else f"not on PATH; {part}"
        yield Finding(id="program", status="ok" if said else "skip", subject=name, message=message)


def namespace_findings(machine: Machine) -> Iterator[Finding]:
    """Try which namespaces this user can make: by making them."""
    unshare = shutil.which("unshare", path=machine.env.get("PATH", "") or "/usr/bin:/bin")
    subject = "namespaces"
    if unshare is None:
        message = "unshare is not on PATH, so that namespaces cannot be tried"
        yield Finding(id="namespaces", status="skip", subject=subject, message=message)
        return
    barred = [] if makes(unshare, NAMESPACES, machine) else [
        name for name in NAMESPACES if not makes(unshare, dict.fromkeys(("user", name)), machine)
    ]  # fmt: skip
    if not barred:
        message = f"all can be made: {', '.join(NAMESPACES)}"
        yield Finding(id="namespaces", status="ok", subject=subject, message=message)
        return
    yield Finding(
        id="namespaces",
        status="warn",
        subject=subject,
        message=f"this user cannot make: {', '.join(barred)}",
        advice="Allow them: `sysctl kernel.unprivileged_userns_clone=1`, `sysctl "
        "kernel.apparmor_restrict_unprivileged_userns=0`, or a container that is not confined by seccomp.",
    )


def makes(unshare: str, kinds: "tuple[str, ...] | dict[str, None]", machine: Machine) -> bool:
    """Say whether namespaces of these kinds can be made together."""
    options = ["--map-root-user" if kind == "user" else f"--{kind}" for kind in kinds]
    argv = (unshare, "--fork", *options, "true")
    try:
        done = machine.runner.run(argv, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}, check=False)
    except EnvironmentUnfitError:
        return False
    return done.returncode == 0


def sandbox_finding(rung: Rung) -> Finding:
    """Say whether builds are shut in here; without, they run all the same, and the wheel says so."""
    if rung.name == "namespaces":
        message = "builds see fixed paths, what is declared, and no network"
        return Finding(id="sandbox", status="ok", subject="sandbox", message=message)
    if rung.name == "folder":
        message = f"no namespaces: {rung.reason}; builds run in real folders, one at a time, and the network is not cut"
        return Finding(id="sandbox", status="warn", subject="sandbox", message=message, advice=rung.advice)
    message = f"no sandbox: {rung.reason}; the network is not cut, and equal bytes are promised for equal paths only"
    return Finding(id="sandbox", status="warn", subject="sandbox", message=message, advice=rung.advice)


def cgroup_finding(root: Path) -> Finding:
    """Tell which kind of control group holds this process, and whether groups can be made below it."""
    mounts = read(root / "proc/self/mountinfo").splitlines()
    kinds = {line.partition(" - ")[2].split(" ")[0]: line.split()[4] for line in mounts if " - cgroup" in line}
    own = next((line.partition("::")[2] for line in read(root / "proc/self/cgroup").splitlines() if "::" in line), "")
    if "cgroup2" in kinds:
        folder = root / kinds["cgroup2"].lstrip("/") / own.lstrip("/")
        folder = folder if folder.is_dir() else root / kinds["cgroup2"].lstrip("/")
        can = os.access(folder, os.W_OK)
        hybrid = " beside v1" if "cgroup" in kinds else ""
        message = f"cgroup v2{hybrid} at {folder}; {'groups can be made' if can else 'no groups can be made'} in it"
        return Finding(id="cgroup", status="ok" if can else "skip", subject="cgroup", message=message)
    if "cgroup" in kinds:
        return Finding(id="cgroup", status="ok", subject="cgroup", message=f"cgroup v1 at {kinds['cgroup']}")
    return Finding(id="cgroup", status="skip", subject="cgroup", message="no cgroup is mounted here")


# leftovers -------------------------------------------------------------------------------------------


def leftover_findings(machine: Machine, now: float) -> Iterator[Finding]:
    """Give the workplaces in the cache: which, how old, how large, and whether a build holds one now."""
    builds = machine.directories.builds
    for place in sorted(builds.iterdir()) if builds.is_dir() else ():
        if not place.is_dir() or place.name.startswith("."):
            continue
        age = spell_seconds(max(0.0, now - last_change(place)))
        if is_held(place / "lock"):
            message = f"a build runs in {place}; follow it: `tail -f {place}/build.log`"
            yield Finding(id="leftover", status="ok", subject=place.name, message=message)
            continue
        yield Finding(
            id="leftover",
            status="skip",
            subject=place.name,
            message=f"{place} was left by a build that ended {age} ago without a wheel: {size(place) / GIB:.1f} GiB",
            advice="The same build goes on from there; `wheelmill gc` removes it.",
        )


def last_change(place: Path) -> float:
    """Give the time when a build last wrote its log or records."""
    files = [place / name for name in ("build.log", "compile.jsonl", "lock") if (place / name).exists()]
    return max((path.stat().st_mtime for path in files), default=place.stat().st_mtime)


def is_held(lock: Path) -> bool:
    """Say whether a process holds a lock: the kernel frees it when that process ends, however it does.

    To ask is to hold it for some microseconds; shared, so that two doctors do not take each other for a build.
    """
    try:
        with lock.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def size(place: Path) -> int:
    """Add up what a folder takes on disk, hard links once."""
    taken: dict[int, int] = {}
    for base, _, names in os.walk(place):
        for name in names:
            try:
                status = os.lstat(os.path.join(base, name))  # noqa: PTH118 - 6,000 files, without a Path for each
            except OSError:
                continue
            taken[status.st_ino] = status.st_blocks * 512
    return sum(taken.values())
