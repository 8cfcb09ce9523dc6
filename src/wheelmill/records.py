"""What compiles took: `compile.jsonl`, one line each, and their totals.

Ledger is pure: it knows no socket, file or clock. The governor alone writes the file, from what launcher and gate say
and from what it measured itself.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

from .errors import WheelmillError

RECORD_FORMAT = 1
VANISHED = -1
"""The exit status of a compile whose launcher was killed before it could say."""

Cache = Literal["hit", "miss", "off", "link"]
How = Literal["cgroup2", "cgroup1", "poll", "wait4"]
"""How memory was measured."""
Outcome = Literal["ok", "failed", "oom", "refused", "turned-away", "vanished"]
"""How a compile ended for the build. `oom`: killed for want of memory although it ran alone; `refused`: never begun, as
it could not have fit; `turned-away`: never begun, as another had failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileRecord:
    """One compile or link, as a line of `compile.jsonl`.

    `wall_s` is the compiler's own time from `started_s` (seconds after the governor's start) on, without the
    `waited_s` before it; for a hit it is the time of the look-up.
    """

    v: int = RECORD_FORMAT
    id: int
    tool: str
    source: str
    output: str
    argv: tuple[str, ...]
    archs_asked: tuple[str, ...]
    archs_used: tuple[str, ...]
    rewrites: tuple[str, ...]
    cache: Cache
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    exit: int
    started_s: float
    waited_s: float
    attempt: int
    outcome: Outcome = "ok"
    peak_bytes: int = 0
    """The most that its whole tree held, as `how` measured; 0: nobody did. `peak_rss_bytes` is its largest process."""
    how: How = "wait4"
    reserved_bytes: int = 0
    settled_at: float = 1.0
    """The share of its CPU time after which memory stayed below `tail_bytes`."""
    tail_bytes: int = 0
    pressure_kills: int = 0
    oom_kills: int = 0

    @property
    def memory(self) -> int:
        """The most that it held, in bytes, by the better of both measures."""
        return max(self.peak_bytes, self.peak_rss_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """A compile has begun to run, was killed for memory and will run again, or has ended (then with its record)."""

    kind: Literal["started", "again", "finished"]
    id: int
    tool: str
    source: str
    running: int
    waiting: int
    record: CompileRecord | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileSummary:
    """What a build's compiles came to. `compiles` counts links and hits too."""

    compiles: int = 0
    links: int = 0
    cache_hits: int = 0
    failures: int = 0
    units: int = 0
    """Distinct sources that were compiled, not linked."""
    retries: int = 0
    pressure_kills: int = 0
    oom_kills: int = 0
    cpu_seconds: float = 0.0
    peak_rss_bytes: int = 0
    """The most that one compile held."""
    reserved_byte_seconds: float = 0.0
    used_byte_seconds: float = 0.0
    """Memory promised and memory held, over time: how good the predictions were."""
    archs: tuple[str, ...] = ()
    """Every architecture that device code was made for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """What a launcher said of its compile."""

    id: int
    tool: str
    kind: str
    argv: tuple[str, ...]
    output: str
    source: str
    archs_asked: tuple[str, ...]
    archs_used: tuple[str, ...]
    rewrites: tuple[str, ...]
    ccache: bool
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """What one run of a compile did with memory, by the governor's own measure."""

    how: How = "wait4"
    reserved_bytes: int = 0
    peak_bytes: int = 0
    settled_at: float = 1.0
    tail_bytes: int = 0
    reserved_byte_seconds: float = 0.0
    used_byte_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What the gates of one compile said, the last attempt's figures."""

    attempts: int = 0
    wanted_at: float = 0.0
    granted_at: float | None = None
    wall: float = 0.0
    cpu: float = 0.0
    peak_rss_bytes: int = 0
    pressure_kills: int = 0
    oom_kills: int = 0
    refused: Outcome | None = None
    course: Course = Course()


FEW_SAMPLES = 8


def settled(samples: Sequence[tuple[float, int]], peak: int) -> tuple[float, int]:
    """Give the share of CPU time after which memory stayed low, and the most that was held from then on.

    `samples` are CPU seconds and bytes, in order. Of all moments the one counts by which the least would have been
    reserved in all: the peak until then, the rest's own most after it (measured: a backward kernel of flash-attn has
    its peak at 28 % of its time, and stays below 41 % of it in the second half). Too few samples say (1.0, peak).
    """
    if len(samples) < FEW_SAMPLES or samples[-1][0] <= 0:
        return 1.0, peak
    whole = samples[-1][0]
    best, tail = (whole * peak, 1.0, peak), 0
    for cpu, held in reversed(samples):
        tail = min(max(tail, held), peak)
        best = min(best, (cpu * peak + (whole - cpu) * tail, round(cpu / whole, 3), tail))
    return best[1], best[2]


@dataclass(slots=True)
class Ledger:
    """The compiles in flight and the totals of those that have ended."""

    begun: dict[int, Begun] = field(default_factory=dict)
    measured: dict[int, Measured] = field(default_factory=dict)
    summary: CompileSummary = field(default_factory=CompileSummary)
    sources: set[str] = field(default_factory=set)
    last: int = 0

    def begin(self, message: Mapping[str, object], now: float) -> Begun:
        """Enter a compile under a new number. Raises ValueError when the message is not one."""
        self.last += 1
        begun = Begun(
            id=self.last,
            tool=text(message, "tool"),
            kind=text(message, "kind"),
            argv=texts(message, "argv"),
            output=text(message, "output"),
            source=text(message, "source"),
            archs_asked=texts(message, "archs_asked"),
            archs_used=texts(message, "archs_used"),
            rewrites=texts(message, "rewrites"),
            ccache=message.get("ccache") is True,
            at=now,
        )
        self.begun[begun.id] = begun
        return begun

    def want(self, number: int, now: float) -> None:
        """Note that a gate has come. Raises ValueError for a compile that nobody announced."""
        if number not in self.begun:
            raise ValueError(f"no compile {number} has begun")
        known = self.measured.get(number, Measured())
        self.measured[number] = replace(known, wanted_at=now)

    def grant(self, number: int, now: float) -> None:
        """Note that the compile may run now."""
        known = self.measured.get(number)
        if known is not None:
            self.measured[number] = replace(known, granted_at=now, attempts=known.attempts + 1)

    def done(self, number: int, message: Mapping[str, object], course: Course) -> None:
        """Note what a run took; whose launcher has gone is on record already. Raises ValueError."""
        known = self.measured.get(number)
        if known is None:
            return
        self.measured[number] = replace(
            known,
            wall=real(message, "wall"),
            cpu=real(message, "cpu"),
            peak_rss_bytes=int(real(message, "peak_rss_bytes")),
            course=course,
        )
        self.summary = replace(
            self.summary,
            reserved_byte_seconds=self.summary.reserved_byte_seconds + course.reserved_byte_seconds,
            used_byte_seconds=self.summary.used_byte_seconds + course.used_byte_seconds,
        )

    def killed(self, number: int, why: Literal["pressure", "oom"]) -> None:
        """Note that a run was killed for want of memory."""
        known = self.measured.get(number)
        if known is not None and why == "pressure":
            self.measured[number] = replace(known, pressure_kills=known.pressure_kills + 1)
        elif known is not None:
            self.measured[number] = replace(known, oom_kills=known.oom_kills + 1)

    def refuse(self, number: int, outcome: Outcome) -> None:
        """Note that a compile will not be run."""
        self.measured[number] = replace(self.measured.get(number, Measured()), refused=outcome)

    def end(self, number: int, status: int, now: float) -> CompileRecord | None:
        """Close a compile and give its record; None when it was closed before."""
        begun = self.begun.pop(number, None)
        if begun is None:
            return None
        record = make_record(begun, self.measured.pop(number, None), status, now)
        if record.cache != "link":
            self.sources.add(record.source)
        self.summary = replace(add(self.summary, record), units=len(self.sources))
        return record


def make_record(begun: Begun, measured: Measured | None, status: int, now: float) -> CompileRecord:
    """Put together what launcher and gate said.

    With a cache, a success that no gate was seen for is a hit.
    """
    if begun.kind == "link":
        cache: Cache = "link"
    elif not begun.ccache:
        cache = "off"
    else:
        cache = "hit" if measured is None and status == 0 else "miss"
    known = measured or Measured()
    course = known.course
    started = begun.at if known.granted_at is None else known.granted_at
    return CompileRecord(
        id=begun.id,
        tool=begun.tool,
        source=begun.source,
        output=begun.output,
        argv=begun.argv,
        archs_asked=begun.archs_asked,
        archs_used=begun.archs_used,
        rewrites=begun.rewrites,
        cache=cache,
        wall_s=round(known.wall if measured else now - begun.at, 3),
        cpu_s=round(known.cpu, 3),
        peak_rss_bytes=known.peak_rss_bytes,
        exit=status,
        started_s=round(started, 3),
        waited_s=round(started - known.wanted_at if measured else 0.0, 3),
        attempt=max(known.attempts, 1),
        outcome=outcome_of(known, status),
        peak_bytes=course.peak_bytes,
        how=course.how,
        reserved_bytes=course.reserved_bytes,
        settled_at=course.settled_at,
        tail_bytes=course.tail_bytes,
        pressure_kills=known.pressure_kills,
        oom_kills=known.oom_kills,
    )


def outcome_of(measured: Measured, status: int) -> Outcome:
    """Say how a compile ended for the build."""
    if measured.refused:
        return measured.refused
    if status == 0:
        return "ok"
    return "vanished" if status == VANISHED else "failed"


def add(summary: CompileSummary, record: CompileRecord) -> CompileSummary:
    """Count one record in; `units` needs the set of sources and is the ledger's."""
    return replace(
        summary,
        compiles=summary.compiles + 1,
        links=summary.links + (record.cache == "link"),
        cache_hits=summary.cache_hits + (record.cache == "hit"),
        failures=summary.failures + (record.exit != 0),
        retries=summary.retries + record.attempt - 1,
        pressure_kills=summary.pressure_kills + record.pressure_kills,
        oom_kills=summary.oom_kills + record.oom_kills,
        cpu_seconds=summary.cpu_seconds + record.cpu_s,
        peak_rss_bytes=max(summary.peak_rss_bytes, record.memory),
        archs=tuple(sorted({*summary.archs, *record.archs_used})),
    )


def text(message: Mapping[str, object], key: str) -> str:
    """Give a string of a message. Raises ValueError."""
    value = message.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a string")  # noqa: TRY004 - one kind of error for a bad message
    return value


def texts(message: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Give a list of strings of a message. Raises ValueError."""
    value = message.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{key} is not a list of strings")
    return tuple(value)


def real(message: Mapping[str, object], key: str) -> float:
    """Give a number of a message. Raises ValueError."""
    value = message.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} is not a number")  # noqa: TRY004 - as for strings
    return float(value)


class RecordSink:
    """Appends whole lines to a file: what a crash or a full disk has cut short is taken back.

    A line after half a line would be neither, and nobody could go on with the rest.
    """

    def __init__(self, path: Path) -> None:
        """Open it; OSError where that cannot be."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        content = path.read_bytes()
        os.ftruncate(self._descriptor, content.rfind(b"\n") + 1)

    def write(self, line: str) -> None:
        """Add a line, all of it or nothing; OSError where it cannot be written."""
        size, rest = os.fstat(self._descriptor).st_size, line.encode() + b"\n"
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            os.ftruncate(self._descriptor, size)
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_records(path: Path) -> tuple[CompileRecord, ...]:
    """Read `compile.jsonl`; a last line that a crash cut short is left out.

    Raises WheelmillError for any other line that is not a record.
    """
    lines = path.read_text("utf-8").split("\n")
    return tuple(_parse_record(line, f"{path}:{number}") for number, line in enumerate(lines[:-1], 1) if line.strip())


def _parse_record(line: str, place: str) -> CompileRecord:
    try:
        raw = json.loads(line)
        if raw["v"] != RECORD_FORMAT:
            raise WheelmillError(f"{place}: a record of format {raw['v']}, we read {RECORD_FORMAT}")
        return CompileRecord(
            id=int(raw["id"]),
            tool=text(raw, "tool"),
            source=text(raw, "source"),
            output=text(raw, "output"),
            argv=texts(raw, "argv"),
            archs_asked=texts(raw, "archs_asked"),
            archs_used=texts(raw, "archs_used"),
            rewrites=texts(raw, "rewrites"),
            cache=cast("Cache", text(raw, "cache")),
            wall_s=real(raw, "wall_s"),
            cpu_s=real(raw, "cpu_s"),
            peak_rss_bytes=int(real(raw, "peak_rss_bytes")),
            exit=int(real(raw, "exit")),
            started_s=real(raw, "started_s"),
            waited_s=real(raw, "waited_s"),
            attempt=int(real(raw, "attempt")),
            outcome=cast("Outcome", raw.get("outcome", "failed" if raw["exit"] else "ok")),
            peak_bytes=int(raw.get("peak_bytes", 0)),
            how=cast("How", raw.get("how", "wait4")),
            reserved_bytes=int(raw.get("reserved_bytes", 0)),
            settled_at=float(raw.get("settled_at", 1.0)),
            tail_bytes=int(raw.get("tail_bytes", 0)),
            pressure_kills=int(raw.get("pressure_kills", 0)),
            oom_kills=int(raw.get("oom_kills", 0)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise WheelmillError(f"{place}: not a compile record: {error}") from error
