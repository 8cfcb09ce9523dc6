"""Plans: what would be built, from what, with how many jobs and why; printable before anything starts.

How many, and how long, is answered by the governor's own admission on a simulated machine.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .arch import needs, served, spell_gpus
from .derivation import Derivation
from .errors import ResourcesError
from .knobs import Effective, effective
from .limits import Limits
from .peaks import LINK, Peaks, Prediction, Unit
from .recipe import Resources
from .resources import PROCESSES_PER_COMPILE, Grant, capacity, gib
from .simulation import Simulated, SimUnit, simulate
from .stack import Prebuilt, Stack

Source = Literal["measured", "partly", "nearby", "recipe"]
"""Where a forecast's figures come from: measured with this compiler; measured for some units, the recipe's estimate for
the rest; measured with another compiler or for other architectures; the recipe's estimate."""
NEAR_EQUAL = 0.999


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Whose units a forecast is of: codes like `sm_100`, sorted; nvcc's --threads; its version, empty where unknown."""

    archs: tuple[str, ...]
    threads: int
    nvcc: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """How a build will go on one machine. Bytes and seconds; no seconds where no figure is known."""

    grant: Grant
    units: int
    cpus: int
    available: int
    smallest: int
    """The smallest and the largest peak of a unit."""
    largest: int
    source: Source
    nvcc: str
    ideal_seconds: float
    expected_seconds: float
    peak_memory_bytes: int
    most_at_once: int

    @property
    def estimated(self) -> bool:
        """Say whether any figure is of another compiler, another architecture or none."""
        return self.source != "measured"

    @property
    def paragraph(self) -> str:
        """Say in a few sentences what will run at once and why, and how long it takes."""
        said = (
            f"{self.units} translation units on {counted(self.cpus, 'core')} and {gib(self.available)} of free memory"
        )
        peaks = gib(self.largest)
        if self.smallest < NEAR_EQUAL * self.largest:
            peaks = f"{self.smallest / 2**30:.1f} to {peaks}"
        reason = self.grant.reason
        asked = self.grant.requested if self.grant.limited_by != "request" else None
        lost = f"nothing is lost by asking for {asked}" if asked else ""
        if self.most_at_once > self.grant.granted > 0:
            later = f"; up to {self.most_at_once} as peaks pass" + (f", so {lost}" if lost else "")
        else:
            later = f"; {lost}" if lost and self.grant.granted else ""
        sentences = [
            f"{said}; a unit peaks at {peaks} ({self.spell_source()}).",
            f"{reason[:1].upper()}{reason[1:]}{later}.",
        ]
        if self.expected_seconds >= 1 and self.grant.granted:
            ideal, expected = spell_seconds(self.ideal_seconds), spell_seconds(self.expected_seconds)
            # memory is given back as peaks pass, which the ideal of one peak per unit does not know
            faster = f"Expected {expected}, where {ideal} is the ideal if every unit kept its peak to its end."
            slower = f"Ideal {ideal}, expected {expected}."
            sentences.append(faster if self.expected_seconds < self.ideal_seconds - 0.5 else slower)
        return " ".join(sentences)

    def spell_source(self) -> str:
        """Say where the figures come from."""
        match self.source:
            case "measured":
                return f"measured with nvcc {self.nvcc}"
            case "partly":
                return "measured for some, the recipe's estimate for the rest"
            case "nearby":
                return "estimated from what other compilers or architectures took"
            case _:
                return "the recipe's estimate"


def known_units(peaks: Peaks, wanted: Wanted) -> tuple[Prediction, ...]:
    """Predict every unit of a table, each once, whatever compilers and architectures it was measured with."""
    tool, latest = f"nvcc {wanted.nvcc}", dict[str, tuple[int, Unit]]()
    for key in peaks:
        fit = (key.archs == wanted.archs) + (key.tool == tool) + (key.threads == wanted.threads)
        if key.tool != LINK and fit >= latest.get(key.unit, (0, key))[0]:
            latest[key.unit] = (fit, key)
    return tuple(
        peaks.predict(
            Unit(unit=name, archs=wanted.archs, threads=wanted.threads, tool=tool, flags=key.flags)
            if key.archs
            else key
        )
        for name, (_, key) in sorted(latest.items())
    )


def expected_units(figures: Resources, peaks: Peaks, wanted: Wanted) -> tuple[tuple[Prediction, ...], Source]:
    """Give as many units as the recipe speaks of: those of the table, the rest by the recipe's own figures.

    Of a table with more (two releases of a package), the longest.
    """
    known = known_units(peaks, wanted)
    most = sorted(known, key=lambda each: -each.cpu_seconds)[: figures.units]
    missing = figures.units - len(most)
    rest = max(0.0, figures.cpu_seconds - sum(each.cpu_seconds for each in most)) / max(1, missing)
    memory = figures.memory_per_compile
    unknown = Prediction(peak_bytes=memory, cpu_seconds=rest, basis="recipe", certain_bytes=memory)
    exact = all(each.basis == "measured" for each in most)
    source: Source = "nearby"
    if missing:
        source = "partly" if most else "recipe"
    elif exact:
        source = "measured"
    return (*most, *[unknown] * missing), source


def forecast(
    figures: Resources, peaks: Peaks, wanted: Wanted, *, limits: Limits, requested: int | None = None
) -> Forecast:
    """Say how a build will go; ResourcesError where one unit cannot fit even alone.

    What other programs hold now is waited for, so the hard limit alone refuses.
    """
    predictions, source = expected_units(figures, peaks, wanted)
    certain = max(each.certain_bytes for each in predictions)
    most = capacity(limits.memory_bytes)
    if certain > most:
        raise ResourcesError(
            f"one compile needs {gib(certain)}, and {gib(max(0, most))} may be used "
            f"({gib(limits.memory_bytes)} of memory less a reserve of {gib(limits.memory_bytes - most)})",
            advice="Raise the container's limit or --memory, or build on a larger machine.",
        )
    slots = slots_of(limits, requested)
    cpus, jobs = slots["cores"], min(slots.values())
    units = [simulated_unit(each) for each in predictions]
    run = simulate(units, cpus=cpus, capacity_bytes=capacity(limits.available_bytes), max_jobs=jobs)
    later = run if not run.left else simulate(units, cpus=cpus, capacity_bytes=most, max_jobs=jobs)
    return Forecast(
        grant=granted(predictions, run, limits, requested),
        units=len(units),
        cpus=cpus,
        available=limits.available_bytes,
        smallest=min(each.peak_bytes for each in predictions),
        largest=max(each.peak_bytes for each in predictions),
        source=source,
        nvcc=wanted.nvcc,
        ideal_seconds=later.ideal,
        expected_seconds=later.makespan,
        peak_memory_bytes=later.peak_true_bytes,
        most_at_once=later.most_at_once,
    )


def refused(figures: Resources, limits: Limits, requested: int | None, reason: str) -> Forecast:
    """Describe a build of which not even one compile fits."""
    memory = figures.memory_per_compile
    return Forecast(
        grant=Grant(requested=requested, granted=0, limited_by="memory", reason=reason, memory_per_compile=memory),
        units=figures.units,
        cpus=max(1, int(limits.cpus)),
        available=limits.available_bytes,
        smallest=memory,
        largest=memory,
        source="recipe",
        nvcc="",
        ideal_seconds=0.0,
        expected_seconds=0.0,
        peak_memory_bytes=0,
        most_at_once=0,
    )


def simulated_unit(known: Prediction) -> SimUnit:
    """Take a prediction for the truth; where something is certain, without the margin."""
    peak = known.certain_bytes or known.peak_bytes
    return SimUnit(
        prediction=known,
        cpu_seconds=known.cpu_seconds,
        peak_bytes=min(peak, known.peak_bytes),
        settled_at=known.settled_at,
        tail_bytes=min(peak, known.tail_bytes),
    )


def slots_of(limits: Limits, requested: int | None) -> dict[str, int]:
    """Give what bounds the compiles at once beside memory."""
    slots = {"cores": max(1, int(limits.cpus))}
    if requested is not None:
        slots["request"] = requested
    if limits.pids_free is not None:
        slots["pids"] = max(1, limits.pids_free // PROCESSES_PER_COMPILE)
    return slots


def granted(predictions: Sequence[Prediction], run: Simulated, limits: Limits, requested: int | None) -> Grant:
    """Say how many start at once, and in numbers what bounds them."""
    count, slots = run.granted_at_start, slots_of(limits, requested)
    usable = capacity(limits.available_bytes)
    bound = {"units": len(predictions), **slots}
    limited_by = next((name for name in ("request", "units", "cores", "pids") if bound.get(name) == count), "memory")
    peaks = [each.peak_bytes for each in predictions]
    largest = max(peaks)
    memory = f"{gib(usable)} usable / {gib(largest)} per compile"
    if min(peaks) < NEAR_EQUAL * largest:
        memory = (
            f"their peaks take {gib(run.reserved_at_start)} of the {gib(usable)} that compiles may use "
            f"({gib(limits.available_bytes)} less a reserve of {gib(limits.available_bytes - usable)})"
        )
    if not count:
        memory = f"{gib(usable)} may be used now, and a compile needs {gib(min(peaks))}: it waits for other programs"
    reasons = {
        "request": f"{requested} asked for, and all of them fit",
        "units": f"all {len(predictions)} translation units",
        "cores": counted(slots["cores"], "core"),
        "pids": f"{limits.pids_free} more processes may be started, {PROCESSES_PER_COMPILE} per compile",
        "memory": memory,
    }
    asked = f"{requested} asked for; " if requested and limited_by != "request" else ""
    return Grant(
        requested=requested,
        granted=count,
        limited_by=limited_by,
        reason=f"{asked}{count} at once: {reasons[limited_by]}",
        memory_per_compile=largest,
    )


def counted(number: int, word: str) -> str:
    """Spell a number of things."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolkitSummary:
    """The toolkit that would be used, as JSON shows it."""

    cuda: str
    nvcc: str
    provider: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """One derivation with what is known of its build. `state`: built or build."""

    derivation: Derivation
    state: str
    wheel: str
    forecast: Forecast
    toolkit: ToolkitSummary | None
    nvcc_threads: int | None = None
    """The user's NVCC_THREADS: it does not reach the build, but the plan says what it would have meant."""

    @property
    def grant(self) -> Grant:
        """The compiles that start at once."""
        return self.forecast.grant

    @property
    def units(self) -> int:
        """Translation units of the release or its variant."""
        return self.forecast.units

    @property
    def ideal_seconds(self) -> int:
        """What no schedule can beat that keeps a unit's peak for it all the time; 0 without a figure or a job."""
        return int(self.forecast.ideal_seconds)

    @property
    def effective(self) -> Effective:
        """What the package makes of the jobs and threads that it is given."""
        drv = self.derivation
        threads = drv.release.nvcc_threads
        return effective(drv.name, drv.version, max_jobs=self.grant.granted, nvcc_threads=threads)

    @property
    def by_itself(self) -> Effective | None:
        """What the package alone would make of the MAX_JOBS and NVCC_THREADS asked for, where both are."""
        jobs, threads, drv = self.grant.requested, self.nvcc_threads, self.derivation
        if jobs is None or threads is None:
            return None
        return effective(drv.name, drv.version, max_jobs=jobs, nvcc_threads=threads)

    @property
    def advisories(self) -> tuple[str, ...]:
        """What a user should know of this release and variant."""
        variant = self.derivation.variant
        return (*self.derivation.release.advisories, *(variant.advisories if variant else ()))

    def to_json(self) -> dict[str, object]:
        """Give the fields of `plan --json`."""
        drv = self.derivation
        gpus, not_served = served(drv.archs)
        return {
            "name": drv.name,
            "version": drv.full_version,
            "drv": drv.drv,
            "wheel": self.wheel,
            "state": self.state,
            "archs": [str(arch) for arch in drv.archs],
            "gpus": list(gpus),
            "gpus_not_served": list(not_served),
            "toolkit": None
            if self.toolkit is None
            else {"cuda": self.toolkit.cuda, "nvcc": self.toolkit.nvcc, "provider": self.toolkit.provider},
            "translation_units": self.units,
            "jobs": {
                "requested": self.grant.requested,
                "granted": self.grant.granted,
                "limited_by": self.grant.limited_by,
                "reason": self.grant.reason,
            },
            "effective": {
                **self.effective.to_json(),
                "by_itself": self.by_itself.to_json() if self.by_itself else None,
            },
            "peak_memory_bytes": self.forecast.peak_memory_bytes,
            "ideal_seconds": self.ideal_seconds,
            "expected_seconds": int(self.forecast.expected_seconds),
            "estimated": self.forecast.estimated,
            "advisories": list(self.advisories),
        }

    def paragraph(self) -> str:
        """Say in a few lines what will happen and why."""
        drv = self.derivation
        gpus, others = served(drv.archs)
        toolkit = f"CUDA {self.toolkit.cuda} ({self.toolkit.provider})" if self.toolkit else "no toolkit here"
        code = ", ".join(arch.sm for arch in drv.archs)
        lines = [
            f"{drv.name} {drv.full_version}  [{self.state}]  drv {drv.drv[:12]}",
            f"  for {code} ({', '.join(gpus[:4]) or 'no GPU in the table'}), {toolkit}",
            *gpu_lines(gpus, others),
            *textwrap.wrap(self.forecast.paragraph, 110, initial_indent="  ", subsequent_indent="  "),
        ]
        if own := self.by_itself:
            lines.append(
                f"  {drv.name} by itself would make {own.jobs} compiles of {own.threads_per_job} threads of "
                f"MAX_JOBS={self.grant.requested} NVCC_THREADS={self.nvcc_threads}, {own.threads} in all; "
                f"here it runs {self.effective.jobs} of {self.effective.threads_per_job}"
            )
        lines += [f"  note: {text}" for text in self.advisories]
        return "\n".join(lines)


def gpu_lines(served_ones: Sequence[str], others: Sequence[str]) -> list[str]:
    """Say which GPUs the wheel runs on and, where these are few, on which it does not."""
    text = f"runs on: {spell_gpus(served_ones)} with {needs(served_ones)}"
    if served_ones and others:
        text += f"; does not run on: {spell_gpus(others, each=2)}"
    return textwrap.wrap(text, 110, initial_indent="  ", subsequent_indent="  ") if served_ones else []


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Everything that was selected, and the problems that would stop it here."""

    stack: Stack
    items: tuple[Planned, ...]
    prebuilt: tuple[Prebuilt, ...]
    problems: tuple[Mapping[str, str], ...]

    def to_json(self) -> dict[str, object]:
        """Give the document of `plan --json`."""
        return {
            "schema": 1,
            "stack": self.stack.name,
            "derivations": [
                *(item.to_json() for item in self.items),
                *(prebuilt_json(member, self.stack) for member in self.prebuilt),
            ],
            "problems": [dict(problem) for problem in self.problems],
        }


def prebuilt_json(member: Prebuilt, stack: Stack) -> dict[str, object]:
    """Describe a member taken as published: its file's digest stands for the derivation."""
    return {
        "name": member.name,
        "version": member.version,
        "drv": member.sha256,
        "wheel": member.file,
        "state": "prebuilt",
        "archs": [],
        "gpus": [],
        "gpus_not_served": [],
        "toolkit": {"cuda": stack.cuda, "nvcc": None, "provider": "published"},
        "translation_units": 0,
        "jobs": {"requested": None, "granted": 0, "limited_by": "units", "reason": "taken as published"},
        "effective": {"jobs": 0, "threads_per_job": 0, "threads": 0, "by_itself": None},
        "peak_memory_bytes": 0,
        "ideal_seconds": 0,
        "expected_seconds": 0,
        "estimated": False,
        "advisories": [],
    }


def spell_seconds(seconds: float) -> str:
    """Spell a duration for people: `48 s`, `3 min 20 s`, `2 h 31 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
