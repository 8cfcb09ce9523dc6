"""Looking before building: what is found, and what stops a build."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from wheelmill._process import Completed
from wheelmill.arch import Arch
from wheelmill.environment import COMPLETE
from wheelmill.errors import EnvironmentUnfitError, ResourcesError, ToolkitError
from wheelmill.limits import Limits
from wheelmill.lock import parse_lock
from wheelmill.preflight import (
    GIB,
    Finding,
    Situation,
    Space,
    checks,
    compiler_findings,
    environment_findings,
    folder_findings,
    memory_findings,
    require,
    space_findings,
    variable_findings,
)
from wheelmill.runtime import Directories
from wheelmill.stack import Prebuilt, Stack
from wheelmill.toolkit import Machine, Need
from wheelmill.toolkit_recipe import ToolkitRecipe, WheelProvider

UNFIT = EnvironmentUnfitError("no CPython")


class Compilers:
    """A Runner that knows the versions of compilers and of uv."""

    def __init__(self, **versions: str) -> None:
        self.versions = versions

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, check: bool = True
    ) -> Completed:
        """Answer -dumpfullversion and --version."""
        assert cwd is None
        assert env["LC_ALL"].startswith("C")
        name = Path(argv[0]).name.replace("+", "x")
        said = self.versions.get(name, "1.0")
        bad = said.startswith("cannot")
        assert not (bad and check)
        out, err = ("", said) if bad else (said, "")
        return Completed(argv=tuple(argv), returncode=int(bad), stdout=out, stderr=err, seconds=0.0)

    def stream(self, *args: object, **kwargs: object) -> Completed:
        """Fail: nothing here runs for long."""
        raise AssertionError((args, kwargs))


STACK = Stack(
    name="cu130",
    file="recipes/stacks/cu130.toml",
    summary="",
    python="3.12",
    cuda="13.0",
    toolkit="cuda-13.0",
    archs=(Arch.parse("10.0"),),
    platform="manylinux_2_28",
    cut_off="",
    build_lock="",
    run_lock="",
    packages={},
    prebuilt={"torch": Prebuilt(name="torch", version="2.11.0", file="torch.whl", sha256="0" * 64)},
)
BUILD_LOCK = parse_lock(f"ninja==1.13.0 --hash=sha256:{'b' * 64}\n", file="cu130.build.txt")
NEED = Need(
    recipe=ToolkitRecipe(
        name="cuda-13.0",
        file="x",
        cuda="13.0",
        accepts=("13.0",),
        headers=(),
        libraries=(),
        gcc_below=16,
        wheels=WheelProvider(requirements="x", root="nvidia/cu13"),
        redistributable=None,
        needs_license="",
    ),
    lock=parse_lock(f"nvidia-cuda-nvcc==13.0.88 --hash=sha256:{'a' * 64}\n", file="cuda-13.0.txt"),
    build_lock=BUILD_LOCK,
    stack=STACK,
    archs=STACK.archs,
)


def situation_at(root: Path, space: dict[str, Space] | None = None, **versions: str) -> Situation:
    """Give a machine below `root` with these compilers."""
    (root / "bin").mkdir(exist_ok=True)
    for name in versions:
        (root / "bin" / name.replace("x", "+")).touch(mode=0o755)
    machine = Machine(
        env={"HOME": str(root), "PATH": str(root / "bin"), "TMPDIR": str(root / "tmp")},
        runner=Compilers(**versions),
        directories=Directories(cache=root / "cache", wheelhouse=root / "wheelhouse"),
        cwd=root,
        roots=(),
    )
    spaces = space or {}
    return Situation(
        need=NEED,
        build_lock=BUILD_LOCK,
        machine=machine,
        space=lambda path: spaces.get(path.name, Space(device=1, free=100 * GIB)),
    )


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"gcc": "12.2.0", "gxx": "12.2.0"}, ("ok gcc 12.2.0", "ok g++ 12.2.0")),
        ({"gcc": "12.2.0"}, ("warn gcc is 12.2.0, g++ is missing", "error g++ is missing")),
        (
            {"gcc": "16.1.0", "gxx": "16.1.0"},
            (
                "error gcc 16.1.0 is newer than CUDA 13.0 takes (below 16)",
                "error g++ 16.1.0 is newer than CUDA 13.0 takes (below 16)",
            ),
        ),
        (
            {"gcc": "8.5.0", "gxx": "8.5.0"},
            (
                "error gcc 8.5.0 is older than torch's headers need (9)",
                "error g++ 8.5.0 is older than torch's headers need (9)",
            ),
        ),
        (
            {"gcc": "cannot execute", "gxx": "13.1.0"},
            ("error gcc does not run: cannot execute", "warn gcc is cannot execute, g++ is 13.1.0"),
        ),
    ],
)
def test_the_host_compiler_is_held_against_the_toolkit(
    tmp_path: Path, versions: dict[str, str], said: tuple[str, ...]
) -> None:
    """Missing, broken, too new, too old and mixed compilers are told apart."""
    found = compiler_findings(situation_at(tmp_path, None, **versions))

    assert tuple(f"{finding.status} {finding.message}" for finding in found) == said


def test_space_is_counted_per_file_system(tmp_path: Path) -> None:
    """Folders that share a disk share its space; the environment counts only until it is made."""
    spaces = {
        "cache": Space(device=1, free=16 * GIB),
        "wheelhouse": Space(device=1, free=16 * GIB),
        "tmp": Space(device=2, free=2 * GIB),
    }

    one, two = space_findings(situation_at(tmp_path, spaces), UNFIT)
    (tight, _) = space_findings(situation_at(tmp_path, spaces | {"cache": Space(device=1, free=15 * GIB)}), UNFIT)

    assert one.message == (
        f"cache ({tmp_path}/cache) and wheelhouse ({tmp_path}/wheelhouse): 16.0 GiB free, a build needs about 16"
    )
    assert (one.status, two.status, tight.status) == ("ok", "ok", "error")


def test_ninja_is_looked_for_where_it_will_be_used(tmp_path: Path) -> None:
    """In the made environment, else in the lock."""
    situation = situation_at(tmp_path)
    (promised,) = environment_findings(situation, UNFIT)
    (absent,) = environment_findings(replace(situation, build_lock=replace(BUILD_LOCK, pins={})), UNFIT)

    assert (promised.status, absent.status) == ("skip", "warn")
    assert absent.message == "cu130.build.txt has no ninja: torch would compile one file at a time"
    assert COMPLETE


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """A file in the way is named."""
    (tmp_path / "cache").touch()

    found = {finding.subject: finding for finding in folder_findings(situation_at(tmp_path))}

    assert found["cache"].message == f"cache {tmp_path}/cache cannot be made: {tmp_path}/cache is a file"
    assert [found[name].status for name in ("cache", "wheelhouse", "TMPDIR")] == ["error", "ok", "ok"]


def test_variables_that_steer_compilers_are_told() -> None:
    """They do not reach the build, which the user should know; empty and harmless ones are left alone."""
    env = {"NVCC_APPEND_FLAGS": "-x", "TORCH_CUDA_ARCH_LIST": "9.0", "CFLAGS": "", "HOME": "/"}

    assert [finding.subject for finding in variable_findings(env)] == ["NVCC_APPEND_FLAGS", "TORCH_CUDA_ARCH_LIST"]
    assert [finding.status for finding in variable_findings({})] == ["ok"]


def test_little_memory_is_a_warning() -> None:
    """It is the plan's business to refuse, with its arithmetic."""
    few = Limits(cpus=2, memory_bytes=4 * GIB, available_bytes=3 * GIB, pids=None)

    assert [finding.status for finding in memory_findings(few)] == ["warn"]
    assert not list(memory_findings(None))


def finding(check: str, message: str, advice: str) -> Finding:
    """Give an error."""
    return Finding(id=check, status="error", subject="x", message=message, advice=advice)


@pytest.mark.parametrize(
    ("check", "kind"),
    [("toolkit", ToolkitError), ("disk-space", ResourcesError), ("interpreter", EnvironmentUnfitError)],
)
def test_errors_stop_a_build_all_at_once(check: str, kind: type[Exception]) -> None:
    """The first error decides the class, the text lists them all, each advice is given once."""
    errors = [finding(check, "one", "Do a."), finding("uv", "two", "Do b."), finding("uv", "three", "Do b.")]

    with pytest.raises(kind) as caught:
        require(errors)

    assert type(caught.value) is kind
    assert str(caught.value) == "one\nalso: two\nalso: three"
    assert getattr(caught.value, "advice", "") == "Do a. Do b."


def test_warnings_stop_nothing() -> None:
    """Only errors do."""
    require([Finding(id="memory", status="warn", subject="memory", message="few")])


def test_everything_is_looked_at_in_one_go(tmp_path: Path) -> None:
    """A machine without Python still gets all the other answers."""
    found = checks(situation_at(tmp_path, gcc="12.2.0", gxx="12.2.0"), thorough=True)

    assert [(each.id, each.status) for each in found] == [
        ("interpreter", "error"),
        ("host-compiler", "ok"),
        ("host-compiler", "ok"),
        ("toolkit", "ok"),
        ("driver", "skip"),
        ("uv", "ok"),
        ("ninja", "skip"),
        ("writable", "ok"),
        ("writable", "ok"),
        ("writable", "ok"),
        ("disk-space", "ok"),
        ("variable", "ok"),
    ]
    assert set(found[0].to_json()) == {"id", "status", "subject", "message", "advice"}
