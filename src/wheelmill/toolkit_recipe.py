"""Toolkit recipes: which CUDA toolkit a stack needs, what makes one complete, and where a pinned one comes from."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from ._validate import Field, Table, integer, relative_path, relative_paths, sha256, string, strings
from .errors import RecipeError

COMPILER = "cuda_nvcc"
"""NVIDIA's name for the component that holds nvcc."""
MERGED = "merge-1"
"""The number rises when other files come of the same archives, so that an old toolkit is not taken for a new one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelProvider:
    """A toolkit that installs from wheels on the package index.

    `requirements`: the hash-locked requirement file beside the toolkit recipe. `root`: where the toolkit lies
    below the installation target.
    """

    requirements: str
    root: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One of NVIDIA's redistributable archives, pinned; `path` is below the base URL."""

    name: str
    version: str
    path: str
    sha256: str
    size: int

    @property
    def file(self) -> str:
        """The archive's own name."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Redistributable:
    """A toolkit that is made of NVIDIA's redistributable archives, and of wheels that the stack's build lock pins.

    `base_url`: where NVIDIA has them, with a slash at its end. `release`: what NVIDIA calls the set.
    """

    base_url: str
    release: str
    license_url: str
    from_build_lock: tuple[str, ...]
    components: tuple[Component, ...]

    @property
    def nvcc(self) -> str:
        """The compiler's version."""
        return next(component.version for component in self.components if component.name == COMPILER)

    @property
    def digest(self) -> str:
        """The sha256 of what is pinned here; the wheels are named, their digests are the build lock's."""
        lines = [f"{component.name} {component.sha256}\n" for component in self.components]
        text = "".join([f"{MERGED}\n", *lines, *(f"{name}\n" for name in sorted(self.from_build_lock))])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def inputs(self) -> dict[str, object]:
        """All of it, as a derivation lists it."""
        return {
            "merged": MERGED,
            "base_url": self.base_url,
            "release": self.release,
            "license_url": self.license_url,
            "from_build_lock": sorted(self.from_build_lock),
            "components": {
                part.name: {"version": part.version, "path": part.path, "sha256": part.sha256, "size": part.size}
                for part in self.components
            },
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolkitRecipe:
    """One CUDA toolkit.

    `accepts`: the `major.minor` releases of nvcc that may serve (the first is the one pinned). `headers` and
    `libraries`: paths relative to the toolkit's `include` and library folders without which torch's headers do
    not compile or its extensions do not link. `gcc_below`: first major release of gcc that crt/host_config.h
    refuses.
    """

    name: str
    file: str
    cuda: str
    accepts: tuple[str, ...]
    headers: tuple[str, ...]
    libraries: tuple[str, ...]
    gcc_below: int
    wheels: WheelProvider | None
    redistributable: Redistributable | None
    needs_license: str
    """The licence that `fetch NAME --accept-license` accepts; empty where the package index's terms are enough."""


def parse_toolkit(values: Mapping[str, object], *, file: str) -> ToolkitRecipe:
    """Read one toolkit recipe; RecipeError names file and key path."""
    with Table(values, file=file) as root:
        given = root.has("redistributable")
        return ToolkitRecipe(
            name=root.required("name", string),
            file=file,
            cuda=root.required("cuda", cuda_release),
            accepts=root.required("accepts", cuda_releases),
            headers=root.optional("headers", relative_paths, ()),
            libraries=root.optional("libraries", strings, ()),
            gcc_below=root.required("gcc-below", integer),
            wheels=parse_wheels(root.subtable("wheels")) if root.has("wheels") else None,
            redistributable=parse_redistributable(root.subtable("redistributable")) if given else None,
            # NVIDIA's archives never come without a word about their licence.
            needs_license=root.required("needs-license", filled)
            if given
            else root.optional("needs-license", string, ""),
        )


def parse_wheels(table: Table) -> WheelProvider:
    """Read the [wheels] provider."""
    with table:
        return WheelProvider(
            requirements=table.required("requirements", relative_path),
            root=table.required("root", relative_path),
        )


def parse_redistributable(table: Table) -> Redistributable:
    """Read the [redistributable] provider."""
    with table:
        found = Redistributable(
            base_url=table.required("base-url", web_folder),
            release=table.required("release", filled),
            license_url=table.required("license-url", web_address),
            from_build_lock=table.optional("from-build-lock", project_names, ()),
            components=tuple(
                parse_component(name, entry) for name, entry in sorted(table.subtables("components").items())
            ),
        )
        if COMPILER not in {component.name for component in found.components}:
            raise table.error("components", f"lacks {COMPILER}, the compiler")
        return found


def parse_component(name: str, table: Table) -> Component:
    """Read one archive; its name becomes a file's name."""
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise RecipeError(
            "is not the name of a component of NVIDIA's: lower-case letters, digits, '_'",
            file=table.file,
            key=table.path,
        )
    with table:
        return Component(
            name=name,
            version=table.required("version", filled),
            path=table.required("path", archive_path),
            sha256=table.required("sha256", sha256),
            size=table.required("size", integer),
        )


def filled(field: Field) -> str:
    """Read a string that says something."""
    value = field.of(str)
    if not value.strip():
        raise field.error("must not be empty")
    return value


def web_address(field: Field) -> str:
    """Read an address; https only, although digests are checked: a licence text has none."""
    value = field.of(str)
    if not re.fullmatch(r"https://[^\s/?#@]+(/[^\s?#]*)?", value):
        raise field.error(f"must be an address that begins with https://, found {value!r}")
    return value


def web_folder(field: Field) -> str:
    """Read an address that relative paths are put after."""
    return web_address(field).rstrip("/") + "/"


def archive_path(field: Field) -> str:
    """Read the path of a redistributable archive."""
    value = relative_path(field)
    if not value.endswith(".tar.xz"):
        raise field.error(f"must end with .tar.xz, found {value!r}")
    return value


def project_names(field: Field) -> tuple[str, ...]:
    """Read a list of normalised project names, each once."""
    values = strings(field)
    for position, value in enumerate(values):
        if canonicalize_name(value) != value:
            raise field.error(f"item {position} must be written {canonicalize_name(value)!r}, found {value!r}")
        if value in values[:position]:
            raise field.error(f"item {position} is there twice: {value!r}")
    return values


def cuda_release(field: Field) -> str:
    """Read a `major.minor` CUDA release."""
    value = field.of(str)
    major, dot, minor = value.partition(".")
    if not (dot and major.isdigit() and minor.isdigit()):
        raise field.error(f"must be a CUDA release like '12.8', found {value!r}")
    return value


def cuda_releases(field: Field) -> tuple[str, ...]:
    """Read a list of CUDA releases."""
    return tuple(cuda_release(Field(field.owner, field.key, value)) for value in strings(field))
