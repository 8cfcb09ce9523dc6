"""Admission: which compiles may run now, by predicted memory; pure, without clock, file or thread.

The governor and the simulation drive the same object. One thread at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass

from .peaks import Prediction
from .resources import gib

PATIENCE = 48
"""How many shorter compiles may go before one that does not fit yet; then room is kept free for it."""

GROWTH = 1.3
"""What a compile that was killed for memory is given next, against the larger of its use and its reservation."""
ALONE_FROM = 3
"""From this run on a compile that is killed for memory runs alone."""
OWN_PART, OWN_BYTES = 0.15, 1 << 29
"""The larger of these, of what compiles may use, is ninja's, python's, the waiting gates' and the page cache's."""
LONELY_SECONDS = 20.0
"""Where nothing has run for so long, and somebody waits, only what is certain holds it back: other programs may keep
what they have for ever, and a guess may be wrong (host code of which nothing is known counts 2.5 GiB)."""

SETTLED_MARGIN = 1.15
"""CPU seconds vary by 10 % from run to run: the peak counts as passed this much later than last time."""
SETTLED_FALL = 0.65
"""Past its peak a compile of one architecture keeps to 41 % of it; above this it is not past it."""
SEEN_ENOUGH = 0.7
"""A peak far below the predicted one is still to come."""
UNKNOWN_FALL, UNKNOWN_SECONDS, UNKNOWN_PART, UNKNOWN_TAIL = 0.5, 5.0, 0.4, 0.5
"""Where no sample says when the peak passes: a fall below half of it, for 5 CPU seconds, after 40 % of the predicted
CPU time (the peak was at 28 % in every unit measured); half the peak is kept for the plateau (41 %) behind it."""
TAIL_MARGIN = 1.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What may be had at one moment. Bytes are after the reserve.

    `hard_bytes`: what our compiles may ever use here. `free_bytes`: what could be handed out if those that run used
    nothing more than now. `pending_bytes`: promised to other builds of this user and not yet used. `slots`: compiles at
    once, running ones included. `pending_for`: whom the promises are for, for the reason that is shown.
    """

    hard_bytes: int
    free_bytes: int
    pending_bytes: int = 0
    slots: int
    pending_for: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Go:
    """This lease may run."""

    lease: int
    reserved_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Refuse:
    """This lease can never run here; `reason` holds the arithmetic and what to change."""

    lease: int
    reason: str


Verdict = Go | Refuse


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A compile that was let go, as last seen. `attempt` counts from 1; `shrunk`: its peak has passed."""

    lease: int
    prediction: Prediction
    attempt: int
    started: float
    reserved_bytes: int
    current_bytes: int
    peak_bytes: int
    cpu_seconds: float
    alone: bool
    shrunk: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A compile that waits. `passed`: how often shorter ones went before it; `reason`: why, as of the last admit."""

    lease: int
    prediction: Prediction
    attempt: int
    since: float
    need_bytes: int
    alone: bool
    passed: int
    reason: str


class _Entry:
    """One lease through its life; the views above are what others see of it."""

    __slots__ = (
        "alone",
        "attempt",
        "certain",
        "cpu",
        "current",
        "low_since",
        "need",
        "passed",
        "peak",
        "prediction",
        "reserved",
        "shrunk",
        "since",
        "spent",
        "why",
    )

    def __init__(self, prediction: Prediction, now: float) -> None:
        self.prediction, self.since = prediction, now
        self.need, self.certain = max(1, prediction.peak_bytes), prediction.certain_bytes
        self.attempt, self.alone, self.spent, self.passed = 1, False, False, 0
        self.why: Callable[[], str] | None = None
        self.reserved = self.current = self.peak = 0
        self.cpu = 0.0
        self.low_since: float | None = None
        self.shrunk = False

    def start(self, reserved: int, now: float) -> None:
        self.since, self.reserved, self.why = now, reserved, None
        self.current = self.peak = 0
        self.cpu, self.low_since, self.shrunk = 0.0, None, False

    def has_settled(self) -> bool:
        """Say whether the peak has passed for good."""
        known, cpu = self.prediction, self.cpu
        if known.basis in {"measured", "nearby"} and known.settled_at < 1.0:
            late = cpu >= known.settled_at * known.cpu_seconds * SETTLED_MARGIN
            fallen = self.current < SETTLED_FALL * self.peak
            if late and fallen and self.peak >= SEEN_ENOUGH * known.peak_bytes:
                return True
        if not known.single or self.current >= UNKNOWN_FALL * self.peak:
            self.low_since = None
            return False
        self.low_since = cpu if self.low_since is None else self.low_since
        return cpu - self.low_since >= UNKNOWN_SECONDS and cpu >= UNKNOWN_PART * known.cpu_seconds

    def tail(self) -> int:
        """Give what is kept for the rest of the run."""
        known = self.prediction
        if not known.tail_bytes or known.settled_at >= 1.0:
            return int(UNKNOWN_TAIL * self.peak)
        return int(known.tail_bytes * TAIL_MARGIN * max(1.0, self.peak / max(1, known.peak_bytes)))


class Admission:
    """The account of one build: who waits, who runs, what is reserved."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Entry] = {}
        self._running: dict[int, _Entry] = {}
        self._order: list[int] | None = []
        self._least = self._certain = self._spare = 0
        self._idle_since: float | None = None
        self._lonely = False

    @property
    def running(self) -> tuple[Running, ...]:
        """Those that run, oldest first."""
        return tuple(
            Running(
                lease=lease,
                prediction=entry.prediction,
                attempt=entry.attempt,
                started=entry.since,
                reserved_bytes=entry.reserved,
                current_bytes=entry.current,
                peak_bytes=entry.peak,
                cpu_seconds=entry.cpu,
                alone=entry.alone,
                shrunk=entry.shrunk,
            )
            for lease, entry in sorted(self._running.items(), key=_age)
        )

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """Those that wait, in the order in which they are looked at."""
        return tuple(
            Waiting(
                lease=lease,
                prediction=entry.prediction,
                attempt=entry.attempt,
                since=entry.since,
                need_bytes=entry.need,
                alone=entry.alone,
                passed=entry.passed,
                reason=entry.why() if entry.why else "",
            )
            for lease, entry in ((lease, self._waiting[lease]) for lease in self._queue())
        )

    @property
    def reserved_bytes(self) -> int:
        """Give the sum of what the running ones hold."""
        return sum(entry.reserved for entry in self._running.values())

    @property
    def pending_bytes(self) -> int:
        """Give what the running ones have been promised and do not use yet: what the roster tells other builds."""
        return sum(entry.reserved - entry.current for entry in self._running.values())

    @property
    def waiting_count(self) -> int:
        """Count those that wait, without making their views."""
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        """Count those that run, without making their views."""
        return len(self._running)

    def want(self, lease: int, prediction: Prediction, now: float) -> None:
        """Queue a lease; a second want of the same lease replaces the first."""
        self.release(lease)
        self._waiting[lease] = _Entry(prediction, now)
        self._order = None

    def revise(self, lease: int, prediction: Prediction) -> None:
        """Think again of one that waits, after others of its kind have shown what they take."""
        entry = self._waiting.get(lease)
        if entry is not None and entry.attempt == 1 and entry.prediction != prediction:
            entry.prediction, entry.need = prediction, max(1, prediction.peak_bytes)
            entry.certain = prediction.certain_bytes
            self._order = None

    def seen(self, lease: int, *, current_bytes: int, cpu_seconds: float, peak_bytes: int) -> None:
        """Note a measurement; unknown leases are ignored. The reservation grows with use, and shrinks past the peak."""
        entry = self._running.get(lease)
        if entry is None:
            return
        entry.current, entry.cpu = current_bytes, cpu_seconds
        entry.peak = max(entry.peak, peak_bytes, current_bytes)
        if not entry.shrunk and not entry.alone and entry.has_settled():
            entry.shrunk = True
            entry.reserved = min(entry.reserved, entry.tail())
        entry.reserved = max(entry.reserved, current_bytes)

    def admit(self, now: float, room: Room) -> list[Verdict]:
        """Decide who starts now and who never can. Those let go run from now on; those refused are forgotten."""
        verdicts = self._refused(room)
        self._note_idleness(now)
        self._spare = room.free_bytes - room.pending_bytes - self.pending_bytes
        queue = self._queue()
        if self._running and self._spare < min(self._least, room.hard_bytes):
            # most calls end here: what fits nobody needs no look at every one
            if queue:
                self._may_start(self._waiting[queue[0]], room)
            return verdicts
        passed: list[_Entry] = []
        for lease in queue:
            entry = self._waiting[lease]
            if len(self._running) >= room.slots:
                entry.why = lambda: f"{room.slots} run at once, and all of them are taken"
                break
            reserved = self._may_start(entry, room)
            if reserved is None:
                passed.append(entry)
                if entry.passed >= PATIENCE:
                    break
                continue
            del self._waiting[lease]
            entry.start(reserved, now)
            self._running[lease] = entry
            verdicts.append(Go(lease=lease, reserved_bytes=reserved))
            self._spare -= reserved
            for other in passed:
                other.passed += 1
            self._order = None
        return verdicts

    def release(self, lease: int) -> None:
        """Forget a lease, running or waiting or neither."""
        self._running.pop(lease, None)
        if self._waiting.pop(lease, None) is not None:
            self._order = None

    def again(self, lease: int, observed_bytes: int, now: float, *, by_kernel: bool = True) -> None:
        """Let a lease that was killed for memory wait again with max(observed, reserved) x 1.3; a third run is alone.

        One that the kernel killed when alone is refused by the next admit; one that we ended, for another build's
        sake, waits.
        """
        entry = self._running.pop(lease, None)
        if entry is None:
            return
        used = max(observed_bytes, entry.peak)
        entry.need = int(max(used, entry.reserved) * GROWTH)
        entry.certain = max(entry.certain, used)
        entry.spent = entry.alone and by_kernel
        entry.attempt += 1
        entry.alone = entry.attempt >= ALONE_FROM
        entry.since, entry.passed, entry.peak = now, 0, used
        self._waiting[lease] = entry
        self._order = None

    def victim(self, now: float) -> int | None:  # noqa: ARG002 - whose clock it is, for a rule that needs it
        """Name the youngest of those that run, never the oldest; None where one or none runs."""
        if len(self._running) < 2:
            return None
        return max(self._running.items(), key=_age)[0]

    def _queue(self) -> list[int]:
        """Give the waiting leases in order: those passed over too often, then the longest first."""
        if self._order is None:
            self._order = sorted(self._waiting, key=self._rank)
            self._least = min((entry.need for entry in self._waiting.values()), default=0)
            self._certain = max((entry.certain for entry in self._waiting.values()), default=0)
        return self._order

    def _rank(self, lease: int) -> tuple[bool, float, float, int]:
        entry = self._waiting[lease]
        return (entry.passed < PATIENCE, -entry.prediction.cpu_seconds, entry.since, lease)

    def _refused(self, room: Room) -> list[Verdict]:
        """Take out those that cannot run here even alone."""
        refused: list[Verdict] = []
        most = gib(max(0, room.hard_bytes))
        self._queue()
        if self._certain <= room.hard_bytes and not any(entry.spent for entry in self._waiting.values()):
            return refused
        for lease, entry in list(self._waiting.items()):
            if entry.spent:
                reason = (
                    f"killed for memory {entry.attempt - 1} times, the last time while it ran alone: it used "
                    f"{gib(entry.peak)}, and {most} may be used here. "
                )
            elif entry.certain > room.hard_bytes:
                reason = f"needs {gib(entry.certain)}, and {most} may be used here even by one alone. "
            else:
                continue
            del self._waiting[lease]
            self._order = None
            advice = "Raise the container's limit or --memory, or build on a larger machine."
            refused.append(Refuse(lease=lease, reason=reason + advice))
        return refused

    def _note_idleness(self, now: float) -> None:
        """Notice since when nothing runs though somebody waits."""
        if self._running or not self._waiting:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        self._lonely = self._idle_since is not None and now - self._idle_since >= LONELY_SECONDS

    def _may_start(self, entry: _Entry, room: Room) -> int | None:
        """Give what to reserve, or None and leave the reason.

        With nearly all of the machine to itself a compile has as much as it will ever have: then margins and guesses
        do not hold it back, only what is certain.
        """
        running = self._running
        need = min(entry.need, room.hard_bytes)
        most = room.hard_bytes - max(OWN_BYTES, int(OWN_PART * room.hard_bytes))
        enough = max(1, entry.certain, 0 if self._lonely else min(need, most))
        if not running and not room.pending_bytes and enough <= room.free_bytes:
            return min(need, room.free_bytes)
        if running and (entry.alone or any(other.alone for other in running.values())):
            entry.why = lambda: f"one runs alone, after it was killed for memory {ALONE_FROM - 1} times"
            return None
        if need <= self._spare:
            return need
        entry.why = lambda: _short(need, self._spare, room, running=bool(running))
        return None


def _short(need: int, spare: int, room: Room, *, running: bool) -> str:
    """Say for whose memory one waits."""
    text = f"needs {gib(need)}, and {gib(max(0, spare))} is neither used nor promised"
    if room.pending_bytes:
        return f"{text}; {gib(room.pending_bytes)} is promised to {room.pending_for or 'another build'}"
    return text if running else f"{text}: other programs hold the rest"


def _age(item: tuple[int, _Entry]) -> tuple[float, int]:
    return item[1].since, item[0]
