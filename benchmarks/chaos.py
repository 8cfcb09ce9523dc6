"""What a build stands: killed, stopped, starved of memory and of disk at random, it must end with the same bytes.

`python benchmarks/chaos.py [--rounds 50] [--seed 1]` builds tests/projects/many (sixty units) in a memory limit of its
own, once undisturbed, then again and again with one injection each at a random moment. Where that ended the build, it
is started again until there is a wheel. After every end: no process is left within two seconds, no lock is held, the
wheelhouse shows a whole wheel or none; in the end the wheel (it holds the digest of every object) is the undisturbed
one, and nothing lies about. Before that two builds at once share a limit: two packages with two caches and with one,
and one package twice. With `--second`: memory taken faster than anybody can look, and the end of a build (repair,
verify, wheelhouse). Results go to benchmarks/results/chaos.json; fails where anything of this is not so.

Needs root, for a group of its own and for a small disk that can be filled. So that a start takes seconds, verify
installs the wheel alone, without torch; `--whole` has it all, without the small disk. `--root DIR` keeps its folder.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Never

from wheelmill import cgroups, install
from wheelmill._uv import Uv
from wheelmill.fetch import tree_digest
from wheelmill.limits import droppable, read, read_table
from wheelmill.lock import subset

HERE = Path(__file__).resolve()
PROJECTS, RECIPES = (HERE.parents[1] / "tests" / name for name in ("projects", "recipes"))
RESULT = HERE.parent / "results/chaos.json"
MB = 1 << 20
LIMIT, LIMIT_TOGETHER = 1792 * MB, 2048 * MB
"""A GiB of these is the reserve: two of the large units do not fit at once."""
DISK = 1536 * MB
"""Preflight wants a GiB."""
LATE_SECONDS = 6.0
"""About what repair, verify and the wheelhouse take; a build that ends before counts not."""
SURVIVAL = 2.0
"""Seconds within which everything of a build must be gone after its end."""
STARTS = 5
HUNG, EQUIPPING = 150.0, 900.0
COMPILERS = {"g++", "cc1plus", "as", "ld", "collect2"}
HOG = """
import mmap, os, sys, time
size, step, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
os.fork(); os.fork()  # each is smaller than what the kernel takes first
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
kept = [mmap.mmap(-1, min(step, size // 4 - at), flags) for at in range(0, size // 4, step)]
time.sleep(seconds)
"""


# the place -------------------------------------------------------------------------------------------


class Box:
    """A memory group with a limit; every start and every hog has a group below it."""

    def __init__(self, way: cgroups.ControlGroups, limit: int) -> None:
        self.new = way.name == "cgroup2"
        self.path = way.base / f"chaos-{os.getpid()}"
        self.path.mkdir()
        if self.new:
            (self.path / "cgroup.subtree_control").write_text("+memory")
        self.numbers = iter(range(1, 10_000))
        self.limit = limit
        self.set_limit(limit)

    def set_limit(self, size: int) -> None:
        """Bound the memory of the whole group."""
        with contextlib.suppress(OSError):  # v1 refuses less than what is used
            (self.path / ("memory.max" if self.new else "memory.limit_in_bytes")).write_text(str(size))

    @property
    def used(self) -> int:
        """Bytes in use, without page cache that can be dropped."""
        stat = read_table(self.path / "memory.stat")
        return self.charged - int(droppable(stat, unified=self.new))

    @property
    def charged(self) -> int:
        """Bytes in use, all page cache included."""
        return int(read(self.path / ("memory.current" if self.new else "memory.usage_in_bytes")))

    def below(self) -> Path:
        """Make a group for a start."""
        made = self.path / f"start-{next(self.numbers)}"
        made.mkdir()
        return made

    def groups(self) -> list[Path]:
        """Give it and what is below, innermost first."""
        return sorted((path.parent for path in self.path.rglob("cgroup.procs")), reverse=True)

    def pids(self) -> list[int]:
        """Give every living process in it."""
        return sorted({pid for group in self.groups() for pid in cgroups.members(group) if state(pid) not in "ZX"})

    def sweep(self) -> int:
        """Remove the groups of starts that have ended; give how many leases' groups were among them."""
        left = 0
        for group in self.groups():
            if group != self.path:
                left += "wheelmill-" in group.name and group.name != cgroups.LEAF
                with contextlib.suppress(OSError):
                    group.rmdir()
        return left

    def close(self) -> None:
        """End what is left, and remove it."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.5)
        self.sweep()
        with contextlib.suppress(OSError):
            self.path.rmdir()


def state(pid: int) -> str:
    """Give the state of a process, X where there is none."""
    return (read(f"/proc/{pid}/stat").rpartition(")")[2].split() or ["X"])[0]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Folders of the benchmark; `disk` is the small one, None where there is none."""

    root: Path
    disk: Path | None
    whole: bool

    @property
    def cache(self) -> Path:
        """Where starts keep everything; builds, objects and peaks of it are on the small disk."""
        return self.root / "cache"

    @property
    def house(self) -> Path:
        """The wheelhouse, on the small disk, too."""
        return self.root / "small" / "house"

    @property
    def roster(self) -> Path:
        """The roster of these builds alone."""
        return self.root / "run" / "wheelmill"

    def argv(self, name: str, *words: str, cache: Path | None = None, house: Path | None = None) -> list[str]:
        """Give the command of a start."""
        way = ["-m", "wheelmill"] if self.whole else [str(HERE), "--line"]
        common = ["--stack", "cu130", "--json", "--cache", str(cache or self.cache)]
        folders = ["--wheelhouse", str(house or self.house), "--recipes", str(self.root / "recipes")]
        return [sys.executable, *way, "build", name, *words, *common, *folders]

    def env(self) -> dict[str, str]:
        """Give its environment."""
        return {
            **os.environ,
            "XDG_RUNTIME_DIR": str(self.root / "run"),
            "TMPDIR": str(self.root / "tmp"),
            "UV_PYTHON_DOWNLOADS": "never",
        }

    def clean(self) -> None:
        """Make the next round start from nothing but environments."""
        for folder in (self.cache / "builds", self.cache / "objects", self.house, self.root / "tmp"):
            for path in folder.glob("*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            for path in folder.glob(".*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def package(root: Path, name: str, units: int) -> None:
    """Write a copy of the synthetic package, and its recipe."""
    project = root / "projects" / name
    shutil.copytree(PROJECTS / "many", project)
    for path, old, new in (
        (project / "pyproject.toml", 'name = "many"', f'name = "{name}"'),
        (project / "setup.py", "UNITS = 60", f"UNITS = {units}"),
    ):
        text = path.read_text("utf-8")
        if old not in text:
            raise ValueError(f"{path} has no {old}")
        path.write_text(text.replace(old, new), "utf-8")
    recipe = (RECIPES / "many.toml").read_text("utf-8")
    recipe = recipe.replace(tree_digest(PROJECTS / "many"), tree_digest(project)).replace(
        "projects/many", f"projects/{name}"
    )
    recipe = recipe.replace('name = "many"', f'name = "{name}"').replace("units = 61", f"units = {units + 1}")
    (root / "recipes").mkdir(exist_ok=True)
    (root / "recipes" / f"{name}.toml").write_text(recipe, "utf-8")


@contextlib.contextmanager
def placed(options: argparse.Namespace) -> Iterator[Place]:
    """Make the folders, and mount a small disk where builds, objects and wheelhouse are."""
    with contextlib.ExitStack() as stack:
        root = options.root or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        root = root.resolve()
        for name in ("projects", "recipes", "small", "tmp", "run"):
            shutil.rmtree(root / name, ignore_errors=True)
            (root / name).mkdir(parents=True)
        package(root, "many", options.units)
        package(root, "other", options.units)
        disk = None if options.whole else small_disk(root, stack)
        shown: list[tuple[Path, Path | None]] = [(root / "small" / "house", None)]
        shown += [(root / "small" / name, root / "cache" / name) for name in ("builds", "objects", "peaks")]
        for real, at in shown:
            real.mkdir()
            if at is not None:
                at.mkdir(parents=True, exist_ok=True)
                if disk is not None:
                    mount(stack, "--bind", real, at)
        yield Place(root=root, disk=disk, whole=options.whole)


def small_disk(root: Path, stack: contextlib.ExitStack) -> Path | None:
    """Mount a file system of its own; None where that is not to be had."""
    image, at = root / "image", root / "small"
    image.unlink(missing_ok=True)  # an earlier one may be mounted still
    with image.open("wb") as file:
        file.truncate(DISK)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=False, capture_output=True)
    return at if made.returncode == 0 and mount(stack, "-o", "loop", image, at) else None


def mount(stack: contextlib.ExitStack, *words: str | Path) -> bool:
    """Mount, until the end."""
    done = subprocess.run(["mount", *words], check=False, capture_output=True)
    if done.returncode == 0:
        stack.callback(subprocess.run, ["umount", "-l", words[-1]], check=False)
    return done.returncode == 0


# a start ---------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Start:
    """One run of `wheelmill build`."""

    process: "subprocess.Popen[bytes]"
    out: Path
    began: float
    group: Path

    def wait(self, patience: float = HUNG) -> int | None:
        """Give its status; None where it hangs, and then it is killed."""
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            return None

    def outcome(self) -> dict[str, object]:
        """Give what it says of the build; empty where it could not."""
        with contextlib.suppress(ValueError, OSError, IndexError, KeyError):
            return dict(json.loads(self.out.read_bytes())["builds"][0])
        return {}

    def said(self) -> str:
        """Give what it said to people."""
        return self.out.with_suffix(".err").read_text("utf-8", "replace")


class Bench:
    """Place and box, and the numbers of starts."""

    def __init__(self, place: Place, box: Box, memory: int) -> None:
        self.place, self.box, self.memory = place, box, memory
        self.number = 0

    def start(self, name: str = "many", **folders: Path) -> Start:
        """Start a build in the box."""
        self.number += 1
        out = self.place.root / "said" / f"{self.number:03}"
        out.parent.mkdir(exist_ok=True)
        group = self.box.below()
        enter = ["/bin/sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "enter"]
        argv = self.place.argv(name, "--memory", f"{self.memory // MB}MiB", **folders)
        with out.open("wb") as stdout, out.with_suffix(".err").open("wb") as stderr:
            process = subprocess.Popen([*enter, *argv], env=self.place.env(), stdout=stdout, stderr=stderr)
        return Start(process=process, out=out, began=time.monotonic(), group=group)

    def hog(self, size: int, seconds: float, *, at_once: bool) -> "subprocess.Popen[bytes]":
        """Start what takes memory in the box; compilers are the kernel's first choice before it."""
        group = self.box.path / "hog"
        group.mkdir(exist_ok=True)
        enter = f'echo $$ > "{group}/cgroup.procs" && exec "$@"'
        words = [sys.executable, "-S", "-I", "-c", HOG, str(size), str(size if at_once else MB), str(seconds)]
        return subprocess.Popen(["/bin/sh", "-c", enter, "hog", *words])

    def family(self) -> dict[str, list[int]]:
        """Give the processes of the box by what they are."""
        found: dict[str, list[int]] = {}
        for pid in self.box.pids():
            found.setdefault(role(pid), []).append(pid)
        return found


def role(pid: int) -> str:
    """Tell what a process of a build is."""
    words = read(f"/proc/{pid}/cmdline").split("\0")
    name = read(f"/proc/{pid}/comm")
    if name in {"ninja", "ccache", "uv"}:
        return name
    if name in COMPILERS:
        return "compiler"
    if name == "gate":
        return "launcher" if words[1:] and words[1].startswith("--") else "gate"
    for script, what in (("_guard.py", "guard"), ("_sandbox.py", "sandbox"), ("hook.py", "backend")):
        if any(word.endswith(script) for word in words):
            return what
    return "front" if "build" in words else name


# injections ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Injection:
    """What is done, and when: `compiling`: while compilers are at work; `late`: from repair on; else at any time."""

    kind: str
    compiling: bool = False
    late: bool = False
    disk: bool = False


KINDS = (
    *(Injection(kind=f"KILL {who}", compiling=True) for who in ("ninja", "gate", "launcher", "ccache", "compiler")),
    *(Injection(kind=f"KILL {who}", compiling=True) for who in ("guard", "sandbox", "backend")),
    *[Injection(kind="KILL front")] * 3,
    *[Injection(kind="TERM front")] * 2,
    *(Injection(kind=kind) for kind in ("STOP front", "STOP and KILL front")),
    *[Injection(kind="limit below use", compiling=True)] * 2,
    *[Injection(kind="hog to the limit", compiling=True)] * 2,
    *[Injection(kind="pressure", compiling=True)] * 2,
    *[Injection(kind="disk full for a moment", disk=True)] * 2,
    Injection(kind="disk full to the end", disk=True),
)
SECOND = (
    *[Injection(kind="hog at once to the limit", compiling=True)] * 3,
    *[Injection(kind="KILL front", late=True)] * 4,
    *[Injection(kind="TERM front", late=True)] * 2,
    *[Injection(kind="disk full for a moment", late=True, disk=True)] * 2,
    Injection(kind="disk full to the end", late=True, disk=True),
)


def oom_kills() -> int:
    """Count the kernel's kills on this machine."""
    return int(read_table("/proc/vmstat").get("oom_kill", 0))


def inject(kind: str, bench: Bench, start: Start, chance: random.Random) -> str:
    """Do it; say what was done, nothing where it could not be."""
    verb, _, who = kind.partition(" ")
    if kind in {"KILL front", "TERM front"}:
        start.process.send_signal(signal.SIGKILL if verb == "KILL" else signal.SIGTERM)
        return f"process {start.process.pid}"
    if verb == "STOP":
        seconds = chance.uniform(0.5, 4.0)
        start.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        start.process.send_signal(signal.SIGCONT if who == "front" else signal.SIGKILL)
        return f"for {seconds:.1f} s"
    if verb == "KILL":
        victims = bench.family().get(who, [])
        if not victims:
            return ""
        victim = chance.choice(victims)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        return f"process {victim}, one of {len(victims)}"
    if verb == "disk":
        return fill(bench, start, chance.uniform(0.5, 4.0) if "moment" in kind else None)
    return starve(kind, bench, chance.uniform(1.0, 3.0))


def starve(kind: str, bench: Bench, seconds: float) -> str:
    """Take memory away for some seconds."""
    box, before = bench.box, oom_kills()
    used = box.used
    if kind == "limit below use":
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            box.set_limit(box.used + MB)
            time.sleep(0.05)
        box.set_limit(box.limit)
    else:
        left = 300 * MB if kind == "pressure" else -100 * MB
        size = max(MB, box.limit - used - left)
        bench.hog(size, seconds, at_once="at once" in kind).wait()
        while cgroups.members(box.path / "hog"):
            time.sleep(0.02)
        (box.path / "hog").rmdir()
    return f"for {seconds:.1f} s at {used // MB} MB in use; the kernel killed {oom_kills() - before}"


def fill(bench: Bench, start: Start, seconds: float | None) -> str:
    """Fill the small disk, for a moment or until the build ends."""
    filler = bench.place.root / "small" / "filler"
    began = time.monotonic()
    try:
        while time.monotonic() - began < (HUNG if seconds is None else seconds) and start.process.poll() is None:
            with filler.open("ab") as file, contextlib.suppress(OSError):
                room = os.statvfs(filler)
                os.posix_fallocate(file.fileno(), file.tell(), max(1, room.f_bavail * room.f_frsize))
            with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
                file.write(b"x" * MB)
            time.sleep(0.02)
    finally:
        filler.unlink(missing_ok=True)
    return f"for {time.monotonic() - began:.1f} s"


# what must hold --------------------------------------------------------------------------------------


def gone(bench: Bench) -> tuple[float, list[str]]:
    """Wait until nothing of a build is left; give how long it took, and what would not go."""
    began = time.monotonic()
    while left := bench.box.pids():
        if time.monotonic() - began > SURVIVAL:
            names = [f"{role(pid)} {pid} ({state(pid)})" for pid in left]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.5)
            return SURVIVAL, names
        time.sleep(0.01)
    return time.monotonic() - began, []


def held_locks(place: Place, caches: tuple[Path, ...] = ()) -> list[str]:
    """Name the locks that somebody holds, when nobody can."""
    found = [*place.roster.glob("*.lock"), place.roster / "account", place.house / ".lock"]
    for cache in (place.cache, *caches):
        found += [
            *cache.glob("builds/*/lock"),
            *cache.glob("builds/*/outcome.json"),
            *cache.glob("environments/*.lock"),
        ]
    held = []
    for path in found:
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(str(path.relative_to(place.root)))
    return held


def half_written(house: Path, sha256: str) -> list[str]:
    """Name what a wheelhouse must never show: a wheel that is not whole, or without its record."""
    wrong = [f"{path.name} is another" for path in house.glob("*.whl") if digest(path) != sha256]
    wrong += [f"{path.name} has no record" for path in house.glob("*.whl") if not beside(path, ".build.json")]
    return wrong


def beside(path: Path, suffix: str) -> bool:
    """Tell whether a wheel's record is there, and whole."""
    with contextlib.suppress(OSError, ValueError):
        return bool(json.loads(path.with_name(path.name + suffix).read_bytes()))
    return False


def digest(path: Path) -> str:
    """Give a file's sha256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def listing(folder: Path) -> list[str]:
    """List the files of a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def lying_about(bench: Bench, expected: list[str]) -> list[str]:
    """Name what is left after a wheel was made: of workplaces, of the wheelhouse, of the roster."""
    place = bench.place
    left = [f"builds/{path.name}" for path in (place.cache / "builds").iterdir()]
    left += [f"house/{name}" for name in set(listing(place.house)) ^ set(expected)]
    return sorted(left + [f"run/{path.name}" for path in place.roster.glob("*-*")])


# rounds ----------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Round:
    """One injection and what came of it."""

    number: int
    kind: str
    after_s: float = 0.0
    done: str = ""
    starts: list[dict[str, object]] = field(default_factory=list)
    reused: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Sound:
    """The undisturbed build: its wheel, the files of its wheelhouse, how long it took and when compilers came."""

    sha256: str
    files: list[str]
    seconds: float
    first_compile: float


def first_compile(bench: Bench, start: Start) -> float | None:
    """Wait for the first compiler; None where the build ends before."""
    while start.process.poll() is None:
        if "launcher" in bench.family():
            return time.monotonic() - start.began
        time.sleep(0.02)
    return None


def undisturbed(bench: Bench, *, thorough: bool) -> Sound:
    """Build once, so that environments are there and peaks are known, and if `thorough` once more to measure."""
    for _ in range(2 if thorough else 1):
        bench.place.clean()
        start = bench.start()
        began = first_compile(bench, start) or 0.0
        if start.wait(EQUIPPING) != 0:
            raise SystemExit(start.said())
        gone(bench)
        bench.box.sweep()
    outcome = start.outcome()
    return Sound(
        sha256=str(outcome["sha256"]),
        files=listing(bench.place.house),
        seconds=time.monotonic() - start.began,
        first_compile=began,
    )


def ended(bench: Bench, start: Start, sound: Sound, found: Round) -> bool:
    """Wait for the end of a start, look at everything, and say whether there is a wheel."""
    status = start.wait()
    took, survivors = gone(bench)
    outcome, place = start.outcome(), bench.place
    error = outcome.get("error")
    said: dict[str, object] = {
        "status": status,
        "seconds": round(time.monotonic() - start.began - took, 1),
        "gone_after_s": round(took, 3),
        "compiles": outcome.get("compiles"),
        "cache_hits": outcome.get("cache_hits"),
        "retries": outcome.get("retries"),
        "error": error["kind"] if isinstance(error, dict) else None,
    }
    found.starts.append(said)
    if isinstance(error, dict):
        said["message"] = str(error["message"]).splitlines()[0]
    found.faults += ["hung"] * (status is None)
    found.faults += [f"survived: {name}" for name in survivors]
    found.faults += [f"lock held: {name}" for name in held_locks(place)]
    found.faults += [f"wheelhouse: {name}" for name in half_written(place.house, sound.sha256)]
    if "Traceback" in start.said():
        found.faults.append("traceback: " + start.said()[-600:])
    return status == 0


def disturbed(bench: Bench, sound: Sound, injection: Injection, number: int, chance: random.Random) -> Round | None:
    """Build with one injection, then until there is a wheel; None where the build ended before it came."""
    found = Round(number=number, kind=injection.kind)
    bench.place.clean()
    start = bench.start()
    span = sound.seconds - (sound.first_compile if injection.compiling else 0.0)
    if injection.compiling:
        first_compile(bench, start)
        span *= 0.6  # the rest links, repairs and verifies
    if injection.late:
        while start.process.poll() is None and "==> repair" not in start.said():
            time.sleep(0.01)
        span = LATE_SECONDS
    deadline = time.monotonic() + chance.uniform(0.02, span)
    while time.monotonic() < deadline and start.process.poll() is None:
        time.sleep(0.01)
    while start.process.poll() is None and not found.done:
        found.after_s = round(time.monotonic() - start.began, 2)
        found.done = inject(injection.kind, bench, start, chance)
        time.sleep(0.01)
    made = ended(bench, start, sound, found)
    if not found.done:
        return None
    while not made and len(found.starts) < STARTS:
        start = bench.start()
        made = ended(bench, start, sound, found)
        found.reused = max(found.reused, finished(start.said()))
    if not made:
        found.faults.append("no wheel: " + start.said()[-600:])
    elif start.outcome().get("status") == "built":  # one that finds its wheel there sweeps up nothing
        found.faults += [f"left: {name}" for name in lying_about(bench, sound.files)]
    left = bench.box.sweep()
    found.faults += [f"{left} groups left"] * (left > 0 and found.starts[-1] is found.starts[0])
    return found


def finished(said: str) -> int:
    """Read how many objects a start goes on with."""
    words = said.partition("goes on with ")[2].split()
    return int(words[0]) if words and words[0].isdigit() else 0


# two builds ------------------------------------------------------------------------------------------


def together(bench: Bench, *, names: tuple[str, str], caches: tuple[Path, Path]) -> dict[str, object]:
    """Start two builds at once in one box."""
    bench.place.clean()
    for cache in caches[1:]:
        for folder in ("builds", "objects"):
            shutil.rmtree(cache / folder, ignore_errors=True) if cache != bench.place.cache else None
    kills, peak, over = oom_kills(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.02):
            peak = max(peak, bench.box.used)

    looking = threading.Thread(target=watch)
    looking.start()
    starts = [bench.start(name, cache=cache) for name, cache in zip(names, caches, strict=True)]
    statuses = [start.wait() for start in starts]
    over.set()
    looking.join()
    took, survivors = gone(bench)
    bench.box.sweep()
    outcomes = [start.outcome() for start in starts]
    followed = [start.said().count(": following") for start in starts]
    faults = [f"survived: {name}" for name in survivors]
    faults += [f"lock held: {name}" for name in held_locks(bench.place, caches)]
    faults += [start.said()[-600:] for start, status in zip(starts, statuses, strict=True) if status != 0]
    faults += [f"the kernel killed {oom_kills() - kills}"] * (oom_kills() > kills)
    faults += [f"{peak // MB} MB were in use"] * (peak > bench.box.limit)
    if names[0] == names[1]:
        faults += [f"followed {followed}"] * (sum(followed) != 1)
        faults += ["two wheels"] * (len({outcome.get("sha256") for outcome in outcomes}) != 1)
    return {
        "packages": names,
        "caches": len(set(caches)),
        "statuses": statuses,
        "followed": followed,
        "seconds": [outcome.get("seconds") for outcome in outcomes],
        "compiles": [outcome.get("compiles") for outcome in outcomes],
        "retries": [outcome.get("retries") for outcome in outcomes],
        "limit_bytes": bench.box.limit,
        "peak_bytes": peak,
        "oom_kills": oom_kills() - kills,
        "gone_after_s": round(took, 3),
        "faults": faults,
    }


def pairs(bench: Bench) -> list[dict[str, object]]:
    """Try every way in which two builds may meet."""
    one, two = bench.place.cache, bench.place.root / "cache-2"
    bench.box.limit = bench.memory = LIMIT_TOGETHER
    bench.box.set_limit(LIMIT_TOGETHER)
    for cache in (one, two):  # environments, and what units take
        start = bench.start("other", cache=cache)
        if start.wait(EQUIPPING) != 0:
            raise SystemExit(start.said())
        shutil.rmtree(bench.place.house)
        bench.place.house.mkdir()
    found = [
        together(bench, names=("many", "other"), caches=(one, two)),
        together(bench, names=("many", "other"), caches=(one, one)),
        together(bench, names=("many", "many"), caches=(one, one)),
    ]
    bench.box.limit = bench.memory = LIMIT
    bench.box.set_limit(LIMIT)
    return found


# the whole -------------------------------------------------------------------------------------------


def alone(installation: install.Installation, *, uv: Uv) -> install.InstallProof:
    """Stand in for offline_install: the wheel alone, without the run lock of 5 GB."""
    small = replace(installation, lock=subset(installation.lock, ()))
    for wheel in small.wheels:
        install.check_digest(wheel)
    uv.run("venv", "--clear", "--no-project", "--python", small.interpreter, small.venv)
    install.install_wheels(small, uv)
    modules, talk = install.import_modules(small, uv.runner)
    found = install.distributions(small, uv)
    return install.InstallProof(venv=small.venv, wheels=small.wheels, distributions=found, modules=modules, talk=talk)


def line(words: list[str]) -> Never:
    """Be `wheelmill`, with that in place."""
    from wheelmill import pipeline  # noqa: PLC0415 - the benchmark itself need not load it
    from wheelmill.__main__ import main as wheelmill  # noqa: PLC0415

    pipeline.offline_install = alone  # type: ignore[attr-defined]
    sys.argv = ["wheelmill", *words]
    wheelmill()


def kinds(of: tuple[Injection, ...], chance: random.Random, *, disk: bool) -> Iterator[Injection]:
    """Give injections without end: in every turn each kind, in a random order."""
    while True:
        turn = [each for each in of if disk or not each.disk]
        chance.shuffle(turn)
        yield from turn


def all_rounds(bench: Bench, sound: Sound, options: argparse.Namespace) -> Iterator[Round]:
    """Disturb so many builds."""
    chance, number = random.Random(options.seed), 1  # noqa: S311 - chaos, no secret
    wanted = kinds(SECOND if options.second else KINDS, chance, disk=bench.place.disk is not None)
    while number <= options.rounds:
        injection = next(wanted)
        if options.only not in injection.kind:
            continue
        one = disturbed(bench, sound, injection, number, chance)
        if one is not None:
            yield one
            number += 1


def main() -> int:
    """Do all of it."""
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    way = cgroups.probe()
    if isinstance(way, cgroups.Polling):
        print("no memory group can be made here: " + "; ".join(way.passed_over), file=sys.stderr)
        return 1
    with placed(options) as place, contextlib.closing(Box(way, LIMIT)) as box:
        bench = Bench(place, box, LIMIT)
        sound = undisturbed(bench, thorough=options.together)
        print(f"undisturbed: {sound.seconds:.1f} s, compilers after {sound.first_compile:.1f} s", flush=True)
        result: dict[str, object] = {
            "seed": options.seed,
            "units": options.units,
            "whole_verify": options.whole,
            "small_disk": place.disk is not None,
            "cores": os.cpu_count(),
            "backend": way.name,
            "limit_bytes": LIMIT,
            "undisturbed": asdict(sound),
        }
        pair = pairs(bench) if options.together else []
        result["together"] = pair
        print(json.dumps(pair), flush=True)
        rounds: list[Round] = []
        for one in all_rounds(bench, sound, options):
            rounds.append(one)
            print(json.dumps(asdict(one)), flush=True)
            result["kinds"] = dict(sorted(Counter(each.kind for each in rounds).items()))
            result["faults"] = sum(bool(each.faults) for each in rounds)
            result["rounds"] = [asdict(each) for each in rounds]
            write(options.result, result, second=options.second)
    return int(any(each.faults for each in rounds) or any(each["faults"] for each in pair))


def write(path: Path, result: dict[str, object], *, second: bool) -> None:
    """Write what was found, or add what the second set found."""
    with contextlib.suppress(FileNotFoundError):
        before = json.loads(path.read_text("utf-8"))
        result = {**before, "second": result} if second else {**result, "second": before.get("second")}
    path.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--units", type=int, default=60)
    parser.add_argument("--only", default="", help="kinds with this in their name")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--second", action="store_true", help="the second set of injections")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--together", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--result", type=Path, default=RESULT)
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--line"]:
        line(sys.argv[2:])
    sys.exit(main())
