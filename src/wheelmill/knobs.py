"""What packages read while they build, as data: which variable counts, in which spelling, with which versions."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ._validate import Table, one_of, string, string_map, strings, table
from .arch import Arch

DATA = "data/knobs.toml"
NONE = "none"
"""The word for a knob that a package does not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Knobs:
    """The variables that one package's build reads, in a range of versions.

    `literal`: the values that count, spelled so. `arch_variable`, `threads`: empty where the package has none.
    """

    project: str
    versions: SpecifierSet
    reads: tuple[str, ...]
    literal: Mapping[str, tuple[str, ...]]
    sources: tuple[str, ...]
    arch_variable: str
    arch_spelling: str
    arch_separator: str
    jobs: str
    threads: str

    @property
    def variables(self) -> tuple[str, ...]:
        """Every variable that is known, sorted."""
        own = (self.arch_variable, self.threads)
        return tuple(sorted({*self.reads, *self.literal, *self.sources, *(name for name in own if name)}))

    def spell(self, archs: tuple[Arch, ...]) -> str:
        """Write architectures as the package wants them."""
        digits = self.arch_spelling == "digits"
        return self.arch_separator.join(arch.digits if digits else str(arch) for arch in archs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Together:
    """A release that needs certain versions of others; `unless`: text of a patch that lifts the rule."""

    project: str
    versions: SpecifierSet
    needs: Mapping[str, SpecifierSet]
    because: str
    unless: str
    advice: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Knowledge:
    """All that the data file says."""

    packages: tuple[Knobs, ...]
    together: tuple[Together, ...]
    nvcc_first: Mapping[str, str]
    nvcc_last: Mapping[str, str]

    def of(self, project: str, version: str) -> Knobs | None:
        """Give what is known of a release, if it is known."""
        return next((each for each in self.named(project) if each.versions.contains(version, prereleases=True)), None)

    def named(self, project: str) -> tuple[Knobs, ...]:
        """Give what is known of a project, whatever the version."""
        return tuple(each for each in self.packages if each.project == project)

    def readers(self, variable: str) -> tuple[Knobs, ...]:
        """Give the releases that read a variable."""
        return tuple(each for each in self.packages if variable in each.variables)


@cache
def knowledge() -> Knowledge:
    """Read the data file that comes with the package."""
    text = (files(__package__) / DATA).read_text(encoding="utf-8")
    return parse_knowledge(tomllib.loads(text), file=DATA)


def parse_knowledge(values: Mapping[str, object], *, file: str) -> Knowledge:
    """Read the data; RecipeError names what cannot be meant."""
    with Table(values, file=file) as root, root.subtable("nvcc") as nvcc:
        return Knowledge(
            packages=tuple(map(parse_knobs, tables(root, "package"))),
            together=tuple(map(parse_together, tables(root, "together"))),
            nvcc_first=nvcc.optional("first", string_map, {}),
            nvcc_last=nvcc.optional("last", string_map, {}),
        )


def tables(root: Table, key: str) -> tuple[Table, ...]:
    """Read an array of tables."""
    return root.optional(
        key,
        lambda field: tuple(
            Table(each, file=root.file, path=f"{key}[{number}]") for number, each in enumerate(field.of(list))
        ),
        (),
    )


def parse_knobs(entry: Table) -> Knobs:
    """Read one [[package]]."""
    with entry, entry.subtable("archs") as archs, entry.subtable("literal") as literal:
        variable = archs.required("variable", string)
        threads = entry.required("threads", string)
        return Knobs(
            project=entry.required("project", string),
            versions=SpecifierSet(entry.required("versions", string)),
            reads=entry.optional("reads", strings, ()),
            literal={name: literal.required(name, strings) for name in literal.values},
            sources=entry.optional("sources", strings, ()),
            arch_variable="" if variable == NONE else variable,
            arch_spelling=archs.optional("spelling", one_of("digits", "dotted"), "dotted"),
            arch_separator=archs.optional("separator", string, ";"),
            jobs=entry.required("jobs", one_of("multiply", "divide")),
            threads="" if threads == NONE else threads,
        )


def parse_together(entry: Table) -> Together:
    """Read one [[together]]."""
    with entry:
        needs = entry.required("needs", table)
        return Together(
            project=entry.required("project", string),
            versions=SpecifierSet(entry.required("versions", string)),
            needs={name: SpecifierSet(needs.required(name, string)) for name in needs.values},
            because=entry.required("because", string),
            unless=entry.optional("unless", string, ""),
            advice=entry.required("advice", string),
        )


# jobs and threads ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Effective:
    """What a package makes of MAX_JOBS and NVCC_THREADS: compiles at once, threads of each, threads in all."""

    jobs: int
    threads_per_job: int

    @property
    def threads(self) -> int:
        """Compiler threads at once."""
        return self.jobs * self.threads_per_job

    def to_json(self) -> dict[str, int]:
        """Give it as JSON fields."""
        return {"jobs": self.jobs, "threads_per_job": self.threads_per_job, "threads": self.threads}


def effective(project: str, version: str, *, max_jobs: int, nvcc_threads: int) -> Effective:
    """Say what the package's own build makes of the two variables.

    flash-attn starts MAX_JOBS compilers of NVCC_THREADS threads each; vLLM takes MAX_JOBS for the threads in all and
    divides. A package that is not known is taken to multiply, as torch's own build extension does.
    """
    known = knowledge().of(project, version)
    if known is not None and known.jobs == "divide":
        return Effective(jobs=max(1, max_jobs // nvcc_threads), threads_per_job=nvcc_threads)
    return Effective(jobs=max_jobs, threads_per_job=nvcc_threads)


# architectures ---------------------------------------------------------------------------------------


def makes(cuda: str, arch: Arch) -> str:
    """Say why the nvcc of a CUDA release makes no code for an architecture; empty where it does, or is not known."""
    known, number = knowledge(), f"{arch.major}.{arch.minor}"
    first = max((known.nvcc_first.get(key, "0") for key in (number, arch.suffix or number)), key=Version)
    if Version(cuda) < Version(first):
        return f"{arch.sm} needs nvcc {first} or newer"
    last = known.nvcc_last.get(number)
    if last is not None and Version(cuda) > Version(last):
        return f"{arch.sm} was made by nvcc {last} and older"
    return ""
