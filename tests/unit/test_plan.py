"""What a plan says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from samples import write_catalog

from wheelmill.arch import Arch, served
from wheelmill.catalog import load_catalog
from wheelmill.derivation import Selection, instantiate
from wheelmill.plan import Plan, Planned, ToolkitSummary, spell_seconds
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
                    "reason": "8 asked for; 5 at once: 5 translation units",
                },
                "effective": {"jobs": 5, "threads_per_job": 1, "threads": 5, "by_itself": None},
                "peak_memory_bytes": 20 * GIB,
                "ideal_seconds": 80,
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
    assert rest == [
        "  5 translation units of up to 4.0 GiB; jobs: 5 at once: 5 translation units",
        "  ideal time 1 min 20 s on 5 at once",
        "  note: backward is slow",
    ]
    assert "ideal time" not in replace(plan, state="built").paragraph()


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
