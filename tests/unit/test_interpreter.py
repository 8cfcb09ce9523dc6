"""Finding the CPython that a stack is for, with fake interpreters in a fake file tree."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from wheelmill._process import Completed
from wheelmill.errors import EnvironmentUnfitError
from wheelmill.interpreter import candidates, find_interpreter, newest_first


class Pythons:
    """A Runner whose interpreters say what the test wrote down; other programs fail like a pyenv shim."""

    def __init__(self) -> None:
        self.said: dict[str, dict[str, object]] = {}
        self.environments: list[Mapping[str, str]] = []

    def add(self, path: Path, version: str = "3.12.1", **other: object) -> Path:
        """Place an interpreter in the tree."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o755)
        major, minor = version.split(".")[:2]
        self.said[str(path)] = {
            "path": str(path),
            "version": version,
            "implementation": "cpython",
            "abi": f"cp{major}{minor}",
            "platform": "linux-x86_64",
            "include_dir": f"/include/python{major}.{minor}",
            "has_headers": True,
            "flags": "f" * 64,
        } | other
        return path

    def shim(self, path: Path) -> Path:
        """Place a program that fails."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o755)
        return path

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,  # noqa: ARG002
        check: bool = True,  # noqa: ARG002
    ) -> Completed:
        """Answer the probe."""
        self.environments.append(env)
        said = self.said.get(argv[0])
        code, out, err = (0, json.dumps(said), "") if said else (127, "", "pyenv: python3.12: command not found\n")
        return Completed(argv=tuple(argv), returncode=code, stdout=out, stderr=err, seconds=0.0)

    def stream(self, *args: object, **kwargs: object) -> Completed:  # noqa: ARG002
        """Fail: nothing here runs for long."""
        raise AssertionError


@pytest.fixture
def pythons() -> Pythons:
    """Give a machine without interpreters."""
    return Pythons()


def env_of(root: Path) -> dict[str, str]:
    """Give a user's environment on a machine whose root is `root`."""
    return {"HOME": str(root / "home"), "PATH": f"{root}/shims:{root}/bin", "SECRET": "x"}


def test_a_failing_shim_is_skipped(tmp_path: Path, pythons: Pythons) -> None:
    """A pyenv shim first on PATH that leads nowhere does not hide the interpreter behind it."""
    pythons.shim(tmp_path / "shims/python3.12")
    real = pythons.add(tmp_path / "home/.pyenv/versions/3.12.1/bin/python3.12")

    found = find_interpreter("3.12", given=None, env=env_of(tmp_path), runner=pythons, root=tmp_path)

    assert found.path == real
    assert (found.abi, found.release) == ("cp312", "3.12")
    assert all("SECRET" not in env for env in pythons.environments)


@pytest.mark.parametrize(
    "place",
    [
        "bin/python3.12",
        "home/.pyenv/versions/3.12.11/bin/python3.12",
        "opt/python/cp312-cp312/bin/python3.12",
        "home/.local/share/uv/python/cpython-3.12.4-linux-x86_64-gnu/bin/python3.12",
        "usr/bin/python3.12",
        "usr/local/bin/python3.12",
    ],
)
def test_every_usual_place_is_looked_at(tmp_path: Path, pythons: Pythons, place: str) -> None:
    """PATH, pyenv, manylinux images, uv and the system's folders all serve."""
    real = pythons.add(tmp_path / place)

    assert find_interpreter("3.12", given=None, env=env_of(tmp_path), runner=pythons, root=tmp_path).path == real


def test_the_newest_patch_release_comes_first(tmp_path: Path) -> None:
    """3.12.10 is newer than 3.12.9, though not in the alphabet."""
    for name in ("3.12.9", "3.12.10", "3.12.1", "3.13.0"):
        (tmp_path / name).mkdir()

    assert [path.name for path in newest_first(tmp_path, "3.12.*")] == ["3.12.10", "3.12.9", "3.12.1"]


def test_one_real_file_is_asked_once(tmp_path: Path, pythons: Pythons) -> None:
    """Two links to one interpreter are one candidate."""
    real = pythons.add(tmp_path / "bin/python3.12")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/python3.12").symlink_to(real)

    assert list(candidates("3.12", env_of(tmp_path), tmp_path)) == [real]


def test_headers_decide_between_two(tmp_path: Path, pythons: Pythons) -> None:
    """An interpreter without Python.h gives way to a later one that has it."""
    pythons.add(tmp_path / "bin/python3.12", has_headers=False)
    whole = pythons.add(tmp_path / "usr/bin/python3.12")

    assert find_interpreter("3.12", given=None, env=env_of(tmp_path), runner=pythons, root=tmp_path).path == whole


def test_missing_headers_name_the_package(tmp_path: Path, pythons: Pythons) -> None:
    """Without headers anywhere the error says which package brings them."""
    python = pythons.add(tmp_path / "usr/bin/python3.12", has_headers=False)

    with pytest.raises(EnvironmentUnfitError) as caught:
        find_interpreter("3.12", given=None, env=env_of(tmp_path), runner=pythons, root=tmp_path)

    assert str(caught.value) == (
        f"CPython 3.12.1 at {python} has no C headers: /include/python3.12/Python.h is missing"
    )
    assert caught.value.advice == (
        "Install python3.12-dev (apt) or python3.12-devel (dnf), or use another one: "
        "`uv python install 3.12`, `--python PATH`."
    )


def test_nothing_found_lists_what_was_looked_at(tmp_path: Path, pythons: Pythons) -> None:
    """The error carries every place, every find and the ways on."""
    shim = pythons.shim(tmp_path / "shims/python3.12")
    pypy = pythons.add(tmp_path / "bin/python3.12", implementation="pypy")

    with pytest.raises(EnvironmentUnfitError) as caught:
        find_interpreter("3.12", given=None, env=env_of(tmp_path), runner=pythons, root=tmp_path)

    assert str(caught.value) == (
        "no CPython 3.12 on this machine\n"
        "  looked for python3.12 on PATH, in pyenv's versions, /opt/python/cp312-cp312, uv's interpreters, "
        "/usr/bin and /usr/local/bin\n"
        f"  found {shim}: does not run: pyenv: python3.12: command not found\n"
        f"  found {pypy}: pypy 3.12.1"
    )
    assert "`uv python install 3.12`" in caught.value.advice
    assert caught.value.exit_status == 5


def test_an_empty_machine_says_so(tmp_path: Path, pythons: Pythons) -> None:
    """Where nothing has the name, the message says that too."""
    with pytest.raises(EnvironmentUnfitError, match="found nothing of that name"):
        find_interpreter("3.12", given=None, env=env_of(tmp_path), runner=pythons, root=tmp_path)


@pytest.mark.parametrize(
    ("version", "other", "said"),
    [
        ("3.11.7", {}, "is CPython 3.11.7; the stack is for CPython 3.12"),
        ("3.12.1", {"abi": "cp312t"}, "is CPython 3.12.1 with ABI cp312t; the stack is for CPython 3.12"),
        ("3.12.1", {"implementation": "pypy"}, "is pypy 3.12.1; the stack is for CPython 3.12"),
    ],
)
def test_a_given_interpreter_must_fit(
    tmp_path: Path, pythons: Pythons, version: str, other: dict[str, object], said: str
) -> None:
    """--python is never replaced by something else in silence."""
    python = pythons.add(tmp_path / "mine/python", version, **other)
    pythons.add(tmp_path / "bin/python3.12")

    with pytest.raises(EnvironmentUnfitError) as caught:
        find_interpreter("3.12", given=python, env=env_of(tmp_path), runner=pythons, root=tmp_path)

    assert str(caught.value) == f"--python {python}: {said}"


def test_a_given_name_is_looked_up_on_path(tmp_path: Path, pythons: Pythons) -> None:
    """A bare name means PATH; one that is not there is an error."""
    python = pythons.add(tmp_path / "bin/mypython")

    found = find_interpreter("3.12", given="mypython", env=env_of(tmp_path), runner=pythons, root=tmp_path)

    assert found.path == python
    with pytest.raises(EnvironmentUnfitError, match="--python other: no such program on PATH"):
        find_interpreter("3.12", given="other", env=env_of(tmp_path), runner=pythons, root=tmp_path)


@pytest.mark.parametrize("given", ["3.12", "python3.12"])
def test_a_given_release_is_the_ordinary_search(tmp_path: Path, pythons: Pythons, given: str) -> None:
    """`--python 3.12` repeats what the stack says and survives a broken shim."""
    pythons.shim(tmp_path / "shims/python3.12")
    real = pythons.add(tmp_path / "usr/bin/python3.12")

    assert find_interpreter("3.12", given=given, env=env_of(tmp_path), runner=pythons, root=tmp_path).path == real


def test_a_given_program_that_is_no_python(tmp_path: Path, pythons: Pythons) -> None:
    """Anything that does not answer the probe is named."""
    other = pythons.shim(tmp_path / "ls")

    with pytest.raises(EnvironmentUnfitError) as caught:
        find_interpreter("3.12", given=other, env=env_of(tmp_path), runner=pythons, root=tmp_path)

    assert str(caught.value) == f"--python {other}: does not run: pyenv: python3.12: command not found"
