"""The pinned toolkit for real: installed by uv, seen through a view, compiling."""

import os
import sys
import tomllib
from pathlib import Path

import pytest

from wheelmill._process import SystemRunner
from wheelmill._uv import Uv
from wheelmill.arch import Arch
from wheelmill.lock import Lock, parse_lock
from wheelmill.places import index_settings
from wheelmill.runtime import Directories
from wheelmill.stack import parse_stack
from wheelmill.toolkit import Machine, Need, Toolkit, choose, examine, install, make_view
from wheelmill.toolkit_recipe import parse_toolkit

pytestmark = [pytest.mark.integration, pytest.mark.network]

RECIPES = Path(__file__).parents[2] / "recipes"
RUNNER = SystemRunner()
SYSTEM = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Give this machine with a cache of its own (uv's cache is the user's)."""
    root = tmp_path_factory.mktemp("toolkit")
    return Machine(
        env={name: value for name, value in os.environ.items() if name != "CUDA_HOME"},
        runner=RUNNER,
        directories=Directories(cache=root / "cache", wheelhouse=root / "wheelhouse"),
        cwd=root,
    )


@pytest.fixture(scope="module")
def need() -> Need:
    """Give what the shipped cu130 stack needs."""
    file, lock = RECIPES / "toolkits/cuda-13.0.toml", RECIPES / "toolkits/cuda-13.0.txt"
    stack, build = RECIPES / "stacks/cu130.toml", RECIPES / "stacks/cu130.build.txt"
    return Need(
        recipe=parse_toolkit(tomllib.loads(file.read_text()), file=str(file)),
        lock=parse_lock(lock.read_text(), file=str(lock)),
        build_lock=parse_lock(build.read_text(), file=str(build)),
        stack=parse_stack(tomllib.loads(stack.read_text()), file=str(stack)),
        archs=(Arch.parse("10.0"), Arch.parse("12.0")),
    )


@pytest.fixture(scope="module")
def toolkit(need: Need, machine: Machine) -> Toolkit:
    """Install the toolkit."""
    chosen = choose(need, machine, given=None)
    index = index_settings(machine.env, Path.home())
    uv = Uv(runner=RUNNER, env=machine.env, index=index)
    assert isinstance(need.lock, Lock)
    install(chosen, need.lock, python=Path(sys.executable), directories=machine.directories, uv=uv)
    return chosen


def test_the_wheels_make_a_toolkit_that_passes_its_own_check(need: Need, machine: Machine, toolkit: Toolkit) -> None:
    """Headers, libraries, architectures and release of the installed wheels are what the recipe demands."""
    found = examine(toolkit.root, need, machine, origins=())

    assert found.problems == ()
    assert found.nvcc_version == toolkit.nvcc_version == "13.0.88"


def test_nvcc_takes_the_view_for_its_root(machine: Machine, toolkit: Toolkit, tmp_path: Path) -> None:
    """Run under a name inside the view, the real nvcc looks for everything there, and the result links."""
    view = make_view(toolkit, machine.directories.toolkits / toolkit.digest / "view", gcc="gcc", runner=RUNNER)
    view.nvcc.write_text(f'#!/bin/bash\nexec -a {view.nvcc} {view.nvcc_real} "$@"\n')
    view.nvcc.chmod(0o755)
    source = tmp_path / "k.cu"
    source.write_text(
        "#include <cuda.h>\n#include <cusparse.h>\n#include <cub/cub.cuh>\n__global__ void k(int* p) { *p = 1; }\n"
        "int driver() { int v = 0; cuDriverGetVersion(&v); return v; }\n"
    )
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TMPDIR": str(tmp_path)}

    said = RUNNER.run((str(view.nvcc), "-dryrun", str(source)), env=env).stderr
    flags = ("-arch=sm_100", "-shared", "-cudart=shared", "-Xcompiler=-fPIC", "-lcuda", "-lcusparse")
    RUNNER.run((str(view.nvcc), *flags, "-o", str(tmp_path / "k.so"), str(source)), env=env)

    assert f"#$ TOP={view.root}/bin/.." in said
    assert str(toolkit.root) not in said
    needed = RUNNER.run(("readelf", "-d", str(tmp_path / "k.so")), env=SYSTEM).stdout
    assert "[libcuda.so.1]" in needed
    assert "[libcudart.so.13]" in needed


def test_gxx_finds_cccl_by_the_variable_of_the_build(machine: Machine, toolkit: Toolkit, tmp_path: Path) -> None:
    """CUDA 13 keeps CCCL in include/cccl, which g++ does not search by itself."""
    view = make_view(toolkit, machine.directories.toolkits / toolkit.digest / "view", gcc="gcc", runner=RUNNER)
    source = tmp_path / "c.cpp"
    source.write_text("#include <cuda/std/utility>\n")
    argv = ("g++", "-std=c++17", "-fsyntax-only", f"-I{view.root}/include", str(source))

    assert RUNNER.run(argv, env=SYSTEM, check=False).returncode != 0
    assert RUNNER.run(argv, env=SYSTEM | {"CPLUS_INCLUDE_PATH": f"{view.root}/include/cccl"}).returncode == 0


def test_a_second_installation_finds_the_first(need: Need, machine: Machine, toolkit: Toolkit) -> None:
    """Nothing is run when the files are there."""
    assert need.lock is not None
    stamp = toolkit.root.stat().st_mtime_ns

    offline = Uv(runner=RUNNER, env={}, index=index_settings({}, Path("/nonexistent")), offline=True)
    install(toolkit, need.lock, python=Path("/nonexistent"), directories=machine.directories, uv=offline)

    assert toolkit.root.stat().st_mtime_ns == stamp
