"""What a linked library says of itself: what it needs, where it may run, which GPU code it holds."""

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from elftools.common.exceptions import ELFError
from elftools.construct.core import ConstructError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import Section

from . import device_code
from .device_code import Census, Entry
from .errors import DeviceCodeError

MAGIC = b"\x7fELF"
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
LINKED_CODE, RELOCATABLE_CODE = ".nv_fatbin", "__nv_relfatbin"
"""What the driver loads; what a later device link would take in. A finished library may still carry the
second, but nothing runs it: only an object file is counted by it."""
VERNEED_SIZE = 16
MACHINE_OFFSET, CUDA = 18, 190
"""Where an ELF file says its machine, and the GPU's number: such a file is a cubin."""
SYMBOL = struct.Struct("<IBBHQQ")
MAX_TABLE = 1 << 26
"""libtorch_cpu.so of torch 2.9.1 has 5.5 MB of names; more than this is no library's."""
MAX_TEXT = 1 << 20
"""What all texts of the dynamic section, and all names of versions, may be long together: real ones have kilobytes."""
MAX_SECTIONS = 2000
"""Linked files have some forty; object files may have one for each function."""
SHARED_NAMES = 4
"""How much longer names may be together than the table they stand in: linkers let one be the end of another."""
HIDDEN_VERSION = 0x8000
GNU_PROPERTY_ISA = 0xC0008002
ISA_LEVELS = {2: "x86-64-v2", 4: "x86-64-v3", 8: "x86-64-v4"}
STACK_EXECUTABLE, FLAG_TEXTREL = 1, 4
SYMBOL_VERSION = re.compile(r"(?P<library>GLIBC|GLIBCXX)_(?P<version>[0-9]+(?:\.[0-9]+)*)")
MARKERS = {"GLIBC_ABI_DT_RELR": "GLIBC_2.36"}
"""Versions without a number, by which a linker says that it used a feature of that glibc."""
ELFTOOLS_ERRORS = (
    ELFError,
    ConstructError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What pyelftools raises for damaged files (found by mutating real ones): it checks little itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ElfFacts:
    """One ELF file, by what matters for where it can run."""

    path: str
    machine: str
    soname: str | None
    needed: tuple[str, ...]
    rpath: str | None
    """DT_RUNPATH, else DT_RPATH, as the loader chooses."""
    glibc_floor: str | None
    glibcxx_floor: str | None
    undefined: frozenset[str]
    """Symbols that some other library must have; weak ones may stay unfound and are not here."""
    exported: frozenset[str]
    stripped: bool
    device_code: Census
    versions: Mapping[str, str] = field(default_factory=dict)
    """The version that an undefined symbol must have, such as GLIBC_2.34; weak symbols are here, too."""
    requires: frozenset[str] = frozenset()
    """Every symbol version that other libraries must have."""
    isa: str = ""
    """The instruction set it is marked for, such as x86-64-v3; empty for every machine's."""
    textrel: bool = False
    execstack: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Hole:
    """A fat binary that was read while the file went by, and is not in the stream any more."""

    start: int
    end: int
    entries: tuple[Entry, ...]


def is_cubin(head: bytes) -> bool:
    """Tell machine code of a GPU from a library, by the first bytes of an ELF file."""
    return head[MACHINE_OFFSET : MACHINE_OFFSET + 2] == CUDA.to_bytes(2, "little")


def cubin_facts(cubin: bytes, path: str, *, kernels: bool = False) -> ElfFacts:
    """Describe a file that is machine code itself; raises DeviceCodeError, with its path, for a damaged one."""
    try:
        census = Census.of([device_code.read_cubin(cubin, kernels=kernels)])
    except DeviceCodeError as error:
        raise DeviceCodeError(f"{path}: {error}", advice=error.advice) from error
    return ElfFacts(
        path=path, machine="cuda", soname=None, needed=(), rpath=None, glibc_floor=None, glibcxx_floor=None,
        undefined=frozenset(), exported=frozenset(), stripped=True, device_code=census,
    )  # fmt: skip


def read_elf(stream: BinaryIO, path: str, *, holes: Sequence[Hole] | None = None, kernels: bool = False) -> ElfFacts:
    """Read an ELF file, a section at a time: device code of hundreds of megabytes is never loaded.

    `holes`: the device code that was read already. Raises DeviceCodeError, with the file's path, for a damaged file.
    """
    try:
        elf = ELFFile(stream)
        check_extents(elf, stream.seek(0, 2))
        if holes is not None:
            check_holes(elf, holes)
        return facts(elf, stream, path, holes=holes, kernels=kernels)
    except DeviceCodeError as error:
        raise DeviceCodeError(f"{path}: {error}", advice=error.advice) from error
    except ELFTOOLS_ERRORS as error:
        raise DeviceCodeError(f"{path}: no readable ELF file: {str(error) or type(error).__name__}") from error


def check_extents(elf: ELFFile, size: int) -> None:
    """Refuse sections outside the file, or without number: pyelftools would walk a table as long as a header claims."""
    if elf["e_type"] != "ET_REL" and elf.num_sections() > MAX_SECTIONS:
        raise DeviceCodeError(f"it has {elf.num_sections()} sections, more than any linked file")
    for section in elf.iter_sections():
        if section["sh_type"] != "SHT_NOBITS" and section["sh_offset"] + section["sh_size"] > size:
            raise DeviceCodeError(f"section {section.name} reaches beyond the end of the file")


class MisplacedDeviceCodeError(Exception):
    """Something that looked like device code lies where there is none: the file must be read from a copy."""


def check_holes(elf: ELFFile, holes: Sequence[Hole]) -> None:
    """Make sure that what was cut out is in sections of device code, and in no other; else MisplacedDeviceCodeError."""
    sections = [section for section in elf.iter_sections() if section["sh_type"] != "SHT_NOBITS" and section["sh_size"]]
    table = (elf["e_shoff"], elf["e_shoff"] + elf["e_shnum"] * elf["e_shentsize"])
    for hole in holes:
        inside = [
            each.name for each in sections if within(hole, each["sh_offset"], each["sh_offset"] + each["sh_size"])
        ]
        if not inside or not set(inside) <= {LINKED_CODE, RELOCATABLE_CODE} or within(hole, *table):
            raise MisplacedDeviceCodeError(f"device code at offset {hole.start}: in no section of device code")


def within(hole: Hole, start: int, end: int) -> bool:
    """Tell whether a hole and a part of the file have a byte in common."""
    return hole.start < end and start < hole.end


def facts(
    elf: ELFFile, stream: BinaryIO, path: str, *, holes: Sequence[Hole] | None = None, kernels: bool = False
) -> ElfFacts:
    """Gather everything from an opened file."""
    tags = list(dynamic_tags(elf))
    needed = list(needed_versions(elf))
    versions = [version for _, version in needed]
    table = symbols(elf, dict(needed))
    return ElfFacts(
        path=path,
        machine=MACHINES.get(elf["e_machine"], str(elf["e_machine"])),
        soname=first(tags, "DT_SONAME"),
        needed=tuple(value for tag, value in tags if tag == "DT_NEEDED"),
        rpath=first(tags, "DT_RUNPATH") or first(tags, "DT_RPATH"),
        glibc_floor=floor(versions, "GLIBC"),
        glibcxx_floor=floor(versions, "GLIBCXX"),
        undefined=table.undefined,
        exported=table.exported,
        stripped=not any(unstripped(section.name) for section in elf.iter_sections()),
        device_code=census(elf, stream, holes=holes, kernels=kernels),
        versions=table.versions,
        requires=frozenset(versions),
        isa=isa(elf),
        textrel=has_textrel(elf),
        execstack=has_execstack(elf),
    )


def exports_of(path: Path) -> tuple[frozenset[str], tuple[str, ...]]:
    """Give what an installed library offers and what it needs, its device code left alone; nothing of a damaged one."""
    try:
        with path.open("rb") as stream:
            elf = ELFFile(stream)
            needed = tuple(value for tag, value in dynamic_tags(elf) if tag == "DT_NEEDED")
            return symbols(elf, {}).exported, needed
    except (DeviceCodeError, OSError, *ELFTOOLS_ERRORS):
        return frozenset(), ()


def wanted_by(path: Path) -> frozenset[str]:
    """Give the symbols that an object file wants from others; nothing of a damaged one."""
    found: set[str] = set()
    try:
        with path.open("rb") as stream:
            elf = ELFFile(stream)
            for section in elf.iter_sections():
                if section["sh_type"] == "SHT_SYMTAB":
                    strings = table_of(elf.get_section(section["sh_link"]))
                    rows = SYMBOL.iter_unpack(whole(table_of(section), SYMBOL.size))
                    found |= {string_at(strings, name) for name, _, _, where, _, _ in rows if where == 0 and name}
    except (DeviceCodeError, OSError, *ELFTOOLS_ERRORS):
        return frozenset()
    return frozenset(found)


def isa(elf: ELFFile) -> str:
    """Read for which level of x86-64 a file is marked (GNU_PROPERTY_X86_ISA_1_NEEDED); the highest one counts."""
    section = elf.get_section_by_name(".note.gnu.property")
    data = table_of(section) if section is not None else b""
    offset, level = 16, ""  # past the note's header and its name `GNU`
    while offset + 12 <= len(data):
        kind, size, bits = struct.unpack_from("<III", data, offset)
        if kind == GNU_PROPERTY_ISA:
            level = next((name for bit, name in sorted(ISA_LEVELS.items(), reverse=True) if bits & bit), "")
        offset += 8 + -(-size // 8) * 8
    return level


def has_textrel(elf: ELFFile) -> bool:
    """Tell whether loading it writes into its code, which hardened systems refuse."""
    return any(
        tag.entry.d_tag == "DT_TEXTREL" or (tag.entry.d_tag == "DT_FLAGS" and tag.entry.d_val & FLAG_TEXTREL)
        for section in elf.iter_sections()
        if isinstance(section, DynamicSection)
        for tag in section.iter_tags()
    )


def has_execstack(elf: ELFFile) -> bool:
    """Tell whether it asks for an executable stack, which newer C libraries refuse."""
    return any(
        segment["p_type"] == "PT_GNU_STACK" and segment["p_flags"] & STACK_EXECUTABLE for segment in elf.iter_segments()
    )


def dynamic_tags(elf: ELFFile) -> Iterator[tuple[str, str]]:
    """Give the text tags of the dynamic section."""
    wanted = {
        "DT_NEEDED": "needed", "DT_SONAME": "soname", "DT_RUNPATH": "runpath", "DT_RPATH": "rpath"
    }  # fmt: skip
    left = MAX_TEXT
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                if name := wanted.get(tag.entry.d_tag):
                    text = str(getattr(tag, name))
                    left -= len(text)
                    if left < 0:
                        raise DeviceCodeError("its dynamic section has texts without end")
                    yield tag.entry.d_tag, text


def first(tags: Iterable[tuple[str, str]], wanted: str) -> str | None:
    """Give the value of a tag, if it is there."""
    return next((value for tag, value in tags if tag == wanted), None)


def needed_versions(elf: ELFFile) -> Iterator[tuple[int, str]]:
    """Give the symbol versions that other libraries must have, such as GLIBC_2.34, by their number in this file."""
    left = MAX_TEXT
    for section in elf.iter_sections():
        if not isinstance(section, GNUVerNeedSection):
            continue
        budget = section["sh_size"] // VERNEED_SIZE  # the links of a damaged table may go round in circles
        for _, auxiliaries in section.iter_versions():
            for auxiliary in auxiliaries:
                budget, left = budget - 1, left - len(auxiliary.name)
                if budget < 0 or left < 0:
                    raise DeviceCodeError("the table of needed versions goes round in circles")
                yield auxiliary.entry["vna_other"], str(auxiliary.name)


def floor(versions: Iterable[str], library: str) -> str | None:
    """Give the newest version of a library among symbol versions."""
    matches = [SYMBOL_VERSION.fullmatch(MARKERS.get(version, version)) for version in versions]
    numbers = {match["version"] for match in matches if match and match["library"] == library}
    return max(numbers, key=lambda number: [int(part) for part in number.split(".")], default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Symbols:
    """The dynamic symbols of a file: wanted from others, offered, and which version is wanted."""

    undefined: frozenset[str]
    exported: frozenset[str]
    versions: Mapping[str, str]


def symbols(elf: ELFFile, numbered: Mapping[int, str]) -> Symbols:
    """Read the dynamic symbols, by hand: pyelftools takes six seconds for torch's.

    Raises DeviceCodeError for tables that no linker writes.
    """
    undefined, exported, versions = set(), set(), {}
    for section in elf.iter_sections():
        if section["sh_type"] != "SHT_DYNSYM":
            continue
        strings = table_of(elf.get_section(section["sh_link"]))
        rows = table_of(section)
        wanted = version_numbers(elf, len(rows) // SYMBOL.size)
        left = SHARED_NAMES * len(strings) + len(rows)
        for index, (name, info, other, where, _, _) in enumerate(SYMBOL.iter_unpack(whole(rows, SYMBOL.size))):
            binding = info >> 4
            text = string_at(strings, name) if binding else ""
            left -= len(text)
            if left < 0:
                raise DeviceCodeError("its table of symbols has names that overlap without end")
            if where == 0 and binding in {1, 2} and name:
                if binding == 1:
                    undefined.add(text)
                if version := numbered.get(wanted[index] & ~HIDDEN_VERSION):
                    versions[text] = version
            elif where and binding and other & 3 in {0, 3}:
                exported.add(text)
    return Symbols(undefined=frozenset(undefined), exported=frozenset(exported), versions=versions)


def version_numbers(elf: ELFFile, count: int) -> Sequence[int]:
    """Give the number of the version that each dynamic symbol has; 0 for none."""
    data = next((table_of(each) for each in elf.iter_sections() if each["sh_type"] == "SHT_GNU_versym"), b"")
    numbers = struct.unpack(f"<{len(data) // 2}H", whole(data, 2))
    return numbers if len(numbers) >= count else (*numbers, *[0] * (count - len(numbers)))


def table_of(section: Section) -> bytes:
    """Read a table of a file into memory; raises DeviceCodeError for one beyond all measure."""
    if section["sh_size"] > MAX_TABLE:
        raise DeviceCodeError(f"section {section.name} has {section['sh_size']} bytes, more than any library's")
    return b"" if section["sh_type"] == "SHT_NOBITS" else bytes(section.data())


def whole(data: bytes, size: int) -> bytes:
    """Cut off what is no whole row."""
    return data[: len(data) // size * size]


def string_at(strings: bytes, offset: int) -> str:
    """Read one string of a string table."""
    end = strings.find(b"\0", offset)
    return strings[offset : end if end >= 0 else None].decode("utf-8", "replace")


def unstripped(name: str) -> bool:
    """Tell whether a section is one that `strip` removes."""
    return name == ".symtab" or name.startswith((".debug_", ".zdebug_"))


def census(elf: ELFFile, stream: BinaryIO, *, holes: Sequence[Hole] | None = None, kernels: bool = False) -> Census:
    """Count the device code that this file brings to a GPU."""
    names = (LINKED_CODE, RELOCATABLE_CODE) if elf["e_type"] == "ET_REL" else (LINKED_CODE,)
    return Census.of(
        entry
        for section in elf.iter_sections()
        if section.name in names
        for entry in read_section(section, stream, holes=holes, kernels=kernels)
    )


def read_section(
    section: Section, stream: BinaryIO, *, holes: Sequence[Hole] | None = None, kernels: bool = False
) -> tuple[Entry, ...]:
    """Read a section of device code in place, or take what was read of it when the file went by."""
    if section["sh_type"] == "SHT_NOBITS":
        raise DeviceCodeError(f"section {section.name} has been taken out (objcopy --only-keep-debug?)")
    start, size = section["sh_offset"], section["sh_size"]
    if holes is None:
        return device_code.read(stream, start=start, size=size, kernels=kernels)
    return entries_between(device_code.Region(stream=stream, start=0, size=start + size), start, holes)


def entries_between(region: device_code.Region, start: int, holes: Sequence[Hole]) -> tuple[Entry, ...]:
    """Give the entries of the fat binaries of a section, and make sure that nothing but zeros lies between them."""
    found: list[Entry] = []
    offset = start
    for hole in holes:
        if start <= hole.start < region.size:
            require_padding(region, offset, hole.start)
            found += hole.entries
            offset = hole.end
    require_padding(region, offset, region.size)
    return tuple(found)


def require_padding(region: device_code.Region, offset: int, end: int) -> None:
    """Raise MisplacedDeviceCodeError where there is something between two fat binaries."""
    if device_code.past_padding(device_code.Region(stream=region.stream, start=0, size=end), offset) < end:
        raise MisplacedDeviceCodeError(f"device code at offset {offset}: something else lies between fat binaries")
