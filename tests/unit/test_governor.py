import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmill.errors import EnvironmentUnfitError, UsageError, WheelmillError
from wheelmill.governor import (
    CompileSummary,
    Event,
    Governor,
    Ledger,
    Slots,
    read_records,
)

BEGIN: dict[str, object] = {
    "op": "begin",
    "tool": "nvcc",
    "kind": "compile",
    "argv": ["-c", "csrc/a.cu"],
    "cwd": "/wheelmill/source",
    "output": "a.o",
    "source": "csrc/a.cu",
    "archs_asked": ["sm_90", "sm_100"],
    "archs_used": ["sm_100"],
    "rewrites": ["archs: removed sm_90"],
    "ccache": True,
}
DONE: dict[str, object] = {
    "op": "done",
    "exit": 0,
    "signal": 0,
    "wall": 2.5,
    "cpu": 2.25,
    "peak_rss_bytes": 1 << 30,
}


# The pure core


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 20))))
def test_slots_hold_their_laws(jobs: int, steps: list[tuple[bool, int]]) -> None:
    """Never more than `jobs` run, nobody waits beside a free slot, first come is first served, none is lost."""
    slots, order, granted = Slots(jobs), list[int](), list[int]()
    gone: set[int] = set()
    for wants, lease in steps:
        if wants and lease not in order:
            order.append(lease)
            granted += slots.want(lease)
        elif not wants and lease in order:
            gone.add(lease)
            granted += slots.release(lease)

        assert len(slots.running) <= jobs
        assert not slots.waiting or len(slots.running) == jobs
        assert slots.running | set(slots.waiting) == set(order) - gone
        assert granted == [lease for lease in order if lease in granted]


def test_jobs_are_positive() -> None:
    """Without a slot nothing would ever run."""
    with pytest.raises(UsageError) as caught:
        Slots(0)

    assert str(caught.value) == "jobs must be at least 1, not 0"


def finished(ledger: Ledger, *, gate: bool, status: int = 0, **fields: object) -> Any:
    begun = ledger.begin({**BEGIN, **fields}, 1.0)
    if gate:
        ledger.want(begun.id, 2.0)
        ledger.grant(begun.id, 5.0)
        ledger.done(begun.id, DONE)
    return ledger.end(begun.id, status, 8.0)


@pytest.mark.parametrize(
    ("gate", "status", "fields", "cache"),
    [
        (False, 0, {}, "hit"),
        (True, 0, {}, "miss"),
        (False, 1, {}, "miss"),
        (True, 0, {"ccache": False}, "off"),
        (True, 0, {"kind": "link", "ccache": False}, "link"),
    ],
)
def test_a_hit_is_a_success_without_a_gate(
    gate: bool,  # noqa: FBT001 - a table
    status: int,
    fields: dict[str, object],
    cache: str,
) -> None:
    """The governor tells hits, misses and links apart by what it saw."""
    assert finished(Ledger(), gate=gate, status=status, **fields).cache == cache


def test_times_of_a_record() -> None:
    """A miss has the compiler's times, a hit those of the look-up."""
    miss, hit = (finished(Ledger(), gate=gate) for gate in (True, False))

    assert (miss.started_s, miss.waited_s, miss.wall_s, miss.cpu_s) == (5.0, 3.0, 2.5, 2.25)
    assert (hit.started_s, hit.waited_s, hit.wall_s, hit.cpu_s) == (1.0, 0.0, 7.0, 0.0)


def test_attempts_are_counted() -> None:
    """A compile that was admitted twice is one record with two attempts."""
    ledger = Ledger()
    begun = ledger.begin(BEGIN, 0.0)
    ledger.want(begun.id, 0.0)
    ledger.grant(begun.id, 1.0)
    ledger.grant(begun.id, 4.0)
    ledger.done(begun.id, DONE)
    record = ledger.end(begun.id, 0, 9.0)

    assert record is not None
    assert (record.attempt, record.started_s) == (2, 4.0)
    assert ledger.summary.retries == 1


def test_totals() -> None:
    """The summary counts what happened."""
    ledger = Ledger()
    finished(ledger, gate=True)
    finished(ledger, gate=False)
    finished(ledger, gate=True, status=1, source="b.cu", archs_used=["sm_80"])
    finished(ledger, gate=True, kind="link", ccache=False, archs_used=[])

    assert ledger.summary == CompileSummary(
        compiles=4,
        links=1,
        cache_hits=1,
        failures=1,
        units=2,
        retries=0,
        cpu_seconds=6.75,
        peak_rss_bytes=1 << 30,
        archs=("sm_100", "sm_80"),
    )


def test_ending_twice_counts_once() -> None:
    """A launcher that said its end and then left is one record."""
    ledger = Ledger()
    begun = ledger.begin(BEGIN, 0.0)

    assert ledger.end(begun.id, 0, 1.0) is not None
    assert ledger.end(begun.id, -1, 1.0) is None
    ledger.done(begun.id, DONE)
    assert ledger.summary.compiles == 1
    assert not ledger.measured


# The server


class Client:
    """One side of the protocol."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(5)
        self.socket.connect(os.fspath(path))
        self.file = self.socket.makefile("rwb")

    def say(self, message: object) -> None:
        self.file.write(json.dumps(message).encode() + b"\n")
        self.file.flush()

    def hear(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.file.readline())
        return said

    def ask(self, message: object) -> dict[str, Any]:
        self.say(message)
        return self.hear()

    def hears_nothing(self) -> bool:
        self.socket.settimeout(0.1)
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self.file.close()
        self.socket.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Governor]:
    """Run a governor with one slot."""
    with Governor(tmp_path / "s", tmp_path / "compile.jsonl", 1) as governor:
        yield governor


@pytest.fixture
def client(server: Governor) -> Iterator[Callable[[], Client]]:
    """Give connections to it, as many as wanted."""
    clients: list[Client] = []

    def connect() -> Client:
        clients.append(Client(server.socket_path))
        return clients[-1]

    yield connect
    for one in clients:
        one.close()


def test_a_compile_from_begin_to_end(server: Governor, client: Callable[[], Client]) -> None:
    """The whole protocol leaves one record."""
    launcher, gate = client(), client()
    number = launcher.ask(BEGIN)["id"]

    assert gate.ask({"op": "want", "id": number}) == {"op": "go"}
    assert server.running == 1
    assert gate.ask(DONE) == {"op": "exit"}
    assert launcher.ask({"op": "end", "id": number, "exit": 0}) == {"op": "exit"}
    second = client().ask(BEGIN)["id"]

    [record] = read_records(server.record)
    assert second == number + 1
    assert (record.id, record.source, record.cache, record.exit) == (number, "csrc/a.cu", "miss", 0)
    assert record.archs_asked == ("sm_90", "sm_100")
    assert record.peak_rss_bytes == 1 << 30
    assert server.running == 0


def test_a_lost_gate_gives_its_lease_back(client: Callable[[], Client]) -> None:
    """A connection that closes frees the slot, whoever held it."""
    numbers = [client().ask(BEGIN)["id"] for _ in range(3)]
    first, waiting, second = client(), client(), client()
    assert first.ask({"op": "want", "id": numbers[0]}) == {"op": "go"}
    waiting.say({"op": "want", "id": numbers[1]})
    assert waiting.hears_nothing()
    second.say({"op": "want", "id": numbers[2]})
    assert second.hears_nothing()

    waiting.close()
    first.close()

    assert second.hear() == {"op": "go"}


def test_a_lost_launcher_is_on_record(server: Governor, client: Callable[[], Client]) -> None:
    """A launcher that was killed leaves a record that says so."""
    lost = client()
    lost.ask(BEGIN)
    lost.close()
    client().ask(BEGIN)

    [record] = read_records(server.record)
    assert record.exit == -1
    assert server.summary().failures == 1


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"op": "want", "id": 99}, "no compile 99 has begun"),
        ({"op": "done"}, "'done' is out of turn"),
        ({"op": "begin"}, "tool is not a string"),
        ({"op": "begin", **BEGIN, "argv": "x"}, "argv is not a list of strings"),
        ({"op": "want", "id": "1"}, "id is not a number"),
        (["want"], "a message is an object"),
    ],
)
def test_nonsense_is_refused(client: Callable[[], Client], message: object, reason: str) -> None:
    """A message that is not of the protocol gets an answer, and the governor lives on."""
    assert client().ask(message) == {"op": "refuse", "message": f"the governor did not understand: {reason}"}
    assert "id" in client().ask(BEGIN)


def test_events_tell_of_progress(tmp_path: Path) -> None:
    """The console hears of each start and end."""
    events: list[Event] = []
    with Governor(tmp_path / "s", tmp_path / "r", 1, on_event=events.append) as governor:
        path = governor.socket_path
        with Client(path) as launcher, Client(path) as gate:
            number = launcher.ask(BEGIN)["id"]
            gate.ask({"op": "want", "id": number})
            gate.ask(DONE)
            launcher.ask({"op": "end", "id": number, "exit": 0})

    assert [(event.kind, event.source, event.running) for event in events] == [
        ("started", "csrc/a.cu", 1),
        ("finished", "csrc/a.cu", 0),
    ]
    assert events[1].record is not None


def test_leaving_ends_whoever_waits(tmp_path: Path) -> None:
    """Nothing runs ungoverned: with the governor gone a waiting gate hears the end of the line."""
    with Governor(tmp_path / "s", tmp_path / "r", 1) as governor:
        gate = Client(governor.socket_path)

    assert gate.file.readline() == b""
    gate.close()
    assert not governor.socket_path.exists()


def test_a_long_socket_path_is_refused(tmp_path: Path) -> None:
    """The kernel would only say EINVAL."""
    path = tmp_path / ("x" * 120)

    with pytest.raises(EnvironmentUnfitError) as caught, Governor(path, tmp_path / "r", 1):
        pass

    assert str(caught.value) == (
        f"cannot listen at {path}: a socket's path may have 107 bytes, this has {len(str(path))}"
    )


def test_what_breaks_the_server_is_raised(tmp_path: Path) -> None:
    """An exception in the thread comes out where the block ends."""

    def fail(_: Event) -> None:
        raise RuntimeError("no console")

    governor = Governor(tmp_path / "s", tmp_path / "r", 1, on_event=fail)
    governor.__enter__()
    with Client(governor.socket_path) as launcher:
        launcher.ask(BEGIN)
    governor._thread.join(5)

    with pytest.raises(WheelmillError, match=r"the governor broke: RuntimeError\('no console'\)"):
        governor.__exit__(None, None, None)


# Records


def test_records_survive_a_cut_off_line(tmp_path: Path) -> None:
    """A crash in the middle of the last line costs that line only."""
    with Governor(tmp_path / "s", tmp_path / "r", 1) as governor, Client(governor.socket_path) as launcher:
        launcher.ask(BEGIN)
    line = (tmp_path / "r").read_text("utf-8")
    (tmp_path / "r").write_text(line + line[:40], "utf-8")

    assert len(read_records(tmp_path / "r")) == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[]", "not a compile record: list indices must be integers or slices, not str"),
        ('{"v": 2}', "a record of format 2, we read 1"),
        ('{"v": 1, "id": 1}', "not a compile record: tool is not a string"),
    ],
)
def test_a_bad_record_is_named(tmp_path: Path, line: str, reason: str) -> None:
    """The message names file and line."""
    path = tmp_path / "r"
    path.write_text(f"\n{line}\n", "utf-8")

    with pytest.raises(WheelmillError) as caught:
        read_records(path)

    assert str(caught.value) == f"{path}:2: {reason}"


def test_signals_have_their_usual_numbers() -> None:
    """128 + N in exit statuses relies on them."""
    assert (signal.SIGINT, signal.SIGTERM, signal.SIGKILL) == (2, 15, 9)
