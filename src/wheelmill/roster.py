"""The roster: which builds of this user run on this machine, and what each of them holds of its memory.

A folder without a daemon. Every running build has a seat: a lock file, held by flock for as long as its process
lives, and beside it a JSON file that is replaced whole. The kernel frees locks, so a killed build leaves no claim;
process ids are for people, and for a signal only after the lock has shown that they are still true.
"""

import fcntl
import json
import os
import secrets
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Self

from .errors import EnvironmentUnfitError

SCHEMA = 1
LARGEST = 1 << 22
"""Bytes of a seat's content that are read: 250 waiting compiles take 50 kB."""
ACCOUNT_PATIENCE = 10.0
"""Seconds after which an account that somebody holds is given up: an admission takes milliseconds, so its holder
was stopped (Ctrl-Z) in the middle of one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Occupant:
    """A running build, as it enters the roster."""

    name: str
    version: str
    drv: str
    pid: int
    workplace: Path
    log: Path
    wheelhouse: Path
    started: float
    """Seconds since the epoch; like `pid` for people only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """One compile of a build: what it was promised, what it uses; `started`: seconds since the epoch, or None."""

    unit: str
    reserved_bytes: int
    current_bytes: int = 0
    started: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Seated:
    """A living build of the roster, as somebody else reads it."""

    token: str
    occupant: Occupant
    pid_namespace: int
    leases: tuple[Lease, ...] = ()
    done: int = 0
    detached: bool = False
    """Its terminal or whoever read its words has gone; it goes on."""

    @property
    def running(self) -> int:
        """Compiles that run."""
        return sum(lease.started is not None for lease in self.leases)

    @property
    def waiting(self) -> int:
        """Compiles that wait for memory or a slot."""
        return len(self.leases) - self.running

    @property
    def reserved_bytes(self) -> int:
        """Memory promised to compiles that run."""
        return sum(lease.reserved_bytes for lease in self.leases if lease.started is not None)

    @property
    def current_bytes(self) -> int:
        """Memory that they use."""
        return sum(lease.current_bytes for lease in self.leases if lease.started is not None)

    @property
    def pending_bytes(self) -> int:
        """Memory promised and not used yet: what nobody else may take, though it looks free."""
        running = (lease for lease in self.leases if lease.started is not None)
        return sum(max(0, lease.reserved_bytes - lease.current_bytes) for lease in running)


class Seat:
    """The own place in the roster; a context manager, by whose end it is given up."""

    def __init__(self, directory: Path, occupant: Occupant) -> None:
        self.directory = directory
        self.token = f"{occupant.drv[:12]}-{occupant.pid}-{secrets.token_hex(4)}"
        self.state = Seated(token=self.token, occupant=occupant, pid_namespace=pid_namespace())
        self.lock = taken(self.lock_path)
        self.turn = threading.Lock()
        self.left = False
        self.publish()

    @property
    def lock_path(self) -> Path:
        """The file that is locked for as long as we live."""
        return self.directory / f"{self.token}.lock"

    @property
    def content_path(self) -> Path:
        """The file that says what we hold."""
        return self.directory / f"{self.token}.json"

    def write(self, leases: Sequence[Lease], *, done: int | None = None) -> bool:
        """Publish what this build holds now; call it within `Roster.account` for an admission.

        False where it could not be written: the build goes on, but others cannot see what it holds.
        """
        with self.turn:
            self.state = replace(self.state, leases=tuple(leases), done=self.state.done if done is None else done)
            return self.publish()

    def detach(self) -> None:
        """Publish that nobody listens to this build any more."""
        with self.turn:
            self.state = replace(self.state, detached=True)
            self.publish()

    def publish(self) -> bool:
        """Replace the content; the lock, where somebody has cleaned the folder away, is taken anew."""
        if self.left:
            return False
        try:
            if not same_file(self.lock_path, self.lock):
                make_private(self.directory)
                self.lock.close()
                self.lock = taken(self.lock_path)
            fresh = self.content_path.with_suffix(".new")
            fresh.write_text(json.dumps(to_json(self.state)) + "\n", "utf-8")
            fresh.replace(self.content_path)
        except OSError:
            return False
        return True

    def leave(self) -> None:
        """Give the seat up; what threads still have to say of it is said to nobody."""
        with self.turn:
            self.left = True
            for path in (self.content_path, self.lock_path):
                with suppress(OSError):
                    path.unlink()
            self.lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.leave()


@dataclass(frozen=True, kw_only=True, slots=True)
class Roster:
    """The folder of seats of one user on one machine."""

    directory: Path

    def enter(self, occupant: Occupant) -> Seat:
        """Take a seat for a build."""
        return Seat(self.directory, occupant)

    def others(self, seat: Seat | None = None) -> tuple[Seated, ...]:
        """Give the living builds, but for the own, oldest first; what dead ones left is removed."""
        own = "" if seat is None else seat.token
        tokens = sorted(path.stem for path in self.directory.glob("*.lock") if path.stem != own)
        living = [found for token in tokens if (found := self.read(token)) is not None]
        return tuple(sorted(living, key=lambda each: (each.occupant.started, each.token)))

    def read(self, token: str) -> Seated | None:
        """Give a seat that is held by a living process, and whose content can be believed."""
        if not self.held(token, sweep=True):
            return None
        try:
            return from_json(token, json.loads(own_text(self.directory / f"{token}.json")))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None  # not written yet, or not by us

    def held(self, token: str, *, sweep: bool = False) -> bool:
        """Say whether a seat's process lives: by its lock, shared, so that two who look do not see each other.

        What a dead one left is removed under that lock: one who has just made the file, and waits for its lock,
        then finds it gone and makes another.
        """
        try:
            descriptor = os.open(self.directory / f"{token}.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            for suffix in (".json", ".new", ".lock") if sweep else ():
                with suppress(OSError):
                    (self.directory / f"{token}{suffix}").unlink()
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    @contextmanager
    def account(self, patience: float = ACCOUNT_PATIENCE) -> Iterator[bool]:
        """Hold the one lock under which builds of this user admit compiles; False where it could not be had."""
        with private_file(self.directory / "account") as lock:
            yield wait_for(lock, patience)

    def target(self, seated: Seated) -> "Target":
        """Give a build's process, to send it a signal."""
        return Target(
            pid=seated.occupant.pid,
            pid_namespace=seated.pid_namespace,
            name=seated.occupant.name,
            alive=lambda: self.held(seated.token),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The process that holds a lock; `alive` says whether it does still."""

    pid: int
    pid_namespace: int
    name: str
    alive: Callable[[], bool]

    def signal(self, number: int) -> bool:
        """Send a signal; False where the process is gone.

        Raises EnvironmentUnfitError for a process of another pid namespace: there its number means another one.
        A pidfd names one process for good: what lives behind it is right, if the lock is held still after it was
        opened.
        """
        if self.pid_namespace != pid_namespace():
            raise EnvironmentUnfitError(
                f"{self.name} is built in another container (process {self.pid} there)",
                advice=f"Run `wheelmill stop {self.name}` in that container.",
            )
        try:
            descriptor = os.pidfd_open(self.pid)
        except (ProcessLookupError, ValueError):
            return False
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


def open_roster(env: Mapping[str, str]) -> Roster:
    """Give the roster of this user; EnvironmentUnfitError where its folder cannot be had."""
    directory = roster_directory(env, os.getuid())
    try:
        make_private(directory)
    except OSError as error:
        raise EnvironmentUnfitError(
            f"the folder of this user's running builds, {directory}, cannot be used: {error.strerror or error}",
            advice="Remove it where it is yours, or name another place: XDG_RUNTIME_DIR=DIR.",
        ) from error
    return Roster(directory=directory)


def roster_directory(env: Mapping[str, str], user: int) -> Path:
    """Say where a user's builds are listed: one place, however they log in.

    /run/user/UID is not it: it goes away with the last login, and builds outlive a lost terminal; cron and su do
    not know of it either.
    """
    named = env.get("XDG_RUNTIME_DIR", "")
    if named.startswith("/") and Path(named) != Path(f"/run/user/{user}"):
        return Path(named) / "wheelmill"
    return Path(f"/tmp/wheelmill-{user}")  # noqa: S108 - checked for owner and links


def make_private(directory: Path) -> None:
    """Make a folder for this user alone; OSError where it is a link, or another's."""
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(f"{directory} is no folder")
    if found.st_uid != os.getuid():
        raise OSError(f"{directory} belongs to another user")
    if found.st_mode & 0o077:
        directory.chmod(0o700)


def private_file(path: Path) -> IO[str]:
    """Open a file of the roster, made if need be; a link there is refused."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "r+", encoding="utf-8")


def taken(path: Path) -> IO[str]:
    """Make a file and lock it; whoever looks after dead seats may have removed it in between."""
    while True:
        lock = private_file(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # waits only for one who looks, for microseconds
            if same_file(path, lock):
                return lock
        except BaseException:
            lock.close()
            raise
        lock.close()


def same_file(path: Path, stream: IO[str]) -> bool:
    """Say whether a path still names an open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(stream.fileno()))
    except OSError:
        return False


def wait_for(lock: IO[str], patience: float) -> bool:
    """Lock a file, within some seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        else:
            return True


def pid_namespace() -> int:
    """Give the number of our pid namespace: in another, a process id means another process."""
    return Path("/proc/self/ns/pid").stat().st_ino


def own_text(path: Path) -> str:
    """Read a file of ours; OSError for a link or another user's."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, encoding="utf-8") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_size > LARGEST:
            raise OSError(f"{path} is no file of ours")
        return stream.read()


def to_json(state: Seated) -> dict[str, object]:
    """Write a seat's content."""
    occupant = state.occupant
    return {
        "schema": SCHEMA,
        "name": occupant.name,
        "version": occupant.version,
        "drv": occupant.drv,
        "pid": occupant.pid,
        "pid_namespace": state.pid_namespace,
        "workplace": str(occupant.workplace),
        "log": str(occupant.log),
        "wheelhouse": str(occupant.wheelhouse),
        "started": occupant.started,
        "done": state.done,
        "detached": state.detached,
        "leases": [[each.unit, each.reserved_bytes, each.current_bytes, each.started] for each in state.leases],
    }


def from_json(token: str, value: dict[str, object]) -> Seated:
    """Read a seat's content; ValueError, KeyError or TypeError where it is not one."""
    if value["schema"] != SCHEMA:
        raise ValueError(f"schema {value['schema']}")
    leases = value["leases"]
    if not isinstance(leases, list):
        raise TypeError("leases")
    return Seated(
        token=token,
        occupant=Occupant(
            name=text(value["name"]),
            version=text(value["version"]),
            drv=text(value["drv"]),
            pid=whole(value["pid"], least=1),
            workplace=Path(text(value["workplace"])),
            log=Path(text(value["log"])),
            wheelhouse=Path(text(value["wheelhouse"])),
            started=number(value["started"]),
        ),
        pid_namespace=whole(value["pid_namespace"]),
        leases=tuple(lease_of(*each) for each in leases),
        done=whole(value["done"]),
        detached=value["detached"] is True,
    )


def lease_of(unit: object, reserved: object, current: object, started: object) -> Lease:
    """Read one lease."""
    return Lease(
        unit=text(unit),
        reserved_bytes=whole(reserved),
        current_bytes=whole(current),
        started=None if started is None else number(started),
    )


def text(value: object) -> str:
    """Take a string."""
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def whole(value: object, least: int = 0) -> int:
    """Take a whole number."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError("no such number")
    return value


def number(value: object) -> float:
    """Take a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError("no number")
    return float(value)
