"""Memory and jobs in figures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmill.errors import UsageError
from wheelmill.resources import GIB, capacity, ideal, parse_jobs


@given(st.integers(2 * GIB, 4096 * GIB))
def test_a_reserve_stays(available: int) -> None:
    """1 GiB or 15 %, whichever is more; more memory never gives less to compiles."""
    left = available - capacity(available)
    assert left >= GIB
    assert abs(left - max(GIB, available * 15 // 100)) <= 1
    assert capacity(available + GIB) >= capacity(available)


@pytest.mark.parametrize("text", ["0", "", "abc", "-1", "1.5", " ", "²", "٣", "9" * 5000, "1e3", "0x8"])
def test_a_number_of_jobs_that_cannot_be(text: str) -> None:
    """MAX_JOBS of 0, nothing, letters or below zero: exit status 2."""
    with pytest.raises(UsageError) as caught:
        parse_jobs(text, source="MAX_JOBS")
    assert str(caught.value) == f"MAX_JOBS={text!r} is not a number of jobs"
    assert caught.value.exit_status == 2


def test_what_no_schedule_can_beat() -> None:
    """The longest unit, or the CPU seconds shared; nothing without a job."""
    assert ideal(longest=7, cpu_seconds=20, jobs=4) == 7
    assert ideal(longest=1, cpu_seconds=20, jobs=4) == 5
    assert ideal(longest=1, cpu_seconds=20, jobs=0) == 0
