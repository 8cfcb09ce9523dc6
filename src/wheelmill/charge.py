"""A compile that runs: its processes, what they took so far, and how it ended."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from .cgroups import Group
from .peaks import Sample, Unit
from .records import Course, How, real, settled

NICE = 10


class Charge:
    """A compile that runs: its processes, and what they took so far."""

    __slots__ = (
        "attempt",
        "group",
        "killed",
        "oom_before",
        "reserved",
        "reserved_seconds",
        "samples",
        "seen",
        "used_seconds",
    )

    def __init__(self, group: Group | None, *, reserved: int, attempt: int, oom_before: int, now: float) -> None:
        self.group, self.reserved, self.attempt, self.oom_before = group, reserved, attempt, oom_before
        self.killed = False
        self.samples: list[tuple[float, int]] = []
        self.reserved_seconds = self.used_seconds = 0.0
        self.seen = now

    def add(self, cpu: float, held: int, reserved: int, now: float) -> None:
        """Note a measurement."""
        span = now - self.seen
        self.reserved_seconds += reserved * span
        self.used_seconds += held * span
        self.seen = now
        self.samples.append((cpu, held))

    def settle(self, report: Mapping[str, object], *, how: How, exact: bool, oom_kills: int) -> "Settled":
        """Close the group: how the run went with memory, and whether it was killed for want of it.

        `report` is the gate's; `exact`: the group's own count of the kernel's kills tells, else `oom_kills`, counting
        what may have been ours. Raises ValueError for a report that is none.
        """
        status, peak = int(real(report, "exit")), int(real(report, "peak_rss_bytes"))
        oom = oom_kills > self.oom_before
        if self.group is None:
            how = "wait4"
        else:
            usage = self.group.read()
            peak = max(peak, usage.peak_bytes)
            oom = usage.oom_kills > 0 if exact else oom
            self.group.close()
        why: Literal["pressure", "oom"] | None = None
        if status and self.killed:
            why = "pressure"
        elif status and oom:  # whatever the status: g++ ends with 1 where the kernel has killed its cc1plus
            why = "oom"
        settled_at, tail = settled(self.samples, peak)
        course = Course(
            how=how,
            reserved_bytes=self.reserved,
            peak_bytes=peak,
            settled_at=settled_at,
            tail_bytes=tail,
            reserved_byte_seconds=self.reserved_seconds,
            used_byte_seconds=self.used_seconds,
        )
        return Settled(
            course=course,
            why=why,
            status=status,
            wall_seconds=real(report, "wall"),
            cpu_seconds=real(report, "cpu"),
            attempt=self.attempt,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """How one run of a compile ended; `why`: it was killed for want of memory, and runs again."""

    course: Course
    why: Literal["pressure", "oom"] | None
    status: int
    wall_seconds: float
    cpu_seconds: float
    attempt: int

    def sample(self, unit: Unit) -> Sample:
        """Give what is learned from it."""
        return Sample(
            of=unit,
            wall_s=round(self.wall_seconds, 2),
            cpu_s=round(self.cpu_seconds, 2),
            peak_bytes=self.course.peak_bytes,
            settled_at=self.course.settled_at,
            tail_bytes=self.course.tail_bytes,
            how=self.course.how,
            outcome=self.why or ("failed" if self.status else "ok"),
            reserved_bytes=self.course.reserved_bytes,
            attempt=self.attempt,
        )


def humble(pid: int) -> None:
    """Let everything else on the machine go first; what the gate starts inherits that.

    Its oom_score_adj the compiler itself raises (gate.c): the kernel was seen to kill a gate of 8 kB that had it, too.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, NICE)
