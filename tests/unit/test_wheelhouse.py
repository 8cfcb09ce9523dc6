"""The wheelhouse: whole entries or none, one derivation per name, clear words about the disk."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from wheelmill import wheelhouse as module
from wheelmill.errors import EnvironmentUnfitError, VerifyError
from wheelmill.store import DiskFullError
from wheelmill.wheelhouse import NameTakenError, Wheelhouse

NAME = "flash_attn-2.8.3+cu130-1-cp312-cp312-manylinux_2_34_x86_64.whl"
OTHER = "vllm-0.22.0+cu130-1-cp312-cp312-manylinux_2_34_x86_64.whl"


class Killed(BaseException):
    """What no `except Exception` sees."""


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the forcing to disk: hundreds of times it takes seconds."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    """Give a wheelhouse that does not exist yet."""
    return Wheelhouse(root=tmp_path / "wheelhouse")


@pytest.fixture
def verified(tmp_path: Path) -> Callable[[bytes, str], Path]:
    """Make wheels, as far as a wheelhouse looks at them."""

    def make(data: bytes, name: str = NAME) -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        path.chmod(0o600)
        (tmp_path / "build.log").write_text("ninja: done\n")
        return path

    return make


def enter(house: Wheelhouse, wheel: Path, drv: str = "d1", **record: object) -> module.Entry:
    """Enter a wheel with the least of a build record."""
    return house.enter(wheel, build_record={"drv": drv, **record}, log=wheel.parent / "build.log")


def contents(house: Wheelhouse) -> dict[str, bytes]:
    """Give every file but the lock."""
    return {path.name: path.read_bytes() for path in house.root.rglob("*") if path.is_file() and path.name != ".lock"}


def test_entry_has_wheel_record_and_log(house: Wheelhouse, verified: Callable[..., Path]) -> None:
    """Three files, readable by all whatever the source's mode; the record says which bytes it speaks of."""
    entry = enter(house, verified(b"wheel"), seconds=3)

    assert entry.wheel == house.root / NAME
    assert sorted(contents(house)) == [NAME, f"{NAME}.build.json", f"{NAME}.log"]
    assert json.loads(entry.build_record.read_text()) == {
        "drv": "d1",
        "seconds": 3,
        "sha256": entry.sha256,
        "size": 5,
        "wheel": NAME,
    }
    assert entry.log.read_text() == "ninja: done\n"
    assert {path.stat().st_mode & 0o777 for path in (entry.wheel, entry.build_record, entry.log)} == {0o644}
    entry.check()


def test_find_by_derivation(house: Wheelhouse, verified: Callable[..., Path]) -> None:
    """The cache key finds the wheel; a folder that is not there holds nothing."""
    assert house.find("d1") is None
    first = enter(house, verified(b"one"), index="cu130-torch2.11.0-sm100")
    assert first.index == "cu130-torch2.11.0-sm100"
    second = enter(house, verified(b"two", OTHER), drv="d2")

    assert (house.find("d1"), house.find("d2"), house.find("d3")) == (first, second, None)
    assert house.entries() == (first, second)


def test_damaged_entries_are_not_found(house: Wheelhouse, verified: Callable[..., Path]) -> None:
    """A wheel that is gone, cut or without a readable record is no hit; same size, other bytes: `check` sees it."""
    entry = enter(house, verified(b"wheel"))
    entry.wheel.write_bytes(b"WHEEL")
    with pytest.raises(VerifyError, match="was altered after it was entered"):
        entry.check()

    entry.wheel.write_bytes(b"cut")
    assert house.find("d1") is None
    entry.wheel.unlink()
    assert house.find("d1") is None
    for text in ("", "[]", '{"drv": 1}', "\udcff".encode("utf-8", "surrogatepass").decode("latin-1")):
        entry.build_record.write_text(text)
        assert house.find("d1") is None


def test_another_derivation_under_the_name_is_refused(house: Wheelhouse, verified: Callable[..., Path]) -> None:
    """File names are for ever: another build needs another revision."""
    enter(house, verified(b"one"))
    before = contents(house)

    with pytest.raises(NameTakenError) as caught:
        enter(house, verified(b"two"), drv="d2")

    assert str(caught.value) == (
        f"{house.root / NAME} is there already, built from other inputs\n  derivation there d1\n  derivation now   d2"
    )
    assert caught.value.advice == (
        "Raise `revision` in the recipe: it becomes the build tag, and so another file name; "
        "or take another wheelhouse: `--wheelhouse DIR`."
    )
    assert contents(house) == before


def test_same_wheel_again_is_kept(house: Wheelhouse, verified: Callable[..., Path]) -> None:
    """Nothing is touched, so that mirrors have nothing to copy."""
    enter(house, verified(b"one"), seconds=1)
    before = (house.root / NAME).stat()

    again = enter(house, verified(b"one"), seconds=2)

    assert (house.root / NAME).stat().st_ino == before.st_ino
    assert json.loads(again.build_record.read_text())["seconds"] == 1


def test_same_derivation_with_other_bytes_replaces(house: Wheelhouse, verified: Callable[..., Path]) -> None:
    """Another realisation of the same inputs is the user's wish; an altered wheel is put right."""
    enter(house, verified(b"one"))
    assert enter(house, verified(b"two")).wheel.read_bytes() == b"two"

    (house.root / NAME).write_bytes(b"bad")
    assert enter(house, verified(b"two")).wheel.read_bytes() == b"two"


@pytest.mark.parametrize("name", ["x.whl", "flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl"])
def test_unrepaired_wheels_stay_out(name: str, house: Wheelhouse, verified: Callable[..., Path]) -> None:
    """Installers rank linux_x86_64 above manylinux, so it would win over the repaired one."""
    with pytest.raises(VerifyError, match="cannot enter a wheelhouse"):
        enter(house, verified(b"x", name))
    assert not house.root.exists()


def test_record_must_name_its_derivation_and_its_wheel(house: Wheelhouse, verified: Callable[..., Path]) -> None:
    """What was verified is what enters."""
    with pytest.raises(VerifyError, match="names no derivation"):
        enter(house, verified(b"one"), drv="")
    with pytest.raises(VerifyError, match="is not the wheel that was verified"):
        enter(house, verified(b"one"), sha256="0" * 64)
    assert contents(house) == {}


EFFECTS = [
    (os, "link"),
    (Path, "replace"),
    (Path, "write_text"),
    (shutil, "copyfile"),
    (module, "digest_of"),
]


@pytest.mark.parametrize("replacing", [False, True], ids=["new", "replacing"])
@pytest.mark.parametrize(("owner", "effect"), EFFECTS, ids=[name for _, name in EFFECTS])
def test_a_failure_at_any_step_leaves_it_as_it_was(
    owner: object,
    effect: str,
    replacing: int,
    tmp_path: Path,
    verified: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every call of every effect fails once, before or after it has happened; nothing remains of the attempt."""
    for after in (False, True):
        for count in range(40):
            house = Wheelhouse(root=tmp_path / f"house-{after}-{count}")
            enter(house, verified(b"neighbour", OTHER), drv="d0")
            if replacing:
                enter(house, verified(b"one"))
            before, wheel = contents(house), verified(b"two")
            with monkeypatch.context() as patched:
                patched.setattr(owner, effect, failing(getattr(owner, effect), count, after=after))
                try:
                    enter(house, wheel)
                except Killed:
                    assert contents(house) == before, (count, after)
                else:
                    break
        else:
            pytest.fail("the effect never stopped failing")


def failing(original: Callable[..., object], count: int, *, after: bool) -> Callable[..., object]:
    """Make the call number `count` raise."""
    calls = iter(range(1000))

    def call(*args: object, **kwargs: object) -> object:
        if next(calls) != count:
            return original(*args, **kwargs)
        if after:
            original(*args, **kwargs)
        raise Killed

    return call


@pytest.mark.parametrize("replacing", [False, True], ids=["new", "replacing"])
def test_what_a_kill_leaves_behind_is_undone_by_the_next(
    replacing: int, tmp_path: Path, verified: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No handler ran: until then no derivation finds a wheel of other bytes, afterwards all is as it was."""
    for count in range(20):
        house = Wheelhouse(root=tmp_path / f"house-{count}")
        enter(house, verified(b"neighbour", OTHER), drv="d0")
        if replacing:
            enter(house, verified(b"one"))
        before, wheel = contents(house), verified(b"two")
        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", failing(Path.replace, count, after=True))
            patched.setattr(module, "undo", lambda *_: None)
            patched.setattr(shutil, "rmtree", lambda *_, **__: None)
            try:
                enter(house, wheel)
            except Killed:
                for entry in house.entries():
                    entry.check()
            else:
                break
        with module.locked(house.root):
            module.recover(house.root)
        assert contents(house) == before
    assert count == 4


@pytest.mark.parametrize(
    ("number", "error", "text"),
    [
        (errno.ENOSPC, DiskFullError, "no room left on the disk of the wheelhouse {root}"),
        (errno.EROFS, EnvironmentUnfitError, "cannot write into the wheelhouse {root}: Read-only file system: x.whl"),
    ],
)
def test_disk_errors_name_the_wheelhouse(
    number: int,
    error: type[Exception],
    text: str,
    house: Wheelhouse,
    verified: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full or read-only disk is a sentence with a way out, not a traceback."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number), "x.whl")

    wheel = verified(b"one")
    monkeypatch.setattr(shutil, "copyfile", fail)

    with pytest.raises(error) as caught:
        enter(house, wheel)

    assert str(caught.value) == text.format(root=house.root)
    assert "--wheelhouse DIR" in str(getattr(caught.value, "advice", ""))
    assert contents(house) == {}


def test_the_provenance_lies_beside_its_wheel(house: Wheelhouse, verified: Callable[..., Path], tmp_path: Path) -> None:
    """It enters with the wheel, and goes with it: another wheel of the derivation must not inherit it."""
    wheel, log = verified(b"some bytes"), tmp_path / "build.log"
    entry = house.enter(wheel, build_record={"drv": "d1", "marks": ["x"]}, log=log, proof=b"{}\n")
    assert entry.proof.read_bytes() == b"{}\n"
    assert house.find("d1").marks == ("x",)
    again = house.enter(verified(b"other bytes"), build_record={"drv": "d1"}, log=log)
    assert again.sha256 != entry.sha256
    assert not again.proof.exists()


def test_a_wheel_written_inside_is_taken_without_a_copy(tmp_path: Path) -> None:
    """A repair writes into a hidden folder of the wheelhouse: half a gigabyte is not copied once more."""
    root = tmp_path / "house"
    (root / ".repairing").mkdir(parents=True)
    wheel, log = root / ".repairing" / "demo-1.0-py3-none-any.whl", tmp_path / "log"
    wheel.write_bytes(b"wheel")
    log.write_text("")
    inode = wheel.stat().st_ino
    entry = Wheelhouse(root=root).enter(wheel, build_record={"drv": "d"}, log=log)
    wheel.unlink()
    assert (entry.wheel.read_bytes(), entry.wheel.stat().st_ino) == (b"wheel", inode)
