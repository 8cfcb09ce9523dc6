"""The zip format, strictly: a wheel must be the same archive to every reader, and no reader must come to harm.

zipfile reads the list at the end and believes it. Other readers go from the front, or take the last of two members with
one name; an archive that means two things to two readers has no place on an index (PyPI refuses such since 2025).
Layout: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED

END, END64, LOCATOR64 = struct.Struct("<4s4H2IH"), struct.Struct("<4sQ2H2I4Q"), struct.Struct("<4sIQI")
CENTRAL, LOCAL = struct.Struct("<4s6H3I5H2I"), struct.Struct("<4s5H3I2H")
EXTRA_ZIP64, EXTRA_UNICODE_NAME = 1, 0x7075
LIMIT32, LIMIT16 = 0xFFFFFFFF, 0xFFFF
ENCRYPTED, DESCRIPTOR, UTF8 = 1, 8, 0x800
MAX_MEMBERS = 200_000
"""flashinfer-cubin 0.6.1 has 10 604."""
MAX_DIRECTORY = 1 << 26
MAX_RATIO, SMALL = 200, 1 << 26
"""Deflate packs zeros 1000 times, compiled code 2 to 10 times."""
MAX_UNPACKED = 1 << 36


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One member, as the list at the end describes it; `offset` is that of its own header."""

    name: str
    raw_name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    offset: int


class NotStrictError(Exception):
    """The archive cannot be walked any further."""


def zip_problems(path: Path) -> tuple[str, ...]:
    """Give everything by which two readers could disagree about an archive, or one could come to harm.

    Nothing is unpacked, and memory is bounded by the list at the end, of 64 MB at most.
    """
    try:
        with path.open("rb") as stream:
            return tuple(walk(stream))
    except NotStrictError as error:
        return (str(error),)


def records(path: Path) -> Mapping[str, Record]:
    """Read the list of members; raises NotStrictError where there is none that can be read."""
    with path.open("rb") as stream:
        listed, _ = directory(stream, stream.seek(0, os.SEEK_END))
    return {record.name: record for record in listed}


def walk(stream: BinaryIO) -> Iterator[str]:
    """Go over the whole structure, from the end to the front."""
    size = stream.seek(0, os.SEEK_END)
    listed, start = directory(stream, size)
    yield from bomb_problems(listed, size)
    position = 0
    for record in sorted(listed, key=lambda record: record.offset):
        if record.offset < position:
            yield f"{record.name!r} overlaps the member before it"
        elif position == 0 and record.offset > 0:
            yield f"there are {record.offset} bytes before the first member"
        problems, end = local_problems(stream, record, start)
        yield from problems
        position = max(position, end)


def directory(stream: BinaryIO, size: int) -> tuple[list[Record], int]:
    """Read the list at the end, and say where it begins; raises NotStrictError."""
    tail = at(stream, max(size - END.size, 0), min(END.size, size))
    if len(tail) < END.size or not tail.startswith(b"PK\5\6"):
        raise NotStrictError("it does not end with the end of a zip archive: something follows it, or it is cut off")
    _, disk, disk_of_list, here, count, length, start, comment = END.unpack(tail)
    end = size - END.size
    if disk or disk_of_list or here != count or comment:
        raise NotStrictError("its end names several disks or a comment")
    if count == LIMIT16 or LIMIT32 in (length, start):
        count, length, start, end = zip64_end(stream, end)
    if count > MAX_MEMBERS or length > MAX_DIRECTORY:
        raise NotStrictError(f"it lists {count} members in {length} bytes, more than any wheel has")
    if start + length != end:
        raise NotStrictError(f"its list of members should end at byte {start + length}, and ends at {end}")
    data, offset = at(stream, start, length), 0
    listed = []
    for _ in range(count):
        record, offset = central_record(data, offset)
        listed.append(record)
    if offset != length:
        raise NotStrictError(f"its list of members has {length - offset} bytes that are no member")
    return listed, start


def zip64_end(stream: BinaryIO, end: int) -> tuple[int, int, int, int]:
    """Read the end of a large archive; raises NotStrictError."""
    locator = at(stream, max(end - LOCATOR64.size, 0), LOCATOR64.size)
    if not locator.startswith(b"PK\6\7"):
        raise NotStrictError("it is said to be large (ZIP64), and the place of its real end is missing")
    _, _, place, _ = LOCATOR64.unpack(locator)
    data = at(stream, place, END64.size)
    if len(data) < END64.size or not data.startswith(b"PK\6\6") or place + END64.size + LOCATOR64.size != end:
        raise NotStrictError("it is said to be large (ZIP64), and its real end is not where it should be")
    *_, count, length, start = END64.unpack(data)
    return count, length, start, place


def central_record(data: bytes, offset: int) -> tuple[Record, int]:
    """Read one member of the list, and say where the next one begins; raises NotStrictError."""
    if offset + CENTRAL.size > len(data) or data[offset : offset + 4] != b"PK\1\2":
        raise NotStrictError(f"byte {offset} of its list of members begins no member")
    fields = CENTRAL.unpack_from(data, offset)
    _, _, _, flags, method, _, _, crc, packed, size, name_length, extra_length, comment, _, _, _, place = fields
    start = offset + CENTRAL.size
    raw = data[start : start + name_length]
    extra = data[start + name_length : start + name_length + extra_length]
    following = start + name_length + extra_length + comment
    if following > len(data):
        raise NotStrictError(f"byte {offset} of its list of members begins a member that goes beyond the list")
    size, packed, place = enlarge(extra, [size, packed, place])
    record = Record(
        name=decoded(raw, flags), raw_name=raw, flags=flags, method=method, crc=crc, packed=packed, size=size,
        offset=place,
    )  # fmt: skip
    return record, following


def decoded(raw: bytes, flags: int) -> str:
    """Read a name as zipfile does."""
    return raw.decode("utf-8" if flags & UTF8 else "cp437", "replace")


def extras(extra: bytes) -> Iterator[tuple[int, bytes]]:
    """Give the extra fields of a member; raises NotStrictError for a cut one."""
    offset = 0
    while offset + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, offset)
        if offset + 4 + length > len(extra):
            raise NotStrictError("an extra field of a member goes beyond its end")
        yield kind, extra[offset + 4 : offset + 4 + length]
        offset += 4 + length


def enlarge(extra: bytes, fields: list[int]) -> list[int]:
    """Replace what did not fit into 32 bits by what the ZIP64 field says; raises NotStrictError."""
    wide = [value for kind, value in extras(extra) if kind == EXTRA_ZIP64]
    if len(wide) > 1:
        raise NotStrictError("a member has two ZIP64 fields")
    numbers = iter(struct.unpack(f"<{len(wide[0]) // 8}Q", wide[0][: len(wide[0]) // 8 * 8]) if wide else ())
    try:
        return [next(numbers) if field == LIMIT32 else field for field in fields]
    except StopIteration:
        raise NotStrictError("a member is said to be large (ZIP64), and its size is missing") from None


def bomb_problems(listed: list[Record], size: int) -> Iterator[str]:
    """Find members that are absurdly much once unpacked."""
    total = sum(record.size for record in listed)
    if total > MAX_UNPACKED:
        yield f"it would unpack to {total} bytes, more than any wheel"
    for record in listed:
        if record.size > SMALL and record.size > MAX_RATIO * record.packed:
            yield f"{record.name!r} would unpack {record.packed} bytes to {record.size}"
    if sum(record.packed for record in listed) > size:
        yield "its members together are larger than the archive"


def local_problems(stream: BinaryIO, record: Record, limit: int) -> tuple[list[str], int]:
    """Hold a member's own header against the list, and say where the member ends."""
    head = at(stream, record.offset, LOCAL.size)
    if len(head) < LOCAL.size or not head.startswith(b"PK\3\4"):
        return [f"{record.name!r} is listed, and does not stand where the list says"], record.offset
    _, _, flags, method, _, _, crc, packed, size, name_length, extra_length = LOCAL.unpack(head)
    rest = at(stream, record.offset + LOCAL.size, name_length + extra_length)
    raw, extra = rest[:name_length], rest[name_length:]
    end = record.offset + LOCAL.size + name_length + extra_length + record.packed
    problems = []
    if raw != record.raw_name or any(kind == EXTRA_UNICODE_NAME for kind, _ in extras(extra)):
        problems.append(f"{record.name!r} has another name in its own header: {decoded(raw, flags)!r}")
    if method != record.method or flags & ENCRYPTED != record.flags & ENCRYPTED:
        problems.append(f"{record.name!r} is packed in another way in its own header")
    if record.method not in (ZIP_STORED, ZIP_DEFLATED):
        problems.append(f"{record.name!r} is packed by method {record.method}; wheels are deflated or stored")
    if record.method == ZIP_STORED and record.packed != record.size:
        problems.append(f"{record.name!r} is stored, and has two sizes: {record.packed} and {record.size} bytes")
    if end > limit:
        problems.append(f"{record.name!r} goes beyond the list of members")
    elif not flags & DESCRIPTOR:
        size, packed = enlarge(extra, [size, packed])
        if (size, packed, crc) != (record.size, record.packed, record.crc):
            problems.append(f"{record.name!r} has other sizes or another checksum in its own header")
    return problems, end


def at(stream: IO[bytes], offset: int, count: int) -> bytes:
    """Read a part of the archive; fewer bytes at its end, none where no file reaches."""
    if offset > MAX_UNPACKED:
        return b""
    stream.seek(offset)
    return stream.read(count)


def data_of(stream: BinaryIO, record: Record) -> int:
    """Say where the packed bytes of a member begin; raises NotStrictError where its header is none."""
    head = at(stream, record.offset, LOCAL.size)
    if len(head) < LOCAL.size or not head.startswith(b"PK\3\4"):
        raise NotStrictError(f"{record.name!r} is listed, and does not stand where the list says")
    *_, name_length, extra_length = LOCAL.unpack(head)
    return record.offset + LOCAL.size + int(name_length) + int(extra_length)
