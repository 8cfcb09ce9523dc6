"""Simulation: the governor's account on machines that are not here."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmill.peaks import Prediction
from wheelmill.simulation import Simulated, SimUnit, ideal_of, simulate

GIB = 2**30


def unit(gibs: float, seconds: float, *, settled: float = 0.3, tail: float = 0.4, error: float = 1.0) -> SimUnit:
    """Make a measured unit; `error`: the true peak and time against the predicted ones."""
    peak = int(gibs * GIB)
    return SimUnit(
        prediction=Prediction(
            peak_bytes=int(peak * 1.05),
            cpu_seconds=seconds,
            settled_at=settled,
            tail_bytes=int(tail * peak),
            basis="measured",
            single=True,
            certain_bytes=peak,
        ),
        cpu_seconds=seconds * error,
        peak_bytes=int(peak * min(error, 1.04)),
        settled_at=settled,
        tail_bytes=int(tail * peak),
    )


def test_one_unit() -> None:
    """Its time, its peak, once at once."""
    assert simulate([unit(4, 100)], cpus=8, capacity_bytes=10 * GIB) == Simulated(
        makespan=100.0,
        ideal=100.0,
        granted_at_start=1,
        reserved_at_start=int(4 * GIB * 1.05),
        most_at_once=1,
        peak_true_bytes=4 * GIB,
        over_capacity=False,
        left=0,
    )


def test_the_shape_of_a_unit() -> None:
    """A ramp to the peak, then the tail."""
    one = unit(4, 100)
    assert [round(one.memory(at) / GIB, 2) for at in (0, 15, 30, 31, 100)] == [0.0, 2.0, 4.0, 1.6, 1.6]
    assert SimUnit(prediction=one.prediction, cpu_seconds=0, peak_bytes=7).memory(0) == 7


def test_room_that_a_passed_peak_leaves_is_used() -> None:
    """Two of 6 GiB in 10: the second starts when the first one's peak has passed, not when it ends."""
    run = simulate([unit(6, 100), unit(6, 100)], cpus=8, capacity_bytes=10 * GIB)
    assert run.granted_at_start == 1
    assert 134 < run.makespan < 137
    assert not run.over_capacity
    kept = simulate([unit(6, 100, settled=1.0)] * 2, cpus=8, capacity_bytes=10 * GIB)
    assert kept.makespan == 200


def test_fixed_jobs_know_no_memory() -> None:
    """Four of 6 GiB in 10 are more than there is; one at a time takes as long as all together."""
    units = [unit(6, 100)] * 4
    guessed = simulate(units, cpus=8, capacity_bytes=10 * GIB, policy=4)
    assert (guessed.makespan, guessed.over_capacity, guessed.granted_at_start) == (100, True, 4)
    assert guessed.peak_true_bytes == 24 * GIB
    safe = simulate(units, cpus=8, capacity_bytes=10 * GIB, policy=1)
    assert (safe.makespan, safe.over_capacity) == (400, False)


def test_what_does_not_fit_is_left() -> None:
    """The others run."""
    run = simulate([unit(12, 100), unit(4, 50)], cpus=8, capacity_bytes=10 * GIB)
    assert (run.left, run.makespan, run.granted_at_start) == (1, 50.0, 1)


def test_asking_for_fewer_jobs() -> None:
    """They bound, and the ideal knows it."""
    run = simulate([unit(1, 10)] * 4, cpus=8, capacity_bytes=64 * GIB, max_jobs=2)
    assert (run.makespan, run.ideal, run.most_at_once) == (20, 20, 2)


def test_the_ideal_is_the_largest_of_three() -> None:
    """Cores, memory, the longest unit."""
    assert ideal_of([unit(1, 10)] * 40, cpus=2, capacity_bytes=64 * GIB) == 200
    assert ideal_of([unit(8, 10)] * 40, cpus=64, capacity_bytes=32 * GIB) == 100
    assert ideal_of([unit(1, 10), unit(1, 500)], cpus=64, capacity_bytes=64 * GIB) == 500
    assert ideal_of([], cpus=1, capacity_bytes=1) == 0


def load(seed: int, count: int) -> list[SimUnit]:
    """Kernels of 1.5 to 7 GiB, times in proportion, 3 % and 10 % off what is predicted."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    return [
        unit(gibs, gibs * rng.uniform(12, 25), error=rng.uniform(0.9, 1.1))
        for gibs in (rng.uniform(1.5, 7) for _ in range(count))
    ]


@pytest.mark.parametrize(("cpus", "gibs"), [(8, 20.4), (16, 27.2), (16, 54.4), (64, 108.8), (128, 244.8)])
@pytest.mark.parametrize("seed", [1, 2])
def test_close_to_the_ideal_and_never_over(cpus: int, gibs: float, seed: int) -> None:
    """The figure of the whole undertaking: at most 1.10 of the ideal, and memory is never more than there is."""
    run = simulate(load(seed, 73), cpus=cpus, capacity_bytes=int(gibs * GIB))
    assert run.makespan <= 1.10 * run.ideal
    assert not run.over_capacity
    assert run.left == 0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 32), st.integers(9, 64))
def test_every_unit_runs_and_memory_holds(seed: int, count: int, cpus: int, gibs: int) -> None:
    """On any machine that the largest unit fits into; never faster than the cores allow."""
    units = load(seed, count)
    run = simulate(units, cpus=cpus, capacity_bytes=gibs * GIB)
    assert run.left == 0
    assert not run.over_capacity
    assert run.most_at_once <= cpus
    assert (
        run.makespan
        >= max(sum(each.cpu_seconds for each in units) / cpus, *(each.cpu_seconds for each in units)) - 1e-6
    )
