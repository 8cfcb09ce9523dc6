"""What a linked library says of itself: what it needs, where it may run, which GPU code it holds."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from elftools.common.exceptions import ELFError
from elftools.construct.core import ConstructError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import Section, SymbolTableSection

from . import device_code
from .device_code import Census
from .errors import DeviceCodeError

MAGIC = b"\x7fELF"
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
LINKED_CODE, RELOCATABLE_CODE = ".nv_fatbin", "__nv_relfatbin"
"""What the driver loads; what a later device link would take in. A finished library may still carry the
second, but nothing runs it: only an object file is counted by it."""
VERNEED_SIZE = 16
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


def read_elf(stream: BinaryIO, path: str) -> ElfFacts:
    """Read an ELF file, a section at a time: device code of hundreds of megabytes is never loaded.

    Raises DeviceCodeError, with the file's path, for a damaged file.
    """
    try:
        elf = ELFFile(stream)
        check_extents(elf, stream.seek(0, 2))
        return facts(elf, stream, path)
    except DeviceCodeError as error:
        raise DeviceCodeError(f"{path}: {error}", advice=error.advice) from error
    except ELFTOOLS_ERRORS as error:
        raise DeviceCodeError(f"{path}: no readable ELF file: {str(error) or type(error).__name__}") from error


def check_extents(elf: ELFFile, size: int) -> None:
    """Refuse sections outside the file: pyelftools would walk a table as long as a header claims."""
    for section in elf.iter_sections():
        if section["sh_type"] != "SHT_NOBITS" and section["sh_offset"] + section["sh_size"] > size:
            raise DeviceCodeError(f"section {section.name} reaches beyond the end of the file")


def facts(elf: ELFFile, stream: BinaryIO, path: str) -> ElfFacts:
    """Gather everything from an opened file."""
    tags = list(dynamic_tags(elf))
    versions = list(needed_versions(elf))
    undefined, exported = symbols(elf)
    return ElfFacts(
        path=path,
        machine=MACHINES.get(elf["e_machine"], str(elf["e_machine"])),
        soname=first(tags, "DT_SONAME"),
        needed=tuple(value for tag, value in tags if tag == "DT_NEEDED"),
        rpath=first(tags, "DT_RUNPATH") or first(tags, "DT_RPATH"),
        glibc_floor=floor(versions, "GLIBC"),
        glibcxx_floor=floor(versions, "GLIBCXX"),
        undefined=undefined,
        exported=exported,
        stripped=not any(unstripped(section.name) for section in elf.iter_sections()),
        device_code=census(elf, stream),
    )


def dynamic_tags(elf: ELFFile) -> Iterator[tuple[str, str]]:
    """Give the text tags of the dynamic section."""
    wanted = {
        "DT_NEEDED": "needed", "DT_SONAME": "soname", "DT_RUNPATH": "runpath", "DT_RPATH": "rpath"
    }  # fmt: skip
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                if name := wanted.get(tag.entry.d_tag):
                    yield tag.entry.d_tag, str(getattr(tag, name))


def first(tags: Iterable[tuple[str, str]], wanted: str) -> str | None:
    """Give the value of a tag, if it is there."""
    return next((value for tag, value in tags if tag == wanted), None)


def needed_versions(elf: ELFFile) -> Iterator[str]:
    """Give the symbol versions that other libraries must have, such as GLIBC_2.34."""
    for section in elf.iter_sections():
        if not isinstance(section, GNUVerNeedSection):
            continue
        budget = section["sh_size"] // VERNEED_SIZE  # the links of a damaged table may go round in circles
        for _, auxiliaries in section.iter_versions():
            for auxiliary in auxiliaries:
                budget -= 1
                if budget < 0:
                    raise DeviceCodeError("the table of needed versions goes round in circles")
                yield str(auxiliary.name)


def floor(versions: Iterable[str], library: str) -> str | None:
    """Give the newest version of a library among symbol versions."""
    matches = [SYMBOL_VERSION.fullmatch(MARKERS.get(version, version)) for version in versions]
    numbers = {match["version"] for match in matches if match and match["library"] == library}
    return max(numbers, key=lambda number: [int(part) for part in number.split(".")], default=None)


def symbols(elf: ELFFile) -> tuple[frozenset[str], frozenset[str]]:
    """Give the dynamic symbols that are wanted from others, and those that are offered."""
    undefined, exported = set(), set()
    for section in elf.iter_sections():
        if not isinstance(section, SymbolTableSection) or section["sh_type"] != "SHT_DYNSYM":
            continue
        for symbol in section.iter_symbols():
            binding, visibility = symbol["st_info"]["bind"], symbol["st_other"]["visibility"]
            if symbol["st_shndx"] != "SHN_UNDEF":
                if binding != "STB_LOCAL" and visibility in {"STV_DEFAULT", "STV_PROTECTED"}:
                    exported.add(symbol.name)
            elif binding == "STB_GLOBAL" and symbol.name:
                undefined.add(symbol.name)
    return frozenset(undefined), frozenset(exported)


def unstripped(name: str) -> bool:
    """Tell whether a section is one that `strip` removes."""
    return name == ".symtab" or name.startswith((".debug_", ".zdebug_"))


def census(elf: ELFFile, stream: BinaryIO) -> Census:
    """Count the device code that this file brings to a GPU."""
    names = (LINKED_CODE, RELOCATABLE_CODE) if elf["e_type"] == "ET_REL" else (LINKED_CODE,)
    return Census.of(
        entry for section in elf.iter_sections() if section.name in names for entry in read_section(section, stream)
    )


def read_section(section: Section, stream: BinaryIO) -> tuple[device_code.Entry, ...]:
    """Read a section of device code in place."""
    if section["sh_type"] == "SHT_NOBITS":
        raise DeviceCodeError(f"section {section.name} has been taken out (objcopy --only-keep-debug?)")
    return device_code.read(stream, start=section["sh_offset"], size=section["sh_size"])
