"""Stacks: versions that belong together, and the locks that pin every file of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from ._validate import Field, Table, relative_path, sha256, string, string_map
from .arch import Arch
from .recipe import archs, requirements
from .toolkit_recipe import cuda_release


@dataclass(frozen=True, kw_only=True, slots=True)
class Prebuilt:
    """A member of a stack that is taken as published, pinned by file and digest."""

    name: str
    version: str
    file: str
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """One pinned stack.

    `python`: the CPython `major.minor` it is for. `cuda`: the release that torch was built with. `platform`: the
    floor that the stack's own prebuilt members set. `build_lock`, `run_lock`: hash-locked requirement files beside
    the stack file. `cut_off`: files uploaded later are not seen by `lock` (RFC 3339). `packages`: what is built,
    by recipe version. `prebuilt`: what is taken as published; torch is always among them. `build_requires`,
    `run_requires`: what the locks hold beyond torch and the recipes' own build requirements.
    """

    name: str
    file: str
    summary: str
    python: str
    cuda: str
    toolkit: str
    archs: tuple[Arch, ...]
    platform: str
    cut_off: str
    build_lock: str
    run_lock: str
    packages: Mapping[str, str]
    prebuilt: Mapping[str, Prebuilt]
    build_requires: tuple[str, ...] = ()
    run_requires: tuple[str, ...] = ()

    @property
    def torch(self) -> Prebuilt:
        """The pinned torch."""
        return self.prebuilt["torch"]

    @property
    def cuda_label(self) -> str:
        """CUDA as torch's own wheels spell it: `cu128`."""
        return "cu" + self.cuda.replace(".", "")


def parse_stack(values: Mapping[str, object], *, file: str) -> Stack:
    """Read one stack; RecipeError names file and key path."""
    with Table(values, file=file) as root:
        prebuilt = {name: parse_prebuilt(name, table) for name, table in root.subtables("prebuilt").items()}
        if "torch" not in prebuilt:
            raise root.error("prebuilt.torch", "missing: every stack pins torch by file and sha256")
        return Stack(
            name=root.required("name", string),
            file=file,
            summary=root.required("summary", string),
            python=root.required("python", python_release),
            cuda=root.required("cuda", cuda_release),
            toolkit=root.required("toolkit", string),
            archs=root.required("archs", archs),
            platform=root.required("platform", string),
            cut_off=root.required("cut-off", string),
            build_lock=root.required("build-lock", relative_path),
            run_lock=root.required("run-lock", relative_path),
            packages=root.required("packages", string_map),
            prebuilt=prebuilt,
            build_requires=root.optional("build-requires", requirements, ()),
            run_requires=root.optional("run-requires", requirements, ()),
        )


def parse_prebuilt(name: str, table: Table) -> Prebuilt:
    """Read one member that is taken as published."""
    with table:
        return Prebuilt(
            name=name,
            version=table.required("version", string),
            file=table.required("file", relative_path),
            sha256=table.required("sha256", sha256),
        )


def python_release(field: Field) -> str:
    """Read a CPython `major.minor`."""
    value = field.of(str)
    major, dot, minor = value.partition(".")
    if not (major == "3" and dot and minor.isdigit()):
        raise field.error(f"must be a CPython release like '3.12', found {value!r}")
    return value
