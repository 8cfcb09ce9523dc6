"""The zip format, strictly: archives that readers could disagree about, made here byte by byte."""

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmill.archive import NotStrictError, data_of, records, zip_problems


def archive(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Make a sound archive."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as made:
        for name, content in members:
            made.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content, compress_type=method)
    return stream.getvalue()


SOUND = archive(("a/b.py", b"print()\n" * 99), ("a/c.so", b"\x7fELF" + bytes(99)))
LIST = SOUND.index(b"PK\1\2")
END = SOUND.index(b"PK\5\6")


def problems(folder: Path, data: bytes) -> tuple[str, ...]:
    """Judge bytes as an archive."""
    path = folder / "x.whl"
    path.write_bytes(data)
    return zip_problems(path)


def patched(data: bytes, offset: int, form: str, value: int) -> bytes:
    """Put another number into an archive."""
    packed = struct.pack(form, value)
    return data[:offset] + packed + data[offset + len(packed) :]


def test_sound_archives(tmp_path: Path) -> None:
    """What zipfile writes is fine, stored or deflated, streamed, large or empty."""
    stream = io.BytesIO()

    class Pipe(io.RawIOBase):
        """A sink that cannot seek, so that sizes follow the data."""

        def writable(self) -> bool:
            """Take bytes."""
            return True

        def write(self, data: object) -> int:
            """Pass them on."""
            return stream.write(data)  # type: ignore[arg-type]

    with zipfile.ZipFile(io.BufferedWriter(Pipe()), "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a.py", b"x" * 999)
        with made.open("large", "w", force_zip64=True) as member:
            member.write(b"y" * 999)
    sounds = [SOUND, archive(("s", b"stored"), method=zipfile.ZIP_STORED), archive(), stream.getvalue()]
    assert [problems(tmp_path, data) for data in sounds] == [()] * 4


CASES: dict[str, tuple[Callable[[], bytes], str]] = {
    "something follows": (lambda: SOUND + b"x", "it does not end with the end of a zip archive"),
    "cut off": (lambda: SOUND[:-1], "it does not end with the end of a zip archive"),
    "a comment": (lambda: SOUND[:-2] + b"\3\0abc", "it does not end with the end of a zip archive"),
    "several disks": (lambda: patched(SOUND, END + 4, "<H", 1), "its end names several disks"),
    "another number of members": (
        lambda: patched(patched(SOUND, END + 8, "<H", 3), END + 10, "<H", 3),
        "of its list of members begins no member",
    ),
    "fewer members than listed": (
        lambda: patched(patched(SOUND, END + 8, "<H", 1), END + 10, "<H", 1),
        "bytes that are no member",
    ),
    "a list elsewhere": (lambda: patched(SOUND, END + 16, "<I", LIST - 1), "its list of members should end at"),
    "something before": (lambda: shifted(b"#!/bin/sh\n"), "10 bytes before the first member"),
    "another name in its own header": (
        lambda: SOUND.replace(b"a/b.py", b"a/x.py", 1),
        "'a/b.py' has another name in its own header: 'a/x.py'",
    ),
    "another size in its own header": (lambda: patched(SOUND, 22, "<I", 5), "other sizes or another checksum"),
    "another checksum in its own header": (lambda: patched(SOUND, 14, "<I", 5), "other sizes or another checksum"),
    "packed otherwise in its own header": (lambda: patched(SOUND, 8, "<H", 0), "is packed in another way"),
    "no header there": (lambda: b"XX" + SOUND[2:], "does not stand where the list says"),
    "another kind of packing": (
        lambda: archive(("a", b"x" * 999), method=zipfile.ZIP_BZIP2),
        "is packed by method 12; wheels are deflated or stored",
    ),
    "members that overlap": (
        lambda: patched(SOUND, SOUND.index(b"PK\1\2", LIST + 4) + 42, "<I", 0),
        "'a/c.so' overlaps the member before it",
    ),
    "more than it can hold": (lambda: patched(SOUND, LIST + 20, "<I", 1 << 30), "larger than the archive"),
    "a bomb": (lambda: patched(SOUND, LIST + 24, "<I", (1 << 32) - 2), "would unpack"),
    "large without a size": (lambda: patched(SOUND, LIST + 24, "<I", (1 << 32) - 1), "its size is missing"),
    "large without an end": (lambda: patched(SOUND, END + 16, "<I", (1 << 32) - 1), "its real end is missing"),
    "empty": (lambda: b"", "it does not end with the end of a zip archive"),
}


def shifted(prefix: bytes) -> bytes:
    """Put something before an archive, with all offsets right."""
    data = patched(SOUND, END + 16, "<I", LIST + len(prefix))
    for place in (LIST, SOUND.index(b"PK\1\2", LIST + 4)):
        (old,) = struct.unpack_from("<I", SOUND, place + 42)
        data = patched(data, place + 42, "<I", old + len(prefix))
    return prefix + data


@pytest.mark.parametrize("case", CASES)
def test_what_readers_could_disagree_about(case: str, tmp_path: Path) -> None:
    """Each is named."""
    make, message = CASES[case]
    assert any(message in problem for problem in problems(tmp_path, make()))


def test_records_and_data(tmp_path: Path) -> None:
    """The packed bytes of a member are found where they lie."""
    path = tmp_path / "x.whl"
    path.write_bytes(archive(("a", b"stored"), method=zipfile.ZIP_STORED))
    record = records(path)["a"]
    with path.open("rb") as stream:
        stream.seek(data_of(stream, record))
        assert stream.read(record.packed) == b"stored"
    with pytest.raises(NotStrictError, match="'a' is listed, and does not stand"):
        data_of(io.BytesIO(b"x" * 99), record)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(SOUND)))
def test_any_damage_ends_in_words(changes: list[tuple[int, int]], length: int) -> None:
    """Whatever is flipped or cut, there is an answer and no exception."""
    data = bytearray(SOUND)
    for place, value in changes:
        data[place] = value
    stream = io.BytesIO(bytes(data[:length]))

    class InMemory:
        """A path to bytes."""

        def open(self, _: str) -> io.BytesIO:
            """Give the bytes."""
            return stream

    assert isinstance(zip_problems(InMemory()), tuple)  # type: ignore[arg-type]
