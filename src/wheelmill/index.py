"""Static package indexes over a wheelhouse: PEP 503 pages, PEP 691 documents, PEP 658 metadata beside the wheels.

Plain files that any web server, and `file://`, can serve. A plain server cannot choose by content type, so that
installers get the HTML; the JSON is for tools that ask for index.json.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from packaging.version import Version

from .errors import UsageError
from .store import digest_of
from .wheel_file import WheelFile, read_wheel, replacing, values
from .wheelhouse import Wheelhouse

API_VERSION = "1.1"
"""PEP 700: sizes and versions are given; there are no upload times, which would change with every run."""

SIMPLE = "simple"
LABEL = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """One file of a project page; `href` is relative to the page and quoted."""

    name: str
    version: str
    href: str
    sha256: str
    size: int
    metadata_sha256: str
    requires_python: str
    marks: tuple[str, ...] = ()
    """What lowers the wheel's claim, as its build record says."""


def write_index(root: Path, label: str, wheels: Iterable[Path]) -> Path:
    """Write the index `simple/<label>` for exactly these wheels of the wheelhouse `root`; give its folder.

    Every page is replaced at once or not at all, and equal wheels give equal bytes. UsageError for a label that is no
    folder name or a wheel from elsewhere, MalformedWheelError for a broken wheel.
    """
    if not LABEL.fullmatch(label):
        raise UsageError(f"{label!r} cannot be an index: small letters, digits, dots, dashes and underscores only")
    folder = root / SIMPLE / label
    projects: dict[str, list[Link]] = {}
    for path in sorted(wheels, key=lambda path: path.name):
        if path.parent.resolve() != root.resolve():
            raise UsageError(
                f"{path} is not in the wheelhouse {root}", advice="Name the wheelhouse with --wheelhouse DIR."
            )
        wheel = read_wheel(path)
        projects.setdefault(wheel.name, []).append(link(wheel))
    for project, links in sorted(projects.items()):
        (folder / project).mkdir(parents=True, exist_ok=True)
        write(folder / project / "index.json", project_document(project, links))
        write(folder / project / "index.html", project_page(project, links))
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "index.json", root_document(projects))
    write(folder / "index.html", root_page(label, projects))
    remove_others(folder, projects)
    return folder


def remove_indexes(root: Path, *, but: Iterable[str]) -> tuple[Path, ...]:
    """Remove the indexes that no wheel stands in any more, and give them; whatever is no index of ours stays."""
    kept, simple = set(but), root / SIMPLE
    stale = [
        path
        for path in (sorted(simple.iterdir()) if simple.is_dir() else ())
        if path.name not in kept and LABEL.fullmatch(path.name) and (path / "index.json").is_file()
    ]
    for path in stale:
        shutil.rmtree(path)
    return tuple(stale)


def link(wheel: WheelFile) -> Link:
    """Describe one wheel, and lay its metadata beside it (PEP 658), for installers to resolve without the wheel."""
    metadata = wheel.metadata.encode()
    write(wheel.path.with_name(f"{wheel.path.name}.metadata"), metadata)
    return Link(
        name=wheel.path.name,
        version=wheel.version,
        # `+` must not stay as it is: object stores read it as a space.
        href=f"../../../{quote(wheel.path.name, safe='')}",
        sha256=digest_of(wheel.path),
        size=wheel.path.stat().st_size,
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
        requires_python="".join(values(wheel.metadata, "Requires-Python")[:1]),
        marks=held.marks if (held := Wheelhouse(root=wheel.path.parent).held(wheel.path.name)) else (),
    )


def project_page(project: str, links: Sequence[Link]) -> bytes:
    """Spell a project's page (PEP 503, with the attributes of PEP 714 and its older name)."""
    lines = []
    for one in links:
        attributes = {
            "href": f"{one.href}#sha256={one.sha256}",
            **({"data-requires-python": one.requires_python} if one.requires_python else {}),
            "data-core-metadata": f"sha256={one.metadata_sha256}",
            "data-dist-info-metadata": f"sha256={one.metadata_sha256}",
        }
        spelled = " ".join(f'{name}="{escape(value)}"' for name, value in attributes.items())
        told = f" ({escape('; '.join(one.marks))})" if one.marks else ""
        lines.append(f"<a {spelled}>{escape(one.name)}</a>{told}<br>")
    return page(f"Links for {project}", lines)


def root_page(label: str, projects: Iterable[str]) -> bytes:
    """Spell the page that lists the projects."""
    return page(label, [f'<a href="{quote(name)}/">{escape(name)}</a><br>' for name in sorted(projects)])


def page(title: str, lines: Iterable[str]) -> bytes:
    """Spell one HTML page."""
    head = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="pypi:repository-version" content="{API_VERSION}">',
        f"<title>{escape(title)}</title>",
        "</head>",
        "<body>",
        f"<h1>{escape(title)}</h1>",
    ]
    return ("\n".join([*head, *lines, "</body>", "</html>"]) + "\n").encode()


def project_document(project: str, links: Sequence[Link]) -> bytes:
    """Spell a project's document (PEP 691; its urls are relative, which the PEP allows)."""
    files = [
        {
            "filename": one.name,
            "url": one.href,
            "hashes": {"sha256": one.sha256},
            "size": one.size,
            **({"requires-python": one.requires_python} if one.requires_python else {}),
            "core-metadata": {"sha256": one.metadata_sha256},
            "dist-info-metadata": {"sha256": one.metadata_sha256},
            # PEP 691: a key with an underscore is a private one, which installers pass over.
            **({"_wheelmill_marks": list(one.marks)} if one.marks else {}),
        }
        for one in links
    ]
    versions = sorted({one.version for one in links}, key=Version)
    return document({"name": project, "versions": versions, "files": files})


def root_document(projects: Iterable[str]) -> bytes:
    """Spell the document that lists the projects."""
    return document({"projects": [{"name": name} for name in sorted(projects)]})


def document(content: Mapping[str, object]) -> bytes:
    """Spell one JSON document."""
    return (json.dumps({"meta": {"api-version": API_VERSION}, **content}, indent=2) + "\n").encode()


def remove_others(folder: Path, projects: Iterable[str]) -> None:
    """Remove the pages of projects that are no longer in the index, after the root page has ceased to name them."""
    kept = set(projects)
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in kept:
            shutil.rmtree(path)


def write(path: Path, data: bytes) -> None:
    """Replace a file, unless it says the same already (mirrors copy what is newer)."""
    if path.is_file() and path.read_bytes() == data:
        return
    with replacing(path) as sink:
        sink.write(data)
