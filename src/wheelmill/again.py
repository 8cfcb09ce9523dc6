"""Again: the same derivation built once more, in folders of its own with an empty object cache, and compared."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from .build import occupied
from .compare import Comparison, compare
from .derivation import Derivation
from .errors import EnvironmentUnfitError, NotReproducibleError
from .index import write_index
from .packing import zlib_found, zlib_problem
from .pipeline import Built, Fitted, Tools, fit, make, present, realise, seated
from .wheelhouse import LOG_SUFFIX, PROOF_SUFFIX, RECORD_SUFFIX, Wheelhouse

SHOWN_DIFFERENCES = 12


def in_rounds(derivation: Derivation, tools: Tools, house: Wheelhouse, *, rounds: int) -> Built:
    """Build so many times from nothing, and enter the wheel where every round gave the same bytes.

    Raises NotReproducibleError with the differences else, and whatever a build raises.
    """
    require_reference_zlib()
    if (there := present(derivation, house)) is not None:
        more_rounds(there.wheel, derivation, tools, range(1, rounds + 1))
        return there
    house.check_free(derivation.wheel_name, derivation.drv)
    with alone(derivation, tools, "round-1") as separate:
        folder = separate.runtime.directories.builds.parent / "wheelhouse"
        built = realise(derivation, separate, Wheelhouse(root=folder))
        more_rounds(built.wheel, derivation, tools, range(2, rounds + 1))
        log = built.wheel.with_name(built.wheel.name + LOG_SUFFIX)
        record = json.loads(built.wheel.with_name(built.wheel.name + RECORD_SUFFIX).read_text("utf-8"))
        proof = built.wheel.with_name(built.wheel.name + PROOF_SUFFIX).read_bytes()
        entry = house.enter(built.wheel, build_record={**record, "rounds": rounds}, log=log, proof=proof)
    label = derivation.index_label
    folder = write_index(house.root, label, [each.wheel for each in house.entries() if each.index == label])
    tools.report.step(f"{rounds} rounds gave the same bytes: {entry.wheel.name}")
    pin = f"{derivation.name}=={derivation.full_version}"
    tools.report.note(f'pip install --no-deps --only-binary :all: --index-url {folder.as_uri()} "{pin}"')
    return replace(built, wheel=entry.wheel)


def more_rounds(first: Path, derivation: Derivation, tools: Tools, rounds: range) -> None:
    """Build again as often as asked; NotReproducibleError with the differences where the bytes are others."""
    for number in rounds:
        tools.report.step(f"round {number}: the same from nothing")
        found, kept = build_again(first, derivation, fit(derivation, tools), tools, label=f"round-{number}")
        if found.grade != "identical":
            shown = [f"  {each.line()}" for each in found.differences[:SHOWN_DIFFERENCES]]
            head = f"round {number} of {derivation.name} gave another wheel ({found.grade}): {kept}"
            raise NotReproducibleError("\n".join([head, *shown]))
        tools.report.note(f"round {number} gave the same bytes")


def build_again(
    first: Path, derivation: Derivation, fitted: Fitted, tools: Tools, *, label: str
) -> tuple[Comparison, Path | None]:
    """Build in folders of its own and compare; the second wheel is kept where it is another one."""
    with (
        alone(derivation, tools, label) as separate,
        occupied(derivation, separate.runtime.directories) as place,
        seated(derivation, place, separate) as here,
    ):
        made = make(derivation, fitted, place, here)
        found = compare(first, made.stamped.path)
        if found.grade == "identical":
            return found, None
        kept = tools.runtime.directories.rebuilds / f"{derivation.drv[:12]}-{label}" / made.stamped.path.name
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made.stamped.path, kept)
    return found, kept


@contextmanager
def alone(derivation: Derivation, tools: Tools, label: str) -> Iterator[Tools]:
    """Give a build folders that it shares with none: no tree of an earlier start, an empty object cache.

    They are removed when the block ends well; after a failure the log is in them. Their lock tells gc that they are
    in use.
    """
    folder = tools.runtime.directories.rebuilds / f"{derivation.drv[:12]}-{label}-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    directories = replace(tools.runtime.directories, fresh=folder)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield replace(tools, runtime=replace(tools.runtime, directories=directories))
    shutil.rmtree(folder, ignore_errors=True)


def require_reference_zlib() -> None:
    """Raise EnvironmentUnfitError where this Python packs to other bytes than the rest of the world."""
    if problem := zlib_problem(zlib_found()):
        raise EnvironmentUnfitError(
            problem, advice="Run wheelmill by a Python that is linked with zlib itself, such as Debian's or pyenv's."
        )
