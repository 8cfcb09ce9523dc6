"""Holds each lease's processes together, measures and ends them: by cgroup v2, by cgroup v1, else by /proc.

Which way works is found by doing it once with a child; versions and mounts say too little.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

Name = Literal["cgroup2", "cgroup1", "poll"]


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
    memory_bytes: int


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


def probe(root: Path = Path("/"), *, pid: int | None = None) -> Backend:
    """Find the best way that works here, by doing; groups are made below the one of `pid` (ours)."""
    raise NotImplementedError


def oom_count(root: Path = Path("/")) -> int:
    """Count the kernel's OOM kills that may have been ours: of our own group, else of the machine."""
    raise NotImplementedError


def strays(build: int, leases: Iterable[Group], proc: Path = Path("/proc")) -> tuple[Stray, ...]:
    """Give the processes below `build` that no lease holds, biggest first."""
    raise NotImplementedError


def end_stray(stray: Stray) -> bool:
    """Kill a stray unless its pid means another process by now; tell whether it was killed."""
    raise NotImplementedError
