"""A machine as the governor sees it, whose memory and processes a test sets."""

import os
from pathlib import Path
from typing import Any, Literal

from wheelmill.account import Means, Terms
from wheelmill.cgroups import Usage
from wheelmill.governor import Governor, State
from wheelmill.limits import Limits

GIB = 1 << 30


class Processes:
    """The processes of one lease, as a test wants them."""

    def __init__(self) -> None:
        self.usage = Usage(current_bytes=0, peak_bytes=0, cpu_seconds=0.0, oom_kills=0)
        self.killed = self.closed = False

    def enter(self, pid: int) -> None:
        assert pid == os.getpid()

    def read(self) -> Usage:
        return self.usage

    def pids(self) -> frozenset[int]:
        return frozenset()

    def kill(self, except_pid: int | None = None) -> int:
        assert except_pid == os.getpid()
        self.killed = True
        return 1

    def close(self) -> None:
        self.closed = True


class Holder:
    """A backend whose groups say what a test wants."""

    name: Literal["cgroup1"] = "cgroup1"
    exact_oom = True
    passed_over: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.groups: list[Processes] = []

    def lease(self, number: int) -> Processes:
        assert number
        self.groups.append(Processes())
        return self.groups[-1]

    def close(self) -> None:
        return


class Computer:
    """A machine whose memory a test sets."""

    def __init__(self, *, memory: int = 100 * GIB, cpus: int = 8) -> None:
        self.holder = Holder()
        self.free, self.memory, self.cpus = memory, memory, cpus

    @staticmethod
    def idle() -> State:
        """Say what a governor says of which nobody wants anything."""
        return State(running=0, waiting=0, reserved=0, used=0, reason="")

    def limits(self) -> Limits:
        return Limits(cpus=self.cpus, memory_bytes=self.memory, available_bytes=self.free, pids=None)

    def means(self) -> Means:
        return Means(backend=self.holder, limits=self.limits, oom_kills=lambda: 0)

    def governor(self, folder: Path, jobs: int = 1, **more: Any) -> Governor:
        return Governor(folder / "s", folder / "compile.jsonl", Terms(jobs=jobs), self.means(), **more)
