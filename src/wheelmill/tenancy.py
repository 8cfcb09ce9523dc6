"""Who builds in a workplace, what they have said so far, and how it ended: for a second start, and for the next one.

Three files beside the build's own. `tenant.json` says who is at it, `told.log` holds the words that went to the
terminal, and `outcome.json`, held by flock and empty while the build runs, says at the end how it went. Whoever
follows opens them first: they can be read on when the workplace of a finished build is removed.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from ._console import Console, Reporter
from .errors import (
    BuildFailedError,
    EnvironmentUnfitError,
    FetchError,
    InterruptedBuildError,
    RecipeError,
    RepairError,
    ResourcesError,
    VerifyError,
    WheelmillError,
    of_system,
)
from .roster import Target, own_text, pid_namespace

SCHEMA = 1
FAILURES: dict[int, type[WheelmillError]] = {
    1: BuildFailedError,
    2: RecipeError,
    4: FetchError,
    5: EnvironmentUnfitError,
    6: ResourcesError,
    7: RepairError,
    8: VerifyError,
    130: InterruptedBuildError,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenant:
    """Who builds in a workplace, or did last."""

    schema: int = SCHEMA
    name: str
    version: str
    drv: str
    pid: int
    pid_namespace: int
    started: float
    boot_id: str

    @property
    def words(self) -> str:
        """Say who builds what, and since when."""
        return f"{self.name} {self.version} is being built by process {self.pid} since {spell_time(self.started)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a build ended: with a wheel, or with a failure as its report said it."""

    status: int
    wheel: str = ""
    sha256: str = ""
    wheelhouse: str = ""
    kind: str = ""
    message: str = ""
    advice: str = ""

    def failure(self) -> WheelmillError:
        """Give the failure again, as the other process had it."""
        failure = FAILURES.get(self.status, BuildFailedError)(self.message, advice=self.advice)
        failure.kind = self.kind
        return failure


@dataclass(frozen=True, kw_only=True, slots=True)
class Files:
    """Where a workplace keeps these."""

    root: Path

    @property
    def tenant(self) -> Path:
        """Who is at it."""
        return self.root / "tenant.json"

    @property
    def told(self) -> Path:
        """What went to the terminal since the start."""
        return self.root / "told.log"

    @property
    def outcome(self) -> Path:
        """How it ended; empty while it runs."""
        return self.root / "outcome.json"

    def last(self) -> Tenant | None:
        """Give the present tenant, or the last one; None where nobody was here, or what is said makes no sense."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            said = json.loads(own_text(self.tenant))
            if said["schema"] == SCHEMA and type(said["pid"]) is int and type(said["started"]) is float:
                return Tenant(**said)
        return None

    def running(self) -> bool:
        """Say whether somebody builds here."""
        try:
            with self.outcome.open("rb") as outcome:
                return is_held(outcome)
        except OSError:
            return False

    def target(self) -> Target | None:
        """Give the process that builds here, to send it a signal."""
        tenant = self.last()
        if tenant is None:
            return None
        return Target(pid=tenant.pid, pid_namespace=tenant.pid_namespace, name=tenant.name, alive=self.running)


def boot_id() -> str:
    """Give the kernel's name for this run of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()


def tenant_of(name: str, version: str, drv: str) -> Tenant:
    """Describe ourselves."""
    return Tenant(
        name=name,
        version=version,
        drv=drv,
        pid=os.getpid(),
        pid_namespace=pid_namespace(),
        started=time.time(),
        boot_id=boot_id(),
    )


@contextmanager
def tenancy(root: Path, tenant: Tenant) -> Iterator[None]:
    """Be the tenant of a workplace, whose lock we hold; at the end, say how it went.

    The outcome is written into the same file, not put in its place: followers hold it open.
    """
    files = Files(root=root)
    with files.outcome.open("a", encoding="utf-8") as outcome:
        fcntl.flock(outcome, fcntl.LOCK_EX)  # waits for one who looks, for microseconds
        outcome.truncate(0)
        files.told.write_text("", "utf-8")
        fresh = files.tenant.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(tenant)) + "\n", "utf-8")
        fresh.replace(files.tenant)
        try:
            yield
        except BaseException as error:
            if not os.fstat(outcome.fileno()).st_size:
                with suppress(OSError):
                    put(outcome, outcome_of(error, tenant.name, root))
            raise


def settle(root: Path, *, wheel: Path, sha256: str) -> None:
    """Say that a build ended with a wheel, which is in its wheelhouse."""
    with Files(root=root).outcome.open("a", encoding="utf-8") as outcome:
        put(outcome, Outcome(status=0, wheel=str(wheel), sha256=sha256, wheelhouse=str(wheel.parent)))


def put(stream: IO[str], outcome: Outcome) -> None:
    """Write an outcome."""
    stream.write(json.dumps(asdict(outcome)) + "\n")
    stream.flush()


def outcome_of(error: BaseException, name: str, root: Path) -> Outcome:
    """Describe a failure; an unforeseen one as what it is."""
    if isinstance(error, OSError):
        error = of_system(error, cache=root)
    elif isinstance(error, KeyboardInterrupt):
        error = InterruptedBuildError(f"the build of {name} was stopped")
    elif not isinstance(error, WheelmillError):
        error = WheelmillError(f"the build broke: {error!r}")
    return Outcome(status=error.exit_status, kind=error.kind, message=str(error), advice=error.advice)


def is_held(stream: IO[bytes]) -> bool:
    """Say whether the build that holds an outcome's file lives."""
    try:
        fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(stream, fcntl.LOCK_UN)
    return False


# words -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Teller:
    """A Reporter that also writes everything down, for whoever follows; a full disk does not stop it."""

    report: Reporter
    written: Console

    def step(self, text: str) -> None:
        """Begin a stage."""
        self.report.step(text)
        self.written.step(text)

    def note(self, text: str) -> None:
        """Tell a detail of the stage."""
        self.report.note(text)
        self.written.note(text)

    def warn(self, text: str) -> None:
        """Tell what does not stop the work but should be known."""
        self.report.warn(text)
        self.written.warn(text)


@contextmanager
def telling(root: Path, report: Reporter) -> Iterator[Teller]:
    """Write down what is said from here on."""
    with Files(root=root).told.open("a", encoding="utf-8") as sink:
        yield Teller(report=report, written=Console(talk=sink, colour=False, quiet=False))


def repeat(line: str, report: Reporter) -> None:
    """Say a line of another build's words."""
    marks: tuple[tuple[str, Callable[[str], None]], ...] = (
        ("==> ", report.step),
        ("  ! ", report.warn),
        ("    ", report.note),
    )
    for mark, say in marks:
        if line.startswith(mark):
            say(line.removeprefix(mark))
            return
    report.note(line)


@dataclass(kw_only=True, slots=True)
class Tail:
    """A growing file, read line by line as far as it is whole."""

    stream: IO[bytes]
    rest: bytes = b""

    def lines(self, *, all_of_it: bool = False) -> Iterator[str]:
        """Give the lines that have come since; at the end also one without a line feed."""
        while block := self.stream.read(1 << 16):
            *whole, self.rest = (self.rest + block).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in whole)
        if all_of_it and self.rest:
            yield self.rest.decode("utf-8", "replace")
            self.rest = b""


def spell_time(seconds: float) -> str:
    """Give a time of day, with the date where it was another day."""
    then, now = time.localtime(seconds), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M", then)
