"""The store of fetched files: a path says its content's sha256, which is checked before every use."""

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .errors import DiskFullError, HashMismatchError

__all__ = ["CHUNK", "DiskFullError", "Store", "chunks_of", "digest_of", "out_of_space", "silent", "sync"]

CHUNK = 1 << 20
STAMPED_ABOVE = 100 * 1000**2
"""Bytes above which an unchanged inode is believed instead of read again (900 MB of torch take 2 s)."""
CACHEDIR_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a cache of wheelmill: backups may leave it out.\n"
)


def silent(_text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """Files by content, shared by all wheelmills of a user; right when two run at once or one is killed."""

    root: Path
    warn: Callable[[str], None] = silent

    def path(self, sha256: str) -> Path:
        """Give the place of a content, there or not."""
        return self.root / "sha256" / sha256[:2] / sha256

    def partial(self, sha256: str) -> Path:
        """Give the place of an unfinished download, which a later run goes on with."""
        return self.root / "partial" / sha256

    def get(self, sha256: str) -> Path | None:
        """Give the file if it is here and still what it was; a damaged one is moved aside: None."""
        path = self.path(sha256)
        if not path.is_file():
            return None
        if self.is_stamped(path) or digest_of(path) == sha256:
            return path
        aside = self.root / "damaged" / f"{sha256}.{path.stat().st_mtime_ns}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        path.replace(aside)
        self.warn(f"{path} is damaged: moved to {aside}, to be fetched again")
        return None

    def add(self, content: Path | Iterable[bytes], sha256: str, *, subject: str = "", place: str = "") -> Path:
        """Take a content in; HashMismatchError, and nothing changed, where it is not the one promised."""
        with self.locked(sha256), out_of_space(self.root):
            if (found := self.get(sha256)) is not None:
                return found
            part = self.partial(sha256)
            with part.open("wb") as sink:
                for chunk in chunks_of(content) if isinstance(content, Path) else content:
                    sink.write(chunk)
            return self.adopt(part, sha256, subject=subject or str(content), place=place)

    def adopt(self, part: Path, sha256: str, *, subject: str, place: str = "") -> Path:
        """Move a finished partial file to its place, checked; call it under `locked`.

        Raises HashMismatchError and deletes the file where it is not the one promised.
        """
        actual = digest_of(part)
        if actual != sha256:
            part.unlink()
            raise HashMismatchError(subject, expected=sha256, actual=actual, place=place)
        path = self.path(sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        part.chmod(0o444)
        sync(part)
        part.replace(path)
        sync(path.parent)
        if path.stat().st_size > STAMPED_ABOVE:
            stamp_path(path).write_text(stamp_of(path), "utf-8")
        return path

    @contextmanager
    def locked(self, sha256: str) -> Iterator[None]:
        """Hold one content's lock: the kernel frees it if we are killed."""
        for folder in ("locks", "partial"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        tag = self.root / "CACHEDIR.TAG"
        if not tag.exists():
            tag.write_text(CACHEDIR_TAG, "utf-8")
        with (self.root / "locks" / sha256).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def is_stamped(self, path: Path) -> bool:
        """Say whether a large file is the very inode that was checked when it came in."""
        if path.stat().st_size <= STAMPED_ABOVE:
            return False
        try:
            return stamp_path(path).read_text("utf-8") == stamp_of(path)
        except OSError:
            return False


def stamp_path(path: Path) -> Path:
    """Give the place of a large file's stamp."""
    return path.with_name(path.name + ".checked")


def stamp_of(path: Path) -> str:
    """Describe an inode in the state in which it was checked."""
    status = path.stat()
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n"


def chunks_of(path: Path) -> Iterator[bytes]:
    """Read a file piece by piece."""
    with path.open("rb") as source:
        while chunk := source.read(CHUNK):
            yield chunk


def digest_of(path: Path) -> str:
    """Give a file's sha256."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Force a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def out_of_space(where: Path) -> Iterator[None]:
    """Turn a full disk into a failure that names it."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise DiskFullError(f"no room left on the disk of {where}") from error
