"""Who builds in a workplace, what they said, how it ended."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from wheelmill.errors import DiskFullError, ToolkitError, WheelmillError
from wheelmill.tenancy import Files, Outcome, Tail, Tenant, repeat, settle, spell_time, telling, tenancy, tenant_of


class Heard:
    """A Reporter that remembers what was said, and how."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def step(self, text: str) -> None:
        self.lines.append(("step", text))

    def note(self, text: str) -> None:
        self.lines.append(("note", text))

    def warn(self, text: str) -> None:
        self.lines.append(("warn", text))


def tenant() -> Tenant:
    return tenant_of("demo", "1.0", "ab" * 32)


def outcome(root: Path) -> Outcome:
    return Outcome(**json.loads(Files(root=root).outcome.read_text()))


def test_a_tenant_is_known_while_it_is_there_and_after(tmp_path: Path) -> None:
    """By name, process and time; whether it is at it is seen by a lock."""
    files = Files(root=tmp_path)
    assert files.last() is None
    assert files.target() is None
    assert not files.running()
    me = tenant()
    with tenancy(tmp_path, me):
        assert files.last() == me
        assert files.running()
        assert files.outcome.read_text() == ""
        target = files.target()
        assert target is not None
        assert (target.pid, target.alive()) == (os.getpid(), True)
    assert files.last() == me
    assert not files.running()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": 1, "pid": "7", "started": 1.0}', "\x00"])
def test_a_torn_tenant_is_nobody(tmp_path: Path, content: str) -> None:
    """What makes no sense is not believed."""
    Files(root=tmp_path).tenant.write_text(content)
    assert Files(root=tmp_path).last() is None


def test_a_success_says_where_the_wheel_is(tmp_path: Path) -> None:
    """Trouble after that is not the build's."""

    def work() -> None:
        settle(tmp_path, wheel=Path("/house/demo.whl"), sha256="ff")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), tenancy(tmp_path, tenant()):
        work()
    assert outcome(tmp_path) == Outcome(status=0, wheel="/house/demo.whl", sha256="ff", wheelhouse="/house")


def test_an_outcome_is_read_after_its_folder_is_gone(tmp_path: Path) -> None:
    """A finished workplace is removed: whoever follows has the file open."""
    root = tmp_path / "place"
    root.mkdir()
    with tenancy(root, tenant()), Files(root=root).outcome.open() as follower:
        settle(root, wheel=Path("/house/demo.whl"), sha256="ff")
        for path in root.iterdir():
            path.unlink()
        root.rmdir()
        assert json.loads(follower.read())["status"] == 0


@pytest.mark.parametrize(
    ("error", "status", "kind", "message"),
    [
        (ToolkitError("no CUDA", advice="get one"), 5, "cuda-mismatch", "no CUDA"),
        (DiskFullError("full", advice="get one"), 6, "disk-full", "full"),
        (KeyboardInterrupt(), 130, "interrupted", "the build of demo was stopped"),
        (OSError(28, "No space left", "/x"), 6, "disk-full", "no room left on the disk of /x"),
        (ZeroDivisionError("x"), 1, "unknown", "the build broke: ZeroDivisionError('x')"),
    ],
)
def test_a_failure_can_be_had_again(tmp_path: Path, error: BaseException, status: int, kind: str, message: str) -> None:
    """With its status, kind, words and advice."""
    with pytest.raises(type(error)), tenancy(tmp_path, tenant()):
        raise error
    found = outcome(tmp_path).failure()
    assert (found.exit_status, found.kind, str(found)) == (status, kind, message)
    if isinstance(error, WheelmillError):
        assert found.advice == error.advice


def test_an_earlier_outcome_is_no_outcome(tmp_path: Path) -> None:
    """The next start begins with an empty file, the same one."""
    with pytest.raises(KeyboardInterrupt), tenancy(tmp_path, tenant()):
        raise KeyboardInterrupt
    before = Files(root=tmp_path).outcome.stat().st_ino
    with tenancy(tmp_path, tenant()):
        assert (Files(root=tmp_path).outcome.stat().st_ino, Files(root=tmp_path).outcome.read_text()) == (before, "")


def test_what_was_said_can_be_said_again(tmp_path: Path) -> None:
    """Steps, details and warnings keep their sort; several lines stay together."""
    first, second = Heard(), Heard()
    with telling(tmp_path, first) as report:
        report.step("build")
        report.note("one\ntwo")
        report.warn("careful")
        with Files(root=tmp_path).told.open("rb") as stream:
            for line in Tail(stream=stream).lines():
                repeat(line, second)
    assert first.lines == [("step", "build"), ("note", "one\ntwo"), ("warn", "careful")]
    assert second.lines == [("step", "build"), ("note", "one"), ("note", "two"), ("warn", "careful")]


def test_only_whole_lines_are_read(tmp_path: Path) -> None:
    """The rest comes with its end, or at the end of all."""
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    with path.open("rb") as stream, path.open("ab") as writer:
        tail = Tail(stream=stream)
        assert list(tail.lines()) == ["one"]
        writer.write(b"o\nthree \xff")
        writer.flush()
        assert list(tail.lines()) == ["two"]
        assert list(tail.lines(all_of_it=True)) == ["three \ufffd"]
        assert list(tail.lines(all_of_it=True)) == []


def test_times(tmp_path: Path) -> None:
    """Another day has its date."""
    assert len(spell_time(tenant().started)) == len("12:34:56")
    assert len(spell_time(0)) == len("1970-01-01 00:00")
    assert set(asdict(tenant())) >= {"pid", "started", "boot_id"}
