"""What ELF files say of themselves, on files made here and on a real extension module."""

import contextlib
import struct
from io import BytesIO
from pathlib import Path

import pytest
import zstandard.backend_c
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmill.device_code import Census
from wheelmill.elf import ElfFacts, floor, read_elf
from wheelmill.errors import DeviceCodeError

PROGBITS, STRTAB, DYNAMIC, NOBITS, DYNSYM, VERNEED = 1, 3, 6, 8, 11, 0x6FFFFFFE
ET_REL, ET_DYN = 1, 3
NEEDED, SONAME, RPATH, RUNPATH = 1, 14, 15, 29
LOCAL, GLOBAL, WEAK = 0, 1, 2


def fatbin(*numbers: int) -> bytes:
    """Make a fat binary with machine code for each of these architectures."""
    code = b"\x7fELF.text.kernel".ljust(64, b"\0")
    entries = b"".join(
        struct.pack("<HHIQ8xHHI8xQQQ", 2, 0x101, 64, len(code), 8, 1, number, 0x11, 0, 0) + code for number in numbers
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


class Strings:
    """A string table that grows."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        """Add a string and give its offset."""
        offset = len(self.data)
        self.data += text.encode() + b"\0"
        return offset


def elf_with(*sections: tuple[str, int, bytes, int, int, int], file_type: int = ET_DYN, machine: int = 62) -> bytes:
    """Make an ELF file of sections (name, type, data, link, info, size of an entry)."""
    names = Strings()
    table, body = b"\0" * 64, b""
    for name, kind, data, link, info, each in sections:
        head = (names.add(name), kind, 0, 0, 64 + len(body), len(data), link, info, 8, each)
        table += struct.pack("<IIQQQQIIQQ", *head)
        body += b"" if kind == NOBITS else data.ljust(-(-len(data) // 8) * 8, b"\0")
    shstrtab = names.add(".shstrtab")
    table += struct.pack("<IIQQQQIIQQ", shstrtab, STRTAB, 0, 0, 64 + len(body), len(names.data), 0, 0, 1, 0)
    body += names.data.ljust(-(-len(names.data) // 8) * 8, b"\0")
    header = struct.pack(
        "<4s5B7xHHIQQQIHHHHHH",
        *(b"\x7fELF", 2, 1, 1, 0, 0, file_type, machine, 1, 0, 0, 64 + len(body)),
        *(0, 64, 56, 0, 64, len(sections) + 2, len(sections) + 1),
    )
    return header + body + table


def library(
    *,
    tags: tuple[tuple[int, str], ...] = (),
    versions: tuple[str, ...] = (),
    symbols: tuple[tuple[str, int, bool], ...] = (),
    more: tuple[tuple[str, int, bytes, int, int, int], ...] = (),
    loop: bool = False,
) -> bytes:
    """Make a shared library with these dynamic tags, needed versions and (name, binding, defined) symbols."""
    strings = Strings()
    dynamic = b"".join(struct.pack("<qQ", tag, strings.add(text)) for tag, text in tags) + bytes(16)
    links = [struct.pack("<IHHII", 0, 0, 2, strings.add(name), 0 if loop else 16) for name in versions]
    count = 1000 if loop else len(versions)
    verneed = struct.pack("<HHIII", 1, count, strings.add("libc.so.6"), 16, 0) + b"".join(links)
    dynsym = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", strings.add(name), binding << 4, 0, 1 if defined else 0, 0, 0)
        for name, binding, defined in symbols
    )
    return elf_with(
        (".dynstr", STRTAB, strings.data, 0, 0, 0),
        (".dynamic", DYNAMIC, dynamic, 1, 0, 16),
        (".gnu.version_r", VERNEED, verneed if versions else b"", 1, 1 if versions else 0, 0),
        (".dynsym", DYNSYM, dynsym, 1, 1, 24),
        *more,
    )


def read(data: bytes) -> ElfFacts:
    """Read a file from memory."""
    return read_elf(BytesIO(data), "pkg/_C.so")


def test_reads_everything() -> None:
    """Each fact comes from its own section."""
    facts = read(
        library(
            tags=((NEEDED, "libtorch.so"), (NEEDED, "libc.so.6"), (SONAME, "_C.so"), (RPATH, "$ORIGIN")),
            versions=("GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.4", "GLIBCXX_3.4.9", "GLIBCXX_3.4.30", "CXXABI_1.3"),
            symbols=(
                ("cudaLaunchKernel", GLOBAL, False),
                ("__gmon_start__", WEAK, False),
                ("PyInit__C", GLOBAL, True),
                ("inline_thing", WEAK, True),
                ("local_thing", LOCAL, True),
            ),
            more=((".nv_fatbin", PROGBITS, fatbin(80, 100, 100), 0, 0, 0),),
        )
    )
    assert facts == ElfFacts(
        path="pkg/_C.so",
        machine="x86_64",
        soname="_C.so",
        needed=("libtorch.so", "libc.so.6"),
        rpath="$ORIGIN",
        glibc_floor="2.34",
        glibcxx_floor="3.4.30",
        undefined=frozenset({"cudaLaunchKernel"}),
        exported=frozenset({"PyInit__C", "inline_thing"}),
        stripped=True,
        device_code=Census(sass={"sm_80": 1, "sm_100": 2}),
        requires=frozenset({"GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.4", "GLIBCXX_3.4.9", "GLIBCXX_3.4.30", "CXXABI_1.3"}),
    )


def test_a_library_that_asks_for_nothing() -> None:
    """What is absent is None or empty."""
    facts = read(library())
    assert (facts.soname, facts.rpath, facts.glibc_floor, facts.glibcxx_floor) == (None, None, None, None)
    assert (facts.needed, facts.undefined, facts.exported) == ((), frozenset(), frozenset())
    assert facts.device_code == Census()


def test_runpath_wins_over_rpath() -> None:
    """The loader ignores DT_RPATH where there is DT_RUNPATH, and so do we."""
    assert read(library(tags=((RPATH, "/old"), (RUNPATH, "$ORIGIN/lib")))).rpath == "$ORIGIN/lib"


@pytest.mark.parametrize("section", [".symtab", ".debug_info", ".zdebug_line"])
def test_symbols_and_debug_sections_mean_not_stripped(section: str) -> None:
    """Either is what `strip` would have removed."""
    assert not read(library(more=((section, PROGBITS, b"", 0, 0, 0),))).stripped


def test_relocatable_device_code_counts_in_object_files_only() -> None:
    """A finished library's __nv_relfatbin is a leftover that no driver loads."""
    sections = (
        (".nv_fatbin", PROGBITS, fatbin(100), 0, 0, 0),
        ("__nv_relfatbin", PROGBITS, fatbin(90), 0, 0, 0),
    )
    assert read(elf_with(*sections)).device_code.sass == {"sm_100": 1}
    assert read(elf_with(*sections, file_type=ET_REL)).device_code.sass == {"sm_90": 1, "sm_100": 1}


@pytest.mark.parametrize(("machine", "name"), [(62, "x86_64"), (183, "aarch64"), (243, "EM_RISCV")])
def test_machines(machine: int, name: str) -> None:
    """Machines have the names that platform tags use."""
    assert read(elf_with(machine=machine)).machine == name


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (["GLIBC_2.9", "GLIBC_2.10"], "2.10"),
        (["GLIBC_2.2.5", "GLIBC_ABI_DT_RELR"], "2.36"),
        (["GLIBC_PRIVATE", "GLIBCXX_3.4"], None),
    ],
)
def test_floor_compares_numbers(versions: list[str], expected: str | None) -> None:
    """2.10 is newer than 2.9; packed relocations need 2.36; private symbols say nothing."""
    assert floor(versions, "GLIBC") == expected


def test_reads_a_real_extension_module() -> None:
    """A module that a compiler made looks as expected."""
    path = Path(zstandard.backend_c.__file__)
    with path.open("rb") as stream:
        facts = read_elf(stream, path.name)
    assert "libc.so.6" in facts.needed
    assert "PyInit_backend_c" in facts.exported
    assert "PyModule_AddObject" in facts.undefined or "PyErr_SetString" in facts.undefined
    assert facts.glibc_floor is not None
    assert facts.device_code == Census()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"MZ", "pkg/_C.so: no readable ELF file: Magic number does not match"),
        (
            library(more=((".nv_fatbin", PROGBITS, b"garbage!", 0, 0, 0),)),
            "pkg/_C.so: device code at offset 0: 16 bytes are wanted and the section ends after 8",
        ),
        (
            library(more=((".nv_fatbin", NOBITS, b"0123456789", 0, 0, 0),)),
            "pkg/_C.so: section .nv_fatbin has been taken out (objcopy --only-keep-debug?)",
        ),
        (
            library(versions=("GLIBC_2.34",), loop=True),
            "pkg/_C.so: the table of needed versions goes round in circles",
        ),
    ],
)
def test_says_what_is_damaged(data: bytes, message: str) -> None:
    """Each kind of damage is named, with the file."""
    with pytest.raises(DeviceCodeError) as caught:
        read(data)
    assert str(caught.value) == message


def test_a_section_beyond_the_end_is_refused() -> None:
    """A truncated upload must not read as a library without device code."""
    data = bytearray(library(more=((".nv_fatbin", PROGBITS, fatbin(100), 0, 0, 0),)))
    table = struct.unpack_from("<Q", data, 0x28)[0]
    struct.pack_into("<Q", data, table + 5 * 64 + 32, 1 << 40)
    with pytest.raises(DeviceCodeError, match=r"^pkg/_C\.so: section \.nv_fatbin reaches beyond the end of the file$"):
        read(bytes(data))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damage_is_read_or_refused(data: st.DataObject) -> None:
    """Changed bytes or a missing end never raise anything but our own error, and never hang."""
    whole = library(
        tags=((NEEDED, "libc.so.6"), (SONAME, "x.so")),
        versions=("GLIBC_2.34", "GLIBCXX_3.4.30"),
        symbols=(("a", GLOBAL, False), ("b", GLOBAL, True)),
        more=((".nv_fatbin", PROGBITS, fatbin(100), 0, 0, 0),),
    )
    damaged = bytearray(whole[: data.draw(st.integers(len(whole) * 3 // 4, len(whole)))])
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DeviceCodeError):
        read(bytes(damaged))


def test_names_that_overlap_without_end() -> None:
    """A table of symbols whose names are all ends of one long text would fill the memory."""
    rows = bytes(24) + b"".join(struct.pack("<IBBHQQ", 1 + n, GLOBAL << 4, 0, 0, 0, 0) for n in range(100))
    strings = (".dynstr", STRTAB, b"\0" + b"x" * 30_000, 0, 0, 0)
    with pytest.raises(DeviceCodeError, match="names that overlap without end"):
        read(elf_with(strings, (".dynsym", DYNSYM, rows, 1, 1, 24)))


def test_texts_without_end() -> None:
    """Many long run paths, too."""
    with pytest.raises(DeviceCodeError, match="texts without end"):
        read(library(tags=tuple((NEEDED, "x" * 60_000) for _ in range(20))))


def test_sections_without_number() -> None:
    """A table of thousands of sections is no linker's."""
    with pytest.raises(DeviceCodeError, match="it has 3002 sections, more than any linked file"):
        read(elf_with(*((f".s{n}", PROGBITS, b"", 0, 0, 0) for n in range(3000))))
