"""Build environments for real: uv makes them from a lock of small wheels."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from wheelmill._process import SystemRunner
from wheelmill._uv import Uv
from wheelmill.environment import BuildPaths, BuildSettings, build_variables, check_requirements, create
from wheelmill.errors import FetchError, HashMismatchError
from wheelmill.interpreter import Interpreter, find_interpreter
from wheelmill.lock import Lock, parse_lock
from wheelmill.places import index_settings
from wheelmill.runtime import Directories

pytestmark = [pytest.mark.integration, pytest.mark.network]

RUNNER = SystemRunner()
RELEASE = f"{sys.version_info[0]}.{sys.version_info[1]}"
SIX = "six==1.16.0 --hash=sha256:8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254\n"


@pytest.fixture
def interpreter() -> Interpreter:
    """Give the interpreter behind the one that runs the tests."""
    return find_interpreter(RELEASE, given=sys.executable, env=os.environ, runner=RUNNER)


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    """Give an empty cache."""
    return Directories(cache=tmp_path / "cache", wheelhouse=tmp_path / "wheelhouse")


@pytest.fixture
def uv() -> Uv:
    """Give uv with this user's settings."""
    return Uv(runner=RUNNER, env=dict(os.environ), index=index_settings(os.environ, Path.home()))


def six(text: str = SIX) -> Lock:
    """Give a lock of one small wheel."""
    return parse_lock(text, file="six.txt")


def test_a_made_environment_answers_for_its_requirements(
    interpreter: Interpreter, directories: Directories, uv: Uv
) -> None:
    """All that is missing is told at once, from inside."""
    environment = create(six(), interpreter, directories=directories, uv=uv)

    assert (environment.site_packages / "six.py").is_file()
    assert check_requirements(environment, ("six>=1.16", "wheel", "six<1", "ninja"), RUNNER) == (
        "wheel (missing)",
        "six<1 (found 1.16.0)",
        "ninja (missing)",
    )


def test_another_file_than_the_pinned_one_is_refused(
    interpreter: Interpreter, directories: Directories, uv: Uv
) -> None:
    """The words of uv become our error with both digests, and no environment is left."""
    with pytest.raises(HashMismatchError) as caught:
        create(six(SIX.replace(":8abb", ":9abb")), interpreter, directories=directories, uv=uv)

    assert caught.value.subject == "six==1.16.0"
    assert caught.value.actual.startswith("8abb")
    assert not [path for path in directories.environments.iterdir() if path.is_dir()]


def test_offline_says_which_file_is_not_in_the_cache(
    interpreter: Interpreter, directories: Directories, uv: Uv, tmp_path: Path
) -> None:
    """With an empty uv cache and no network the file is named, and the command that gets it."""
    cut = replace(uv, env={**uv.env, "UV_CACHE_DIR": str(tmp_path / "empty")}, offline=True)

    with pytest.raises(FetchError, match=r"^six==1\.16\.0 is not in the cache, and --offline forbids") as caught:
        create(six(), interpreter, directories=directories, uv=cut)

    assert caught.value.advice == "Run `wheelmill fetch` once while the network is there."
    assert caught.value.exit_status == 4


def test_a_killed_installation_leaves_nothing_that_is_used(
    interpreter: Interpreter, directories: Directories, uv: Uv
) -> None:
    """A folder as a kill leaves it is replaced, not completed."""
    environment = create(six(), interpreter, directories=directories, uv=uv)
    (environment.root / "wheelmill-complete.json").unlink()
    (environment.site_packages / "six.py").unlink()

    again = create(six(), interpreter, directories=directories, uv=uv)

    assert again == environment
    assert (again.site_packages / "six.py").is_file()


def test_a_stray_write_into_uvs_cache_is_noticed(
    interpreter: Interpreter, directories: Directories, uv: Uv, tmp_path: Path
) -> None:
    """Environments are hard links into uv's cache: what one changes there, the next one must not take."""
    own = replace(uv, env={**uv.env, "UV_CACHE_DIR": str(tmp_path / "uv"), "UV_LINK_MODE": "hardlink"})
    environment = create(six(), interpreter, directories=directories, uv=own)
    (environment.root / "wheelmill-complete.json").unlink()
    (environment.site_packages / "six.py").write_text("broken")

    with pytest.raises(HashMismatchError, match=r"^hash mismatch for six\.py of six 1\.16\.0") as caught:
        create(six(), interpreter, directories=directories, uv=own)

    assert "`uv cache clean six`" in caught.value.advice


def test_nothing_of_the_user_reaches_a_build(
    interpreter: Interpreter, directories: Directories, uv: Uv, tmp_path: Path
) -> None:
    """A program started with the variables of a build sees them and no others."""
    environment = create(six(), interpreter, directories=directories, uv=uv)
    paths = BuildPaths(shims=tmp_path, environment=environment.root, view=tmp_path, home=tmp_path, tmp=tmp_path)
    settings = BuildSettings(package={"X": "1"}, source_date_epoch=0, max_jobs=1, nvcc_threads=1, cccl=False)
    variables = build_variables(paths, settings)

    seen = subprocess.run(["/usr/bin/env"], env=variables, capture_output=True, text=True, check=True).stdout

    assert dict(line.split("=", 1) for line in seen.splitlines()) == variables
