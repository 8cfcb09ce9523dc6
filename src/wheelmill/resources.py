"""Memory and jobs in figures: what compiles may use, what a user may ask, how long it takes at best."""

import re
from dataclasses import dataclass

from .errors import UsageError

GIB = 2**30
RESERVE_FRACTION = 0.15
"""Left to the machine: the larger of 1 GiB and 15 % (an 880 GB box planned to 98.8 % crashed, flash-attention#2493)."""
PROCESSES_PER_COMPILE = 12
"""nvcc with its shell, cicc or ptxas, launcher, cache and gate, and some threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """The compiles that are admitted at the start, and the arithmetic behind them. Memory in bytes.

    `limited_by`: cores, memory, pids, request or units. `memory_per_compile`: the largest peak that is predicted.
    """

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


def gib(size: int) -> str:
    """Spell bytes for people."""
    return f"{size / GIB:.1f} GiB"


def ideal(*, longest: float, cpu_seconds: float, jobs: int) -> float:
    """Give the seconds that no schedule can beat: the longest unit, or all CPU seconds shared among the jobs.

    0 without a job.
    """
    return max(longest, cpu_seconds / jobs) if jobs else 0.0
