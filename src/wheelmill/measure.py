"""Measure: what the compiles of a package take here, for the table of peaks that its recipe ships.

The package's own build runs as always, but without an object cache, in a tree of its own that is thrown away; units
that nobody asked for get empty objects. `compile.jsonl` and the learned table say what the rest took.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from .build import BuiltWheel, Equipment, Workplace, build_wheel, locked, retire
from .derivation import Derivation
from .errors import BuildFailedError, NothingSelectedError
from .peaks import Sample, from_record, read_peaks, to_line
from .pipeline import Fitted, Tools, equip, fetch_input, fit, patched_tree, seated
from .records import Begun, CompileRecord
from .resources import capacity


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What the chosen units took. Seconds and bytes; `capacity` is what they could share, after the reserve."""

    derivation: Derivation
    units: tuple[CompileRecord, ...]
    samples: tuple[Sample, ...]
    seconds: float
    """From the first compile that ran to the last that ended."""
    cores: int
    capacity_bytes: int
    backend: str

    @property
    def cpu_seconds(self) -> float:
        """The sum over the units."""
        return sum(unit.cpu_s for unit in self.units)

    @property
    def ideal_seconds(self) -> float:
        """What no schedule that holds a unit's peak for its whole time can beat, by this run's own CPU seconds."""
        by_memory = sum(unit.cpu_s * unit.memory for unit in self.units) / self.capacity_bytes
        return max(self.cpu_seconds / self.cores, by_memory, *(unit.cpu_s for unit in self.units))

    def to_json(self) -> dict[str, object]:
        """Give the fields of `measure --json`."""
        return {
            "name": self.derivation.name,
            "version": self.derivation.full_version,
            "drv": self.derivation.drv,
            "cores": self.cores,
            "capacity_bytes": self.capacity_bytes,
            "measured_by": self.backend,
            "seconds": round(self.seconds, 1),
            "cpu_seconds": round(self.cpu_seconds, 1),
            "ideal_seconds": round(self.ideal_seconds, 1),
            "oom_kills": sum(unit.oom_kills for unit in self.units),
            "pressure_kills": sum(unit.pressure_kills for unit in self.units),
            "units": [unit_json(unit) for unit in self.units],
        }


def unit_json(unit: CompileRecord) -> dict[str, object]:
    """Give one unit's line of `measure --json`."""
    return {
        "unit": unit.source or unit.output,
        "archs": list(unit.archs_used),
        "started_s": unit.started_s,
        "waited_s": unit.waited_s,
        "wall_s": unit.wall_s,
        "cpu_s": unit.cpu_s,
        "peak_bytes": unit.memory,
        "settled_at": unit.settled_at,
        "tail_bytes": unit.tail_bytes,
        "reserved_bytes": unit.reserved_bytes,
        "attempt": unit.attempt,
        "pressure_kills": unit.pressure_kills,
        "oom_kills": unit.oom_kills,
    }


def measure(derivation: Derivation, globs: Sequence[str], tools: Tools) -> Measurement:
    """Compile the units whose source matches one of the globs (all, without any), and say what each took.

    Raises NothingSelectedError when no unit matched, and whatever a build raises.
    """
    fitted = fit(derivation, tools)
    directories = tools.runtime.directories
    directories.builds.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix=f"measure-{derivation.drv[:12]}-", dir=directories.builds))
    place, limits = Workplace(root=root), tools.limits()
    with locked(root):  # gc takes the rest
        try:
            for folder in (place.out, place.tmp, place.home, place.box):
                folder.mkdir()
            built, equipment = compiled_units(derivation, fitted, place, globs, tools)
        except BuildFailedError:
            tools.report.note(f"left for a look, until `wheelmill gc`: {root}")
            raise
        except BaseException:
            retire(place)
            raise
        retire(place)
    units = tuple(sorted((each for each in built.records if each.cache != "link"), key=lambda each: each.source))
    if not units:
        raise NothingSelectedError(
            f"no unit of {derivation.name} matches {', '.join(globs)}",
            advice=f"Look at the names: `wheelmill measure {derivation.name}` without --unit compiles them all.",
        )
    # As JSON has it: what a table's line is made of, now as later from a file.
    lines = [json.loads(json.dumps(asdict(each))) for each in units]
    samples = [from_record(line, equipment.foresight.tools) for line in lines]
    return Measurement(
        derivation=derivation,
        units=units,
        samples=tuple(sample for sample in samples if sample is not None),
        seconds=max(each.started_s + each.wall_s for each in units) - min(each.started_s for each in units),
        cores=min(max(1, int(limits.cpus)), tools.bounds.max_jobs or len(units)),
        capacity_bytes=capacity(min(limits.memory_bytes, limits.available_bytes)),
        backend=equipment.means.backend.name,
    )


def compiled_units(
    derivation: Derivation, fitted: Fitted, place: Workplace, globs: Sequence[str], tools: Tools
) -> tuple[BuiltWheel, Equipment]:
    """Run the package's build for the units that were asked for."""
    with seated(derivation, place, tools) as seat:
        tree = patched_tree(fetch_input(derivation, seat), derivation, place, seat)
        equipment = replace(equip(derivation, fitted, place, seat), cache=None)
        tools.report.step(f"measure, log in {place.log}")
        skip = unwanted(globs) if globs else None
        built = build_wheel(tree, place, equipment, derivation, runner=tools.runner, report=tools.report, skip=skip)
    return built, equipment


def unwanted(globs: Sequence[str]) -> Callable[[Begun], bool]:
    """Say which compiles get an empty object: links, and units that no glob names by path or by file name."""

    def skip(begun: Begun) -> bool:
        names = (begun.source, begun.source.rpartition("/")[2])
        return begun.kind == "link" or not any(fnmatchcase(name, glob) for name in names for glob in globs)

    return skip


def refresh(path: Path, samples: Iterable[Sample]) -> int:
    """Write a table with these samples in place of those of the same units; give how many units it has now."""
    kept = {sample.of: sample for sample in read_peaks(path)} | {sample.of: sample for sample in samples}
    lines = sorted(to_line(sample) for sample in kept.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    fresh.replace(path)
    return len(lines)
