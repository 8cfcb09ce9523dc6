"""Admission: which compiles may run now, by predicted memory; pure, without clock, file or thread.

The governor and the simulation drive the same object. One thread at a time.
"""

from dataclasses import dataclass

from .peaks import Prediction


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What may be had at one moment. Bytes are after the reserve.

    `hard_bytes`: what our compiles may ever use here. `free_bytes`: what could be handed out if those that run used
    nothing more than now. `pending_bytes`: promised to other builds of this user and not yet used. `slots`: compiles at
    once, running ones included. `pending_for`: whom the promises are for, for the reason that is shown.
    """

    hard_bytes: int
    free_bytes: int
    pending_bytes: int = 0
    slots: int
    pending_for: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Go:
    """This lease may run."""

    lease: int
    reserved_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Refuse:
    """This lease can never run here; `reason` holds the arithmetic and what to change."""

    lease: int
    reason: str


Verdict = Go | Refuse


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A compile that was let go, as last seen. `attempt` counts from 1; `shrunk`: its peak has passed."""

    lease: int
    prediction: Prediction
    attempt: int
    started: float
    reserved_bytes: int
    current_bytes: int = 0
    peak_bytes: int = 0
    cpu_seconds: float = 0.0
    alone: bool = False
    shrunk: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A compile that waits. `passed`: how often shorter ones went before it; `reason`: why, as of the last admit."""

    lease: int
    prediction: Prediction
    attempt: int
    since: float
    need_bytes: int
    alone: bool = False
    passed: int = 0
    reason: str = ""


class Admission:
    """The account of one build: who waits, who runs, what is reserved."""

    def __init__(self) -> None:
        raise NotImplementedError

    @property
    def running(self) -> tuple[Running, ...]:
        """Those that run, oldest first."""
        raise NotImplementedError

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """Those that wait, in the order in which they are looked at."""
        raise NotImplementedError

    @property
    def reserved_bytes(self) -> int:
        """Give the sum of what the running ones hold."""
        raise NotImplementedError

    @property
    def pending_bytes(self) -> int:
        """Give what the running ones have been promised and do not use yet: what the roster tells other builds."""
        raise NotImplementedError

    def want(self, lease: int, prediction: Prediction, now: float) -> None:
        """Queue a lease; a second want of the same lease replaces the first."""
        raise NotImplementedError

    def seen(self, lease: int, *, current_bytes: int, cpu_seconds: float, peak_bytes: int) -> None:
        """Note a measurement; unknown leases are ignored. The reservation grows with use, and shrinks past the peak."""
        raise NotImplementedError

    def admit(self, now: float, room: Room) -> list[Verdict]:
        """Decide who starts now and who never can. Those let go run from now on; those refused are forgotten."""
        raise NotImplementedError

    def release(self, lease: int) -> None:
        """Forget a lease, running or waiting or neither."""
        raise NotImplementedError

    def again(self, lease: int, observed_bytes: int, now: float) -> None:
        """Let a lease that was killed for memory wait again with max(observed, reserved) x 1.3; a third run is alone.

        One that was killed when alone is refused by the next admit.
        """
        raise NotImplementedError

    def victim(self, now: float) -> int | None:
        """Name the youngest of those that run, never the oldest; None where one or none runs."""
        raise NotImplementedError
