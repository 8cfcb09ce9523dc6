"""What this machine lets us use: the smallest of every limit on cpus, memory and processes.

Pure over an injected root, so that any machine can be answered for from a copy of its files.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path, PurePosixPath

UNLIMITED_BYTES = 1 << 60
"""cgroup v1 says 0x7ffffffffffff000 for "none", rounded to the page size: no machine has an exbibyte."""

MOUNT_FIELDS, TAIL_FIELDS = 5, 3
"""What we read of a mountinfo line: root and mount point; type, source, options."""

Reading = tuple[float, str]
"""A limit and where it was found."""


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
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A cgroup of ours and its ancestors, innermost first."""

    unified: bool
    """cgroup v2."""
    directories: tuple[Path, ...]


def read_limits(
    root: Path = Path("/"), pid_cgroup: str | None = None, *, affinity: frozenset[int] | None = None
) -> Limits:
    """Find every limit that holds for a process.

    `pid_cgroup` is the text of its /proc/PID/cgroup, else /proc/self/cgroup below `root` is read;
    `affinity` the cpus that it may run on, where the caller knows them.
    """
    said = pid_cgroup if pid_cgroup is not None else read(root / "proc/self/cgroup")
    groups = list(find_groups(root, said, read(root / "proc/self/mountinfo")))
    meminfo = read_meminfo(root / "proc/meminfo")
    cpus = min([*cpu_readings(root, groups, affinity), (inf, "")])
    memory = min([*memory_readings(groups), (meminfo.get("MemTotal", inf), "/proc/meminfo MemTotal")])
    free = min([*free_readings(groups), (meminfo.get("MemAvailable", inf), "/proc/meminfo MemAvailable")])
    pids = min([*pid_readings(root, groups), (inf, "")])
    sources = {"cpus": cpus, "memory": memory, "available": free, "pids": pids}
    return Limits(
        cpus=1.0 if cpus[0] == inf else cpus[0],
        memory_bytes=0 if memory[0] == inf else int(memory[0]),
        available_bytes=0 if free[0] == inf else max(0, int(min(free[0], memory[0]))),
        pids=None if pids[0] == inf else int(pids[0]),
        sources={key: _shown(root, place) if value != inf else "unknown" for key, (value, place) in sources.items()},
    )


def find_groups(root: Path, said: str, mounts: str) -> Iterator[Group]:
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
            yield Group(unified=unified, directories=tuple(chain[: chain.index(directory) + 1]))


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


def cpu_readings(root: Path, groups: list[Group], affinity: frozenset[int] | None) -> Iterator[Reading]:
    """Give every bound on cpus: affinity, cpuset, quota, what is online."""
    if affinity is not None:
        yield float(len(affinity)), "affinity"
    online = count_cpus(read(root / "sys/devices/system/cpu/online"))
    if online:
        yield float(online), str(root / "sys/devices/system/cpu/online")
    for line in read(root / "proc/self/status").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            yield float(count_cpus(line.partition(":")[2])), "/proc/self/status Cpus_allowed_list"
    for group, directory in each(groups):
        name = "cpuset.cpus.effective" if group.unified else "cpuset.cpus"
        if cpus := count_cpus(read(directory / name)):
            yield float(cpus), str(directory / name)
        if group.unified:
            quota, _, period = read(directory / "cpu.max").partition(" ")
            place = directory / "cpu.max"
        else:
            place = directory / "cpu.cfs_quota_us"
            quota, period = read(place), read(directory / "cpu.cfs_period_us")
        limit, span = number(quota), number(period)
        if limit and span and limit > 0:
            yield limit / span, str(place)


def memory_readings(groups: list[Group]) -> Iterator[Reading]:
    """Give every bound on memory. memory.high counts: there a build does not die but stalls, 18 s for 2.8 s."""
    for group, directory in each(groups):
        names = ("memory.max", "memory.high") if group.unified else ("memory.limit_in_bytes",)
        for name in names:
            limit = number(read(directory / name))
            if limit is not None and limit < UNLIMITED_BYTES:
                yield limit, str(directory / name)


def free_readings(groups: list[Group]) -> Iterator[Reading]:
    """Give what is left below each bound; page cache that can be dropped is not counted as used."""
    for group, directory in each(groups):
        usage_name = "memory.current" if group.unified else "memory.usage_in_bytes"
        cache_key = "inactive_file" if group.unified else "total_inactive_file"
        usage = number(read(directory / usage_name))
        if usage is None:
            continue
        cache = read_table(directory / "memory.stat").get(cache_key, 0)
        one = Group(unified=group.unified, directories=(directory,))
        for limit, place in memory_readings([one]):
            yield limit - max(0.0, usage - cache), place


def pid_readings(root: Path, groups: list[Group]) -> Iterator[Reading]:
    """Give every bound on processes."""
    for name in ("pid_max", "threads-max"):
        limit = number(read(root / "proc/sys/kernel" / name))
        if limit is not None:
            yield limit, str(root / "proc/sys/kernel" / name)
    for _, directory in each(groups):
        limit = number(read(directory / "pids.max"))
        if limit is not None:
            yield limit, str(directory / "pids.max")


def each(groups: list[Group]) -> Iterator[tuple[Group, Path]]:
    """Give every directory of every group."""
    for group in groups:
        for directory in group.directories:
            yield group, directory


def read(path: Path) -> str:
    """Give a file's text, "" when there is none: which files exist depends on kernel and mount."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def number(text: str) -> float | None:
    """Read a limit; "max" and nonsense are none."""
    try:
        return float(text)
    except ValueError:
        return None


def read_table(path: Path, factor: Callable[[list[str]], int] = lambda _: 1) -> dict[str, float]:
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
