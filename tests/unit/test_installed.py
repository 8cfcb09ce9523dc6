"""verify-stack: an installed set is the pinned one, or every difference is named."""

import json
import runpy
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from samples import write_catalog

from wheelmill._process import Completed
from wheelmill.arch import Arch, Gpu
from wheelmill.catalog import Catalog, load_catalog
from wheelmill.errors import CommandFailedError, EnvironmentUnfitError
from wheelmill.inspection import inspect_wheel
from wheelmill.installed import PROBE, Here, code_for, figures, is_build_of, same, verify_stack
from wheelmill.nvml import Driver
from wheelmill.preflight import Finding
from wheelmill.store import digest_of

PYTHON = Path("/serve/bin/python")
SET = {"torch": "2.11.0", "ninja": "1.13.0", "Demo": "1.0+cu130.torch2.11.0.sm100"}


class FakeEnvironment:
    """A Runner in whose place an environment's interpreter would answer."""

    def __init__(
        self, installed: Mapping[str, str], *, broken: str = "", answer: str | None = None, folder: str = "/serve/lib"
    ) -> None:
        self.installed, self.broken, self.answer, self.folder = installed, broken, answer, folder
        self.computed = "{}"
        self.calls: list[tuple[tuple[str, ...], Mapping[str, str]]] = []

    def run(self, argv: Sequence[str], *, env: Mapping[str, str], **_: object) -> Completed:
        self.calls.append((tuple(argv), env))
        if "_numerics.py" in argv[-2]:
            return Completed(argv=tuple(argv), returncode=0, stdout=self.computed, stderr="CUDA error", seconds=0.0)
        if self.answer is None and argv[-1] != PROBE:
            said: object = {
                name: {
                    "file": f"/serve/lib/{name}.py",
                    "error": "ImportError: undefined symbol" if name == self.broken else "",
                }
                for name in argv[argv.index("-c") + 2 :]
            }
        else:
            said = {name: [version, self.folder] for name, version in self.installed.items()}
        text = json.dumps(said) if self.answer is None else self.answer
        return Completed(argv=tuple(argv), returncode=0, stdout=text, stderr="", seconds=0.0)

    def stream(self, argv: Sequence[str], **_: object) -> Completed:
        raise AssertionError(f"nothing long runs: {argv}")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return load_catalog((write_catalog(tmp_path),))


def findings(catalog: Catalog, runner: FakeEnvironment, here: Here | None = None) -> tuple[Finding, ...]:
    stack = catalog.stack("cu130")
    modules = {"demo": ("demo", "demo_cuda")}
    return verify_stack(stack, catalog.run_lock(stack), python=PYTHON, modules=modules, runner=runner, here=here)


NOTHING_KNOWN = [
    ("glibc", "skip", "this machine's C library is not glibc"),
    ("driver", "skip", "no NVIDIA driver answers: it was not asked"),
    ("gpu", "skip", "no GPU here; device code is held against the stack's sm_100"),
]


def told(found: Sequence[Finding]) -> list[tuple[str, str, str]]:
    return [(finding.id, finding.status, finding.message) for finding in found]


def test_the_pinned_stack(catalog: Catalog) -> None:
    """Locked versions, packages for this CUDA and torch, imports with torch first; honest about the GPU."""
    runner = FakeEnvironment(SET)
    assert told(findings(catalog, runner)) == [
        ("locked-version", "ok", "all 2 locked distributions are there in their versions"),
        ("package", "ok", "demo 1.0+cu130.torch2.11.0.sm100"),
        *NOTHING_KNOWN,
        ("import", "ok", "torch, demo, demo_cuda imported"),
    ]
    assert [env["PATH"] for _, env in runner.calls] == ["/usr/bin:/bin"] * 3
    assert all(argv[:2] == (str(PYTHON), "-I") for argv, _ in runner.calls)


def test_every_difference_at_once(catalog: Catalog) -> None:
    """Another torch, a missing distribution, a package that is not there."""
    found = findings(catalog, FakeEnvironment({"torch": "2.10.0"}))
    assert told(found) == [
        ("locked-version", "error", "ninja is missing, locked is 1.13.0"),
        ("locked-version", "error", "torch 2.10.0, locked is 2.11.0"),
        ("package", "warn", "demo is not installed"),
        *NOTHING_KNOWN,
        ("import", "ok", "torch imported"),
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
    found = findings(catalog, FakeEnvironment(SET, broken="demo_cuda"))
    [finding] = [each for each in found if each.id == "import" and each.status == "error"]
    assert ("import", "ok", "torch imported") in told(found)
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
    assert json.loads(capsys.readouterr().out) == {"demo": ["1", str(tmp_path / "first")]}


WHEELS = runpy.run_path(str(Path(__file__).with_name("test_verify.py")))
BLACKWELL = Gpu(name="NVIDIA RTX PRO 6000 Blackwell Server Edition", capability=Arch.parse("12.0"))
B200 = Gpu(name="NVIDIA B200", capability=Arch.parse("10.0"))


def unpacked(folder: Path, wheel: Path) -> Path:
    """Install a wheel as an installer does."""
    site = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


@pytest.fixture
def serving(tmp_path: Path) -> tuple[FakeEnvironment, Path]:
    """Install the sample wheel, and give the environment and the wheel."""
    (tmp_path / "house").mkdir()
    wheel = WHEELS["wheel"](tmp_path / "house")
    site = unpacked(tmp_path, wheel)
    version = "1.0+cu130.torch2.11.0.sm100"
    return FakeEnvironment({**SET, "Demo": version}, folder=str(site)), wheel


def by_check(found: Sequence[Finding]) -> dict[str, list[tuple[str, str]]]:
    """Give status and message of each check."""
    said: dict[str, list[tuple[str, str]]] = {}
    for each in found:
        said.setdefault(each.id, []).append((each.status, each.message))
    return said


def test_installed_files_are_the_pinned_wheels(catalog: Catalog, serving: tuple[FakeEnvironment, Path]) -> None:
    """By RECORD, and by the wheel itself where it is at hand with the digest that was entered."""
    runner, wheel = serving
    here = Here(glibc=(2, 28), wheels=(wheel,), built={wheel.name: digest_of(wheel)})
    said = by_check(findings(catalog, runner, here))
    assert said["files"] == [("ok", "all 5 files of 1 distributions have the digests that were written down with them")]
    assert said["wheel-files"] == [("ok", "demo: what was installed is the pinned wheel, file by file")]
    assert said["glibc"] == [("ok", "glibc 2.28; the installed wheels need 2.28")]
    assert said["device-code"] == [("ok", "demo: 1 of 1 files have machine code for sm_100")]
    assert ("skip", "1 distributions have no pinned wheel at hand to compare with: installers keep none") in by_check(
        findings(catalog, runner, Here(glibc=(2, 28), wheels=(wheel,)))
    )["wheel-files"]


def test_files_that_were_changed_after_the_installation(
    catalog: Catalog, serving: tuple[FakeEnvironment, Path]
) -> None:
    """Changed, cut and missing files are named; one that was changed together with RECORD is no wheel's."""
    runner, wheel = serving
    site = Path(runner.folder)
    (site / "demo" / "__init__.py").write_text("import os")
    extension = next(site.glob("demo_cuda*.so"))
    extension.write_bytes(extension.read_bytes()[:-1] + b"x")
    [licence] = site.glob("*.dist-info/licenses/LICENSE")
    licence.unlink()
    here = Here(glibc=(2, 17), wheels=(wheel,), built={wheel.name: digest_of(wheel)})
    found = findings(catalog, runner, here)
    said = by_check(found)
    [(status, message)] = said["files"]
    assert status == "error"
    for text in ("demo/__init__.py has another size", f"{extension.name} was changed", "LICENSE is missing"):
        assert text in message
    assert said["glibc"] == [("error", "glibc 2.17 is too old for demo")]
    [record] = site.glob("*.dist-info/RECORD")
    record.write_text(record.read_text().replace("demo/__init__.py,sha256=4", "demo/__init__.py,sha256=5"))
    assert ("error", "demo: demo/__init__.py is not the wheel's") in by_check(findings(catalog, runner, here))[
        "wheel-files"
    ]


def test_a_driver_and_its_gpus(catalog: Catalog, serving: tuple[FakeEnvironment, Path]) -> None:
    """sm_100 code does not run on an RTX PRO 6000; what the GPU computes is compared, where there is one."""
    runner, _ = serving
    runner.installed = {**runner.installed, "flash-attn": "2.8.3"}
    runner.computed = json.dumps({"figures": [{"what": "forward", "ok": True, "error": 0.001, "bound": 0.004}]})
    old = Driver(version="570.1", cuda="12.8", gpus=(BLACKWELL,))
    said = by_check(findings(catalog, runner, Here(driver=old)))
    assert said["driver"] == [("error", "driver 570.1 runs CUDA 12.8; the stack is CUDA 13.0")]
    [(status, message)] = said["device-code"]
    assert status == "error"
    assert message.endswith("runs on NVIDIA RTX PRO 6000 Blackwell Server Edition")
    assert said["compute"] == [("ok", "flash-attn forward: largest error 0.001, allowed 0.004")]
    new = by_check(findings(catalog, runner, Here(driver=Driver(version="580.1", cuda="13.0", gpus=(B200,)))))
    assert new["driver"] == [("ok", "driver 580.1 runs CUDA 13.0; the stack is CUDA 13.0")]
    assert new["device-code"] == [("ok", "demo: 1 of 1 files have machine code for NVIDIA B200")]
    assert "gpu" not in new


def test_what_the_gpu_computes() -> None:
    """Too large an error, a pass that a variant leaves out, and a program that died are told apart."""
    text = json.dumps(
        {
            "figures": [
                {"what": "forward", "ok": False, "error": 1.0, "bound": 0.004},
                {"what": "backward", "ok": None, "why": "this variant has no backward"},
            ]
        }
    )
    assert told(tuple(figures("flash-attn", f"INFO x\n{text}\n", ""))) == [
        ("compute", "error", "flash-attn forward: largest error 1, allowed 0.004"),
        ("compute", "skip", "flash-attn backward: this variant has no backward"),
    ]
    [died] = figures("vllm", "", "a\nCUDA error: no kernel image is available")
    assert died.status == "error"
    assert died.message.endswith("| CUDA error: no kernel image is available")


def test_ptx_alone_is_compiled_at_the_first_use(tmp_path: Path) -> None:
    """It runs, and the user waits: a warning that names the files; what does not run beside what runs is one, too."""
    wheel = WHEELS["wheel"](tmp_path)
    files = list(inspect_wheel(wheel).elf)
    [finding] = code_for("demo", files, "B200", Arch.parse("10.0"))
    assert finding.status == "ok"
    [finding] = code_for("demo", files, "H100", Arch.parse("9.0"))
    assert finding.status == "error"


@pytest.mark.parametrize(
    ("more", "compilers", "expected"),
    [
        (
            {"triton": "3.6"},
            (),
            ("warn", "Triton finds no C compiler, which it needs for its launchers at the first use"),
        ),
        ({"triton": "3.6"}, ("/usr/bin/cc",), ("ok", "Triton compiles its launchers with /usr/bin/cc")),
        (
            {"flashinfer-python": "0.6.1", "flashinfer-cubin": "0.6.0"},
            (),
            ("warn", "flashinfer-python 0.6.1 without its flashinfer-cubin (0.6.0)"),
        ),
        (
            {"flashinfer-python": "0.6.1", "flashinfer-cubin": "0.6.1"},
            (),
            ("ok", "flashinfer-cubin 0.6.1 is there"),
        ),
    ],
)
def test_what_would_still_compile(
    catalog: Catalog, more: dict[str, str], compilers: tuple[str, ...], expected: tuple[str, str]
) -> None:
    """Triton without a compiler, flashinfer without its cubins."""
    said = by_check(findings(catalog, FakeEnvironment({**SET, **more}), Here(compilers=compilers)))
    assert said["run-time-compile"] == [expected]
