"""Plans: what would be built, from what, with how many jobs and why; printable before anything starts."""

from collections.abc import Mapping
from dataclasses import dataclass

from .arch import served
from .derivation import Derivation
from .knobs import Effective, effective
from .recipe import Resources
from .resources import Grant, gib, ideal
from .stack import Prebuilt, Stack


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
    grant: Grant
    toolkit: ToolkitSummary | None
    nvcc_threads: int | None = None
    """The user's NVCC_THREADS: it does not reach the build, but the plan says what it would have meant."""

    @property
    def units(self) -> int:
        """Translation units of the release or its variant."""
        return self.resources.units

    @property
    def resources(self) -> Resources:
        """The figures of the variant where one is chosen."""
        return (self.derivation.variant or self.derivation.release).resources

    @property
    def ideal_seconds(self) -> int:
        """What no schedule can beat, by the measured CPU seconds; 0 without such a figure or a job.

        No recipe says what its longest unit takes. Where there are as many units as jobs that is at least their mean,
        which CPU seconds over jobs covers.
        """
        return int(ideal(longest=0.0, cpu_seconds=self.resources.cpu_seconds, jobs=self.grant.granted))

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
            "peak_memory_bytes": self.grant.granted * self.grant.memory_per_compile,
            "ideal_seconds": self.ideal_seconds,
            "advisories": list(self.advisories),
        }

    def paragraph(self) -> str:
        """Say in a few lines what will happen and why."""
        drv = self.derivation
        gpus, _ = served(drv.archs)
        toolkit = f"CUDA {self.toolkit.cuda} ({self.toolkit.provider})" if self.toolkit else "no toolkit here"
        code, unit = ", ".join(arch.sm for arch in drv.archs), gib(self.grant.memory_per_compile)
        lines = [
            f"{drv.name} {drv.full_version}  [{self.state}]  drv {drv.drv[:12]}",
            f"  for {code} ({', '.join(gpus[:4]) or 'no GPU in the table'}), {toolkit}",
            f"  {self.units} translation units of up to {unit}; jobs: {self.grant.reason}",
        ]
        if own := self.by_itself:
            lines.append(
                f"  {drv.name} by itself would make {own.jobs} compiles of {own.threads_per_job} threads of "
                f"MAX_JOBS={self.grant.requested} NVCC_THREADS={self.nvcc_threads}, {own.threads} in all; "
                f"here it runs {self.effective.jobs} of {self.effective.threads_per_job}"
            )
        if self.ideal_seconds and self.state == "build":
            lines.append(f"  ideal time {spell_seconds(self.ideal_seconds)} on {self.grant.granted} at once")
        lines += [f"  note: {text}" for text in self.advisories]
        return "\n".join(lines)


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
