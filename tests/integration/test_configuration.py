"""Knobs without effect, for real: a build whose compiles are right and whose recipe is not."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wheelmill.fetch import tree_digest

pytestmark = [pytest.mark.integration, pytest.mark.network]

ROOT = Path(__file__).parents[2]


def test_a_knob_without_effect_stops_the_wheel(test_cache: Path, tmp_path: Path) -> None:
    """setup.py names an architecture itself, so that torch ignores the variable; a macro never arrived."""
    shutil.copytree(ROOT / "tests/projects", tmp_path / "projects")
    text = (ROOT / "tests/recipes/torch-cuda-ext.toml").read_text()
    setup = tmp_path / "projects/torch-cuda-ext/setup.py"
    hard = '"nvcc": ["-O2", "-gencode=arch=compute_90,code=sm_90"]'
    setup.write_text(setup.read_text().replace('"nvcc": ["-O2"]', hard))
    assert hard in setup.read_text()
    text = re.sub(r'sha256 = "\w+"', f'sha256 = "{tree_digest(setup.parent)}"', text)
    text = text.replace('optimisation = "-O2"', 'optimisation = "-O2"\nmacros = ["WANTED=1"]')
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/torch-cuda-ext.toml").write_text(text)
    places = ("--cache", str(test_cache / "line"), "--wheelhouse", str(tmp_path / "wheelhouse"))
    words = ("build", "torch-cuda-ext", "--stack", "cu130", "--recipes", str(tmp_path / "recipes"), *places, "--json")

    done = subprocess.run(
        [sys.executable, "-m", "wheelmill", *words],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 8, done.stderr
    assert "TORCH_CUDA_ARCH_LIST had no effect: 2 of 2 units" in done.stderr
    [build] = json.loads(done.stdout)["builds"]
    assert build["error"]["message"].splitlines() == [
        "the build of torch-cuda-ext 1.0.0+cu130.torch2.11.0.sm100 is not what was asked for:",
        *[
            line
            for line in build["error"]["message"].splitlines()
            if "macro WANTED=1: did not reach 3 of 3 units" in line
        ],
    ]
    assert build["error"]["advice"] == (
        "Set it in torch-cuda-ext 1.0.0 by a patch of its build files, or correct "
        f'{tmp_path}/recipes/torch-cuda-ext.toml: version."1.0.0".expects.macros.'
    )
    assert not list((tmp_path / "wheelhouse").glob("*.whl"))
