"""Running programs for real: what they say is whole, and nothing of them outlives a failure."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from wheelmill._process import SystemRunner
from wheelmill.errors import CommandFailedError, DiskFullError, EnvironmentUnfitError

pytestmark = pytest.mark.integration

ENV = {"PATH": "/usr/bin:/bin"}
DAEMONS = """
setsid sleep 300 &
(setsid sh -c 'sleep 301 & exec sleep 302' </dev/null >/dev/null 2>&1 &)
sleep 303 &
echo up
wait
"""
"""A child in a session of its own, a double-forked daemon with a child, and a plain one."""


def sh(script: str, *more: str) -> list[str]:
    return ["sh", "-c", script, *more]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def sleepers(folder: Path) -> list[int]:
    """List the processes that work in a folder: every one of the tree does."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder and alive(int(entry.name)):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


# run


def test_both_streams_are_kept_apart_and_whole() -> None:
    """Stdout and stderr are captured each by itself, 1 MiB on both at once does not block."""
    program = "import sys; [(sys.stdout.write('o' * 1023 + '\\n'), sys.stderr.write('e' * 1023 + '\\n')) for _ in range(1024)]"
    done = SystemRunner().run([sys.executable, "-c", program], env=ENV)
    assert (done.returncode, len(done.stdout), len(done.stderr)) == (0, 2**20, 2**20)
    assert (set(done.stdout), set(done.stderr)) == ({"o", "\n"}, {"e", "\n"})


def test_the_environment_is_the_given_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of ours is added; the folder is the given one; stdin is empty; bytes that are no UTF-8 are replaced."""
    monkeypatch.setenv("LEAK", "1")
    done = SystemRunner().run(sh("/usr/bin/env; cat; printf '\\377'"), env={"A": "b"}, cwd=tmp_path)
    assert {"A=b", f"PWD={tmp_path}"} <= set(done.stdout.splitlines())
    assert "LEAK" not in done.stdout
    assert done.stdout.endswith("\ufffd")


def test_a_failure_says_the_end_of_stderr() -> None:
    """The last 20 lines of stderr, of stdout where stderr is empty; `check=False` hands the status over."""
    with pytest.raises(CommandFailedError) as caught:
        SystemRunner().run(sh("echo out; seq 30 >&2; exit 3"), env=ENV)
    assert caught.value.tail == tuple(str(number) for number in range(11, 31))
    assert str(caught.value).startswith("sh ended with status 3: sh -c echo out; seq 30 >&2; exit 3\n  | 11\n")
    with pytest.raises(CommandFailedError) as caught:
        SystemRunner().run(sh("echo out; kill -9 $$"), env=ENV)
    assert str(caught.value) == "sh was killed by signal 9: sh -c echo out; kill -9 $$\n  | out"
    assert SystemRunner().run(sh("exit 4"), env=ENV, check=False).returncode == 4


def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    """No such program, no such folder, and a file that is no program are three things."""
    with pytest.raises(EnvironmentUnfitError) as caught:
        SystemRunner().run(["no-such-program"], env=ENV)
    assert str(caught.value) == "cannot run no-such-program: no such program"
    assert caught.value.advice == "Run `wheelmill doctor` to see what is missing."
    with pytest.raises(EnvironmentUnfitError) as caught:
        SystemRunner().run(["sh"], env=ENV, cwd=tmp_path / "gone")
    assert str(caught.value) == f"cannot run sh: there is no folder {tmp_path / 'gone'} to run it in"
    (tmp_path / "text").write_text("hello")
    with pytest.raises(EnvironmentUnfitError) as caught:
        SystemRunner().run([str(tmp_path / "text")], env=ENV)
    assert str(caught.value) == f"cannot run {tmp_path / 'text'}: permission denied"


# stream


def test_lines_reach_the_log_at_once_and_in_order(tmp_path: Path) -> None:
    """Both streams go into one log as they come; each line is in the file before it is handed on."""
    log = tmp_path / "deep" / "build.log"
    seen: list[str] = []

    def on_line(line: str) -> None:
        seen.append(line)
        assert log.read_text().splitlines() == ["earlier", *seen]

    log.parent.mkdir()
    log.write_text("earlier\n")
    script = "for n in $(seq 20); do echo out $n; echo err $n >&2; done; printf last"
    done = SystemRunner().stream(sh(script), env=ENV, log=log, on_line=on_line)
    expected = [text for number in range(1, 21) for text in (f"out {number}", f"err {number}")]
    assert (done.returncode, seen) == (0, [*expected, "last"])


def test_a_failing_stream_has_its_tail_and_log(tmp_path: Path) -> None:
    """The last 20 lines of both streams, and where all of them are."""
    log = tmp_path / "build.log"
    with pytest.raises(CommandFailedError) as caught:
        SystemRunner().stream(sh("seq 5000; echo cause >&2; exit 1"), env=ENV, log=log)
    assert caught.value.tail == (*(str(number) for number in range(4982, 5001)), "cause")
    assert str(caught.value).endswith(f"  | cause\n  log: {log}")
    assert len(log.read_text().splitlines()) == 5001


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """The log is what fills a disk first: no traceback, and the program does not run on."""
    log = tmp_path / "build.log"
    log.symlink_to("/dev/full")
    started = time.monotonic()
    with pytest.raises(DiskFullError) as caught:
        SystemRunner().stream(sh("echo hello; exec sleep 300"), env=ENV, log=log, cwd=tmp_path)
    assert str(caught.value) == f"no room left on the disk of the log {log}"
    assert time.monotonic() - started < 20
    assert sleepers(tmp_path) == []


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    """A folder where the log should be."""
    with pytest.raises(EnvironmentUnfitError) as caught:
        SystemRunner().stream(["true"], env=ENV, log=tmp_path)
    assert str(caught.value) == f"cannot write the log {tmp_path}: Is a directory"


# ending


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_no_process_of_the_tree_is_left(error: type[BaseException], tmp_path: Path) -> None:
    """Whatever ends the work, daemons end with it, before it goes on; what ran beside stays."""
    bystander = subprocess.Popen(["sleep", "300"])

    def on_line(_line: str) -> None:
        assert len(sleepers(tmp_path)) >= 4
        raise error

    try:
        started = time.monotonic()
        with pytest.raises(error):
            SystemRunner().stream(sh(DAEMONS), env=ENV, log=tmp_path / "log", cwd=tmp_path, on_line=on_line)
        assert time.monotonic() - started < 5
        assert sleepers(tmp_path) == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_failing_program_leaves_nothing_either(tmp_path: Path) -> None:
    """A backend that gives up while a compiler still runs in the background."""
    script = "sleep 300 >/dev/null 2>&1 </dev/null & exit 1"
    for call in (
        lambda: SystemRunner().run(sh(script), env=ENV, cwd=tmp_path),
        lambda: SystemRunner().stream(sh(script), env=ENV, log=tmp_path / "log", cwd=tmp_path),
    ):
        with pytest.raises(CommandFailedError):
            call()
        assert sleepers(tmp_path) == []


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_interrupts_from_outside(tmp_path: Path, second: signal.Signals) -> None:
    """A real Ctrl-C while a program says nothing, and another one at once: the tree is gone all the same."""
    held = signal.signal(signal.SIGTERM, signal.default_int_handler)

    def strike() -> None:
        while len(sleepers(tmp_path)) < 5:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.002)
        os.kill(os.getpid(), second)

    thread = threading.Thread(target=strike)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            SystemRunner().stream(sh(DAEMONS), env=ENV, log=tmp_path / "log", cwd=tmp_path)
        thread.join()
        assert sleepers(tmp_path) == []
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, held)
