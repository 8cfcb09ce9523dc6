"""What a plan says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import write_catalog

from wheelmill.arch import Arch, served
from wheelmill.catalog import load_catalog
from wheelmill.derivation import Selection, instantiate
from wheelmill.errors import ResourcesError
from wheelmill.limits import Limits
from wheelmill.peaks import Peaks, Sample, Unit
from wheelmill.plan import Plan, Planned, ToolkitSummary, Wanted, forecast, spell_seconds
from wheelmill.recipe import Resources
from wheelmill.resources import capacity

GIB = 2**30
WANTED = Wanted(archs=("sm_100",), threads=1, nvcc="13.0.88")


def machine(cpus: float = 8, gibs: float = 40, *, free: float | None = None, pids: int | None = None) -> Limits:
    """Describe a machine."""
    return Limits(
        cpus=cpus,
        memory_bytes=int(gibs * GIB),
        available_bytes=int((gibs if free is None else free) * GIB),
        pids=None,
        pids_free=pids,
    )


def figures(units: int = 5, gibs: float = 4, seconds: int = 400) -> Resources:
    """Say what a recipe says."""
    return Resources(memory_per_compile=int(gibs * GIB), units=units, cpu_seconds=seconds)


def measured(name: str, gibs: float, seconds: float, **more: object) -> Sample:
    """Measure one unit."""
    key: dict[str, object] = {"archs": ("sm_100",), "tool": "nvcc 13.0.88", **more}
    return Sample(
        of=Unit(unit=f"csrc/{name}", **key),  # type: ignore[arg-type]
        wall_s=seconds,
        cpu_s=seconds,
        peak_bytes=int(gibs * GIB),
        settled_at=0.3,
        tail_bytes=int(0.4 * gibs * GIB),
        how="cgroup1",
        outcome="ok",
    )


def planned(root: Path, *, jobs: int | None, threads: int | None) -> Planned:
    """Plan the sample package on eight cores with 40 GiB."""
    derivation = instantiate(load_catalog((write_catalog(root),)), Selection(name="demo", stack="cu130"))
    ahead = forecast(figures(), Peaks(), WANTED, limits=machine(), requested=jobs)
    return Planned(
        derivation=derivation, state="build", wheel="x.whl", forecast=ahead, toolkit=None, nvcc_threads=threads
    )


# forecasts


def test_asking_for_128_jobs_is_safe() -> None:
    """288 GiB and 7 GiB per compile: 34 run, the reason says so in numbers, and nothing is lost."""
    found = forecast(figures(73, 7, 8000), Peaks(), WANTED, limits=machine(128, 288), requested=128)
    assert (found.grant.granted, found.grant.limited_by) == (34, "memory")
    assert found.grant.reason == "128 asked for; 34 at once: 244.8 GiB usable / 7.0 GiB per compile"
    assert found.paragraph == (
        "73 translation units on 128 cores and 288.0 GiB of free memory; a unit peaks at 7.0 GiB (the recipe's "
        "estimate). 128 asked for; 34 at once: 244.8 GiB usable / 7.0 GiB per compile; nothing is lost by asking for "
        "128. Ideal 3 min 49 s, expected 5 min 29 s."
    )


@pytest.mark.parametrize(
    ("requested", "cpus", "gibs", "units", "pids", "granted", "limited_by"),
    [
        (None, 2, 23, 5, None, 2, "cores"),
        (1, 2, 23, 5, None, 1, "request"),
        (None, 64, 23, 5, None, 4, "memory"),
        (None, 64, 512, 3, None, 3, "units"),
        (9, 64, 512, 30, 40, 3, "pids"),
        (None, 64, 512, 30, 5, 1, "pids"),
        (5, 5, 512, 5, None, 5, "request"),
    ],
)
def test_the_smallest_bound_wins(
    requested: int | None, cpus: int, gibs: int, units: int, pids: int | None, granted: int, limited_by: str
) -> None:
    """Whatever is smallest limits, and is named."""
    limits = machine(cpus, gibs, pids=pids)
    found = forecast(figures(units), Peaks(), WANTED, limits=limits, requested=requested).grant
    assert (found.granted, found.limited_by) == (granted, limited_by)


TABLE = Peaks(
    [
        measured("a.cu", 6, 100),
        measured("b.cu", 4, 60),
        measured("c.cu", 4, 60),
        measured("api.cpp", 2, 30, archs=(), tool="g++ 12.2.0"),
        measured("x.so", 1, 1, archs=(), tool="link"),
    ]
)


def test_a_table_answers_for_its_units() -> None:
    """Each with its own peak; the longest start; more as peaks pass; links are no units."""
    found = forecast(figures(4, 7, 8000), TABLE, WANTED, limits=machine(8, 13), requested=8)
    assert (found.source, found.estimated, found.grant.granted) == ("measured", False, 2)
    assert found.grant.reason == (
        "8 asked for; 2 at once: their peaks take 10.5 GiB of the 11.1 GiB that compiles may use "
        "(13.0 GiB less a reserve of 1.9 GiB)"
    )
    assert found.paragraph == (
        "4 translation units on 8 cores and 13.0 GiB of free memory; a unit peaks at 2.1 to 6.3 GiB (measured with "
        f"nvcc 13.0.88). {found.grant.reason}; up to 4 as peaks pass, so nothing is lost by asking for 8. "
        "Expected 1 min 40 s, where 1 min 43 s is the ideal if every unit kept its peak to its end."
    )
    assert 6 * GIB < found.peak_memory_bytes < 11.1 * GIB


@pytest.mark.parametrize(
    ("change", "source", "said"),
    [
        ({"nvcc": "12.8.93"}, "nearby", "estimated from what other compilers or architectures took"),
        ({"archs": ("sm_90",)}, "nearby", "estimated from what other compilers or architectures took"),
        ({"nvcc": ""}, "nearby", "estimated from what other compilers or architectures took"),
    ],
)
def test_another_compilers_table_is_an_estimate(change: dict[str, object], source: str, said: str) -> None:
    """It is used, and marked."""
    wanted = replace(WANTED, **change)  # type: ignore[arg-type]
    found = forecast(figures(4), TABLE, wanted, limits=machine(), requested=None)
    assert (found.source, found.estimated, found.spell_source()) == (source, True, said)
    assert found.ideal_seconds == 100.0


def test_units_that_are_not_in_the_table_go_by_the_recipe() -> None:
    """Its memory, and what is left of its CPU seconds."""
    found = forecast(figures(6, 7, 650), TABLE, WANTED, limits=machine(8, 64), requested=None)
    assert (found.units, found.source, found.largest) == (6, "partly", 7 * GIB)
    assert found.ideal_seconds == 200.0
    assert "measured for some, the recipe's estimate for the rest" in found.paragraph


def test_a_table_of_two_releases_gives_as_many_as_the_recipe_speaks_of() -> None:
    """The longest."""
    assert forecast(figures(2, 7, 650), TABLE, WANTED, limits=machine(), requested=None).units == 2


def test_a_compile_that_cannot_fit_is_refused() -> None:
    """The arithmetic and what to change; exit status 6."""
    with pytest.raises(ResourcesError) as caught:
        forecast(figures(gibs=7), Peaks(), WANTED, limits=machine(2, 6), requested=None)
    assert str(caught.value) == (
        "one compile needs 7.0 GiB, and 5.0 GiB may be used (6.0 GiB of memory less a reserve of 1.0 GiB)"
    )
    assert caught.value.exit_status == 6


def test_memory_that_others_hold_now_is_waited_for() -> None:
    """A second build is not refused because the first holds the memory."""
    found = forecast(figures(gibs=7), Peaks(), WANTED, limits=machine(2, 30, free=6), requested=None)
    assert found.grant.granted == 0
    assert found.grant.reason == (
        "0 at once: 5.0 GiB may be used now, and a compile needs 7.0 GiB: it waits for other programs"
    )
    assert found.expected_seconds > 0


@settings(max_examples=40)
@given(
    requested=st.none() | st.integers(1, 500),
    cpus=st.integers(1, 256),
    available=st.integers(3, 1024),
    memory=st.floats(0.1, 1),
    units=st.integers(1, 60),
)
def test_memory_is_the_law(requested: int | None, cpus: int, available: int, memory: float, units: int) -> None:
    """Whatever is asked, what runs at once fits beside the reserve."""
    limits = machine(cpus, available)
    found = forecast(figures(units, memory), Peaks(), WANTED, limits=limits, requested=requested)
    assert 1 <= found.grant.granted <= min(cpus, units, requested or cpus)
    assert found.grant.granted * found.largest <= capacity(limits.available_bytes)
    assert found.peak_memory_bytes <= capacity(limits.available_bytes)


# plans


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


DRV = "drv of the sample"


def document(tmp_path: Path, **fields: object) -> dict[str, object]:
    """Give the whole document of a plan of the sample stack, the hash left out (it has tests of its own)."""
    catalog = load_catalog((write_catalog(tmp_path),))
    stack = catalog.stack("cu130")
    item = replace(
        planned(tmp_path / "again", jobs=8, threads=None),
        toolkit=ToolkitSummary(cuda="13.0", nvcc="13.0.88", provider="wheels"),
        **fields,
    )
    made = Plan(
        stack=stack,
        items=(item,),
        prebuilt=tuple(stack.prebuilt.values()),
        problems=({"message": "no disk", "advice": "buy one"},),
    )
    text = json.dumps(made.to_json())
    assert item.derivation.drv in text
    loaded: dict[str, object] = json.loads(text.replace(item.derivation.drv, DRV))
    return loaded


def test_the_whole_document(tmp_path: Path) -> None:
    """Every field that others rely on, to the letter."""
    assert document(tmp_path) == {
        "schema": 1,
        "stack": "cu130",
        "derivations": [
            {
                "name": "demo",
                "version": "1.0+cu130.torch2.11.0.sm100",
                "drv": DRV,
                "wheel": "x.whl",
                "state": "build",
                "archs": ["10.0"],
                "gpus": list(served((Arch.parse("10.0"),))[0]),
                "gpus_not_served": list(served((Arch.parse("10.0"),))[1]),
                "toolkit": {"cuda": "13.0", "nvcc": "13.0.88", "provider": "wheels"},
                "translation_units": 5,
                "jobs": {
                    "requested": 8,
                    "granted": 5,
                    "limited_by": "units",
                    "reason": "8 asked for; 5 at once: all 5 translation units",
                },
                "effective": {"jobs": 5, "threads_per_job": 1, "threads": 5, "by_itself": None},
                "peak_memory_bytes": 20 * GIB,
                "ideal_seconds": 80,
                "expected_seconds": 80,
                "estimated": True,
                "advisories": ["backward is slow"],
            },
            {
                "name": "torch",
                "version": "2.11.0",
                "drv": "b" * 64,
                "wheel": "torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl",
                "state": "prebuilt",
                "archs": [],
                "gpus": [],
                "gpus_not_served": [],
                "toolkit": {"cuda": "13.0", "nvcc": None, "provider": "published"},
                "translation_units": 0,
                "jobs": {"requested": None, "granted": 0, "limited_by": "units", "reason": "taken as published"},
                "effective": {"jobs": 0, "threads_per_job": 0, "threads": 0, "by_itself": None},
                "peak_memory_bytes": 0,
                "ideal_seconds": 0,
                "expected_seconds": 0,
                "estimated": False,
                "advisories": [],
            },
        ],
        "problems": [{"message": "no disk", "advice": "buy one"}],
    }


def test_built_and_prebuilt_have_the_same_fields(tmp_path: Path) -> None:
    """Whoever reads the list needs no cases."""
    built, prebuilt = document(tmp_path, state="built")["derivations"]
    assert list(built) == list(prebuilt)


def test_the_paragraph_for_people(tmp_path: Path) -> None:
    """What, for which GPUs, how many at once and why, how long at best, what to mind."""
    plan = planned(tmp_path, jobs=None, threads=None)
    drv = plan.derivation.drv[:12]
    first, second, *rest = plan.paragraph().splitlines()
    assert first == f"demo 1.0+cu130.torch2.11.0.sm100  [build]  drv {drv}"
    assert second.startswith("  for sm_100 (")
    assert second.endswith("), no toolkit here")
    served, *rest = rest
    assert served.startswith(
        "  runs on: B300 (sm_103); B200 (sm_100) with CUDA 12.8, driver 570 or newer; does not run on: "
    )
    while not rest[0].startswith("  5 translation"):
        rest = rest[1:]
    assert rest == [
        "  5 translation units on 8 cores and 40.0 GiB of free memory; a unit peaks at 4.0 GiB (the recipe's estimate).",
        "  5 at once: all 5 translation units. Ideal 1 min 20 s, expected 1 min 20 s.",
        "  note: backward is slow",
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.6, "1 h 0 min"),
        (9060, "2 h 31 min"),
        (100000, "27 h 46 min"),
    ],
)
def test_durations_for_people(seconds: float, said: str) -> None:
    """Rounded first, so that there are never 60 seconds."""
    assert spell_seconds(seconds) == said
