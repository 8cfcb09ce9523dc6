"""Builds that are killed, stopped and starved at random; `benchmarks/chaos.py` does fifty of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wheelmill.cgroups import Polling, probe

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "chaos.py"

pytestmark = [pytest.mark.integration, pytest.mark.network]


@pytest.mark.skipif(os.getuid() != 0, reason="a group and a small disk of its own need root")
def test_a_disturbed_build_ends_with_the_same_bytes(test_cache: Path, tmp_path: Path) -> None:
    """Whatever comes in between: the same wheel, no survivor, no lock held, nothing half written."""
    if isinstance(probe(), Polling):
        pytest.skip("no memory group can be made here")
    result = tmp_path / "chaos.json"
    words = ["--rounds", "4", "--seed", "3", "--units", "12", "--no-together", "--root", str(test_cache / "chaos")]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *words, "--result", str(result)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rounds = json.loads(result.read_text())["rounds"]
    assert [each["faults"] for each in rounds] == [[], [], [], []]
    assert len({each["kind"] for each in rounds}) > 1
    assert all(each["starts"][-1]["status"] == 0 for each in rounds)
