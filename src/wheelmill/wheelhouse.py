"""The wheelhouse: verified wheels, each with its build record and log, entered whole or not at all."""

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from .errors import EnvironmentUnfitError, VerifyError, WheelmillError
from .store import DiskFullError, digest_of, sync

RECORD_SUFFIX = ".build.json"
LOG_SUFFIX = ".log"
PROOF_SUFFIX = ".provenance.json"
LOCK_NAME = ".lock"
STAGING_PREFIX = ".entering-"
NAME_FILE = "wheel-name"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One wheel in the wheelhouse, with what its build record says of it."""

    wheel: Path
    drv: str
    sha256: str
    size: int
    index: str = ""
    """The index that it stands in."""
    marks: tuple[str, ...] = ()
    """What lowers its claim: see provenance.marks."""

    @property
    def build_record(self) -> Path:
        """What the wheel was built from, by whom is not said."""
        return self.wheel.with_name(self.wheel.name + RECORD_SUFFIX)

    @property
    def proof(self) -> Path:
        """The in-toto statement of how it was made."""
        return self.wheel.with_name(self.wheel.name + PROOF_SUFFIX)

    @property
    def log(self) -> Path:
        """The whole log of the build."""
        return self.wheel.with_name(self.wheel.name + LOG_SUFFIX)

    def check(self) -> None:
        """Read the wheel; VerifyError where it is not the one that was entered."""
        actual = digest_of(self.wheel)
        if actual != self.sha256:
            raise VerifyError(
                f"{self.wheel} was altered after it was entered\n  expected {self.sha256}\n  actual   {actual}",
                advice=f"Delete it together with {self.build_record.name}, and build again.",
            )


class NameTakenError(VerifyError):
    """A wheel of this name is there already, from other inputs."""

    default_advice = (
        "Raise `revision` in the recipe: it becomes the build tag, and so another file name; "
        "or take another wheelhouse: `--wheelhouse DIR`."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheelhouse:
    """A folder of wheels that installers can use as it is (`--find-links`)."""

    root: Path

    def entries(self) -> tuple[Entry, ...]:
        """Give every wheel that is here with its record; a wheel of another size than recorded is none."""
        found = (read_entry(path) for path in sorted(self.root.glob(f"*.whl{RECORD_SUFFIX}")))
        return tuple(entry for entry in found if entry is not None)

    def find(self, drv: str) -> Entry | None:
        """Find the wheel of a derivation; its bytes are not read (see Entry.check)."""
        return next((entry for entry in self.entries() if entry.drv == drv), None)

    def enter(self, wheel: Path, *, build_record: Mapping[str, object], log: Path, proof: bytes | None = None) -> Entry:
        """Take in a verified wheel, its build record (which must have `drv`), its log and its provenance.

        The same wheel again is kept, another wheel of the same derivation replaces it. Whatever goes wrong, the
        wheelhouse is then as it was. Raises NameTakenError for another derivation under the name, VerifyError for
        a wheel that is not repaired or not the recorded one, DiskFullError, and EnvironmentUnfitError where the
        folder cannot be written.
        """
        check_name(wheel.name)
        drv = build_record.get("drv")
        if not isinstance(drv, str) or not drv:
            raise VerifyError(f"the build record of {wheel.name} names no derivation")
        with writing(self.root), locked(self.root):
            recover(self.root)
            self.check_free(wheel.name, drv)
            held = self.held(wheel.name)
            with staged(self.root, wheel, build_record, log, proof) as (staging, entry):
                if held is not None and held.sha256 == entry.sha256 == digest_of(held.wheel):
                    return held
                publish(self.root, staging, wheel.name)
            return entry

    def check_free(self, name: str, drv: str) -> None:
        """Refuse a file name that another derivation's wheel has; NameTakenError. Known before a build starts."""
        held = self.held(name)
        if held is not None and held.drv != drv:
            raise NameTakenError(
                f"{held.wheel} is there already, built from other inputs\n"
                f"  derivation there {held.drv}\n  derivation now   {drv}"
            )

    def held(self, name: str) -> Entry | None:
        """Find the entry of this file name."""
        record = self.root / (name + RECORD_SUFFIX)
        return read_entry(record) if record.is_file() else None


def check_name(name: str) -> None:
    """Refuse what must not be published: installers would prefer an unrepaired wheel to the repaired one."""
    try:
        *_, tags = parse_wheel_filename(name)
    except InvalidWheelFilename as error:
        raise VerifyError(f"{name} cannot enter a wheelhouse: {error}") from None
    if any(tag.platform.startswith("linux_") for tag in tags):
        raise VerifyError(
            f"{name} cannot enter a wheelhouse: it is not repaired (installers would rank linux_* above manylinux)",
            advice="Build it with `wheelmill build`, which repairs it.",
        )


def read_entry(record: Path) -> Entry | None:
    """Read one build record; None where the wheel beside it is missing or has another size."""
    wheel = record.with_name(record.name.removesuffix(RECORD_SUFFIX))
    try:
        values = json.loads(record.read_text("utf-8"))
        size = wheel.stat().st_size
    except (OSError, ValueError):
        return None
    match values:
        case {"drv": str(drv), "sha256": str(sha256), "size": int(recorded)} if recorded == size:
            told = values.get("marks", [])
            return Entry(
                wheel=wheel,
                drv=drv,
                sha256=sha256,
                size=size,
                index=str(values.get("index", "")),
                marks=tuple(str(mark) for mark in told) if isinstance(told, list) else (),
            )
        case _:
            return None


# entering ---------------------------------------------------------------------------------------------


@contextmanager
def staged(
    root: Path, wheel: Path, build_record: Mapping[str, object], log: Path, proof: bytes | None
) -> Iterator[tuple[Path, Entry]]:
    """Lay everything ready in a hidden folder of the same file system, and remove the folder in the end."""
    staging = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=root))
    try:
        for name in ("new", "old"):
            (staging / name).mkdir()
        new = staging / "new"
        copied = take(wheel, new / wheel.name, root=root)
        digest, size = digest_of(copied), copied.stat().st_size
        check_same(wheel, build_record.get("sha256", digest), digest)
        document = {**build_record, "sha256": digest, "size": size, "wheel": wheel.name}
        text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        write(new / (wheel.name + RECORD_SUFFIX), text)
        copy(log, new / (wheel.name + LOG_SUFFIX))
        if proof is not None:
            write(new / (wheel.name + PROOF_SUFFIX), proof.decode())
        # Last and at once: from here on the folder is complete, and `undo` may conclude from what is missing.
        write(staging / "name.part", wheel.name)
        (staging / "name.part").replace(staging / NAME_FILE)
        label = str(build_record.get("index", ""))
        entry = Entry(wheel=root / wheel.name, drv=str(build_record["drv"]), sha256=digest, size=size, index=label)
        yield staging, entry
    except BaseException:
        undo(root, staging)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_same(wheel: Path, expected: object, actual: str) -> None:
    """Refuse a wheel that is not the one its build record speaks of."""
    if expected != actual:
        raise VerifyError(
            f"{wheel} is not the wheel that was verified\n  expected {expected}\n  actual   {actual}",
            advice="Something changed it meanwhile; build again.",
        )


def publish(root: Path, staging: Path, name: str) -> None:
    """Move the files to their places.

    No moment shows a wheel with another's record: an old wheel goes first, the new one comes last. What was there
    is linked into the staging folder beforehand, so that `undo` can bring it back, even after a kill.
    """
    new, old = staging / "new", staging / "old"
    names = parts(name)
    for part in names:
        if (root / part).exists():
            os.link(root / part, old / part)
    sync(old)
    (root / name).unlink(missing_ok=True)
    for part in names:
        if (new / part).exists():
            (new / part).replace(root / part)
        else:  # an older wheel's proof is none of the new one
            (root / part).unlink(missing_ok=True)
    sync(root)


def parts(name: str) -> tuple[str, ...]:
    """Name all that belongs to a wheel, itself last."""
    return (name + RECORD_SUFFIX, name + LOG_SUFFIX, name + PROOF_SUFFIX, name)


def undo(root: Path, staging: Path) -> None:
    """Bring back what `publish` has changed: files no longer in `new` were placed, those in `old` were there."""
    try:
        name = (staging / NAME_FILE).read_text("utf-8")
    except OSError:
        return  # not even staged: nothing was changed
    new, old = staging / "new", staging / "old"
    names = parts(name)
    placed = {part for part in names if not (new / part).exists()}
    if name in placed or (old / name).exists():
        (root / name).unlink(missing_ok=True)
    for part in names:
        if (old / part).exists():
            (old / part).replace(root / part)
        elif part in placed:
            (root / part).unlink(missing_ok=True)


def recover(root: Path) -> None:
    """Undo what a killed run has left half done; the lock is held, so nobody is at work in these folders."""
    for staging in sorted(root.glob(f"{STAGING_PREFIX}*")):
        undo(root, staging)
        shutil.rmtree(staging, ignore_errors=True)


def take(source: Path, target: Path, *, root: Path) -> Path:
    """Take in a wheel: one that was written inside of the wheelhouse for it is linked, others are copied."""
    if root.resolve() in source.resolve().parents:
        os.link(source, target)
        return target
    return copy(source, target)


def copy(source: Path, target: Path) -> Path:
    """Copy a file's bytes; its mode is ours, not the source's or the umask's."""
    shutil.copyfile(source, target)
    target.chmod(0o644)
    sync(target)
    return target


def write(path: Path, text: str) -> None:
    """Write a small file through to the disk."""
    path.write_text(text, "utf-8", newline="\n")
    path.chmod(0o644)
    sync(path)


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the wheelhouse's lock; the kernel frees it with the process."""
    with (root / LOCK_NAME).open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """Make the folder, and turn what the file system says into failures that name it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        yield
    except WheelmillError:
        raise
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskFullError(
                f"no room left on the disk of the wheelhouse {root}",
                advice="Free space (`wheelmill gc`), or name another folder with --wheelhouse DIR.",
            ) from error
        raise EnvironmentUnfitError(
            f"cannot write into the wheelhouse {root}: {error.strerror or error}"
            + (f": {error.filename}" if error.filename else ""),
            advice="Make the folder writable, or name another one with --wheelhouse DIR.",
        ) from error
