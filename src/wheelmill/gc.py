"""gc: frees space in the cache; what a running build holds stays."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .runtime import Directories


@dataclass(frozen=True, kw_only=True, slots=True)
class Freed:
    """A folder that was removed. `size` in bytes, hard links counted once per folder."""

    path: Path
    size: int


def collect(directories: Directories, *, everything: bool) -> Iterator[Freed]:
    """Remove the leftovers of builds that failed or were stopped, and give each.

    `everything`: also locked environments, toolkits, object caches and fetched files; all of them can be made or
    fetched again, unless a build runs.
    """
    running = False
    for place in folders(directories.builds):
        with held(place / "lock") as ours:
            running |= not ours
            if ours:
                yield removed(place)
    for place in folders(directories.rebuilds):
        if any(is_held(lock) for pattern in ("lock", "*/*/lock") for lock in sorted(place.glob(pattern))):
            running = True
        else:
            yield removed(place)
    if everything and not running:
        for root in (directories.environments, directories.toolkits, directories.objects, directories.store):
            # what an interrupted gc left under its other name goes too
            yield from (
                removed(path) for path in folders(root.parent) if path == root or path.name.startswith(f".{root.name}.")
            )


def is_held(lock: Path) -> bool:
    """Say whether somebody holds a lock."""
    with held(lock) as ours:
        return not ours


def folders(root: Path) -> list[Path]:
    """List the folders in a folder, which may be missing."""
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


@contextmanager
def held(lock: Path) -> Iterator[bool]:
    """Hold the lock of a workplace, and say whether we could."""
    with lock.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def removed(path: Path) -> Freed:
    """Remove a folder and say how large it was; it goes under another name, for a half removed one looks whole."""
    inodes = {}
    for entry in path.rglob("*"):
        if entry.is_file() and not entry.is_symlink():
            stat = entry.stat()
            inodes[stat.st_ino] = stat.st_size
    gone = path.with_name(f".{path.name}.{os.getpid()}")
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    return Freed(path=path, size=sum(inodes.values()))
