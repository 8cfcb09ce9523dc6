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


def test_help_loads_the_words_alone() -> None:
    """What builds takes half a second to load; whoever asks for help or mistypes does not wait for it."""
    code = (
        "import sys; from wheelmill.__main__ import run; status = run(['build', '--help']); "
        "print('MODULES', *sorted(sys.modules)); raise SystemExit(status)"
    )
    done = SystemRunner().run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)})
    modules = done.stdout.rpartition("MODULES ")[2].split()
    assert {name for name in modules if name.startswith("wheelmill.")} == {
        "wheelmill.__main__",
        "wheelmill.errors",
        "wheelmill.options",
    }
