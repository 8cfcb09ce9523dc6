"""Serves the compiles of one build: each real compiler runs only while its predicted memory fits.

Admission (admission.py) decides, cgroups.py measures and ends, roster.py tells what other builds of this user hold;
this module listens to launchers and gates (the protocol stands in _launcher.py), asks those three at every turn, and
writes `compile.jsonl` and the learned peaks.
"""

import json
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from .account import Foresight, Means, Terms, read_room
from .admission import Admission, Go, Verdict
from .cgroups import Group, end_stray, strays
from .charge import Charge, humble
from .errors import EnvironmentUnfitError, WheelmillError, of_system
from .records import VANISHED, Begun, CompileSummary, Event, Ledger, RecordSink, real
from .resources import gib
from .roster import Lease, Seated

SOCKET_PATH_BYTES = 107
"""sockaddr_un holds 108 bytes with the final zero."""
TICK_SECONDS = 0.25
"""How often memory is measured while something runs or waits."""
CORRECTION_SECONDS = 1.0
"""At most one kill in this time: the memory of the killed is counted as free only a little later [Buck2 does so]."""
CALM_SECONDS = 3.0
"""How long after a kill nothing new is admitted."""
STRAY_BYTES = 1 << 29
"""A compiler that came past the launcher is ended for memory only from this size on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What a governor is at, for people. Memory in bytes; `reason`: why the first of the waiting waits."""

    running: int
    waiting: int
    reserved: int
    used: int
    reason: str


class Peer:
    """One connection: a launcher's or a gate's, which of them its first message tells."""

    __slots__ = ("connection", "id", "inbox", "key", "outbox", "pid", "role")

    def __init__(self, connection: socket.socket, key: int) -> None:
        self.connection, self.key = connection, key
        self.inbox, self.outbox = b"", b""
        self.role: Literal["", "launcher", "gate"] = ""
        self.id = 0
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid: int = struct.unpack("3i", credentials)[0]
        """By the kernel, as we number processes: inside its namespace the peer has another idea of it."""


class Governor:
    """Serves one build from a thread of this process, while its `with` block lasts.

    `record` is written here and nowhere else, outside what the build can write. `skip` names compiles that are not
    wanted (see `measure`): their launchers make empty objects.
    """

    def __init__(
        self,
        socket_path: Path,
        record: Path,
        terms: Terms,
        means: Means,
        *,
        foresight: Foresight | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_event: Callable[[Event], None] | None = None,
        skip: Callable[[Begun], bool] | None = None,
    ) -> None:
        self.socket_path, self.record, self.terms, self.means = socket_path, record, terms, means
        self.foresight, self.clock, self.on_event, self.skip = foresight or Foresight(), clock, on_event, skip
        self.admission = Admission()
        self.ledger = Ledger()
        self.refusals: list[str] = []
        """Why compiles were refused: each could not have fit even alone."""
        self.broken: BaseException | None = None
        self._lock = threading.Lock()
        self._peers: dict[int, Peer] = {}
        self._charges: dict[int, Charge] = {}
        self._events: list[Event] = []
        self._keys = self._turned_away_below = 0
        self._calm_after = self._corrected = float("-inf")
        self._stop = self._changed = False

    # the thread and its block ------------------------------------------------------------------------

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
        self._epoch = time.time()
        """When our own clock was at zero, as the roster tells time."""
        self._sink = RecordSink(self.record)
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
            raise self.failure() from self.broken

    def failure(self) -> WheelmillError:
        """Say what broke the server: a full disk is not its fault."""
        if isinstance(self.broken, OSError):
            return of_system(self.broken, cache=self.record)
        return WheelmillError(f"the governor broke: {self.broken!r}")

    def summary(self) -> CompileSummary:
        """Give the totals so far."""
        with self._lock:
            return self.ledger.summary

    def state(self) -> State:
        """Say what is going on."""
        with self._lock:
            running, waiting = self.admission.running, self.admission.waiting
            return State(
                running=len(running),
                waiting=len(waiting),
                reserved=self.admission.reserved_bytes,
                used=sum(each.current_bytes for each in running),
                reason=waiting[0].reason if waiting else "",
            )

    def _now(self) -> float:
        return self.clock() - self._origin

    def _serve(self) -> None:
        try:
            while not self._stop:
                busy = self._charges or self.admission.waiting
                for key, mask in self._selector.select(TICK_SECONDS if busy else None):
                    self._turn(key, mask)
                if not self._stop:
                    self._govern()
                self._tell_all()
                self._answer_all()
        except BaseException as error:  # noqa: BLE001 - a thread has nobody to raise to; __exit__ does
            self.broken = error
        finally:
            self._close()

    def _close(self) -> None:
        self._stop = True
        with suppress(Exception):  # whoever listens may be what broke
            self._tell_all()
            self._answer_all()
        for peer in list(self._peers.values()):
            with suppress(Exception):  # what broke may break again; every peer must still hear that we are gone
                self._drop(peer)
        with suppress(Exception):
            self._tell_all()
        self._selector.close()
        self._listener.close()
        self._sink.close()
        self.means.backend.close()
        self.socket_path.unlink(missing_ok=True)

    # connections -------------------------------------------------------------------------------------

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
        """Answer, at the end of this turn: whoever hears it finds the record written and the news told.

        The gate knows no escapes but those of JSON's own quotes.
        """
        peer.outbox += json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    def _answer_all(self) -> None:
        for peer in self._peers.values():
            if peer.outbox:
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

    def _drop(self, peer: Peer) -> None:
        """Forget a connection: a gate's lease goes back, a launcher that never said its end is recorded."""
        self._selector.unregister(peer.connection)
        peer.connection.close()
        del self._peers[peer.key]
        if peer.role == "launcher":
            self._end(peer, VANISHED)
        elif peer.role == "gate":
            self._release(peer)

    # the protocol ------------------------------------------------------------------------------------

    def _handle(self, peer: Peer, message: Mapping[str, object]) -> None:
        """Act on one message. Raises ValueError for one that is not of the protocol."""
        operation, now = message.get("op"), self._now()
        if operation == "begin" and not peer.role:
            self._begin(peer, message, now)
        elif operation == "want" and not peer.role:
            self._want(peer, int(real(message, "id")), now)
        elif operation == "done" and peer.role == "gate":
            self._done(peer, message, now)
        elif operation == "end" and peer.role == "launcher":
            self._end(peer, int(real(message, "exit")))
            self._send(peer, {"op": "exit"})
        else:
            raise ValueError(f"{operation!r} is out of turn")

    def _begin(self, peer: Peer, message: Mapping[str, object], now: float) -> None:
        with self._lock:
            begun = self.ledger.begin(message, now)
            if self.skip is not None and self.skip(begun):
                del self.ledger.begun[begun.id]
                self._send(peer, {"op": "skip"})
                return
        peer.role, peer.id = "launcher", begun.id
        self._send(peer, {"id": begun.id})

    def _want(self, peer: Peer, number: int, now: float) -> None:
        with self._lock:
            self.ledger.want(number, now)
            peer.role, peer.id = "gate", number
            if number <= self._turned_away_below:
                self._turn_away(peer)
                return
            self.admission.want(peer.key, self.foresight.predict(self.ledger.begun[number]), now)
        self._changed = True

    def _turn_away(self, peer: Peer) -> None:
        """Refuse what was begun before another compile failed: the build system only waits for it to end."""
        self.ledger.refuse(peer.id, "turned-away")
        self._send(peer, {"op": "refuse", "message": "another compile of this build has failed"})

    def _done(self, peer: Peer, message: Mapping[str, object], now: float) -> None:
        """Take a compile's end: for good, or to run again where it was killed for want of memory."""
        charge = self._charges.get(peer.key)
        if charge is None:
            raise ValueError("nothing runs here")
        backend = self.means.backend
        ended = charge.settle(message, how=backend.name, exact=backend.exact_oom, oom_kills=self.means.oom_kills())
        del self._charges[peer.key]
        begun = self.ledger.begun.get(peer.id)
        if begun is not None:  # else its launcher has gone: whatever killed that may have cut this short
            self.foresight.learn(ended.sample(self.foresight.unit(begun)))
            self._think_again()
        with self._lock:
            self.ledger.done(peer.id, message, ended.course)
            if ended.why is not None:
                self.ledger.killed(peer.id, ended.why)
                self.admission.again(peer.key, ended.course.peak_bytes, now, by_kernel=ended.why == "oom")
            else:
                self.admission.release(peer.key)
        self._changed = True
        if ended.why is not None:
            self._tell("again", peer.id)
            return
        self._send(peer, {"op": "exit"})
        if ended.status:
            self._turn_others_away()

    def _think_again(self) -> None:
        """Predict anew what waiting compiles will take: one that has run says much of its neighbours."""
        with self._lock:
            for waiting in self.admission.waiting:
                begun = self.ledger.begun.get(self._peers[waiting.lease].id)
                if begun is not None and waiting.prediction.basis != "measured":
                    self.admission.revise(waiting.lease, self.foresight.predict(begun))

    def _turn_others_away(self) -> None:
        """Let the build end soon after a failure: it started more compiles than run at once, and waits for them all."""
        with self._lock:
            self._turned_away_below = self.ledger.last
            for waiting in self.admission.waiting:
                self._turn_away(self._peers[waiting.lease])
                self.admission.release(waiting.lease)

    def _end(self, peer: Peer, status: int) -> None:
        with self._lock:
            record = self.ledger.end(peer.id, status, self._now())
        if record is not None:
            self._sink.write(json.dumps(asdict(record), ensure_ascii=True, separators=(",", ":")))
            running, waiting = len(self.admission.running), len(self.admission.waiting)
            self._events.append(
                Event(
                    kind="finished",
                    id=record.id,
                    tool=record.tool,
                    source=record.source,
                    running=running,
                    waiting=waiting,
                    record=record,
                )
            )

    def _release(self, peer: Peer) -> None:
        """Take a lease back whose gate has gone."""
        charge = self._charges.pop(peer.key, None)
        if charge is not None and charge.group is not None:
            charge.group.close()
        with self._lock:
            self.admission.release(peer.key)
        self._changed = True

    # memory ------------------------------------------------------------------------------------------

    def _govern(self) -> None:
        """Measure, admit what fits, and on pressure end the youngest."""
        self._measure()
        if not (self._charges or self.admission.waiting or self._changed):
            return
        self._changed = False
        now = self._now()
        with self.means.account() as others:
            if others is None:
                self._changed = True
                return
            with self._lock:
                running = self.admission.running
                used = sum(each.current_bytes for each in running)
                limits = self.means.limits()
                reading = read_room(limits, self.terms, used=used, running=len(running), others=others)
                verdicts = self.admission.admit(now, reading.room) if now >= self._calm_after else []
            self._publish()
        for verdict in verdicts:
            self._carry_out(verdict, now)
        if reading.critical:
            self._relieve(now, others)

    def _measure(self) -> None:
        now = self._now()
        with self._lock:
            reserved = {each.lease: each.reserved_bytes for each in self.admission.running}
        for lease, charge in self._charges.items():
            if charge.group is None:
                continue
            usage = charge.group.read()
            charge.add(usage.cpu_seconds, usage.current_bytes, reserved.get(lease, 0), now)
            with self._lock:
                self.admission.seen(
                    lease,
                    current_bytes=usage.current_bytes,
                    cpu_seconds=usage.cpu_seconds,
                    peak_bytes=usage.peak_bytes,
                )

    def _publish(self) -> None:
        """Tell other builds of this user what this one holds."""
        if self.means.seat is None:
            return
        with self._lock:
            leases = [
                Lease(
                    unit=self._unit_of(each.lease),
                    reserved_bytes=each.reserved_bytes,
                    current_bytes=each.current_bytes,
                    started=each.started + self._epoch,
                )
                for each in self.admission.running
            ]
            leases += [
                Lease(unit=self._unit_of(each.lease), reserved_bytes=each.need_bytes) for each in self.admission.waiting
            ]
            done = self.ledger.summary.compiles
        self.means.seat.write(leases, done=done)

    def _unit_of(self, lease: int) -> str:
        begun = self.ledger.begun.get(self._peers[lease].id)
        return (begun.source or begun.output) if begun else ""

    def _carry_out(self, verdict: Verdict, now: float) -> None:
        """Tell a gate what was decided."""
        peer = self._peers[verdict.lease]
        if not isinstance(verdict, Go):
            with self._lock:
                known = self.ledger.measured.get(peer.id)
                self.ledger.refuse(peer.id, "oom" if known and known.attempts else "refused")
            self.refusals.append(f"{self._unit_of(verdict.lease)}: {verdict.reason}")
            self._send(peer, {"op": "refuse", "message": verdict.reason})
            self._turn_others_away()
            return
        group: Group | None = None
        try:
            group = self.means.backend.lease(peer.key)
            group.enter(peer.pid)
        except OSError:  # without a group the compile runs all the same, measured by its own report
            group = None
        humble(peer.pid)
        with self._lock:
            self.ledger.grant(peer.id, now)
            attempt = self.ledger.measured[peer.id].attempts if peer.id in self.ledger.measured else 1
        self._charges[peer.key] = Charge(
            group, reserved=verdict.reserved_bytes, attempt=attempt, oom_before=self.means.oom_kills(), now=now
        )
        self._send(peer, {"op": "go"})
        self._tell("started", peer.id)

    def _relieve(self, now: float, others: tuple[Seated, ...]) -> None:
        """End the youngest compile of all builds, where it is ours; whatever came past the launcher, where none is.

        Where the youngest is another build's and that does nothing for a while, ours must do.
        """
        self._calm_after = now + CALM_SECONDS
        if now - self._corrected < CORRECTION_SECONDS:
            return
        victim = self.admission.victim(now)
        if victim is None and len(others) and len(self.admission.running) == 1:
            [only] = self.admission.running
            elsewhere = [lease.started for other in others for lease in other.leases if lease.started is not None]
            if any(started < only.started + self._epoch for started in elsewhere):
                victim = only.lease  # the oldest of all goes on in another build
        if victim is None:
            self._end_strays()
            self._corrected = now
            return
        mine = next(each for each in self.admission.running if each.lease == victim).started + self._epoch
        younger = any((lease.started or 0.0) > mine for other in others for lease in other.leases)
        if younger and now - self._corrected < CORRECTION_SECONDS * 3:
            return
        self._corrected = now
        charge = self._charges.get(victim)
        if charge is not None and charge.group is not None and not charge.killed:
            charge.killed = True
            charge.group.kill(except_pid=self._peers[victim].pid)

    def _end_strays(self) -> None:
        """End the largest compiler that came past the launcher, before the kernel ends something else."""
        groups = [charge.group for charge in self._charges.values() if charge.group is not None]
        compilers = [stray for stray in strays(os.getpid(), groups) if stray.compiler]
        if compilers and compilers[0].memory_bytes >= STRAY_BYTES and end_stray(compilers[0]):
            self.refusals.append(
                f"{compilers[0].name} (process {compilers[0].pid}) came past the launcher and was ended at "
                f"{gib(compilers[0].memory_bytes)}: memory had run out"
            )

    # telling -----------------------------------------------------------------------------------------

    def _tell(self, kind: Literal["started", "again"], number: int) -> None:
        begun = self.ledger.begun.get(number)
        if begun is not None:
            running, waiting = len(self.admission.running), len(self.admission.waiting)
            self._events.append(
                Event(kind=kind, id=number, tool=begun.tool, source=begun.source, running=running, waiting=waiting)
            )

    def _tell_all(self) -> None:
        """Hand on what happened, outside of every other work: a fault of the listener is not the protocol's."""
        events, self._events = self._events, []
        if self.on_event is not None:
            for event in events:
                self.on_event(event)
