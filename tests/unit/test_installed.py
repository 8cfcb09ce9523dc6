"""verify-stack: an installed set is the pinned one, or every difference is named."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from samples import write_catalog

from wheelmill._process import Completed
from wheelmill.catalog import Catalog, load_catalog
from wheelmill.errors import CommandFailedError, EnvironmentUnfitError
from wheelmill.installed import PROBE, is_build_of, same, verify_stack
from wheelmill.preflight import Finding

PYTHON = Path("/serve/bin/python")
SET = {"torch": "2.11.0", "ninja": "1.13.0", "Demo": "1.0+cu130.torch2.11.0.sm100"}


class FakeEnvironment:
    """A Runner in whose place an environment's interpreter would answer."""

    def __init__(self, installed: Mapping[str, str], *, broken: str = "", answer: str | None = None) -> None:
        self.installed, self.broken, self.answer = installed, broken, answer
        self.calls: list[tuple[tuple[str, ...], Mapping[str, str]]] = []

    def run(self, argv: Sequence[str], *, env: Mapping[str, str], **_: object) -> Completed:
        self.calls.append((tuple(argv), env))
        if self.answer is None and argv[-1] != PROBE:
            said: object = {
                name: {
                    "file": f"/serve/lib/{name}.py",
                    "error": "ImportError: undefined symbol" if name == self.broken else "",
                }
                for name in argv[argv.index("-c") + 2 :]
            }
        else:
            said = self.installed
        text = json.dumps(said) if self.answer is None else self.answer
        return Completed(argv=tuple(argv), returncode=0, stdout=text, stderr="", seconds=0.0)

    def stream(self, argv: Sequence[str], **_: object) -> Completed:
        raise AssertionError(f"nothing long runs: {argv}")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return load_catalog((write_catalog(tmp_path),))


def findings(catalog: Catalog, runner: FakeEnvironment) -> tuple[Finding, ...]:
    stack = catalog.stack("cu130")
    return verify_stack(
        stack, catalog.run_lock(stack), python=PYTHON, modules={"demo": ("demo", "demo_cuda")}, runner=runner
    )


def told(found: Sequence[Finding]) -> list[tuple[str, str, str]]:
    return [(finding.id, finding.status, finding.message) for finding in found]


def test_the_pinned_stack(catalog: Catalog) -> None:
    """Locked versions, packages for this CUDA and torch, imports with torch first; honest about the GPU."""
    runner = FakeEnvironment(SET)
    assert told(findings(catalog, runner)) == [
        ("locked-version", "ok", "all 2 locked distributions are there in their versions"),
        ("package", "ok", "demo 1.0+cu130.torch2.11.0.sm100"),
        ("import", "ok", "torch, demo, demo_cuda imported"),
        ("gpu", "skip", "device code and driver are not compared here yet"),
    ]
    assert [env["PATH"] for _, env in runner.calls] == ["/usr/bin:/bin"] * 2
    assert all(argv[:2] == (str(PYTHON), "-I") for argv, _ in runner.calls)


def test_every_difference_at_once(catalog: Catalog) -> None:
    """Another torch, a missing distribution, a package that is not there."""
    found = findings(catalog, FakeEnvironment({"torch": "2.10.0"}))
    assert told(found) == [
        ("locked-version", "error", "ninja is missing, locked is 1.13.0"),
        ("locked-version", "error", "torch 2.10.0, locked is 2.11.0"),
        ("package", "warn", "demo is not installed"),
        ("import", "ok", "torch imported"),
        ("gpu", "skip", "device code and driver are not compared here yet"),
    ]
    assert found[0].advice == "Install the stack: `wheelmill install --stack cu130 --into ENV`."
    assert found[2].advice == "`wheelmill build demo --stack cu130`, then `wheelmill install --stack cu130`."


@pytest.mark.parametrize(
    "version",
    ["1.0", "1.1+cu130.torch2.11.0.sm100", "1.0+cu128.torch2.11.0.sm100", "1.0+cu130.torch2.11.01", "1.0+cu130.torch2"],
)
def test_a_package_built_for_something_else(catalog: Catalog, version: str) -> None:
    """Upstream's own wheel, another release, CUDA or torch: an error that says what it is."""
    [finding] = [each for each in findings(catalog, FakeEnvironment({**SET, "Demo": version})) if each.id == "package"]
    assert finding.status == "error"
    assert finding.message == f"demo {version} is not 1.0 built for cu130.torch2.11.0"


def test_what_does_not_import(catalog: Catalog) -> None:
    """The cause, and a command to try by hand."""
    [finding] = [each for each in findings(catalog, FakeEnvironment(SET, broken="demo_cuda")) if each.id == "import"]
    assert finding.status == "error"
    assert finding.message.startswith("cannot import demo_cuda: ImportError: undefined symbol")
    assert finding.advice == "Try `/serve/bin/python -I -c 'import torch, demo_cuda'`."


@pytest.mark.parametrize(
    ("found", "pinned", "is_same"),
    [
        ("2.11.0", "2.11.0", True),
        ("2.11", "2.11.0", True),
        ("2.11.0+cu130", "2.11.0", True),
        ("2.11.0", "2.11.0+cu130", True),
        ("2.11.0+x", "2.11.0+x", True),
        ("2.11.0+cpu", "2.11.0", False),
        ("2.11.0+cu128", "2.11.0", False),
        ("2.11.1", "2.11.0", False),
        ("", "2.11.0", False),
        ("what", "2.11.0", False),
    ],
)
def test_torch_for_cpu_is_another_torch(found: str, pinned: str, is_same: bool) -> None:  # noqa: FBT001 - a table
    """The public version, and no label but this CUDA's."""
    assert same(found, pinned, labels=("cu130",)) == is_same


def test_labels_compare_by_whole_segments() -> None:
    """torch2.1.1 does not begin torch2.1.10."""
    assert is_build_of("1.0+cu130.torch2.1.1.sm90", "1.0", "cu130.torch2.1.1")
    assert is_build_of("1.0+cu130.torch2.1.1", "1.0", "cu130.torch2.1.1")
    assert not is_build_of("1.0+cu130.torch2.1.10.sm90", "1.0", "cu130.torch2.1.1")


@pytest.mark.parametrize("answer", ["", "Welcome\n", "{"])
def test_an_interpreter_that_does_not_answer(catalog: Catalog, answer: str) -> None:
    """What was given is no interpreter: its path, and what to give."""
    with pytest.raises(EnvironmentUnfitError) as caught:
        findings(catalog, FakeEnvironment({}, answer=answer))
    assert str(caught.value).startswith("/serve/bin/python does not answer: ")
    assert caught.value.advice == "Give the environment's interpreter: `--python ENV/bin/python`."


@pytest.mark.parametrize(
    "error", [CommandFailedError(["python"], 1), EnvironmentUnfitError("cannot run python: no such program")]
)
def test_an_interpreter_that_does_not_run(catalog: Catalog, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with the cause."""

    def fail(*_: object, **__: object) -> Completed:
        raise error

    runner = FakeEnvironment({})
    monkeypatch.setattr(runner, "run", fail)
    with pytest.raises(EnvironmentUnfitError) as caught:
        findings(catalog, runner)
    assert str(caught.value) == f"/serve/bin/python does not answer: {error}"


def test_the_probe_takes_the_first_and_passes_over_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An environment may hold a package twice, and folders that an interrupted removal left without metadata."""
    for folder, version in (("first", "1"), ("second", "2")):
        info = tmp_path / folder / "demo-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n")
    (tmp_path / "first" / "~emo-1.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    exec(PROBE, {})  # noqa: S102 - the program under test
    assert json.loads(capsys.readouterr().out) == {"demo": "1"}
