"""Simulation: a build on a machine that need not be here, by the same Admission as the real governor."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .admission import SETTLED_MARGIN, Admission, Go, Room
from .peaks import Prediction

MEASURES = 0.5
"""Seconds after which a change in memory is seen: the governor looks twice a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimUnit:
    """A unit: what is predicted, and what is true.

    Memory ramps to the peak until `settled_at`, then keeps to the tail.
    """

    prediction: Prediction
    cpu_seconds: float
    peak_bytes: int
    settled_at: float = 1.0
    tail_bytes: int = 0

    def memory(self, elapsed: float) -> float:
        """Give the true use after so many CPU seconds."""
        top = self.settled_at * self.cpu_seconds
        if elapsed <= top:
            return self.peak_bytes * elapsed / top if top else float(self.peak_bytes)
        return float(self.tail_bytes or self.peak_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """How it went. Seconds and bytes; `peak_true_bytes` is the highest sum of true memory."""

    makespan: float
    ideal: float
    granted_at_start: int
    reserved_at_start: int
    most_at_once: int
    peak_true_bytes: int
    over_capacity: bool
    left: int = 0
    """Units that never ran: they do not fit."""


Policy = Literal["governor"] | int
"""The governor, or a fixed number of jobs as others do it."""


def ideal_of(units: Sequence[SimUnit], *, cpus: int, capacity_bytes: int) -> float:
    """Give the seconds that no schedule with one peak per unit can beat: cores, memory or the longest unit."""
    by_cores = sum(unit.cpu_seconds for unit in units) / cpus
    by_memory = sum(unit.cpu_seconds * unit.peak_bytes for unit in units) / max(1, capacity_bytes)
    return max(by_cores, by_memory, max((unit.cpu_seconds for unit in units), default=0.0))


def simulate(
    units: Sequence[SimUnit],
    *,
    cpus: int,
    capacity_bytes: int,
    max_jobs: int | None = None,
    policy: Policy = "governor",
) -> Simulated:
    """Run the units; `capacity_bytes` is after the reserve. A fixed policy starts them in their order."""
    slots = min(cpus, max_jobs or cpus)
    run = _Governed(units, slots, capacity_bytes) if policy == "governor" else _Fixed(units, min(policy, cpus))
    run.go()
    return Simulated(
        makespan=run.now,
        ideal=ideal_of(units, cpus=slots, capacity_bytes=capacity_bytes),
        granted_at_start=run.at_start,
        reserved_at_start=run.reserved_at_start,
        most_at_once=run.most,
        peak_true_bytes=round(run.highest),
        over_capacity=run.highest > capacity_bytes,
        left=len(units) - run.done,
    )


class _Run:
    """Steps from event to event: memory is linear between them, so its highest sum is at one of them."""

    def __init__(self, units: Sequence[SimUnit]) -> None:
        self.units = units
        self.now = self.highest = 0.0
        self.at_start = self.reserved_at_start = self.most = self.done = 0
        self.events: list[tuple[float, int, str]] = []
        self.started: dict[int, float] = {}

    def go(self) -> None:
        """Run to the end."""
        self.admit()
        self.at_start, self.reserved_at_start = len(self.started), self.reserved()
        while self.events:
            self.now = self.events[0][0]
            self.highest = max(self.highest, self.used())
            while self.events and self.events[0][0] <= self.now:
                _, number, kind = heapq.heappop(self.events)
                if number in self.started:
                    self.happened(number, kind)
                if kind == "end":
                    del self.started[number]
                    self.done += 1
            self.admit()

    def used(self) -> float:
        """Give the true sum; at a peak's end that is the peak still."""
        return sum(self.units[number].memory(self.now - started) for number, started in self.started.items())

    def start(self, number: int) -> None:
        """Let one run, with its core to itself."""
        unit = self.units[number]
        self.started[number] = self.now
        self.most = max(self.most, len(self.started))
        for at, kind in ((unit.settled_at * unit.cpu_seconds, "peak"), (unit.cpu_seconds, "end")):
            heapq.heappush(self.events, (self.now + at, number, kind))

    def admit(self) -> None:
        """Start what may start now."""
        raise NotImplementedError

    def happened(self, number: int, kind: str) -> None:
        """Take note."""

    def reserved(self) -> int:
        """Give what those that run have been promised; a fixed number of jobs promises nothing."""
        return 0


class _Fixed(_Run):
    """So many jobs, whatever they take."""

    def __init__(self, units: Sequence[SimUnit], jobs: int) -> None:
        super().__init__(units)
        self.jobs, self.next = jobs, 0

    def admit(self) -> None:
        while self.next < len(self.units) and len(self.started) < self.jobs:
            self.start(self.next)
            self.next += 1


class _Governed(_Run):
    """The real account; it hears of a unit when something changes there."""

    def __init__(self, units: Sequence[SimUnit], slots: int, capacity: int) -> None:
        super().__init__(units)
        self.account, self.slots, self.capacity = Admission(), slots, capacity
        self.seen: dict[int, int] = {}
        self.total_seen = 0
        for number, unit in enumerate(units):
            self.account.want(number, unit.prediction, 0.0)

    def admit(self) -> None:
        room = Room(hard_bytes=self.capacity, free_bytes=self.capacity - self.total_seen, slots=self.slots)
        for verdict in self.account.admit(self.now, room):
            if isinstance(verdict, Go):
                self.start(verdict.lease)
                self.looks(verdict.lease)

    def reserved(self) -> int:
        return self.account.reserved_bytes

    def looks(self, number: int) -> None:
        """Plan the moments at which the governor may learn that a peak has passed."""
        unit = self.units[number]
        known = unit.prediction
        fell = unit.settled_at * unit.cpu_seconds + MEASURES
        due = max(fell, known.settled_at * known.cpu_seconds * SETTLED_MARGIN)
        for at in {fell, due, max(fell, 0.4 * known.cpu_seconds) + 5 + MEASURES}:
            if at < unit.cpu_seconds:
                heapq.heappush(self.events, (self.now + at, number, "look"))

    def happened(self, number: int, kind: str) -> None:
        if kind == "end":
            self.total_seen -= self.seen.pop(number, 0)
            self.account.release(number)
            return
        unit, elapsed = self.units[number], self.now - self.started[number]
        current = unit.peak_bytes if kind == "peak" else int(unit.memory(elapsed))
        self.total_seen += current - self.seen.get(number, 0)
        self.seen[number] = current
        self.account.seen(number, current_bytes=current, cpu_seconds=elapsed, peak_bytes=unit.peak_bytes)
