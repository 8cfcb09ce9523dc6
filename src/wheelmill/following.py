"""Builds that run already: showing one to a second start, its log, and ending one with its whole tree."""

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from ._console import Reporter
from ._process import descendants
from .errors import BuildFailedError, EnvironmentUnfitError, InterruptedBuildError, NothingSelectedError
from .plan import spell_seconds
from .resources import gib
from .roster import Occupant, Roster, Seated, Target
from .runtime import Directories
from .tenancy import Files, Outcome, Tail, Tenant, is_held, repeat, spell_time

POLL_SECONDS = 0.2
SETTLING_SECONDS = 0.05
STOP_PATIENCE = 20.0
"""Seconds that an orderly end may take; it takes one or two, but a disk may be slow."""
KILL_PATIENCE = 10.0
LOG = "build.log"


# a second start --------------------------------------------------------------------------------------


def follow(place: Path, report: Reporter) -> Outcome | None:
    """Show what the build in a workplace says until it ends; None where it ended without a word, or before we looked.

    Raises InterruptedBuildError when we are interrupted: the build itself goes on.
    """
    files = Files(root=place)
    try:
        with ExitStack() as stack:
            outcome = stack.enter_context(files.outcome.open("rb"))
            told = Tail(stream=stack.enter_context(files.told.open("rb")))
            tenant = files.last()
            if tenant is None or not is_held(outcome):
                time.sleep(SETTLING_SECONDS)  # it begins, or ends, this very moment: the caller looks again
                return None
            introduce(tenant, report)
            while is_held(outcome):
                show(told, report)
                time.sleep(POLL_SECONDS)
            show(told, report)
            return read_outcome(outcome.read())
    except FileNotFoundError:
        return None
    except KeyboardInterrupt:
        raise InterruptedBuildError(
            f"left the build of {tenant.name if tenant else place.name}: it goes on",
            advice="See it with `wheelmill ps` and `wheelmill log --follow`; end it with `wheelmill stop`.",
        ) from None


def introduce(tenant: Tenant, report: Reporter) -> None:
    """Say whose work is shown."""
    report.step(f"{tenant.words}: following")
    report.note("Ctrl-C leaves it alone; `--takeover` ends it and goes on with its objects")


def show(told: Tail, report: Reporter) -> None:
    """Say again what was said since."""
    for line in told.lines():
        repeat(line, report)


def read_outcome(content: bytes) -> Outcome | None:
    """Read how a build ended; None where it was killed before it could say."""
    try:
        return Outcome(**json.loads(content))
    except (ValueError, TypeError):
        return None


def take_over(place: Path, report: Reporter) -> None:
    """End the build in a workplace with its whole tree, if one runs there; BuildFailedError where it will not end."""
    files = Files(root=place)
    target, tenant = files.target(), files.last()
    if target is None or tenant is None or not target.alive():
        time.sleep(SETTLING_SECONDS)
        return
    report.step(f"{tenant.words}: ending it")
    how = end(target)
    report.note(f"{how}; its finished objects stay")


# ending ----------------------------------------------------------------------------------------------


def end(target: Target, *, patience: float = STOP_PATIENCE) -> str:
    """End a build: SIGTERM, then SIGKILL; wait until its whole tree is gone, and say how it went.

    Raises BuildFailedError where something of it will not die, EnvironmentUnfitError where it is in another
    container.
    """
    started = time.monotonic()
    family = family_of(target)
    if not target.signal(signal.SIGTERM):
        return "it had ended already"
    killed = not waited(lambda: not target.alive(), patience)
    if killed:
        family |= family_of(target)
        target.signal(signal.SIGKILL)
        waited(lambda: not target.alive(), KILL_PATIENCE)
    if not waited(lambda: not living(family), KILL_PATIENCE):
        left = ", ".join(str(pid) for pid, _ in sorted(living(family)))
        raise BuildFailedError(
            f"{target.name} was ended, but of its processes {left} will not die",
            advice="They hang in the kernel, most often in a driver or on a network disk: look at them with `ps`.",
        )
    took = time.monotonic() - started
    return f"{'killed' if killed else 'ended'} with {len(family)} processes within {took:.1f} s"


def family_of(target: Target) -> set[tuple[int, int]]:
    """List a build's processes, itself included, each with its start time: a number alone may mean another later."""
    pids = [target.pid, *descendants(target.pid)]
    return {(pid, began) for pid in pids if (began := start_of(pid)) is not None}


def living(family: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Give those that are alive still."""
    return {(pid, began) for pid, began in family if start_of(pid) == began}


def start_of(pid: int) -> int | None:
    """Give the start time of a process, in ticks since the boot; None where it is gone, or dead and not collected."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def waited(true: Callable[[], bool], patience: float) -> bool:
    """Wait until something is true; False where it was not within some seconds."""
    deadline = time.monotonic() + patience
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# choosing --------------------------------------------------------------------------------------------


def chosen(roster: Roster, names: Sequence[str], *, everything: bool) -> tuple[Seated, ...]:
    """Give the running builds that are named, or the only one; NothingSelectedError where there is none to choose."""
    running = roster.others()
    if not running:
        raise NothingSelectedError("nothing is being built", advice="`wheelmill build NAME` starts a build.")
    if everything:
        return running
    if not names and len(running) > 1:
        raise NothingSelectedError(
            "several builds run: " + "; ".join(title(each) for each in running),
            advice="Name one, by its name or the beginning of its derivation, or give --all.",
        )
    found = tuple(each for each in running if not names or any(fits(each.occupant, name) for name in names))
    if not found:
        raise NothingSelectedError(
            f"no build of {', '.join(names)} runs here; running: " + "; ".join(title(each) for each in running),
            advice="`wheelmill ps` shows them.",
        )
    return found


def fits(build: Occupant | Tenant, name: str) -> bool:
    """Say whether a build is meant by a name or by the beginning of a derivation."""
    return name == build.name or (len(name) >= 4 and build.drv.startswith(name))


def title(seated: Seated) -> str:
    """Name a build in a few words."""
    occupant = seated.occupant
    return f"{occupant.name} {occupant.version} ({occupant.drv[:12]}, process {occupant.pid})"


# ps --------------------------------------------------------------------------------------------------


def as_json(seated: Seated) -> dict[str, object]:
    """Give a running build as `ps --json` does."""
    occupant = asdict(seated.occupant)
    figures = {
        "done": seated.done,
        "running": seated.running,
        "waiting": seated.waiting,
        "reserved_bytes": seated.reserved_bytes,
        "used_bytes": seated.current_bytes,
        "detached": seated.detached,
        "compiles": [asdict(lease) for lease in seated.leases],
    }
    return {**{name: str(value) if isinstance(value, Path) else value for name, value in occupant.items()}, **figures}


def paragraph(seated: Seated, now: float) -> str:
    """Show a running build to a person."""
    occupant = seated.occupant
    passed = spell_seconds(max(0.0, now - occupant.started))
    gone = ", its terminal is gone" if seated.detached else ""
    memory = f"{gib(seated.reserved_bytes)} reserved, {gib(seated.current_bytes)} used"
    lines = [
        f"{title(seated)}, since {spell_time(occupant.started)} ({passed}){gone}",
        f"  compiles: {seated.done} done, {seated.running} running, {seated.waiting} waiting; memory: {memory}",
    ]
    for lease in seated.leases:
        if lease.started is not None:
            passed = spell_seconds(max(0.0, now - lease.started))
            lines.append(f"    {lease.unit}: {passed}, {gib(lease.current_bytes)} of {gib(lease.reserved_bytes)}")
    return "\n".join([*lines, f"  log: {occupant.log}"])


# log -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """A build's log, and whether its build runs still."""

    path: Path
    running: Callable[[], bool]


def find_log(roster: Roster, directories: Directories, names: Sequence[str]) -> Logged:
    """Find the log of a running build, else of the last that failed here; NothingSelectedError where there is none."""
    running = [each for each in roster.others() if not names or any(fits(each.occupant, name) for name in names)]
    if len(running) > 1:
        raise NothingSelectedError(
            "several builds run: " + "; ".join(title(each) for each in running),
            advice="Name one: `wheelmill log NAME`, or the beginning of its derivation.",
        )
    if running:
        return Logged(path=running[0].occupant.log, running=roster.target(running[0]).alive)
    left = []
    for place in sorted(directories.builds.glob("*")):
        tenant, log = Files(root=place).last(), place / LOG
        if tenant is not None and log.is_file() and (not names or any(fits(tenant, name) for name in names)):
            left.append((tenant.started, place))
    if not left:
        wanted = f" of {', '.join(names)}" if names else ""
        raise NothingSelectedError(
            f"no build{wanted} runs, and none has left a log in {directories.builds}",
            advice="The log of a finished build lies beside its wheel, as WHEEL.log.",
        )
    place = max(left)[1]
    return Logged(path=place / LOG, running=Files(root=place).running)


def log_lines(log: Logged, *, follow_it: bool) -> Iterator[str]:
    """Give a log's lines; those to come, too, until its build ends."""
    try:
        stream = log.path.open("rb")
    except FileNotFoundError:
        if not (follow_it and waited(lambda: log.path.exists() or not log.running(), float("inf"))):
            return
        if not log.path.exists():
            return
        stream = log.path.open("rb")
    except OSError as error:
        raise EnvironmentUnfitError(f"cannot read {log.path}: {error.strerror}") from error
    with stream:
        tail = Tail(stream=stream)
        goes_on = follow_it
        while goes_on:
            goes_on = log.running()
            yield from tail.lines()
            if goes_on:
                time.sleep(POLL_SECONDS)
        yield from tail.lines(all_of_it=True)


def told_elsewhere(roster: Roster, drv: str, place: Path) -> str:
    """Say where else this very derivation is being built: in another cache folder; nothing where it is not."""
    others = [each for each in roster.others() if each.occupant.drv == drv and each.occupant.workplace != place]
    if not others:
        return ""
    occupant = others[0].occupant
    return (
        f"process {occupant.pid} builds this very derivation in another cache, {occupant.workplace.parent.parent}, "
        f"since {spell_time(occupant.started)}; both go on, and share this machine's memory by one account"
    )
