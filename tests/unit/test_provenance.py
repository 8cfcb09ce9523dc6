"""Provenance: what a wheel says of its making is of inputs and machine facts alone; the record beside it knows more."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import write_catalog

from wheelmill import __version__
from wheelmill.arch import Arch
from wheelmill.catalog import load_catalog
from wheelmill.derivation import Derivation, Selection, instantiate
from wheelmill.interpreter import Interpreter
from wheelmill.provenance import BuildRecord, Found, Origin, embedded, gather, marks, realisation, unit_json
from wheelmill.records import CompileRecord, CompileSummary
from wheelmill.shims import HostCompiler
from wheelmill.toolkit import Toolkit

GIB = 2**30
HOST = HostCompiler(
    cc=Path("/opt/gcc/bin/gcc"), cxx=Path("/opt/gcc/bin/g++"), version="g++ 13.2.0", identity="h" * 64, triplet="x86_64"
)
TOOLKIT = Toolkit(
    root=Path("/home/me/cuda"), cuda="13.0", nvcc_version="13.0.88", digest="d" * 64, provider="wheels", pinned=True
)
INTERPRETER = Interpreter(
    path=Path("/home/me/python3.12"),
    version="3.12.1",
    implementation="cpython",
    abi="cp312",
    platform="linux-x86_64",
    include_dir=Path("/home/me/include"),
    has_headers=True,
    flags="p" * 64,
)
FOUND = gather(HOST, TOOLKIT, INTERPRETER, libc="glibc 2.39", ccache=True, sandbox="none")
UNIT = CompileRecord(
    id=1,
    tool="nvcc",
    source="csrc/a.cu",
    output="/home/me/build/a.o",
    argv=("nvcc", "-c", "/home/me/a.cu"),
    archs_asked=("sm_90", "sm_100"),
    archs_used=("sm_100",),
    rewrites=("archs: removed sm_90",),
    cache="miss",
    wall_s=65.432,
    cpu_s=60.019,
    peak_rss_bytes=3 * GIB,
    exit=0,
    started_s=1.0,
    waited_s=0.5,
    attempt=2,
)


@pytest.fixture
def derivation(tmp_path: Path) -> Derivation:
    return instantiate(load_catalog((write_catalog(tmp_path),)), Selection(name="demo", stack="cu130"))


def record(derivation: Derivation, *units: CompileRecord) -> BuildRecord:
    return BuildRecord(
        derivation=derivation,
        found=FOUND,
        wheel="demo.whl",
        sha256="f" * 64,
        size=10,
        content_digest="c" * 64,
        jobs=2,
        seconds=100.04,
        compiles=CompileSummary(
            compiles=6, links=1, cache_hits=2, retries=1, cpu_seconds=400.04, peak_rss_bytes=3 * GIB
        ),
        units=units,
        external={"libc10.so": "torch"},
        findings=({"id": "record", "status": "ok"},),
    )


def test_what_was_found(derivation: Derivation) -> None:
    """Digests and versions, never a path; each field is in the document."""
    assert FOUND.to_json() == {
        "host_compiler": "h" * 64,
        "libc": "glibc 2.39",
        "nvcc": "13.0.88",
        "toolkit_provider": "wheels",
        "toolkit_digest": "d" * 64,
        "toolkit_pinned": True,
        "python": "3.12.1",
        "python_flags": "p" * 64,
        "zlib": FOUND.zlib,
        "compile_backend": "ccache",
        "sandbox": "none",
    }
    assert set(FOUND.to_json()) == {field.name for field in fields(Found)}
    assert (
        gather(HOST, TOOLKIT, INTERPRETER, libc="glibc 2.39", ccache=False, sandbox="none").compile_backend == "direct"
    )
    assert len(realisation(derivation, FOUND)) == 64


OTHER = {
    "host_compiler": "i" * 64,
    "libc": "glibc 2.28",
    "nvcc": "13.0.48",
    "toolkit_provider": "host",
    "toolkit_digest": "e" * 64,
    "toolkit_pinned": False,
    "python": "3.12.2",
    "python_flags": "q" * 64,
    "zlib": "1.2.11",
    "compile_backend": "direct",
    "sandbox": "namespaces",
}


@pytest.mark.parametrize("name", [field.name for field in fields(Found)])
def test_everything_found_is_part_of_the_realisation(derivation: Derivation, name: str) -> None:
    """Bytes are promised per realisation: whatever can change them changes it, and the derivation does not."""
    changed = replace(FOUND, **{name: OTHER[name]})
    assert realisation(derivation, changed) != realisation(derivation, FOUND)
    assert json.loads(embedded(derivation, changed))["drv"] == derivation.drv


def test_the_derivation_is_part_of_the_realisation(derivation: Derivation) -> None:
    """Other inputs on the same machine are another realisation."""
    other = replace(derivation, archs=(Arch.parse("12.0"),))
    assert realisation(other, FOUND) != realisation(derivation, FOUND)


def test_what_travels_in_the_wheel(derivation: Derivation) -> None:
    """Sorted JSON of hashes and inputs, the same bytes every time."""
    data = embedded(derivation, FOUND)
    document = json.loads(data)
    assert document == {
        "schema": 1,
        "drv": derivation.drv,
        "realisation": realisation(derivation, FOUND),
        "stack": "cu130",
        "index": "cu130-torch2.11.0-sm100",
        "inputs": json.loads(json.dumps(derivation.inputs)),
        "found": FOUND.to_json(),
        "writer": {"chunk_bytes": 4 << 20, "level": 6},
    }
    assert data == embedded(derivation, FOUND)
    assert data == (json.dumps(document, sort_keys=True, indent=1) + "\n").encode()


def test_no_path_travels(derivation: Derivation, tmp_path: Path) -> None:
    """Neither of the machine's tools nor of the user's folders: two checkouts make the same bytes."""
    text = embedded(derivation, FOUND).decode()
    for private in (str(tmp_path), "/home/me", "/opt/gcc"):
        assert private not in text
    moved = replace(derivation, recipe=replace(derivation.recipe, file="/elsewhere/demo.toml"))
    assert embedded(moved, FOUND).decode() == text


def test_the_record_beside_the_wheel(derivation: Derivation) -> None:
    """Every field that `build --json` and the wheelhouse rely on."""
    document = json.loads(json.dumps(record(derivation, UNIT).to_json()))
    assert {name: value for name, value in document.items() if name not in {"inputs", "found", "units"}} == {
        "schema": 1,
        "name": "demo",
        "version": "1.0+cu130.torch2.11.0.sm100",
        "stack": "cu130",
        "index": "cu130-torch2.11.0-sm100",
        "drv": derivation.drv,
        "realisation": realisation(derivation, FOUND),
        "wheel": "demo.whl",
        "sha256": "f" * 64,
        "size": 10,
        "content_digest": "c" * 64,
        "seconds": 100.0,
        "cpu_seconds": 400.0,
        "peak_memory_bytes": 3 * GIB,
        "compiles": 5,
        "cache_hits": 2,
        "retries": 1,
        "external": {"libc10.so": "torch"},
        "findings": [{"id": "record", "status": "ok"}],
        "recipes": {"commit": None, "dirty": False},
        "marks": ["no sandbox: paths and network were the machine's"],
        "wheelmill": __version__,
    }
    assert document["units"] == [unit_json(UNIT)]
    assert document["found"] == FOUND.to_json()


def test_one_compile_in_the_record() -> None:
    """What it took and what was changed of it, without its argv; a link goes by its output."""
    assert json.loads(json.dumps(unit_json(UNIT))) == {
        "tool": "nvcc",
        "source": "csrc/a.cu",
        "archs_asked": ["sm_90", "sm_100"],
        "archs_used": ["sm_100"],
        "rewrites": ["archs: removed sm_90"],
        "cache": "miss",
        "wall_s": 65.43,
        "cpu_s": 60.02,
        "peak_rss_bytes": 3 * GIB,
        "peak_bytes": 0,
        "reserved_bytes": 0,
        "attempt": 2,
    }
    assert unit_json(replace(UNIT, source=""))["source"] == "/home/me/build/a.o"


@given(st.lists(st.floats(0, 10_000), max_size=5))
def test_no_build_is_shorter_than_its_longest_compile(walls: list[float]) -> None:
    """0 for a build of hits alone."""
    units = tuple(replace(UNIT, wall_s=wall) for wall in walls)
    assert record_of(units).ideal_seconds == round(max(walls, default=0.0), 1)


def test_all_the_work_on_the_jobs_granted_bounds_it_too() -> None:
    """400 CPU seconds on two jobs take 200 s, however short each compile."""
    record = replace(record_of((UNIT,)), compiles=CompileSummary(cpu_seconds=400.0))
    assert record.ideal_seconds == 200.0


def record_of(units: tuple[CompileRecord, ...]) -> BuildRecord:
    """Make a record of which only the units count."""
    return BuildRecord(
        derivation=None,
        found=FOUND,
        wheel="",
        sha256="",
        size=0,
        content_digest="",
        jobs=2,
        seconds=0.0,
        compiles=CompileSummary(),
        units=units,
        external={},
        findings=(),
    )


@pytest.mark.parametrize(
    ("found", "origin", "told"),
    [
        ({"sandbox": "namespaces"}, Origin(), ()),
        ({"sandbox": "namespaces"}, Origin(commit="a" * 40), ()),
        ({"sandbox": "namespaces"}, Origin(commit="a" * 40, dirty=True), ("recipes with uncommitted changes",)),
        ({"toolkit_pinned": False, "sandbox": "namespaces"}, Origin(), ("host toolkit, not pinned",)),
        ({"sandbox": "folder"}, Origin(), ("sandbox of rung folder: fixed paths, but the network was not cut",)),
        ({"sandbox": "none"}, Origin(), ("no sandbox: paths and network were the machine's",)),
        (
            {"sandbox": "namespaces", "zlib": "zlib-ng 2.2, not the reference"},
            Origin(),
            ("packed by another zlib than the reference",),
        ),
    ],
)
def test_what_lowers_a_claim(found: dict[str, object], origin: Origin, told: tuple[str, ...]) -> None:
    """Each thing that another machine may not have is marked in words; a wheel that promises all has no mark."""
    whole = {**FOUND.to_json(), "zlib": "1.3.1", **found}
    assert marks(whole, origin) == told
