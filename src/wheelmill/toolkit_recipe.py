"""Toolkit recipes: which CUDA toolkit a stack needs, what makes one complete, and where a pinned one comes from."""

from collections.abc import Mapping
from dataclasses import dataclass

from ._validate import Field, Table, relative_path, relative_paths, string, strings


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelProvider:
    """A toolkit that installs from wheels on the package index.

    `requirements`: the hash-locked requirement file beside the toolkit recipe. `root`: where the toolkit lies
    below the installation target.
    """

    requirements: str
    root: str


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
    needs_license: str
    """The licence that `fetch NAME --accept-license` accepts; empty where the package index's terms are enough."""


def parse_toolkit(values: Mapping[str, object], *, file: str) -> ToolkitRecipe:
    """Read one toolkit recipe; RecipeError names file and key path."""
    with Table(values, file=file) as root:
        return ToolkitRecipe(
            name=root.required("name", string),
            file=file,
            cuda=root.required("cuda", cuda_release),
            accepts=root.required("accepts", cuda_releases),
            headers=root.optional("headers", relative_paths, ()),
            libraries=root.optional("libraries", strings, ()),
            gcc_below=int(root.required("gcc-below", string)),
            wheels=parse_wheels(root.subtable("wheels")) if root.has("wheels") else None,
            needs_license=root.optional("needs-license", string, ""),
        )


def parse_wheels(table: Table) -> WheelProvider:
    """Read the [wheels] provider."""
    with table:
        return WheelProvider(
            requirements=table.required("requirements", relative_path),
            root=table.required("root", relative_path),
        )


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
