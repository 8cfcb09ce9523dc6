"""What is in a wheel: name, tags, and what each ELF file in it needs and brings."""

import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import BinaryIO, cast
from zipfile import BadZipFile, ZipFile, ZipInfo

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from .elf import MAGIC, ElfFacts, read_elf
from .errors import DeviceCodeError, VerifyError

SCHEMA = 1
CHUNK = 1 << 20
METADATA_MAX = 16 << 20
ZIP_ERRORS = (BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""Damaged, truncated, compressed in a way that wheels may not be, or encrypted."""
DAMAGED = "Download or build it again; a wheel is a zip file with one *.dist-info directory."


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """A wheel, by what it claims and what it holds."""

    name: str
    version: str
    tags: tuple[str, ...]
    requires_torch: str | None
    """The requirement as METADATA writes it."""
    elf: tuple[ElfFacts, ...]
    size: int

    def to_json(self) -> dict[str, object]:
        """Give the document of `inspect --json`."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "version": self.version,
            "tags": list(self.tags),
            "requires_torch": self.requires_torch,
            "elf": [elf_to_json(elf) for elf in self.elf],
            "size": self.size,
        }


def elf_to_json(elf: ElfFacts) -> dict[str, object]:
    """Give one entry of `elf` in that document."""
    return {
        "path": elf.path,
        "needed": list(elf.needed),
        "rpath": elf.rpath,
        "glibc_floor": elf.glibc_floor,
        "device_code": elf.device_code.to_json(),
    }


def inspect_wheel(path: Path, *, scratch: Path | None = None) -> Inspection:
    """Open a wheel and look at all it holds; each ELF file goes through a temporary file in `scratch`.

    Raises VerifyError when it is no readable wheel.
    """
    try:
        with ZipFile(path) as archive:
            dist_info = dist_info_of(archive, path)
            metadata = headers(archive, f"{dist_info}/METADATA", path)
            wheel = headers(archive, f"{dist_info}/WHEEL", path)
            return Inspection(
                name=required(metadata, "Name", path, f"{dist_info}/METADATA"),
                version=required(metadata, "Version", path, f"{dist_info}/METADATA"),
                tags=tuple(sorted(tag.strip() for tag in wheel.get_all("Tag", []))),
                requires_torch=torch_requirement(metadata),
                elf=tuple(elf_files(archive, scratch)),
                size=path.stat().st_size,
            )
    except DeviceCodeError as error:
        raise DeviceCodeError(f"{path.name}: {error}", advice=error.advice) from error
    except ZIP_ERRORS as error:
        raise VerifyError(f"{path}: no readable wheel: {error}", advice=DAMAGED) from error
    except OSError as error:
        raise VerifyError(
            f"{path}: cannot be read: {error.strerror or error}", advice="Give the path of a .whl file."
        ) from error


def dist_info_of(archive: ZipFile, path: Path) -> str:
    """Find the one dist-info directory at the top of the wheel; raises VerifyError for none or several."""
    tops = {name.partition("/")[0] for name in archive.namelist() if "/" in name}
    match sorted(top for top in tops if top.endswith(".dist-info")):
        case [only]:
            return only
        case []:
            raise VerifyError(f"{path}: no wheel: it has no *.dist-info directory", advice=DAMAGED)
        case several:
            raise VerifyError(f"{path}: no wheel: it has several of {', '.join(several)}", advice=DAMAGED)


def headers(archive: ZipFile, member: str, path: Path) -> Message:
    """Read a metadata file; raises VerifyError when it is missing or absurdly large."""
    try:
        info = archive.getinfo(member)
    except KeyError:
        raise VerifyError(f"{path}: no wheel: {member} is missing", advice=DAMAGED) from None
    if info.file_size > METADATA_MAX:
        raise VerifyError(f"{path}: no wheel: {member} has {info.file_size} bytes", advice=DAMAGED)
    return BytesParser().parsebytes(archive.read(info))


def required(message: Message, field: str, path: Path, member: str) -> str:
    """Read a field that must be there."""
    value = message[field]
    if value is None:
        raise VerifyError(f"{path}: {member} has no field {field}", advice=DAMAGED)
    return str(value).strip()


def torch_requirement(metadata: Message) -> str | None:
    """Find the requirement on torch that holds without extras."""
    for text in metadata.get_all("Requires-Dist", []):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        extra_only = requirement.marker is not None and "extra" in str(requirement.marker)
        if canonicalize_name(requirement.name) == "torch" and not extra_only:
            return str(text).strip()
    return None


def elf_files(archive: ZipFile, scratch: Path | None) -> Iterator[ElfFacts]:
    """Read every ELF file, whatever its name, in the order of paths."""
    for info in sorted(archive.infolist(), key=lambda info: info.filename):
        if not info.is_dir() and is_elf(archive, info):
            with archive.open(info) as member, tempfile.TemporaryFile(dir=scratch) as copy:
                shutil.copyfileobj(member, copy, CHUNK)
                yield read_elf(cast("BinaryIO", copy), info.filename)


def is_elf(archive: ZipFile, info: ZipInfo) -> bool:
    """Tell an ELF file by its first bytes."""
    with archive.open(info) as member:
        return member.read(len(MAGIC)) == MAGIC
