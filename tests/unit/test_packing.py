"""The zip writer: the same bytes from any number of threads, readable by everybody, bounded memory."""

import io
import struct
import zipfile
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmill import packing
from wheelmill.packing import (
    CHUNK,
    Archive,
    Listed,
    central_header,
    end_records,
    local_header,
    pieces,
    zlib_found,
    zlib_problem,
)

DATE = (2025, 8, 14, 12, 30, 5)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut at 64 bytes, so that small data has many pieces."""
    monkeypatch.setattr(packing, "CHUNK", 64)


def written(files: dict[str, bytes], *, threads: int = 2) -> bytes:
    sink = io.BytesIO()
    with Archive(sink, date=DATE, threads=threads) as made:
        for name, data in files.items():
            done = made.put(name, io.BytesIO(data), size=len(data), mode=0o644)
            assert done.size == len(data)
    return sink.getvalue()


@pytest.mark.usefixtures("small_pieces")
@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text("abcé/", min_size=1, max_size=8), st.binary(max_size=400), max_size=5),
    st.integers(1, 5),
)
def test_what_goes_in_comes_out_from_any_number_of_threads(files: dict[str, bytes], threads: int) -> None:
    """One thread and five give the same bytes, and zipfile reads them back."""
    data = written(files, threads=threads)
    assert data == written(files, threads=1)
    with zipfile.ZipFile(io.BytesIO(data)) as found:
        assert found.testzip() is None
        assert {info.filename: found.read(info) for info in found.infolist()} == files
        assert all(info.date_time == (2025, 8, 14, 12, 30, 4) for info in found.infolist())


def test_zipfile_itself_could_have_written_a_small_one() -> None:
    """One piece is what zipfile makes of it, so nothing here is a dialect."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as other:
        info = zipfile.ZipInfo("a/b.txt", DATE)
        info.create_system, info.external_attr, info.compress_type = 3, 0o100644 << 16, zipfile.ZIP_DEFLATED
        other.writestr(info, b"hello hello hello\n" * 50)
    assert written({"a/b.txt": b"hello hello hello\n" * 50}) == sink.getvalue()


def test_the_pieces() -> None:
    """Whole ones but for the last, also from a stream that gives a byte at a time; nothing is one empty piece."""

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 1, 1 << 19))

    assert [(len(piece), last) for piece, last in pieces(Slow(b"x" * (CHUNK + 5)))] == [(CHUNK, False), (5, True)]
    assert [(len(piece), last) for piece, last in pieces(io.BytesIO(b"x" * 2 * CHUNK))] == [
        (CHUNK, False),
        (CHUNK, True),
    ]
    assert list(pieces(io.BytesIO())) == [(b"", True)]


def test_golden_bytes() -> None:
    """Several pieces of a large member: whoever changes these bytes raises the writer's number in FORMATS."""
    if zlib_problem(zlib_found()):
        pytest.skip("another zlib gives other bytes by design")
    import hashlib

    data = written({"big": packing.sample() * 12, "small": b"x"})
    assert hashlib.sha256(data).hexdigest() == "da1624c89af4835a29680a218e3bfb0cee411f7a0580fe6c1f550d46f12bd675"


def test_more_than_32_bits() -> None:
    """Sizes and places above 4 GiB stand in ZIP64 fields; zipfile reads such a directory."""
    entry = Listed(name=b"big", flags=0, mode=0o755, crc=1, compressed=5 << 30, size=6 << 30, offset=7 << 30)
    head = local_header(entry, b"\0\0\x21\0", large=True)
    assert struct.unpack_from("<HHQQ", head, 33) == (1, 16, 6 << 30, 5 << 30)
    directory = central_header(entry, b"\0\0\x21\0")
    start = 12 << 30

    class Sparse(io.RawIOBase):
        """What lies before the directory is nothing."""

        data, at = directory + end_records(1, start, len(directory)), 0

        def seekable(self) -> bool:
            return True

        def seek(self, offset: int, whence: int = 0) -> int:
            self.at = {0: offset, 1: self.at + offset, 2: start + len(self.data) + offset}[whence]
            return self.at

        def tell(self) -> int:
            return self.at

        def read(self, size: int = -1) -> bytes:
            inside = self.at - start
            found = self.data[inside:] if size < 0 else self.data[inside : inside + size]
            self.at += len(found)
            return found

    [info] = zipfile.ZipFile(Sparse()).infolist()  # type: ignore[arg-type]
    assert (info.file_size, info.compress_size, info.header_offset) == (6 << 30, 5 << 30, 7 << 30)
    assert info.external_attr >> 16 == 0o100755


def test_many_members() -> None:
    """More than 65535 members need ZIP64 at the end, too."""
    tail = end_records(70_000, 100, 10)
    assert tail.startswith(b"PK\x06\x06")
    assert struct.unpack_from("<QQ", tail, 24) == (70_000, 70_000)


def test_another_zlib_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, or by what it makes of the sample: then a wheel is no release."""
    assert zlib_problem("1.3.1") == ""
    assert zlib_found(ng="2.2.5") == "zlib-ng 2.2.5, not the reference"
    assert zlib_problem(zlib_found(ng="2.2.5")) == (
        "the zlib of this Python is zlib-ng 2.2.5, not the reference: it packs the same contents to other bytes; "
        "release from a Python that has the reference zlib"
    )
    monkeypatch.setattr(packing, "LEVEL", 5)
    assert zlib_found(ng="") == f"{zlib.ZLIB_RUNTIME_VERSION}, not the reference"


class Torn(io.BytesIO):
    """A file on a disk that has gone."""

    def read(self, _size: int | None = -1, /) -> bytes:
        raise OSError("gone")


def put_torn(sink: io.BytesIO) -> None:
    with Archive(sink, date=DATE) as made:
        made.put("a", Torn(), size=1, mode=0o644)


def test_the_archive_of_a_failure_is_not_ended() -> None:
    """Whatever goes wrong while a member is read, no directory makes the torn file look whole."""
    sink = io.BytesIO()
    with pytest.raises(OSError, match="gone"):
        put_torn(sink)
    assert not zipfile.is_zipfile(sink)


def test_what_is_packed_already_is_taken_as_it_is() -> None:
    """By its own method, with the headers of this writer; the place of the packed bytes is told."""
    content = b"hello " * 100
    packed = packing.deflated(content, last=True)
    sink = io.BytesIO()
    with Archive(sink, date=DATE) as made:
        crc = zlib.crc32(content)
        start = made.put_packed(
            "a", [packed[:5], packed[5:]], method=8, crc=crc, compressed=len(packed), size=len(content), mode=0o755
        )
        made.put_packed("b", [content], method=0, crc=crc, compressed=len(content), size=len(content), mode=0o644)
    assert sink.getvalue()[start : start + len(packed)] == packed
    with zipfile.ZipFile(sink) as found:
        assert found.testzip() is None
        assert [found.read(name) for name in "ab"] == [content, content]
