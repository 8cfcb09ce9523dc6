"""Builds that run already: following, choosing, showing."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from wheelmill import following
from wheelmill.errors import BuildFailedError, InterruptedBuildError, NothingSelectedError
from wheelmill.following import (
    as_json,
    chosen,
    end,
    family_of,
    find_log,
    follow,
    living,
    log_lines,
    paragraph,
    told_elsewhere,
)
from wheelmill.roster import Lease, Occupant, Roster, Seat, Target, open_roster, pid_namespace
from wheelmill.runtime import Directories
from wheelmill.tenancy import Files, settle, telling, tenancy, tenant_of

GIB = 2**30


class Heard:
    """A Reporter that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, text: str) -> None:
        self.lines.append(text)

    note = warn = step


@pytest.fixture
def roster(tmp_path: Path) -> Roster:
    return open_roster({"XDG_RUNTIME_DIR": str(tmp_path)})


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    return Directories(cache=tmp_path / "cache", wheelhouse=tmp_path / "house")


def seat(roster: Roster, directories: Directories, name: str = "demo", drv: str = "ab" * 32) -> Seat:
    place = directories.builds / drv[:20]
    return roster.enter(
        Occupant(
            name=name,
            version="1.0",
            drv=drv,
            pid=os.getpid(),
            workplace=place,
            log=place / "build.log",
            wheelhouse=directories.wheelhouse,
            started=1000.0,
        )
    )


def build(root: Path, ready: threading.Event, go_on: threading.Event, how: Callable[[], None]) -> None:
    """Play a build in a workplace."""
    try:
        with tenancy(root, tenant_of("demo", "1.0", "ab" * 32)), telling(root, Heard()) as report:
            report.step("build")
            ready.set()
            go_on.wait(5)
            report.note("[1] nvcc a.cu")
            how()
    except (KeyboardInterrupt, BuildFailedError):
        return


def followed(root: Path, how: Callable[[], None]) -> tuple[object, list[str]]:
    """Follow such a build to its end."""
    ready, go_on, heard = threading.Event(), threading.Event(), Heard()
    thread = threading.Thread(target=build, args=(root, ready, go_on, how))
    thread.start()
    assert ready.wait(5)
    threading.Timer(0.1, go_on.set).start()
    outcome = follow(root, heard)
    thread.join()
    return outcome, heard.lines


def test_a_build_is_followed_to_its_end(tmp_path: Path) -> None:
    """All that it says from its start on; then its outcome."""

    def failing() -> None:
        raise BuildFailedError("nvcc failed", advice="read")

    outcome, lines = followed(tmp_path, failing)
    assert lines[0].startswith(f"demo 1.0 is being built by process {os.getpid()} since ")
    assert lines[2:] == ["build", "[1] nvcc a.cu"]
    assert (outcome.status, outcome.message, outcome.advice) == (1, "nvcc failed", "read")
    outcome, _ = followed(tmp_path, lambda: settle(tmp_path, wheel=Path("/house/x.whl"), sha256="f"))
    assert (outcome.status, outcome.wheel) == (0, "/house/x.whl")


def test_a_killed_build_has_no_outcome(tmp_path: Path) -> None:
    """Nothing was written: whoever follows may go on with its objects."""
    outcome, _ = followed(tmp_path, lambda: None)
    assert outcome is None


def test_where_nobody_builds_there_is_nothing_to_follow(tmp_path: Path) -> None:
    """Neither in an empty folder nor in one whose build has ended."""
    assert follow(tmp_path, Heard()) is None
    followed(tmp_path, lambda: settle(tmp_path, wheel=Path("/house/x.whl"), sha256="f"))
    assert follow(tmp_path, Heard()) is None


def test_who_follows_may_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C says that the build goes on, and how to get at it."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(following.time, "sleep", interrupt)
    with tenancy(tmp_path, tenant_of("demo", "1.0", "ab" * 32)):
        with pytest.raises(InterruptedBuildError) as caught:
            follow(tmp_path, Heard())
        assert Files(root=tmp_path).running()
    assert str(caught.value) == "left the build of demo: it goes on"
    assert "wheelmill log --follow" in caught.value.advice


# choosing


def test_the_only_build_needs_no_name(roster: Roster, directories: Directories) -> None:
    """Of several, one is named by its package or the beginning of its derivation; or all are meant."""
    with pytest.raises(NothingSelectedError, match="nothing is being built"):
        chosen(roster, [], everything=True)
    with seat(roster, directories):
        assert len(chosen(roster, [], everything=False)) == 1
        with seat(roster, directories, name="other", drv="cd" * 32):
            with pytest.raises(NothingSelectedError) as caught:
                chosen(roster, [], everything=False)
            assert str(caught.value).startswith("several builds run: ")
            assert [each.occupant.name for each in chosen(roster, ["other"], everything=False)] == ["other"]
            assert [each.occupant.name for each in chosen(roster, ["abab"], everything=False)] == ["demo"]
            assert len(chosen(roster, [], everything=True)) == 2
            for name in ("third", "ab", "bab"):
                with pytest.raises(NothingSelectedError, match=f"no build of {name} runs here"):
                    chosen(roster, [name], everything=False)


def test_the_same_build_elsewhere_is_told(roster: Roster, directories: Directories) -> None:
    """Only in another workplace, and only of the same derivation."""
    with seat(roster, directories) as held:
        place = held.state.occupant.workplace
        assert told_elsewhere(roster, "ab" * 32, place) == ""
        assert told_elsewhere(roster, "cd" * 32, Path("/other")) == ""
        told = told_elsewhere(roster, "ab" * 32, Path("/other"))
        assert told.startswith(
            f"process {os.getpid()} builds this very derivation in another cache, {directories.cache}, since "
        )


# showing


def test_a_running_build_in_words_and_as_json(roster: Roster, directories: Directories) -> None:
    """Since when, how far, how much memory, where its log is, and whether anybody listens."""
    with seat(roster, directories) as held:
        held.write(
            [
                Lease(unit="a.cu", reserved_bytes=4 * GIB, current_bytes=GIB, started=1030.0),
                Lease(unit="b.cu", reserved_bytes=2 * GIB),
            ],
            done=7,
        )
        held.detach()
        [seen] = roster.others()
    text = paragraph(seen, now=1060.0).splitlines()
    assert text[0].startswith(f"demo 1.0 (abababababab, process {os.getpid()}), since 1970-01-01 ")
    assert text[0].endswith("(1 min 0 s), its terminal is gone")
    assert text[1:] == [
        "  compiles: 7 done, 1 running, 1 waiting; memory: 4.0 GiB reserved, 1.0 GiB used",
        "    a.cu: 30 s, 1.0 GiB of 4.0 GiB",
        f"  log: {held.state.occupant.log}",
    ]
    document = as_json(seen)
    assert {name: document[name] for name in ("name", "done", "running", "waiting", "detached")} == {
        "name": "demo",
        "done": 7,
        "running": 1,
        "waiting": 1,
        "detached": True,
    }
    assert (document["reserved_bytes"], document["used_bytes"]) == (4 * GIB, GIB)
    assert document["compiles"][1] == {"unit": "b.cu", "reserved_bytes": 2 * GIB, "current_bytes": 0, "started": None}


def test_the_log_of_a_running_build_and_of_the_last_one(roster: Roster, directories: Directories) -> None:
    """Running ones first; then what failed last; a name chooses."""
    with pytest.raises(NothingSelectedError, match="no build runs, and none has left a log"):
        find_log(roster, directories, [])
    for name, drv in (("old", "cd" * 32), ("new", "ef" * 32)):
        place = directories.builds / drv[:20]
        place.mkdir(parents=True)
        with tenancy(place, tenant_of(name, "1.0", drv)):
            (place / "build.log").write_text(f"log of {name}\nend")
        time.sleep(0.002)
    assert list(log_lines(find_log(roster, directories, []), follow_it=False)) == ["log of new", "end"]
    assert list(log_lines(find_log(roster, directories, ["old"]), follow_it=True)) == ["log of old", "end"]
    with seat(roster, directories) as held:
        log = find_log(roster, directories, [])
        assert (log.path, log.running()) == (held.state.occupant.log, True)
        with pytest.raises(NothingSelectedError):
            find_log(roster, directories, ["nobody"])
    assert not log.running()


def test_a_log_is_followed_until_its_build_ends(roster: Roster, directories: Directories) -> None:
    """Also one that is not there yet."""
    held = seat(roster, directories)
    log = find_log(roster, directories, [])

    def write() -> None:
        time.sleep(0.05)
        log.path.parent.mkdir(parents=True)
        log.path.write_text("one\n")
        time.sleep(0.05)
        with log.path.open("a") as stream:
            stream.write("two\nlast")
        held.leave()

    thread = threading.Thread(target=write)
    thread.start()
    assert list(log_lines(log, follow_it=True)) == ["one", "two", "last"]
    thread.join()


# ending


def test_a_family_is_known_by_number_and_start() -> None:
    """Another process with the same number is another one."""
    target = Target(pid=os.getpid(), pid_namespace=pid_namespace(), name="demo", alive=lambda: True)
    [(pid, start)] = [entry for entry in family_of(target) if entry[0] == os.getpid()]
    assert living({(pid, start), (pid, start + 1), (2**22 + 1, 5)}) == {(pid, start)}


def test_what_ended_already_is_said() -> None:
    """No signal is sent where the lock is free."""
    assert end(Target(pid=2**22 + 1, pid_namespace=pid_namespace(), name="demo", alive=lambda: False)) == (
        "it had ended already"
    )
