"""Whether anybody still listens: a lost terminal lets a build go on, unless it was told otherwise."""

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

INTERVAL_SECONDS = 0.5
GRACE_SECONDS = 1.0
"""How long after our parent's end a SIGHUP may still come that explains it."""
TALK = (1, 2)


@dataclass(kw_only=True, slots=True)
class Watch:
    """Looks after the terminal, or the pipes in its place, and the process that started us.

    `stop_when_lost` (--no-detach): a lost listener ends the build. `follows_parent` (under nox): so does the end of
    our parent, for nox was killed, unless the listener was lost with it.
    """

    stop_when_lost: bool = False
    follows_parent: bool = False
    parent: int = field(default_factory=os.getppid)
    descriptors: Sequence[int] = TALK
    lost: bool = False
    hung_up: bool = False
    listeners: list[Callable[[], None]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look for as long as a block runs; in the main thread, as it takes SIGHUP."""
        before = signal.signal(signal.SIGHUP, self.heard_hang_up)
        self.over.clear()
        thread = threading.Thread(target=self.run, name="watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.over.set()
            thread.join()
            signal.signal(signal.SIGHUP, before)

    def heard_hang_up(self, _number: int, _frame: FrameType | None) -> None:
        """Take SIGHUP: the terminal is gone."""
        self.hung_up = True

    def when_lost(self, tell: Callable[[], None]) -> None:
        """Have somebody told when nobody listens any more."""
        self.listeners.append(tell)
        if self.lost:
            tell()

    def run(self) -> None:
        """Look every half second."""
        while not self.over.wait(INTERVAL_SECONDS):
            if self.look():
                os.kill(os.getpid(), signal.SIGTERM)  # the orderly end that a person would ask for
                return

    def look(self) -> bool:
        """Look once; True where the build is to end."""
        if not self.lost and self.gone():
            self.lost = True
            for tell in list(self.listeners):
                tell()
        if self.lost:
            return self.stop_when_lost
        if self.follows_parent and os.getppid() != self.parent:
            return not (self.over.wait(GRACE_SECONDS) or self.gone())
        return False

    def gone(self) -> bool:
        """Say whether the terminal has gone, or a pipe that took its place has lost its reader."""
        return self.hung_up or any(unheard(descriptor) for descriptor in self.descriptors)


def unheard(descriptor: int) -> bool:
    """Say whether nobody holds the other end; a file or a closed descriptor has none."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(mask & (select.POLLERR | select.POLLHUP) for _, mask in poll.poll(0))
