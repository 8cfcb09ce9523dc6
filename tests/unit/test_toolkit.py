"""Choosing a CUDA toolkit, with fake toolkits in a fake file tree."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from wheelmill._process import Completed
from wheelmill.arch import Arch
from wheelmill.catalog import load_catalog
from wheelmill.errors import RecipeError, ToolkitError
from wheelmill.lock import Lock, parse_lock
from wheelmill.runtime import Directories
from wheelmill.stack import Prebuilt, Stack
from wheelmill.toolkit import (
    Machine,
    Need,
    Toolkit,
    choose,
    driver_version,
    make_view,
    minor_mismatch,
    redistributed_toolkit,
    survey,
    tree_digest,
    wheels_toolkit,
)
from wheelmill.toolkit_recipe import Component, Redistributable, ToolkitRecipe, WheelProvider

CODES = "sm_75\nsm_80\nsm_90\nsm_100\nsm_120\ncompute_75\ncompute_100\n"


class Programs:
    """A Runner that answers as the nvcc and gcc would which the test placed."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.tops: dict[str, str] = {}
        self.ran: list[tuple[str, ...]] = []

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, check: bool = True
    ) -> Completed:
        """Answer --version, --list-gpu-code and -dryrun; gcc writes an empty file."""
        assert cwd is None
        assert check in {True, False}
        assert "CUDA_HOME" not in env
        self.ran.append(tuple(argv))
        out = err = ""
        match argv[1]:
            case "--version":
                out = f"Cuda compilation tools, release x, V{self.versions[argv[0]]}\n"
            case "--list-gpu-code":
                out = CODES
            case "-dryrun":
                err = f"#$ TOP={self.tops[argv[0]]}\n" if argv[0] in self.tops else "no such thing"
            case "-shared":
                Path(argv[argv.index("-o") + 1]).write_bytes(b"stub")
            case _:
                raise AssertionError(argv)
        return Completed(argv=tuple(argv), returncode=0, stdout=out, stderr=err, seconds=0.0)

    def stream(self, *args: object, **kwargs: object) -> Completed:
        """Fail: nothing here runs for long."""
        raise AssertionError((args, kwargs))


class World:
    """A machine below a temporary folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.programs = root, Programs()
        (root / "usr/local").mkdir(parents=True)
        (root / "opt").mkdir()

    def toolkit(self, name: str, version: str = "12.8.93", *, without: str = "") -> Path:
        """Place a toolkit, perhaps an incomplete one."""
        top = self.root / name
        for file in ("bin/nvcc.profile", "include/cuda.h", "include/cusparse.h", "lib64/libcudart.so.12"):
            if file != without:
                (top / file).parent.mkdir(parents=True, exist_ok=True)
                (top / file).write_text("CUresult cuInit(unsigned f);\n" if file.endswith("cuda.h") else "x")
        nvcc = top / "bin/nvcc"
        nvcc.write_bytes(b"\x7fELF")
        nvcc.chmod(0o755)
        self.programs.versions[str(nvcc)] = version
        return top

    def machine(self, **env: str) -> Machine:
        """Give the machine to the code under test."""
        return Machine(
            env={"HOME": "/home/u"} | env,
            runner=self.programs,
            directories=Directories(cache=self.root / "cache", wheelhouse=self.root / "wheelhouse"),
            cwd=Path("/work"),
            roots=(self.root / "usr/local", self.root / "opt"),
            driver="570.86.15",
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Give a machine without CUDA."""
    return World(tmp_path)


RECIPE = ToolkitRecipe(
    name="cuda-12.8",
    file="recipes/toolkits/cuda-12.8.toml",
    cuda="12.8",
    accepts=("12.8", "12.9"),
    headers=("cuda.h", "cusparse.h"),
    libraries=("cudart",),
    gcc_below=15,
    wheels=None,
    redistributable=Redistributable(
        base_url="https://cuda.invalid/redist/",
        release="12.8.2",
        license_url="https://cuda.invalid/eula/",
        from_build_lock=("nvidia-cublas-cu12",),
        components=(Component(name="cuda_nvcc", version="12.8.93", path="n/n.tar.xz", sha256="c" * 64, size=1),),
    ),
    needs_license="NVIDIA's",
)
BUILD_LOCK: Lock = parse_lock(
    f"ninja==1.13.0 --hash=sha256:{'b' * 64}\nnvidia-cublas-cu12==12.8.4.1 --hash=sha256:{'d' * 64}\n",
    file="cu128.build.txt",
)
STACK = Stack(
    name="cu128",
    file="recipes/stacks/cu128.toml",
    summary="",
    python="3.12",
    cuda="12.8",
    toolkit="cuda-12.8",
    archs=(Arch.parse("10.0"),),
    platform="manylinux_2_28",
    cut_off="",
    build_requires=(),
    run_requires=(),
    build_lock="",
    run_lock="",
    packages={},
    prebuilt={"torch": Prebuilt(name="torch", version="2.9.1", file="torch.whl", sha256="0" * 64)},
)
NEED = Need(recipe=RECIPE, lock=None, build_lock=BUILD_LOCK, stack=STACK, archs=STACK.archs)
LOCK: Lock = parse_lock(f"nvidia-cuda-nvcc==13.0.88 --hash=sha256:{'a' * 64}\n", file="cuda-13.0.txt")
WHEELS = Need(
    recipe=replace(
        RECIPE, accepts=("13.0",), wheels=WheelProvider(requirements="x", root="nvidia/cu13"), redistributable=None
    ),
    lock=LOCK,
    build_lock=BUILD_LOCK,
    stack=STACK,
    archs=STACK.archs,
)


def refusal(need: Need, machine: Machine, given: str | None = None) -> ToolkitError:
    """Choose, and give the error that must come of it."""
    with pytest.raises(ToolkitError) as caught:
        choose(need, machine, given=given)
    assert caught.value.exit_status == 5
    return caught.value


# survey ----------------------------------------------------------------------------------------------


def test_one_toolkit_under_many_names_is_found_once(world: World) -> None:
    """Links, CUDA_HOME and PATH lead to one real folder, which keeps all its names."""
    top = world.toolkit("usr/local/cuda-12.8")
    (world.root / "usr/local/cuda").symlink_to(top)

    (found,) = survey(NEED, world.machine(CUDA_HOME=str(top), PATH=str(top / "bin")))

    assert found.fits
    assert found.nvcc_version == "12.8.93"
    assert found.origins == ("CUDA_HOME", f"{world.root}/usr/local/cuda", str(top), "PATH")


def test_a_wrapper_script_is_followed_by_asking_it(world: World) -> None:
    """The nvcc on PATH may be a script: the folder above it is no toolkit, what it starts is."""
    top = world.toolkit("hidden/cuda-12.8")
    wrapper = world.root / "usr/local/bin/nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text("#!/bin/sh\n")
    wrapper.chmod(0o755)
    world.programs.tops[str(wrapper)] = f"{top}/bin/.."

    (found,) = survey(NEED, world.machine(PATH=str(wrapper.parent)))

    assert found.root == top
    assert found.origins == (f"PATH, through {wrapper}",)


def test_a_script_that_leads_nowhere_is_reported(world: World) -> None:
    """A stray nvcc is a finding with its reason."""
    wrapper = world.root / "bin/nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text("#!/bin/sh\n")
    wrapper.chmod(0o755)

    (found,) = survey(NEED, world.machine(PATH=str(wrapper.parent)))

    assert str(found) == f"{wrapper} (no CUDA toolkit): a script that is part of no toolkit and names none"


@pytest.mark.parametrize(
    ("version", "without", "archs", "problem"),
    [
        ("13.1.80", "", "10.0", "CUDA 13.1, where torch needs 12.8 or 12.9"),
        ("12.8.93", "include/cusparse.h", "10.0", "header cusparse.h missing"),
        ("12.8.93", "lib64/libcudart.so.12", "10.0", "library libcudart missing"),
        ("12.8.93", "", "10.3", "makes no code for sm_103"),
    ],
)
def test_what_does_not_serve_says_why(world: World, version: str, without: str, archs: str, problem: str) -> None:
    """Release, headers, libraries and architectures are all looked at."""
    world.toolkit("usr/local/cuda-x", version, without=without)
    need = replace(NEED, archs=(Arch.parse(archs),))

    (found,) = survey(need, world.machine())

    assert found.problems == (problem,)


def test_an_nvcc_that_is_a_script_is_no_toolkit(world: World) -> None:
    """A folder of the right shape with a script for nvcc is refused; version.json still says what it was."""
    top = world.toolkit("usr/local/cuda-12.8")
    (top / "bin/nvcc").write_text("#!/bin/sh\n")
    (top / "version.json").write_text('{"cuda_nvcc": {"name": "x", "version": "12.8.61"}}')

    (found,) = survey(NEED, world.machine())

    assert found.problems == ("bin/nvcc is a script, not the compiler",)
    assert found.nvcc_version == "12.8.61"


# order -----------------------------------------------------------------------------------------------


def test_a_given_toolkit_comes_first(world: World) -> None:
    """--cuda-home goes before CUDA_HOME, and both before wheels."""
    one, two = world.toolkit("one", "13.0.88"), world.toolkit("two", "13.0.88")
    machine = world.machine(CUDA_HOME=str(two))

    assert choose(WHEELS, machine, given=str(one)).root == one
    assert choose(WHEELS, machine, given=None).root == two
    assert choose(WHEELS, machine, given=None).provider == "given"


def test_pinned_wheels_go_before_the_machine(world: World) -> None:
    """A toolkit that the lock pins is taken though the machine has one, and nothing is run for it."""
    world.toolkit("usr/local/cuda-13.0", "13.0.88")

    chosen = choose(WHEELS, world.machine(), given=None)

    assert (chosen.provider, chosen.pinned, chosen.cuda, chosen.nvcc_version) == ("wheels", True, "13.0", "13.0.88")
    assert chosen.root == world.root / "cache/toolkits" / LOCK.digest / "files/nvidia/cu13"
    assert world.programs.ran == []


def test_the_recipe_orders_what_the_machine_has(world: World) -> None:
    """Of two that fit, the release that the recipe names first is taken."""
    world.toolkit("opt/cuda-12.9", "12.9.86")
    right = world.toolkit("usr/local/cuda-12.8")

    chosen = choose(NEED, world.machine(), given=None)

    assert (chosen.root, chosen.provider, chosen.pinned) == (right, "host", False)


def test_fetched_archives_go_before_the_machine(world: World) -> None:
    """NVIDIA's archives count once they are fetched; what is given still comes first."""
    host = world.toolkit("usr/local/cuda-12.8")
    assert choose(NEED, world.machine(), given=None).root == host
    pinned = redistributed_toolkit(NEED, world.machine().directories)
    pinned.root.mkdir(parents=True)

    assert choose(NEED, world.machine(), given=None) == pinned
    assert (pinned.provider, pinned.pinned, pinned.cuda, pinned.nvcc_version) == (
        *("redistributable", True, "12.8", "12.8.93"),
    )
    assert choose(NEED, world.machine(), given=str(host)).provider == "given"


def test_a_misfit_may_be_left_out_for_fetched_archives(world: World) -> None:
    """Where the pinned toolkit is fetched already, the advice is not to name one."""
    wrong = world.toolkit("elsewhere/cuda-13.1", "13.1.80")
    redistributed_toolkit(NEED, world.machine().directories).root.mkdir(parents=True)

    assert refusal(NEED, world.machine(), str(wrong)).advice == (
        "Leave --cuda-home out: the pinned toolkit for CUDA 12.8 is fetched already."
    )


def test_the_ways_on_name_the_stack(world: World) -> None:
    """The wheels that complete the archives are the stack's, so the command names one that is not the default."""
    need = replace(NEED, stack=replace(STACK, name="cu128-next"))

    assert (
        "`wheelmill fetch cuda-12.8 --stack cu128-next --accept-license` gets" in refusal(need, world.machine()).advice
    )


def test_without_any_the_error_lists_all(world: World) -> None:
    """The error says what was needed, where was looked, what was found, and every way on."""
    top = world.toolkit("usr/local/cuda-13.0", "13.0.88", without="include/cusparse.h")

    error = refusal(NEED, world.machine())

    assert str(error) == (
        "no CUDA toolkit for stack cu128 on this machine\n"
        "  needed   CUDA 12.8 or 12.9 for torch 2.9.1+cu128, built with CUDA 12.8\n"
        f"  looked   in CUDA_HOME, CUDA_PATH, nvcc on PATH, {world.root}/usr/local/cuda*, {world.root}/opt/cuda*\n"
        f"  found    {top} (CUDA 13.0): CUDA 13.0, where torch needs 12.8 or 12.9; header cusparse.h missing"
    )
    assert error.advice == (
        "Ways on: `--cuda-home DIR` names one elsewhere; `wheelmill fetch cuda-12.8 --accept-license` gets NVIDIA's; "
        "`--stack cu130` takes its toolkit from wheels."
    )
    assert error.kind == "cuda-mismatch"


# what is given ---------------------------------------------------------------------------------------


def test_a_misfit_names_all_sides_and_what_would_fit(world: World) -> None:
    """Toolkit, torch and driver are named, and the --cuda-home that would do."""
    wrong, right = world.toolkit("usr/local/cuda-13.1", "13.1.80"), world.toolkit("usr/local/cuda-12.8")

    error = refusal(NEED, world.machine(CUDA_HOME=str(wrong)))

    assert str(error) == (
        f"CUDA_HOME {wrong} does not fit stack cu128: CUDA 13.1, where torch needs 12.8 or 12.9\n"
        f"  toolkit  CUDA 13.1 (nvcc 13.1.80) in {wrong}\n"
        "  torch    2.9.1+cu128, built with CUDA 12.8\n"
        "  driver   570.86.15"
    )
    assert error.advice == f"`--cuda-home {right}` would fit (CUDA 12.8)."


def test_a_misfit_may_be_left_out_for_wheels(world: World) -> None:
    """Where the stack's toolkit comes from wheels, the advice is not to name one."""
    wrong = world.toolkit("usr/local/cuda-12.8")

    assert refusal(WHEELS, world.machine(), str(wrong)).advice.startswith("Leave --cuda-home out: ")
    assert refusal(WHEELS, world.machine(CUDA_HOME=str(wrong))).advice.startswith("Run `unset CUDA_HOME`: ")


@pytest.mark.parametrize(
    ("given", "said", "advice"),
    [
        ("", " is empty", "Name the folder that holds bin/nvcc, or leave it out."),
        ("~/cuda", " ~/cuda: the shell did not expand ~", "Write /home/u/cuda."),
        ("/a:/b", " /a:/b: is a list of 2 paths, and one toolkit is wanted", "Give one of them: `--cuda-home /a`."),
        ("cuda/../x", " cuda/../x: is not an absolute path", "Write /work/x."),
        ("@/usr/local/cuda-12", " @/usr/local/cuda-12: no such folder", "Did you mean 'cuda-12.8'?"),
        ("@/links/loop", " @/links/loop: is a link that leads back to itself", "Name the folder that holds bin/nvcc."),
        (
            "@/links/dangling",
            " @/links/dangling: is a link to gone, which does not exist",
            "Name the folder that holds bin/nvcc.",
        ),
        ("@/file", " @/file: is a file; the folder of a toolkit is wanted", "Name the folder that holds bin/nvcc."),
        (
            "@/usr/local/cuda-12.8/bin/nvcc",
            " @/usr/local/cuda-12.8/bin/nvcc: is a file; the folder of a toolkit is wanted",
            "Name the folder @/usr/local/cuda-12.8.",
        ),
        (
            "@/usr/local/cuda-12.8/bin",
            " @/usr/local/cuda-12.8/bin: is the bin folder of a toolkit",
            "Name the folder above it: @/usr/local/cuda-12.8.",
        ),
        (
            "@/usr",
            " @/usr: has no bin/nvcc (a runtime, or no CUDA at all)",
            "Name a folder that holds bin/nvcc.",
        ),
        ("@/locked", " @/locked: bin/nvcc is not executable", "Run `chmod +x @/locked/bin/nvcc`."),
        (
            "@/script",
            " @/script: bin/nvcc is a script, not the compiler",
            "Name the folder of the toolkit that the script starts.",
        ),
    ],
)
def test_what_cannot_be_a_toolkit_is_told_precisely(world: World, given: str, said: str, advice: str) -> None:
    """Each way to get --cuda-home wrong has its own words and its own next step."""
    world.toolkit("usr/local/cuda-12.8")
    (world.root / "links").mkdir()
    (world.root / "links/loop").symlink_to("loop")
    (world.root / "links/dangling").symlink_to("gone")
    (world.root / "file").touch()
    (world.toolkit("locked") / "bin/nvcc").chmod(0o644)
    (world.toolkit("script") / "bin/nvcc").write_text("#!/bin/sh\n")

    error = refusal(NEED, world.machine(), given.replace("@", str(world.root)))

    assert str(error) == "--cuda-home" + said.replace("@", str(world.root))
    fits = " `--cuda-home @/usr/local/cuda-12.8` would fit (CUDA 12.8)."
    assert error.advice == (advice + fits).replace("@", str(world.root))


def test_of_a_list_the_one_that_fits_is_named(world: World) -> None:
    """Of the folders in a list, the advice names the one that would serve."""
    wrong, right = world.toolkit("a/cuda-11.8", "11.8.89"), world.toolkit("b/cuda-12.8")

    error = refusal(NEED, world.machine(), f"{wrong}:{right}")

    assert error.advice == f"Give one of them: `--cuda-home {wrong}`. `--cuda-home {right}` would fit (CUDA 12.8)."


def test_without_a_fitting_toolkit_none_is_promised(world: World) -> None:
    """The advice is then about the path alone."""
    assert refusal(NEED, world.machine(), "").advice == "Name the folder that holds bin/nvcc, or leave it out."


# other releases --------------------------------------------------------------------------------------


def test_another_minor_release_goes_on_with_a_warning(world: World) -> None:
    """The nvcc of 12.9 with torch cu128: toolkit, torch and driver are named apart, and nothing stops."""
    given = world.toolkit("elsewhere", "12.9.86")

    chosen = choose(NEED, world.machine(), given=str(given))

    assert minor_mismatch(chosen, NEED, world.machine()).splitlines() == [
        "CUDA 12.9 is another minor release than torch's 12.8; the build goes on",
        f"  toolkit  CUDA 12.9 (nvcc 12.9.86) in {given}",
        "  torch    2.9.1+cu128, built with CUDA 12.8",
        "  driver   570.86.15",
    ]
    same = choose(NEED, world.machine(), given=str(world.toolkit("same")))
    assert minor_mismatch(same, NEED, world.machine()) == ""


def test_a_minor_release_that_no_recipe_names_must_be_given(world: World) -> None:
    """12.6 serves torch cu128 where the user says so; of our own accord it is not taken, only named."""
    given = world.toolkit("usr/local/cuda-12.6", "12.6.85")

    chosen = choose(NEED, world.machine(), given=str(given))

    assert (chosen.cuda, chosen.provider) == ("12.6", "given")
    error = refusal(NEED, world.machine())
    assert f"  found    {given} (CUDA 12.6): CUDA 12.6, where torch needs 12.8 or 12.9" in str(error).splitlines()
    assert error.advice.startswith(
        f"`--cuda-home {given}` would serve (CUDA 12.6, another minor release: a warning). Ways on: "
    )
    wrong = world.toolkit("elsewhere", "13.1.80")
    assert refusal(NEED, world.machine(), str(wrong)).advice == (
        f"`--cuda-home {given}` would serve (CUDA 12.6, another minor release: a warning)."
    )


def test_another_major_release_is_refused(world: World) -> None:
    """13.0 with torch cu128: toolkit, torch and driver are named apart, and what would fit."""
    wrong, right = world.toolkit("elsewhere", "13.0.88"), world.toolkit("usr/local/cuda-12.8")

    error = refusal(NEED, world.machine(), str(wrong))

    assert str(error).splitlines() == [
        f"--cuda-home {wrong} does not fit stack cu128: CUDA 13.0, where torch needs 12.8 or 12.9",
        f"  toolkit  CUDA 13.0 (nvcc 13.0.88) in {wrong}",
        "  torch    2.9.1+cu128, built with CUDA 12.8",
        "  driver   570.86.15",
    ]
    assert error.advice == f"`--cuda-home {right}` would fit (CUDA 12.8)."


def test_an_old_minor_release_still_has_to_make_the_code(world: World) -> None:
    """What is missing besides is an error, and the release is told with it."""
    given = world.toolkit("elsewhere", "12.6.85", without="include/cusparse.h")

    assert str(refusal(NEED, world.machine(), str(given))).splitlines()[0::4] == [
        f"--cuda-home {given} does not fit stack cu128: header cusparse.h missing",
        "  also     CUDA 12.6, where torch needs 12.8 or 12.9",
    ]


# digests, views --------------------------------------------------------------------------------------


def test_the_digest_sees_what_can_reach_a_wheel(world: World) -> None:
    """Tools, headers and archives count by content, shared libraries by name and size; the folder does not."""
    one, two = world.toolkit("one"), world.toolkit("two")
    notes = world.root / "notes"
    first = tree_digest(one, notes=notes)

    assert tree_digest(two, notes=notes) == first
    (two / "lib64/libcudart.so.12").write_text("y")
    assert tree_digest(two, notes=notes) == first
    (two / "include/cuda.h").write_text("other")
    assert tree_digest(two, notes=notes) != first
    assert tree_digest(one, notes=notes) == first


def test_the_digest_is_noted(world: World) -> None:
    """The second time nothing is read again."""
    top, notes = world.toolkit("one"), world.root / "notes"
    tree_digest(top, notes=notes)
    (note,) = notes.iterdir()
    note.write_text("noted\n")

    assert tree_digest(top, notes=notes) == "noted"


def toolkit_at(root: Path) -> Toolkit:
    """Describe a toolkit of wheels."""
    return Toolkit(root=root, cuda="13.0", nvcc_version="13.0.88", digest="d", provider="wheels", pinned=True)


def test_a_view_adds_what_wheels_lack(world: World) -> None:
    """lib64, libcudart.so and the driver stub appear; every link is relative; bin/nvcc is the launcher's."""
    toolkit = toolkit_at(world.toolkit("cache/toolkits/d/files/nvidia/cu13"))
    folder = world.machine().directories.toolkits / toolkit.digest / "view"

    view = make_view(toolkit, folder, gcc="gcc", runner=world.programs)

    links = {str(path.relative_to(folder)): str(path.readlink()) for path in folder.rglob("*") if path.is_symlink()}
    assert links == {
        "root": "../files/nvidia/cu13",
        "bin/nvcc.profile": "../root/bin/nvcc.profile",
        "include": "root/include",
        "lib": "lib64",
        "lib64/libcudart.so": "libcudart.so.12",
        "lib64/libcudart.so.12": "../root/lib64/libcudart.so.12",
    }
    assert [path.name for path in (folder / "lib64/stubs").iterdir()] == ["libcuda.so"]
    assert not view.nvcc.exists()
    assert view.nvcc_real.read_bytes() == b"\x7fELF"


def test_a_view_of_a_whole_toolkit_keeps_its_shape(world: World) -> None:
    """targets/ and an existing driver stub are kept; no compiler is needed then."""
    top = world.toolkit("usr/local/cuda-12.8")
    (top / "lib64/stubs").mkdir()
    (top / "lib64/stubs/libcuda.so").touch()
    (top / "targets/x86_64-linux").mkdir(parents=True)
    folder = world.root / "build/view"

    make_view(toolkit_at(top), folder, gcc="gcc", runner=world.programs)

    assert (folder / "root").readlink() == top
    assert (folder / "targets/x86_64-linux/lib/libcudart.so").exists()
    assert (folder / "lib64/stubs/libcuda.so").readlink() == Path("../../root/lib64/stubs/libcuda.so")
    assert world.programs.ran == []


def test_a_view_is_made_once_and_can_lead_elsewhere(world: World) -> None:
    """What is there is used; a sandbox names where the toolkit lies for the build."""
    toolkit, folder = toolkit_at(world.toolkit("one")), world.root / "view"

    make_view(toolkit, folder, gcc="gcc", runner=world.programs, target="../files")
    (folder / "mark").touch()
    make_view(toolkit, folder, gcc="gcc", runner=world.programs)

    assert (folder / "mark").exists()
    assert (folder / "root").readlink() == Path("../files")
    assert not [path for path in world.root.iterdir() if path.name.startswith(".view")]


def test_the_driver_is_read_from_proc(tmp_path: Path) -> None:
    """No program is needed to name the driver."""
    proc = tmp_path / "version"
    proc.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n")

    assert driver_version(proc) == "570.86.15"
    assert driver_version(tmp_path / "none") == ""


def test_the_shipped_lock_serves_one_platform_and_names_no_host() -> None:
    """cuda-13.0.txt holds one digest per wheel, no address, and the nvcc that the recipe accepts."""
    file = Path(__file__).parents[2] / "recipes/toolkits/cuda-13.0.txt"
    text = file.read_text(encoding="utf-8")
    lock = parse_lock(text, file="cuda-13.0.txt")

    assert not re.search(r"//|--(?!hash)", text)
    assert all(len(pin.hashes) == 1 for pin in lock.pins.values())
    assert lock.pins["nvidia-cuda-nvcc"].version == "13.0.88"


def test_a_lock_without_nvcc_is_named(tmp_path: Path) -> None:
    """The compiler decides the release: a lock that lacks it makes no toolkit."""
    recipe = load_catalog((Path(__file__).parents[2] / "recipes",)).toolkits["cuda-13.0"]
    lock = parse_lock(f"nvidia-cuda-cccl==13.0.85 --hash=sha256:{'a' * 64}\n", file="cuda-13.0.txt")
    with pytest.raises(RecipeError) as caught:
        wheels_toolkit(recipe, lock, Directories(cache=tmp_path, wheelhouse=tmp_path))
    assert str(caught.value) == "cuda-13.0.txt: the lock of toolkit cuda-13.0 lacks nvidia-cuda-nvcc"
