"""Wheel files: read strictly, edited as values, written so that equal contents are equal bytes.

Binary distribution format: https://packaging.python.org/specifications/binary-distribution-format/
"""

import csv
import hashlib
import io
import os
import re
import stat
import tempfile
import time
import zipfile
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import IO

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from .errors import MalformedWheelError, RepairError, UsageError
from .packing import Archive, zlib_found, zlib_problem

CHUNK = 1 << 20
"""How much is read at a time."""

EPOCHS = range(315_532_800, 4_354_819_200)
"""What a zip archive can date: 1980 to 2107."""

DIGESTS = ("sha256", "sha384", "sha512")
"""What RECORD may use: sha256 or better, says the specification."""

DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError)
"""What zipfile raises on archives that are cut, altered or encrypted (found by feeding it such): OSError where the list
sends it to before the file's beginning, NotImplementedError for versions and kinds of packing that do not exist."""

REGENERATED = ("RECORD", "RECORD.jws", "RECORD.p7s")
"""RECORD is written anew; the signatures of the old one (withdrawn from the format) would be wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One file to be put into a wheel; `open` may be called more than once."""

    name: str
    size: int
    executable: bool
    open: Callable[[], IO[bytes]]
    source: str = ""
    """Its name in the wheel that it comes from, where its packed bytes can be copied; empty for what is made anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """One line of RECORD: `digest` as RECORD spells it (`sha256=…`), empty for RECORD itself."""

    name: str
    digest: str
    size: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelFile:
    """A wheel whose structure holds; what it says of itself is not yet compared with what was asked for."""

    path: Path
    name: str
    version: str
    build: str
    tags: tuple[str, ...]
    """Name, version, build and tags are the file name's; see `disagreements` for the other places."""
    dist_info: str
    metadata: str
    wheel: str
    record: Mapping[str, Recorded]

    @property
    def wheel_tags(self) -> tuple[str, ...]:
        """The tags inside, expanded and sorted; some backends write several in one line, against the specification."""
        lines = values(self.wheel, "Tag")
        return tuple(
            sorted({str(tag) for line in lines for tag in (parse_tag(line) if line.count("-") == 2 else [line])})
        )

    @property
    def requires(self) -> tuple[str, ...]:
        """The requirements, as METADATA lists them."""
        return values(self.metadata, "Requires-Dist")

    @property
    def metadata_version(self) -> str:
        """The version in METADATA, normalised."""
        return str(Version(values(self.metadata, "Version")[0]))

    @property
    def content_digest(self) -> str:
        """What two machines with unlike zlibs compare: every member's name and digest, RECORD itself left out."""
        lines = sorted(f"{entry.name},{entry.digest}\n" for entry in self.record.values() if entry.digest)
        return hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenWheel:
    """A wheel that `write_wheel` has written."""

    path: Path
    sha256: str
    size: int
    record: Mapping[str, Recorded]
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """What a wheel shall say of itself: its full version, its tags (expanded), its build tag, exact requirements.

    `files` are added to dist-info, `licenses` to dist-info/licenses with their License-File lines.
    """

    version: str
    tags: tuple[str, ...]
    build: str = ""
    requires: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    licenses: Mapping[str, bytes] = field(default_factory=dict)


# reading ---------------------------------------------------------------------------------------------


def read_wheel(path: Path) -> WheelFile:
    """Read a wheel without unpacking it; MalformedWheelError lists everything that is off in its structure."""
    wheel, problems = scan(path)
    if wheel is None or problems:
        raise MalformedWheelError(path, problems)
    return wheel


def check_record(path: Path) -> tuple[str, ...]:
    """Give everything wrong with a wheel's structure and digests; reads every byte."""
    wheel, problems = scan(path)
    if wheel is None:
        return tuple(problems)
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            entry = wheel.record.get(info.filename)
            algorithm = entry.digest.partition("=")[0] if entry else ""
            if entry is None or algorithm not in DIGESTS:
                continue
            try:
                with archive.open(info) as stream:
                    actual = spelled(algorithm, digest_of(stream, algorithm).digest())
            except DAMAGE as error:
                problems.append(f"{info.filename} cannot be unpacked: {error}")
                continue
            if actual != entry.digest:
                problems.append(f"{info.filename} is not what RECORD says: {actual}, not {entry.digest}")
    return tuple(problems)


@contextmanager
def open_members(path: Path) -> Iterator[tuple[Member, ...]]:
    """Give the files of a wheel, to be read while the block lasts."""
    with zipfile.ZipFile(path) as archive:
        yield tuple(
            Member(
                name=info.filename,
                size=info.file_size,
                executable=bool(info.external_attr >> 16 & 0o111),
                open=opener(archive, info),
                source=info.filename,
            )
            for info in archive.infolist()
            if not is_folder(info)
        )


def opener(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], IO[bytes]]:
    """Bind one member (a lambda in a loop would see the last one only)."""
    return lambda: archive.open(info)


def is_folder(info: zipfile.ZipInfo) -> bool:
    """Tell whether an entry is a folder; `ZipInfo.is_dir` fails on one without a name."""
    return info.filename.endswith("/")


def scan(path: Path) -> tuple[WheelFile | None, list[str]]:
    """Read what can be read, with every problem found; no WheelFile where there is too little to make one."""
    try:
        archive = zipfile.ZipFile(path)
    except FileNotFoundError:
        raise UsageError(f"there is no wheel {path}") from None
    except DAMAGE as error:
        return None, [f"it cannot be read as a zip archive: {error}"]
    with archive:
        infos = [info for info in archive.infolist() if not is_folder(info)]
        problems = member_problems(infos)
        found = dist_infos(info.filename for info in infos)
        if len(found) != 1:
            return None, [*problems, dist_info_problem(found)]
        texts, unreadable = read_texts(archive, found[0])
    problems += unreadable
    if unreadable:
        return None, problems
    record, complaints = read_record(texts["RECORD"], infos, found[0])
    problems += [*complaints, *metadata_problems(texts["METADATA"]), *wheel_problems(texts["WHEEL"])]
    try:
        name, version, build, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        return None, [*problems, f"its file name is not a wheel's: {error}"]
    wheel = WheelFile(
        path=path,
        name=name,
        version=str(version),
        build="".join(str(part) for part in build),
        tags=tuple(sorted(map(str, tags))),
        dist_info=found[0],
        metadata=texts["METADATA"],
        wheel=texts["WHEEL"],
        record=record,
    )
    return wheel, problems


def dist_infos(names: Iterable[str]) -> list[str]:
    """Give the dist-info folders among names of members."""
    return sorted({top for name in names if (top := name.partition("/")[0]).endswith(".dist-info")})


def dist_info_problem(found: Sequence[str]) -> str:
    """Say that there is not one dist-info folder."""
    return f"it has {len(found)} dist-info folders, not one{': ' if found else ''}{', '.join(found)}"


def read_texts(archive: zipfile.ZipFile, dist_info: str) -> tuple[dict[str, str], list[str]]:
    """Read the three files that every wheel has, with what is wrong with them."""
    texts, problems = {}, []
    for name in ("METADATA", "RECORD", "WHEEL"):
        try:
            texts[name] = archive.read(f"{dist_info}/{name}").decode()
        except KeyError:
            problems.append(f"{dist_info}/{name} is missing")
        except DAMAGE as error:
            problems.append(f"{dist_info}/{name} cannot be read: {error}")
    return texts, problems


def member_problems(infos: Sequence[zipfile.ZipInfo]) -> list[str]:
    """Find names that would leave the folder they are unpacked in, or that hide one another."""
    problems, seen = [], set()
    for info in infos:
        problem = name_problem(info.filename)
        if problem:
            problems.append(f"{info.filename!r} {problem}")
        if info.filename in seen:
            problems.append(f"{info.filename} is in the archive twice")
        if info.flag_bits & 1:
            problems.append(f"{info.filename} is encrypted")
        kind = stat.S_IFMT(info.external_attr >> 16)
        if info.create_system == 3 and kind not in (0, stat.S_IFREG):
            problems.append(f"{info.filename} is not a plain file")
        seen.add(info.filename)
    return problems


def name_problem(name: str) -> str:
    """Say why a member's name is not a plain relative path."""
    if name.startswith("/") or re.match(r"[A-Za-z]:", name):
        return "is an absolute path"
    if "\\" in name or any(ord(letter) < 32 for letter in name):
        return "has a backslash or control character in its name"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "is not a plain relative path"
    return ""


def read_record(text: str, infos: Sequence[zipfile.ZipInfo], dist_info: str) -> tuple[dict[str, Recorded], list[str]]:
    """Read RECORD, with whatever it lists and the archive lacks, or the other way round."""
    record, problems = parse_record(text)
    sizes = {info.filename: info.file_size for info in infos}
    unhashed = {f"{dist_info}/{name}" for name in REGENERATED}
    problems += [f"RECORD lists {name}, which is not in the archive" for name in sorted(record.keys() - sizes.keys())]
    missing = sorted(sizes.keys() - record.keys() - (unhashed - {f"{dist_info}/RECORD"}))
    problems += [f"{name} is not in RECORD" for name in missing]
    for name, entry in sorted(record.items()):
        algorithm = entry.digest.partition("=")[0]
        if not entry.digest and name not in unhashed:
            problems.append(f"RECORD has no digest for {name}")
        if entry.digest and algorithm not in DIGESTS:
            problems.append(f"RECORD has a digest of kind {algorithm!r} for {name}, not sha256 or better")
        if entry.size is not None and entry.size != sizes.get(name, entry.size):
            problems.append(f"RECORD says that {name} has {entry.size} bytes, the archive says {sizes[name]}")
    return record, problems


def parse_record(text: str) -> tuple[dict[str, Recorded], list[str]]:
    """Read the lines of RECORD."""
    record: dict[str, Recorded] = {}
    problems = []
    for number, row in enumerate(csv.reader(io.StringIO(text, newline="")), start=1):
        if not row:
            continue
        if len(row) != 3 or (row[2] and not row[2].isascii()) or (row[2] and not row[2].isdigit()):
            problems.append(f"RECORD line {number} is not `path,digest,size`")
        elif row[0] in record:
            problems.append(f"RECORD lists {row[0]} twice")
        else:
            record[row[0]] = Recorded(name=row[0], digest=row[1], size=int(row[2]) if row[2] else None)
    return record, problems


def metadata_problems(text: str) -> list[str]:
    """Find what METADATA must say and does not."""
    from packaging.metadata import parse_email  # noqa: PLC0415 - it reads a table of all licences at every start

    raw, unparsed = parse_email(text)
    problems = [f"METADATA has a {key} that cannot be read" for key in sorted(unparsed) if key in ("name", "version")]
    problems += [
        f"METADATA has no {key}"
        for key in ("Metadata-Version", "Name", "Version")
        if key.lower().replace("-", "_") not in raw and key.lower() not in unparsed
    ]
    try:
        Version(raw.get("version", "0"))
    except InvalidVersion as error:
        problems.append(f"METADATA: {error}")
    for line in raw.get("requires_dist", []):
        try:
            Requirement(line)
        except InvalidRequirement as error:
            problems.append(f"METADATA requires {line!r}: {str(error).splitlines()[0]}")
    return problems


def wheel_problems(text: str) -> list[str]:
    """Find what WHEEL must say and does not."""
    problems = []
    version = values(text, "Wheel-Version")
    if len(version) != 1 or not version[0].startswith("1."):
        problems.append(f"WHEEL has Wheel-Version {', '.join(version) or '-'}, not 1.x")
    if values(text, "Root-Is-Purelib") not in (("true",), ("false",)):
        problems.append("WHEEL does not say whether Root-Is-Purelib is true or false")
    if not values(text, "Tag"):
        problems.append("WHEEL has no Tag")
    return problems


def disagreements(wheel: WheelFile) -> tuple[str, ...]:
    """Compare the places in which a wheel says its name, version, tags and build tag; give where they differ."""
    found = []
    name = canonicalize_name(values(wheel.metadata, "Name")[0])
    stem = f"{escaped(wheel.name)}-{wheel.version}.dist-info"
    build = "".join(values(wheel.wheel, "Build"))
    if name != wheel.name:
        found.append(f"the file name says project {wheel.name}, METADATA says {name}")
    if wheel.metadata_version != wheel.version:
        found.append(f"the file name says version {wheel.version}, METADATA says {wheel.metadata_version}")
    if not same_stem(wheel.dist_info, stem):
        found.append(f"the dist-info folder is {wheel.dist_info}, not {stem}")
    if wheel.tags != wheel.wheel_tags:
        found.append(f"the file name says {' '.join(wheel.tags)}, WHEEL says {' '.join(wheel.wheel_tags)}")
    if build and build != wheel.build:
        found.append(f"the file name says build tag {wheel.build or '-'}, WHEEL says {build}")
    return tuple(found)


def same_stem(dist_info: str, expected: str) -> bool:
    """Compare dist-info folders as installers do: by normalised name and version."""
    name, _, version = dist_info.removesuffix(".dist-info").partition("-")
    try:
        return f"{escaped(name)}-{Version(version)}.dist-info" == expected
    except InvalidVersion:
        return False


# editing ---------------------------------------------------------------------------------------------


def content(name: str, data: bytes, *, executable: bool = False) -> Member:
    """Make a member of bytes at hand."""
    return Member(name=name, size=len(data), executable=executable, open=lambda: io.BytesIO(data))


def edit_members(wheel: WheelFile, members: Iterable[Member], edit: Edit) -> tuple[Member, ...]:
    """Give the members of the edited wheel; whatever is not metadata is handed through untouched.

    RepairError where the wheel is another release than the edit says, or where an added file is there already
    with other contents.
    """
    check_release(wheel, edit)
    stem = f"{escaped(values(wheel.metadata, 'Name')[0])}-{Version(edit.version)}"
    dist_info = f"{stem}.dist-info"
    metadata, moved = edit_metadata(wheel.metadata, edit)
    kept = {}
    for member in members:
        name = new_name(member.name, wheel.dist_info, stem, moved)
        if name.removeprefix(f"{dist_info}/") not in (*REGENERATED, "METADATA", "WHEEL"):
            kept[name] = replace(member, name=name)
    added = {f"{dist_info}/{name}": data for name, data in edit.files.items()}
    added |= {f"{dist_info}/licenses/{name}": data for name, data in edit.licenses.items()}
    for name, data in sorted(added.items()):
        if name in kept and read_all(kept[name]) != data:
            raise RepairError(
                f"cannot add {name} to {wheel.path.name}: it is there already, with other contents",
                advice="Name the file otherwise in the recipe, or leave it out.",
            )
        kept[name] = content(name, data)
    for name, text in (("METADATA", metadata), ("WHEEL", edit_wheel_text(wheel.wheel, edit))):
        kept[f"{dist_info}/{name}"] = content(f"{dist_info}/{name}", text.encode())
    return tuple(member for _, member in sorted(kept.items()))


def new_name(name: str, dist_info: str, stem: str, moved: frozenset[str]) -> str:
    """Give the name that a member has after the edit: dist-info and the data folder carry the version."""
    top, _, rest = name.partition("/")
    if top == dist_info:
        return f"{stem}.dist-info/{'licenses/' if rest in moved else ''}{rest}"
    if top == f"{dist_info.removesuffix('.dist-info')}.data":
        return f"{stem}.data/{rest}"
    return name


def check_release(wheel: WheelFile, edit: Edit) -> None:
    """Refuse to turn one release into another: only the local part of a version may be given to a finished wheel."""
    built, wanted = Version(wheel.metadata_version), Version(edit.version)
    if built.public != wanted.public:
        raise RepairError(
            f"{wheel.path.name} was built as version {built}, the recipe says {wanted.public}",
            advice="Correct the version in the recipe, or the variable through which the build takes its version.",
        )


def edit_metadata(text: str, edit: Edit) -> tuple[str, frozenset[str]]:
    """Give the new METADATA, with the licence files that have to move for it."""
    changes: dict[str, tuple[str, ...]] = {"Version": (edit.version,)}
    if edit.requires:
        fixed = {canonicalize_name(name): f"{name}{specifier}" for name, specifier in edit.requires.items()}
        kept = [
            line for line in values(text, "Requires-Dist") if canonicalize_name(Requirement(line).name) not in fixed
        ]
        changes["Requires-Dist"] = (*(fixed[name] for name in sorted(fixed)), *kept)
    moved: frozenset[str] = frozenset()
    if edit.licenses:
        listed = values(text, "License-File")
        changes["License-File"] = (*listed, *(name for name in sorted(edit.licenses) if name not in listed))
        metadata_version = values(text, "Metadata-Version")[0]
        # License-File is core metadata since 2.4, and from then on its paths are relative to dist-info/licenses
        # (PEP 639); setuptools wrote it into 2.1 to 2.2 before, with the files directly in dist-info.
        if Version(metadata_version) < Version("2.4"):
            changes["Metadata-Version"] = ("2.4",)
            moved = frozenset(listed)
    return replace_fields(text, changes), moved


def edit_wheel_text(text: str, edit: Edit) -> str:
    """Give the new WHEEL."""
    build = {"Build": (edit.build,) if edit.build else ()}
    return replace_fields(text, {"Tag": tuple(sorted(edit.tags)), **build})


def values(text: str, name: str) -> tuple[str, ...]:
    """Give the values of one field in a file of the METADATA kind."""
    return tuple(
        value.strip()
        for key, value in (entry.split(":", 1) for entry in fields(text)[0] if ":" in entry)
        if key.strip().lower() == name.lower()
    )


def fields(text: str) -> tuple[list[str], str]:
    """Split such a file into its fields (continuation lines with them) and its body."""
    head, blank, body = text.replace("\r\n", "\n").partition("\n\n")
    entries: list[str] = []
    for line in head.strip("\n").split("\n"):
        if entries and line[:1] in (" ", "\t"):
            entries[-1] += f"\n{line}"
        else:
            entries.append(line)
    return entries, blank + body if blank else ""


def replace_fields(text: str, changes: Mapping[str, Sequence[str]]) -> str:
    """Replace fields, each at the place of its first line, else after the last field; everything else stays."""
    entries, body = fields(text)
    wanted = {name.lower(): [f"{name}: {value}" for value in listed] for name, listed in changes.items()}
    replaced = frozenset(wanted)  # names of fields are compared without case
    result: list[str] = []
    for entry in entries:
        key = entry.split(":", 1)[0].strip().lower()
        result += wanted.pop(key, []) if key in replaced else [entry]
    for lines in wanted.values():
        result += lines
    return "\n".join(result) + (body or "\n")


def escaped(name: str) -> str:
    """Spell a project's name as file names of wheels do."""
    return canonicalize_name(name).replace("-", "_")


def wheel_name(*, name: str, version: str, build: str, tags: Iterable[str]) -> str:
    """Spell a wheel's file name; RepairError where no one compressed tag says exactly these tags."""
    wanted = sorted(set(tags))
    parsed = [one_tag(tag) for tag in wanted]
    sets = (
        sorted({tag.interpreter for tag in parsed}),
        sorted({tag.abi for tag in parsed}),
        sorted({tag.platform for tag in parsed}),
    )
    compressed = "-".join(".".join(part) for part in sets)
    if sorted(map(str, parse_tag(compressed))) != wanted:
        raise RepairError(
            f"no wheel file name says exactly these tags: {' '.join(wanted)}",
            advice="Report the tags that the build backend wrote; a wheel has one set of each part.",
        )
    return "-".join([escaped(name), str(Version(version)), *([build] if build else []), compressed]) + ".whl"


def one_tag(text: str) -> Tag:
    """Read one expanded tag; RepairError where it is none."""
    match [*parse_tag(text)] if text.count("-") == 2 else []:
        case [tag]:
            return tag
        case _:
            raise RepairError(f"WHEEL has a tag that is not one: {text!r}")


# writing ---------------------------------------------------------------------------------------------


def write_wheel(members: Iterable[Member], destination: Path, *, epoch: int) -> WrittenWheel:
    """Write a wheel whose bytes depend on contents, names, executable bits and `epoch` alone (and on zlib).

    Names sorted, dist-info last, RECORD made anew and last, one date, modes 0644 and 0755, no directory entries;
    deflated by `packing`. A file of this name is replaced, at once or not at all.
    UsageError where a zip archive cannot hold the date, MalformedWheelError where the names do not make a wheel.
    """
    if epoch not in EPOCHS:
        raise UsageError(
            f"a wheel cannot be dated {epoch}: zip archives know 1980 to 2107",
            advice="Set source-date-epoch in the recipe (or SOURCE_DATE_EPOCH) to a date in that range.",
        )
    ordered, dist_info = in_order(members, destination)
    with replacing(destination) as sink:
        date = time.gmtime(epoch)[:6]
        with Archive(sink, date=date) as archive:
            record = [put(archive, member) for member in ordered]
            listing = record_text(record, f"{dist_info}/RECORD")
            record.append(put(archive, content(f"{dist_info}/RECORD", listing)))
        sink.seek(0)
        sha256 = digest_of(sink, "sha256").hexdigest()
        size = sink.tell()
    record[-1] = Recorded(name=f"{dist_info}/RECORD", digest="", size=None)
    return WrittenWheel(
        path=destination,
        sha256=sha256,
        size=size,
        record={entry.name: entry for entry in record},
        warnings=tuple(text for text in [zlib_problem(zlib_found())] if text),
    )


def in_order(members: Iterable[Member], destination: Path) -> tuple[list[Member], str]:
    """Put members into the one order, RECORD left out; name the dist-info folder."""
    listed = sorted(members, key=lambda member: member.name)
    tops = sorted({top for member in listed if (top := member.name.partition("/")[0]).endswith(".dist-info")})
    problems = [f"{member.name!r} {text}" for member in listed if (text := name_problem(member.name))]
    problems += [f"{one.name} is in the archive twice" for one, other in pairwise(listed) if one.name == other.name]
    if len(tops) != 1:
        problems.append(dist_info_problem(tops))
    if problems:
        raise MalformedWheelError(destination, problems)
    dropped = {f"{tops[0]}/{name}" for name in REGENERATED}
    kept = [member for member in listed if member.name not in dropped]
    # sorted() is stable: dist-info last, as the specification recommends, else by name.
    return sorted(kept, key=lambda member: member.name.startswith(f"{tops[0]}/")), tops[0]


def put(archive: Archive, member: Member) -> Recorded:
    """Copy one member in, and give its line of RECORD."""
    with member.open() as source:
        done = archive.put(member.name, source, size=member.size, mode=0o755 if member.executable else 0o644)
    if done.size != member.size:
        raise RepairError(f"{member.name} changed while it was packed: {done.size} bytes, not {member.size}")
    return Recorded(name=member.name, digest=spelled("sha256", done.sha256), size=done.size)


def record_text(record: Iterable[Recorded], itself: str) -> bytes:
    """Spell RECORD."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows((entry.name, entry.digest, entry.size) for entry in record)
    writer.writerow((itself, "", ""))
    return text.getvalue().encode()


@contextmanager
def replacing(destination: Path) -> Iterator[IO[bytes]]:
    """Give a temporary file in the same folder that takes `destination`'s place when the block ends well."""
    handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=destination.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w+b") as sink:
            yield sink
            sink.flush()
            os.fchmod(sink.fileno(), 0o644)  # mkstemp gives 0600; the umask has no say
            os.fsync(sink.fileno())
        temporary.replace(destination)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def digest_of(stream: IO[bytes], algorithm: str) -> "hashlib._Hash":
    """Digest what is left of a stream."""
    digest = hashlib.new(algorithm)
    while chunk := stream.read(CHUNK):
        digest.update(chunk)
    return digest


def spelled(algorithm: str, digest: bytes) -> str:
    """Spell a digest as RECORD does: URL-safe base64 without padding."""
    return f"{algorithm}={urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def read_all(member: Member) -> bytes:
    """Read a small member whole."""
    with member.open() as stream:
        return stream.read()
