"""The roster: who lives is seen by locks alone, and nothing that lies in its folder is believed blindly."""

import fcntl
import json
import os
import signal
from pathlib import Path

import pytest

from wheelmill import roster as module
from wheelmill.errors import EnvironmentUnfitError
from wheelmill.roster import Lease, Occupant, Roster, Target, open_roster, pid_namespace, roster_directory


@pytest.fixture
def roster(tmp_path: Path) -> Roster:
    return open_roster({"XDG_RUNTIME_DIR": str(tmp_path)})


def occupant(**changed: object) -> Occupant:
    values: dict[str, object] = {
        "name": "demo",
        "version": "1.0+cu130",
        "drv": "ab" * 32,
        "pid": os.getpid(),
        "workplace": Path("/cache/builds/abab"),
        "log": Path("/cache/builds/abab/build.log"),
        "wheelhouse": Path("/house"),
        "started": 1000.5,
    }
    return Occupant(**{**values, **changed})


def test_a_seat_is_seen_by_others_and_not_by_itself(roster: Roster) -> None:
    """What it holds, as it last said; nothing any more once it is given up."""
    with roster.enter(occupant()) as seat, roster.enter(occupant(name="other", started=999.0)) as other:
        leases = [
            Lease(unit="a.cu", reserved_bytes=10, current_bytes=4, started=1001.0),
            Lease(unit="b.cu", reserved_bytes=20, current_bytes=25, started=1002.0),
            Lease(unit="c.cu", reserved_bytes=7),
        ]
        assert seat.write(leases, done=3)
        [seen] = roster.others(other)
        assert (seen.occupant, seen.leases, seen.done) == (occupant(), tuple(leases), 3)
        assert (seen.running, seen.waiting) == (2, 1)
        assert (seen.reserved_bytes, seen.current_bytes, seen.pending_bytes) == (30, 29, 6)
        assert [each.occupant.name for each in roster.others()] == ["other", "demo"]
        assert not seen.detached
        seat.detach()
        seat.write([])
        [seen] = roster.others(other)
        assert (seen.detached, seen.leases, seen.done) == (True, (), 3)
    assert roster.others() == ()
    assert list(roster.directory.iterdir()) == []
    seat.detach()  # a thread that has not heard of it
    assert not seat.write([])
    assert list(roster.directory.iterdir()) == []


def test_what_the_dead_left_is_removed(roster: Roster) -> None:
    """A lock that nobody holds is a dead process's, whatever its content says."""
    seat = roster.enter(occupant())
    seat.lock.close()  # as the kernel does
    assert seat.content_path.exists()
    assert roster.others() == ()
    assert list(roster.directory.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "7", '{"schema": 2}', "NaN", '{"schema": 1, "name": "x"}', '{"schema":' + "[" * 5000, b"\xff\xfe"],
)
def test_torn_and_foreign_content_is_skipped(roster: Roster, content: str | bytes) -> None:
    """A seat whose content makes no sense counts for nothing, and is not removed: its process lives."""
    with roster.enter(occupant()) as seat:
        seat.content_path.write_bytes(content if isinstance(content, bytes) else content.encode())
        assert roster.others() == ()
        assert seat.lock_path.exists()
        seat.write([])
        assert len(roster.others()) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pid", 0),
        ("pid", -1),
        ("pid", "1"),
        ("pid", True),
        ("name", None),
        ("started", "noon"),
        ("leases", {}),
        ("leases", [["a", -5, 0, None]]),
        ("leases", [["a", 5]]),
        ("done", 1.5),
    ],
)
def test_no_field_is_believed(roster: Roster, key: str, value: object) -> None:
    """A process id of 0 or -1 would mean everybody."""
    with roster.enter(occupant()) as seat:
        content = json.loads(seat.content_path.read_text())
        seat.content_path.write_text(json.dumps({**content, key: value}))
        assert roster.others() == ()


def test_links_are_not_followed(roster: Roster, tmp_path: Path) -> None:
    """Neither as a content nor as a lock."""
    with roster.enter(occupant()) as seat:
        elsewhere = tmp_path / "elsewhere"
        seat.content_path.rename(elsewhere)
        seat.content_path.symlink_to(elsewhere)
        assert roster.others() == ()
        (roster.directory / "link.lock").symlink_to(elsewhere)
        assert roster.others() == ()
        assert elsewhere.exists()


def test_a_seat_survives_the_removal_of_its_folder(roster: Roster) -> None:
    """A cleaner of /tmp: the next word of the build puts it back, and the lock with it."""
    with roster.enter(occupant()) as seat:
        for path in roster.directory.iterdir():
            path.unlink()
        roster.directory.rmdir()
        assert roster.others() == ()
        assert seat.write([Lease(unit="a", reserved_bytes=1)])
        assert [each.waiting for each in roster.others()] == [1]
    assert roster.others() == ()


def test_a_full_disk_is_not_the_end_of_a_build(roster: Roster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seat says that it could not say."""
    with roster.enter(occupant()) as seat:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "write_text", full)
        assert not seat.write([])


def test_the_account_is_held_by_one(roster: Roster) -> None:
    """A second one waits, and gives up after its patience: whoever holds it was stopped in the middle."""
    with roster.account() as first:
        assert first
        with roster.account(patience=0.05) as second:
            assert not second
    with roster.account(patience=0.05) as third:
        assert third


def test_locks_are_not_inherited(roster: Roster) -> None:
    """A compiler that outlives us must not look like us."""
    with roster.enter(occupant()) as seat:
        assert fcntl.fcntl(seat.lock.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC


# signals


def target(**changed: object) -> Target:
    values = {"pid": os.getpid(), "pid_namespace": pid_namespace(), "name": "demo", "alive": lambda: True}
    return Target(**{**values, **changed})


def test_a_signal_reaches_only_whom_the_lock_proves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a process that got the number later: the lock is looked at after the process was opened."""
    sent = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda _, number: sent.append(number))
    assert target().signal(signal.SIGTERM)
    assert sent == [signal.SIGTERM]
    assert not target(alive=lambda: False).signal(signal.SIGTERM)
    assert not target(pid=2**22 + 1).signal(signal.SIGTERM)
    assert sent == [signal.SIGTERM]


def test_another_containers_process_is_not_known_by_its_number() -> None:
    """Two containers may share /tmp: the number means another process there."""
    with pytest.raises(EnvironmentUnfitError) as caught:
        target(pid_namespace=1, pid=77).signal(signal.SIGTERM)
    assert str(caught.value) == "demo is built in another container (process 77 there)"
    assert caught.value.advice == "Run `wheelmill stop demo` in that container."


# the folder


def test_one_folder_however_one_logs_in() -> None:
    """/run/user/UID goes with the last login, and cron has none: it is passed over."""
    assert roster_directory({}, 1000) == Path("/tmp/wheelmill-1000")
    assert roster_directory({"XDG_RUNTIME_DIR": "/run/user/1000"}, 1000) == Path("/tmp/wheelmill-1000")
    assert roster_directory({"XDG_RUNTIME_DIR": "relative"}, 1000) == Path("/tmp/wheelmill-1000")
    assert roster_directory({"XDG_RUNTIME_DIR": "/somewhere"}, 1000) == Path("/somewhere/wheelmill")


def test_the_folder_is_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made for us, closed where it was open, refused where it is a link or somebody else's."""
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    place = tmp_path / "wheelmill"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    open_roster(env)
    assert place.stat().st_mode & 0o777 == 0o700
    place.rmdir()
    (tmp_path / "other").mkdir()
    place.symlink_to(tmp_path / "other")
    with pytest.raises(EnvironmentUnfitError) as caught:
        open_roster(env)
    assert (
        str(caught.value) == f"the folder of this user's running builds, {place}, cannot be used: {place} is no folder"
    )
    assert caught.value.advice == "Remove it where it is yours, or name another place: XDG_RUNTIME_DIR=DIR."
    place.unlink()
    place.mkdir()
    monkeypatch.setattr(module.os, "getuid", lambda: 12345)
    with pytest.raises(EnvironmentUnfitError, match="belongs to another user"):
        open_roster(env)
