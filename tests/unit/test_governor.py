import errno
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from machines import GIB, Computer

from wheelmill.account import Foresight, Terms, read_room
from wheelmill.cgroups import Usage
from wheelmill.errors import DiskFullError, EnvironmentUnfitError, WheelmillError
from wheelmill.governor import Governor
from wheelmill.limits import Limits
from wheelmill.peaks import Peaks, Sample, Unit
from wheelmill.records import Event, read_records
from wheelmill.roster import Roster

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


@pytest.fixture(autouse=True)
def _proud(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave this process alone: it is the gate of these tests, and must not become the kernel's first choice."""
    monkeypatch.setattr("wheelmill.governor.humble", lambda _pid: None)
    monkeypatch.setattr("wheelmill.governor.TICK_SECONDS", 0.01)
    monkeypatch.setattr("wheelmill.governor.CALM_SECONDS", 0.05)
    monkeypatch.setattr("wheelmill.account.ACCOUNT_PATIENCE", 0.02)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Governor]:
    """Run a governor with one slot."""
    with Computer().governor(tmp_path) as governor:
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
    assert server.state().running == 1
    assert gate.ask(DONE) == {"op": "exit"}
    assert launcher.ask({"op": "end", "id": number, "exit": 0}) == {"op": "exit"}
    second = client().ask(BEGIN)["id"]

    [record] = read_records(server.record)
    assert second == number + 1
    assert (record.id, record.source, record.cache, record.exit) == (number, "csrc/a.cu", "miss", 0)
    assert record.archs_asked == ("sm_90", "sm_100")
    assert record.peak_rss_bytes == 1 << 30
    assert server.state().running == 0


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
    with Computer().governor(tmp_path, on_event=events.append) as governor:
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
    with Computer().governor(tmp_path) as governor:
        gate = Client(governor.socket_path)

    assert gate.file.readline() == b""
    gate.close()
    assert not governor.socket_path.exists()


def test_a_long_socket_path_is_refused(tmp_path: Path) -> None:
    """The kernel would only say EINVAL."""
    folder = tmp_path / ("x" * 120)
    path = folder / "s"

    with pytest.raises(EnvironmentUnfitError) as caught, Computer().governor(folder):
        pass

    assert str(caught.value) == (
        f"cannot listen at {path}: a socket's path may have 107 bytes, this has {len(str(path))}"
    )


def test_what_breaks_the_server_is_raised(tmp_path: Path) -> None:
    """An exception in the thread comes out where the block ends."""

    def fail(_: Event) -> None:
        raise RuntimeError("no console")

    governor = Computer().governor(tmp_path, on_event=fail)
    governor.__enter__()
    with Client(governor.socket_path) as launcher:
        launcher.ask(BEGIN)
    governor._thread.join(5)

    with pytest.raises(WheelmillError, match=r"the governor broke: RuntimeError\('no console'\)"):
        governor.__exit__(None, None, None)


def test_a_full_disk_ends_every_compile_and_is_named(tmp_path: Path) -> None:
    """A record that finds no room ends the server: launchers hear that, none waits for ever, and the disk is at fault."""
    governor = Computer().governor(tmp_path)
    governor.__enter__()

    def full(_line: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    governor._sink.write = full  # type: ignore[method-assign]
    with Client(governor.socket_path) as one, Client(governor.socket_path) as two, Client(governor.socket_path) as gate:
        for launcher in (one, two):
            number = launcher.ask(BEGIN)["id"]
        gate.say({"op": "want", "id": number})
        one.say({"op": "end", "exit": 1})
        assert one.file.readline() == two.file.readline() == b""
        governor._thread.join(5)
    assert not governor.socket_path.exists()

    with pytest.raises(DiskFullError) as caught:
        governor.__exit__(None, None, None)
    assert str(caught.value) == f"no room left on the disk of {governor.record}"


# Memory


def foresight(**peaks: int) -> Foresight:
    """Know what each unit takes, in GiB."""
    return Foresight(
        peaks=Peaks(
            Sample(
                of=Unit(unit=f"csrc/{name}.cu", archs=("sm_100",), tool="nvcc"),
                wall_s=100.0,
                cpu_s=100.0,
                peak_bytes=size * GIB,
                how="cgroup1",
                outcome="ok",
            )
            for name, size in peaks.items()
        )
    )


def begin(client: Client, name: str) -> int:
    return int(client.ask({**BEGIN, "argv": [], "source": f"csrc/{name}.cu"})["id"])


def test_what_does_not_fit_waits(tmp_path: Path) -> None:
    """Two compiles of 6 GiB in 12 GiB less the reserve run one after the other; a small one goes beside the first."""
    computer = Computer(memory=12 * GIB)
    with computer.governor(tmp_path, 8, foresight=foresight(a=6, b=6, c=2)) as governor, ExitStack() as stack:
        launchers = [stack.enter_context(Client(governor.socket_path)) for _ in range(3)]
        first, second, small = (stack.enter_context(Client(governor.socket_path)) for _ in range(3))
        assert first.ask({"op": "want", "id": begin(launchers[0], "a")}) == {"op": "go"}
        second.say({"op": "want", "id": begin(launchers[1], "b")})
        assert second.hears_nothing()
        assert small.ask({"op": "want", "id": begin(launchers[2], "c")}) == {"op": "go"}
        assert governor.state().waiting == 1
        assert first.ask(DONE) == {"op": "exit"}
        assert second.hear() == {"op": "go"}


def test_what_can_never_fit_is_refused(tmp_path: Path) -> None:
    """The answer comes at once, with the arithmetic."""
    with Computer(memory=8 * GIB).governor(tmp_path, foresight=foresight(a=9)) as governor:
        path = governor.socket_path
        with Client(path) as launcher, Client(path) as gate:
            number = begin(launcher, "a")
            answer = gate.ask({"op": "want", "id": number})
            launcher.ask({"op": "end", "id": number, "exit": 1})
    [record] = read_records(tmp_path / "compile.jsonl")

    assert answer["op"] == "refuse"
    assert "needs 9.0 GiB, and 6.8 GiB may be used here" in answer["message"]
    assert (record.outcome, record.exit) == ("refused", 1)
    assert governor.refusals == [f"csrc/a.cu: {answer['message']}"]


@pytest.mark.parametrize("status", [137, 1])
@pytest.mark.parametrize(("killed_by", "outcome"), [("pressure", "pressure_kills"), ("oom", "oom_kills")])
def test_a_compile_killed_for_memory_runs_again(tmp_path: Path, killed_by: str, outcome: str, status: int) -> None:
    """The build system hears nothing of it: the gate is told to run the same compile once more.

    g++ itself ends with 1 where its cc1plus was killed.
    """
    computer, died = Computer(memory=20 * GIB), {**DONE, "exit": status, "signal": 0}
    with computer.governor(tmp_path, 8, foresight=foresight(a=2, b=2)) as governor:
        path = governor.socket_path
        with Client(path) as one, Client(path) as two, Client(path) as old, Client(path) as young:
            numbers = begin(one, "a"), begin(two, "b")
            assert old.ask({"op": "want", "id": numbers[0]}) == {"op": "go"}
            assert young.ask({"op": "want", "id": numbers[1]}) == {"op": "go"}
            if killed_by == "pressure":
                computer.free = GIB // 4
                wait_until(lambda: computer.holder.groups[1].killed)
                assert not computer.holder.groups[0].killed
                computer.free = 20 * GIB
            else:
                computer.holder.groups[1].usage = Usage(
                    current_bytes=0, peak_bytes=3 * GIB, cpu_seconds=1.0, oom_kills=1
                )
            assert young.ask(died) == {"op": "go"}
            assert young.ask(DONE) == {"op": "exit"}
            two.ask({"op": "end", "id": numbers[1], "exit": 0})
    [record, _] = read_records(tmp_path / "compile.jsonl")

    assert (record.source, record.attempt, record.exit, record.outcome) == ("csrc/b.cu", 2, 0, "ok")
    assert getattr(record, outcome) == 1
    assert all(group.closed for group in computer.holder.groups)


def test_a_compile_that_was_killed_by_hand_fails(tmp_path: Path) -> None:
    """Only a counter, or our own kill, makes it a matter of memory."""
    with Computer().governor(tmp_path) as governor:
        path = governor.socket_path
        with Client(path) as launcher, Client(path) as gate:
            number = begin(launcher, "a")
            gate.ask({"op": "want", "id": number})

            assert gate.ask({**DONE, "exit": 137}) == {"op": "exit"}


def test_a_failure_turns_away_what_waits(tmp_path: Path) -> None:
    """The build system has begun more compiles than run; after a failure it only waits for them. Later ones are new."""
    refusal = {"op": "refuse", "message": "another compile of this build has failed"}
    with Computer().governor(tmp_path, 1) as governor, ExitStack() as stack:
        one, two, three, four = (stack.enter_context(Client(governor.socket_path)) for _ in range(4))
        bad, waiting, late, new = (stack.enter_context(Client(governor.socket_path)) for _ in range(4))
        numbers = begin(one, "a"), begin(two, "b"), begin(three, "c")
        bad.ask({"op": "want", "id": numbers[0]})
        waiting.say({"op": "want", "id": numbers[1]})
        assert waiting.hears_nothing()
        bad.ask({**DONE, "exit": 1})
        assert waiting.hear() == refusal
        assert late.ask({"op": "want", "id": numbers[2]}) == refusal
        two.ask({"op": "end", "id": numbers[1], "exit": 1})
        assert new.ask({"op": "want", "id": begin(four, "d")}) == {"op": "go"}
    records = read_records(tmp_path / "compile.jsonl")

    assert [record.outcome for record in records if record.source == "csrc/b.cu"] == ["turned-away"]


def test_what_a_run_took_is_learned(tmp_path: Path) -> None:
    """The larger of the group's peak and the largest process's counts, and a file remembers it."""
    computer, learned = Computer(), tmp_path / "peaks.jsonl"
    known = Foresight(learned=learned, tools={"nvcc": "nvcc 13.0.88"})
    with computer.governor(tmp_path, foresight=known) as governor:
        path = governor.socket_path
        with Client(path) as launcher, Client(path) as gate:
            number = begin(launcher, "a")
            gate.ask({"op": "want", "id": number})
            computer.holder.groups[0].usage = Usage(current_bytes=GIB, peak_bytes=5 * GIB, cpu_seconds=2.0, oom_kills=0)
            gate.ask(DONE)
            launcher.ask({"op": "end", "id": number, "exit": 0})
    [line] = [json.loads(line) for line in learned.read_text("utf-8").splitlines()]

    assert (line["unit"], line["archs"], line["tool"]) == ("csrc/a.cu", ["sm_100"], "nvcc 13.0.88")
    assert (line["peak_bytes"], line["how"], line["outcome"]) == (5 * GIB, "cgroup1", "ok")


def test_what_has_run_says_something_of_what_waits(tmp_path: Path) -> None:
    """A kernel that nobody has measured is taken for the largest of the package, until one of its own kind has run."""
    computer, known = Computer(memory=12 * GIB), foresight(flash_bwd_a=9)
    with computer.governor(tmp_path, 8, foresight=known) as governor, ExitStack() as stack:
        launchers = [stack.enter_context(Client(governor.socket_path)) for _ in range(3)]
        gates = [stack.enter_context(Client(governor.socket_path)) for _ in range(3)]
        numbers = [begin(each, f"flash_fwd_{name}") for each, name in zip(launchers, "abc", strict=True)]
        assert gates[0].ask({"op": "want", "id": numbers[0]}) == {"op": "go"}
        for gate, number in zip(gates[1:], numbers[1:], strict=True):
            gate.say({"op": "want", "id": number})
        assert gates[1].hears_nothing()
        assert gates[0].ask(DONE) == {"op": "exit"}

        assert [gate.hear() for gate in gates[1:]] == [{"op": "go"}] * 2


def test_what_is_not_wanted_is_skipped(tmp_path: Path) -> None:
    """A measurement of some units makes empty objects of the others, and no record."""
    governor = Computer().governor(tmp_path, skip=lambda begun: begun.source.endswith("b.cu"))
    with governor, Client(governor.socket_path) as launcher:
        assert launcher.ask({**BEGIN, "source": "csrc/b.cu"}) == {"op": "skip"}

    assert not read_records(tmp_path / "compile.jsonl")


def test_room_is_the_smallest_of_machine_group_and_request() -> None:
    """What ours use already counts as room; the reserve is 15 % of the whole, and at least 1 GiB."""
    limits = Limits(cpus=4, memory_bytes=40 * GIB, available_bytes=10 * GIB, pids=None)

    shared = read_room(limits, Terms(jobs=8), used=10 * GIB, others=())
    bound = read_room(limits, Terms(jobs=2, memory_bytes=10 * GIB), used=9 * GIB, others=())

    assert (shared.room.hard_bytes, shared.room.free_bytes, shared.room.slots) == (34 * GIB, 7 * GIB, 4)
    assert not shared.critical
    assert (bound.room.hard_bytes, bound.room.free_bytes, bound.room.slots) == (
        10 * GIB - 3 * GIB // 2,
        -GIB // 2,
        2,
    )
    assert not bound.critical
    assert read_room(limits, Terms(jobs=2, memory_bytes=10 * GIB), used=10 * GIB, others=()).critical


def wait_until(true: Callable[[], bool]) -> None:
    """Give the governor's thread its time."""
    deadline = time.monotonic() + 5
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_signals_have_their_usual_numbers() -> None:
    """128 + N in exit statuses relies on them."""
    assert (signal.SIGINT, signal.SIGTERM, signal.SIGKILL) == (2, 15, 9)


def test_without_the_account_nothing_is_admitted(tmp_path: Path) -> None:
    """Another build's process was stopped while it held it: what it was about to claim nobody knows."""
    roster = Roster(directory=tmp_path)
    means = replace(Computer().means(), roster=roster)
    governor = Governor(tmp_path / "s", tmp_path / "compile.jsonl", Terms(jobs=1), means)
    with governor, Client(governor.socket_path) as launcher, Client(governor.socket_path) as gate:
        number = begin(launcher, "a")
        with roster.account() as held:
            assert held
            gate.say({"op": "want", "id": number})
            assert gate.hears_nothing()
        assert gate.hear() == {"op": "go"}
