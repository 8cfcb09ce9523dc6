"""Going on after an end of any kind: with finished objects, never with one that may be partial."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .build import Workplace, recorded
from .tenancy import boot_id

OBJECTS = frozenset({".o", ".obj", ".lo", ".a", ".so", ".cubin", ".fatbin"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """What an earlier start left: objects in its tree, compiles of its records, whether the machine ran through."""

    objects: int
    dropped: int
    recorded: int
    rebooted: bool

    @property
    def told(self) -> str:
        """Say it in a line; nothing where there is nothing to go on with."""
        if self.rebooted:
            return (
                "the machine was started again since the last start: its tree is made anew, and "
                f"{counted(self.recorded, 'finished object')} can come from the object cache"
            )
        partial = f"; {self.dropped} that may be partial {'is' if self.dropped == 1 else 'are'} made again"
        return (
            f"goes on with {counted(self.objects, 'finished object')} of an earlier start"
            f"{partial if self.dropped else ''}"
        )


def resume(place: Workplace, epoch: int) -> Earlier | None:
    """Make what an earlier start left fit to go on with; None where there was none.

    After a reboot the tree is dropped: what was written last may never have reached the disk, and looks whole. The
    object cache keeps checksums. Else a killed compiler or linker leaves a partial file that make, or setuptools,
    takes for a new one (ninja does not): an object stays only if a compile that ended well is known to have made it.
    `epoch` is the time of every file of the source itself.
    """
    booted, now = place.root / "boot-id", boot_id()
    earlier = booted.read_text("utf-8").strip() if booted.is_file() else now
    booted.write_text(now + "\n", "utf-8")
    if not place.source.is_dir():
        return None
    made = {record.output for record in recorded(place.records) if record.exit == 0}
    compiled = sum(Path(output).suffix in {".o", ".obj"} for output in made)
    if earlier != now:
        gone = place.source.with_name(".source.old")
        shutil.rmtree(gone, ignore_errors=True)
        place.source.rename(gone)  # a half removed tree would be gone on with
        shutil.rmtree(gone, ignore_errors=True)
        return Earlier(objects=0, dropped=0, recorded=compiled, rebooted=True)
    kept = dropped = 0
    for path in objects(place.source, epoch):
        if str(path.relative_to(place.source)) in made:
            kept += path.suffix in {".o", ".obj"}
        else:
            path.unlink()
            dropped += 1
    return Earlier(objects=kept, dropped=dropped, recorded=compiled, rebooted=False)


def objects(root: Path, epoch: int) -> Iterator[Path]:
    """List what compilers and linkers have made in a tree; the source's own files have its one time."""
    for path in sorted(root.rglob("*")):
        named = path.suffix in OBJECTS or ".so." in path.name
        if named and path.is_file() and not path.is_symlink() and int(path.stat().st_mtime) != epoch:
            yield path


def counted(number: int, noun: str) -> str:
    """Spell a number of things."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
