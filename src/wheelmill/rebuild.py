"""Rebuild: from what a wheel carries and nothing else, with an empty object cache, to a verdict on its bytes."""

import os
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from .again import build_again, require_reference_zlib
from .arch import Arch
from .carry import FOLDER, SOURCE, selection_of, unpack
from .catalog import Catalog
from .compare import Comparison
from .derivation import FORMATS, Derivation, instantiate
from .errors import EnvironmentUnfitError, UsageError, VerifyError, WheelmillError
from .explain import Reason, Subject, of_wheel, reasons, say
from .pipeline import Fitted, Tools, fit
from .recipe import IndexSource, Resources
from .verify import listed, mapping
from .wheel_file import DAMAGE, read_wheel

CARRIED_MAX = 64 << 20
"""Bytes that a wheel may carry for its rebuild."""
CAUTIOUS = Resources(memory_per_compile=8 << 30, units=1000, cpu_seconds=0)
"""For a package of which this checkout knows nothing: memory figures are no inputs, so wheels carry none."""
FAR_AWAY = "a-path-of-quite-another-length/Überraschung"
ZONE, LOCALE, USER = "Pacific/Kiritimati", "tr_TR.UTF-8", "somebody-else"
NOT_VARIED: Mapping[str, str] = {
    "user": "the build has the same user inside the sandbox whoever starts it; only its names are varied outside",
    "time": "the clock is the machine's: it has moved on since the first build, and cannot be set without a privilege",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rebuilt:
    """What came of a rebuild: the verdict, and what this machine added otherwise than the first one."""

    wheel: Path
    comparison: Comparison
    reasons: tuple[Reason, ...]
    kept: Path | None
    """The second wheel, where it is another one."""
    varied: tuple[str, ...]
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Give the document of `rebuild --json`."""
        return {
            "schema": 1,
            **self.comparison.to_json(),
            "wheel": str(self.wheel),
            "rebuilt": None if self.kept is None else str(self.kept),
            "reasons": [reason.to_json() for reason in self.reasons],
            "varied": list(self.varied),
            "not_varied": dict(NOT_VARIED) if self.varied else {},
            "seconds": round(self.seconds, 1),
        }


def rebuild(wheel: Path, tools: Tools, *, trust: bool, vary: bool) -> Rebuilt:
    """Build a wheel again from what it carries, and compare.

    Raises VerifyError for a wheel that carries nothing, UsageError for one whose sources and patches nobody here has
    seen and that is not trusted, EnvironmentUnfitError where it cannot be rebuilt here.
    """
    started = time.monotonic()
    require_reference_zlib()
    made = of_wheel(wheel)
    require_formats(made)
    with tempfile.TemporaryDirectory(prefix="wheelmill-") as scratch:
        catalog = unpack(carried_files(wheel), Path(scratch))
        derivation = carried_derivation(catalog, made, tools)
        ours = known_here(made, tools.catalog)
        if not ours and not trust:
            raise stranger(wheel, derivation)
        for line in contents(derivation):
            tools.report.note(line)
        if derivation.release.resources == CAUTIOUS:
            tools.report.note("nothing here knows how large its compiles are: 8 GiB each and 1000 of them are assumed")
        fitted = fit(derivation, tools)
        require_walls(fitted, ours=ours)
        with varied(tools, on=vary) as (other, what):
            comparison, kept = build_again(wheel, derivation, fitted, other, label="rebuild")
    return Rebuilt(
        wheel=wheel,
        comparison=comparison,
        reasons=() if kept is None else reasons(made, of_wheel(kept)),
        kept=kept,
        varied=what,
        seconds=time.monotonic() - started,
    )


def carried_files(wheel: Path) -> dict[str, bytes]:
    """Read what a wheel carries; VerifyError where there is nothing, or absurdly much."""
    found = read_wheel(wheel)
    prefix = f"{found.dist_info}/{FOLDER}/"
    try:
        with zipfile.ZipFile(wheel) as archive:
            infos = [info for info in archive.infolist() if info.filename.startswith(prefix) and not info.is_dir()]
            if sum(info.file_size for info in infos) > CARRIED_MAX:
                raise VerifyError(f"{wheel.name} carries more than {CARRIED_MAX >> 20} MiB for its rebuild")
            files = {info.filename.removeprefix(prefix): archive.read(info) for info in infos}
    except DAMAGE as error:
        raise VerifyError(f"{wheel.name} cannot be unpacked: {error}") from error
    if not files:
        raise VerifyError(
            f"{wheel.name} carries no recipe: it was made before wheels did",
            advice="Build it anew by `wheelmill build`; then it can be rebuilt from itself.",
        )
    return files


def require_formats(made: Subject) -> None:
    """Refuse what another wheelmill made: its bytes are another matter than its inputs."""
    theirs = mapping(made.inputs.get("formats", {}))
    if dict(theirs) != FORMATS:
        raise EnvironmentUnfitError(
            f"{made.label} was made by a wheelmill of other formats: {say(theirs)}, and this one has {say(FORMATS)}",
            advice="Rebuild it by the wheelmill that made it; its build record and provenance name the version.",
        )


def carried_derivation(catalog: Catalog, made: Subject, tools: Tools) -> Derivation:
    """Instantiate what was carried; VerifyError where that is not what the wheel says it was made of."""
    try:
        derivation = instantiate(catalog, selection_of(made.inputs))
    except (KeyError, TypeError, ValueError, WheelmillError) as error:
        raise VerifyError(f"what {made.label} carries is no recipe, stack and lock: {error}") from error
    if derivation.drv != made.drv:
        raise VerifyError(
            f"what {made.label} carries is not what it was made of: drv {derivation.drv[:12]}, not {made.drv[:12]}",
            advice="The wheel was altered; fetch it again.",
        )
    source = derivation.release.source
    if not isinstance(source, IndexSource) and not (Path(derivation.recipe.file).parent / source.path).is_dir():
        raise VerifyError(
            f"{made.label} does not carry its source tree ({SOURCE} is missing): it was too large",
            advice="Build it by name from the checkout that has the tree, with `build --rounds 2`.",
        )
    return replace(derivation, release=replace(derivation.release, resources=resources(derivation, tools.catalog)))


def resources(derivation: Derivation, catalog: Catalog) -> Resources:
    """Take this checkout's memory figures for the package, else cautious ones."""
    recipe = catalog.recipes.get(derivation.name)
    release = recipe.releases.get(derivation.version) if recipe else None
    if release is None:
        return CAUTIOUS
    variant = release.variants.get(derivation.variant.name) if derivation.variant else None
    return (variant or release).resources


def known_here(made: Subject, catalog: Catalog) -> bool:
    """Say whether this checkout has the very recipe, patches and locks: then nobody has to be trusted."""
    try:
        asked = replace(
            selection_of(made.inputs),
            archs=tuple(Arch.parse(str(arch)) for arch in listed(made.inputs["archs"])),
            source_date_epoch=int(str(made.inputs["source_date_epoch"])),
        )
        return instantiate(catalog, asked).drv == made.drv
    except (KeyError, TypeError, ValueError, WheelmillError):
        return False


def contents(derivation: Derivation) -> Iterator[str]:
    """Say of what a wheel would be made: whoever trusts it runs this code."""
    from unidiff.patch import PatchSet  # noqa: PLC0415 - a start pays for it, and few commands need it

    source = derivation.release.source
    if isinstance(source, IndexSource):
        yield f"source: {source.file} of {source.project}, sha256 {source.sha256}"
    else:
        yield f"source: the tree that it carries, sha256 {source.sha256}"
    for patch in derivation.patches:
        files = PatchSet(patch.text)
        touched = ", ".join(f"{each.path} +{each.added} -{each.removed}" for each in files)
        yield f"patch: {patch.name}: {touched}, sha256 {patch.sha256[:12]}"
    yield f"build environment: {len(derivation.build_lock.pins)} locked files; toolkit {derivation.toolkit.name}"


def stranger(wheel: Path, derivation: Derivation) -> UsageError:
    """Make the refusal of what this checkout does not know."""
    lines = "\n".join(f"  {line}" for line in contents(derivation))
    return UsageError(
        f"{wheel.name} was not made from this checkout, and a rebuild runs its code:\n{lines}",
        advice=f"Read its patches (`unzip -p {wheel} '*.dist-info/{FOLDER}/patches/*'`), then `wheelmill rebuild "
        f"--trust {wheel}`; it runs in a sandbox.",
    )


def require_walls(fitted: Fitted, *, ours: bool) -> None:
    """Refuse to run a stranger's code outside of a sandbox."""
    if not ours and fitted.rung.name != "namespaces":
        raise EnvironmentUnfitError(
            f"no sandbox here ({fitted.rung.reason}), and the wheel was not made from this checkout",
            advice=fitted.rung.advice or "Run it on a machine that allows namespaces.",
        )


# varying ---------------------------------------------------------------------------------------------


@contextmanager
def varied(tools: Tools, *, on: bool) -> Iterator[tuple[Tools, tuple[str, ...]]]:
    """Change everything around the build that must not reach its bytes, as reprotest does, while the block lasts."""
    if not on:
        yield tools, ()
        return
    directories = tools.runtime.directories
    far = directories.cache / "rebuilds" / FAR_AWAY
    env = {**tools.runtime.env, "TZ": ZONE, "LC_ALL": LOCALE, "LANG": LOCALE, "USER": USER, "LOGNAME": USER}
    runtime = replace(tools.runtime, env=env, directories=replace(directories, elsewhere=far))
    jobs = 1 if tools.bounds.max_jobs != 1 else 2
    cores = os.sched_getaffinity(0)
    mask = os.umask(0o077)
    try:
        os.sched_setaffinity(0, {max(cores)})
        yield (
            replace(tools, runtime=runtime, bounds=replace(tools.bounds, max_jobs=jobs)),
            ("path", "umask", "locale", "zone", "names of user", "cores", "jobs"),
        )
    finally:
        os.umask(mask)
        os.sched_setaffinity(0, cores)
