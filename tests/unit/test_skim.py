"""One pass over libraries as they come out of an archive, on libraries made here."""

import io
import runpy
import struct
from collections.abc import Callable
from pathlib import Path
from typing import IO, BinaryIO

import pytest

from wheelmill.elf import ElfFacts, read_elf
from wheelmill.errors import DeviceCodeError
from wheelmill.skim import BEGINNING, CHUNK, Skimmer

MAKERS = runpy.run_path(str(Path(__file__).with_name("test_elf.py")))
CODE = runpy.run_path(str(Path(__file__).with_name("test_device_code.py")))
PROGBITS = 1


class Counting(io.BytesIO):
    """A file that remembers the largest piece written to it, and what was in it when it was closed."""

    def __init__(self, bin_: list[bytes]) -> None:
        super().__init__()
        self.bin = bin_

    def close(self) -> None:
        """Keep what is in it."""
        if not self.closed:
            self.bin.append(self.getvalue())
        super().close()


def skimmed(data: bytes, *, kernels: bool = False) -> tuple[ElfFacts | None, bytes, list[bytes]]:
    """Skim a file from memory: what it is, what was heard of it, and the copies made."""
    copies: list[bytes] = []
    heard = bytearray()

    def scratch(_: str) -> BinaryIO:
        return Counting(copies)

    def reopen() -> IO[bytes]:
        return io.BytesIO(data)

    facts = Skimmer(scratch=scratch, kernels=kernels).read("pkg/_C.so", len(data), reopen, heard.extend)
    return facts, bytes(heard), copies


def kernel_cubin(number: int, *names: str) -> bytes:
    """Make a cubin with a symbol table that lists these kernels, and one function that is none."""
    strings = MAKERS["Strings"]()
    rows = [(strings.add(name), 0x12, 0x10) for name in names] + [(strings.add("helper"), 0x12, 0)]
    symbols = bytes(24) + b"".join(struct.pack("<IBBHQQ", name, info, other, 1, 0, 0) for name, info, other in rows)
    made: bytes = MAKERS["elf_with"](
        (".strtab", 3, strings.data, 0, 0, 0), (".symtab", 2, symbols, 1, 1, 24), (".text.x", 1, b"code", 0, 0, 0)
    )
    return made[:7] + b"\x41\x08" + made[9:18] + struct.pack("<H", 190) + made[20:48] + struct.pack(
        "<I", number << 8 | 2
    ) + made[52:]  # fmt: skip


def library(section: bytes, **more: object) -> bytes:
    """Make a library with a section of device code."""
    made: bytes = MAKERS["library"](more=((".nv_fatbin", PROGBITS, section, 0, 0, 0),), **more)
    return made


LARGE = CODE["fatbin"](*(CODE["entry"](CODE["cubin"](100, size=3 * CHUNK), 100) for _ in range(3)))


@pytest.mark.parametrize(
    "data",
    [
        library(LARGE, tags=((1, "libtorch.so"),), versions=("GLIBC_2.34",)),
        library(MAKERS["fatbin"](80, 100) + bytes(64) + MAKERS["fatbin"](90)),
        library(b""),
        MAKERS["library"](symbols=(("PyInit__C", 1, True),)),
    ],
)
def test_same_facts_as_from_a_whole_file(data: bytes) -> None:
    """What goes by once gives what a reader of the whole file finds; every byte is heard once."""
    facts, heard, _ = skimmed(data)
    assert facts == read_elf(io.BytesIO(data), "pkg/_C.so")
    assert heard == data


def test_device_code_is_never_kept() -> None:
    """The copy has the file's size, and holes where the device code was."""
    _, _, (copy,) = skimmed(library(LARGE))
    assert len(copy) == len(library(LARGE))
    assert len(copy.strip(b"\0")) < len(copy)
    assert BEGINNING not in copy


def test_a_lookalike_costs_a_second_reading() -> None:
    """Bytes that begin like a fat binary in another section are read as what they are."""
    data = MAKERS["library"](
        more=(
            (".rodata", PROGBITS, BEGINNING + bytes(8) + b"x" * 100, 0, 0, 0),
            (".nv_fatbin", PROGBITS, MAKERS["fatbin"](100), 0, 0, 0),
        )
    )
    facts, heard, copies = skimmed(data)
    assert facts is not None
    assert facts.device_code.sass == {"sm_100": 1}
    assert heard == data
    assert len(copies) == 2


def test_nothing_hides_in_what_looks_like_device_code() -> None:
    """A fat binary around the table of symbols would be left out of the copy: the file is read in full."""
    data = MAKERS["library"](
        symbols=(("wanted", 1, False),), more=((".data", PROGBITS, MAKERS["fatbin"](100), 0, 0, 0),)
    )
    facts, _, copies = skimmed(data)
    assert facts is not None
    assert facts.undefined == {"wanted"}
    assert facts.device_code.sass == {}
    assert len(copies) == 2


def test_damaged_device_code_is_named() -> None:
    """The second reading says what a reader of the whole file says."""
    data = library(MAKERS["fatbin"](100)[:-8] + b"x" * 30)
    with pytest.raises(DeviceCodeError, match=r"^pkg/_C.so: device code at offset"):
        skimmed(data)


def test_kernels_of_every_architecture() -> None:
    """Kernels are found in machine code and PTX, packed or not; other functions are none."""
    make: Callable[..., bytes] = CODE["entry"]
    section = CODE["fatbin"](
        make(kernel_cubin(80, "_Z3addPf", "_Z3mulPf"), 80, compressed="lz4"),
        make(kernel_cubin(100, "_Z3addPf"), 100, compressed="zstd"),
        make(CODE["ptx"]("sm_80", body=".visible .entry _Z3addPf()\n{ }\n.entry _Z3divPf()"), 80, kind=1),
    )
    facts, _, _ = skimmed(library(section), kernels=True)
    assert facts is not None
    assert facts.device_code.kernels == {
        "_Z3addPf": ("sm_80", "sm_100", "compute_80"),
        "_Z3divPf": ("compute_80",),
        "_Z3mulPf": ("sm_80",),
    }
    assert facts.device_code.to_json()["kernels"] == {"sm_80": 2, "sm_100": 1, "compute_80": 2}


def test_a_cubin_by_itself() -> None:
    """Some projects ship machine code as files: its own header says for what, and which kernels."""
    facts, heard, copies = skimmed(kernel_cubin(103, "_Z4gemm"), kernels=True)
    assert facts is not None
    assert (facts.machine, facts.device_code.sass, copies) == ("cuda", {"sm_103": 1}, [])
    assert facts.device_code.kernels == {"_Z4gemm": ("sm_103",)}
    assert heard == kernel_cubin(103, "_Z4gemm")
    data = bytearray(kernel_cubin(100, "k"))
    data[48] |= 8
    accelerated, _, _ = skimmed(bytes(data))
    assert accelerated is not None
    assert accelerated.device_code.sass == {"sm_100a": 1}


def test_a_damaged_cubin() -> None:
    """One that is cut off within its header is named."""
    with pytest.raises(DeviceCodeError, match=r"^pkg/_C.so: device code at offset 0: listed as machine code"):
        skimmed(kernel_cubin(100, "k")[:40])


def test_what_is_no_elf_file_is_only_heard() -> None:
    """Text goes by."""
    assert skimmed(b"print()\n" * CHUNK) == (None, b"print()\n" * CHUNK, [])
