"""Recipes: what a package is, where it comes from and how its build is steered; text in, values out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ._validate import (
    Field,
    Table,
    integer,
    one_of,
    relative_path,
    relative_paths,
    sha256,
    size,
    string,
    string_map,
    strings,
    table,
)
from .arch import Arch

GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexSource:
    """A source distribution on the configured package index, pinned by content."""

    project: str
    file: str
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeSource:
    """A directory beside the recipe (for projects kept in the same repository), pinned by the digest of its tree."""

    path: str
    sha256: str


Source = IndexSource | TreeSource


@dataclass(frozen=True, kw_only=True, slots=True)
class LicenseFile:
    """A licence text that must travel in the wheel: a path inside the patched source tree."""

    path: str
    spdx: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Vendored:
    """Somebody else's code inside the source tree, from which compiled code is made: named in the wheel's SBOM."""

    path: str
    name: str
    version: str
    spdx: str
    home: str

    @property
    def inputs(self) -> dict[str, str]:
        """What is said of it."""
        return {"name": self.name, "version": self.version, "spdx": self.spdx, "home": self.home}


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchControl:
    """How the package is told which GPU architectures to build.

    `via`: `variable` sets `variable` to the archs in `spelling`, joined by `separator`; `torch` sets
    TORCH_CUDA_ARCH_LIST; `launcher` means that the package has no knob and the compiler launcher holds it.
    `supports`: the archs that the package's own logic knows; empty means any.
    """

    via: str
    variable: str
    spelling: str
    separator: str
    supports: tuple[str, ...]

    def environment(self, archs: tuple[Arch, ...]) -> dict[str, str]:
        """Give the variables that ask the package for these archs."""
        match self.via:
            case "variable":
                spelled = [arch.digits if self.spelling == "digits" else arch.dotted for arch in archs]
                return {self.variable: self.separator.join(spelled)}
            case "torch":
                listed = [arch.dotted + ("+PTX" if arch.ptx else "") for arch in archs]
                return {"TORCH_CUDA_ARCH_LIST": ";".join(listed)}
            case _:
                return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """What one compile takes, and how many there are; no part of the identity."""

    memory_per_compile: int
    units: int
    cpu_seconds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CodePolicy:
    """Which device code one extension must have.

    `rule`: `exactly` the archs, `at-least` these beside others, `ptx` where PTX that the driver compiles will do, or
    `none` at all. `archs`: empty means those asked for. `kernels`: `every` one for each of the archs, or `any`, where
    the package has kernels of its own for some GPUs.
    """

    rule: str = "exactly"
    archs: tuple[Arch, ...] = ()
    kernels: str = "every"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checks:
    """What verify demands of the wheel beyond the general gate."""

    imports: tuple[str, ...]
    extensions: tuple[str, ...]
    top_level: tuple[str, ...]
    probes: tuple[str, ...]
    """Programs beside the recipes, run with the wheel installed; one that does not exit with 0 is a finding."""
    absent: tuple[str, ...] = ()
    """Files and folders that must not be in the wheel."""
    code: Mapping[str, CodePolicy] = field(default_factory=dict)
    """By extension; the others have exactly what was asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expects:
    """What must be seen to reach the compilers; empty fields demand nothing, and none is part of the identity.

    `macros`: `NAME` or `NAME=VALUE`, defined in every C++ and CUDA unit. `standard`, `optimisation`: what counts there.
    """

    macros: tuple[str, ...] = ()
    standard: str = ""
    optimisation: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A declared, smaller or different product of the same release; its label enters the local version."""

    name: str
    summary: str
    patches: tuple[str, ...]
    environment: Mapping[str, str]
    resources: Resources
    probes: tuple[str, ...]
    advisories: tuple[str, ...]
    expects: Expects = Expects()

    @property
    def label(self) -> str:
        """The variant as segments of a local version (PEP 440 knows only letters, digits and dots)."""
        return self.name.replace("-", ".").replace("_", ".")


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """One version of a package, as the recipe pins it."""

    version: str
    revision: int
    source: Source
    source_date_epoch: int
    must_exist: tuple[str, ...]
    patches: tuple[str, ...]
    build_requires: tuple[str, ...]
    arch: ArchControl
    environment: Mapping[str, str]
    local_version_variable: str
    nvcc_threads: int
    resources: Resources
    checks: Checks
    licenses: tuple[LicenseFile, ...]
    advisories: tuple[str, ...]
    variants: Mapping[str, Variant] = field(default_factory=dict)
    expects: Expects = Expects()
    vendored: tuple[Vendored, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A package and its releases."""

    name: str
    file: str
    summary: str
    home: str
    releases: Mapping[str, Release]


def parse_recipe(values: Mapping[str, object], *, file: str) -> Recipe:
    """Read one recipe; RecipeError names file and key path of whatever cannot be meant."""
    with Table(values, file=file) as root:
        name = root.required("name", project_name)
        versions = root.subtables("version")
        if not versions:
            raise root.error("version", 'missing: a recipe needs at least one [version."X.Y.Z"] table')
        return Recipe(
            name=name,
            file=file,
            summary=root.required("summary", string),
            home=root.required("home", string),
            releases={version: parse_release(version, table) for version, table in versions.items()},
        )


def parse_release(version: str, table: Table) -> Release:
    """Read one [version."X"] table."""
    try:
        Version(version)
    except InvalidVersion:
        raise table.error("", f"{version!r} is not a version (PEP 440)") from None
    with table:
        resources = parse_resources(table.subtable("resources"), defaults=None)
        expects = parse_expects(table.subtable("expects"), defaults=Expects())
        return Release(
            version=version,
            revision=table.optional("revision", positive, 1),
            source=parse_source(table.subtable("source")),
            source_date_epoch=table.required("source-date-epoch", integer),
            must_exist=table.optional("must-exist", relative_paths, ()),
            patches=table.optional("patches", relative_paths, ()),
            build_requires=table.required("build-requires", requirements),
            arch=parse_arch_control(table.subtable("arch")),
            environment=table.optional("environment", environment, {}),
            local_version_variable=table.optional("local-version-variable", string, ""),
            nvcc_threads=table.optional("nvcc-threads", positive, 1),
            resources=resources,
            checks=parse_checks(table.subtable("checks")),
            licenses=tuple(parse_license(entry, path) for path, entry in table.subtables("licenses").items()),
            advisories=table.optional("advisories", strings, ()),
            variants={
                name: parse_variant(name, entry, resources, expects)
                for name, entry in table.subtables("variant").items()
            },
            expects=expects,
            vendored=tuple(parse_vendored(entry, path) for path, entry in table.subtables("vendored").items()),
        )


def parse_source(table: Table) -> Source:
    """Read where the code comes from: a file on the package index, or a directory beside the recipe."""
    with table:
        digest = table.required("sha256", sha256)
        if table.has("path"):
            return TreeSource(path=table.required("path", string), sha256=digest)
        return IndexSource(
            project=table.required("project", project_name),
            file=table.required("file", relative_path),
            sha256=digest,
        )


def parse_arch_control(table: Table) -> ArchControl:
    """Read how the package is told its GPU architectures."""
    with table:
        via = table.required("via", one_of("variable", "torch", "launcher"))
        variable = table.required("variable", string) if via == "variable" else ""
        return ArchControl(
            via=via,
            variable=variable,
            spelling=table.optional("spelling", one_of("digits", "dotted"), "digits"),
            separator=table.optional("separator", string, ";"),
            supports=table.optional("supports", arch_names, ()),
        )


def parse_resources(table: Table, *, defaults: Resources | None) -> Resources:
    """Read what one compile takes; a variant inherits what it does not say."""
    base = defaults or Resources(memory_per_compile=5 * GIB, units=1, cpu_seconds=0)
    with table:
        return Resources(
            memory_per_compile=table.optional("memory-per-compile", size, base.memory_per_compile),
            units=table.optional("units", positive, base.units),
            cpu_seconds=table.optional("cpu-seconds", integer, base.cpu_seconds),
        )


def parse_checks(table: Table) -> Checks:
    """Read what verify demands of the wheel."""
    with table:
        return Checks(
            imports=table.required("imports", strings),
            extensions=table.optional("extensions", strings, ()),
            top_level=table.optional("top-level", strings, ()),
            probes=table.optional("probes", relative_paths, ()),
            absent=table.optional("absent", relative_paths, ()),
            code={name: parse_code_policy(entry) for name, entry in table.subtables("code").items()},
        )


def parse_code_policy(table: Table) -> CodePolicy:
    """Read which device code one extension must have."""
    with table:
        return CodePolicy(
            rule=table.optional("rule", one_of("exactly", "at-least", "ptx", "none"), "exactly"),
            archs=table.optional("archs", archs, ()),
            kernels=table.optional("kernels", one_of("every", "any"), "every"),
        )


def parse_license(table: Table, path: str) -> LicenseFile:
    """Read one licence text that must travel in the wheel."""
    with table:
        return LicenseFile(path=path, spdx=table.required("spdx", string))


def parse_vendored(table: Table, path: str) -> Vendored:
    """Read whose code lies in a folder of the source tree."""
    with table:
        return Vendored(
            path=path,
            name=table.required("name", string),
            version=table.required("version", string),
            spdx=table.required("spdx", string),
            home=table.required("home", string),
        )


def parse_expects(table: Table, *, defaults: Expects) -> Expects:
    """Read what must reach the compilers; a variant adds macros and inherits the rest."""
    with table:
        added: tuple[str, ...] = table.optional("macros", macros, ())
        return Expects(
            macros=defaults.macros + added,
            standard=table.optional("standard", string, defaults.standard),
            optimisation=table.optional("optimisation", string, defaults.optimisation),
        )


def macros(field: Field) -> tuple[str, ...]:
    """Read names of macros, with a value or without."""
    for text in strings(field):
        if not text.partition("=")[0].isidentifier():
            raise field.error(f"{text!r} is no macro; write NAME or NAME=VALUE, without -D")
    return strings(field)


def parse_variant(name: str, table: Table, resources: Resources, expects: Expects) -> Variant:
    """Read one declared variant."""
    with table:
        return Variant(
            name=name,
            summary=table.required("summary", string),
            patches=table.optional("patches", relative_paths, ()),
            environment=table.optional("environment", environment, {}),
            resources=parse_resources(table.subtable("resources"), defaults=resources),
            probes=table.optional("probes", relative_paths, ()),
            advisories=table.optional("advisories", strings, ()),
            expects=parse_expects(table.subtable("expects"), defaults=expects),
        )


def project_name(field: Field) -> str:
    """Read a project name in its normalised form."""
    value = field.of(str)
    if canonicalize_name(value) != value:
        raise field.error(f"must be a normalised project name, found {value!r}; write {canonicalize_name(value)!r}")
    return value


def positive(field: Field) -> int:
    """Read an integer of at least one."""
    value = integer(field)
    if value < 1:
        raise field.error(f"must be at least 1, found {value}")
    return value


def requirements(field: Field) -> tuple[str, ...]:
    """Read names of build requirements; their versions are the stack's lock's business."""
    for text in strings(field):
        try:
            parsed = Requirement(text)
        except InvalidRequirement as error:
            raise field.error(f"{text!r} is not a requirement: {error}") from None
        if parsed.url or parsed.marker:
            raise field.error(f"{text!r}: only names and version ranges; files are pinned by the stack's lock")
    return strings(field)


def archs(field: Field) -> tuple[Arch, ...]:
    """Read a list of GPU architectures."""
    try:
        return tuple(Arch.parse(text) for text in strings(field))
    except ValueError as error:
        raise field.error(str(error)) from None


def arch_names(field: Field) -> tuple[str, ...]:
    """Read a list of GPU architectures, as `10.0`."""
    return tuple(arch.dotted for arch in archs(field))


RESERVED_VARIABLES = {
    "MAX_JOBS": "jobs are the user's and the governor's (--max-jobs)",
    "NVCC_THREADS": "write nvcc-threads",
    "CUDA_HOME": "the toolkit is the stack's (--cuda-home)",
    "CUDA_PATH": "the toolkit is the stack's (--cuda-home)",
    "TORCH_CUDA_ARCH_LIST": 'write arch = { via = "torch" }',
    "SOURCE_DATE_EPOCH": "write source-date-epoch",
    "NVCC_APPEND_FLAGS": "it is not part of an object cache's key; patch the flags in",
    "NVCC_PREPEND_FLAGS": "it is not part of an object cache's key; patch the flags in",
    "PATH": "programs come from the build environment",
}


def environment(field: Field) -> dict[str, str]:
    """Read build environment values; what wheelmill itself sets, and a relative path, is refused here.

    A path of a source (`VLLM_CUTLASS_SRC_DIR = "../cutlass"`) would be read from wherever the backend stands.
    """
    values = string_map(field)
    for name, value in values.items():
        if name in RESERVED_VARIABLES:
            raise table(field).error(name, f"is set by wheelmill: {RESERVED_VARIABLES[name]}")
        if name.endswith("_SRC_DIR") and not value.startswith("/"):
            raise table(field).error(name, f"{value!r} is a relative path, which means another folder in every build")
    return values
