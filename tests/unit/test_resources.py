"""Jobs: the smallest of what is asked, cores, memory and units, with the arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmill.errors import ResourcesError, UsageError
from wheelmill.resources import GIB, capacity, grant, parse_jobs


def test_asking_for_128_jobs_is_safe() -> None:
    """288 GiB and 7 GiB per compile: 34 run, and the reason says so in numbers."""
    found = grant(requested=128, cpus=128, available=288 * GIB, memory_per_compile=7 * GIB, units=73)
    assert (found.granted, found.limited_by) == (34, "memory")
    assert found.reason == "128 asked for; 34 at once: 244.8 GiB usable / 7.0 GiB per compile"


@pytest.mark.parametrize(
    ("requested", "cpus", "available", "units", "granted", "limited_by"),
    [
        (None, 2, 23, 5, 2, "cores"),
        (1, 2, 23, 5, 1, "request"),
        (None, 64, 23, 5, 4, "memory"),
        (None, 64, 512, 3, 3, "units"),
    ],
)
def test_the_smallest_bound_wins(
    requested: int | None, cpus: int, available: int, units: int, granted: int, limited_by: str
) -> None:
    """Whatever is smallest limits, and is named."""
    found = grant(requested=requested, cpus=cpus, available=available * GIB, memory_per_compile=4 * GIB, units=units)
    assert (found.granted, found.limited_by) == (granted, limited_by)


def test_a_compile_that_cannot_fit_is_refused() -> None:
    """The arithmetic and what to change; exit status 6."""
    with pytest.raises(ResourcesError) as caught:
        grant(requested=None, cpus=2, available=6 * GIB, memory_per_compile=7 * GIB, units=5)
    assert str(caught.value) == (
        "one compile needs 7.0 GiB, and 5.0 GiB may be used (6.0 GiB available less a reserve of 1.0 GiB)"
    )
    assert caught.value.exit_status == 6


@given(
    requested=st.none() | st.integers(1, 500),
    cpus=st.integers(1, 256),
    available=st.integers(3 * GIB, 1024 * GIB),
    memory=st.integers(GIB // 8, GIB),
    units=st.integers(1, 400),
)
def test_memory_is_the_law(requested: int | None, cpus: int, available: int, memory: int, units: int) -> None:
    """Whatever is asked, what runs at once fits beside the reserve."""
    found = grant(requested=requested, cpus=cpus, available=available, memory_per_compile=memory, units=units)
    assert 1 <= found.granted <= min(cpus, units, requested or cpus)
    assert found.granted * memory <= capacity(available) <= available - GIB


@pytest.mark.parametrize("text", ["0", "", "abc", "-1", "1.5", " ", "²", "٣", "9" * 5000, "1e3", "0x8"])
def test_a_number_of_jobs_that_cannot_be(text: str) -> None:
    """MAX_JOBS of 0, nothing, letters or below zero: exit status 2."""
    with pytest.raises(UsageError) as caught:
        parse_jobs(text, source="MAX_JOBS")
    assert str(caught.value) == f"MAX_JOBS={text!r} is not a number of jobs"
    assert caught.value.exit_status == 2
