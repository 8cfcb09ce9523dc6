"""Wheels written out of other wheels, without packing anything twice."""

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from wheelmill import splice as module
from wheelmill.archive import zip_problems
from wheelmill.errors import RepairError, UsageError
from wheelmill.inspection import inspect_wheel
from wheelmill.splice import Donor, splice_wheel
from wheelmill.wheel_file import WrittenWheel, check_record, content, open_members, read_wheel, write_wheel

NAME = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"
EPOCH = 1_700_000_000


@pytest.fixture
def donor(tmp_path: Path) -> Donor:
    """Write a wheel with a stored, a deflated and an empty file, one of them executable."""
    texts = {
        f"{INFO}/METADATA": b"Metadata-Version: 2.4\nName: demo\nVersion: 1.0\n",
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "demo/__init__.py": b"",
        "demo/data": b"data " * 1000,
    }
    members = [content(name, data) for name, data in texts.items()]
    path = write_wheel([*members, content("demo/tool", b"#!x", executable=True)], tmp_path / NAME, epoch=EPOCH).path
    return Donor(path=path, digests=inspect_wheel(path).digests)


def spliced(donor: Donor, folder: Path, **changes: bytes) -> WrittenWheel:
    """Write it once more, some files anew."""
    folder.mkdir()
    with open_members(donor.path) as members:
        kept = [member for member in members if member.name not in changes]
        added = [content(name, data) for name, data in changes.items()]
        return splice_wheel([*kept, *added], folder / NAME, donor=donor, epoch=EPOCH)


def test_copies_are_bit_for_bit_and_the_wheel_is_sound(donor: Donor, tmp_path: Path) -> None:
    """Contents, modes and packing stay; a changed file is in RECORD, and nobody can read it two ways."""
    written = spliced(donor, tmp_path / "out", **{"demo/data": b"other"})
    assert check_record(written.path) == zip_problems(written.path) == ()
    with zipfile.ZipFile(written.path) as new, zipfile.ZipFile(donor.path) as old:
        assert new.read("demo/data") == b"other"
        assert new.read("demo/tool") == b"#!x"
        assert new.getinfo("demo/tool").external_attr == old.getinfo("demo/tool").external_attr
        assert new.getinfo("demo/tool").compress_size == old.getinfo("demo/tool").compress_size
        assert new.namelist() == old.namelist()
    assert set(read_wheel(written.path).record) == set(read_wheel(donor.path).record)


def test_equal_donors_give_equal_bytes(donor: Donor, tmp_path: Path) -> None:
    """And so does the result, taken as donor."""
    first = spliced(donor, tmp_path / "a")
    second = spliced(Donor(path=first.path, digests=donor.digests), tmp_path / "b")
    assert first.sha256 == second.sha256


def test_a_large_archive(donor: Donor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 4 GiB there are other headers; here the bound is lowered instead."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 20)
    written = spliced(donor, tmp_path / "out")
    assert check_record(written.path) == ()
    with zipfile.ZipFile(written.path) as archive:
        assert archive.testzip() is None


def test_a_copy_that_is_not_what_was_read(donor: Donor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is told, and leaves nothing behind."""
    plain = module.transplant

    def damaged(*arguments: object) -> module.Copy:
        return replace(plain(*arguments), digest=b"other")  # type: ignore[arg-type]

    monkeypatch.setattr(module, "transplant", damaged)
    with pytest.raises(RepairError, match=r"demo/__init__\.py changed while it was copied"):
        spliced(donor, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_date_that_no_archive_holds(donor: Donor, tmp_path: Path) -> None:
    """1970 is refused."""
    with pytest.raises(UsageError, match="cannot be dated 0"):
        splice_wheel([], tmp_path / NAME, donor=donor, epoch=0)
