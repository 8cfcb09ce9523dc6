"""The program as a process: its exit status, and that neither pipes nor signals end it in a mess."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.integration

SLOW = """
import sys, time
from wheelmill import __main__
def slow(words):
    print("up", file=sys.stderr, flush=True)
    time.sleep(float(words[0]))
    print("done")
    return 0
__main__.run = slow
__main__.main()
"""
"""The program with a command line that only waits."""


def started(seconds: str) -> "subprocess.Popen[str]":
    """Start it, and wait until it is at work."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, seconds], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "up\n"
    return process


@pytest.mark.parametrize(("words", "status"), [(["--help"], 0), (["plan", "--help"], 0), (["limits"], 1)])
def test_a_reader_that_has_gone(words: list[str], status: int) -> None:
    """`wheelmill … | head -1`: no traceback, no complaint at exit; argparse itself forgives."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "wheelmill", *words], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert done.returncode == status
    assert not {"Traceback", "BrokenPipeError", "Exception ignored"} & set(done.stderr.replace(":", " ").split())


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--version"], 0, ""),
        (["plan", "--no-such"], 2, "unrecognized arguments: --no-such"),
        ([], 2, "required: COMMAND"),
        (["plan", "no-such", "--json"], 2, "error: no recipe 'no-such'"),
    ],
)
def test_the_exit_status(words: list[str], status: int, said: str) -> None:
    """The parser's own exits too."""
    done = subprocess.run([sys.executable, "-m", "wheelmill", *words], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert said in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_an_orderly_end(number: signal.Signals) -> None:
    """Status 130 and one line, no traceback."""
    with started("30") as process:
        process.send_signal(number)
        _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, "error: interrupted\n")


def test_a_lost_terminal_stops_nothing() -> None:
    """SIGHUP is what a closed terminal or a cut connection sends: the work goes on."""
    with started("0.5") as process:
        process.send_signal(signal.SIGHUP)
        time.sleep(0.1)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (0, "done\n", "")
