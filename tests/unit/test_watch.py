"""Whether anybody listens: pipes and terminals tell, and what follows from it."""

import os
import pty
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wheelmill import watch as module
from wheelmill.watch import Watch, unheard


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def test_who_is_heard(pipe: tuple[int, int], tmp_path: Path) -> None:
    """A pipe until its reader closes, a terminal until its other side is gone, a file for ever."""
    reader, writer = pipe
    assert not unheard(writer)
    os.close(reader)
    assert unheard(writer)
    master, slave = pty.openpty()
    assert not unheard(slave)
    os.close(master)
    assert unheard(slave)
    os.close(slave)
    with (tmp_path / "file").open("w") as file:
        assert not unheard(file.fileno())
    with Path("/dev/null").open("w") as null:
        assert not unheard(null.fileno())


def test_a_lost_listener_is_told_once_and_ends_nothing(pipe: tuple[int, int]) -> None:
    """Unless that was asked for; who asks later is told at once."""
    reader, writer = pipe
    told: list[int] = []
    watch = Watch(descriptors=(writer,))
    watch.when_lost(lambda: told.append(1))
    assert not watch.look()
    assert told == []
    os.close(reader)
    assert not watch.look()
    assert not watch.look()
    watch.when_lost(lambda: told.append(2))
    assert told == [1, 2]
    assert Watch(descriptors=(writer,), stop_when_lost=True).look()


def test_a_hang_up_is_a_lost_listener() -> None:
    """SIGHUP comes before the terminal is looked at."""
    watch = Watch(descriptors=(), stop_when_lost=True)
    with watch.looking():
        signal.raise_signal(signal.SIGHUP)
        assert watch.hung_up
    assert watch.gone()


def test_a_killed_nox_ends_the_build_and_a_lost_one_does_not(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our parent is another one: nox is gone."""
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.01)
    reader, writer = pipe
    assert not Watch(follows_parent=True, descriptors=()).look()
    assert Watch(follows_parent=True, parent=1, descriptors=(writer,)).look()
    assert not Watch(follows_parent=False, parent=1, descriptors=(writer,)).look()
    os.close(reader)
    assert not Watch(follows_parent=True, parent=1, descriptors=(writer,)).look()


def test_the_end_is_the_orderly_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM to ourselves; afterwards nothing looks any more and SIGHUP is as it was."""
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.01)
    sent = threading.Event()
    monkeypatch.setattr(os, "kill", lambda pid, number: (pid, number) == (os.getpid(), 15) and sent.set())
    before = signal.getsignal(signal.SIGHUP)
    watch = Watch(stop_when_lost=True, hung_up=True, descriptors=())
    with watch.looking():
        assert sent.wait(5)
    assert signal.getsignal(signal.SIGHUP) is before
    assert "watch" not in [thread.name for thread in threading.enumerate()]
