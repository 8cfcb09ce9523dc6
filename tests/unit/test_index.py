"""Static indexes: what the pages say, that they are well formed, and that equal wheels give equal bytes."""

import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from pypi_simple import ProjectPage

from wheelmill.errors import MalformedWheelError, UsageError
from wheelmill.index import link, project_page, write_index
from wheelmill.store import digest_of
from wheelmill.wheel_file import content, read_wheel, write_wheel

LABEL = "cu130-torch2.11.0-sm100"


def wheel(root: Path, project: str, version: str, *, requires_python: str = ">=3.9,<4") -> Path:
    """Write a pure wheel."""
    stem = f"{project}-{version}"
    metadata = f"Metadata-Version: 2.4\nName: {project}\nVersion: {version}\nRequires-Python: {requires_python}\n"
    members = [
        content(f"{project}.py", b""),
        content(f"{stem}.dist-info/METADATA", metadata.encode()),
        content(f"{stem}.dist-info/WHEEL", b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
    ]
    root.mkdir(exist_ok=True)
    return write_wheel(members, root / f"{stem}-1-py3-none-any.whl", epoch=1_700_000_000).path


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    """Fill a wheelhouse with two projects, one of them twice."""
    return [
        wheel(tmp_path, "vllm", "0.22.0+cu130"),
        wheel(tmp_path, "flash_attn", "2.8.10+cu130.sm100"),
        wheel(tmp_path, "flash_attn", "2.8.3+cu130.sm100"),
    ]


def tree(root: Path) -> dict[str, bytes]:
    """Give all files below a folder."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_layout(tmp_path: Path, wheels: list[Path]) -> None:
    """One folder per label, one page and one document per project, metadata beside the wheels."""
    folder = write_index(tmp_path, LABEL, wheels)

    assert folder == tmp_path / "simple" / LABEL
    assert sorted(tree(folder)) == [
        "flash-attn/index.html",
        "flash-attn/index.json",
        "index.html",
        "index.json",
        "vllm/index.html",
        "vllm/index.json",
    ]
    metadata = (tmp_path / f"{wheels[0].name}.metadata").read_text()
    assert metadata == read_wheel(wheels[0]).metadata


def test_project_page_text(tmp_path: Path) -> None:
    """The page, to the letter."""
    path = wheel(tmp_path, "flash_attn", "2.8.3+cu130.sm100")
    write_index(tmp_path, LABEL, [path])
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    core = hashlib.sha256(read_wheel(path).metadata.encode()).hexdigest()

    assert (tmp_path / "simple" / LABEL / "flash-attn" / "index.html").read_text() == (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n'
        "<head>\n"
        '<meta charset="utf-8">\n'
        '<meta name="pypi:repository-version" content="1.1">\n'
        "<title>Links for flash-attn</title>\n"
        "</head>\n"
        "<body>\n"
        "<h1>Links for flash-attn</h1>\n"
        '<a href="../../../flash_attn-2.8.3%2Bcu130.sm100-1-py3-none-any.whl'
        f'#sha256={sha256}" data-requires-python="&gt;=3.9,&lt;4" '
        f'data-core-metadata="sha256={core}" data-dist-info-metadata="sha256={core}">'
        "flash_attn-2.8.3+cu130.sm100-1-py3-none-any.whl</a><br>\n"
        "</body>\n"
        "</html>\n"
    )


def test_project_document(tmp_path: Path, wheels: list[Path]) -> None:
    """PEP 691 and 700: hashes, sizes, versions in their order, no times."""
    folder = write_index(tmp_path, LABEL, wheels)
    document = json.loads((folder / "flash-attn" / "index.json").read_text())

    assert document["meta"] == {"api-version": "1.1"}
    assert document["versions"] == ["2.8.3+cu130.sm100", "2.8.10+cu130.sm100"]
    for file in document["files"]:
        path = tmp_path / file["filename"]
        assert (folder / "flash-attn" / unquote(file["url"])).resolve() == path
        assert file["size"] == path.stat().st_size
        assert file["hashes"] == {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert json.loads((folder / "index.json").read_text())["projects"] == [{"name": "flash-attn"}, {"name": "vllm"}]


def test_another_client_reads_the_same_from_both(tmp_path: Path, wheels: list[Path]) -> None:
    """HTML and JSON say the same to pypi-simple."""
    folder = write_index(tmp_path, LABEL, wheels) / "flash-attn"
    html = ProjectPage.from_html("flash-attn", (folder / "index.html").read_text(), "http://h/simple/l/flash-attn/")
    parsed = ProjectPage.from_json_data(
        json.loads((folder / "index.json").read_text()), base_url="http://h/simple/l/flash-attn/"
    )

    for one, other in zip(html.packages, parsed.packages, strict=True):
        assert one.url == other.url
        assert one.digests == other.digests
        assert one.requires_python == other.requires_python == ">=3.9,<4"
        assert one.has_metadata
        assert one.metadata_digests == other.metadata_digests


def test_equal_wheels_give_equal_bytes_and_touch_nothing(tmp_path: Path, wheels: list[Path]) -> None:
    """Whatever the order; a second run writes no file anew."""
    folder = write_index(tmp_path, LABEL, wheels)
    before, inodes = tree(tmp_path), {path: path.stat().st_ino for path in folder.rglob("*")}

    write_index(tmp_path, LABEL, reversed(wheels))

    assert tree(tmp_path) == before
    assert {path: path.stat().st_ino for path in folder.rglob("*")} == inodes


def test_index_holds_exactly_the_given_wheels(tmp_path: Path, wheels: list[Path]) -> None:
    """What is no longer given goes; another label's index stays; none at all is an empty index."""
    other = write_index(tmp_path, "cu128", wheels)
    folder = write_index(tmp_path, LABEL, wheels)
    before = tree(other)

    write_index(tmp_path, LABEL, wheels[:1])
    assert [path.name for path in sorted(folder.iterdir())] == ["index.html", "index.json", "vllm"]

    write_index(tmp_path, LABEL, [])
    assert json.loads((folder / "index.json").read_text())["projects"] == []
    assert tree(other) == before


def test_root_page_links_to_the_projects(tmp_path: Path, wheels: list[Path]) -> None:
    """Relative, with the slash that spares a redirection."""
    text = (write_index(tmp_path, LABEL, wheels) / "index.html").read_text()

    assert '<a href="flash-attn/">flash-attn</a><br>\n<a href="vllm/">vllm</a><br>\n' in text


class Tags(HTMLParser):
    """Checks that tags are closed in their order, and collects texts and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an opened tag."""
        self.attributes.append(dict(attrs))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost one."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note a text."""
        self.texts.append(data)


def test_names_are_escaped(tmp_path: Path) -> None:
    """What METADATA says cannot break out of its attribute, nor a name out of its element."""
    evil = '"><script>alert(1)</script>'
    path = wheel(tmp_path, "x", "1", requires_python=evil)

    parser = Tags()
    parser.feed(project_page("<b>", [link(read_wheel(path))]).decode())

    assert parser.open == []
    assert {"data-requires-python": evil}.items() <= parser.attributes[-2].items()
    assert "Links for <b>" in parser.texts


@pytest.mark.parametrize("label", ["", "..", "a/b", "Cu130", ".x", "a b"])
def test_labels_are_folder_names(label: str, tmp_path: Path) -> None:
    """A label cannot leave `simple`."""
    with pytest.raises(UsageError, match="cannot be an index"):
        write_index(tmp_path, label, [])


def test_wheels_from_elsewhere_and_broken_ones_change_nothing(tmp_path: Path, wheels: list[Path]) -> None:
    """Every wheel is looked at before the first page is written."""
    folder = write_index(tmp_path, LABEL, wheels)
    before = tree(folder)
    outside = wheel(tmp_path / "elsewhere", "x", "1")

    with pytest.raises(UsageError) as caught:
        write_index(tmp_path, LABEL, [*wheels[:1], outside])
    assert str(caught.value) == f"{outside} is not in the wheelhouse {tmp_path}"

    wheels[1].write_bytes(b"")
    with pytest.raises(MalformedWheelError):
        write_index(tmp_path, LABEL, wheels)
    assert tree(folder) == before


def test_marks_stand_beside_the_file(tmp_path: Path, wheels: list[Path]) -> None:
    """What lowers a wheel's claim is read before it is installed; installers do not look there."""
    path = wheels[0]
    record = {
        "drv": "d",
        "sha256": digest_of(path),
        "size": path.stat().st_size,
        "marks": ["host toolkit, <not> pinned"],
    }
    path.with_name(f"{path.name}.build.json").write_text(json.dumps(record))

    folder = write_index(tmp_path, LABEL, wheels)

    page = (folder / "vllm" / "index.html").read_text()
    assert f">{path.name}</a> (host toolkit, &lt;not&gt; pinned)<br>" in page
    [file] = json.loads((folder / "vllm" / "index.json").read_text())["files"]
    assert file["_wheelmill_marks"] == ["host toolkit, <not> pinned"]
    assert "_wheelmill_marks" not in (folder / "flash-attn" / "index.json").read_text()
