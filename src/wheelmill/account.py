"""The account of a build: its terms, what is known of its compiles beforehand, what the machine and others leave it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from .admission import Room
from .cgroups import Backend, oom_count
from .limits import Limits
from .peaks import Peaks, Prediction, Sample, Unit, append_sample, flags_digest, threads_of
from .records import Begun
from .resources import PROCESSES_PER_COMPILE, capacity
from .roster import Roster, Seat, Seated

ACCOUNT_PATIENCE = 2.0
"""Seconds: whoever holds the account longer was stopped in the middle (Ctrl-Z); meanwhile nothing is admitted, but
measuring and answering go on."""
CRITICAL = 0.5
"""The part of the reserve below which compiles are killed; below the whole of it none is admitted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What the user allows a build: compiles at once, and bytes; None: what the machine gives."""

    jobs: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Foresight:
    """What is known of compiles before they run.

    `tools` names what stands behind a shim ("nvcc": "nvcc 13.0.88"); `fallback_bytes` is the recipe's own figure;
    `learned` is where new samples go, None: nowhere.
    """

    peaks: Peaks = field(default_factory=Peaks)
    tools: Mapping[str, str] = field(default_factory=dict)
    fallback_bytes: int | None = None
    learned: Path | None = None

    def unit(self, begun: Begun) -> Unit:
        """Name a compile as the tables do."""
        if begun.kind == "link":
            return Unit(unit=begun.output or begun.source, tool="link")
        return Unit(
            unit=begun.source,
            archs=tuple(sorted(begun.archs_used)),
            threads=threads_of(begun.argv),
            tool=self.tools.get(begun.tool, begun.tool),
            flags=flags_digest(begun.argv),
        )

    def predict(self, begun: Begun) -> Prediction:
        """Say what a compile will take."""
        return self.peaks.predict(self.unit(begun), self.fallback_bytes)

    def learn(self, sample: Sample) -> None:
        """Keep what a run took; a disk without room for it does not stop a build."""
        self.peaks.add(sample)
        if self.learned is not None:
            with suppress(OSError):
                append_sample(self.learned, sample)


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """The machine, as a governor sees it; tests give another."""

    backend: Backend
    limits: Callable[[], Limits]
    """Read anew at every admission: a neighbour's use counts."""
    roster: Roster | None = None
    seat: Seat | None = None
    oom_kills: Callable[[], int] = oom_count

    @contextmanager
    def account(self) -> Iterator[tuple[Seated, ...] | None]:
        """Hold the account of this user's builds, and give the others; None where it cannot be had for now."""
        if self.roster is None:
            yield ()
            return
        with self.roster.account(ACCOUNT_PATIENCE) as held:
            yield self.roster.others(self.seat) if held else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Room for compiles, and whether so little is left that one must end."""

    room: Room
    critical: bool


def read_room(limits: Limits, terms: Terms, *, used: int, running: int = 0, others: tuple[Seated, ...]) -> Reading:
    """Work out what may be handed out now; `used` is what our own `running` compiles hold."""
    bound = terms.memory_bytes
    most = min(limits.memory_bytes, bound or limits.memory_bytes)
    total = min(limits.available_bytes + used, most)
    usable = capacity(total)
    slots = [int(limits.cpus)]
    if terms.jobs is not None:
        slots.append(terms.jobs)
    if limits.pids_free is not None:
        slots.append(running + limits.pids_free // PROCESSES_PER_COMPILE)
    promised = [other for other in others if other.pending_bytes]
    room = Room(
        hard_bytes=capacity(most),
        free_bytes=usable - used,
        pending_bytes=sum(other.pending_bytes for other in promised),
        slots=max(1, min(slots)),
        pending_for=", ".join(sorted({other.occupant.name for other in promised})),
    )
    return Reading(room=room, critical=total - used < (total - usable) * CRITICAL)
