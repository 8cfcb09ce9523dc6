"""Two wheels: how far they are equal, and where they begin to differ."""

import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_device_code import cubin, entry, fatbin, ptx

from wheelmill.compare import Comparison, Difference, compare, grade, text_around
from wheelmill.errors import VerifyError
from wheelmill.wheel_file import content, write_wheel

ALLOC, EXEC = 2, 4
INFO = "demo-1.0.dist-info"
TEXTS = {
    f"{INFO}/METADATA": b"Metadata-Version: 2.4\nName: demo\nVersion: 1.0\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
    "demo/__init__.py": b"x = 1\n",
}


def elf(sections: dict[str, tuple[int, int, int, bytes]], symbols: tuple[tuple[str, int, int], ...] = ()) -> bytes:
    """Make an ELF file of sections (type, flags, address, data), with a symbol table of (name, address, size)."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _, _ in symbols)
    table = bytes(24)
    at = 1
    for name, value, size in symbols:
        table += struct.pack("<IBBHQQ", at, 2, 0, 1, value, size)
        at += len(name) + 1
    rows = [(name, *row, 0, 0) for name, row in sections.items()]
    if symbols:
        rows += [(".symtab", 2, 0, 0, table, len(rows) + 2, 24), (".strtab", 3, 0, 0, names, 0, 0)]
    heads, body, strings = b"\0" * 64, b"", b"\0"
    for name, kind, flags, address, data, link, each in rows:
        heads += struct.pack(
            "<IIQQQQIIQQ", len(strings), kind, flags, address, 64 + len(body), len(data), link, 0, 8, each
        )
        strings += name.encode() + b"\0"
        body += data
    heads += struct.pack("<IIQQQQIIQQ", len(strings), 3, 0, 0, 64 + len(body), len(strings) + 10, 0, 0, 1, 0)
    body += strings + b".shstrtab\0"
    head = struct.pack(
        "<4s5B7xHHIQQQIHHHHHH",
        *(b"\x7fELF", 2, 1, 1, 0, 0, 3, 62, 1, 0, 0, 64 + len(body)),
        *(0, 64, 56, 0, 64, len(rows) + 2, len(rows) + 1),
    )
    return head + body + heads


def code(*, text: bytes = b"\x90" * 32, rodata: bytes = b"hello\0", note: bytes = b"id-1", fat: bytes = b"") -> bytes:
    sections = {
        ".text": (1, ALLOC | EXEC, 0x1000, text),
        ".rodata": (1, ALLOC, 0x2000, rodata),
        ".note.gnu.build-id": (7, ALLOC, 0x3000, note),
        ".comment": (1, 0, 0, b"GCC 12\0"),
    }
    if fat:
        sections[".nv_fatbin"] = (1, ALLOC, 0x4000, fat)
    return elf(sections, (("first", 0x1000, 16), ("second", 0x1010, 16)))


def wheel(folder: Path, name: str, more: dict[str, bytes]) -> Path:
    (folder / name).mkdir(exist_ok=True)
    members = [content(member, data) for member, data in {**TEXTS, **more}.items()]
    return write_wheel(members, folder / name / "demo-1.0-py3-none-any.whl", epoch=1_700_000_000).path


def compared(tmp_path: Path, ours: dict[str, bytes], theirs: dict[str, bytes]) -> Comparison:
    return compare(wheel(tmp_path, "a", ours), wheel(tmp_path, "b", theirs))


def of_kind(found: Comparison, *kinds: str) -> list[Difference]:
    return [each for each in found.differences if each.kind in kinds]


def test_the_same_bytes(tmp_path: Path) -> None:
    """Equal files are identical, and nothing is said."""
    assert compared(tmp_path, {"x.so": code()}, {"x.so": code()}) == Comparison(grade="identical")


def test_packed_otherwise(tmp_path: Path) -> None:
    """Order, dates, modes and compression are named, and the grade is same-content."""
    ours = wheel(tmp_path, "a", {"z.py": b"z\n"})
    theirs = tmp_path / "b.whl"
    with zipfile.ZipFile(ours) as source, zipfile.ZipFile(theirs, "w") as target:
        for info in reversed(source.infolist()):
            other = zipfile.ZipInfo(info.filename, (2020, 1, 1, 0, 0, 0))
            other.external_attr = 0o100600 << 16
            target.writestr(other, source.read(info))
    found = compare(ours, theirs)
    assert found.grade == "same-content"
    assert [each.detail.split(",")[0] for each in found.differences] == [
        "the files stand in another order",
        "date 2023-11-14-22-13-20",
        "mode 0o100644",
        "compression 8",
        "packed size 8",
    ]
    assert found.differences[2].line() == "archive: demo/__init__.py: mode 0o100644, not 0o100600, and 4 more"


def test_what_does_not_run(tmp_path: Path) -> None:
    """A note, a comment and the wheel's own metadata leave the code the same."""
    ours = {"x.so": code(), f"{INFO}/INSTALLER": b"one\n"}
    theirs = {"x.so": code(note=b"id-2"), f"{INFO}/INSTALLER": b"two\n"}
    found = compared(tmp_path, ours, theirs)
    assert found.grade == "same-code"
    assert {(each.member, each.section) for each in of_kind(found, "metadata")} == {
        (f"{INFO}/INSTALLER", ""),
        (f"{INFO}/RECORD", ""),
        ("x.so", ".note.gnu.build-id"),
    }
    [line] = [each for each in found.differences if each.member == f"{INFO}/INSTALLER"]
    assert line.detail == "line 1: 'one', not 'two'"


def test_names_in_a_table_that_is_not_loaded(tmp_path: Path) -> None:
    """A process id in a symbol of .symtab is named, and does not run."""
    sections = {".text": (1, ALLOC | EXEC, 0x1000, b"\x90" * 8)}
    ours, theirs = (elf(sections, ((f"tmpxft_{pid:08x}_x", 0x1000, 8),)) for pid in (1, 2))
    found = compared(tmp_path, {"x.so": ours}, {"x.so": theirs})
    assert found.grade == "same-code"
    [table] = [each for each in found.differences if each.section == ".strtab"]
    assert table.symbol == "tmpxft_00000001_x, not tmpxft_00000002_x"


def test_host_code(tmp_path: Path) -> None:
    """The section, the first byte and the function that holds it."""
    found = compared(tmp_path, {"x.so": code()}, {"x.so": code(text=b"\x90" * 20 + b"\xcc" * 12)})
    assert found.grade == "different"
    [difference] = of_kind(found, "host-code")
    assert (difference.section, difference.symbol) == (".text", "second")
    assert difference.detail == "byte 20 of 32"


def test_a_string_shows_itself(tmp_path: Path) -> None:
    """A path in .rodata is shown from both."""
    ours, theirs = (code(rodata=b"abc\0/home/" + name + b"/x.cu\0z") for name in (b"me", b"it"))
    found = compared(tmp_path, {"x.so": ours}, {"x.so": theirs})
    [difference] = of_kind(found, "host-code")
    assert difference.detail == "byte 10 of 19: '/home/me/x.cu', not '/home/it/x.cu'"


def test_device_code_by_image_and_kernel(tmp_path: Path) -> None:
    """Machine code of another kernel, and PTX by its first line."""
    sections = dict.fromkeys((".text.one", ".text.two"), (1, 6, 0, b"\x90" * 16))
    first = elf(sections)
    second = elf({**sections, ".text.two": (1, 6, 0, b"\x90" * 15 + b"\x91")})
    ours, theirs = (code(fat=fatbin(entry(image, 100))) for image in (first, second))
    found = compared(tmp_path, {"x.so": ours}, {"x.so": theirs})
    assert found.grade == "different"
    [difference] = of_kind(found, "device-code")
    assert (difference.section, difference.symbol) == (".nv_fatbin", "two")
    assert difference.detail == "image 0 (elf for sm_100), .text.two: byte 15 of 16"


def test_device_code_packed_otherwise_is_the_same_code(tmp_path: Path) -> None:
    """The same images with other padding between them run alike."""
    image = fatbin(entry(cubin(100), 100))
    ours, theirs = (code(fat=image + pad + image) for pad in (b"\0" * 8, b"\0" * 24))
    found = compared(tmp_path, {"x.so": ours}, {"x.so": theirs})
    assert found.grade == "same-code"
    assert "the same images, packed or padded otherwise" in {each.detail for each in found.differences}


def test_ptx_shows_its_line(tmp_path: Path) -> None:
    """The first line that differs."""
    ours, theirs = (code(fat=fatbin(entry(ptx("sm_100", f".visible .entry {name}()"), 100, kind=1))) for name in "kl")
    [difference] = of_kind(compared(tmp_path, {"x.so": ours}, {"x.so": theirs}), "device-code")
    assert ".entry k" in difference.detail
    assert ".entry l" in difference.detail


def test_one_more_image(tmp_path: Path) -> None:
    """A GPU that one of the two serves and the other does not."""
    one, two = fatbin(entry(cubin(100), 100)), fatbin(entry(cubin(100), 100), entry(cubin(90), 90))
    found = compared(tmp_path, {"x.so": code(fat=one)}, {"x.so": code(fat=two)})
    assert [each.detail for each in of_kind(found, "device-code")] == [
        "1 images are in both, one more is in the second"
    ]


def test_a_file_more_and_another_module(tmp_path: Path) -> None:
    """Whatever is imported counts; it is named with its line."""
    found = compared(tmp_path, {"demo/a.py": b"a\nb\n"}, {"demo/a.py": b"a\nc\n", "demo/b.py": b"\n"})
    assert found.grade == "different"
    assert [each.line() for each in of_kind(found, "content")] == [
        "content: demo/a.py: line 2: 'b', not 'c'",
        "content: demo/b.py: only in the second",
    ]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """By the place of the first that differs."""
    found = compared(tmp_path, {"d.bin": b"\0\1\2"}, {"d.bin": b"\0\1\3"})
    assert of_kind(found, "content")[0].detail == "byte 2 is the first that differs"


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """A torn archive is an error; a torn ELF file in it is a difference."""
    torn = tmp_path / "torn.whl"
    torn.write_bytes(b"PK\3\4")
    with pytest.raises(VerifyError, match="cannot be compared"):
        compare(wheel(tmp_path, "a", {}), torn)
    found = compared(tmp_path, {"x.so": b"\x7fELF" + b"\1" * 80}, {"x.so": b"\x7fELF" + b"\2" * 80})
    assert found.grade == "different"


def test_the_gravest_difference_decides() -> None:
    """Archive, then metadata, then everything that runs."""
    assert grade([]) == "same-content"
    made = {kind: Difference(kind=kind, member="x") for kind in ("archive", "metadata", "content", "host-code")}
    assert grade([made["archive"]]) == "same-content"
    assert grade([made["archive"], made["metadata"]]) == "same-code"
    assert grade([made["metadata"], made["host-code"]]) == "different"
    assert grade([made["content"]]) == "different"


@settings(max_examples=50, deadline=None)
@given(st.binary(min_size=1, max_size=64), st.data())
def test_whichever_byte_of_code_changes_it_is_found(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, data: st.DataObject
) -> None:
    """No change of machine code ever grades better than `different`, and its place is right."""
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]
    found = compared(tmp_path_factory.mktemp("x"), {"x.so": code(text=text)}, {"x.so": code(text=changed)})
    assert found.grade == "different"
    assert of_kind(found, "host-code")[0].detail.startswith(f"byte {at} of {len(text)}")


def test_to_json() -> None:
    """What `rebuild --json` gives."""
    found = Comparison(grade="same-code", differences=(Difference(kind="metadata", member="x", detail="y"),))
    assert found.to_json() == {
        "grade": "same-code",
        "differences": [{"kind": "metadata", "member": "x", "section": "", "symbol": "", "detail": "y"}],
    }
    assert text_around.__doc__
