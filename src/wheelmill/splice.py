"""Write a wheel out of another one: what does not change is copied as it is packed, the rest is written anew.

auditwheel unpacks and packs everything: 103 s and 858 MB for vLLM 0.15.1, of which two small files change.
"""

import hashlib
import stat
import time
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from .archive import Record, at, data_of, records
from .errors import RepairError, UsageError
from .wheel_file import (
    CHUNK,
    EPOCHS,
    Member,
    Recorded,
    WrittenWheel,
    content,
    digest_of,
    in_order,
    read_all,
    record_text,
    replacing,
    spelled,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Donor:
    """The wheel that members come from: `digests` are what a pass over it found, by member."""

    path: Path
    digests: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """Packed bytes of a member in the new wheel: where they lie, and what they were when they were read."""

    name: str
    start: int
    length: int
    digest: bytes


def splice_wheel(members: Iterable[Member], destination: Path, *, donor: Donor, epoch: int) -> WrittenWheel:
    """Write a wheel whose unchanged members are packed as the donor packed them; at once or not at all.

    Order, dates, modes and headers are as `write_wheel` makes them, so equal donors give equal bytes. Raises
    RepairError where a copy is not what was copied, UsageError for a date that a zip archive cannot hold.
    """
    if epoch not in EPOCHS:
        raise UsageError(f"a wheel cannot be dated {epoch}: zip archives know 1980 to 2107")
    ordered, dist_info = in_order(members, destination)
    listed = records(donor.path)
    date, copies, record = time.gmtime(epoch)[:6], [], []
    with replacing(destination) as sink, donor.path.open("rb") as source:
        with zipfile.ZipFile(sink, "w", allowZip64=True) as archive:
            for member in ordered:
                if member.source:
                    copies.append(transplant(archive, sink, source, listed[member.source], member, date))
                    record.append(Recorded(name=member.name, digest=donor.digests[member.source], size=member.size))
                else:
                    record.append(put_anew(archive, member, date))
            listing = record_text(record, f"{dist_info}/RECORD")
            put_anew(archive, content(f"{dist_info}/RECORD", listing), date)
        check_copies(copies, sink)
        sink.seek(0)
        sha256, size = digest_of(sink, "sha256").hexdigest(), sink.tell()
    record.append(Recorded(name=f"{dist_info}/RECORD", digest="", size=None))
    found = {entry.name: entry for entry in record}
    return WrittenWheel(path=destination, sha256=sha256, size=size, record=found, warnings=())


def transplant(
    archive: zipfile.ZipFile, sink: IO[bytes], source: BinaryIO, old: Record, member: Member, date: tuple[int, ...]
) -> Copy:
    """Copy the packed bytes of one member behind a header of our own."""
    info = header(member, date)
    info.compress_type, info.CRC, info.compress_size, info.file_size = old.method, old.crc, old.packed, old.size
    info.header_offset = sink.seek(0 if not archive.filelist else archive.start_dir)
    sink.write(info.FileHeader())
    start, digest, left = sink.tell(), hashlib.sha256(), old.packed
    source.seek(data_of(source, old))
    while left and (chunk := source.read(min(CHUNK, left))):
        digest.update(chunk)
        sink.write(chunk)
        left -= len(chunk)
    archive.filelist.append(info)
    archive.NameToInfo[info.filename] = info
    archive.start_dir = sink.tell()  # where zipfile goes on, and at last puts its list
    return Copy(name=member.name, start=start, length=old.packed, digest=digest.digest())


def put_anew(archive: zipfile.ZipFile, member: Member, date: tuple[int, ...]) -> Recorded:
    """Pack a small member, and give its line of RECORD."""
    data, info = read_all(member), header(member, date)
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, data)
    return Recorded(name=member.name, digest=spelled("sha256", hashlib.sha256(data).digest()), size=len(data))


def header(member: Member, date: tuple[int, ...]) -> zipfile.ZipInfo:
    """Describe a member as `write_wheel` does."""
    year, month, day, hour, minute, second = date
    info = zipfile.ZipInfo(member.name, (year, month, day, hour, minute, second))
    info.create_system = 3  # Unix, whatever writes it: external_attr holds a Unix mode
    info.external_attr = (stat.S_IFREG | (0o755 if member.executable else 0o644)) << 16
    return info


def check_copies(copies: Iterable[Copy], sink: IO[bytes]) -> None:
    """Read again what was written: RepairError where one byte is not what was read."""
    for copy in copies:
        digest = hashlib.sha256()
        for offset in range(0, copy.length, CHUNK):
            digest.update(at(sink, copy.start + offset, min(CHUNK, copy.length - offset)))
        if digest.digest() != copy.digest:
            raise RepairError(
                f"{copy.name} changed while it was copied",
                advice="Something wrote to the wheel meanwhile, or the disk fails; try again.",
            )
