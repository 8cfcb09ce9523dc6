"""The census of compiled GPU code: what a `.nv_fatbin` section holds, read without NVIDIA's tools.

NVIDIA does not document the layout; it was learnt from files that nvcc 11.7 to 13.0 made, and the integration
tests hold it against `cuobjdump`. A section is a row of fat binaries, padded with zeros; each is a header of
16 bytes and a row of entries; an entry is a header of at least 64 bytes, and a payload. Files that are machine code
themselves (`.cubin`) have the architecture in their ELF header.
"""

import re
import struct
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from threading import Lock
from typing import BinaryIO, Self

import lz4.block
import zstandard

from .arch import Arch
from .errors import DeviceCodeError

MAGIC = 0xBA55ED50
FATBIN = struct.Struct("<IHHQ")
"""Magic, version, size of this header, size of all entries."""
ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
"""Kind, version, size of this header, size of the payload with padding; its compressed size, offset of
options, minor, major, architecture, offset and length of a name, flags, reserved, its size once unpacked."""

VERSION = 1
KINDS = {1: "ptx", 2: "elf", 8: "lto"}
ARCH_SPECIFIC, FAMILY_SPECIFIC = 0x100000, 0x200000
ARCH_NUMBERS = range(10, 10_000)
COMPRESSION = {0: "", 0x2000: "lz4", 0x8000: "zstd"}
"""CUDA 12 compresses with LZ4, CUDA 13 with zstd."""

MAX_ENTRIES = 200_000
"""libtorch_cuda.so of torch 2.11 has 2789; a section of empty entries must not keep us busy for minutes."""
MAX_UNPACKED = 1 << 31
MAX_CONTENT = 1 << 27
"""What is unpacked whole, to find its kernels: twice the largest entry of vLLM 0.15.1."""
LZ4_MAX_RATIO = 255
PLACEHOLDER_MAX = 1 << 16
"""nvcc's device link adds empty cubins of 1 to 2 KB, for nvcc's default GPU where the link named none; a unit with
variables only, compiled without -gencode, left 5 KB for sm_52 in vLLM 0.15.1. Bigger entries have kernels."""
FUNCTION_MARKS = {"elf": (b".text.",), "ptx": (b".entry", b".func")}
CUBIN_HEADER = 64
ACCELERATED_BEFORE_8, ACCELERATED = 0x800, 0x8
"""Suffix `a` in a cubin's own flags, up to ABI version 7 and since. A family's cubin is not told apart there."""
SYMTAB, FUNCTION, ENTRY_POINT = 2, 2, 0x10
"""A section's type, a symbol's type, and the bit of its `st_other` by which the driver finds a kernel."""
ELF_SECTION, ELF_SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
PTX_KERNEL = re.compile(rb"\.entry\s+([A-Za-z_$%][\w$]*)")
PTX_HEAD = 1 << 16
PTX_TARGET = re.compile(rb"^[ \t]*\.target[ \t]+(sm_[0-9]+[af]?)", re.MULTILINE)
CHUNK = 1 << 16
ONE_AT_A_TIME = Lock()
"""Among threads: an entry of vLLM 0.15.1 unpacks to 66 MB, and files are read side by side."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One piece of device code: `elf` (machine code), `ptx`, `lto` or `kind-N`."""

    kind: str
    arch: Arch
    size: int
    """Bytes once unpacked."""
    stored: int
    """Bytes in the file."""
    compressed: str
    """`lz4`, `zstd` or nothing."""
    offset: int
    """Of the payload in the section."""
    placeholder: bool = False
    """It has no function, so no GPU ever asks for it."""
    kernels: tuple[str, ...] = ()
    """What can be launched, by its linker's name; looked for where that was asked for."""

    @property
    def code(self) -> str:
        """Name it as nvcc does: `sm_100a` for machine code, `compute_90` for PTX."""
        return self.arch.compute if self.kind == "ptx" else self.arch.sm


@dataclass(frozen=True, kw_only=True, slots=True)
class Census:
    """How many entries there are of each architecture; placeholders are counted in `sass` and `ptx` too."""

    sass: Mapping[str, int] = field(default_factory=dict)
    ptx: Mapping[str, int] = field(default_factory=dict)
    sass_placeholders: Mapping[str, int] = field(default_factory=dict)
    ptx_placeholders: Mapping[str, int] = field(default_factory=dict)
    sass_bytes: Mapping[str, int] = field(default_factory=dict, compare=False)
    ptx_bytes: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Bytes once unpacked; a file holds them packed."""
    kernels: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)
    """What there is of each kernel, where kernels were looked for: `sm_80`, `compute_90`, …"""

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Self:
        """Count entries by kind and architecture."""
        found = tuple(entries)
        empty = tuple(entry for entry in found if entry.placeholder)
        return cls(
            sass=tally(found, "elf"),
            ptx=tally(found, "ptx"),
            sass_placeholders=tally(empty, "elf"),
            ptx_placeholders=tally(empty, "ptx"),
            sass_bytes=weigh(found, "elf"),
            ptx_bytes=weigh(found, "ptx"),
            kernels=kernels_by_code(found),
        )

    @property
    def archs(self) -> tuple[Arch, ...]:
        """Every architecture there are functions for: as machine code, and as PTX with `ptx` set."""
        sass = (Arch.of_code(name) for name, n in self.sass.items() if n > self.sass_placeholders.get(name, 0))
        ptx = (Arch.of_code(name) for name, n in self.ptx.items() if n > self.ptx_placeholders.get(name, 0))
        return (*sass, *(replace(arch, ptx=True) for arch in ptx))

    def to_json(self) -> dict[str, object]:
        """Give the fields of `inspect --json`."""
        counts = Counter(code for codes in self.kernels.values() for code in codes)
        return {
            "sass": dict(self.sass),
            "ptx": dict(self.ptx),
            "sass_bytes": dict(self.sass_bytes),
            "ptx_bytes": dict(self.ptx_bytes),
            "kernels": {code: counts[code] for code in sorted(counts, key=code_order)},
        }


def code_order(code: str) -> tuple[bool, Arch]:
    """Sort machine code before PTX, older before newer."""
    arch = Arch.of_code(code)
    return (arch.ptx, arch)


def tally(entries: Iterable[Entry], kind: str) -> dict[str, int]:
    """Count entries of a kind by nvcc's name of their architecture, oldest first."""
    counts = Counter(entry.arch for entry in entries if entry.kind == kind)
    return {arch.sm: count for arch, count in sorted(counts.items())}


def weigh(entries: Iterable[Entry], kind: str) -> dict[str, int]:
    """Add up the unpacked bytes of a kind by nvcc's name of their architecture, oldest first."""
    sizes: Counter[Arch] = Counter()
    for entry in entries:
        if entry.kind == kind:
            sizes[entry.arch] += entry.size
    return {arch.sm: size for arch, size in sorted(sizes.items())}


def kernels_by_code(entries: Iterable[Entry]) -> dict[str, tuple[str, ...]]:
    """Gather what there is of each kernel; equal tuples are one object, for there are ten thousands of kernels."""
    codes: dict[str, set[str]] = defaultdict(set)
    for entry in entries:
        for kernel in entry.kernels:
            codes[kernel].add(entry.code)
    shared: dict[frozenset[str], tuple[str, ...]] = {}
    for found in set(map(frozenset, codes.values())):
        shared[found] = tuple(sorted(found, key=code_order))
    return {kernel: shared[frozenset(codes[kernel])] for kernel in sorted(codes)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """A section as a part of a file, so that one of hundreds of megabytes never lies in memory."""

    stream: BinaryIO
    start: int
    size: int

    def at(self, offset: int, count: int) -> bytes:
        """Read so many bytes; raises DeviceCodeError when they are not all there."""
        if offset + count > self.size:
            raise DeviceCodeError(
                f"device code at offset {offset}: {count} bytes are wanted and the section ends "
                f"after {self.size - offset}"
            )
        self.stream.seek(self.start + offset)
        data = self.stream.read(count)
        if len(data) != count:
            raise DeviceCodeError(f"device code at offset {offset}: the file ends in the middle of it")
        return data


def read(
    section: bytes | memoryview | BinaryIO,
    *,
    start: int = 0,
    size: int | None = None,
    deep: bool = False,
    kernels: bool = False,
) -> tuple[Entry, ...]:
    """List the entries of a `.nv_fatbin` or `__nv_relfatbin` section.

    `start` and `size` say where in a file the section lies; `deep` also unpacks each entry and compares the
    architecture in its own header, `kernels` unpacks each and lists its kernels.
    Raises DeviceCodeError for bytes that nvcc did not write.
    """
    region = region_of(section, start=start, size=size)
    found: list[Entry] = []
    for entry in entries(region, kernels=kernels):
        if len(found) == MAX_ENTRIES:
            raise DeviceCodeError(f"device code with more than {MAX_ENTRIES} entries")
        if deep:
            compare_with_content(region, entry)
        found.append(entry)
    return tuple(found)


def payload(section: bytes | memoryview | BinaryIO, entry: Entry, *, start: int = 0, size: int | None = None) -> bytes:
    """Unpack an entry that `read` found: a cubin, or PTX text with the zeros after it.

    Raises DeviceCodeError when it does not unpack to the size it claims.
    """
    return unpack(region_of(section, start=start, size=size), entry, entry.size)


def region_of(section: bytes | memoryview | BinaryIO, *, start: int, size: int | None) -> Region:
    """Look at bytes and files alike."""
    stream = BytesIO(section) if isinstance(section, bytes | memoryview) else section
    if size is None:
        size = stream.seek(0, 2) - start
    return Region(stream=stream, start=start, size=size)


def entries(region: Region, *, kernels: bool = False) -> Iterator[Entry]:
    """Walk fat binary after fat binary; every step goes forward, so it ends."""
    offset = past_padding(region, 0)
    while offset < region.size:
        end = yield from fat_binary(region, offset, kernels=kernels)
        offset = past_padding(region, end)


def fat_binary(region: Region, offset: int, *, kernels: bool = False) -> Generator[Entry, None, int]:
    """Give the entries of the fat binary that begins here, then where it ends; reads strictly forward."""
    magic, version, header, length = FATBIN.unpack(region.at(offset, FATBIN.size))
    if magic != MAGIC or version != VERSION or header < FATBIN.size:
        raise DeviceCodeError(
            f"device code at offset {offset}: no fat binary (magic {magic:#x}, version {version}, "
            f"header of {header} bytes)"
        )
    end = offset + header + length
    if end > region.size:
        raise DeviceCodeError(
            f"device code at offset {offset}: a fat binary of {header + length} bytes, "
            f"and the section ends after {region.size - offset}"
        )
    offset += header
    while offset < end:
        entry, offset = entry_at(region, offset, end, kernels=kernels)
        yield entry
    return int(end)


def past_padding(region: Region, offset: int) -> int:
    """Find the next byte that is not zero: linkers pad, and a fat binary never begins with zero."""
    while offset < region.size:
        chunk = region.at(offset, min(CHUNK, region.size - offset))
        if rest := chunk.lstrip(b"\0"):
            return offset + len(chunk) - len(rest)
        offset += len(chunk)
    return offset


def entry_at(region: Region, offset: int, end: int, *, kernels: bool) -> tuple[Entry, int]:
    """Read the entry that begins here, and say where the next one begins."""
    fields = ENTRY.unpack(region.at(offset, ENTRY.size))
    kind, _, header, padded, packed, _, _, _, number, _, _, flags, _, unpacked = fields
    compression = COMPRESSION.get(flags & 0xA000)
    following = offset + header + padded
    possible = header >= ENTRY.size and following <= end and packed <= padded and number in ARCH_NUMBERS
    if not possible or compression is None:
        raise DeviceCodeError(
            f"device code at offset {offset}: an entry that cannot be (architecture {number}, "
            f"flags {flags:#x}, header of {header} bytes, {padded} bytes of which {packed} are used, "
            f"{end - offset} are left)"
        )
    entry = Entry(
        kind=KINDS.get(kind, f"kind-{kind}"),
        arch=Arch(
            major=number // 10,
            minor=number % 10,
            suffix="a" if flags & ARCH_SPECIFIC else "f" if flags & FAMILY_SPECIFIC else "",
            ptx=KINDS.get(kind) == "ptx",
        ),
        size=unpacked if compression else padded,
        stored=packed if compression else padded,
        compressed=compression,
        offset=offset + header,
    )
    return with_content(region, entry, kernels=kernels), following


def with_content(region: Region, entry: Entry, *, kernels: bool) -> Entry:
    """Look into an entry where that tells something: its kernels, and whether it has a function at all.

    A cubin's sections and PTX's keywords stand in it as text.
    """
    marks = FUNCTION_MARKS.get(entry.kind)
    if marks is None or not (kernels or entry.size <= PLACEHOLDER_MAX):
        return entry
    if entry.size > MAX_CONTENT:
        raise DeviceCodeError(
            f"device code at offset {entry.offset}: {entry.size} bytes in one entry; {MAX_CONTENT} are looked at"
        )
    with ONE_AT_A_TIME:
        content = unpack(region, entry, entry.size)
        names = kernel_names(entry.kind, content) if kernels else ()
    empty = entry.size <= PLACEHOLDER_MAX and not any(mark in content for mark in marks)
    return replace(entry, placeholder=empty, kernels=names)


def kernel_names(kind: str, content: bytes) -> tuple[str, ...]:
    """List the kernels of a cubin or of PTX; none for what cannot be read as one."""
    names = (match[1] for match in PTX_KERNEL.finditer(content)) if kind == "ptx" else cubin_kernels(content)
    return tuple(sorted({sys.intern(name.decode("utf-8", "replace")) for name in names}))


def cubin_kernels(cubin: bytes) -> Iterator[bytes]:
    """Give the names of a cubin's entry points, from its symbol tables."""
    if len(cubin) < CUBIN_HEADER or not cubin.startswith(b"\x7fELF\x02\x01"):
        return
    (start,), (each, count) = struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<HH", cubin, 58)
    table = cubin[start : start + each * count]
    if each != ELF_SECTION.size or len(table) != each * count:
        return
    sections = list(ELF_SECTION.iter_unpack(table))
    left = len(cubin)  # names that overlap without end would fill the memory
    for _, kind, _, _, offset, size, link, _, _, _ in sections:
        if kind != SYMTAB or link >= len(sections):
            continue
        strings = sections[link][4]
        end = strings + sections[link][5]
        symbols = cubin[offset : offset + size - size % ELF_SYMBOL.size]
        for name, info, other, _, _, _ in ELF_SYMBOL.iter_unpack(symbols[: len(symbols) // 24 * 24]):
            if info & 0xF == FUNCTION and other & ENTRY_POINT:
                found = cubin[strings + name : max(cubin.find(b"\0", strings + name, end), 0)]
                left -= len(found)
                if left < 0:
                    return
                yield found


def read_cubin(cubin: bytes, *, kernels: bool = False) -> Entry:
    """Describe a file that is machine code itself; raises DeviceCodeError when it is none."""
    entry = Entry(kind="elf", arch=Arch(major=0, minor=0), size=len(cubin), stored=len(cubin), compressed="", offset=0)
    number, (flags,) = cubin_number(cubin, entry), struct.unpack_from("<I", cubin, 48)
    accelerated = flags & (ACCELERATED if cubin[8] >= 8 else ACCELERATED_BEFORE_8)
    return replace(
        entry,
        arch=Arch(major=number // 10, minor=number % 10, suffix="a" if accelerated else ""),
        placeholder=len(cubin) <= PLACEHOLDER_MAX and not any(mark in cubin for mark in FUNCTION_MARKS["elf"]),
        kernels=kernel_names("elf", cubin) if kernels else (),
    )


def unpack(region: Region, entry: Entry, count: int) -> bytes:
    """Unpack at least the first `count` bytes of an entry.

    Raises DeviceCodeError when it is damaged, or claims a size that it cannot have.
    """
    count = min(count, entry.size)
    if not entry.compressed:
        return region.at(entry.offset, count)
    possible = LZ4_MAX_RATIO * entry.stored + CUBIN_HEADER if entry.compressed == "lz4" else MAX_UNPACKED
    limit = MAX_CONTENT if entry.compressed == "lz4" else MAX_UNPACKED  # an LZ4 block unpacks whole or not at all
    if entry.size > min(possible, limit):
        raise DeviceCodeError(
            f"device code at offset {entry.offset}: {entry.stored} bytes cannot unpack to {entry.size}"
        )
    packed = region.at(entry.offset, entry.stored)
    try:
        data = unlz4(packed, entry.size) if entry.compressed == "lz4" else unzstd(packed, count)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError) as error:
        raise DeviceCodeError(
            f"device code at offset {entry.offset}: {entry.compressed} data is damaged: {error}"
        ) from error
    if len(data) < count:
        raise DeviceCodeError(
            f"device code at offset {entry.offset}: unpacks to {len(data)} bytes instead of {entry.size}"
        )
    return data


def unlz4(packed: bytes, size: int) -> bytes:
    """Unpack one LZ4 block, which does not know its own size."""
    return bytes(lz4.block.decompress(packed, uncompressed_size=size))


def unzstd(packed: bytes, count: int) -> bytes:
    """Unpack the beginning of a zstd frame."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_CONTENT)
    with decompressor.stream_reader(BytesIO(packed)) as reader:
        return reader.read(count)


def compare_with_content(region: Region, entry: Entry) -> None:
    """Hold the architecture in the fat binary against the one that the code itself names.

    Raises DeviceCodeError when they differ: the driver goes by the first, the GPU by the second.
    """
    if entry.kind == "elf":
        found = f"sm_{cubin_number(unpack(region, entry, CUBIN_HEADER), entry)}"
        expected = f"sm_{entry.arch.major}{entry.arch.minor}"  # a cubin's header does not tell 100a from 100
    elif entry.kind == "ptx":
        target = PTX_TARGET.search(unpack(region, entry, PTX_HEAD))
        found, expected = target[1].decode() if target else "nothing", entry.arch.sm
    else:
        return
    if found != expected:
        raise DeviceCodeError(
            f"device code at offset {entry.offset}: listed as {expected}, but its {entry.kind} is for {found}"
        )


def cubin_number(cubin: bytes, entry: Entry) -> int:
    """Read the architecture's number from a cubin's ELF flags; raises DeviceCodeError when it is no ELF file.

    Low byte up to ABI version 7, second byte from 8 on (EF_CUDA_SM in LLVM's BinaryFormat/ELF.h).
    """
    if len(cubin) < CUBIN_HEADER or not cubin.startswith(b"\x7fELF"):
        raise DeviceCodeError(f"device code at offset {entry.offset}: listed as machine code, but no ELF file")
    abi, (flags,) = cubin[8], struct.unpack_from("<I", cubin, 48)
    return int(flags >> 8 & 0xFF if abi >= 8 else flags & 0xFF)
