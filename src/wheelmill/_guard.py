"""Stands between us and one command: `python -S -I _guard.py LIFELINE REPORT COMMAND…`.

It imports nothing of ours. Whoever started it holds the other end of LIFELINE, a pipe, and nobody else does: when
that process ends, in whatever way, the pipe says so, and everything that the command has started is killed. As a
subreaper the guard stays the ancestor of all of it, daemons in sessions of their own included, so a walk by parent
finds the whole tree. When the command ends, what it has left behind ends too.

REPORT tells why a command could not be started: its error number, or nothing when it runs.
Exit status: the command's own; a signal that ended it ends the guard.
"""

# One standard-library program: its own rules.
# ruff: noqa: PTH123, PTH208, TID251
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PATIENCE_SECONDS = 10.0
UNABLE = 127
LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> NoReturn:
    """Start the command, and wait for its end or for the end of whoever started us."""
    lifeline, report = int(sys.argv[1]), int(sys.argv[2])
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ended)
    guard = os.getpid()
    pid = os.fork()
    if not pid:
        os.close(lifeline)
        become(sys.argv[3:], report, guard)
    os.close(report)
    status = attend(pid, lifeline)
    end_tree()
    leave(status)


def ended(number: int, _frame: FrameType | None) -> NoReturn:
    """End the tree first when somebody ends the guard."""
    for other in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    end_tree()
    leave(number)


def become(argv: Sequence[str], report: int, guard: int) -> NoReturn:
    """Become the command: signals as it would have them without a guard, its end is ours."""
    try:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:
            os._exit(UNABLE)
        os.set_inheritable(report, False)  # noqa: FBT003 - the standard library's own
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(argv[0], list(argv), os.environ)  # noqa: S606 - that is the task
    except OSError as error:
        os.write(report, str(error.errno).encode())
    os._exit(UNABLE)


def attend(pid: int, lifeline: int) -> int:
    """Give the command's status as waitpid does; SIGKILL's where whoever started us has gone."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(reader, select.POLLIN)
    while True:
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == pid:
                    return found[1]
        ready = [descriptor for descriptor, _ in poll.poll()]
        if lifeline in ready:
            return int(signal.SIGKILL)
        if reader in ready:
            os.read(reader, 4096)


def end_tree() -> None:
    """Kill every descendant until none is left."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (alive := descendants()) and time.monotonic() < deadline:
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def descendants() -> list[int]:
    """List the living processes below us."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state not in b"ZX":
                children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    frontier = [os.getpid()]
    while frontier:
        frontier = [child for pid in frontier for child in children.get(pid, ())]
        found += frontier
    return found


def leave(status: int) -> NoReturn:
    """End as the command has ended."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(128 - code if code < 0 else code)


if __name__ == "__main__":
    main()
