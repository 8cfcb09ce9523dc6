"""How many compiles may run at once, and why: the smallest of cores, the user's cap, memory and units."""

import re
from dataclasses import dataclass

from .errors import ResourcesError, UsageError

GIB = 2**30
RESERVE_FRACTION = 0.15
"""Left to the machine: the larger of 1 GiB and 15 % (an 880 GB box planned to 98.8 % crashed, flash-attention#2493)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """The jobs that will run, and the arithmetic behind them. Memory in bytes."""

    requested: int | None
    granted: int
    limited_by: str
    reason: str
    memory_per_compile: int


def parse_jobs(text: str, *, source: str, what: str = "jobs") -> int:
    """Read a cap on jobs or cores; UsageError unless a whole number of at least 1."""
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", text.strip(), re.ASCII):
        raise UsageError(
            f"{source}={text!r} is not a number of {what}",
            advice=f"Give a whole number of at least 1, or leave {source} out: memory is watched either way.",
        )
    return int(text)


def capacity(available: int) -> int:
    """Give what compiles may use of the memory that is available (bytes)."""
    return available - max(GIB, int(available * RESERVE_FRACTION))


def grant(*, requested: int | None, cpus: int, available: int, memory_per_compile: int, units: int) -> Grant:
    """Decide how many compiles run at once; ResourcesError where not even one fits.

    `available` in bytes is what the machine and its cgroups leave now; `requested` is the user's cap.
    """
    usable = capacity(available)
    by_memory = usable // memory_per_compile
    if by_memory < 1:
        raise ResourcesError(
            f"one compile needs {gib(memory_per_compile)}, and {gib(usable)} may be used "
            f"({gib(available)} available less a reserve of {gib(available - usable)})",
            advice="Free memory, raise the container's limit or give --memory, or build on a larger machine.",
        )
    candidates = {
        "request": requested or by_memory + cpus + units,
        "memory": by_memory,
        "cores": cpus,
        "units": units,
    }
    limited_by = min(candidates, key=lambda name: candidates[name])
    granted = max(1, candidates[limited_by])
    reasons = {
        "request": f"{requested} asked for, and all of them fit",
        "memory": f"{gib(usable)} usable / {gib(memory_per_compile)} per compile",
        "cores": f"{cpus} cores",
        "units": f"{units} translation units",
    }
    asked = f"{requested} asked for; " if requested and limited_by != "request" else ""
    return Grant(
        requested=requested,
        granted=granted,
        limited_by=limited_by,
        reason=f"{asked}{granted} at once: {reasons[limited_by]}",
        memory_per_compile=memory_per_compile,
    )


def gib(size: int) -> str:
    """Spell bytes for people."""
    return f"{size / GIB:.1f} GiB"


def ideal(*, longest: float, cpu_seconds: float, jobs: int) -> float:
    """Give the seconds that no schedule can beat: the longest unit, or all CPU seconds shared among the jobs.

    0 without a job.
    """
    return max(longest, cpu_seconds / jobs) if jobs else 0.0
