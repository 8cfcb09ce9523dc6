"""From a fetched source to a patched tree: unpacked safely, patched strictly, equal in bytes, modes and times."""

import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from .catalog import Patch
from .errors import FetchError, HashMismatchError, PatchError
from .fetch import FetchedSource, FetchedTree, tree_digest, tree_files
from .store import out_of_space

if TYPE_CHECKING:
    from unidiff.patch import Hunk, PatchedFile

PATCH_ADVICE = (
    "Make the patch again from this very release, or take its line out of `patches` where upstream took the change."
)
NO_FILE = "/dev/null"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceTree:
    """A complete, patched source tree."""

    root: Path
    sha256: str
    patches: tuple[str, ...]


def prepare(
    fetched: FetchedSource | FetchedTree,
    *,
    patches: Sequence[Patch],
    must_exist: Sequence[str],
    destination: Path,
    epoch: int,
    licenses: Sequence[str] = (),
) -> SourceTree:
    """Make the source tree at `destination`; one that is there is complete and taken as it is (a build goes on).

    Every file gets the time `epoch`: build systems compare times, and archives carry the clock of whoever made
    them. Raises FetchError for an archive that is broken, unsafe or incomplete, PatchError for a patch that does
    not match; then nothing is left behind.
    """
    tree = SourceTree(root=destination, sha256=fetched.sha256, patches=tuple(patch.name for patch in patches))
    if destination.is_dir():
        return tree
    temporary = destination.with_name(f".{destination.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        with out_of_space(temporary):
            root = unpack(fetched, temporary / "tree")
            check_complete(root, must_exist, fetched)
            apply_patches(root, patches)
            check_complete(root, licenses, fetched)  # a patch may bring the text that an archive left out
            normalise(root, epoch)
            root.replace(destination)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return tree


# unpacking -------------------------------------------------------------------------------------------


def unpack(fetched: FetchedSource | FetchedTree, into: Path) -> Path:
    """Unpack an archive or copy a tree; give the project's own folder."""
    match fetched:
        case FetchedTree():
            copy_tree(fetched, into)
            return into
        case FetchedSource():
            into.mkdir()
            try:
                extract(fetched, into)
            except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError) as error:
                raise FetchError(
                    f"{fetched.file} cannot be unpacked: {error}",
                    advice="If the pinned archive itself is like that, it is no source distribution.",
                ) from error
            return only_folder(into, fetched.file)


def copy_tree(fetched: FetchedTree, into: Path) -> None:
    """Copy what the tree's digest covers, and nothing else; HashMismatchError if it changed meanwhile."""
    into.mkdir()
    for path in tree_files(fetched.path):
        target = into / path.relative_to(fetched.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)
    if (copied := tree_digest(into)) != fetched.sha256:
        raise HashMismatchError(str(fetched.path), expected=fetched.sha256, actual=copied)


def extract(fetched: FetchedSource, into: Path) -> None:
    """Extract a tar or zip archive; ValueError or TarError for a member that would leave the folder."""
    if fetched.file.endswith(".zip"):
        with zipfile.ZipFile(fetched.path) as archive:
            for member in archive.infolist():
                extract_zip_member(archive, member, into)
        return
    with tarfile.open(fetched.path, mode="r:*") as archive:
        archive.extractall(into, filter="data")


def extract_zip_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, into: Path) -> None:
    """Extract one member with its exec bit, which zipfile itself drops."""
    mode = member.external_attr >> 16
    if ".." in PurePosixPath(member.filename).parts or member.filename.startswith("/"):
        raise ValueError(f"member {member.filename!r} leaves the archive")
    if stat.S_ISLNK(mode):
        raise ValueError(f"member {member.filename!r} is a link")
    path = Path(archive.extract(member, into))
    if not member.is_dir():
        path.chmod(0o755 if mode & 0o100 else 0o644)


def only_folder(into: Path, name: str) -> Path:
    """Give the one folder that a source distribution unpacks to."""
    match sorted(into.iterdir()):
        case [folder] if folder.is_dir() and not folder.is_symlink():
            return folder
        case entries:
            listed = ", ".join(entry.name for entry in entries[:5]) or "nothing"
            raise FetchError(f"{name} has {listed} at its top, where a source distribution has one folder")


def check_complete(root: Path, must_exist: Iterable[str], fetched: FetchedSource | FetchedTree) -> None:
    """Refuse a source that lacks what the build needs, all of it named at once."""
    missing = [name for name in must_exist if not (root / name).exists()]
    if missing:
        subject = fetched.file if isinstance(fetched, FetchedSource) else str(fetched.path)
        listed = "".join(f"\n  {name}" for name in missing)
        raise FetchError(
            f"{subject} lacks files that its build needs:{listed}",
            advice="Submodules are often left out of archives: pin a release that has them, "
            "or correct `must-exist` in the recipe.",
        )


def normalise(root: Path, epoch: int) -> None:
    """Give every entry fixed mode bits and one time: umask and archive tools must not reach the build."""
    for folder, folders, names in os.walk(root, topdown=False):
        for name in [*names, *folders]:
            path = Path(folder) / name
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            os.utime(path, (epoch, epoch), follow_symlinks=False)
    root.chmod(0o755)
    os.utime(root, (epoch, epoch))


# patching --------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class Overlay:
    """A tree with changes held in memory: all patches match, or none is written."""

    root: Path
    changed: dict[str, bytes | None] = field(default_factory=dict)
    programs: dict[str, bool] = field(default_factory=dict)

    def read(self, name: str) -> bytes | None:
        """Give a file as it would be by now; None where there is none."""
        if name in self.changed:
            return self.changed[name]
        path = self.root / name
        return path.read_bytes() if path.is_file() else None

    def write(self) -> None:
        """Put the changes on the disk."""
        for name, content in sorted(self.changed.items()):
            path = self.root / name
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for name, program in sorted(self.programs.items()):
            if self.changed.get(name, b"") is not None:
                (self.root / name).chmod(0o755 if program else 0o644)


def apply_patches(root: Path, patches: Iterable[Patch]) -> None:
    """Apply patches in order, exactly: no fuzz, no offset. Raises PatchError before anything is written."""
    overlay = Overlay(root=root)
    for patch in patches:
        for change in parsed(patch):
            apply_change(overlay, patch, change)
    overlay.write()


def parsed(patch: Patch) -> "Iterator[PatchedFile]":
    """Read one patch; PatchError where it says nothing, or what cannot be applied strictly."""
    from unidiff.errors import UnidiffParseError  # noqa: PLC0415 - only builds need it, not every start
    from unidiff.patch import PatchSet  # noqa: PLC0415

    try:
        changes = PatchSet(patch.text)
    except UnidiffParseError as error:
        raise PatchError(f"{patch.name} is no unified diff: {str(error).strip()}", advice=PATCH_ADVICE) from None
    if not changes:
        raise PatchError(f"{patch.name} changes nothing: it holds no unified diff", advice=PATCH_ADVICE)
    for change in changes:
        unfit = "a binary file" if change.is_binary_file else ""
        unfit = unfit or ("a symbolic link" if change.is_symlink else "")
        unfit = unfit or ("a submodule" if change.is_submodule else "")
        if unfit:
            raise PatchError(f"{patch.name} changes {unfit}, {change.path}: only text can be patched strictly")
        yield change


def apply_change(overlay: Overlay, patch: Patch, change: "PatchedFile") -> None:
    """Apply one patch's changes to one file."""
    name = target_name(overlay.root, patch, change)
    before = overlay.read(name)
    added, removed = change.source_file == NO_FILE, change.target_file == NO_FILE
    if added and before is not None:
        raise PatchError(f"{patch.name} adds {name}, which is there already", advice=PATCH_ADVICE)
    if not added and before is None:
        raise PatchError(f"{patch.name} changes {name}, which does not exist", advice=PATCH_ADVICE)
    after = b"".join(patched_lines(before or b"", change, patch=patch, name=name))
    if removed and after:
        raise PatchError(f"{patch.name} removes {name}, but not all of its lines", advice=PATCH_ADVICE)
    overlay.changed[name] = None if removed else after
    if change.target_mode is not None and not removed:
        overlay.programs[name] = change.target_mode == "100755"


def target_name(root: Path, patch: Patch, change: "PatchedFile") -> str:
    """Give the path that a patch changes, `a/` and `b/` taken off; PatchError unless it stays in the tree."""
    sides = [side for side in (change.source_file, change.target_file) if side != NO_FILE]
    names = {PurePosixPath(side).parts[1:] for side in sides}
    if len(names) != 1:
        raise PatchError(
            f"{patch.name} renames {' to '.join(sides)}: renames cannot be applied strictly",
            advice="Make it again with `git diff --no-renames`.",
        )
    parts = names.pop()
    absolute = any(side.startswith(("/", '"')) for side in sides)
    if absolute or not parts or ".." in parts:
        raise PatchError(f"{patch.name} names {sides[0]!r}; a path in a patch is `a/PATH` and `b/PATH`")
    for length in range(1, len(parts) + 1):
        if root.joinpath(*parts[:length]).is_symlink():
            raise PatchError(f"{patch.name} changes {'/'.join(parts)} through a symbolic link")
    return "/".join(parts)


def patched_lines(before: bytes, change: "PatchedFile", *, patch: Patch, name: str) -> list[bytes]:
    """Give a file's lines after all hunks; PatchError for the first line that is not what the hunk expects."""
    lines = split_lines(before)
    result: list[bytes] = []
    position = 0
    for number, hunk in enumerate(change, 1):
        # a hunk that takes no line says after which line it adds
        start = hunk.source_start - (1 if hunk.source_length else 0)
        expected, replacement = sides_of(hunk)
        if start < position:
            raise PatchError(f"{patch.name}: hunk {number} of {name} overlaps the one before")
        if start > len(lines) or lines[start : start + len(expected)] != expected:
            raise mismatch(patch, name, number, lines=lines, expected=expected, start=start)
        result += [*lines[position:start], *replacement]
        position = start + len(expected)
    return [*result, *lines[position:]]


def split_lines(content: bytes) -> list[bytes]:
    """Split at line feeds alone: a carriage return belongs to its line."""
    parts = content.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def sides_of(hunk: "Hunk") -> tuple[list[bytes], list[bytes]]:
    """Give the lines that a hunk takes, and those that it puts in their place."""
    old: list[bytes] = []
    new: list[bytes] = []
    touched: list[list[bytes]] = []
    for line in hunk:
        if line.line_type == "\\":
            for side in touched:
                side[-1] = side[-1].removesuffix(b"\n")
            continue
        touched = [*([new] if line.is_added else []), *([old] if line.is_removed else [])]
        touched = [old, new] if line.is_context else touched
        for side in touched:
            side.append(line.value.encode("utf-8", "surrogateescape"))
    return old, new


def mismatch(
    patch: Patch, name: str, number: int, *, lines: list[bytes], expected: list[bytes], start: int
) -> PatchError:
    """Say where a patch does not match and how, and whether its lines stand elsewhere."""
    seen = lines[start : start + len(expected)] if start <= len(lines) else []
    offset = next((at for at, line in enumerate(seen) if line != expected[at]), len(seen))
    elsewhere = [at + 1 for at in range(len(lines)) if expected and lines[at : at + len(expected)] == expected]
    return PatchError(
        f"{patch.name} does not match {name}: hunk {number}, line {start + offset + 1}\n"
        f"  expected {shown(expected[offset : offset + 1])}\n"
        f"  found    {shown(seen[offset : offset + 1])}"
        + (f"\n  the hunk's lines stand at line {elsewhere[0]}" if elsewhere else ""),
        advice=PATCH_ADVICE,
    )


def shown(line: list[bytes]) -> str:
    """Show one line so that blanks and line ends can be told apart."""
    return repr(line[0].decode("utf-8", "replace")) if line else "the end of the file"
