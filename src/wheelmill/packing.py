"""A zip archive whose bytes depend on contents, names, modes and one date alone: deflated on every core.

Each member is cut into pieces of CHUNK bytes; each piece is deflated on its own with the end of the one before it as
its dictionary, ends at a byte (Z_SYNC_FLUSH), and the pieces stand one after the other as one deflate stream. How many
threads did it leaves no trace, the size of the pieces does: it belongs to the writer's format number. The archive is as
small as one stream's [libtorch_cuda.so, 456 MB: 319.7 MB by both]. No member is ever whole in memory.

zipfile cannot take what is deflated already, hence the records here: APPNOTE.TXT 4.3 and 4.5.3.
"""

import hashlib
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Self

CHUNK = 4 << 20
"""Part of the format: another size gives other bytes."""
WINDOW = 1 << 15
"""How far back deflate refers."""
THREADS_MAX = 16
"""Each holds a piece and what becomes of it: 8 MiB."""
LEVEL = 6
"""What zlib, zipfile and auditwheel take by default."""
GOLDEN = "25ebda1a8fe1eace8d9410623a81c67ca1e7a17d2ce16aa0120d97a7111670e2"
"""What reference zlib's deflate gives for `sample`, as sha256."""

UTF8 = 0x800
DEFLATED = 8
UNIX = 3
PLAIN, LARGE = 20, 45
"""Versions needed to extract: deflate, ZIP64."""
LIMIT = 0xFFFFFFFF
COUNT_LIMIT = 0xFFFF
MARGIN = 1 << 24
"""What deflate may add to incompressible data of 4 GiB, generously."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Put:
    """A member that is in the archive: its size and its sha256 before it was deflated."""

    size: int
    sha256: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A member as the central directory lists it."""

    name: bytes
    flags: int
    mode: int
    crc: int
    compressed: int
    size: int
    offset: int
    method: int = DEFLATED


class Archive:
    """Writes one archive into a seekable sink; `close` ends it."""

    def __init__(self, sink: IO[bytes], *, date: tuple[int, ...], threads: int | None = None) -> None:
        self.sink, self.stamp = sink, dos(date)
        self.threads = threads or min(len(os.sched_getaffinity(0)), THREADS_MAX)
        self.pool = ThreadPoolExecutor(self.threads, thread_name_prefix="deflate")
        self.listed: list[Listed] = []

    def put(self, name: str, stream: IO[bytes], *, size: int, mode: int) -> Put:
        """Read a stream to its end into the archive; `size` decides beforehand whether ZIP64 fields are needed."""
        offset = self.sink.tell()
        spelled, flags = spell(name)
        large = size + MARGIN > LIMIT
        self.sink.write(b"\0" * local_length(spelled, large=large))
        digest, crc, total, compressed = hashlib.sha256(), 0, 0, 0
        waiting: deque[Future[bytes]] = deque()
        before = b""
        for chunk, last in pieces(stream):
            total += len(chunk)
            if last and not waiting:  # a small member: no thread is worth its while
                compressed += self.sink.write(deflated(chunk, last=last, before=before))
            else:
                waiting.append(self.pool.submit(deflated, chunk, last=last, before=before))
            before = chunk[-WINDOW:]
            crc = zlib.crc32(chunk, crc)
            digest.update(chunk)
            while len(waiting) > (0 if last else self.threads):
                compressed += self.sink.write(waiting.popleft().result())
        entry = Listed(name=spelled, flags=flags, mode=mode, crc=crc, compressed=compressed, size=total, offset=offset)
        end = self.sink.tell()
        self.sink.seek(offset)
        self.sink.write(local_header(entry, self.stamp, large=large))
        self.sink.seek(end)
        self.listed.append(entry)
        return Put(size=total, sha256=digest.digest())

    def put_packed(
        self, name: str, packed: Iterable[bytes], *, method: int, crc: int, compressed: int, size: int, mode: int
    ) -> int:
        """Take in a member that is packed already, as it is; give where its packed bytes begin."""
        spelled, flags = spell(name)
        large = size + MARGIN > LIMIT
        offset = self.sink.tell()
        entry = Listed(
            name=spelled,
            flags=flags,
            mode=mode,
            crc=crc,
            compressed=compressed,
            size=size,
            offset=offset,
            method=method,
        )
        self.sink.write(local_header(entry, self.stamp, large=large))
        start = self.sink.tell()
        for piece in packed:
            self.sink.write(piece)
        self.listed.append(entry)
        return start

    def close(self) -> None:
        """Write the central directory."""
        start = self.sink.tell()
        for entry in self.listed:
            self.sink.write(central_header(entry, self.stamp))
        self.sink.write(end_records(len(self.listed), start, self.sink.tell() - start))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_rest: object) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self.pool.shutdown(cancel_futures=True)


def pieces(stream: IO[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Cut a stream into whole pieces, the last one marked; an empty stream is one empty piece."""
    piece = whole_piece(stream)
    while len(piece) == CHUNK:
        following = whole_piece(stream)
        if not following:
            break
        yield piece, False
        piece = following
    yield piece, True


def whole_piece(stream: IO[bytes]) -> bytes:
    """Read CHUNK bytes, fewer only at the end: a read may give less than it was asked for."""
    found = stream.read(CHUNK)
    while 0 < len(found) < CHUNK and (more := stream.read(CHUNK - len(found))):
        found += more
    return found


def deflated(piece: bytes, *, last: bool, before: bytes = b"") -> bytes:
    """Deflate one piece after what stands before it; zlib leaves the interpreter's lock alone meanwhile.

    Whoever inflates has what stands before in his window already.
    """
    if before:
        deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=before)
    else:
        deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflate.compress(piece) + deflate.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


# records ---------------------------------------------------------------------------------------------


def dos(date: tuple[int, ...]) -> bytes:
    """Spell a date as MS-DOS did, in steps of two seconds."""
    year, month, day, hour, minute, second = date
    return struct.pack("<HH", hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day)


def spell(name: str) -> tuple[bytes, int]:
    """Give a name's bytes and the flags that say how they are meant."""
    return (name.encode("ascii"), 0) if name.isascii() else (name.encode(), UTF8)


def local_length(name: bytes, *, large: bool) -> int:
    """Give the length of a local header."""
    return 30 + len(name) + (20 if large else 0)


def local_header(entry: Listed, stamp: bytes, *, large: bool) -> bytes:
    """Spell the record before a member's data."""
    extra = struct.pack("<HHQQ", 1, 16, entry.size, entry.compressed) if large else b""
    sizes = (LIMIT, LIMIT) if large else (entry.compressed, entry.size)
    head = struct.pack("<4sHHH", b"PK\x03\x04", LARGE if large else PLAIN, entry.flags, entry.method)
    tail = struct.pack("<LLLHH", entry.crc, *sizes, len(entry.name), len(extra))
    return head + stamp + tail + entry.name + extra


def central_header(entry: Listed, stamp: bytes) -> bytes:
    """Spell a member's record in the central directory; what does not fit 32 bits stands in its extra field."""
    values = (entry.size, entry.compressed, entry.offset)
    large = [value for value in values if value >= LIMIT]
    extra = struct.pack(f"<HH{len(large)}Q", 1, 8 * len(large), *large) if large else b""
    size, compressed, offset = (min(value, LIMIT) for value in values)
    version = LARGE if large or entry.size + MARGIN > LIMIT else PLAIN
    head = struct.pack("<4sBBHHH", b"PK\x01\x02", version, UNIX, version, entry.flags, entry.method)
    middle = struct.pack("<LLLHH", entry.crc, compressed, size, len(entry.name), len(extra))
    tail = struct.pack("<HHHLL", 0, 0, 0, (0o100000 | entry.mode) << 16, offset)
    return head + stamp + middle + tail + entry.name + extra


def end_records(count: int, start: int, length: int) -> bytes:
    """Spell what ends an archive."""
    large = b""
    if count >= COUNT_LIMIT or start >= LIMIT or length >= LIMIT:
        where = start + length
        head = struct.pack("<4sQBBHLL", b"PK\x06\x06", 44, LARGE, UNIX, LARGE, 0, 0)
        large = head + struct.pack("<QQQQ", count, count, length, start)
        large += struct.pack("<4sLQL", b"PK\x06\x07", 0, where, 1)
    known = min(count, COUNT_LIMIT)
    return large + struct.pack(
        "<4sHHHHLLH", b"PK\x05\x06", 0, 0, known, known, min(length, LIMIT), min(start, LIMIT), 0
    )


# zlib ------------------------------------------------------------------------------------------------


def sample() -> bytes:
    """Make half a megabyte that takes every path of deflate: text, repetition, and what cannot be deflated."""
    noise = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(4096))
    text = b"".join(
        b"mov r%d, [r%d+%d]\n" % (number % 16, number * 7 % 16, number * number % 4096) for number in range(8192)
    )
    return text + noise + text[::2] + b"\0" * 65536 + noise[::3]


def zlib_found(*, ng: str = getattr(zlib, "ZLIBNG_VERSION", "")) -> str:
    """Name the zlib of this Python as a realisation does: its version, and whether its deflate is the reference's.

    Others (zlib-ng, Chromium's, Intel's, Cloudflare's) give other bytes for the same contents, some by processor.
    """
    version = f"zlib-ng {ng}" if ng else zlib.ZLIB_RUNTIME_VERSION
    golden = hashlib.sha256(deflated(sample(), last=True)).hexdigest() == GOLDEN
    return version if golden and not ng else f"{version}, not the reference"


def zlib_problem(found: str) -> str:
    """Say why a wheel of this zlib is no release; empty where nothing is wrong."""
    if not found.endswith("not the reference"):
        return ""
    return (
        f"the zlib of this Python is {found}: it packs the same contents to other bytes; "
        "release from a Python that has the reference zlib"
    )
