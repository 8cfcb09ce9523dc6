"""What integration tests share: a pinned CUDA toolkit from wheels, installed once."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import uv

TOOLKIT = "cuda-toolkit[nvcc,cccl,crt,nvvm,cudart]==13.0.2"


@pytest.fixture(scope="session")
def test_cache(pytestconfig: pytest.Config) -> Path:
    """Give the directory that outlives a test run: WHEELMILL_TEST_CACHE, else pytest's own.

    One for each process of the run: tests empty its object cache, and a second start of a build would follow the first.
    """
    named = os.environ.get("WHEELMILL_TEST_CACHE")
    assert pytestconfig.cache is not None
    directory = Path(named) if named else pytestconfig.cache.mkdir("wheelmill")
    directory /= os.environ.get("PYTEST_XDIST_WORKER", "")
    directory.mkdir(parents=True, exist_ok=True)
    return directory.resolve()


@pytest.fixture(scope="session")
def toolkit_root(test_cache: Path) -> Path:
    """Give the root of nvcc 13.0.88, installed from wheels where it is not there yet."""
    target = test_cache / "cuda-13.0.2"
    if not target.exists():
        fresh = Path(tempfile.mkdtemp(dir=test_cache))
        command = [uv.find_uv_bin(), "pip", "install", "--quiet", "--python", sys.executable]
        subprocess.run([*command, "--target", fresh, TOOLKIT], check=True)
        fresh.rename(target)
    return target / "nvidia" / "cu13"
