"""Admits the compiles of a build, one lease each, and writes what they took to `compile.jsonl`.

Slots and Ledger are the pure core: they know no socket, file or clock. Governor serves them over a Unix
socket; the protocol stands in _launcher.py. At this stage a lease is one of `jobs` slots.
"""

import json
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self, cast

from .errors import EnvironmentUnfitError, UsageError, WheelmillError

RECORD_FORMAT = 1
SOCKET_PATH_BYTES = 107
"""sockaddr_un holds 108 bytes with the final zero."""
VANISHED = -1
"""The exit status of a compile whose launcher was killed before it could say."""

Cache = Literal["hit", "miss", "off", "link"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileRecord:
    """One compile or link, as a line of `compile.jsonl`.

    `wall_s` is the compiler's own time from `started_s` (seconds after the governor's start) on, without the
    `waited_s` before it; for a hit it is the time of the look-up.
    """

    v: int = RECORD_FORMAT
    id: int
    tool: str
    source: str
    output: str
    argv: tuple[str, ...]
    archs_asked: tuple[str, ...]
    archs_used: tuple[str, ...]
    rewrites: tuple[str, ...]
    cache: Cache
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    exit: int
    started_s: float
    waited_s: float
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """A compile has begun to run, or has ended (then with its record)."""

    kind: Literal["started", "finished"]
    id: int
    tool: str
    source: str
    running: int
    waiting: int
    record: CompileRecord | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileSummary:
    """What a build's compiles came to. `compiles` counts links and hits too."""

    compiles: int = 0
    links: int = 0
    cache_hits: int = 0
    failures: int = 0
    units: int = 0
    """Distinct sources that were compiled, not linked."""
    retries: int = 0
    cpu_seconds: float = 0.0
    peak_rss_bytes: int = 0
    archs: tuple[str, ...] = ()
    """Every architecture that device code was made for."""


class Slots:
    """First come, first served: at most `jobs` leases at a time."""

    def __init__(self, jobs: int) -> None:
        if jobs < 1:
            raise UsageError(f"jobs must be at least 1, not {jobs}", advice="Give --max-jobs 1 or more.")
        self.jobs = jobs
        self.waiting: deque[int] = deque()
        self.running: set[int] = set()

    def want(self, lease: int) -> list[int]:
        """Queue a lease; give those that may run now."""
        self.waiting.append(lease)
        return self._grant()

    def release(self, lease: int) -> list[int]:
        """Take a lease back, running or waiting or neither; give those that may run now."""
        self.running.discard(lease)
        if lease in self.waiting:
            self.waiting.remove(lease)
        return self._grant()

    def _grant(self) -> list[int]:
        granted = []
        while self.waiting and len(self.running) < self.jobs:
            lease = self.waiting.popleft()
            self.running.add(lease)
            granted.append(lease)
        return granted


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """What a launcher said of its compile."""

    id: int
    tool: str
    kind: str
    argv: tuple[str, ...]
    output: str
    source: str
    archs_asked: tuple[str, ...]
    archs_used: tuple[str, ...]
    rewrites: tuple[str, ...]
    ccache: bool
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What the gates of one compile said, the last attempt's figures."""

    attempts: int = 0
    wanted_at: float = 0.0
    granted_at: float | None = None
    wall: float = 0.0
    cpu: float = 0.0
    peak_rss_bytes: int = 0


@dataclass(slots=True)
class Ledger:
    """The compiles in flight and the totals of those that have ended."""

    begun: dict[int, Begun] = field(default_factory=dict)
    measured: dict[int, Measured] = field(default_factory=dict)
    summary: CompileSummary = field(default_factory=CompileSummary)
    sources: set[str] = field(default_factory=set)
    last: int = 0

    def begin(self, message: Mapping[str, object], now: float) -> Begun:
        """Enter a compile under a new number. Raises ValueError when the message is not one."""
        self.last += 1
        begun = Begun(
            id=self.last,
            tool=text(message, "tool"),
            kind=text(message, "kind"),
            argv=texts(message, "argv"),
            output=text(message, "output"),
            source=text(message, "source"),
            archs_asked=texts(message, "archs_asked"),
            archs_used=texts(message, "archs_used"),
            rewrites=texts(message, "rewrites"),
            ccache=message.get("ccache") is True,
            at=now,
        )
        self.begun[begun.id] = begun
        return begun

    def want(self, number: int, now: float) -> None:
        """Note that a gate has come. Raises ValueError for a compile that nobody announced."""
        if number not in self.begun:
            raise ValueError(f"no compile {number} has begun")
        known = self.measured.get(number, Measured())
        self.measured[number] = replace(known, wanted_at=now)

    def grant(self, number: int, now: float) -> None:
        """Note that the compile may run now."""
        known = self.measured.get(number)
        if known is not None:
            self.measured[number] = replace(known, granted_at=now, attempts=known.attempts + 1)

    def done(self, number: int, message: Mapping[str, object]) -> None:
        """Note what a run took; whose launcher has gone is on record already. Raises ValueError."""
        known = self.measured.get(number)
        if known is None:
            return
        self.measured[number] = replace(
            known,
            wall=real(message, "wall"),
            cpu=real(message, "cpu"),
            peak_rss_bytes=int(real(message, "peak_rss_bytes")),
        )

    def end(self, number: int, status: int, now: float) -> CompileRecord | None:
        """Close a compile and give its record; None when it was closed before."""
        begun = self.begun.pop(number, None)
        if begun is None:
            return None
        record = make_record(begun, self.measured.pop(number, None), status, now)
        if record.cache != "link":
            self.sources.add(record.source)
        self.summary = replace(add(self.summary, record), units=len(self.sources))
        return record


def make_record(begun: Begun, measured: Measured | None, status: int, now: float) -> CompileRecord:
    """Put together what launcher and gate said.

    With a cache, a success that no gate was seen for is a hit.
    """
    if begun.kind == "link":
        cache: Cache = "link"
    elif not begun.ccache:
        cache = "off"
    else:
        cache = "hit" if measured is None and status == 0 else "miss"
    known = measured or Measured()
    started = begun.at if known.granted_at is None else known.granted_at
    return CompileRecord(
        id=begun.id,
        tool=begun.tool,
        source=begun.source,
        output=begun.output,
        argv=begun.argv,
        archs_asked=begun.archs_asked,
        archs_used=begun.archs_used,
        rewrites=begun.rewrites,
        cache=cache,
        wall_s=round(known.wall if measured else now - begun.at, 3),
        cpu_s=round(known.cpu, 3),
        peak_rss_bytes=known.peak_rss_bytes,
        exit=status,
        started_s=round(started, 3),
        waited_s=round(started - known.wanted_at if measured else 0.0, 3),
        attempt=max(known.attempts, 1),
    )


def add(summary: CompileSummary, record: CompileRecord) -> CompileSummary:
    """Count one record in; `units` needs the set of sources and is the ledger's."""
    return replace(
        summary,
        compiles=summary.compiles + 1,
        links=summary.links + (record.cache == "link"),
        cache_hits=summary.cache_hits + (record.cache == "hit"),
        failures=summary.failures + (record.exit != 0),
        retries=summary.retries + record.attempt - 1,
        cpu_seconds=summary.cpu_seconds + record.cpu_s,
        peak_rss_bytes=max(summary.peak_rss_bytes, record.peak_rss_bytes),
        archs=tuple(sorted({*summary.archs, *record.archs_used})),
    )


def text(message: Mapping[str, object], key: str) -> str:
    """Give a string of a message. Raises ValueError."""
    value = message.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a string")  # noqa: TRY004 - one kind of error for a bad message
    return value


def texts(message: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Give a list of strings of a message. Raises ValueError."""
    value = message.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{key} is not a list of strings")
    return tuple(value)


def real(message: Mapping[str, object], key: str) -> float:
    """Give a number of a message. Raises ValueError."""
    value = message.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} is not a number")  # noqa: TRY004 - as for strings
    return float(value)


# The server ----------------------------------------------------------------------------------------------


class Peer:
    """One connection: a launcher's or a gate's, which of them its first message tells."""

    __slots__ = ("connection", "id", "inbox", "key", "outbox", "role")

    def __init__(self, connection: socket.socket, key: int) -> None:
        self.connection, self.key = connection, key
        self.inbox, self.outbox = b"", b""
        self.role: Literal["", "launcher", "gate"] = ""
        self.id = 0


class Governor:
    """Serves one build from a thread of this process, while its `with` block lasts.

    `record` is written here and nowhere else, outside what the build can write.
    """

    def __init__(
        self,
        socket_path: Path,
        record: Path,
        jobs: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.socket_path, self.record, self.clock = socket_path, record, clock
        self.on_event = on_event
        self.slots = Slots(jobs)
        self.ledger = Ledger()
        self.broken: BaseException | None = None
        self._lock = threading.Lock()
        self._peers: dict[int, Peer] = {}
        self._keys = 0
        self._stop = False

    def __enter__(self) -> Self:
        """Listen. Raises EnvironmentUnfitError when the socket's path is too long."""
        length = len(os.fsencode(self.socket_path))
        if length > SOCKET_PATH_BYTES:
            raise EnvironmentUnfitError(
                f"cannot listen at {self.socket_path}: a socket's path may have {SOCKET_PATH_BYTES} bytes, "
                f"this has {length}",
                advice="Give a shorter folder for temporary files: TMPDIR=/tmp.",
            )
        self.record.parent.mkdir(parents=True, exist_ok=True)
        self.socket_path.parent.mkdir(parents=True, exist_ok=True)
        self.socket_path.unlink(missing_ok=True)
        self._origin = self.clock()
        self._sink: IO[str] = self.record.open("a", encoding="utf-8", newline="\n")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(os.fspath(self.socket_path))
        # Root inside the sandbox is an unprivileged user to us; its directory guards the socket.
        self.socket_path.chmod(0o666)
        self._listener.listen(4096)
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="governor", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; whatever still wants a lease fails. Raises what broke the server, if anything did."""
        self._stop = True
        self._wake.send(b"x")
        self._thread.join()
        self._wake.close()
        self._woken.close()
        if self.broken is not None and error is None:
            raise WheelmillError(f"the governor broke: {self.broken!r}") from self.broken

    def summary(self) -> CompileSummary:
        """Give the totals so far."""
        with self._lock:
            return self.ledger.summary

    @property
    def running(self) -> int:
        """Leases held now."""
        with self._lock:
            return len(self.slots.running)

    def _now(self) -> float:
        return self.clock() - self._origin

    def _serve(self) -> None:
        try:
            while not self._stop:
                for key, mask in self._selector.select():
                    self._turn(key, mask)
        except BaseException as error:  # noqa: BLE001 - a thread has nobody to raise to; __exit__ does
            self.broken = error
        finally:
            self._close()

    def _turn(self, key: selectors.SelectorKey, mask: int) -> None:
        if key.fileobj is self._listener:
            self._accept()
        elif isinstance(key.data, Peer):
            if mask & selectors.EVENT_WRITE:
                self._flush(key.data)
            if mask & selectors.EVENT_READ:
                self._read(key.data)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)  # noqa: FBT003 - the standard library's own signature
        self._keys += 1
        peer = Peer(connection, self._keys)
        self._peers[peer.key] = peer
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def _close(self) -> None:
        self._stop = True
        for peer in list(self._peers.values()):
            self._drop(peer)
        self._selector.close()
        self._listener.close()
        self._sink.close()
        self.socket_path.unlink(missing_ok=True)

    def _read(self, peer: Peer) -> None:
        try:
            part = peer.connection.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._drop(peer)
            return
        *lines, peer.inbox = (peer.inbox + part).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
                if not isinstance(message, dict):
                    raise ValueError("a message is an object")  # noqa: TRY004, TRY301 - see below
                self._handle(peer, message)
            except ValueError as error:
                self._send(peer, {"op": "refuse", "message": f"the governor did not understand: {error}"})

    def _send(self, peer: Peer, message: Mapping[str, object]) -> None:
        peer.outbox += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._flush(peer)

    def _flush(self, peer: Peer) -> None:
        """Write what the peer takes; the rest when it takes more. A gone peer is dropped by the read side."""
        try:
            sent = peer.connection.send(peer.outbox) if peer.outbox else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            peer.outbox, sent = b"", 0
        peer.outbox = peer.outbox[sent:]
        writes = selectors.EVENT_WRITE if peer.outbox else 0
        self._selector.modify(peer.connection, selectors.EVENT_READ | writes, peer)

    def _handle(self, peer: Peer, message: Mapping[str, object]) -> None:
        """Act on one message. Raises ValueError for one that is not of the protocol."""
        operation, now = message.get("op"), self._now()
        if operation == "begin" and not peer.role:
            with self._lock:
                begun = self.ledger.begin(message, now)
            peer.role, peer.id = "launcher", begun.id
            self._send(peer, {"id": begun.id})
        elif operation == "want" and not peer.role:
            number = int(real(message, "id"))
            with self._lock:
                self.ledger.want(number, now)
                peer.role, peer.id = "gate", number
                granted = self.slots.want(peer.key)
            self._grant(granted)
        elif operation == "done" and peer.role == "gate":
            with self._lock:
                self.ledger.done(peer.id, message)
                granted = self.slots.release(peer.key)
            self._send(peer, {"op": "exit"})
            self._grant(granted)
        elif operation == "end" and peer.role == "launcher":
            self._end(peer, int(real(message, "exit")))
            self._send(peer, {"op": "exit"})
        else:
            raise ValueError(f"{operation!r} is out of turn")

    def _grant(self, keys: list[int]) -> None:
        for key in keys:
            peer = self._peers[key]
            with self._lock:
                self.ledger.grant(peer.id, self._now())
            self._send(peer, {"op": "go"})
            begun = self.ledger.begun.get(peer.id)
            if begun is not None:
                self._tell("started", begun.id, begun.tool, begun.source, None)

    def _end(self, peer: Peer, status: int) -> None:
        with self._lock:
            record = self.ledger.end(peer.id, status, self._now())
        if record is not None:
            self._sink.write(json.dumps(asdict(record), ensure_ascii=True, separators=(",", ":")) + "\n")
            self._sink.flush()
            self._tell("finished", record.id, record.tool, record.source, record)

    def _drop(self, peer: Peer) -> None:
        """Forget a connection: a gate's lease goes back, a launcher that never said its end is recorded."""
        self._selector.unregister(peer.connection)
        peer.connection.close()
        del self._peers[peer.key]
        if peer.role == "launcher":
            self._end(peer, VANISHED)
        elif peer.role == "gate":
            with self._lock:
                granted = self.slots.release(peer.key)
            if not self._stop:
                self._grant(granted)

    def _tell(
        self,
        kind: Literal["started", "finished"],
        number: int,
        tool: str,
        source: str,
        record: CompileRecord | None,
    ) -> None:
        if self.on_event is None:
            return
        running, waiting = len(self.slots.running), len(self.slots.waiting)
        self.on_event(
            Event(
                kind=kind,
                id=number,
                tool=tool,
                source=source,
                running=running,
                waiting=waiting,
                record=record,
            )
        )


def read_records(path: Path) -> tuple[CompileRecord, ...]:
    """Read `compile.jsonl`; a last line that a crash cut short is left out.

    Raises WheelmillError for any other line that is not a record.
    """
    lines = path.read_text("utf-8").split("\n")
    return tuple(_parse_record(line, f"{path}:{number}") for number, line in enumerate(lines[:-1], 1) if line.strip())


def _parse_record(line: str, place: str) -> CompileRecord:
    try:
        raw = json.loads(line)
        if raw["v"] != RECORD_FORMAT:
            raise WheelmillError(f"{place}: a record of format {raw['v']}, we read {RECORD_FORMAT}")
        return CompileRecord(
            id=int(raw["id"]),
            tool=text(raw, "tool"),
            source=text(raw, "source"),
            output=text(raw, "output"),
            argv=texts(raw, "argv"),
            archs_asked=texts(raw, "archs_asked"),
            archs_used=texts(raw, "archs_used"),
            rewrites=texts(raw, "rewrites"),
            cache=cast("Cache", text(raw, "cache")),
            wall_s=real(raw, "wall_s"),
            cpu_s=real(raw, "cpu_s"),
            peak_rss_bytes=int(real(raw, "peak_rss_bytes")),
            exit=int(real(raw, "exit")),
            started_s=real(raw, "started_s"),
            waited_s=real(raw, "waited_s"),
            attempt=int(real(raw, "attempt")),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise WheelmillError(f"{place}: not a compile record: {error}") from error
