"""What can go wrong, by who is to blame: each class owns its exit status and the next step.

Exit status (also in README and docs, held equal by a test): 0 ok, 1 a build failed, 2 usage or recipe,
3 nothing selected, 4 fetch or hash, 5 toolkit or environment, 6 resources, 7 repair, 8 verify,
9 not reproducible, 130 interrupted.
"""

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

EXIT_STATUS: dict[int, str] = {
    0: "ok",
    1: "a build failed",
    2: "usage or recipe",
    3: "nothing selected",
    4: "fetch or hash",
    5: "toolkit or environment",
    6: "resources",
    7: "repair",
    8: "verify",
    9: "not reproducible",
    130: "interrupted",
}


class WheelmillError(Exception):
    """A failure we understand: shown without a traceback, cause first, next step last."""

    exit_status: ClassVar[int] = 1
    kind: str = "unknown"
    """The kind as `diagnose` and `build --json` spell it."""
    default_advice: ClassVar[str] = ""

    def __init__(self, message: str, *, advice: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.advice = self.default_advice if advice is None else advice

    def __str__(self) -> str:
        return self.message


# 1: a build failed -----------------------------------------------------------------------------------


class CommandFailedError(WheelmillError):
    """A program that we ran ended with a status other than zero."""

    def __init__(
        self,
        argv: Sequence[str],
        returncode: int,
        *,
        tail: Sequence[str] = (),
        log: Path | None = None,
        advice: str | None = None,
    ) -> None:
        status = f"was killed by signal {-returncode}" if returncode < 0 else f"ended with status {returncode}"
        lines = [f"{Path(argv[0]).name} {status}: {' '.join(argv)[:400]}", *(f"  | {line}" for line in tail)]
        if log is not None:
            lines.append(f"  log: {log}")
        super().__init__("\n".join(lines), advice=advice)
        self.argv, self.returncode, self.tail, self.log = tuple(argv), returncode, tuple(tail), log


class BuildFailedError(WheelmillError):
    """The package's own build did not end with a wheel."""

    exit_status = 1


class OccupiedError(BuildFailedError):
    """Another process builds this very derivation."""

    def __init__(self, message: str, *, place: Path, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.place = place


class NetworkError(BuildFailedError):
    """The package's own build wanted something from the network, which is cut."""

    kind = "network-at-build"
    default_advice = (
        "Pin what it wants: a Python package in the recipe's `build-requires`, a file by another `source` that holds "
        "it (`must-exist` checks that); or take the download out with a patch (`patches`)."
    )


# 2: usage or recipe ----------------------------------------------------------------------------------


class UsageError(WheelmillError):
    """The command line or a variable of ours is off."""

    exit_status = 2


class RecipeError(WheelmillError):
    """A recipe, stack, toolkit recipe or lock says something that cannot be meant."""

    exit_status = 2

    def __init__(self, problem: str, *, file: str = "", key: str = "", advice: str | None = None) -> None:
        place = ": ".join(part for part in (file, key) if part)
        super().__init__(f"{place}: {problem}" if place else problem, advice=advice)
        self.problem, self.file, self.key = problem, file, key


# 3: nothing selected ---------------------------------------------------------------------------------


class NothingSelectedError(WheelmillError):
    """The names given select nothing."""

    exit_status = 3


# 4: fetch or hash ------------------------------------------------------------------------------------


class FetchError(WheelmillError):
    """A pinned input could not be had."""

    exit_status = 4
    kind = "missing-source"


class HashMismatchError(FetchError):
    """A file is not the one that was pinned."""

    kind = "hash-mismatch"
    default_advice = (
        "If upstream replaced the file, review the difference before you change the pin; "
        "else delete the damaged copy and fetch again."
    )

    def __init__(self, subject: str, *, expected: str, actual: str, place: str = "") -> None:
        where = f" (pinned in {place})" if place else ""
        super().__init__(f"hash mismatch for {subject}{where}\n  expected {expected}\n  actual   {actual}")
        self.subject, self.expected, self.actual = subject, expected, actual


class PatchError(FetchError):
    """A patch is missing or does not apply."""

    kind = "patch-failed"


# 5: toolkit or environment ---------------------------------------------------------------------------


class EnvironmentUnfitError(WheelmillError):
    """This machine lacks something that the build needs."""

    exit_status = 5
    kind = "tool-missing"


class ToolkitError(EnvironmentUnfitError):
    """No CUDA toolkit that fits, or the given one does not."""

    kind = "cuda-mismatch"


class MachineTroubleError(EnvironmentUnfitError):
    """The system refused a file operation: permissions, a read-only file system, a failing disk."""

    kind = "unknown"


# 6: resources ----------------------------------------------------------------------------------------


class ResourcesError(WheelmillError):
    """Memory, disk or processes do not suffice."""

    exit_status = 6
    kind = "out-of-memory"


class DiskFullError(ResourcesError):
    """A disk has no room left."""

    kind = "disk-full"
    default_advice = "Free space (`wheelmill gc`), or put the cache elsewhere with --cache DIR."


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def of_system(error: OSError, *, cache: Path) -> WheelmillError:
    """Give the report of a failure of the system that no stage foresaw; `cache` stands in for a path not named."""
    place = error.filename or cache
    said = f"{place}: {error.strerror or error}"
    if error.errno in NO_ROOM:
        return DiskFullError(f"no room left on the disk of {place}")
    if error.errno in EXHAUSTED:
        return ResourcesError(said, advice="`wheelmill limits` shows what this process may use; try with less at once.")
    if error.errno in REFUSED:
        advice = f"Make {place} writable for this user, or put the cache elsewhere with --cache DIR."
        return MachineTroubleError(said, advice=advice)
    return MachineTroubleError(said, advice="Look at this path and its file system, then run the same command again.")


# 7: repair -------------------------------------------------------------------------------------------


class RepairError(WheelmillError):
    """The built wheel cannot be put right."""

    exit_status = 7


class ForeignLibraryError(RepairError):
    """Compiled code needs a library that nobody the wheel requires will bring."""

    kind = "missing-library"


class AbiMismatchError(RepairError):
    """Compiled code needs another major version of a library than the locked stack has."""

    kind = "abi-mismatch"


class PlatformFloorError(RepairError):
    """Compiled code needs a newer C or C++ library than it may."""

    kind = "glibc-too-old"


# 8: verify -------------------------------------------------------------------------------------------


class VerifyError(WheelmillError):
    """A wheel is not what it claims or what was asked for."""

    exit_status = 8


class MalformedWheelError(VerifyError):
    """A wheel file breaks the format: everything that is off, at once."""

    default_advice = "Delete the file and build it again, or copy it again if it came from elsewhere."

    def __init__(self, path: Path, problems: Sequence[str]) -> None:
        super().__init__("\n".join([f"{path} is not a sound wheel:", *(f"  {text}" for text in problems)]))
        self.path, self.problems = path, tuple(problems)


class ConfigurationError(VerifyError):
    """Something that was asked for did not reach the compilers."""


class DeviceCodeError(VerifyError):
    """Bytes that should be compiled GPU code, or the ELF file around them, cannot be read."""

    default_advice = "The file is damaged or was not made by nvcc: build it or download it again."


# 9: not reproducible ---------------------------------------------------------------------------------


class NotReproducibleError(WheelmillError):
    """A second build of the same inputs gave other bytes."""

    exit_status = 9
    default_advice = (
        "The first difference says what to look for: a path, a date, a name made of a process id, an order. "
        "Take it out with a patch, then raise `revision`."
    )


# 130: interrupted ------------------------------------------------------------------------------------


class InterruptedBuildError(WheelmillError):
    """Somebody stopped the build; what is finished stays."""

    exit_status = 130
    kind = "interrupted"
    default_advice = "Run the same command again: finished objects are reused."
