"""Surroundings: what advice may name of this machine and of the recipes at hand, looked up when it is needed."""

import os
import re
import shutil
from collections.abc import Mapping

from .catalog import Catalog
from .errors import WheelmillError
from .preflight import compiler_version
from .remedies import Surroundings
from .toolkit import Machine, interrogate, noted_version, on_path, places

GCC_NAMES = ("gcc", *(f"gcc-{major}" for major in range(9, 17)))


def look_around(machine: Machine, requirements: Mapping[str, tuple[str, ...]]) -> Surroundings:
    """Find toolkits and compilers; what cannot be asked is left out."""
    return Surroundings(
        toolkits=toolkits(machine),
        compilers=compilers(machine),
        glibc=(os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc "),
        requirements=requirements,
    )


def toolkits(machine: Machine) -> tuple[tuple[str, str], ...]:
    """Give every toolkit of this machine with its CUDA release, each once."""
    roots = [place for _, place in places(machine)] + [nvcc.parent.parent for nvcc in on_path(machine)]
    found: dict[str, str] = {}
    for root in roots:
        real = os.path.realpath(root)
        if real in found or not (root / "bin/nvcc").exists() or not (root / "include").is_dir():
            continue
        if version := noted_version(root) or interrogate(root, machine)[0]:
            found[real] = ".".join(version.split(".")[:2])
    return tuple(found.items())


def compilers(machine: Machine) -> tuple[tuple[str, str], ...]:
    """Give every gcc on PATH that answers, with its version."""
    found: dict[str, str] = {}
    for name in GCC_NAMES:
        path = shutil.which(name, path=machine.env.get("PATH", ""))
        try:
            version = compiler_version(name, machine) if path else ""
        except WheelmillError:
            continue
        if path and re.fullmatch(r"[\d.]+", version):
            found[path] = version
    return tuple(found.items())


def requirements_of(catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """Give what each recipe's newest version needs to build, by package."""
    return {
        name: list(recipe.releases.values())[-1].build_requires
        for name, recipe in catalog.recipes.items()
        if recipe.releases
    }
