"""Measuring: which units, what they took, and the table that they go into."""

from dataclasses import replace
from pathlib import Path

import pytest
from machines import GIB
from samples import write_catalog

from wheelmill.catalog import load_catalog
from wheelmill.derivation import Selection, instantiate
from wheelmill.measure import Measurement, refresh, unwanted
from wheelmill.peaks import Sample, Unit, read_peaks
from wheelmill.records import Begun, CompileRecord


def begun(source: str, *, kind: str = "compile") -> Begun:
    return Begun(
        id=1,
        tool="nvcc",
        kind=kind,
        argv=(),
        output="a.o",
        source=source,
        archs_asked=(),
        archs_used=(),
        rewrites=(),
        ccache=False,
        at=0.0,
    )


@pytest.mark.parametrize(
    ("globs", "source", "wanted"),
    [
        (["*bwd*"], "csrc/src/flash_bwd_hdim32.cu", True),
        (["flash_bwd_*"], "csrc/src/flash_bwd_hdim32.cu", True),
        (["csrc/*"], "csrc/src/flash_bwd_hdim32.cu", True),
        (["*fwd*"], "csrc/src/flash_bwd_hdim32.cu", False),
        (["*fwd*", "*hdim32.cu"], "csrc/src/flash_bwd_hdim32.cu", True),
    ],
)
def test_units_are_named_by_path_or_file(globs: list[str], source: str, wanted: bool) -> None:  # noqa: FBT001 - a table
    """A glob says either."""
    assert unwanted(globs)(begun(source)) is not wanted


def test_links_are_left_out() -> None:
    """Of some units no extension can be linked."""
    assert unwanted(["*"])(begun("a.o", kind="link"))


def record(source: str, *, cpu: float, peak: int) -> CompileRecord:
    return CompileRecord(
        id=1,
        tool="nvcc",
        source=source,
        output="a.o",
        argv=(),
        archs_asked=("sm_100",),
        archs_used=("sm_100",),
        rewrites=(),
        cache="off",
        wall_s=cpu,
        cpu_s=cpu,
        peak_rss_bytes=1,
        exit=0,
        started_s=1.0,
        waited_s=0.0,
        attempt=1,
        peak_bytes=peak,
    )


@pytest.mark.parametrize(
    ("units", "ideal"),
    [
        ([(100.0, GIB), (20.0, GIB), (20.0, GIB)], 100.0),
        ([(100.0, GIB)] * 8, 400.0),
        ([(100.0, 6 * GIB)] * 8, 600.0),
    ],
    ids=["longest", "cores", "memory"],
)
def test_ideal_is_the_largest_bound(tmp_path: Path, units: list[tuple[float, int]], ideal: float) -> None:
    """By the longest unit, by cores, by memory: two cores, 8 GiB."""
    derivation = instantiate(load_catalog((write_catalog(tmp_path),)), Selection(name="demo", stack="cu130"))
    measured = Measurement(
        derivation=derivation,
        units=tuple(record(f"{at}.cu", cpu=cpu, peak=peak) for at, (cpu, peak) in enumerate(units)),
        samples=(),
        seconds=1.0,
        cores=2,
        capacity_bytes=8 * GIB,
        backend="cgroup1",
    )

    assert measured.ideal_seconds == ideal
    assert measured.to_json()["ideal_seconds"] == ideal


def test_a_table_is_refreshed_unit_by_unit(tmp_path: Path) -> None:
    """New figures replace those of the same unit, others stay; the lines are sorted, and doing it twice changes none."""
    table = tmp_path / "peaks" / "demo.jsonl"
    sample = Sample(
        of=Unit(unit="a.cu", archs=("sm_100",), tool="nvcc 13.0.88", flags="f" * 16),
        wall_s=1.0,
        cpu_s=1.0,
        peak_bytes=GIB,
        how="cgroup1",
        outcome="ok",
    )
    other = replace(sample, of=replace(sample.of, unit="b.cu"))

    assert refresh(table, [other, sample]) == 2
    before = table.read_text("utf-8")
    assert refresh(table, [sample]) == 2
    assert table.read_text("utf-8") == before
    assert refresh(table, [replace(sample, peak_bytes=2 * GIB)]) == 2
    assert {each.of.unit: each.peak_bytes for each in read_peaks(table)} == {"a.cu": 2 * GIB, "b.cu": GIB}
