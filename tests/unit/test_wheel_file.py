"""Wheel files: what is refused, what an edit changes, and that equal contents are equal bytes."""

import io
import os
import random
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmill.errors import MalformedWheelError, RepairError, UsageError
from wheelmill.packing import zlib_found, zlib_problem
from wheelmill.wheel_file import (
    Edit,
    Member,
    check_record,
    content,
    disagreements,
    edit_members,
    open_members,
    read_wheel,
    replace_fields,
    spelled,
    values,
    wheel_name,
    write_wheel,
)

EPOCH = 1_700_000_000
METADATA = """\
Metadata-Version: 2.1
Name: Flash.Attn
Version: 2.8.3
License-File: LICENSE
Requires-Dist: torch
Requires-Dist: einops>=0.7
Requires-Dist: Torch>=2; extra == "new"
Dynamic: license-file

# Flash

Version: not a field
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: setuptools (81.0.0)
Root-Is-Purelib: false
Tag: cp312-cp312-linux_x86_64
"""
NAME = "flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl"
DIST_INFO = "flash_attn-2.8.3.dist-info"
FILES: dict[str, bytes] = {
    "flash_attn/__init__.py": b"VERSION = 1\n",
    "flash_attn_2_cuda.so": b"\x7fELF" + bytes(range(256)) * 40,
    "flash_attn-2.8.3.data/scripts/tool": b"#!python\n",
    f"{DIST_INFO}/LICENSE": b"BSD\n",
    f"{DIST_INFO}/METADATA": METADATA.encode(),
    f"{DIST_INFO}/WHEEL": WHEEL.encode(),
}
EXECUTABLE = frozenset({"flash_attn_2_cuda.so"})


def members(files: Mapping[str, bytes] = FILES) -> list[Member]:
    """Turn texts into members."""
    return [content(name, data, executable=name in EXECUTABLE) for name, data in files.items()]


def zipped(path: Path, files: Mapping[str, bytes | str], **options: int) -> Path:
    """Write an archive as it comes, sound or not; RECORD is made unless it is given."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=options.get("level", 6)) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def recorded(files: Mapping[str, bytes], dist_info: str = DIST_INFO) -> dict[str, bytes]:
    """Add a RECORD that fits."""
    lines = [f"{name},{spelled('sha256', sha(data))},{len(data)}\n" for name, data in files.items()]
    return {**files, f"{dist_info}/RECORD": "".join([*lines, f"{dist_info}/RECORD,,\n"]).encode()}


def sha(data: bytes) -> bytes:
    """Digest bytes."""
    import hashlib

    return hashlib.sha256(data).digest()


def problems(path: Path) -> tuple[str, ...]:
    """Read a wheel that must be refused."""
    with pytest.raises(MalformedWheelError) as caught:
        read_wheel(path)
    return caught.value.problems


# writing


def test_golden_bytes(tmp_path: Path) -> None:
    """The writer's bytes are part of the derivation: whoever changes them raises the writer's number in derivation.FORMATS."""
    if zlib_problem(zlib_found()):
        pytest.skip("another zlib gives other bytes by design")

    written = write_wheel(members(), tmp_path / NAME, epoch=EPOCH)

    assert written.sha256 == "985befd3131a27fc1a8010e156bd0d3401a2566835c677fea6d68d8c94ec1462"
    assert written.sha256 == sha((tmp_path / NAME).read_bytes()).hex()
    assert written.size == (tmp_path / NAME).stat().st_size


def test_layout_is_canonical(tmp_path: Path) -> None:
    """Sorted, dist-info last, RECORD at the very end; Unix, one date, two modes, no extra fields, no folders."""
    write_wheel(members(), tmp_path / NAME, epoch=EPOCH)

    with zipfile.ZipFile(tmp_path / NAME) as archive:
        infos = archive.infolist()
    assert [info.filename for info in infos] == [
        "flash_attn-2.8.3.data/scripts/tool",
        "flash_attn/__init__.py",
        "flash_attn_2_cuda.so",
        f"{DIST_INFO}/LICENSE",
        f"{DIST_INFO}/METADATA",
        f"{DIST_INFO}/WHEEL",
        f"{DIST_INFO}/RECORD",
    ]
    assert {info.date_time for info in infos} == {(2023, 11, 14, 22, 13, 20)}
    assert {info.create_system for info in infos} == {3}
    assert {info.extra for info in infos} == {b""}
    assert {info.compress_type for info in infos} == {zipfile.ZIP_DEFLATED}
    modes = {info.filename: info.external_attr >> 16 for info in infos}
    assert modes.pop("flash_attn_2_cuda.so") == 0o100755
    assert set(modes.values()) == {0o100644}
    assert check_record(tmp_path / NAME) == ()


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(),
    umask=st.sampled_from([0o000, 0o022, 0o077]),
    level=st.integers(0, 9),
    year=st.integers(1980, 2100),
    mode=st.sampled_from([0o644, 0o600, 0o664, 0o444]),
    folders=st.integers(0, 1),
)
def test_bytes_depend_on_contents_alone(
    seed: int, umask: int, level: int, year: int, mode: int, folders: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Order, umask, and the source archive's level, dates, modes, folders and RECORD do not matter."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / NAME
    names = list(recorded(FILES))
    random.Random(seed).shuffle(names)  # noqa: S311 - hypothesis gives the seed
    before = os.umask(umask)
    try:
        with zipfile.ZipFile(source, "w") as archive:
            if folders:
                archive.writestr("flash_attn/", "")
            for name in names:
                info = zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0))
                info.external_attr = (mode | (0o111 if name in EXECUTABLE else 0)) << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, recorded(FILES)[name], compresslevel=level)
        with open_members(source) as found:
            written = write_wheel(found, folder / "out.whl", epoch=EPOCH)
    finally:
        os.umask(before)

    reference = write_wheel(members(), folder / "reference.whl", epoch=EPOCH)
    assert written.sha256 == reference.sha256
    assert (folder / "out.whl").stat().st_mode & 0o777 == 0o644


@settings(max_examples=20, deadline=None)
@given(
    files=st.dictionaries(
        st.text(
            st.characters(codec="utf-8", exclude_characters="/\\", exclude_categories=["Cc", "Cs"]), min_size=1
        ).filter(lambda name: name not in (".", "..") and not name.endswith(".dist-info") and ":" not in name),
        st.binary(max_size=200),
        max_size=6,
    )
)
def test_what_is_written_reads_back(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Any names and contents survive, and the wheel passes its own RECORD."""
    path = tmp_path_factory.mktemp("wheel") / NAME

    write_wheel(members({**FILES, **{f"data/{name}": data for name, data in files.items()}}), path, epoch=EPOCH)

    assert check_record(path) == ()
    with open_members(path) as found:
        read = {member.name.removeprefix("data/"): member.open().read() for member in found if "data/" in member.name}
    assert {name: read[name] for name in files} == files


@pytest.mark.parametrize("change", ["contents", "name", "executable", "epoch"])
def test_bytes_do_depend_on_these(change: str, tmp_path: Path) -> None:
    """Contents, names, executable bits and the epoch enter."""
    reference = write_wheel(members(), tmp_path / "a.whl", epoch=EPOCH)
    found = {member.name: member for member in members()}
    match change:
        case "contents":
            found["flash_attn/__init__.py"] = content("flash_attn/__init__.py", b"VERSION = 2\n")
        case "name":
            found["x"] = content("flash_attn/__main__.py", found.pop("flash_attn/__init__.py").open().read())
        case "executable":
            found["x"] = content(
                "flash_attn/__init__.py", found.pop("flash_attn/__init__.py").open().read(), executable=True
            )

    other = write_wheel(found.values(), tmp_path / "b.whl", epoch=EPOCH + 2 * (change == "epoch"))

    assert other.sha256 != reference.sha256


def test_stale_record_and_signatures_are_dropped(tmp_path: Path) -> None:
    """RECORD is made anew; signatures of the old one go."""
    files = {**FILES, f"{DIST_INFO}/RECORD": b"nonsense", f"{DIST_INFO}/RECORD.jws": b"{}"}

    assert write_wheel(members(files), tmp_path / "a.whl", epoch=EPOCH).sha256 == (
        write_wheel(members(), tmp_path / "b.whl", epoch=EPOCH).sha256
    )


@pytest.mark.parametrize("epoch", [0, 315_532_799, 4_354_819_200])
def test_dates_that_a_zip_cannot_hold_are_refused(epoch: int, tmp_path: Path) -> None:
    """1980 to 2107, and nothing is clamped in silence."""
    with pytest.raises(UsageError) as caught:
        write_wheel(members(), tmp_path / NAME, epoch=epoch)

    assert str(caught.value) == f"a wheel cannot be dated {epoch}: zip archives know 1980 to 2107"
    assert list(tmp_path.iterdir()) == []


def test_unsound_members_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Every bad name is listed at once."""
    bad = [*members(), content("../x", b""), content("/x", b""), content("flash_attn/__init__.py", b"")]

    with pytest.raises(MalformedWheelError) as caught:
        write_wheel(bad, tmp_path / NAME, epoch=EPOCH)

    assert caught.value.problems == (
        "'../x' is not a plain relative path",
        "'/x' is an absolute path",
        "flash_attn/__init__.py is in the archive twice",
    )
    assert list(tmp_path.iterdir()) == []


def test_failure_leaves_the_old_wheel(tmp_path: Path) -> None:
    """A member that changes size while it is read ends the write; the file of that name stays."""
    (tmp_path / NAME).write_text("old")
    shrunk = Member(name="shrunk", size=5, executable=False, open=lambda: io.BytesIO(b"four"))

    with pytest.raises(RepairError, match="shrunk changed while it was packed: 4 bytes, not 5"):
        write_wheel([*members(), shrunk], tmp_path / NAME, epoch=EPOCH)

    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).read_text() == "old"


class Zeros(io.RawIOBase):
    """A file of zeros of any size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.left = size

    def read(self, size: int = -1, /) -> bytes:
        """Give the next of them."""
        chunk = b"\0" * min(size, self.left)
        self.left -= len(chunk)
        return chunk


def test_no_member_is_whole_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of 64 MiB passes through in a few pieces per thread."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1})
    size = 64 << 20
    open_zeros: Callable[[], Zeros] = lambda: Zeros(size)  # noqa: E731
    big = Member(name="big.so", size=size, executable=True, open=open_zeros)  # type: ignore[arg-type]
    tracemalloc.start()

    write_wheel([*members(), big], tmp_path / NAME, epoch=EPOCH)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


# reading


def test_read_wheel_gives_what_it_says(tmp_path: Path) -> None:
    """Name and tags come from the file name, the texts from inside."""
    wheel = read_wheel(zipped(tmp_path / NAME, recorded(FILES)))

    assert (wheel.name, wheel.version, wheel.build) == ("flash-attn", "2.8.3", "")
    assert wheel.tags == wheel.wheel_tags == ("cp312-cp312-linux_x86_64",)
    assert wheel.dist_info == DIST_INFO
    assert wheel.requires == ("torch", "einops>=0.7", 'Torch>=2; extra == "new"')
    assert wheel.record["flash_attn/__init__.py"].digest == spelled("sha256", sha(b"VERSION = 1\n"))
    assert disagreements(wheel) == ()


def test_content_digest_does_not_know_the_packing(tmp_path: Path) -> None:
    """Two zlibs, levels or orders give one content digest; another byte inside gives another."""
    backwards = dict(reversed(recorded(FILES).items()))
    one = read_wheel(zipped(tmp_path / NAME, recorded(FILES), level=9)).content_digest
    two = read_wheel(zipped(tmp_path / NAME, backwards, level=1)).content_digest
    three = read_wheel(zipped(tmp_path / NAME, recorded({**FILES, "x": b""}))).content_digest

    assert one == two != three


def test_missing_file_is_named(tmp_path: Path) -> None:
    """No traceback for a typo."""
    with pytest.raises(UsageError, match="there is no wheel"):
        read_wheel(tmp_path / NAME)


def test_not_a_zip(tmp_path: Path) -> None:
    """A cut download says so, with the advice."""
    (tmp_path / NAME).write_bytes(b"PK\3\4 cut")
    with pytest.raises(MalformedWheelError) as caught:
        read_wheel(tmp_path / NAME)

    assert str(caught.value) == (
        f"{tmp_path / NAME} is not a sound wheel:\n  it cannot be read as a zip archive: File is not a zip file"
    )
    assert caught.value.advice == "Delete the file and build it again, or copy it again if it came from elsewhere."


def test_everything_off_is_found_at_once(tmp_path: Path) -> None:
    """Structure, METADATA, WHEEL and RECORD are all looked at before the first complaint."""
    files = {
        **FILES,
        "../escape": b"",
        "C:/x": b"",
        f"{DIST_INFO}/METADATA": b"Metadata-Version: 2.1\nName: x\nVersion: one\nRequires-Dist: ???\n",
        f"{DIST_INFO}/WHEEL": b"Wheel-Version: 2.0\n",
        f"{DIST_INFO}/RECORD": (
            b"flash_attn/__init__.py,md5=abc,12\ngone.py,sha256=abc,1\nflash_attn_2_cuda.so,,\n"
            b"broken\nflash_attn/__init__.py,,\n../escape,sha256=x,7\n"
        ),
    }
    assert problems(zipped(tmp_path / NAME, files)) == (
        "'../escape' is not a plain relative path",
        "'C:/x' is an absolute path",
        "RECORD line 4 is not `path,digest,size`",
        "RECORD lists flash_attn/__init__.py twice",
        "RECORD lists gone.py, which is not in the archive",
        "C:/x is not in RECORD",
        "flash_attn-2.8.3.data/scripts/tool is not in RECORD",
        "flash_attn-2.8.3.dist-info/LICENSE is not in RECORD",
        "flash_attn-2.8.3.dist-info/METADATA is not in RECORD",
        "flash_attn-2.8.3.dist-info/RECORD is not in RECORD",
        "flash_attn-2.8.3.dist-info/WHEEL is not in RECORD",
        "RECORD says that ../escape has 7 bytes, the archive says 0",
        "RECORD has a digest of kind 'md5' for flash_attn/__init__.py, not sha256 or better",
        "RECORD has no digest for flash_attn_2_cuda.so",
        "METADATA: Invalid version: 'one'",
        "METADATA requires '???': Expected package name at the start of dependency specifier",
        "WHEEL has Wheel-Version 2.0, not 1.x",
        "WHEEL does not say whether Root-Is-Purelib is true or false",
        "WHEEL has no Tag",
    )


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_twins_links_and_backslashes(tmp_path: Path) -> None:
    """Members that hide one another, symbolic links and Windows paths are refused."""
    path = zipped(tmp_path / NAME, recorded(FILES))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("flash_attn/__init__.py", b"VERSION = 1\n")
        link = zipfile.ZipInfo("link")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("a\x07b", b"")

    assert problems(path) == (
        "flash_attn/__init__.py is in the archive twice",
        "link is not a plain file",
        "'a\\x07b' has a backslash or control character in its name",
        "a\x07b is not in RECORD",
        "link is not in RECORD",
    )


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"x": b""}, "it has 0 dist-info folders, not one"),
        (
            {**FILES, "b-1.dist-info/WHEEL": b""},
            "it has 2 dist-info folders, not one: b-1.dist-info, flash_attn-2.8.3.dist-info",
        ),
        (
            {name: data for name, data in FILES.items() if not name.endswith("WHEEL")},
            "flash_attn-2.8.3.dist-info/WHEEL is missing",
        ),
    ],
)
def test_dist_info_must_be_whole_and_one(files: dict[str, bytes], expected: str, tmp_path: Path) -> None:
    """One dist-info folder with its three files."""
    assert problems(zipped(tmp_path / NAME, files if "x" in files else recorded(files))) == (expected,)


def test_file_name_must_be_a_wheels(tmp_path: Path) -> None:
    """The name carries the tags."""
    [problem] = problems(zipped(tmp_path / "flash.whl", recorded(FILES)))
    assert problem.startswith("its file name is not a wheel's: ")


def test_check_record_reads_every_byte(tmp_path: Path) -> None:
    """An altered member and a damaged one are both found."""
    files = recorded(FILES)
    files["flash_attn/__init__.py"] = b"VERSION = 9\n"
    path = zipped(tmp_path / NAME, files)
    with zipfile.ZipFile(path) as archive:
        offset = archive.getinfo("flash_attn_2_cuda.so").header_offset
    data = bytearray(path.read_bytes())
    data[offset + 80] ^= 0xFF
    path.write_bytes(data)

    altered, damaged = check_record(path)

    good, bad = (spelled("sha256", sha(text)) for text in (b"VERSION = 1\n", b"VERSION = 9\n"))
    assert altered == f"flash_attn/__init__.py is not what RECORD says: {bad}, not {good}"
    assert damaged.startswith("flash_attn_2_cuda.so cannot be unpacked: ")


def test_check_record_of_garbage_is_a_finding(tmp_path: Path) -> None:
    """Verification lists it with the rest instead of ending."""
    (tmp_path / NAME).write_bytes(b"")
    assert check_record(tmp_path / NAME) == ("it cannot be read as a zip archive: File is not a zip file",)


def test_disagreements_are_listed(tmp_path: Path) -> None:
    """A wheel that was renamed by hand (as published ones were) is caught in every place."""
    files = {**FILES, f"{DIST_INFO}/WHEEL": WHEEL.encode() + b"Build: 2\n"}
    path = tmp_path / "flash_attn2-2.8.3+cu12-1-cp312-cp312-manylinux_2_31_x86_64.whl"

    assert disagreements(read_wheel(zipped(path, recorded(files)))) == (
        "the file name says project flash-attn2, METADATA says flash-attn",
        "the file name says version 2.8.3+cu12, METADATA says 2.8.3",
        "the dist-info folder is flash_attn-2.8.3.dist-info, not flash_attn2-2.8.3+cu12.dist-info",
        "the file name says cp312-cp312-manylinux_2_31_x86_64, WHEEL says cp312-cp312-linux_x86_64",
        "the file name says build tag 1, WHEEL says 2",
    )


# editing

FULL = Edit(
    version="2.8.3+cu130.torch2.11.0.sm100",
    tags=("cp312-cp312-manylinux_2_34_x86_64",),
    build="1",
    requires={"torch": "==2.11.0"},
    files={"wheelmill.json": b"{}\n"},
    licenses={"csrc/cutlass/LICENSE.txt": b"BSD 3\n"},
)


def edited(tmp_path: Path, edit: Edit, files: Mapping[str, bytes] = FILES) -> Path:
    """Write an edited wheel under its own name."""
    wheel = read_wheel(zipped(tmp_path / NAME, recorded(files)))
    name = wheel_name(name="flash_attn", version=edit.version, build=edit.build, tags=edit.tags)
    with open_members(wheel.path) as found:
        return write_wheel(edit_members(wheel, found, edit), tmp_path / name, epoch=EPOCH).path


def test_edit_makes_all_places_agree(tmp_path: Path) -> None:
    """Folders are renamed, texts rewritten, additions in place, compiled bytes untouched."""
    wheel = read_wheel(edited(tmp_path, FULL))

    stem = "flash_attn-2.8.3+cu130.torch2.11.0.sm100"
    assert wheel.path.name == f"{stem}-1-cp312-cp312-manylinux_2_34_x86_64.whl"
    assert disagreements(wheel) == check_record(wheel.path) == ()
    assert set(wheel.record) == {
        "flash_attn/__init__.py",
        "flash_attn_2_cuda.so",
        f"{stem}.data/scripts/tool",
        f"{stem}.dist-info/METADATA",
        f"{stem}.dist-info/RECORD",
        f"{stem}.dist-info/WHEEL",
        f"{stem}.dist-info/licenses/LICENSE",
        f"{stem}.dist-info/licenses/csrc/cutlass/LICENSE.txt",
        f"{stem}.dist-info/wheelmill.json",
    }
    assert wheel.record["flash_attn_2_cuda.so"].digest == spelled("sha256", sha(FILES["flash_attn_2_cuda.so"]))


def test_edited_texts(tmp_path: Path) -> None:
    """Only the fields asked for change; an old METADATA is raised to the version that knows License-File."""
    wheel = read_wheel(edited(tmp_path, FULL))

    assert wheel.metadata == (
        "Metadata-Version: 2.4\n"
        "Name: Flash.Attn\n"
        "Version: 2.8.3+cu130.torch2.11.0.sm100\n"
        "License-File: LICENSE\n"
        "License-File: csrc/cutlass/LICENSE.txt\n"
        "Requires-Dist: torch==2.11.0\n"
        "Requires-Dist: einops>=0.7\n"
        "Dynamic: license-file\n"
        "\n# Flash\n\nVersion: not a field\n"
    )
    assert wheel.wheel == (
        "Wheel-Version: 1.0\nGenerator: setuptools (81.0.0)\nRoot-Is-Purelib: false\n"
        "Tag: cp312-cp312-manylinux_2_34_x86_64\nBuild: 1\n"
    )


def test_edit_without_licences_keeps_the_metadata_version(tmp_path: Path) -> None:
    """Nothing is raised without need, and no file moves."""
    wheel = read_wheel(edited(tmp_path, Edit(version="2.8.3", tags=("py3-none-any",))))

    assert values(wheel.metadata, "Metadata-Version") == ("2.1",)
    assert f"{DIST_INFO}/LICENSE" in wheel.record
    assert wheel.requires == ("torch", "einops>=0.7", 'Torch>=2; extra == "new"')


def test_edit_is_idempotent(tmp_path: Path) -> None:
    """Stamping what is stamped gives the same bytes."""
    first = edited(tmp_path, FULL)
    before = first.read_bytes()
    with open_members(first) as found:
        again = write_wheel(edit_members(read_wheel(first), found, FULL), first, epoch=EPOCH)

    assert again.path.read_bytes() == before


def test_another_release_is_refused(tmp_path: Path) -> None:
    """Only the local part may be given to a finished wheel."""
    with pytest.raises(RepairError) as caught:
        edited(tmp_path, Edit(version="2.8.4+cu130", tags=FULL.tags))

    assert str(caught.value) == f"{NAME} was built as version 2.8.3, the recipe says 2.8.4"


def test_added_file_must_not_replace_another(tmp_path: Path) -> None:
    """A licence of the same name with other words is a question for a human."""
    with pytest.raises(RepairError) as caught:
        edited(tmp_path, Edit(version="2.8.3", tags=FULL.tags, licenses={"LICENSE": b"MIT\n"}))

    assert str(caught.value) == (
        f"cannot add {DIST_INFO}/licenses/LICENSE to {NAME}: it is there already, with other contents"
    )


def test_continuation_lines_stay_with_their_field() -> None:
    """Folded fields are replaced whole, and CRLF ends as LF."""
    text = "A: 1\r\nB: x\r\n  y\r\nC: 3\r\n\r\nbody\n"

    assert replace_fields(text, {"b": ("z",)}) == "A: 1\nb: z\nC: 3\n\nbody\n"
    assert replace_fields("A: 1\n", {"D": ("1", "2"), "A": ()}) == "D: 1\nD: 2\n"


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["cp38-abi3-manylinux_2_31_x86_64"], "x-1.0-cp38-abi3-manylinux_2_31_x86_64.whl"),
        (["py3-none-any", "py2-none-any"], "x-1.0-py2.py3-none-any.whl"),
    ],
)
def test_wheel_name(tags: list[str], expected: str) -> None:
    """Tags are compressed, version and project spelled canonically."""
    assert wheel_name(name="X", version="1.0.0"[:3], build="", tags=tags) == expected


def test_wheel_name_that_would_say_more_than_the_tags() -> None:
    """A compressed tag is a product; where it is not exact there is no name."""
    with pytest.raises(RepairError, match="no wheel file name says exactly these tags: cp311-abi3-a cp312-cp312-a"):
        wheel_name(name="x", version="1", build="", tags=["cp312-cp312-a", "cp311-abi3-a"])
    with pytest.raises(RepairError, match="WHEEL has a tag that is not one: 'cp312'"):
        wheel_name(name="x", version="1", build="", tags=["cp312"])
