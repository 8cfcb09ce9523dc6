"""Installing: what is run in which order, what is refused, and what a proof says."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from wheelmill._process import Completed
from wheelmill._uv import Uv, uv_binary
from wheelmill.errors import CommandFailedError, FetchError, VerifyError
from wheelmill.install import (
    Installation,
    PinnedWheel,
    offline_install,
)
from wheelmill.lock import Lock, parse_lock
from wheelmill.places import IndexSettings
from wheelmill.stack import Stack, parse_stack

WHEEL = "thing-1.0+cu128.torch2.9.1.sm100-1-cp312-cp312-manylinux_2_28_x86_64.whl"
LOCK = f"#   torch-2.9.1-cp312-cp312-manylinux_2_28_x86_64.whl\ntorch==2.9.1 \\\n    --hash=sha256:{'a' * 64}\n"


class FakeRunner:
    """Remembers what was run; each program's answer is chosen by a word of its command line."""

    def __init__(self, answers: Mapping[str, tuple[int, str, str]] | None = None) -> None:
        self.answers = answers or {}
        self.calls: list[tuple[str, ...]] = []
        self.envs: list[Mapping[str, str]] = []
        self.files: list[str] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,  # noqa: ARG002 - the protocol's
        check: bool = True,
    ) -> Completed:
        """Answer at once."""
        self.calls.append(tuple(argv))
        self.envs.append(env)
        if "-r" in argv:
            self.files.append(Path(argv[-1]).read_text())
        status, out, err = next((value for word, value in self.answers.items() if word in argv), (0, "", ""))
        if check and status:
            raise CommandFailedError(argv, status, tail=err.splitlines())
        return Completed(argv=tuple(argv), returncode=status, stdout=out, stderr=err, seconds=0.0)

    def stream(self, *args: object, **kwargs: object) -> Completed:
        """Not used here."""
        raise NotImplementedError


def imported(venv: Path, *names: str) -> str:
    return json.dumps({name: {"file": f"{venv}/lib/{name}.py", "error": ""} for name in names})


@pytest.fixture
def wheel(tmp_path: Path) -> PinnedWheel:
    path = tmp_path / WHEEL
    path.write_bytes(b"wheel")
    return PinnedWheel(path=path, sha256=hashlib.sha256(b"wheel").hexdigest())


@pytest.fixture
def lock() -> Lock:
    return parse_lock(LOCK, file="demo.run.txt")


@pytest.fixture
def installation(tmp_path: Path, wheel: PinnedWheel, lock: Lock) -> Installation:
    return Installation(
        interpreter=Path("/usr/bin/python3.12"), venv=tmp_path / "venv", lock=lock, wheels=(wheel,), modules=("thing",)
    )


def uv(runner: FakeRunner) -> Uv:
    return Uv(runner=runner, env={"HOME": "/h"}, index=IndexSettings(urls=()))


def answers(installation: Installation) -> dict[str, tuple[int, str, str]]:
    return {
        "list": (0, '[{"name": "torch", "version": "2.9.1"}]', ""),
        "-I": (0, imported(installation.venv, "torch", "thing"), "a warning\n"),
    }


def test_uv_gets_ways_to_files_but_no_choices() -> None:
    """Proxies, certificates and indexes pass; constraints and the like do not."""
    made = Uv(
        runner=FakeRunner(),
        env={
            "HOME": "/h",
            "https_proxy": "http://p",
            "UV_CONSTRAINT": "c",
            "UV_PRERELEASE": "allow",
            "PYTHONPATH": "x",
        },
        index=IndexSettings(urls=("https://a.test",)),
    )

    assert made.environment() == {
        "HOME": "/h",
        "https_proxy": "http://p",
        "UV_DEFAULT_INDEX": "https://a.test",
        "UV_NO_CONFIG": "1",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_SYSTEM_CERTS": "1",
        "NO_COLOR": "1",
    }


def test_a_wheel_is_asked_for_by_path_and_digest(wheel: PinnedWheel) -> None:
    """The plus of a local version is quoted in the URL."""
    assert wheel.requirement == (
        f"thing @ {wheel.path.parent.as_uri()}/{WHEEL.replace('+', '%2B')} --hash=sha256:{wheel.sha256}\n"
    )


def test_an_installation_is_offline_hashed_and_in_order(installation: Installation) -> None:
    """Clean environment, lock, wheels, agreement, imports: in this order, never with a network."""
    runner = FakeRunner(answers(installation))

    proof = offline_install(installation, uv=uv(runner))

    python = str(installation.python)
    install = (str(uv_binary()), "pip", "install", "--offline", "--no-deps", "--require-hashes", "--python", python)
    assert [call[: len(install)] for call in runner.calls[1:3]] == [install, install]
    assert runner.calls[0] == (
        str(uv_binary()), "venv", "--clear", "--no-project", "--python", "/usr/bin/python3.12", str(installation.venv)
    )  # fmt: skip
    assert "--no-build" in runner.calls[1]
    assert {"--no-cache", "--no-index"} <= set(runner.calls[2])
    assert runner.calls[3] == (str(uv_binary()), "pip", "check", "--python", python)
    assert runner.files == [LOCK, installation.wheels[0].requirement]
    assert proof.distributions == {"torch": "2.9.1"}
    assert list(proof.modules) == ["torch", "thing"]
    assert proof.talk == "a warning\n"


def test_imports_happen_in_a_cleared_environment_torch_first(installation: Installation) -> None:
    """No variable of the user's reaches the import, and extensions find torch's libraries loaded."""
    runner = FakeRunner(answers(installation))

    offline_install(installation, uv=uv(runner))

    position = next(index for index, call in enumerate(runner.calls) if "-I" in call)
    assert runner.calls[position][-2:] == ("torch", "thing")
    assert sorted(runner.envs[position]) == ["HOME", "LC_ALL", "PATH", "TMPDIR"]


def test_a_folder_of_links_replaces_every_index(installation: Installation, tmp_path: Path) -> None:
    """With the lock's files at hand nothing else is asked."""
    runner = FakeRunner(answers(installation))
    with_links = Installation(
        interpreter=installation.interpreter,
        venv=installation.venv,
        lock=installation.lock,
        wheels=(),
        find_links=tmp_path / "links",
    )

    offline_install(with_links, uv=uv(runner))

    assert runner.calls[1][-5:-2] == ("--no-index", "--find-links", str(tmp_path / "links"))


def test_another_wheel_is_refused_before_anything_runs(installation: Installation) -> None:
    """A wheel that changed under its name is not installed."""
    runner = FakeRunner()
    path = installation.wheels[0].path
    path.write_bytes(b"changed")

    with pytest.raises(VerifyError) as caught:
        offline_install(installation, uv=uv(runner))

    assert str(caught.value) == (
        f"{path} is not the pinned wheel\n  expected {installation.wheels[0].sha256}\n"
        f"  actual   {hashlib.sha256(b'changed').hexdigest()}"
    )
    assert runner.calls == []


def test_what_is_not_here_is_to_be_fetched(installation: Installation) -> None:
    """Offline without the lock's files: uv's words and the command that gets them."""
    runner = FakeRunner({"--no-build": (1, "", "error: torch was not found in the cache")})

    with pytest.raises(FetchError) as caught:
        offline_install(installation, uv=uv(runner))

    assert str(caught.value) == (
        "cannot install demo.run.txt without a network:\n  error: torch was not found in the cache"
    )
    assert caught.value.advice == "Run `wheelmill fetch` with a network, then try again."


def test_a_wheel_that_does_not_fit_is_named(installation: Installation) -> None:
    """A refusal of the installer is a finding about the wheel."""
    runner = FakeRunner({"--no-cache": (1, "", "error: no compatible tag")})

    with pytest.raises(VerifyError, match=r"^cannot install thing-1\.0\+cu128.*:\n  error: no compatible tag$"):
        offline_install(installation, uv=uv(runner))


def test_a_set_that_does_not_agree_is_refused(installation: Installation) -> None:
    """Requirements that nobody meets are told, with the key that mends it."""
    runner = FakeRunner({"check": (1, "", "Found 1 incompatibility\nthing requires einops")})

    with pytest.raises(VerifyError) as caught:
        offline_install(installation, uv=uv(runner))

    assert str(caught.value) == (
        "the installed set does not agree:\n  Found 1 incompatibility\n  thing requires einops"
    )
    assert caught.value.advice == "Add what is missing to `run-requires` of the stack, then `wheelmill lock STACK`."


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (
            {"file": "", "error": "Traceback:\n  File x\nImportError: libcudart.so.12"},
            "cannot import thing: ImportError: libcu",
        ),
        (
            {"file": "/elsewhere/thing.py", "error": ""},
            "thing was imported from /elsewhere/thing.py, which is not inside",
        ),
    ],
)
def test_a_failed_import_is_told(said: dict[str, str], problem: str, installation: Installation) -> None:
    """The cause comes first; a module from elsewhere proves nothing."""
    torch = {"file": f"{installation.venv}/torch.py", "error": ""}
    known = {**answers(installation), "-I": (0, json.dumps({"torch": torch, "thing": said}), "")}

    with pytest.raises(VerifyError) as caught:
        offline_install(installation, uv=uv(FakeRunner(known)))

    assert str(caught.value).startswith(problem)


def test_an_import_that_kills_the_interpreter_is_told(installation: Installation) -> None:
    """A crash is a finding too."""
    known = {**answers(installation), "-I": (-11, "", "Fatal Python error: Segmentation fault\n")}

    with pytest.raises(VerifyError) as caught:
        offline_install(installation, uv=uv(FakeRunner(known)))

    assert str(caught.value) == (
        "importing torch, thing ended the interpreter (status -11):\n  Fatal Python error: Segmentation fault"
    )


@pytest.fixture
def stack() -> Stack:
    values = {
        "name": "demo",
        "summary": "a stack",
        "python": "3.12",
        "cuda": "12.8",
        "toolkit": "cuda-12.8",
        "archs": ["10.0"],
        "platform": "manylinux_2_28",
        "cut-off": "2026-02-06T00:00:00Z",
        "build-lock": "b.txt",
        "run-lock": "r.txt",
        "packages": {"thing": "1.0"},
        "prebuilt": {"torch": {"version": "2.9.1", "file": "torch.whl", "sha256": "a" * 64}},
    }
    return parse_stack(values, file="demo.toml")
