"""Looking before building, for real: NVML, nvcc, namespaces, a small disk, another environment's torch."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wheelmill._process import SystemRunner
from wheelmill.arch import Arch
from wheelmill.catalog import load_catalog
from wheelmill.doctor import namespace_findings, torch_findings
from wheelmill.preflight import Finding, Situation, compiler_findings, try_compiler
from wheelmill.runtime import Directories
from wheelmill.toolkit import Machine, Need, Toolkit

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
NVML = r"""
#include <string.h>
typedef int nvmlReturn_t;
nvmlReturn_t nvmlInit_v2(void) { return 0; }
nvmlReturn_t nvmlInitWithFlags(unsigned flags) { return 0; }
nvmlReturn_t nvmlShutdown(void) { return 0; }
const char* nvmlErrorString(nvmlReturn_t code) { return "no word"; }
nvmlReturn_t nvmlSystemGetDriverVersion(char* out, unsigned n) { strncpy(out, "580.65.06", n); return 0; }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* out) { *out = 13000; return 0; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* out) { *out = 2; return 0; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, void** out) { *out = (void*)(long)(index + 1); return 0; }
nvmlReturn_t nvmlDeviceGetName(void* device, char* out, unsigned n) {
    strncpy(out, (long)device == 1 ? "NVIDIA B200" : "NVIDIA RTX PRO 6000 Blackwell Server Edition", n);
    return 0;
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
    *major = (long)device == 1 ? 10 : 12;
    *minor = 0;
    return 0;
}
"""


def wheelmill(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run the program."""
    argv = [sys.executable, "-m", "wheelmill", *words, "--stack", "cu130"]
    return subprocess.run(argv, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False)


def doctor(tmp_path: Path, *words: str, **env: str) -> list[dict[str, str]]:
    """Give doctor's findings with an empty cache."""
    places = ("--cache", str(tmp_path / "cache"), "--wheelhouse", str(tmp_path / "wheelhouse"))
    return json.loads(wheelmill("doctor", "--json", *places, *words, **env).stdout)["findings"]


def situation_at(tmp_path: Path, path: str, *archs: str) -> Situation:
    """Give this machine with another PATH."""
    catalog = load_catalog((ROOT / "recipes",))
    stack = catalog.stack("cu130")
    toolkit = catalog.toolkit(stack)
    lock = catalog.build_lock(stack)
    chosen = tuple(map(Arch.parse, archs)) or stack.archs
    return Situation(
        need=Need(recipe=toolkit, lock=catalog.toolkit_lock(toolkit), build_lock=lock, stack=stack, archs=chosen),
        build_lock=lock,
        machine=Machine(
            env={"PATH": path, "HOME": str(tmp_path)},
            runner=SystemRunner(),
            directories=Directories(cache=tmp_path / "cache", wheelhouse=tmp_path / "wheelhouse"),
            cwd=tmp_path,
        ),
    )


def toolkit_of(root: Path) -> Toolkit:
    """Describe the toolkit of the tests."""
    return Toolkit(root=root, cuda="13.0", nvcc_version="13.0.88", digest="test", provider="wheels", pinned=True)


def test_gpus_come_from_the_drivers_own_library(tmp_path: Path) -> None:
    """With a libnvidia-ml.so.1 in reach: driver, names, capabilities, and the code that each GPU runs."""
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)

    found = doctor(tmp_path, LD_LIBRARY_PATH=str(tmp_path))

    said = {each["subject"]: (each["status"], each["message"], each["advice"]) for each in found}
    assert said["NVIDIA driver"][:2] == ("ok", "driver 580.65.06 runs CUDA up to 13.0")
    assert said["GPU 0"][:2] == ("ok", "NVIDIA B200 has compute capability 10.0 and runs sm_100 code")
    assert said["GPU 1"] == (
        "warn",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition has compute capability 12.0 and runs sm_120 code; sm_100 code does "
        "not run on it",
        "To run the wheel here, build for it: `--arch 12.0`.",
    )
    both = doctor(tmp_path, "--arch", "10.0;12.0", LD_LIBRARY_PATH=str(tmp_path))
    assert [each["status"] for each in both if each["id"] == "gpu"] == ["ok", "ok"]


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has a driver")
def test_without_a_driver_the_reason_is_told(tmp_path: Path) -> None:
    """Building needs none; each program that the line uses is there with its version."""
    found = {each["id"]: each for each in doctor(tmp_path)}

    assert found["driver"]["status"] == "skip"
    assert "NVML Shared Library Not Found" in found["driver"]["message"]
    assert [found[name]["status"] for name in ("uv", "auditwheel", "patchelf", "ccache")] == ["ok"] * 4
    assert found["cgroup"]["message"]


@pytest.mark.network
def test_the_real_nvcc_tries_the_real_compiler(toolkit_root: Path, tmp_path: Path) -> None:
    """Three lines for the archs asked for; an arch that it cannot make is found out by it, not by a table."""
    toolkit = toolkit_of(toolkit_root)

    good = try_compiler(situation_at(tmp_path, os.environ["PATH"], "10.0", "12.0+PTX"), toolkit)
    bad = try_compiler(situation_at(tmp_path, os.environ["PATH"], "7.0"), toolkit)

    assert good is not None
    assert bad is not None
    assert (good.finding.status, bad.finding.status) == ("ok", "error")
    assert bad.finding.message.endswith("Unsupported gpu architecture 'compute_70'")


@pytest.mark.network
def test_the_toolkits_own_error_refuses_a_new_gcc(toolkit_root: Path, tmp_path: Path) -> None:
    """A gcc that says it is 99: crt/host_config.h stops it, and the advice names none of its override flags."""
    for name in ("gcc", "g++"):
        wrapper = tmp_path / "bin" / name
        wrapper.parent.mkdir(exist_ok=True)
        real = shutil.which(name)
        wrapper.write_text(
            "#!/bin/sh\n"
            'case "$1" in -dumpfullversion) echo 99.1.0 ;; '
            f'*) exec {real} "$@" -U__GNUC__ -D__GNUC__=99 ;; esac\n'
        )
        wrapper.chmod(0o755)
    situation = situation_at(tmp_path, f"{tmp_path}/bin:/usr/bin:/bin")

    trial = try_compiler(situation, toolkit_of(toolkit_root))
    found: list[Finding] = list(compiler_findings(situation, trial))

    assert trial is not None
    assert trial.too_new
    assert [(each.status, each.message) for each in found] == [
        ("error", "gcc 99.1.0 is newer than CUDA 13.0 takes (below 16)"),
        ("error", "g++ 99.1.0 is newer than CUDA 13.0 takes (below 16)"),
    ]
    assert "allow-unsupported" not in found[0].advice


def test_namespaces_are_made_for_real(tmp_path: Path) -> None:
    """The answer is that of unshare itself."""
    (found,) = namespace_findings(situation_at(tmp_path, os.environ["PATH"]).machine)
    argv = ["unshare", "--map-root-user", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "true"]
    can = shutil.which("unshare") is not None and subprocess.run(argv, check=False, capture_output=True).returncode == 0

    assert (found.status == "ok") == can


def test_the_torch_of_another_environment_is_read_without_importing_it(tmp_path: Path) -> None:
    """A CPU-only torch whose import would fail is told from its version file."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    (site,) = (tmp_path / "env/lib").glob("python*/site-packages")
    (site / "torch").mkdir()
    (site / "torch/__init__.py").write_text("raise RuntimeError('imported')\n")
    (site / "torch/version.py").write_text("__version__ = '2.13.0+cpu'\ncuda = None\nhip = None\n")
    situation = situation_at(tmp_path, "/usr/bin")

    (found,) = torch_findings(
        Situation(
            need=situation.need,
            build_lock=situation.build_lock,
            machine=situation.machine,
            python="env/bin/python",
        )
    )

    assert (found.status, found.message) == (
        "warn",
        "torch 2.13.0+cpu is built for the CPU alone: CUDA wheels do not run beside it",
    )


def test_a_small_disk_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """A cache on a file system of 64 MB: exit status 6 within seconds, naming the folder and the need."""
    (tmp_path / "cache").mkdir()
    unshare = ["unshare", "--map-root-user", "--mount", "--fork", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=64m tmpfs {tmp_path}/cache"
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, mount], check=False, capture_output=True).returncode
    ):
        pytest.skip("no mount namespaces here")
    command = (
        f"{sys.executable} -m wheelmill build flash-attn --stack cu130 --cache {tmp_path}/cache --wheelhouse {tmp_path}"
    )

    done = subprocess.run(
        [*unshare, f"{mount} && exec {command}"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 6
    assert f"cache ({tmp_path}/cache, with the compilers' own TMPDIR in it): 0.1 GiB free, a build needs about 15" in (
        done.stderr
    )
    assert "`--cache DIR`" in done.stderr.splitlines()[-1]
