"""Compare two wheels: which of them would run other code, and where the first difference lies.

Four grades. `identical`: the same bytes. `same-content`: the same files, packed otherwise. `same-code`: host and
device code are equal, and what differs does not run (names in tables that the loader does not read, notes, metadata
of the wheel). `different`: anything else.
"""

import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import IO, BinaryIO, Literal, cast

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Section, SymbolTableSection

from . import device_code
from .device_code import Entry, region_of
from .elf import ELFTOOLS_ERRORS
from .errors import DeviceCodeError, VerifyError
from .inspection import dist_info_of
from .wheel_file import DAMAGE

Grade = Literal["identical", "same-content", "same-code", "different"]
Kind = Literal["archive", "metadata", "content", "host-code", "device-code"]
GRADES: tuple[Grade, ...] = ("identical", "same-content", "same-code", "different")
NOT_RUN: frozenset[Kind] = frozenset({"archive", "metadata"})

ELF_MAGIC = b"\x7fELF"
ALLOCATED = 0x2
NO_BITS = "SHT_NOBITS"
NOTES = "SHT_NOTE"
DEVICE_SECTIONS = (".nv", "__nv")
DEVICE_CODE = (".nv_fatbin", "__nv_relfatbin")
CHUNK = 1 << 20
SHOWN = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One difference: in which file of the wheel, in which section of it, at which symbol, and what it is."""

    kind: Kind
    member: str
    section: str = ""
    symbol: str = ""
    """The first symbol that differs, or that holds the first byte that does."""
    detail: str = ""

    def to_json(self) -> dict[str, str]:
        """Give it as `rebuild --json` does."""
        return {name: getattr(self, name) for name in self.__slots__}

    def line(self) -> str:
        """Say it in one line."""
        place = " ".join(part for part in (self.member, self.section) if part)
        symbol = f" at {self.symbol}" if self.symbol else ""
        return f"{self.kind}: {place}{symbol}: {self.detail}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """How far two wheels are equal."""

    grade: Grade
    differences: tuple[Difference, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Give it as `rebuild --json` does."""
        return {"grade": self.grade, "differences": [each.to_json() for each in self.differences]}


def compare(ours: Path, theirs: Path) -> Comparison:
    """Compare two wheels; VerifyError where one of them cannot be read."""
    if equal_streams(ours, theirs):
        return Comparison(grade="identical")
    try:
        with zipfile.ZipFile(ours) as one, zipfile.ZipFile(theirs) as other:
            found = (*archives(one, other), *members(one, other, dist_info_of(one, ours)))
    except (*DAMAGE, OSError) as error:
        raise VerifyError(f"{ours.name} and {theirs.name} cannot be compared: {error}") from error
    return Comparison(grade=grade(found), differences=found)


def grade(differences: Iterable[Difference]) -> Grade:
    """Grade by the gravest difference."""
    kinds = {each.kind for each in differences}
    if kinds <= {"archive"}:
        return "same-content"
    return "same-code" if kinds <= NOT_RUN else "different"


def equal_streams(ours: Path, theirs: Path) -> bool:
    """Compare two files byte by byte."""
    if ours.stat().st_size != theirs.stat().st_size:
        return False
    with ours.open("rb") as one, theirs.open("rb") as other:
        return first_difference(one, other) is None


def first_difference(one: IO[bytes], other: IO[bytes], limit: int | None = None) -> int | None:
    """Find the first byte that differs from here on, None where there is none."""
    at = 0
    while limit is None or at < limit:
        count = CHUNK if limit is None else min(CHUNK, limit - at)
        left, right = one.read(count), other.read(count)
        if left != right:
            pairs = zip(left, right, strict=False)
            return at + next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
        if not left:
            return None
        at += len(left)
    return None


# the archive -----------------------------------------------------------------------------------------


def archives(one: zipfile.ZipFile, other: zipfile.ZipFile) -> Iterator[Difference]:
    """Say how two archives are packed otherwise, whatever is in them."""
    ours, theirs = ({info.filename: info for info in archive.infolist()} for archive in (one, other))
    both = [name for name in ours if name in theirs]
    if both != [name for name in theirs if name in ours]:
        yield Difference(kind="archive", member="", detail="the files stand in another order")
    asked: tuple[tuple[str, Callable[[zipfile.ZipInfo], object]], ...] = (
        ("date", lambda info: "-".join(f"{part:02}" for part in info.date_time)),
        ("mode", lambda info: oct(info.external_attr >> 16)),
        ("compression", lambda info: info.compress_type),
    )
    for what, ask in asked:
        yield from unequal(what, [(name, ask(ours[name]), ask(theirs[name])) for name in both])
    equal = [name for name in both if ours[name].CRC == theirs[name].CRC]
    sizes = [(name, ours[name].compress_size, theirs[name].compress_size) for name in equal]
    yield from unequal("packed size", sizes)


def unequal(what: str, values: Sequence[tuple[str, object, object]]) -> Iterator[Difference]:
    """Make one difference of all members of which one property differs: the first, and how many more."""
    found = [(name, a, b) for name, a, b in values if a != b]
    if found:
        (name, a, b), *more = found
        others = f", and {len(more)} more" if more else ""
        yield Difference(kind="archive", member=name, detail=f"{what} {a}, not {b}{others}")


def members(one: zipfile.ZipFile, other: zipfile.ZipFile, dist_info: str) -> Iterator[Difference]:
    """Compare what the files say, in the order of their names."""
    ours, theirs = set(one.namelist()), set(other.namelist())
    for name in sorted(ours | theirs):
        kind: Kind = "metadata" if name.startswith(f"{dist_info}/") else "content"
        if name not in ours or name not in theirs:
            yield Difference(kind=kind, member=name, detail="only in the " + ("first" if name in ours else "second"))
            continue
        with one.open(name) as left, other.open(name) as right:
            at = first_difference(left, right)
        if at is None:
            continue
        if is_elf(one, name) and is_elf(other, name):
            with unpacked(one, name) as mine, unpacked(other, name) as yours:
                yield from elf_files(mine, yours, name)
        else:
            yield text_difference(one, other, name, kind, at)


@contextmanager
def unpacked(archive: zipfile.ZipFile, name: str) -> Iterator[BinaryIO]:
    """Unpack one member to a file without a name: an ELF file is read here and there, and may be a gigabyte."""
    with tempfile.TemporaryFile() as copy, archive.open(name) as source:
        shutil.copyfileobj(source, copy, CHUNK)
        yield cast("BinaryIO", copy)


def is_elf(archive: zipfile.ZipFile, name: str) -> bool:
    """Tell an ELF file by its first bytes."""
    with archive.open(name) as stream:
        return stream.read(4) == ELF_MAGIC


def text_difference(one: zipfile.ZipFile, other: zipfile.ZipFile, name: str, kind: Kind, at: int) -> Difference:
    """Show the first line that differs, or where the first byte does in what is no text."""
    with one.open(name) as left, other.open(name) as right:
        for number, (a, b) in enumerate(zip_longest(left, right, fillvalue=b""), start=1):
            if a != b:
                if b"\0" in a + b:
                    return Difference(kind=kind, member=name, detail=f"byte {at} is the first that differs")
                return Difference(kind=kind, member=name, detail=f"line {number}: {shown(a)}, not {shown(b)}")
    return Difference(kind=kind, member=name, detail=f"byte {at} is the first that differs")


def shown(text: bytes) -> str:
    """Spell a line for people, not too much of it."""
    plain = text.decode("utf-8", "replace").strip()
    return repr(plain if len(plain) <= SHOWN else plain[:SHOWN] + "…")


# ELF -------------------------------------------------------------------------------------------------


def elf_files(ours: BinaryIO, theirs: BinaryIO, member: str) -> tuple[Difference, ...]:
    """Compare two ELF files section by section."""
    try:
        one, other = Elf.of(ours), Elf.of(theirs)
        names = list(dict.fromkeys([*one.sections, *other.sections]))
        found = [each for name in names for each in sections(one, other, name, member)]
    except (*ELFTOOLS_ERRORS, DeviceCodeError) as error:
        return (Difference(kind="content", member=member, detail=f"it cannot be read as ELF: {error}"),)
    # A difference that moves what follows changes tables of addresses too; the cause stands in the others.
    return tuple(found) or (Difference(kind="metadata", member=member, detail="headers only"),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Elf:
    """An ELF file with its sections by name; a name that comes again is numbered."""

    stream: BinaryIO
    sections: dict[str, Section]
    symbols: tuple[tuple[int, int, str], ...]
    """Address, size and name of what has a place, from the fullest table there is."""
    tables: dict[str, tuple[str, ...]]
    """The names in each symbol table, in its order."""

    @classmethod
    def of(cls, stream: BinaryIO) -> "Elf":
        """Read the tables."""
        file, named, tables = ELFFile(stream), {}, {}
        symbols: list[tuple[int, int, str]] = []
        for section in file.iter_sections():
            name, number = section.name, 2
            while name in named:
                name, number = f"{section.name}#{number}", number + 1
            named[name] = section
            if isinstance(section, SymbolTableSection):
                entries = list(section.iter_symbols())
                tables[name] = tuple(symbol.name for symbol in entries)
                symbols += [
                    (symbol["st_value"], symbol["st_size"], symbol.name)
                    for symbol in entries
                    if symbol.name and symbol["st_value"] and symbol["st_shndx"] not in ("SHN_UNDEF", "SHN_ABS")
                ]
        return cls(stream=stream, sections=named, symbols=tuple(sorted(set(symbols))), tables=tables)

    def symbol_at(self, section: Section, offset: int) -> str:
        """Name what holds a byte of a section: the last symbol that begins at or before it."""
        address = section["sh_addr"] + offset
        best = ""
        for value, size, name in self.symbols:
            if value > address:
                break
            if address < value + max(size, 1) or (not size and value >= section["sh_addr"]):
                best = name
        return best


def sections(one: Elf, other: Elf, name: str, member: str) -> Iterator[Difference]:
    """Compare one section of two files."""
    left, right = one.sections.get(name), other.sections.get(name)
    if left is None or right is None:
        there = left if left is not None else right
        assert there is not None  # noqa: S101 - the name comes from one of the two
        which = "first" if left is not None else "second"
        yield Difference(kind=kind_of(there, name), member=member, section=name, detail=f"only in the {which}")
        return
    kind = kind_of(left, name)
    offset = section_difference(one, other, left, right)
    if offset is None:
        return
    if name.startswith(DEVICE_CODE):
        yield from fat_binaries(one, other, name, member)
        return
    symbol = table_difference(one, other, name) or one.symbol_at(left, offset)
    sizes = (left["sh_size"], right["sh_size"])
    detail = (
        f"byte {offset} of {sizes[0]}" if sizes[0] == sizes[1] else f"{sizes[0]} bytes, not {sizes[1]}; byte {offset}"
    )
    yield Difference(
        kind=kind, member=member, section=name, symbol=symbol, detail=detail + context(one, other, left, right, offset)
    )


def kind_of(section: Section, name: str) -> Kind:
    """Tell what runs from what does not: the loader maps a section that is allocated, and reads no note of it."""
    if name.startswith(DEVICE_SECTIONS):
        return "device-code"
    runs = section["sh_flags"] & ALLOCATED and section["sh_type"] != NOTES
    return "host-code" if runs else "metadata"


def section_difference(one: Elf, other: Elf, left: Section, right: Section) -> int | None:
    """Find the first byte of a section that differs."""
    if NO_BITS in (left["sh_type"], right["sh_type"]):
        return None if left["sh_size"] == right["sh_size"] else min(left["sh_size"], right["sh_size"])
    shorter = min(left["sh_size"], right["sh_size"])
    one.stream.seek(left["sh_offset"])
    other.stream.seek(right["sh_offset"])
    at = first_difference(one.stream, other.stream, shorter)
    return shorter if at is None and left["sh_size"] != right["sh_size"] else at


def table_difference(one: Elf, other: Elf, name: str) -> str:
    """Give the first name that differs in a symbol table, or in the strings of one."""
    table = {".strtab": ".symtab", ".dynstr": ".dynsym"}.get(name, name)
    pairs = zip_longest(one.tables.get(table, ()), other.tables.get(table, ()), fillvalue="nothing")
    return next((f"{a}, not {b}" for a, b in pairs if a != b), "")


def context(one: Elf, other: Elf, left: Section, right: Section, offset: int) -> str:
    """Show the text around the first difference, where it is text: a path or a date speaks for itself."""
    texts = [text_around(elf.stream, section, offset) for elf, section in ((one, left), (other, right))]
    return f": {texts[0]!r}, not {texts[1]!r}" if all(texts) and texts[0] != texts[1] else ""


def text_around(stream: BinaryIO, section: Section, offset: int) -> str:
    """Give the string that a byte of a section stands in, nothing where it is no text."""
    start = max(0, offset - SHOWN)
    stream.seek(section["sh_offset"] + start)
    data = stream.read(min(2 * SHOWN, section["sh_size"] - start))
    begin = data.rfind(b"\0", 0, offset - start) + 1
    end = data.find(b"\0", offset - start)
    text = data[begin : end if end >= 0 else len(data)]
    return text.decode("ascii", "replace") if len(text) > 3 and all(32 <= byte < 127 for byte in text) else ""


# device code -----------------------------------------------------------------------------------------


def fat_binaries(one: Elf, other: Elf, name: str, member: str) -> Iterator[Difference]:
    """Compare device code image by image, each unpacked: padding and packing do not run."""
    left, right = (images(elf, name) for elf in (one, other))
    for number, (a, b) in enumerate(zip_longest(left, right)):
        if a is None or b is None:
            detail = f"{number} images are in both, one more is in the " + ("second" if a is None else "first")
            yield Difference(kind="device-code", member=member, section=name, detail=detail)
            return
        (ours, first), (theirs, second) = a, b
        if first == second:
            continue
        label = f"image {number} ({ours.kind} for {ours.arch.sm})"
        if ours.kind == theirs.kind == "elf":
            yield image_difference(first, second, label, member, name)
        else:
            yield Difference(
                kind="device-code", member=member, section=name, symbol=label, detail=line_of(first, second)
            )
        return
    yield Difference(kind="metadata", member=member, section=name, detail="the same images, packed or padded otherwise")


def images(elf: Elf, name: str) -> Iterator[tuple[Entry, bytes]]:
    """Unpack every image of a section."""
    section = elf.sections[name]
    region = region_of(elf.stream, start=section["sh_offset"], size=section["sh_size"])
    for entry in device_code.read(elf.stream, start=section["sh_offset"], size=section["sh_size"]):
        yield entry, device_code.unpack(region, entry, entry.size)


def image_difference(first: bytes, second: bytes, label: str, member: str, section: str) -> Difference:
    """Name the kernel: a cubin is an ELF file with a section of code for each."""
    inside = elf_files(BytesIO(first), BytesIO(second), member)
    code = [each for each in inside if each.section.startswith((".text.", ".nv.constant"))]
    found = (code or list(inside))[0]
    kernel = found.section.removeprefix(".text.") if found.section.startswith(".text.") else found.symbol
    where = f"{label}, {found.section}" if found.section else label
    return Difference(
        kind="device-code", member=member, section=section, symbol=kernel, detail=f"{where}: {found.detail}"
    )


def line_of(first: bytes, second: bytes) -> str:
    """Show the first line of PTX that differs."""
    pairs = zip_longest(first.splitlines(), second.splitlines(), fillvalue=b"")
    return next((f"{shown(a)}, not {shown(b)}" for a, b in pairs if a != b), "other bytes")
