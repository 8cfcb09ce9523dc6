"""What a plan says."""

from pathlib import Path

import pytest
from samples import write_catalog

from wheelmill.catalog import load_catalog
from wheelmill.derivation import Selection, instantiate
from wheelmill.plan import Planned
from wheelmill.resources import grant

GIB = 2**30


def planned(root: Path, *, jobs: int | None, threads: int | None) -> Planned:
    """Plan the sample package on eight cores with 40 GiB."""
    derivation = instantiate(load_catalog((write_catalog(root),)), Selection(name="demo", stack="cu130"))
    given = grant(requested=jobs, cpus=8, available=40 * GIB, memory_per_compile=4 * GIB, units=5)
    return Planned(derivation=derivation, state="build", wheel="x.whl", grant=given, toolkit=None, nvcc_threads=threads)


def test_jobs_and_threads_as_they_work_out(tmp_path: Path) -> None:
    """The figures that count, and what the package by itself would make of the two variables."""
    plan = planned(tmp_path, jobs=8, threads=8)

    assert plan.to_json()["effective"] == {
        "jobs": 5,
        "threads_per_job": 1,
        "threads": 5,
        "by_itself": {"jobs": 8, "threads_per_job": 8, "threads": 64},
    }
    assert (
        "  demo by itself would make 8 compiles of 8 threads of MAX_JOBS=8 NVCC_THREADS=8, 64 in all; here it runs 5 of 1"
        in plan.paragraph().splitlines()
    )


@pytest.mark.parametrize(("jobs", "threads"), [(None, 8), (8, None), (None, None)])
def test_nothing_is_said_of_what_nobody_asked(tmp_path: Path, jobs: int | None, threads: int | None) -> None:
    """Without both variables there is nothing to compare."""
    plan = planned(tmp_path, jobs=jobs, threads=threads)

    assert plan.by_itself is None
    assert "by itself" not in plan.paragraph()
