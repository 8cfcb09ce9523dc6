"""Holds each lease's processes together, measures and ends them: by cgroup v2, by cgroup v1, else by /proc.

Which way works is found by doing it once with a child; versions and mounts say too little. Groups are made below
our own, so that a container's limit holds for them, and are named wheelmill-<pid>-<number>.
"""

import errno
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from .limits import Hierarchy, droppable, find_hierarchies, number, read, read_table

Name = Literal["cgroup2", "cgroup1", "poll"]

LEAF = "wheelmill-leaf"
"""Where a delegated v2 group's own processes go: a group with memory-limited children may hold none itself."""
GROUP = re.compile(r"wheelmill-(\d+)-\d+")
PATIENCE_SECONDS = 10.0
"""How long the killed are waited for: one stuck in a device's driver dies only when that lets go."""
PAUSE_SECONDS = 0.002
TRIALS = 250
"""With the pause, half a second."""
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SCAN_SECONDS = 0.02
"""One look at /proc serves every lease that is read within this time."""
DELEGATED = ("user.delegate", "trusted.delegate")
"""Extended attributes by which systemd marks a group that is its user's own."""
COMPILERS = re.compile(
    r"(?:.*-)?(?:nvcc|cicc|ptxas|cudafe\+\+|fatbinary|nvlink|nvc\+\+|cc1|cc1plus|cc1obj|lto1|lto-wrapper|gcc|g\+\+|"
    r"cc|c\+\+|clang|clang\+\+|rustc|collect2|as|ld|ld\.bfd|ld\.gold|ld\.lld|lld|mold|tileiras)(?:-[\d.]+)?"
)
"""Programs that may be ended to save the rest. The build's Python and ninja are not among them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What a lease's processes take, and took since it began."""

    current_bytes: int
    """Without page cache that can be dropped."""
    peak_bytes: int
    cpu_seconds: float
    oom_kills: int
    """By the kernel. Where `Backend.exact_oom` is false, the count of our own group: perhaps another compile's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stray:
    """A process of the build that no lease holds."""

    pid: int
    name: str
    """At most 15 characters: the kernel keeps no more."""
    memory_bytes: int
    started: int
    """Clock ticks after the machine's start; with the pid, this process and no other."""

    @property
    def compiler(self) -> bool:
        """Tell whether it is one that should have come through the shims."""
        return COMPILERS.fullmatch(self.name) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A line of /proc/PID/stat."""

    pid: int
    name: str
    parent: int
    alive: bool
    """False: ended, and not waited for."""
    cpu_seconds: float
    """With that of the children that it has waited for."""
    memory_bytes: int
    started: int


Table = dict[int, Process]


class Group(Protocol):
    """The processes of one lease: the gate, and whatever it starts."""

    def enter(self, pid: int) -> None:
        """Take a process in, with what it will start; ProcessLookupError when it is gone."""
        ...

    def read(self) -> Usage:
        """Measure; after the end too. Never raises because a process has ended meanwhile."""
        ...

    def pids(self) -> frozenset[int]:
        """Give the living processes of it."""
        ...

    def kill(self, except_pid: int | None = None) -> int:
        """End every process but the given one until none is left; give how many were killed."""
        ...

    def close(self) -> None:
        """Remove it; processes that are left go back to where they came from."""
        ...


class Backend(Protocol):
    """A way to hold leases."""

    @property
    def name(self) -> Name:
        """Give the way's name."""
        ...

    @property
    def exact_oom(self) -> bool:
        """Tell whether Usage.oom_kills is this lease's own."""
        ...

    @property
    def passed_over(self) -> tuple[str, ...]:
        """Say why each better way was not taken."""
        ...

    def lease(self, number: int) -> Group:
        """Make the group of one lease."""
        ...

    def close(self) -> None:
        """Remove what was made."""
        ...


class Files:
    """The seam through which groups are changed: unit tests give a kernel of their own."""

    def make(self, directory: Path) -> None:
        """Make a group."""
        directory.mkdir()

    def remove(self, directory: Path) -> None:
        """Remove a group; OSError while processes are in it."""
        directory.rmdir()

    def write(self, path: Path, text: str) -> None:
        """Write a control file in one call: a buffered file would swallow the kernel's refusal."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def signal(self, pid: int, number: signal.Signals, still: Callable[[int], bool]) -> bool:
        """Signal a process unless its number means another one by now; tell whether it was signalled."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError:  # older than 5.3, or barred by a filter
            return still(pid) and not _gone(pid, number)
        try:
            if not still(pid):
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


def _gone(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    return False


class UnfitError(Exception):
    """Why a way does not work here; never leaves this module."""


class Meter:
    """Keeps the peak, and a floor under the CPU time, which falls where a process ends unseen."""

    def __init__(self) -> None:
        self.peak = 0
        self._kernel_peak = 0
        self._cache = 0
        self._cpu = 0.0

    def note_peak(self, current: int, cache: int, kernel_peak: int | None) -> int:
        """Take a measurement in; give the peak without cache that was there before and after it.

        The kernel's own peak counts page cache that it would have dropped: a link of 2 GB of objects looks like
        2 GB of need. What of it stood in the group both before and after the peak rose was none.
        """
        if kernel_peak is not None and kernel_peak > self._kernel_peak:
            self.peak = max(self.peak, kernel_peak - min(self._cache, cache))
            self._kernel_peak = kernel_peak
        self._cache = cache
        self.peak = max(self.peak, current)
        return self.peak

    def note_cpu(self, seconds: float) -> float:
        """Take CPU time in; it never falls."""
        self._cpu = max(self._cpu, seconds)
        return self._cpu


class ControlGroup:
    """A cgroup of one lease, of either version."""

    def __init__(self, directory: Path, way: "ControlGroups") -> None:
        self._directory = directory
        self._way = way
        self._meter = Meter()
        self._base_cpu = 0.0
        self._accounts = tuple(parent / directory.name for parent in way.accounts)
        self._make()

    def _make(self) -> None:
        for directory in (self._directory, *self._accounts):
            with suppress(FileExistsError):
                self._way.files.make(directory)

    def enter(self, pid: int) -> None:
        """See Group.enter. A group that another's sweep took away is made again."""
        spent = own_cpu(self._way.proc, pid)
        try:
            self._attach(pid)
        except FileNotFoundError:
            self._make()
            self._attach(pid)
        self._base_cpu += spent

    def _attach(self, pid: int) -> None:
        for directory in (self._directory, *self._accounts):
            self._way.files.write(directory / "cgroup.procs", str(pid))

    def read(self) -> Usage:
        """See Group.read."""
        memory = self._way.memory(self._directory)
        return Usage(
            current_bytes=memory.current,
            peak_bytes=self._meter.note_peak(memory.current, memory.cache, memory.peak),
            cpu_seconds=self._meter.note_cpu(self._cpu()),
            oom_kills=memory.oom_kills,
        )

    def _cpu(self) -> float:
        counted = self._way.cpu(self._directory.name)
        if counted is not None:
            return counted
        found = (look(self._way.proc, pid) for pid in self.pids())
        return sum(process.cpu_seconds for process in found if process) - self._base_cpu

    def pids(self) -> frozenset[int]:
        """See Group.pids."""
        return members(self._directory)

    def kill(self, except_pid: int | None = None) -> int:
        """See Group.kill. Where they can be frozen first, none forks meanwhile; SIGKILL reaches the frozen."""
        files, frozen = self._way.files, self._directory / "cgroup.freeze"
        killed: set[int] = set()
        deadline = time.monotonic() + PATIENCE_SECONDS
        with suppress(OSError):
            files.write(frozen, "1")
        try:
            while (left := self.pids() - {except_pid}) and time.monotonic() < deadline:
                killed.update(pid for pid in left if files.signal(pid, signal.SIGKILL, self._holds))
                time.sleep(PAUSE_SECONDS)
        finally:
            with suppress(OSError):
                files.write(frozen, "0")
        return len(killed)

    def _holds(self, pid: int) -> bool:
        return pid in self.pids()

    def close(self) -> None:
        """See Group.close. One that is still busy is left to the next sweep."""
        for directory, home in zip(
            (self._directory, *self._accounts), (self._way.home, *self._way.accounts), strict=True
        ):
            for pid in members(directory):
                with suppress(OSError):
                    self._way.files.write(home / "cgroup.procs", str(pid))
            remove(self._way.files, directory)
        self._way.made.discard(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What a group's files say. `peak` is None where the kernel keeps none."""

    current: int
    cache: int
    peak: int | None
    oom_kills: int


class ControlGroups:
    """Holds leases in cgroups below one of ours."""

    name: Name
    exact_oom = True

    def __init__(
        self,
        *,
        base: Path,
        home: Path,
        accounts: tuple[Path, ...] = (),
        proc: Path,
        files: Files,
        passed_over: tuple[str, ...] = (),
    ) -> None:
        self.base, self.home, self.accounts = base, home, accounts
        self.proc, self.files, self.passed_over = proc, files, passed_over
        self.made: set[ControlGroup] = set()

    def lease(self, number: int) -> ControlGroup:
        """See Backend.lease."""
        group = ControlGroup(self.base / f"wheelmill-{os.getpid()}-{number}", self)
        self.made.add(group)
        return group

    def close(self) -> None:
        """See Backend.close."""
        for group in tuple(self.made):
            group.close()

    def sweep(self) -> int:
        """Remove the empty groups of builds that are no more; give how many."""
        removed = 0
        for parent in (self.base, *self.accounts):
            for directory in sorted(parent.glob("wheelmill-*")):
                owner = GROUP.fullmatch(directory.name)
                if owner and not (self.proc / owner[1]).exists() and not members(directory):
                    removed += remove(self.files, directory, tries=1)
        return removed

    def memory(self, directory: Path) -> Memory:
        """Measure one group."""
        raise NotImplementedError

    def cpu(self, name: str) -> float | None:
        """Give the CPU seconds of one group where the kernel keeps them."""
        raise NotImplementedError


class ControlGroups2(ControlGroups):
    """cgroup v2."""

    name: Name = "cgroup2"

    def memory(self, directory: Path) -> Memory:
        """See ControlGroups.memory. The local events: the parent's limit kills here, and is counted here."""
        usage = whole(directory / "memory.current")
        cache = int(droppable(read_table(directory / "memory.stat"), unified=True))
        peak = number(read(directory / "memory.peak"))
        local = directory / "memory.events.local"
        events = read_table(local if local.exists() else directory / "memory.events")
        return Memory(
            current=max(0, usage - cache),
            cache=cache,
            peak=None if peak is None else int(peak),
            oom_kills=int(events.get("oom_kill", 0)),
        )

    def cpu(self, name: str) -> float | None:
        """See ControlGroups.cpu. cpu.stat is there without the cpu controller, which would undo `nice`."""
        spent = read_table(self.base / name / "cpu.stat").get("usage_usec")
        return None if spent is None else spent / 1e6


class ControlGroups1(ControlGroups):
    """cgroup v1."""

    name: Name = "cgroup1"

    def memory(self, directory: Path) -> Memory:
        """See ControlGroups.memory."""
        usage = whole(directory / "memory.usage_in_bytes")
        cache = int(droppable(read_table(directory / "memory.stat"), unified=False))
        return Memory(
            current=max(0, usage - cache),
            cache=cache,
            peak=whole(directory / "memory.max_usage_in_bytes"),
            oom_kills=int(read_table(directory / "memory.oom_control").get("oom_kill", 0)),
        )

    def cpu(self, name: str) -> float | None:
        """See ControlGroups.cpu."""
        if not self.accounts:
            return None
        spent = number(read(self.accounts[0] / name / "cpuacct.usage"))
        return None if spent is None else spent / 1e9


class PolledGroup:
    """The tree of one lease, found by parentage; what was seen once is not lost when its parent dies."""

    def __init__(self, way: "Polling") -> None:
        self._way = way
        self._meter = Meter()
        self._known: dict[int, int] = {}
        self._base_cpu = 0.0
        self._base_oom = way.oom_kills()

    def enter(self, pid: int) -> None:
        """See Group.enter."""
        process = look(self._way.proc, pid)
        if process is None:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        self._way.forget()
        self._known[pid] = process.started
        self._base_cpu += process.cpu_seconds

    def read(self) -> Usage:
        """See Group.read. Sum of RSS: PSS costs 60 ms a process, and compilers share next to nothing."""
        found = self._find(self._way.table())
        current = sum(process.memory_bytes for process in found)
        spent = sum(process.cpu_seconds for process in found) - self._base_cpu
        return Usage(
            current_bytes=current,
            peak_bytes=self._meter.note_peak(current, 0, None),
            cpu_seconds=self._meter.note_cpu(spent),
            oom_kills=max(0, self._way.oom_kills() - self._base_oom),
        )

    def pids(self) -> frozenset[int]:
        """See Group.pids."""
        return self._living(self._way.table())

    def _living(self, table: Table) -> frozenset[int]:
        return frozenset(process.pid for process in self._find(table) if process.alive)

    def _find(self, table: Table) -> list[Process]:
        roots = [pid for pid, started in self._known.items() if pid in table and table[pid].started == started]
        found = below(table, roots)
        self._known = {process.pid: process.started for process in found}
        return found

    def kill(self, except_pid: int | None = None) -> int:
        """See Group.kill. All are stopped first: a child born between look and kill would be nobody's."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        stopped: set[int] = set()
        while fresh := self._living(scan(self._way.proc)) - stopped - {except_pid}:
            for pid in fresh:
                self._signal(pid, signal.SIGSTOP)
            stopped |= fresh
        killed: set[int] = set()
        while (left := self._living(scan(self._way.proc)) - {except_pid}) and time.monotonic() < deadline:
            killed.update(pid for pid in left if self._signal(pid, signal.SIGKILL))
            time.sleep(PAUSE_SECONDS)
        self._way.forget()
        return len(killed)

    def _signal(self, pid: int, number: signal.Signals) -> bool:
        started = self._known.get(pid)
        return self._way.files.signal(pid, number, lambda one: _started(self._way.proc, one) == started)

    def close(self) -> None:
        """See Group.close."""
        self._known.clear()


class Polling:
    """Holds leases by looking at /proc; one look serves all of them."""

    name: Name = "poll"
    exact_oom = False

    def __init__(
        self,
        *,
        root: Path,
        files: Files,
        passed_over: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.proc, self.files, self.passed_over = root / "proc", files, passed_over
        self._clock = clock
        self._counter = find_oom_counter(root)
        self._table: Table = {}
        self._fresh_until = float("-inf")

    def lease(self, number: int) -> PolledGroup:  # noqa: ARG002 - a group of cgroups is named by it
        """See Backend.lease."""
        return PolledGroup(self)

    def close(self) -> None:
        """See Backend.close."""

    def table(self) -> Table:
        """Look at every process, or give the last look where that is new enough.

        On a machine of thousands of processes a look is dear: it takes a twentieth of our time at most.
        """
        if self._clock() > self._fresh_until:
            before = time.thread_time()
            self._table = scan(self.proc)
            self._fresh_until = self._clock() + max(SCAN_SECONDS, 20 * (time.thread_time() - before))
        return self._table

    def forget(self) -> None:
        """Look again at the next question: what the last look saw has been changed by us."""
        self._fresh_until = float("-inf")

    def oom_kills(self) -> int:
        """See oom_count."""
        return _oom_kills(self._counter)


def probe(
    root: Path = Path("/"),
    *,
    pid: int | None = None,
    files: Files | None = None,
    child: "Callable[[], AbstractContextManager[int]] | None" = None,
) -> ControlGroups | Polling:
    """Find the best way that works here, by doing; groups are made below the one of `pid` (ours)."""
    files = files or Files()
    owner = str(pid) if pid is not None else "self"
    passed: tuple[str, ...] = ()
    for name, prepare in (("cgroup2", prepare2), ("cgroup1", prepare1)):
        try:
            way = prepare(root, owner, files)
            way.sweep()
            try_out(way, child or restless_child)
        except (OSError, UnfitError) as error:
            passed = (*passed, f"{name}: {_why(error)}")
        else:
            way.passed_over = passed
            return way
    return Polling(root=root, files=files, passed_over=passed)


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def prepare2(root: Path, owner: str, files: Files) -> ControlGroups:
    """Make our v2 group able to have children with a memory controller; UnfitError or OSError where it is not."""
    own = own_group(root, owner, unified=True)
    base = own.parent if own.name == LEAF else own
    if "memory" not in read(base / "cgroup.controllers").split():
        raise UnfitError(f"{base} has no memory controller")
    if "memory" not in read(base / "cgroup.subtree_control").split():
        try:
            files.write(base / "cgroup.subtree_control", "+memory")
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            vacate(root, owner, base, files)
            files.write(base / "cgroup.subtree_control", "+memory")
    home = own_group(root, owner, unified=True)
    return ControlGroups2(base=base, home=home, proc=root / "proc", files=files)


def vacate(root: Path, owner: str, base: Path, files: Files) -> None:
    """Move a group's processes to a leaf below it; UnfitError where systemd has not given us the group."""
    container = base == own_mount(root, owner)
    if (root / "run/systemd/system").exists() and not container and not delegated(base):
        raise UnfitError(
            f"systemd keeps {base} for itself; start with "
            "`systemd-run --user --scope -p Delegate=yes wheelmill …` to use it"
        )
    leaf = base / LEAF
    with suppress(FileExistsError):
        files.make(leaf)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := members(base)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                files.write(leaf / "cgroup.procs", str(pid))


def delegated(directory: Path) -> bool:
    """Tell whether systemd has marked a group as its user's own."""
    for name in DELEGATED:
        with suppress(OSError):
            if os.getxattr(directory, name) == b"1":
                return True
    return False


def own_mount(root: Path, owner: str) -> Path | None:
    """Give where our v2 hierarchy is mounted: in a container, the container's own group."""
    found = hierarchies(root, owner)
    return next((one.directories[-1] for one in found if one.unified), None)


def prepare1(root: Path, owner: str, files: Files) -> ControlGroups:
    """Find our v1 groups of memory, and of CPU time where that is mounted alone.

    Mounted together with `cpu`, a group of its own would weigh as much as any other, whatever its `nice`.
    """
    base = own_group(root, owner, unified=False)
    if read(base / "memory.use_hierarchy") == "0":
        raise UnfitError(f"{base}: memory.use_hierarchy is 0, its limit would not hold for groups below it")
    alone = [one for one in hierarchies(root, owner) if one.controllers == {"cpuacct"}]
    accounts = tuple(one.directories[0] for one in alone if os.access(one.directories[0], os.W_OK))
    return ControlGroups1(base=base, home=base, accounts=accounts[:1], proc=root / "proc", files=files)


def hierarchies(root: Path, owner: str) -> list[Hierarchy]:
    """Give a process's groups."""
    proc = root / "proc" / owner
    return list(find_hierarchies(root, read(proc / "cgroup"), read(proc / "mountinfo")))


def own_group(root: Path, owner: str, *, unified: bool) -> Path:
    """Give a process's group, of v2 or of v1's memory controller; UnfitError when there is none."""
    for one in hierarchies(root, owner):
        if one.unified if unified else "memory" in one.controllers:
            return one.directories[0]
    raise UnfitError("not mounted" if unified else "no memory controller is mounted")


def try_out(way: ControlGroups, child: "Callable[[], AbstractContextManager[int]]") -> None:
    """Do once what every lease will do; UnfitError or OSError where something does not work."""
    with child() as pid:
        group = way.lease(0)
        try:
            group.enter(pid)
            if pid not in group.pids():
                raise UnfitError(f"a process that was put into {way.base} is not there")
            if not measured(group):
                raise UnfitError(f"groups below {way.base} count no memory")
            group.kill()
            if group.pids():
                raise UnfitError(f"a process in {way.base} cannot be killed")
        finally:
            way.close()
    if (way.base / f"wheelmill-{os.getpid()}-0").exists():
        raise UnfitError(f"a group below {way.base} cannot be removed")


def measured(group: ControlGroup) -> bool:
    """Tell whether a group counts memory, once its process has done something."""
    for _ in range(TRIALS):
        if group.read().peak_bytes:
            return True
        time.sleep(PAUSE_SECONDS)
    return False


@contextmanager
def restless_child() -> Iterator[int]:
    """Give a child that takes more and more memory: one that only sleeps takes none after its move.

    It starts nothing: that would come to us, who adopt orphans, and be nobody's to wait for. Not by _process: what that
    starts stands behind a guard of its own, and it is the child itself that must move.
    """
    argv = ("/bin/sh", "-c", "text=; while :; do text=$text.; done")
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    pid = os.posix_spawn(argv[0], argv, {"PATH": "/usr/bin:/bin"}, file_actions=quiet)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def members(directory: Path) -> frozenset[int]:
    """Give a group's processes; 0 stands for one that our pid namespace does not show."""
    return frozenset(int(word) for word in read(directory / "cgroup.procs").split()) - {0}


def remove(files: Files, directory: Path, tries: int = TRIALS) -> bool:
    """Remove a group, with patience for processes on their way out."""
    for _ in range(tries):
        try:
            files.remove(directory)
        except FileNotFoundError:
            return True
        except OSError:
            time.sleep(PAUSE_SECONDS)
        else:
            return True
    return False


def whole(path: Path) -> int:
    """Read a file of one number; 0 where there is none."""
    return int(number(read(path)) or 0)


def scan(proc: Path) -> Table:
    """Look at every process (measured: 25 microseconds each)."""
    table: Table = {}
    for name in os.listdir(proc):  # noqa: PTH208 - a Path for each costs as much as the look
        if name.isdigit() and (process := look(proc, int(name))):
            table[process.pid] = process
    return table


def look(proc: Path, pid: int) -> Process | None:
    """Look at one process; None when it is gone."""
    head, paren, tail = read(f"{proc}/{pid}/stat").rpartition(")")
    fields = tail.split()
    if not paren or len(fields) < 22:
        return None
    alive = fields[0] not in {"Z", "X", "x"}
    return Process(
        pid=pid,
        name=head.partition("(")[2],
        parent=int(fields[1]),
        alive=alive,
        cpu_seconds=sum(map(int, fields[11:15])) / TICK,
        memory_bytes=int(fields[21]) * PAGE if alive else 0,
        started=int(fields[19]),
    )


def _started(proc: Path, pid: int) -> int | None:
    process = look(proc, pid)
    return process.started if process else None


def own_cpu(proc: Path, pid: int) -> float:
    """Give the CPU seconds that a process has spent before it entered."""
    process = look(proc, pid)
    return process.cpu_seconds if process else 0.0


def below(table: Table, roots: Iterable[int]) -> list[Process]:
    """Give the given processes and all below them."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: dict[int, Process] = {}
    frontier = [pid for pid in roots if pid in table]
    while frontier:
        pid = frontier.pop()
        if pid not in found:
            found[pid] = table[pid]
            frontier.extend(children.get(pid, ()))
    return list(found.values())


def find_oom_counter(root: Path = Path("/"), owner: str = "self") -> Path:
    """Find the file that counts the kernel's OOM kills closest to us."""
    for one in hierarchies(root, owner):
        if one.unified:
            names = [directory / "memory.events" for directory in one.directories]
        else:
            names = [one.directories[0] / "memory.oom_control"] if "memory" in one.controllers else []
        for name in names:
            if "oom_kill" in read_table(name):
                return name
    return root / "proc/vmstat"


def oom_count(root: Path = Path("/")) -> int:
    """Count the kernel's OOM kills that may have been ours: of our own group, else of the machine.

    Read before and after, and compare: a kill of another's process in the same group counts too.
    """
    return _oom_kills(find_oom_counter(root))


def _oom_kills(counter: Path) -> int:
    return int(read_table(counter).get("oom_kill", 0))


def strays(build: int, leases: Iterable[Group], proc: Path = Path("/proc")) -> tuple[Stray, ...]:
    """Give the processes below `build` that no lease holds, biggest first.

    Among them are the build's own Python, ninja and gates that wait; `Stray.compiler` tells which should not be.
    """
    table = scan(proc)
    held = frozenset[int]().union(*(group.pids() for group in leases))
    free = [one for one in below(table, [build]) if one.alive and one.pid != build and one.pid not in held]
    return tuple(
        Stray(pid=one.pid, name=one.name, memory_bytes=one.memory_bytes, started=one.started)
        for one in sorted(free, key=lambda one: (-one.memory_bytes, one.pid))
    )


def end_stray(stray: Stray, proc: Path = Path("/proc"), files: Files | None = None) -> bool:
    """Kill a stray unless its pid means another process by now; tell whether it was killed."""
    return (files or Files()).signal(stray.pid, signal.SIGKILL, lambda pid: _started(proc, pid) == stray.started)
