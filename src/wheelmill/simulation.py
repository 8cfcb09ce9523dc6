"""Simulation: a build on a machine that need not be here, by the same Admission as the real governor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .peaks import Prediction


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """How it went. Seconds and bytes; `peak_true_bytes` is the highest sum of true memory."""

    makespan: float
    ideal: float
    granted_at_start: int
    peak_true_bytes: int
    over_capacity: bool


Policy = Literal["governor"] | int
"""The governor, or a fixed number of jobs as others do it."""


def simulate(
    units: Sequence[SimUnit],
    *,
    cpus: int,
    capacity_bytes: int,
    max_jobs: int | None = None,
    policy: Policy = "governor",
) -> Simulated:
    """Run the units; `capacity_bytes` is after the reserve."""
    raise NotImplementedError
