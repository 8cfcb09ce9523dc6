"""The build environment: made once and whole, checked from inside, and its variables closed."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from wheelmill._process import Completed
from wheelmill._uv import Uv, check_records
from wheelmill.environment import (
    COMPLETE,
    BuildEnvironment,
    BuildPaths,
    BuildSettings,
    build_variables,
    check_requirements,
    create,
    demand,
    environment_key,
)
from wheelmill.errors import CommandFailedError, EnvironmentUnfitError, FetchError, HashMismatchError, ResourcesError
from wheelmill.interpreter import Interpreter
from wheelmill.lock import parse_lock
from wheelmill.places import IndexSettings
from wheelmill.runtime import Directories

LOCK = parse_lock(f"six==1.16.0 --hash=sha256:{'8' * 64}\n", file="recipes/stacks/x.build.txt")
PYTHON = Interpreter(
    path=Path("/py/bin/python3.12"),
    version="3.12.1",
    implementation="cpython",
    abi="cp312",
    platform="linux-x86_64",
    include_dir=Path("/py/include"),
    has_headers=True,
)
MISMATCH = f"""\
error: Failed to download `six==1.16.0`
  cause: Hash mismatch for `six==1.16.0`

         Expected:
           sha256:{"9" * 64}

         Computed:
           sha256:{"8" * 64}
"""
NOT_CACHED = """\
error: No solution found when resolving dependencies
  cause: Because six was not found in the cache and you require six==1.16.0, we can conclude that your
         requirements are unsatisfiable.
"""
NO_FILE = """\
error: Failed to download `idna==3.10`
  cause: Network connectivity is disabled, but the requested data wasn't found in the cache: x/idna-3.10.whl
"""


class FakeUv:
    """A Runner in whose place uv would make and fill virtual environments."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.calls: list[tuple[tuple[str, ...], Mapping[str, str]]] = []
        self.said: dict[str, object] = {}
        self.statuses: dict[str, int] = {}

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, check: bool = True
    ) -> Completed:
        """Answer the requirement probe."""
        assert cwd is None
        self.calls.append((tuple(argv), env))
        status = self.statuses.get(Path(argv[0]).name, 0)
        assert not (status and check)
        return Completed(argv=tuple(argv), returncode=status, stdout=json.dumps(self.said), stderr="", seconds=0.0)

    def stream(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: Path | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> Completed:
        """Make the folder, or fail at the install."""
        assert cwd is None
        self.calls.append((tuple(argv), env))
        if argv[1] == "venv":
            Path(argv[-1]).mkdir(parents=True)
        elif self.fails and on_line:
            for line in self.fails.splitlines():
                on_line(line)
            raise CommandFailedError(argv, 1, log=log)
        return Completed(argv=tuple(argv), returncode=0, stdout="", stderr="", seconds=0.0)


def uv_of(runner: FakeUv, *, offline: bool = False) -> Uv:
    """Give a uv for a user with settings that must and settings that must not get through."""
    env = {"HOME": "/home/u", "UV_PRERELEASE": "allow", "UV_CACHE_DIR": "/c", "https_proxy": "p", "PIP_TARGET": "/t"}
    index = IndexSettings(urls=("https://mirror.invalid/simple",))
    return Uv(runner=runner, env=env, index=index, offline=offline)


def directories_of(root: Path) -> Directories:
    """Give folders below `root`."""
    return Directories(cache=root / "cache", wheelhouse=root / "wheelhouse")


def test_an_environment_is_made_once(tmp_path: Path) -> None:
    """The second call finds the complete mark and runs nothing."""
    runner = FakeUv()

    first = create(LOCK, PYTHON, directories=directories_of(tmp_path), uv=uv_of(runner))
    made = len(runner.calls)
    second = create(LOCK, PYTHON, directories=directories_of(tmp_path), uv=uv_of(runner))

    assert first == second
    assert (made, len(runner.calls)) == (2, 2)
    assert (first.root / COMPLETE).is_file()
    assert (first.root / "requirements.txt").read_text() == LOCK.text
    assert first.site_packages == first.root / "lib/python3.12/site-packages"


def test_uv_gets_exactly_the_lock_and_where_from(tmp_path: Path) -> None:
    """Hashes are required, nothing is resolved or built, and only settings of *where* get through."""
    runner = FakeUv()
    create(LOCK, PYTHON, directories=directories_of(tmp_path), uv=uv_of(runner))

    (venv, _), (install, env) = runner.calls

    assert venv[1] == "venv"
    assert str(PYTHON.path) in venv
    assert {"--no-deps", "--require-hashes", "--only-binary"} <= set(install)
    assert "--offline" not in install
    assert (env["UV_CACHE_DIR"], env["https_proxy"]) == ("/c", "p")
    assert env["UV_DEFAULT_INDEX"] == "https://mirror.invalid/simple"
    assert not {"UV_PRERELEASE", "PIP_TARGET"} & set(env)


def test_leftovers_of_a_kill_are_removed(tmp_path: Path) -> None:
    """A folder without the complete mark is made again from nothing."""
    directories = directories_of(tmp_path)
    root = directories.environments / environment_key(LOCK, PYTHON)
    (root / "lib").mkdir(parents=True)

    create(LOCK, PYTHON, directories=directories, uv=uv_of(FakeUv()))

    assert not (root / "lib").exists()


def test_lock_and_interpreter_name_the_environment() -> None:
    """Layout and comments of the lock do not count, its pins and the interpreter do."""
    same = parse_lock(f"# why\nsix==1.16.0 \\\n  --hash=sha256:{'8' * 64}\n", file="y")
    other = parse_lock(f"six==1.17.0 --hash=sha256:{'8' * 64}\n", file="y")

    assert environment_key(same, PYTHON) == environment_key(LOCK, PYTHON)
    assert environment_key(other, PYTHON) != environment_key(LOCK, PYTHON)


@pytest.mark.parametrize(
    ("said", "offline", "kind", "message"),
    [
        (
            MISMATCH,
            False,
            HashMismatchError,
            "hash mismatch for six==1.16.0 (pinned in recipes/stacks/x.build.txt)\n"
            f"  expected {'9' * 64}\n  actual   {'8' * 64}",
        ),
        (
            NOT_CACHED,
            True,
            FetchError,
            "six==1.16.0 is not in the cache, and --offline forbids to get it "
            "(pinned in recipes/stacks/x.build.txt)\n  log: LOG",
        ),
        (
            NO_FILE,
            True,
            FetchError,
            "idna==3.10 is not in the cache, and --offline forbids to get it "
            "(pinned in recipes/stacks/x.build.txt)\n  log: LOG",
        ),
        (
            "error: x\n  No space left on device (os error 28)",
            False,
            ResourcesError,
            "the disk is full: recipes/stacks/x.build.txt could not be installed\n  log: LOG",
        ),
        (
            "error: connection refused",
            False,
            FetchError,
            "uv could not install recipes/stacks/x.build.txt (status 1)\n  | error: connection refused\n  log: LOG",
        ),
    ],
)
def test_failures_of_uv_are_told_in_our_words(
    tmp_path: Path, said: str, *, offline: bool, kind: type[Exception], message: str
) -> None:
    """The error names the file, and nothing half-made stays."""
    directories = directories_of(tmp_path)
    root = directories.environments / environment_key(LOCK, PYTHON)

    with pytest.raises(kind) as caught:
        create(LOCK, PYTHON, directories=directories, uv=uv_of(FakeUv(said), offline=offline))

    assert type(caught.value) is kind
    assert str(caught.value) == message.replace("LOG", str(root.with_suffix(".log")))
    assert not root.exists()


@pytest.mark.parametrize(
    ("content", "actual"),
    [(b"broken", "sha256=9SZ5XJU5nOonwFXIQsPWqwGO0PpPZvcBwoqyLewoI3s"), (None, "no such file or directory")],
)
def test_a_changed_file_in_uvs_cache_is_noticed(tmp_path: Path, content: bytes | None, actual: str) -> None:
    """Every installed file is held against its RECORD, and the advice names the cache entry to drop."""
    (tmp_path / "my_six-1.16.0.dist-info").mkdir()
    good = "sha256=" + "A" * 43
    (tmp_path / "my_six-1.16.0.dist-info/RECORD").write_text(f"six.py,{good},1\nmy_six-1.16.0.dist-info/RECORD,,\n")
    if content is not None:
        (tmp_path / "six.py").write_bytes(content)

    with pytest.raises(HashMismatchError) as caught:
        check_records(tmp_path)

    assert str(caught.value) == (f"hash mismatch for six.py of my_six 1.16.0\n  expected {good}\n  actual   {actual}")
    assert caught.value.advice == "uv's cache holds a changed file: run `uv cache clean my-six`, then again."


# requirements ----------------------------------------------------------------------------------------


def environment_at(root: Path) -> BuildEnvironment:
    """Give an environment that has a ninja program."""
    environment = BuildEnvironment.at(root, "3.12")
    environment.bin.mkdir()
    (environment.bin / "ninja").touch(mode=0o755)
    return environment


def test_all_missing_requirements_are_listed_at_once(tmp_path: Path) -> None:
    """Missing, too old, broken and without its program: one answer names them all."""
    runner = FakeUv()
    runner.said = {
        "torch": {"version": "2.9.1", "broken": []},
        "wheel": None,
        "psutil": {"version": "7.2.2", "broken": ["psutil"]},
        "setuptools": {"version": "60.0", "broken": []},
        "ninja": {"version": "1.13.0", "broken": []},
        "cmake": {"version": "4.0.0", "broken": []},
    }
    wanted = ("torch==2.9.1", "wheel", "psutil", "setuptools>=77", "ninja", "cmake>=3.26")

    assert check_requirements(environment_at(tmp_path), wanted, runner) == (
        "wheel (missing)",
        "psutil (found 7.2.2, but `import psutil` would fail)",
        "setuptools>=77 (found 60.0)",
        f"cmake>=3.26 (found 4.0.0, but not its program {tmp_path}/bin/cmake)",
    )


def test_a_program_that_does_not_run_is_not_met(tmp_path: Path) -> None:
    """A ninja that ends with 1 is as good as none: torch would compile one file at a time."""
    runner = FakeUv()
    runner.said = {"ninja": {"version": "1.13.0", "broken": []}}
    runner.statuses = {"ninja": 1}

    assert check_requirements(environment_at(tmp_path), ("ninja>=1.11",), runner) == (
        f"ninja>=1.11 ({tmp_path}/bin/ninja ends with status 1)",
    )


def test_unmet_requirements_stop_the_build_with_one_error(tmp_path: Path) -> None:
    """The error lists them, and says how they get into the lock."""
    runner = FakeUv()
    runner.said = {"wheel": None, "ninja": {"version": "1.13.0", "broken": []}}

    with pytest.raises(EnvironmentUnfitError) as caught:
        demand(environment_at(tmp_path), ("wheel", "ninja"), runner, lock=LOCK)

    assert str(caught.value) == (
        "the build environment lacks 1 of 2 build requirements\n"
        "  wheel (missing)\n"
        f"  environment: {tmp_path}\n"
        "  lock: recipes/stacks/x.build.txt"
    )
    assert caught.value.advice == "Add them to the stack's `build-requires` and run `wheelmill lock STACK`."


# variables -------------------------------------------------------------------------------------------


PATHS = BuildPaths(
    shims=Path("/wheelmill/shims/bin"),
    environment=Path("/wheelmill/env"),
    view=Path("/wheelmill/toolkit"),
    home=Path("/wheelmill/home"),
    tmp=Path("/wheelmill/tmp"),
)


def settings(**package: str) -> BuildSettings:
    """Give settings with these variables of the package."""
    return BuildSettings(package=package, source_date_epoch=1700000000, max_jobs=3, nvcc_threads=1, cccl=True)


def test_the_variables_of_a_build_are_these() -> None:
    """The whole environment is a value: a variable more or less is a change of the build."""
    assert build_variables(PATHS, settings(FLASH_ATTN_CUDA_ARCHS="100")) == {
        "CMAKE_BUILD_PARALLEL_LEVEL": "3",
        "CPLUS_INCLUDE_PATH": "/wheelmill/toolkit/include/cccl",
        "CUDACXX": "/wheelmill/toolkit/bin/nvcc",
        "CUDAToolkit_ROOT": "/wheelmill/toolkit",
        "CUDA_HOME": "/wheelmill/toolkit",
        "CUDA_PATH": "/wheelmill/toolkit",
        "FLASH_ATTN_CUDA_ARCHS": "100",
        "HOME": "/wheelmill/home",
        "LC_ALL": "C.UTF-8",
        "LIBRARY_PATH": "/wheelmill/toolkit/lib64/stubs",
        "MAX_JOBS": "3",
        "NVCC_THREADS": "1",
        "PATH": "/wheelmill/shims/bin:/wheelmill/env/bin:/wheelmill/toolkit/bin:/usr/bin:/bin",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INDEX": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "SOURCE_DATE_EPOCH": "1700000000",
        "TMPDIR": "/wheelmill/tmp",
        "TORCH_DONT_CHECK_COMPILER_ABI": "1",
        "TZ": "UTC",
        "UV_NO_CONFIG": "1",
        "UV_OFFLINE": "1",
        "VLLM_DISABLE_SCCACHE": "1",
    }


def test_a_package_cannot_replace_our_variables() -> None:
    """Whatever a recipe says, path and toolkit are ours."""
    assert build_variables(PATHS, settings(PATH="/x", CUDA_HOME="/y")) == build_variables(PATHS, settings())
