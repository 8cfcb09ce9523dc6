"""Derivations: one fully pinned build, and the hash of all that can change its bytes."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from ._validate import did_you_mean
from .arch import Arch, Gpu, code_runs_on, why_not
from .catalog import Catalog, Patch
from .errors import RecipeError, UsageError
from .lock import Lock
from .recipe import IndexSource, Recipe, Release, Source, Variant
from .stack import Stack
from .toolkit_recipe import ToolkitRecipe

SCHEMA = 2
FORMATS = {"launcher": 2, "sandbox": 1, "stamp": 2, "writer": 2}
"""Raised whenever launcher, sandbox (the paths that a build sees), stamp or zip writer can change bytes; held by
golden tests."""
EPOCH_1980 = 315532800


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What a user asked to build, in the words of recipes."""

    name: str
    stack: str
    archs: tuple[Arch, ...] = ()
    variant: str = ""
    source_date_epoch: int | None = None
    gpus: tuple[Gpu, ...] = ()
    """The GPUs that the wheel shall run on; they choose nothing, they are only held against the archs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Derivation:
    """One build with every input pinned; computable on any machine."""

    recipe: Recipe
    release: Release
    variant: Variant | None
    stack: Stack
    toolkit: ToolkitRecipe
    toolkit_lock: Lock | None
    build_lock: Lock
    run_lock: Lock
    patches: tuple[Patch, ...]
    archs: tuple[Arch, ...]
    python: str
    source_date_epoch: int

    @property
    def name(self) -> str:
        """Normalised project name."""
        return self.recipe.name

    @property
    def version(self) -> str:
        """Upstream's version."""
        return self.release.version

    @property
    def abi(self) -> str:
        """The interpreter's wheel tag, `cp312`."""
        return "cp" + self.python.replace(".", "")

    @property
    def arch_labels(self) -> tuple[str, ...]:
        """Archs as segments of a local version: `sm100`, `sm90a`, `sm120ptx`."""
        return tuple(f"sm{arch.digits}" + ("ptx" if arch.ptx else "") for arch in self.archs)

    @property
    def index_label(self) -> str:
        """The index that this wheel stands in: one per stack, archs and variant."""
        parts = [f"{self.stack.name}-torch{self.stack.torch.version}", *self.arch_labels]
        return "-".join([*parts, self.variant.name] if self.variant else parts)

    @property
    def local_version(self) -> str:
        """The local version label (PEP 440): CUDA, torch, archs and variant."""
        parts = [self.stack.cuda_label, f"torch{self.stack.torch.version.split('+')[0]}", *self.arch_labels]
        return ".".join([*parts, self.variant.label] if self.variant else parts)

    @property
    def full_version(self) -> str:
        """Version with local label."""
        return f"{self.version}+{self.local_version}"

    @property
    def wheel_name(self) -> str:
        """The file name to expect, where the symbols reach the stack's platform floor."""
        stem = f"{self.name.replace('-', '_')}-{self.full_version}-{self.release.revision}"
        return f"{stem}-{self.abi}-{self.abi}-{self.stack.platform}_x86_64.whl"

    @property
    def environment(self) -> dict[str, str]:
        """The build environment values that the recipe, its variant and the archs set."""
        values = {**self.release.environment, **(self.variant.environment if self.variant else {})}
        if self.release.local_version_variable:
            values[self.release.local_version_variable] = self.local_version
        return {**values, **self.release.arch.environment(self.archs)}

    @property
    def inputs(self) -> Mapping[str, object]:
        """All that can change bytes, and nothing else: no jobs, memory, checks, paths, user or time.

        It is also all that `carry` needs beside the texts whose digests stand here: what travels in the wheel for
        `rebuild` is part of its bytes.
        """
        return {
            "schema": SCHEMA,
            "formats": FORMATS,
            "name": self.name,
            "version": self.version,
            "revision": self.release.revision,
            "source": source_inputs(self.release.source),
            "patches": [{"name": patch.name, "sha256": patch.sha256} for patch in self.patches],
            "build_lock": self.build_lock.digest,
            "python": {
                "implementation": "cpython",
                "release": self.python,
                "abi": self.abi,
                "machine": "x86_64",
            },
            "stack": {"name": self.stack.name, "cuda": self.stack.cuda},
            "torch": {
                "version": self.stack.torch.version,
                "file": self.stack.torch.file,
                "sha256": self.stack.torch.sha256,
            },
            "toolkit": self.toolkit_inputs,
            "host_compiler": {"gcc_below": self.toolkit.gcc_below},
            "archs": [str(arch) for arch in self.archs],
            "arch_control": self.arch_inputs,
            "variant": self.variant.name if self.variant else None,
            "environment": self.environment,
            "local_version_variable": self.release.local_version_variable,
            "nvcc_threads": self.release.nvcc_threads,
            "source_date_epoch": self.source_date_epoch,
            "licenses": {entry.path: entry.spdx for entry in self.release.licenses},
            "vendored": {entry.path: entry.inputs for entry in self.release.vendored},
            "local_version": self.local_version,
            "repair": {"platform": self.stack.platform},
        }

    @property
    def arch_inputs(self) -> dict[str, str]:
        """How the package is told its architectures."""
        arch = self.release.arch
        return {"via": arch.via, "variable": arch.variable, "spelling": arch.spelling, "separator": arch.separator}

    @property
    def toolkit_inputs(self) -> dict[str, object]:
        """What pins the toolkit, or decides which one of a machine's is taken where none is pinned."""
        toolkit = self.toolkit
        pinned = toolkit.redistributable
        return {
            "name": toolkit.name,
            "cuda": toolkit.cuda,
            "accepts": list(toolkit.accepts),
            "headers": list(toolkit.headers),
            "libraries": list(toolkit.libraries),
            "needs_license": toolkit.needs_license,
            "lock": self.toolkit_lock.digest if self.toolkit_lock else None,
            "wheels_root": toolkit.wheels.root if toolkit.wheels else None,
            "redistributable": pinned.inputs if pinned else None,
        }

    @property
    def drv(self) -> str:
        """The sha256 of the canonical form of the inputs: the cache key."""
        return hashlib.sha256(canonical(self.inputs)).hexdigest()


def source_inputs(source: Source) -> dict[str, object]:
    """Give what pins a source; where a tree lies is no part of it."""
    if isinstance(source, IndexSource):
        return {"kind": "index", "project": source.project, "file": source.file, "sha256": source.sha256}
    return {"kind": "tree", "sha256": source.sha256}


def canonical(value: object) -> bytes:
    """Give the one JSON spelling of a value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def instantiate(catalog: Catalog, selection: Selection) -> Derivation:
    """Turn what was asked for into one pinned build.

    Raises UsageError for a name, variant or arch that cannot be, RecipeError where recipe, stack and lock
    disagree.
    """
    stack = catalog.stack(selection.stack)
    recipe = catalog.recipe(selection.name)
    release = catalog.release(recipe, stack)
    variant = choose_variant(recipe, release, selection.variant)
    archs = tuple(sorted(set(selection.archs or stack.archs)))
    check_archs(recipe, release, archs)
    check_gpus(archs, selection.gpus)
    build_lock = catalog.build_lock(stack)
    check_lock(recipe, release, stack, build_lock)
    toolkit = catalog.toolkit(stack)
    epoch = selection.source_date_epoch
    return Derivation(
        recipe=recipe,
        release=release,
        variant=variant,
        stack=stack,
        toolkit=toolkit,
        toolkit_lock=catalog.toolkit_lock(toolkit),
        build_lock=build_lock,
        run_lock=catalog.run_lock(stack),
        patches=catalog.patches(recipe, release, variant),
        archs=archs,
        python=stack.python,
        source_date_epoch=release.source_date_epoch if epoch is None else epoch,
    )


def choose_variant(recipe: Recipe, release: Release, name: str) -> Variant | None:
    """Look a variant up; UsageError with the choices."""
    if not name:
        return None
    if name not in release.variants:
        known = ", ".join(sorted(release.variants)) or "none"
        hint = did_you_mean(name, sorted(release.variants))
        raise UsageError(f"{recipe.name} {release.version} has no variant {name!r}{hint}; variants: {known}")
    return release.variants[name]


def check_archs(recipe: Recipe, release: Release, archs: tuple[Arch, ...]) -> None:
    """Refuse an arch that the package would drop without a word."""
    supports = release.arch.supports
    for arch in archs:
        if supports and (arch.dotted not in supports or arch.ptx):
            raise UsageError(
                f"{recipe.name} {release.version} cannot be built for {arch}: its build knows "
                f"{', '.join(supports)} and would drop anything else without a word",
                advice=f"Choose among --arch {' '.join(supports)}.",
            )


def check_gpus(archs: tuple[Arch, ...], gpus: tuple[Gpu, ...]) -> None:
    """Refuse code that would not run on the GPU that was named; UsageError says the right `--arch`."""
    for gpu in gpus:
        if problem := unserved(archs, gpu):
            raise UsageError(problem[0], advice=problem[1])


def unserved(archs: tuple[Arch, ...], gpu: Gpu) -> tuple[str, str] | None:
    """Say why a GPU cannot run any of the code, and what to ask for instead; None where it can."""
    if any(code_runs_on(arch, gpu.capability) for arch in archs):
        return None
    needed = gpu.capability.dotted
    reasons = "; ".join(why_not(arch, gpu.capability) for arch in archs)
    both = ";".join([*(str(arch) for arch in archs), needed])
    code, sm = " and ".join(arch.sm for arch in archs), gpu.capability.sm
    return (
        f"{code} code does not run on {gpu.name}, which is {sm} (compute capability {needed}): {reasons}",
        f"Build for it: `--arch {needed}`, or for both: `--arch '{both}'`.",
    )


def check_lock(recipe: Recipe, release: Release, stack: Stack, lock: Lock) -> None:
    """Refuse a build lock that lacks any build requirement, all of them named at once."""
    missing = lock.missing(release.build_requires)
    if missing:
        raise RecipeError(
            f"the build lock {lock.file} lacks: {', '.join(missing)}",
            file=recipe.file,
            key=f'version."{release.version}".build-requires',
            advice=f"Lock again: `wheelmill lock {stack.name}`.",
        )


def parse_epoch(text: str, *, now: int) -> int:
    """Read SOURCE_DATE_EPOCH from the environment; UsageError unless an integer from 1980 to now."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not EPOCH_1980 <= value <= now or str(value) != text.strip():
        raise UsageError(
            f"SOURCE_DATE_EPOCH={text!r} is not a whole number of seconds between 1980 and now",
            advice="Unset it (the recipe has one), or set it like `SOURCE_DATE_EPOCH=1755129600`.",
        )
    return value
