"""What this machine lets us use: the smallest of every limit on cpus, memory and processes.

Pure over an injected root, so that any machine can be answered for from a copy of its files. Finding the files is
apart from reading them, because the governor reads at every admission.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path, PurePosixPath

UNLIMITED_BYTES = 1 << 60
"""cgroup v1 says 0x7ffffffffffff000 for "none", rounded to the page size: no machine has an exbibyte."""

MOUNT_FIELDS, TAIL_FIELDS = 5, 3
"""What we read of a mountinfo line: root and mount point; type, source, options."""
BLOCK = 1 << 16
"""Larger than any of the kernel's files that are read here."""

Reading = tuple[float, str]
"""A limit and where it was found."""
V2_MEMORY = ("memory.max", "memory.high")
"""memory.high counts: there a build does not die but stalls, 18 s for 2.8 s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What may be used here; `sources` names the file behind each figure."""

    cpus: float
    memory_bytes: int
    """The hard limit."""
    available_bytes: int
    """Free now, by the kernel's MemAvailable and by what every limiting group has left."""
    pids: int | None
    """None: no limit known."""
    pids_free: int | None = None
    """How many more may be started now."""
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hierarchy:
    """A cgroup of ours and its ancestors, innermost first."""

    unified: bool
    """cgroup v2."""
    controllers: frozenset[str]
    """Of v1; v2 says in a file of the group which it has."""
    directories: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlace:
    """The files of one group that say what memory it may use and uses."""

    unified: bool
    limits: tuple[str, ...]
    usage: str
    stat: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """The files that bind a process, those that exist; found once, read often."""

    root: Path
    affinity: frozenset[int] | None
    cpusets: tuple[str, ...]
    quotas: tuple[tuple[str, str], ...]
    """Quota and period; v2 has both in one file."""
    memory: tuple[MemoryPlace, ...]
    pids: tuple[tuple[str, str], ...]
    """Limit and number now."""


def read_limits(
    root: Path = Path("/"), pid_cgroup: str | None = None, *, affinity: frozenset[int] | None = None
) -> Limits:
    """Find every limit that holds for a process, and read it.

    `pid_cgroup` is the text of its /proc/PID/cgroup, else /proc/self/cgroup below `root` is read;
    `affinity` the cpus that it may run on, where the caller knows them.
    """
    return read_now(find_places(root, pid_cgroup, affinity=affinity))


def find_places(root: Path = Path("/"), said: str | None = None, *, affinity: frozenset[int] | None = None) -> Places:
    """Find the files that bind a process; see read_limits."""
    said = said if said is not None else read(root / "proc/self/cgroup")
    groups = list(find_hierarchies(root, said, read(root / "proc/self/mountinfo")))
    everywhere = list(each(groups))
    kernel = root / "proc/sys/kernel"
    threads = str(root / "proc/loadavg")
    return Places(
        root=root,
        affinity=affinity,
        cpusets=existing(d / ("cpuset.cpus.effective" if g.unified else "cpuset.cpus") for g, d in everywhere),
        quotas=tuple(
            (quota, quota if group.unified else str(directory / "cpu.cfs_period_us"))
            for group, directory in everywhere
            for quota in existing([directory / ("cpu.max" if group.unified else "cpu.cfs_quota_us")])
        ),
        memory=tuple(place for group, directory in everywhere for place in memory_place(group, directory)),
        pids=(
            *((limit, threads) for limit in existing([kernel / "pid_max", kernel / "threads-max"])),
            *((top, str(d / "pids.current")) for _, d in everywhere for top in existing([d / "pids.max"])),
        ),
    )


def memory_place(group: Hierarchy, directory: Path) -> Iterator[MemoryPlace]:
    """Give the files of a group on memory, if it has some."""
    names = V2_MEMORY if group.unified else ("memory.limit_in_bytes",)
    if limits := existing(directory / name for name in names):
        yield MemoryPlace(
            unified=group.unified,
            limits=limits,
            usage=str(directory / ("memory.current" if group.unified else "memory.usage_in_bytes")),
            stat=str(directory / "memory.stat"),
        )


def read_now(places: Places) -> Limits:
    """Read every limit again (measured: 0.4 ms)."""
    root = places.root
    meminfo = read_meminfo(root / "proc/meminfo")
    bounds = list(memory_bounds(places.memory))
    cpus = min([*cpu_readings(places), (inf, "")])
    memory = min([*((top, at) for top, _, at in bounds), (meminfo.get("MemTotal", inf), "/proc/meminfo MemTotal")])
    machine = (meminfo.get("MemAvailable", inf), "/proc/meminfo MemAvailable")
    free = min([*((left, at) for _, left, at in bounds), machine])
    rooms = list(pid_rooms(places))
    pids = min([*((top, at) for top, _, at in rooms), (inf, "")])
    pids_free = min([inf, *(left for _, left, _ in rooms)])
    sources = {"cpus": cpus, "memory": memory, "available": free, "pids": pids}
    return Limits(
        cpus=1.0 if cpus[0] == inf else cpus[0],
        memory_bytes=0 if memory[0] == inf else int(memory[0]),
        available_bytes=0 if free[0] == inf else max(0, int(min(free[0], memory[0]))),
        pids=None if pids[0] == inf else int(pids[0]),
        pids_free=None if pids_free == inf else max(0, int(pids_free)),
        sources={key: _shown(root, place) if value != inf else "unknown" for key, (value, place) in sources.items()},
    )


def find_hierarchies(root: Path, said: str, mounts: str) -> Iterator[Hierarchy]:
    """Match each line of /proc/PID/cgroup with its mounted hierarchy.

    Inside a container the path in /proc/PID/cgroup may be the host's, not visible below the mount; then the
    mount itself is the group (the namespace's root).
    """
    for line in said.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        unified = number == "0" and not controllers
        names = frozenset(controllers.split(",")) - {""}
        for mount, top in find_mounts(mounts, names, unified=unified):
            directory = root / mount.lstrip("/")
            inner = PurePosixPath(path)
            below = inner.relative_to(top) if inner.is_relative_to(top) else PurePosixPath()
            own = directory / below
            if not own.is_dir():
                own = directory
            chain = [own, *own.parents]
            yield Hierarchy(unified=unified, controllers=names, directories=tuple(chain[: chain.index(directory) + 1]))


def find_mounts(mounts: str, controllers: frozenset[str], *, unified: bool) -> Iterator[tuple[str, str]]:
    """Give mount point and root of the hierarchies in a mountinfo text."""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < MOUNT_FIELDS or len(tail) < TAIL_FIELDS:
            continue
        fits = tail[0] == ("cgroup2" if unified else "cgroup")
        if fits and (unified or controllers <= set(tail[2].split(","))):
            yield unescape(fields[4]), unescape(fields[3])


def cpu_readings(places: Places) -> Iterator[Reading]:
    """Give every bound on cpus: affinity, cpuset, quota, what is online."""
    if places.affinity is not None:
        yield float(len(places.affinity)), "affinity"
    online = str(places.root / "sys/devices/system/cpu/online")
    if cpus := count_cpus(read(online)):
        yield float(cpus), online
    for line in read(places.root / "proc/self/status").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            yield float(count_cpus(line.partition(":")[2])), "/proc/self/status Cpus_allowed_list"
    for place in places.cpusets:
        if cpus := count_cpus(read(place)):
            yield float(cpus), place
    for quota_place, period_place in places.quotas:
        words = [*read(quota_place).split(), ""]
        limit = number(words[0])
        span = number(words[1] if period_place == quota_place else read(period_place))
        if limit and span and limit > 0:
            yield limit / span, quota_place


def memory_bounds(places: tuple[MemoryPlace, ...]) -> Iterator[tuple[float, float, str]]:
    """Give every bound on memory and what is left below it; page cache that can be dropped is not counted as used.

    v1 also tells the smallest limit of ancestors that a container does not see, though not what they have left.
    """
    for place in places:
        tops = [(number(read(name)), name) for name in place.limits]
        bounds = [(top, name) for top, name in tops if top is not None and top < UNLIMITED_BYTES]
        if place.unified and not bounds:
            continue  # where many groups live, the kernel sums them up for every look at v2's memory.stat
        stat = read_table(place.stat)
        hidden = stat.get("hierarchical_memory_limit", inf)
        if hidden < min([UNLIMITED_BYTES, *(top for top, _ in bounds)]):
            bounds.append((hidden, f"{place.stat} hierarchical_memory_limit"))
        usage = number(read(place.usage)) if bounds else None
        for top, name in bounds:
            used = -inf if usage is None else max(0.0, usage - droppable(stat, unified=place.unified))
            yield top, top - used, name


def droppable(stat: dict[str, float], *, unified: bool) -> float:
    """Give the page cache that a group's processes do not run from, by its memory.stat; children's included.

    As MemAvailable does: `active` says little, since one pass by splice, or a kernel of generations, makes it so
    (measured: 200 MB read once by sendfile are all active, by read all inactive).
    """
    names = ("inactive_file", "active_file") if unified else ("total_inactive_file", "total_active_file")
    mapped = stat.get("file_mapped" if unified else "total_mapped_file", 0.0)
    return max(0.0, sum(stat.get(name, 0.0) for name in names) - mapped)


def pid_rooms(places: Places) -> Iterator[tuple[float, float, str]]:
    """Give every bound on processes, and how many more fit below it."""
    for limit_place, used_place in places.pids:
        limit = number(read(limit_place))
        text = read(used_place)
        used = number(text.partition("/")[2].partition(" ")[0] if used_place.endswith("loadavg") else text)
        if limit is not None:
            yield limit, inf if used is None else limit - used, limit_place


def existing(paths: Iterable[Path]) -> tuple[str, ...]:
    """Keep those that exist, as text: a str is opened twice as fast as a Path."""
    return tuple(str(path) for path in paths if path.exists())


def each(groups: list[Hierarchy]) -> Iterator[tuple[Hierarchy, Path]]:
    """Give every directory of every group."""
    for group in groups:
        for directory in group.directories:
            yield group, directory


def read(path: Path | str) -> str:
    """Give a file's text, "" when there is none: which files exist depends on kernel and mount."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        parts = [part := os.read(descriptor, BLOCK)]
        while part:
            parts.append(part := os.read(descriptor, BLOCK))
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("utf-8", "replace").strip()


def number(text: str) -> float | None:
    """Read a limit; "max" and nonsense are none."""
    try:
        return float(text)
    except ValueError:
        return None


def read_table(path: Path | str, factor: Callable[[list[str]], int] = lambda _: 1) -> dict[str, float]:
    """Read lines of a key and a number."""
    table: dict[str, float] = {}
    for line in read(path).splitlines():
        key, *rest = line.replace(":", " ").split()
        value = number(rest[0]) if rest else None
        if value is not None:
            table[key] = value * factor(rest)
    return table


def read_meminfo(path: Path) -> dict[str, float]:
    """Read /proc/meminfo in bytes."""
    return read_table(path, lambda rest: 1024 if rest[1:] == ["kB"] else 1)


def count_cpus(text: str) -> int:
    """Count a list like `0-3,8`."""
    total = 0
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdigit() and (not dash or last.isdigit()):
            total += int(last) - int(first) + 1 if dash else 1
    return total


def unescape(text: str) -> str:
    """Undo mountinfo's octal escapes."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def _shown(root: Path, place: str) -> str:
    prefix = str(root).rstrip("/")
    return place.removeprefix(prefix) if prefix else place
