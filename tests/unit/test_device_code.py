"""The census of device code, on fat binaries made here byte by byte."""

import struct
from io import BytesIO

import lz4.block
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmill.arch import CAPABILITIES, Arch
from wheelmill.device_code import Census, Entry, payload, read
from wheelmill.errors import DeviceCodeError

IMPOSSIBLE = "device code at offset 16: an entry that cannot be "
FLAGS = {"": 0, "lz4": 0x2000, "zstd": 0x8000}
SUFFIX = {"": 0, "a": 0x100000, "f": 0x200000}


def cubin(number: int, *, abi: int = 8, code: bytes = b".text.kernel", size: int = 0) -> bytes:
    """Make an ELF header with the architecture where nvcc puts it, and some bytes after it."""
    flags = number << 8 | 2 if abi >= 8 else number | 0x500000
    header = struct.pack("<7sBB39xI12x", b"\x7fELF\x02\x01\x01", 0x41, abi, flags)
    return (header + code).ljust(size or 128, b"\0")


def ptx(target: str, body: str = ".visible .entry k()") -> bytes:
    """Write the first lines of PTX as nvcc embeds it."""
    return f"\n\n\n.version 9.0\n.target {target}\n.address_size 64\n{body}\n".encode() + b"\0"


def entry(
    content: bytes,
    number: int,
    *,
    kind: int = 2,
    suffix: str = "",
    compressed: str = "",
    header: int = 64,
    **wrong: int,
) -> bytes:
    """One entry as fatbinary writes it; `wrong` puts other numbers into its header."""
    packed = {
        "": lambda: content,
        "lz4": lambda: lz4.block.compress(content, store_size=False),
        "zstd": lambda: zstandard.compress(content),
    }[compressed]()
    stored = packed.ljust(-(-len(packed) // 8) * 8, b"\0")
    fields = {
        "padded": len(stored),
        "packed": len(packed) if compressed else 0,
        "flags": 0x11 | FLAGS[compressed] | SUFFIX[suffix],
        "unpacked": len(content) if compressed else 0,
        "header": header,
    } | wrong
    head = struct.pack(
        "<HHIQIIHHIIIQQQ",
        *(kind, 0x101, fields["header"], fields["padded"], fields["packed"], 0, 8, 1, number, 0, 0),
        *(fields["flags"], 0, fields["unpacked"]),
    )
    return head.ljust(header, b"\0") + stored


def fatbin(*entries: bytes, magic: int = 0xBA55ED50, version: int = 1, size: int | None = None) -> bytes:
    """One fat binary."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", magic, version, 16, len(body) if size is None else size) + body


@pytest.mark.parametrize("compressed", ["", "lz4", "zstd"])
@pytest.mark.parametrize("header", [64, 112])
def test_reads_entries_in_every_compression(compressed: str, header: int) -> None:
    """Sizes, architecture and content come back, whatever the compression and the header's length."""
    code = cubin(100, size=8000)
    section = fatbin(entry(code, 100, suffix="a", compressed=compressed, header=header))

    (found,) = read(section, deep=True)

    assert (found.kind, found.arch, found.size) == ("elf", Arch.parse("10.0a"), 8000)
    assert (found.compressed, found.placeholder) == (compressed, False)
    assert found.stored == 8000 if not compressed else found.stored < 8000
    assert payload(section, found) == code


def test_reads_bytes_memoryview_and_part_of_a_file() -> None:
    """The section may be given in memory, or as a place in a file."""
    section = fatbin(entry(cubin(90), 90))
    expected = read(section)
    assert read(memoryview(section)) == expected
    file = BytesIO(b"before" + section + b"after")
    assert read(file, start=6, size=len(section)) == expected
    assert payload(file, expected[0], start=6, size=len(section)) == cubin(90)


def test_counts_fat_binaries_one_after_another() -> None:
    """Each object file brings a fat binary; the linker pads between them with zeros."""
    one = fatbin(
        entry(cubin(80), 80),
        entry(cubin(90), 90, suffix="a"),
        entry(cubin(100), 100, suffix="f", compressed="zstd"),
        entry(ptx("sm_120"), 120, kind=1, compressed="lz4"),
    )
    census = Census.of(read(one + bytes(24) + one + bytes(100_000), deep=True))
    assert census == Census(sass={"sm_80": 2, "sm_90a": 2, "sm_100f": 2}, ptx={"sm_120": 2})
    assert list(census.sass) == ["sm_80", "sm_90a", "sm_100f"]
    assert census.to_json() == {
        "sass": {"sm_80": 2, "sm_90a": 2, "sm_100f": 2},
        "ptx": {"sm_120": 2},
        "sass_bytes": {"sm_80": 256, "sm_90a": 256, "sm_100f": 256},
        "ptx_bytes": {"sm_120": 2 * len(ptx("sm_120"))},
        "kernels": {},
    }
    assert [str(arch) for arch in census.archs] == ["8.0", "9.0a", "10.0f", "12.0+PTX"]


def test_placeholders_are_counted_and_marked() -> None:
    """A link or a unit without -arch leaves sm_52 entries with no function: they are there, but are no code."""
    section = fatbin(
        entry(cubin(52, abi=7, code=b".nv.global"), 52),
        entry(ptx("sm_52", body=".global .b8 x[1];"), 52, kind=1, compressed="lz4"),
        entry(cubin(100, code=b".shstrtab\0.nv.callgraph"), 100, compressed="zstd"),
        entry(cubin(100), 100),
        entry(ptx("sm_90", body=".func f()"), 90, kind=1),
        entry(cubin(90, code=b"", size=100_000), 90),
    )
    census = Census.of(read(section))
    assert (census.sass, census.ptx) == ({"sm_52": 1, "sm_90": 1, "sm_100": 2}, {"sm_52": 1, "sm_90": 1})
    assert census.sass_placeholders == {"sm_52": 1, "sm_100": 1}
    assert census.ptx_placeholders == {"sm_52": 1}
    assert [str(arch) for arch in census.archs] == ["9.0", "10.0", "9.0+PTX"]


def test_other_kinds_are_listed_but_neither_machine_code_nor_ptx() -> None:
    """Link-time code and kinds yet unknown are not counted as something a GPU can run."""
    found = read(fatbin(entry(b"bitcode!", 90, kind=8), entry(b"whatever", 90, kind=64)), deep=True)
    assert [one.kind for one in found] == ["lto", "kind-64"]
    assert Census.of(found) == Census()


def test_no_device_code() -> None:
    """An empty section, or one of zeros, holds nothing."""
    assert read(b"") == read(bytes(200_000)) == ()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            fatbin(entry(cubin(100), 100), magic=0xDEADBEEF),
            "device code at offset 0: no fat binary (magic 0xdeadbeef, version 1, header of 16 bytes)",
        ),
        (
            fatbin(version=2),
            "device code at offset 0: no fat binary (magic 0xba55ed50, version 2, header of 16 bytes)",
        ),
        (
            fatbin(size=1 << 63),
            "device code at offset 0: a fat binary of 9223372036854775824 bytes, and the section ends after 16",
        ),
        (fatbin()[:9], "device code at offset 0: 16 bytes are wanted and the section ends after 9"),
        (
            fatbin(entry(cubin(100), 100))[:-1],
            "device code at offset 0: a fat binary of 208 bytes, and the section ends after 207",
        ),
        (
            fatbin(b"\x01" * 8),
            "device code at offset 16: 64 bytes are wanted and the section ends after 8",
        ),
        (
            fatbin(entry(cubin(100), 100, padded=1 << 40)),
            IMPOSSIBLE + "(architecture 100, flags 0x11, header of 64 bytes, 1099511627776 bytes of which "
            "0 are used, 192 are left)",
        ),
        (
            fatbin(struct.pack("<HHIQ", 2, 0x101, 0, 0).ljust(256, b"\0")),
            IMPOSSIBLE + "(architecture 0, flags 0x0, header of 0 bytes, 0 bytes of which 0 are used, 256 are left)",
        ),
        (
            fatbin(entry(cubin(100), 5)),
            IMPOSSIBLE + "(architecture 5, flags 0x11, header of 64 bytes, 128 bytes of which 0 are used, "
            "192 are left)",
        ),
        (
            fatbin(entry(cubin(100), 100, flags=0xA000)),
            IMPOSSIBLE + "(architecture 100, flags 0xa000, header of 64 bytes, 128 bytes of which 0 are used, "
            "192 are left)",
        ),
        (
            fatbin(entry(cubin(100), 100, compressed="lz4", unpacked=1 << 40)),
            "device code at offset 80: {stored} bytes cannot unpack to 1099511627776",
        ),
        (
            fatbin(entry(cubin(100), 100, compressed="zstd", unpacked=4000)),
            "device code at offset 80: unpacks to 128 bytes instead of 4000",
        ),
        (
            fatbin(entry(cubin(90), 100)),
            "device code at offset 80: listed as sm_100, but its elf is for sm_90",
        ),
        (
            fatbin(entry(ptx("sm_90a"), 90, kind=1)),
            "device code at offset 80: listed as sm_90, but its ptx is for sm_90a",
        ),
        (
            fatbin(entry(b"no ptx at all", 90, kind=1)),
            "device code at offset 80: listed as sm_90, but its ptx is for nothing",
        ),
        (
            fatbin(entry(b"not an elf file", 90)),
            "device code at offset 80: listed as machine code, but no ELF file",
        ),
    ],
)
def test_says_where_and_how_it_is_damaged(section: bytes, message: str) -> None:
    """Each kind of damage is named with its offset."""
    if "{stored}" in message:
        message = message.format(stored=struct.unpack_from("<I", section, 32)[0])
    with pytest.raises(DeviceCodeError) as caught:
        read(section, deep=True)
    assert str(caught.value) == message
    assert caught.value.exit_status == 8
    assert caught.value.advice


@pytest.mark.parametrize("compressed", ["lz4", "zstd"])
def test_damaged_compression_is_named(compressed: str) -> None:
    """A broken block is our error, not the library's."""
    section = bytearray(fatbin(entry(cubin(100), 100, compressed=compressed)))
    section[80:88] = b"\xff" * 8
    with pytest.raises(DeviceCodeError, match=rf"^device code at offset 80: {compressed} data is damaged: "):
        read(bytes(section), deep=True)


def test_a_file_that_ends_early() -> None:
    """A section header may claim more than the file has."""
    section = fatbin(entry(cubin(100), 100))
    with pytest.raises(DeviceCodeError, match="the file ends in the middle of it"):
        read(BytesIO(section), start=0, size=len(section) + 100)


def test_endless_empty_entries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of entries has a limit, so that a crafted file cannot keep us busy."""
    monkeypatch.setattr("wheelmill.device_code.MAX_ENTRIES", 3)
    with pytest.raises(DeviceCodeError, match=r"^device code with more than 3 entries$"):
        read(fatbin(entry(b"", 100, kind=8) * 4))


def crafted() -> st.SearchStrategy[tuple[bytes, tuple[str, Arch, bytes]]]:
    """Make an entry, with what must be read from it."""

    def build(
        capability: str, suffix: str, kind: str, compressed: str, filler: bytes
    ) -> tuple[bytes, tuple[str, Arch, bytes]]:
        plain = Arch.parse(capability)
        arch = Arch(major=plain.major, minor=plain.minor, suffix=suffix, ptx=kind == "ptx")
        number = 10 * arch.major + arch.minor
        content = ptx(arch.sm) if kind == "ptx" else cubin(number, code=filler)
        content = content.ljust(-(-len(content) // 8) * 8, b"\0")
        kinds = {"ptx": 1, "elf": 2}
        data = entry(content, number, kind=kinds[kind], suffix=suffix, compressed=compressed)
        return data, (kind, arch, content)

    return st.builds(
        build,
        st.sampled_from(CAPABILITIES),
        st.sampled_from(sorted(SUFFIX)),
        st.sampled_from(["elf", "ptx"]),
        st.sampled_from(sorted(FLAGS)),
        st.binary(max_size=200),
    )


@given(st.lists(st.lists(crafted(), max_size=4), max_size=4), st.integers(0, 40))
def test_what_is_written_is_read(fatbins: list[list[tuple[bytes, tuple[str, Arch, bytes]]]], pad: int) -> None:
    """Any row of fat binaries with any entries comes back entry by entry."""
    section = b"".join(fatbin(*(data for data, _ in one)) + bytes(pad) for one in fatbins)
    found = read(section, deep=True)
    expected = [facts for one in fatbins for _, facts in one]
    assert [(one.kind, one.arch, payload(section, one)) for one in found] == expected


@given(st.binary(max_size=300))
def test_random_bytes_are_read_or_refused(noise: bytes) -> None:
    """Nothing but our own error comes out of noise, with or without a valid beginning."""
    for section in (noise, fatbin() + noise, fatbin(size=len(noise)) + noise, fatbin(entry(noise, 90))):
        try:
            found = read(section, deep=True)
        except DeviceCodeError:
            continue
        assert all(isinstance(one, Entry) for one in found)


@settings(max_examples=300)
@given(st.data())
def test_damage_is_read_or_refused(data: st.DataObject) -> None:
    """One changed byte, or a missing end, never raises anything else and never hangs."""
    whole = fatbin(*(entry(cubin(100, size=500), 100, compressed=how) for how in sorted(FLAGS)))
    section = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if section:
            section[data.draw(st.integers(0, len(section) - 1))] = data.draw(st.integers(0, 255))
    try:
        for one in read(bytes(section), deep=True):
            payload(bytes(section), one)
    except DeviceCodeError:
        pass
