"""One pass over a file as it comes out of an archive: device code is counted on the way and never kept.

The sections of an ELF file are listed at its end, when its device code has long gone by. So fat binaries are found by
their magic number, read while they pass, and left out of a sparse copy, which has everything else; the list of sections
then has to confirm every one of them, else the file is read once more, in full.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import IO, BinaryIO, cast

from .device_code import FATBIN, MAGIC, MAX_ENTRIES, Region, fat_binary
from .elf import MAGIC as ELF_MAGIC
from .elf import ElfFacts, Hole, MisplacedDeviceCodeError, cubin_facts, is_cubin, read_elf
from .errors import DeviceCodeError

CHUNK = 1 << 20
BEGINNING = FATBIN.pack(MAGIC, 1, 16, 0)[:8]
"""Every fat binary that a toolkit since CUDA 11 wrote begins so, at a multiple of eight."""
ALIGNMENT = 8
MAX_CUBIN = 1 << 27


class LostBytesError(Exception):
    """What looked like a fat binary was none, and has gone by already."""


@dataclass(kw_only=True, slots=True)
class Window:
    """A stream that goes forward, with the part of it that is in memory; what is dropped goes into `sink`.

    A stand-in for a file where all reading goes forward: `seek` and `read` are what `device_code` asks for.
    """

    source: IO[bytes]
    sink: BinaryIO
    hear: Callable[[bytes], None]
    base: int = 0
    place: int = 0
    kept: bytearray
    hole: int = 0
    """Up to here nothing goes into the sink."""

    def seek(self, position: int) -> int:
        """Say where the next read begins."""
        self.place = position
        return position

    def read(self, count: int) -> bytes:
        """Read so many bytes, fewer at the end; what lies before them is dropped."""
        if self.place < self.base:
            raise LostBytesError(f"device code at offset {self.place}: these bytes have gone by")
        self.drop(self.place)
        while self.base + len(self.kept) < self.place + count and self.fill():
            self.drop(self.place)
        offset = self.place - self.base
        self.place += count
        with memoryview(self.kept) as view:
            return bytes(view[offset : offset + count])

    def fill(self) -> bool:
        """Take one piece more; False at the end."""
        chunk = self.source.read(CHUNK)
        self.hear(chunk)
        self.kept += chunk
        return bool(chunk)

    def drop(self, upto: int) -> None:
        """Forget what lies before a position; outside of holes it goes into the sink."""
        count = min(upto, self.base + len(self.kept)) - self.base
        if count <= 0:
            return
        first = max(self.hole - self.base, 0)
        if first < count:
            self.sink.seek(self.base + first)
            with memoryview(self.kept) as view:
                self.sink.write(view[first:count])
        del self.kept[:count]
        self.base += count

    def find(self, position: int) -> int:
        """Find the next beginning of a fat binary at or after a position; -1 where there is none."""
        while True:
            self.drop(position)
            hit = self.kept.find(BEGINNING, position - self.base)
            while hit >= 0 and (hit + self.base) % ALIGNMENT:
                hit = self.kept.find(BEGINNING, hit + 1)
            if hit >= 0:
                return hit + self.base
            position = max(position, self.base + len(self.kept) - len(BEGINNING) + 1)
            if not self.fill():
                return -1


def skim_holes(window: Window, size: int, *, kernels: bool) -> tuple[Hole, ...]:
    """Read every fat binary that goes by; the rest goes into the window's sink.

    Raises LostBytesError for what only looks like one.
    """
    holes: list[Hole] = []
    region = Region(stream=cast("BinaryIO", window), start=0, size=size)
    position = count = 0
    while (start := window.find(position)) >= 0:
        window.drop(start)
        head = region.at(start, FATBIN.size)
        _, _, header, length = FATBIN.unpack(head)
        if start + header + length > size:
            position = start + ALIGNMENT
            continue
        window.hole = start + header + length
        try:
            entries = tuple(islice(fat_binary(region, start, kernels=kernels), MAX_ENTRIES - count))
        except DeviceCodeError as error:
            raise LostBytesError(str(error)) from error
        count += len(entries)
        if count >= MAX_ENTRIES:
            raise LostBytesError(f"device code at offset {start}: more entries than any file has")
        holes.append(Hole(start=start, end=window.hole, entries=entries))
        position = window.hole
    window.drop(size)
    return tuple(holes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Skimmer:
    """How files are looked at: whether for kernels, and where copies of ELF files are made."""

    scratch: Callable[[str], BinaryIO]
    """Open a file for the sparse copy of a member, by its name; it is closed afterwards."""
    kernels: bool = False

    def read(
        self, path: str, size: int, reopen: Callable[[], IO[bytes]], hear: Callable[[bytes], None]
    ) -> ElfFacts | None:
        """Read a file to its end, telling `hear` every piece; None where it is no ELF file.

        Raises DeviceCodeError for a damaged one, and whatever the stream raises.
        """
        with reopen() as source:
            head = source.read(CHUNK)
            if not head.startswith(ELF_MAGIC):
                hear(head)
                listen(source, hear)
                return None
            if is_cubin(head):
                return self.cubin(path, head, source, hear)
            try:
                return self.library(path, size, cast("IO[bytes]", Ahead(head=head, rest=source)), hear)
            except (LostBytesError, MisplacedDeviceCodeError):
                listen(source, hear)
        return self.thorough(path, reopen)

    def cubin(self, path: str, head: bytes, source: IO[bytes], hear: Callable[[bytes], None]) -> ElfFacts:
        """Read machine code that is a file of its own."""
        hear(head)
        content = bytearray(head)

        def keep(chunk: bytes) -> None:
            hear(chunk)
            content.extend(chunk[: max(MAX_CUBIN - len(content), 0)])

        listen(source, keep)
        return cubin_facts(bytes(content), path, kernels=self.kernels)

    def library(self, path: str, size: int, source: IO[bytes], hear: Callable[[bytes], None]) -> ElfFacts:
        """Read a library by way of a sparse copy."""
        with self.scratch(path) as sink:
            window = Window(source=source, sink=sink, hear=hear, kept=bytearray())
            holes = skim_holes(window, size, kernels=self.kernels)
            if window.base != size:  # a size that is only claimed would make a sparse file of any length
                raise DeviceCodeError(f"{path}: it has {window.base} bytes, and should have {size}")
            sink.truncate(size)
            sink.flush()
            return read_elf(sink, path, holes=holes, kernels=self.kernels)

    def thorough(self, path: str, reopen: Callable[[], IO[bytes]]) -> ElfFacts:
        """Read a library by way of a whole copy."""
        with self.scratch(path) as sink, reopen() as source:
            sink.truncate(0)
            listen(source, lambda chunk: write(sink, chunk))
            sink.flush()
            return read_elf(sink, path, kernels=self.kernels)


def write(sink: BinaryIO, chunk: bytes) -> None:
    """Write a piece at the end."""
    sink.seek(0, os.SEEK_END)
    sink.write(chunk)


def listen(source: IO[bytes], hear: Callable[[bytes], None]) -> None:
    """Read to the end."""
    while chunk := source.read(CHUNK):
        hear(chunk)


@dataclass(kw_only=True, slots=True)
class Ahead:
    """A stream of which the beginning has been read already."""

    head: bytes
    rest: IO[bytes]

    def read(self, count: int) -> bytes:
        """Give the beginning first."""
        head, self.head = self.head, b""
        return head or self.rest.read(count)
