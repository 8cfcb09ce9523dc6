"""The line as a whole: what is known before a build, what an outcome says, what is checked around the stages."""

import errno
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from samples import write_catalog

from wheelmill import pipeline
from wheelmill._process import Completed
from wheelmill.build import BuiltWheel, Workplace
from wheelmill.catalog import load_catalog
from wheelmill.derivation import Derivation, Selection, instantiate
from wheelmill.errors import (
    CommandFailedError,
    FetchError,
    HashMismatchError,
    RecipeError,
    ToolkitError,
    VerifyError,
)
from wheelmill.fetch import FetchedTree, tree_digest
from wheelmill.limits import Limits
from wheelmill.peaks import Peaks
from wheelmill.pipeline import (
    Bounds,
    Built,
    Failed,
    Tools,
    attempt,
    driver_version,
    fetch_input,
    forecast_for,
    missing_licenses,
    patched_tree,
    plan,
    realise,
    require_probes,
    run_probes,
    with_floor,
)
from wheelmill.provenance import BuildRecord, Found
from wheelmill.recipe import LicenseFile, TreeSource
from wheelmill.records import CompileSummary
from wheelmill.repair import AuditedWheel
from wheelmill.resources import Grant
from wheelmill.runtime import Directories, Runtime
from wheelmill.source import SourceTree
from wheelmill.wheel_file import content, write_wheel
from wheelmill.wheelhouse import NameTakenError, Wheelhouse

GIB = 2**30
HERE = Limits(cpus=4.0, memory_bytes=32 * GIB, available_bytes=20 * GIB, pids=None, sources={})
WHEEL = "demo-1.0+cu130.torch2.11.0.sm100-1-cp312-cp312-manylinux_2_28_x86_64.whl"
BARE = "demo-1.0-py3-none-any.whl"
FOUND = Found(
    host_compiler="h",
    libc="glibc 2.39",
    nvcc="13.0.88",
    toolkit_provider="wheels",
    toolkit_digest="d",
    toolkit_pinned=True,
    python="3.12.1",
    python_flags="p" * 64,
    zlib="1.3",
    compile_backend="ccache",
    sandbox="none",
)


class Heard:
    """A Reporter that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, text: str) -> None:
        self.lines.append(text)

    note = warn = step


class FakeRunner:
    """Remembers what was run; `failing` names the program that fails."""

    def __init__(self, failing: str = "") -> None:
        self.failing, self.calls = failing, list[tuple[tuple[str, ...], Mapping[str, str], Path | None]]()

    def run(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, **_: object) -> Completed:
        self.calls.append((tuple(argv), env, cwd))
        if self.failing and self.failing in argv[-1]:
            raise CommandFailedError(argv, 1, tail=[f"line {number}" for number in range(20)])
        return Completed(argv=tuple(argv), returncode=0, stdout="", stderr="", seconds=0.0)

    def stream(self, argv: Sequence[str], **_: object) -> Completed:
        raise AssertionError(f"nothing long runs: {argv}")


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    return write_catalog(tmp_path)


@pytest.fixture
def tools(recipes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    monkeypatch.setattr(pipeline, "read_limits", lambda **_: HERE)
    directories = Directories(cache=tmp_path / "cache", wheelhouse=tmp_path / "wheelhouse")
    return Tools(
        runtime=Runtime(
            env={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
            directories=directories,
            cwd=tmp_path,
            python=Path("/env/bin/python"),
        ),
        runner=FakeRunner(),
        report=Heard(),
        catalog=load_catalog((recipes,)),
        offline=True,
        cuda_home=None,
        python=None,
        bounds=Bounds(),
    )


@pytest.fixture
def derivation(tools: Tools) -> Derivation:
    return instantiate(tools.catalog, Selection(name="demo", stack="cu130"))


@pytest.fixture
def house(tools: Tools) -> Wheelhouse:
    return Wheelhouse(root=tools.runtime.directories.wheelhouse)


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    place = Workplace(root=tmp_path / "place")
    for folder in (place.out, place.tmp, place.home):
        folder.mkdir(parents=True)
    return place


def changed(derivation: Derivation, **fields: object) -> Derivation:
    return replace(derivation, release=replace(derivation.release, **fields))


def entered(house: Wheelhouse, derivation: Derivation, tmp_path: Path) -> Path:
    """Put a wheel of this derivation into the wheelhouse."""
    wheel, log = tmp_path / WHEEL, tmp_path / "log"
    wheel.write_bytes(b"a wheel")
    log.write_text("")
    return house.enter(wheel, build_record={"drv": derivation.drv}, log=log).wheel


# limits and jobs


@pytest.mark.parametrize(
    ("bounds", "cpus", "memory", "available"),
    [
        (Bounds(), 4.0, 32, 20),
        (Bounds(cpus=2, memory=8 * GIB), 2, 8, 8),
        (Bounds(memory=24 * GIB), 4.0, 24, 20),
        (Bounds(cpus=128, memory=288 * GIB), 4.0, 32, 20),
    ],
)
def test_caps_only_lower(tools: Tools, bounds: Bounds, cpus: float, memory: int, available: int) -> None:
    """A build stays within the user's caps, and within the machine whatever the caps."""
    found = replace(tools, bounds=bounds).limits()
    assert (found.cpus, found.memory_bytes, found.available_bytes) == (cpus, memory * GIB, available * GIB)


def test_a_plan_answers_for_another_machine(tools: Tools) -> None:
    """128 cores and 288 GiB are not here, and that is the question."""
    found = replace(tools, bounds=Bounds(cpus=128, memory=288 * GIB)).elsewhere()
    assert (found.cpus, found.memory_bytes, found.available_bytes) == (128, 288 * GIB, 288 * GIB)


def test_a_variant_has_figures_of_its_own(tools: Tools) -> None:
    """Its units decide; its memory per compile is the release's where it says none."""
    bounds = Bounds(max_jobs=128)
    whole = instantiate(tools.catalog, Selection(name="demo", stack="cu130"))
    part = instantiate(tools.catalog, Selection(name="demo", stack="cu130", variant="small-one"))
    large = replace(HERE, cpus=64.0, available_bytes=512 * GIB)

    def ahead(derivation: Derivation, limits: Limits) -> Grant:
        return forecast_for(derivation, limits, bounds, Peaks(), "13.0.88").grant

    assert (ahead(whole, large).granted, ahead(part, large).granted) == (5, 2)
    assert ahead(whole, replace(HERE, cpus=0.5)).reason == "128 asked for; 1 at once: 1 core"


# plan


def test_a_plan_touches_nothing(tools: Tools, house: Wheelhouse, tmp_path: Path) -> None:
    """No folder is made, no program run; the stack's prebuilt members are listed."""
    made = plan([Selection(name="demo", stack="cu130")], tools, with_prebuilt=True, house=house)
    [item] = made.items
    assert (item.state, item.wheel, item.grant.granted) == ("build", WHEEL, 4)
    assert item.toolkit is not None
    assert (item.toolkit.provider, item.toolkit.nvcc) == ("wheels", "13.0.88")
    assert [member.name for member in made.prebuilt] == ["torch"]
    assert made.problems == ()
    assert not (tmp_path / "cache").exists()
    assert not house.root.exists()


def test_a_plan_knows_what_is_built(tools: Tools, house: Wheelhouse, derivation: Derivation, tmp_path: Path) -> None:
    """A wheel of the same derivation in the wheelhouse is the answer."""
    entered(house, derivation, tmp_path)
    made = plan([Selection(name="demo", stack="cu130")], tools, with_prebuilt=False, house=house)
    assert (made.items[0].state, made.items[0].wheel, made.prebuilt) == ("built", WHEEL, ())


def test_a_missing_toolkit_is_a_problem_not_a_failure(
    tools: Tools, house: Wheelhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan is made on laptops, too; a given toolkit that does not fit is refused."""

    def nothing(*_: object, **__: object) -> None:
        raise ToolkitError("no toolkit", advice="get one")

    monkeypatch.setattr(pipeline, "choose", nothing)
    made = plan([Selection(name="demo", stack="cu130")] * 2, tools, with_prebuilt=False, house=house)
    assert [item.toolkit for item in made.items] == [None, None]
    assert made.problems == ({"message": "no toolkit", "advice": "get one"},)
    with pytest.raises(ToolkitError):
        plan(
            [Selection(name="demo", stack="cu130")],
            replace(tools, cuda_home="/cuda"),
            with_prebuilt=False,
            house=house,
        )


def test_a_compile_that_does_not_fit_is_a_problem_too(tools: Tools, house: Wheelhouse) -> None:
    """No job is granted, no time is promised, and the arithmetic is in the problems."""
    small = replace(tools, bounds=Bounds(memory=4 * GIB))
    made = plan([Selection(name="demo", stack="cu130")], small, with_prebuilt=False, house=house)
    document = json.loads(json.dumps(made.to_json()))
    [item] = document["derivations"]
    assert (item["jobs"]["granted"], item["jobs"]["limited_by"], item["peak_memory_bytes"]) == (0, "memory", 0)
    assert [problem["message"] for problem in document["problems"]] == [
        "one compile needs 4.0 GiB, and 3.0 GiB may be used (4.0 GiB of memory less a reserve of 1.0 GiB)"
    ]
    assert "Ideal" not in made.items[0].paragraph()


# before the build


def with_tree(derivation: Derivation, digest: str) -> Derivation:
    return changed(derivation, source=TreeSource(path="project", sha256=digest))


def test_the_source_is_held_against_its_pin(tools: Tools, derivation: Derivation, recipes: Path) -> None:
    """A tree beside the recipe, by its digest; the error names the recipe's line."""
    (recipes / "project").mkdir()
    (recipes / "project" / "LICENSE").write_text("BSD")
    digest = tree_digest(recipes / "project")
    assert fetch_input(with_tree(derivation, digest), tools) == FetchedTree(path=recipes / "project", sha256=digest)
    with pytest.raises(HashMismatchError) as caught:
        fetch_input(with_tree(derivation, "0" * 64), tools)
    assert f'{recipes / "demo.toml"}: version."1.0".source' in str(caught.value)


def test_offline_says_what_is_not_here(tools: Tools, derivation: Derivation) -> None:
    """Nothing is asked of an index; the way on is a command."""
    with pytest.raises(FetchError) as caught:
        fetch_input(derivation, tools)
    assert "demo-1.0.tar.gz" in str(caught.value)
    assert "fetch" in caught.value.advice


def test_a_licence_that_is_not_in_the_tree_is_found_before_the_build(
    tools: Tools, derivation: Derivation, recipes: Path, place: Workplace
) -> None:
    """Hours later the stamp would have missed it."""
    (recipes / "project").mkdir()
    (recipes / "project" / "x").write_text("a\n")
    licensed = changed(
        with_tree(derivation, tree_digest(recipes / "project")), licenses=(LicenseFile(path="LICENSE", spdx="MIT"),)
    )
    with pytest.raises(FetchError, match="LICENSE"):
        patched_tree(fetch_input(licensed, tools), licensed, place, tools)
    assert not place.source.exists()


def test_a_tree_of_an_earlier_start_is_announced(tools: Tools, derivation: Derivation, place: Workplace) -> None:
    """Whoever reads the log sees why so little is compiled."""
    place.source.mkdir()
    tree = patched_tree(FetchedTree(path=place.home, sha256="a" * 64), derivation, place, tools)
    assert tree.root == place.source
    assert tools.report.lines == ["source tree: goes on with no finished objects of an earlier start"]


def test_a_check_that_is_not_there_is_found_before_the_build(derivation: Derivation, recipes: Path) -> None:
    """The recipe's own checks run last; that they exist is known at once."""
    checked = changed(derivation, checks=replace(derivation.release.checks, probes=("probes/demo.py",)))
    with pytest.raises(RecipeError) as caught:
        require_probes(checked)
    assert str(caught.value) == (
        f"{recipes / 'demo.toml'}: checks.probes: the check {recipes / 'probes' / 'demo.py'} does not exist"
    )
    (recipes / "probes").mkdir()
    (recipes / "probes" / "demo.py").write_text("")
    require_probes(checked)


def test_the_drivers_version(tmp_path: Path) -> None:
    """As the kernel module says it; nothing where there is none."""
    path = tmp_path / "version"
    path.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n")
    assert driver_version(path) == "570.124.06"
    assert driver_version(tmp_path / "none") == ""


# after the build


@pytest.mark.parametrize(
    ("audited", "expected"),
    [
        ("manylinux_2_17_x86_64", "manylinux_2_28_x86_64"),
        ("manylinux_2_28_x86_64", "manylinux_2_28_x86_64"),
        ("manylinux_2_34_x86_64", "manylinux_2_34_x86_64"),
    ],
)
def test_the_platform_is_at_least_the_stacks(derivation: Derivation, audited: str, expected: str) -> None:
    """Where torch does not install, the wheel is of no use; what needs more says more."""
    wheel = AuditedWheel(wheel=None, platform_tag=audited, external={}, needed=(), compiled={})
    assert with_floor(wheel, derivation.stack).platform_tag == expected


def built_wheel(folder: Path, *members: str) -> BuiltWheel:
    """Write a wheel as a backend makes it, with these members of its dist-info."""
    texts = {
        "demo/__init__.py": b"",
        "demo-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        "demo-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **{f"demo-1.0.dist-info/{member}": b"text" for member in members},
    }
    write_wheel([content(name, data) for name, data in texts.items()], folder / BARE, epoch=1_700_000_000)
    return BuiltWheel(path=folder / BARE, compiles=CompileSummary(), records=(), units=())


@pytest.mark.parametrize(
    ("members", "missing"),
    [
        ((), {"LICENSE": b"ours", "csrc/NOTICE": b"theirs"}),
        (("licenses/LICENSE",), {"csrc/NOTICE": b"theirs"}),
        (("LICENSE", "licenses/csrc/NOTICE"), {}),
        (("NOT-LICENSE", "licenses/NOTICE"), {"LICENSE": b"ours", "csrc/NOTICE": b"theirs"}),
    ],
)
def test_licences_that_the_backend_left_out(
    derivation: Derivation, tmp_path: Path, members: tuple[str, ...], missing: dict[str, bytes]
) -> None:
    """Read from the tree; what is in the wheel stays as it is."""
    root = tmp_path / "source"
    (root / "csrc").mkdir(parents=True)
    (root / "LICENSE").write_bytes(b"ours")
    (root / "csrc" / "NOTICE").write_bytes(b"theirs")
    files = (LicenseFile(path="LICENSE", spdx="MIT"), LicenseFile(path="csrc/NOTICE", spdx="BSD-3-Clause"))
    tree = SourceTree(root=root, sha256="a" * 64, patches=())
    assert missing_licenses(built_wheel(tmp_path, *members), tree, changed(derivation, licenses=files)) == missing


def with_probes(derivation: Derivation) -> Derivation:
    return changed(derivation, checks=replace(derivation.release.checks, probes=("probes/one.py", "probes/two.py")))


def test_the_recipes_own_checks_run_isolated(derivation: Derivation, place: Workplace, recipes: Path) -> None:
    """In order, by the environment's interpreter, with nothing of the user's environment."""
    runner = FakeRunner()
    found = run_probes(Path("/venv/bin/python"), with_probes(derivation), place, runner)
    assert [(finding.id, finding.status, finding.message) for finding in found] == [
        ("probe", "ok", "one.py passed"),
        ("probe", "ok", "two.py passed"),
    ]
    argv, env, cwd = runner.calls[0]
    assert argv == ("/venv/bin/python", "-I", "-B", str(recipes / "probes" / "one.py"))
    assert env == {"PATH": "/usr/bin:/bin", "HOME": str(place.home), "TMPDIR": str(place.tmp), "LC_ALL": "C.UTF-8"}
    assert cwd == place.tmp


def test_a_failing_check_says_what_it_said_last(derivation: Derivation, place: Workplace, recipes: Path) -> None:
    """Twelve lines, and the file that says what the wheel must do."""
    with pytest.raises(VerifyError) as caught:
        run_probes(Path("/venv/bin/python"), with_probes(derivation), place, FakeRunner(failing="two.py"))
    lines = str(caught.value).splitlines()
    assert lines == ["the wheel fails the check two.py:", *(f"  | line {number}" for number in range(8, 20))]
    probe = recipes / "probes" / "two.py"
    assert caught.value.advice == f"Read {probe}: it says what the wheel must do; correct the recipe's patches."


# outcomes

FIELDS = [
    *("name", "status", "wheel", "sha256", "drv", "realisation", "seconds", "cpu_seconds", "ideal_seconds"),
    *("peak_memory_bytes", "compiles", "cache_hits", "retries", "oom_kills", "error"),
]


def raising(error: BaseException) -> Callable[..., Built]:
    def fail(*_: object) -> Built:
        raise error

    return fail


def test_a_failure_is_a_value(
    tools: Tools, derivation: Derivation, house: Wheelhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every field is there; the error has kind, exit status, message and advice."""
    monkeypatch.setattr(pipeline, "realise", raising(VerifyError("bad wheel", advice="build again")))
    outcome = attempt(derivation, tools, house)
    assert isinstance(outcome, Failed)
    document = json.loads(json.dumps(outcome.to_json()))
    assert list(document) == FIELDS
    assert document["status"] == "failed"
    assert document["error"] == {"kind": "unknown", "exit": 8, "message": "bad wheel", "advice": "build again"}
    assert [document[name] for name in ("wheel", "sha256", "realisation")] == [None] * 3


def test_an_interruption_is_no_failure(
    tools: Tools, derivation: Derivation, house: Wheelhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status 130, and that the same command goes on."""
    monkeypatch.setattr(pipeline, "realise", raising(KeyboardInterrupt()))
    document = attempt(derivation, tools, house).to_json()
    assert document["status"] == "interrupted"
    assert document["error"] == {
        "kind": "interrupted",
        "exit": 130,
        "message": "interrupted while building demo",
        "advice": "Run the same command again: finished objects are reused.",
    }


def test_a_full_disk_has_a_name_wherever_it_is_met(
    tools: Tools, derivation: Derivation, house: Wheelhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every write of every stage says so itself; other trouble of the system is a report too."""
    monkeypatch.setattr(pipeline, "realise", raising(OSError(errno.ENOSPC, "No space left on device", "/cache/x")))
    document = attempt(derivation, tools, house).to_json()
    assert document["error"] == {
        "kind": "disk-full",
        "exit": 6,
        "message": "no room left on the disk of /cache/x",
        "advice": "Free space (`wheelmill gc`), or put the cache elsewhere with --cache DIR.",
    }
    monkeypatch.setattr(pipeline, "realise", raising(OSError(errno.EIO, "I/O error")))
    error = attempt(derivation, tools, house).to_json()["error"]
    assert error == {
        "kind": "unknown",
        "exit": 5,
        "message": f"{tools.runtime.directories.cache}: I/O error",
        "advice": "Look at this path and its file system, then run the same command again.",
    }
    monkeypatch.setattr(pipeline, "realise", raising(OSError(errno.EMFILE, "Too many open files")))
    assert attempt(derivation, tools, house).to_json()["error"]["exit"] == 6
    monkeypatch.setattr(pipeline, "realise", raising(BrokenPipeError()))
    with pytest.raises(BrokenPipeError):
        attempt(derivation, tools, house)


def test_a_cap_that_decides_is_the_source() -> None:
    """What the user said is named where it is smaller than what was found, and only there."""
    found = Limits(
        cpus=8.0,
        memory_bytes=40 * GIB,
        available_bytes=20 * GIB,
        pids=None,
        sources=dict.fromkeys(("cpus", "memory"), "x"),
    )
    tight = pipeline.capped(found, Bounds(cpus=4, memory=10 * GIB))
    assert (tight.cpus, tight.memory_bytes, tight.available_bytes) == (4, 10 * GIB, 10 * GIB)
    assert tight.sources == {"cpus": "--cpus", "memory": "--memory", "available": "--memory"}
    assert pipeline.capped(found, Bounds(cpus=16, memory=99 * GIB)) == found
    assert pipeline.capped(found, Bounds()) == found


def test_a_built_wheel_has_the_same_fields(derivation: Derivation) -> None:
    """What it took, from its record; links are no compiles."""
    compiles = CompileSummary(compiles=6, links=1, cache_hits=2, retries=1, cpu_seconds=400.04, peak_rss_bytes=GIB)
    record = BuildRecord(
        derivation=derivation,
        found=FOUND,
        wheel=WHEEL,
        sha256="f" * 64,
        size=10,
        content_digest="c" * 64,
        jobs=2,
        seconds=100.0,
        compiles=compiles,
        units=(),
        external={},
        findings=(),
    )
    outcome = Built(derivation=derivation, wheel=Path("/w") / WHEEL, sha256="f" * 64, record=record, seconds=100.04)
    document = json.loads(json.dumps(outcome.to_json()))
    assert list(document) == FIELDS
    assert document["realisation"] == record.to_json()["realisation"]
    picked = ("status", "seconds", "cpu_seconds", "peak_memory_bytes", "compiles", "cache_hits", "retries", "error")
    assert [document[name] for name in picked] == ["built", 100.0, 400.0, GIB, 5, 2, 1, None]


def test_what_is_there_is_not_built(tools: Tools, derivation: Derivation, house: Wheelhouse, tmp_path: Path) -> None:
    """The wheel of the same derivation, once its bytes are checked; an altered one is an error."""
    wheel = entered(house, derivation, tmp_path)
    outcome = attempt(derivation, tools, house)
    assert isinstance(outcome, Built)
    document = outcome.to_json()
    assert list(document) == FIELDS
    assert (document["status"], document["wheel"], document["realisation"]) == ("present", str(wheel), None)
    wheel.write_bytes(b"a Wheel")
    altered = attempt(derivation, tools, house)
    assert isinstance(altered, Failed)
    assert str(altered.error).startswith(f"{wheel} was altered after it was entered")


def test_a_wheel_that_another_process_finished_meanwhile_is_taken(
    tools: Tools, derivation: Derivation, house: Wheelhouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two terminals: the second looked before the first was done, and came to the workplace after."""

    def late(*given: object) -> object:
        entered(house, derivation, tmp_path)
        return occupied(*given)

    occupied = pipeline.occupied
    monkeypatch.setattr(pipeline, "occupied", late)
    outcome = realise(derivation, tools, house)
    assert outcome.record is None
    assert list(tools.runtime.directories.builds.iterdir()) == []


def test_a_taken_name_is_told_before_anything_is_looked_at(
    derivation: Derivation, tools: Tools, house: Wheelhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another derivation's wheel has the file name: known at once, not after hours of compiling."""
    house.root.mkdir(parents=True, exist_ok=True)
    wheel = house.root / derivation.wheel_name
    wheel.write_bytes(b"12345")
    record = {"drv": "another", "sha256": "0" * 64, "size": 5}
    wheel.with_name(f"{wheel.name}.build.json").write_text(json.dumps(record))
    monkeypatch.setattr(pipeline, "fit", raising(AssertionError("preflight was reached")))

    with pytest.raises(NameTakenError, match="is there already, built from other inputs"):
        realise(derivation, tools, house)
