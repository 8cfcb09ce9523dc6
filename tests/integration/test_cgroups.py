"""Groups, measured on real children: whatever this machine has, and /proc everywhere."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from wheelmill.cgroups import (
    Backend,
    ControlGroups,
    Files,
    Group,
    Polling,
    end_stray,
    find_oom_counter,
    oom_count,
    probe,
    strays,
)

# ruff: noqa: T201 - the figures are for whoever asks with -s
pytestmark = pytest.mark.integration
MB = 1 << 20
INSIDE_UML = "WHEELMILL_INSIDE_UML" in os.environ
"""User-mode Linux is ten times slower at a system call."""
WANTED = os.environ.get("WHEELMILL_TEST_BACKEND")
"""The way that must be found here: set where a machine is made for it."""

GATE = """
import subprocess, sys
for line in sys.stdin:
    subprocess.Popen([sys.executable, "-S", "-I", "-c", line])
    print(flush=True)
"""
HOG = "import time; x = bytearray({mb} << 20); x[::4096] = b'x' * len(x[::4096]); time.sleep({seconds})\n"
DAEMON = (
    "import os, time; os.fork() and (time.sleep(2), os._exit(0)); os.setsid(); "
    "os.fork() and (time.sleep(2), os._exit(0)); time.sleep(60)\n"
)
"""Each parent is seen with its child before it goes: polling cannot know one that it never saw."""
FORKER = (
    "import os, signal, time; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    "while True: os.fork() or (time.sleep(0.05), os._exit(0)); time.sleep(0.001)\n"
)


class Gate:
    """A stand-in of the gate: enters first, then starts what it is told, and outlives it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-I", "-c", GATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, program: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"exec({program.strip()!r})\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


@contextmanager
def gate_in(way: Backend, number: int) -> Iterator[tuple[Gate, Group]]:
    gate, group = Gate(), way.lease(number)
    group.enter(gate.process.pid)
    try:
        yield gate, group
    finally:
        group.kill()
        gate.process.communicate()
        group.close()


@contextmanager
def bystanding(*argv: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(argv)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def watch(group: Group, seconds: float) -> None:
    """Measure for a while: polling knows only what it has seen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        group.read()
        time.sleep(0.03)


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def best() -> ControlGroups:
    way = probe()
    assert WANTED in {None, way.name}, way.passed_over
    if isinstance(way, Polling):
        pytest.skip(f"no cgroup to be made here: {way.passed_over}")
    return way


def polling() -> Polling:
    return Polling(root=Path("/"), files=Files())


@pytest.fixture(params=[best, polling], ids=["cgroup", "poll"])
def way(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made = request.param()
    yield made
    made.close()


def left_over(way: ControlGroups) -> list[str]:
    own = f"wheelmill-{os.getpid()}-"
    return [path.name for place in (way.base, *way.accounts) for path in place.iterdir() if own in path.name]


def test_probing_leaves_nothing() -> None:
    """The trial's group and child are gone."""
    assert left_over(best()) == []


def test_memory_and_peak(way: Backend, tmp_path: Path) -> None:
    """Two hogs at once count together; what has ended stays in the peak alone."""
    with gate_in(way, 1) as (gate, group):
        go = tmp_path / "go"
        waiting = f"while not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
        gate.start("import os\n" + HOG.format(mb=150, seconds=0) + waiting)
        gate.start(HOG.format(mb=150, seconds=60))
        until(lambda: group.read().current_bytes > 300 * MB)
        go.touch()
        until(lambda: group.read().current_bytes < 200 * MB)
        usage = group.read()

        assert usage.current_bytes > 145 * MB
        assert 300 * MB < usage.peak_bytes < 380 * MB
        assert usage.oom_kills == 0


def test_polling_agrees_with_the_kernel() -> None:
    """Looking at /proc gives the kernel's peak within 10 %."""
    kernel, poll = best(), polling()
    with gate_in(kernel, 2) as (gate, group):
        seen = poll.lease(2)
        seen.enter(gate.process.pid)
        for _ in range(3):
            gate.start(HOG.format(mb=200, seconds=60))
        until(lambda: seen.read().current_bytes > 600 * MB)
        time.sleep(0.2)
        ours, theirs = seen.read().peak_bytes, group.read().peak_bytes
        print(f"poll {ours / MB:.0f} MB, {kernel.name} {theirs / MB:.0f} MB, ratio {ours / theirs:.3f}")

        assert ours == pytest.approx(theirs, rel=0.1)
    kernel.close()


def test_cache_is_no_need(tmp_path: Path) -> None:
    """Pages of a file that was read can be dropped: they are not in use, and none of the peak that comes after."""
    big = tmp_path / "big"
    big.write_bytes(os.urandom(MB) * 200)
    os.sync()
    descriptor = os.open(big, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    way = best()
    with gate_in(way, 3) as (gate, group):
        done = tmp_path / "done"
        gate.start(
            f"import pathlib, shutil; shutil.copyfile({str(big)!r}, '/dev/null'); pathlib.Path({str(done)!r}).touch()"
        )
        until(done.exists)
        first = group.read()
        gate.start(HOG.format(mb=100, seconds=60))
        until(lambda: group.read().current_bytes > 100 * MB)
        usage = group.read()
        print(f"after reading 200 MB: {first}; after a hog of 100 MB: {usage}")

        assert first.current_bytes < 60 * MB
        assert usage.current_bytes < 160 * MB
    way.close()


def test_cpu_time(way: Backend) -> None:
    """The CPU time is that of the lease, ended processes too, and not what the gate spent before."""
    with gate_in(way, 4) as (gate, group):
        gate.start("import time\nwhile time.process_time() < 1: pass")
        until(lambda: group.read().cpu_seconds > 0.9)
        time.sleep(0.5)
        group.read()
        time.sleep(0.1)

        assert 0.9 < group.read().cpu_seconds < (3 if INSIDE_UML else 1.5)


def test_only_the_gate_is_left(way: Backend) -> None:
    """Children, daemons and a program that forks without end die; the gate and everybody else live."""
    with bystanding("sleep", "60") as bystander, gate_in(way, 5) as (gate, group):
        pid = gate.process.pid
        gate.start(HOG.format(mb=50, seconds=60))
        gate.start(DAEMON)
        until(lambda: len(group.pids()) == 5)
        until(lambda: len(group.pids()) == 3)  # its parents have gone
        gate.start(FORKER)
        watch(group, 0.5)
        before = time.monotonic()
        killed = group.kill(except_pid=pid)
        took = time.monotonic() - before
        print(f"{way.name}: {killed} killed in {took * 1000:.0f} ms")

        assert killed >= 3
        assert took < 5
        assert group.pids() == {pid}
        assert gate.alive
        assert bystander.poll() is None
        gate.start(HOG.format(mb=50, seconds=60))  # the next attempt
        until(lambda: group.read().current_bytes > 50 * MB)


def test_the_gate_may_be_killed_too(way: Backend) -> None:
    """Without an exception nobody is left."""
    with gate_in(way, 6) as (gate, group):
        gate.start(HOG.format(mb=10, seconds=60))
        group.kill()
        gate.process.wait(5)

        assert group.pids() == frozenset()


def test_a_kill_of_the_kernel_is_counted() -> None:
    """A group's limit below the need: the hog dies, the gate lives, and the counter says why."""
    way = best()
    with gate_in(way, 7) as (gate, group):
        limit = "memory.max" if way.name == "cgroup2" else "memory.limit_in_bytes"
        Files().write(way.base / f"wheelmill-{os.getpid()}-7" / limit, str(100 * MB))
        gate.start(HOG.format(mb=300, seconds=60))
        until(lambda: group.read().oom_kills == 1)

        assert gate.alive
        assert group.read().peak_bytes <= 101 * MB
    way.close()


def test_another_group_is_not_blamed() -> None:
    """The counter is the lease's own."""
    way = best()
    with gate_in(way, 8) as (gate, group), gate_in(way, 9) as (_, other):
        limit = "memory.max" if way.name == "cgroup2" else "memory.limit_in_bytes"
        Files().write(way.base / f"wheelmill-{os.getpid()}-8" / limit, str(100 * MB))
        gate.start(HOG.format(mb=300, seconds=60))
        until(lambda: group.read().oom_kills > 0)

        assert way.exact_oom
        assert other.read().oom_kills == 0
    way.close()


def test_closing_with_a_living_gate() -> None:
    """A gate that still waits for its answer goes back to where it came from, and the group is removed."""
    way = best()
    gate, group = Gate(), way.lease(10)
    group.enter(gate.process.pid)
    group.close()

    assert gate.alive
    assert left_over(way) == []
    assert gate.process.pid in {int(pid) for pid in (way.home / "cgroup.procs").read_text().split()}
    gate.process.communicate()


def test_the_dead_are_swept() -> None:
    """Empty groups of a build that was killed go at the next start; those of the living stay."""
    way = best()
    dead = subprocess.Popen(["true"])
    dead.wait()
    ours = way.lease(11)
    (way.base / f"wheelmill-{dead.pid}-3").mkdir()
    probe().close()

    assert not (way.base / f"wheelmill-{dead.pid}-3").exists()
    assert left_over(way)
    ours.close()


def test_one_that_is_gone_cannot_enter(way: Backend) -> None:
    """A gate that died is told from one that entered."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    group = way.lease(12)
    with pytest.raises(ProcessLookupError):
        group.enter(dead.pid)
    group.close()


def test_strays(way: Backend) -> None:
    """What no lease holds is seen by name and size, the biggest first, and can be ended."""
    hog = HOG.format(mb=120, seconds=60)
    with bystanding(sys.executable, "-S", "-I", "-c", hog) as outside, gate_in(way, 13) as (gate, group):
        gate.start(HOG.format(mb=200, seconds=60))
        until(lambda: group.read().current_bytes > 200 * MB)
        until(lambda: strays(os.getpid(), [group])[0].memory_bytes > 120 * MB)
        first = strays(os.getpid(), [group])[0]

        assert first.pid == outside.pid
        assert re.match("python", first.name)
        assert end_stray(first)
        assert outside.wait(5) == -signal.SIGKILL
        assert not end_stray(first)


def test_the_count_of_our_own_group() -> None:
    """Without groups of ours, the closest counter is found and is a number."""
    assert find_oom_counter().exists()
    assert oom_count() >= 0


def test_looking_is_cheap(way: Backend) -> None:
    """Four leases are measured ten times a second for less than 10 % of one core."""
    groups = [way.lease(20 + number) for number in range(4)]
    for group in groups:
        group.enter(os.getpid()) if isinstance(way, Polling) else None
    before = time.process_time()
    for _ in range(20):
        for group in groups:
            group.read()
        time.sleep(0.05)
    spent = (time.process_time() - before) / 20
    print(f"{way.name}: {spent * 1000:.2f} ms for four leases")
    with suppress(OSError):
        for group in groups:
            group.close()

    assert spent < (0.1 if INSIDE_UML else 0.01)
