import errno
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmill.errors import WheelmillError
from wheelmill.records import CompileSummary, Course, Ledger, RecordSink, read_records, settled

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


def finished(ledger: Ledger, *, gate: bool, status: int = 0, **fields: object) -> Any:
    begun = ledger.begin({**BEGIN, **fields}, 1.0)
    if gate:
        ledger.want(begun.id, 2.0)
        ledger.grant(begun.id, 5.0)
        ledger.done(begun.id, DONE, Course())
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
    ledger.done(begun.id, DONE, Course())
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
    ledger.done(begun.id, DONE, Course())
    assert ledger.summary.compiles == 1
    assert not ledger.measured


# Records


def test_records_survive_a_cut_off_line(tmp_path: Path) -> None:
    """A crash in the middle of the last line costs that line only."""
    line = json.dumps(asdict(finished(Ledger(), gate=True))) + "\n"
    (tmp_path / "r").write_text(line + line[:40], "utf-8")

    assert len(read_records(tmp_path / "r")) == 1


def test_the_next_record_is_not_written_behind_half_a_line(tmp_path: Path) -> None:
    """Half a line of a killed build is taken back before anything is added."""
    path = tmp_path / "r"
    line = json.dumps(asdict(finished(Ledger(), gate=True)))
    for before in ("", line[:40], f"{line}\n", f"{line}\n{line[:40]}"):
        path.write_text(before, "utf-8")
        sink = RecordSink(path)
        sink.write(line)
        sink.close()
        assert path.read_text("utf-8") == f"{line}\n" * (before.count("\n") + 1)


def test_half_a_record_is_taken_back_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a line, or nothing of it."""
    path, real = tmp_path / "r", os.write
    sink = RecordSink(path)
    sink.write("one")

    def short(descriptor: int, content: bytes) -> int:
        if len(content) < 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, content[:3])

    monkeypatch.setattr("wheelmill.records.os.write", short)
    with pytest.raises(OSError, match="No space left on device"):
        sink.write("second")
    monkeypatch.undo()
    sink.write("two")
    sink.close()
    assert path.read_text("utf-8") == "one\ntwo\n"


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


def test_a_record_of_before_is_read(tmp_path: Path) -> None:
    """Records of a build that an older wheelmill began lack what the governor measures now."""
    fields = asdict(finished(Ledger(), gate=True, status=1))
    for name in (
        "outcome",
        "peak_bytes",
        "how",
        "reserved_bytes",
        "settled_at",
        "tail_bytes",
        "pressure_kills",
        "oom_kills",
    ):
        del fields[name]
    (tmp_path / "r").write_text(json.dumps(fields) + "\n", "utf-8")

    [record] = read_records(tmp_path / "r")

    assert (record.outcome, record.how, record.memory) == ("failed", "wait4", 1 << 30)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Nothing is lost on the way through the file."""
    record = finished(Ledger(), gate=True)
    (tmp_path / "r").write_text(json.dumps(asdict(record)) + "\n", "utf-8")

    assert read_records(tmp_path / "r") == (record,)


def test_kills_and_refusals_are_on_record() -> None:
    """A compile that was killed twice for memory and then turned away says all of it."""
    ledger = Ledger()
    begun = ledger.begin(BEGIN, 0.0)
    ledger.want(begun.id, 0.0)
    for why in ("pressure", "oom"):
        ledger.grant(begun.id, 1.0)
        ledger.killed(begun.id, why)  # type: ignore[arg-type]  # both are
    ledger.refuse(begun.id, "turned-away")
    record = ledger.end(begun.id, 1, 9.0)

    assert record is not None
    assert (record.outcome, record.pressure_kills, record.oom_kills, record.attempt) == ("turned-away", 1, 1, 2)
    assert (ledger.summary.pressure_kills, ledger.summary.oom_kills) == (1, 1)


def test_memory_settles_after_its_peak() -> None:
    """A backward kernel's shape: up in the first quarter, then a low plateau."""
    samples = [(float(at), 1000 if 10 < at < 25 else 100 + at) for at in range(101)]

    assert settled(samples, 1000) == (0.25, 200)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 1 << 34))))
def test_what_memory_settles_to_is_below_its_peak(samples: list[tuple[float, int]]) -> None:
    """Whatever was measured, the share is one and the tail is at most the peak."""
    samples = sorted(samples)
    peak = max((held for _, held in samples), default=0)
    share, tail = settled(samples, peak)

    assert 0.0 <= share <= 1.0
    assert tail <= peak
