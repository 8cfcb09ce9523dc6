"""What a start costs: the libraries that only a network needs are not paid for by every command."""

import sys

import pytest

from wheelmill._process import SystemRunner

pytestmark = pytest.mark.integration

HEAVY = {"requests", "pypi_simple", "pydantic", "bs4", "truststore", "urllib3", "unidiff"}


def test_the_command_line_loads_no_network_library() -> None:
    """Importing the command line loads nothing of HTTP, HTML or patches: they cost a second of every start."""
    code = "import sys, wheelmill.cli; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = SystemRunner().run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)})
    assert HEAVY.isdisjoint(done.stdout.split())
    assert "wheelmill" in done.stdout.split()
