"""What is in a wheel, on wheels made here."""

import contextlib
import json
import re
import runpy
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import zstandard.backend_c

from wheelmill.arch import served
from wheelmill.errors import DeviceCodeError, VerifyError
from wheelmill.inspection import Look, inspect_file, inspect_wheel
from wheelmill.wheel_file import check_record

MAKERS = runpy.run_path(str(Path(__file__).with_name("test_elf.py")))
METADATA = "Metadata-Version: 2.4\nName: demo\nVersion: 1.0+cu128\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: cp312-cp312-manylinux_2_28_x86_64\n"


def library(*archs: int, **facts: object) -> bytes:
    """Make a shared library with device code."""
    section = (".nv_fatbin", 1, MAKERS["fatbin"](*archs), 0, 0, 0)
    made: bytes = MAKERS["library"](more=(section,), **facts)
    return made


def wheel_at(folder: Path, members: Mapping[str, bytes | str], *, dist_info: str = "demo-1.0.dist-info") -> Path:
    """Write a wheel with these members beside sound metadata (which they replace)."""
    path = folder / "demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    sound = {f"{dist_info}/METADATA": METADATA, f"{dist_info}/WHEEL": WHEEL}
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, content in (sound | dict(members)).items():
            archive.writestr(name, content)
    return path


def test_document_has_exactly_the_promised_fields(tmp_path: Path) -> None:
    """The document of `inspect --json`, key by key; ELF files by path, whatever they are called."""
    path = wheel_at(
        tmp_path,
        {
            "demo/b.so": library(100, 100, tags=((1, "libtorch.so"), (29, "$ORIGIN")), versions=("GLIBC_2.34",)),
            "demo/a.bin": library(),
            "demo/not_elf.so": "/* GNU ld script */",
            "demo/empty.so": "",
            "demo-1.0.dist-info/METADATA": METADATA + "Requires-Dist: einops\nRequires-Dist: torch==2.9.1\n",
        },
    )
    document = inspect_wheel(path).to_json()
    assert json.loads(json.dumps(document)) == {
        "schema": 1,
        "name": "demo",
        "version": "1.0+cu128",
        "tags": ["cp312-cp312-manylinux_2_28_x86_64"],
        "requires_torch": "torch==2.9.1",
        "elf": [
            {
                "path": "demo/a.bin",
                "needed": [],
                "rpath": None,
                "glibc_floor": None,
                "device_code": {"sass": {}, "ptx": {}, "sass_bytes": {}, "ptx_bytes": {}, "kernels": {}},
            },
            {
                "path": "demo/b.so",
                "needed": ["libtorch.so"],
                "rpath": "$ORIGIN",
                "glibc_floor": "2.34",
                "device_code": {
                    "sass": {"sm_100": 2},
                    "ptx": {},
                    "sass_bytes": {"sm_100": 128},
                    "ptx_bytes": {},
                    "kernels": {},
                },
            },
        ],
        "gpus": ["B300", "B200"],
        "gpus_partly": [],
        "gpus_not_served": list(served(inspect_wheel(path).archs)[1]),
        "size": path.stat().st_size,
    }


def test_real_extension_module(tmp_path: Path) -> None:
    """A module that a compiler made goes through the archive unharmed."""
    path = wheel_at(tmp_path, {"demo/_c.so": Path(zstandard.backend_c.__file__).read_bytes()})
    (elf,) = inspect_wheel(path, scratch=tmp_path).elf
    assert "PyInit_backend_c" in elf.exported
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", None),
        ("Requires-Dist: torch\n", "torch"),
        ("Requires-Dist: Torch (>=2.9)\n", "Torch (>=2.9)"),
        ("Requires-Dist: torch==2.9.1 ; extra == 'gpu'\n", None),
        ("Requires-Dist: torch>=2; python_version > '3'\n", "torch>=2; python_version > '3'"),
        ("Requires-Dist: torchvision\nRequires-Dist: @@nonsense\n", None),
    ],
)
def test_requirement_on_torch(tmp_path: Path, lines: str, expected: str | None) -> None:
    """Only what every installation requires counts."""
    path = wheel_at(tmp_path, {"demo-1.0.dist-info/METADATA": METADATA + lines})
    assert inspect_wheel(path).requires_torch == expected


def test_several_tags_are_sorted(tmp_path: Path) -> None:
    """The document does not depend on the order of lines."""
    path = wheel_at(tmp_path, {"demo-1.0.dist-info/WHEEL": "Tag: py3-none-any\nTag: py2-none-any\n"})
    assert inspect_wheel(path).tags == ("py2-none-any", "py3-none-any")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"other-2.dist-info/METADATA": ""},
            "no wheel: it has several of demo-1.0.dist-info, other-2.dist-info",
        ),
        (
            {"demo-1.0.dist-info/METADATA": "Name: demo\n"},
            "demo-1.0.dist-info/METADATA has no field Version",
        ),
    ],
)
def test_a_wheel_with_wrong_metadata(tmp_path: Path, members: Mapping[str, str], message: str) -> None:
    """Cause and place are named."""
    path = wheel_at(tmp_path, members)
    with pytest.raises(VerifyError) as caught:
        inspect_wheel(path)
    assert str(caught.value) == f"{path}: {message}"
    assert caught.value.advice.startswith("Download or build it again")


def test_a_zip_without_dist_info(tmp_path: Path) -> None:
    """A source archive is no wheel."""
    path = wheel_at(tmp_path, {}, dist_info="demo-1.0")
    with pytest.raises(VerifyError) as caught:
        inspect_wheel(path)
    assert str(caught.value) == f"{path}: no wheel: it has no *.dist-info directory"


def test_a_missing_metadata_file(tmp_path: Path) -> None:
    """A dist-info without WHEEL is named."""
    path = tmp_path / "x.whl"
    with ZipFile(path, "w") as archive:
        archive.writestr("demo-1.0.dist-info/METADATA", METADATA)
    with pytest.raises(VerifyError) as caught:
        inspect_wheel(path)
    assert str(caught.value) == f"{path}: no wheel: demo-1.0.dist-info/WHEEL is missing"


def test_a_file_that_is_no_zip(tmp_path: Path) -> None:
    """An error page saved as a wheel is refused, and its path given."""
    path = tmp_path / "x.whl"
    path.write_text("<html>404</html>", encoding="utf-8")
    with pytest.raises(VerifyError) as caught:
        inspect_wheel(path)
    assert str(caught.value) == f"{path}: no readable wheel: File is not a zip file"


def test_no_such_file(tmp_path: Path) -> None:
    """A wrong path is said to be one."""
    path = tmp_path / "x.whl"
    with pytest.raises(VerifyError) as caught:
        inspect_wheel(path)
    assert str(caught.value) == f"{path}: cannot be read: No such file or directory"
    assert caught.value.advice == "Give the path of a .whl file."


def test_a_damaged_member(tmp_path: Path) -> None:
    """A flipped byte in the archive is damage of the wheel, not a traceback."""
    path = wheel_at(tmp_path, {"demo/b.so": library(100)})
    data = bytearray(path.read_bytes())
    data[data.index(b"demo/b.so") + 60] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(VerifyError, match=r"no readable wheel: "):
        inspect_wheel(path)


def test_a_damaged_library(tmp_path: Path) -> None:
    """The wheel and the member are both named."""
    path = wheel_at(tmp_path, {"demo/b.so": library(100)[:-100]})
    with pytest.raises(DeviceCodeError) as caught:
        inspect_wheel(path)
    assert str(caught.value).startswith(f"{path.name}: demo/b.so: ")


def test_folders_without_a_name_and_lists_that_lead_nowhere(tmp_path: Path) -> None:
    """Found by feeding damaged archives: an entry without a name, one that lies before the beginning."""
    path = wheel_at(tmp_path, {"demo/a.py": "x"})
    data = path.read_bytes()
    place = data.index(b"PK\1\2")
    for offset, value in ((42, b"\xff\xff\xff\x7f"), (28, b"\0\0"), (6, b"\x98\0"), (8, b"\1\0"), (10, b"\x63\0")):
        path.write_bytes(data[: place + offset] + value + data[place + offset + len(value) :])
        with contextlib.suppress(VerifyError):
            inspect_wheel(path)
        assert check_record(path) or offset == 6


def test_letters_that_are_none_in_wheel_and_metadata(tmp_path: Path) -> None:
    """Found by feeding damaged archives: the parser gives objects for values that are not ASCII."""
    path = wheel_at(
        tmp_path,
        {
            "demo-1.0.dist-info/WHEEL": b"Tag: py3-none-\xffany\n",
            "demo-1.0.dist-info/METADATA": METADATA.encode() + b"Requires-Dist: torch \xff\n",
        },
    )
    assert len(inspect_wheel(path).tags) == 1


def test_a_library_by_itself(tmp_path: Path) -> None:
    """What is no wheel is looked at as what it is."""
    path = tmp_path / "x.so"
    path.write_bytes(library(100))
    found = inspect_file(path)
    assert (found.name, found.tags, found.gpus[0]) == ("x.so", (), ("B300", "B200"))
    assert list(found.report())[1] == "  x.so: sm_100 1 (0.0 MB); glibc any"
    with pytest.raises(VerifyError, match="cannot be read: No such file or directory"):
        inspect_file(tmp_path / "y.so")


def test_one_pass_finds_digests_patterns_and_damage(tmp_path: Path) -> None:
    """Patterns may lie across two pieces; a damaged member does not hide the others where the caller says so."""
    text = b"x" * ((1 << 20) - 5) + b"/home/me/cache" + b"y"
    path = wheel_at(tmp_path, {"demo/a.txt": text, "demo/b.so": library(100), "demo/c.txt": "c" * 200})
    data = bytearray(path.read_bytes())
    data[data.index(b"demo/c.txt") + 12] ^= 0xFF
    path.write_bytes(data)
    look = Look(needles=lambda name: [re.compile(rb"/home/[a-z]+/")] if "a.txt" in name else [], tolerant=True)
    found = inspect_wheel(path, look=look)
    assert found.matches == {"demo/a.txt": ("/home/me/cachey",)}
    assert list(found.damage) == ["demo/c.txt"]
    assert found.digests["demo/a.txt"] == f"sha256={urlsafe_b64encode(sha256(text).digest()).rstrip(b'=').decode()}"
    assert found.elf[0].device_code.sass == {"sm_100": 1}


@pytest.mark.parametrize("member", ["demo/a.py", "demo/b.so"])
def test_a_size_that_is_only_claimed(member: str, tmp_path: Path) -> None:
    """An archive may say that a member of some bytes has gigabytes: no file of that length is made."""
    path = wheel_at(tmp_path, {"demo/a.py": "x", "demo/b.so": library(100)})
    data = path.read_bytes()
    place = data.index(member.encode(), data.index(b"PK\1\2")) - 46
    path.write_bytes(data[: place + 24] + b"\xf0\xff\xff\xef" + data[place + 28 :])
    with pytest.raises(VerifyError, match=r"4026531824"):
        inspect_wheel(path)
    assert list(inspect_wheel(path, look=Look(tolerant=True)).damage) == [member]
