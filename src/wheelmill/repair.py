"""Repair: judge what a built wheel needs, then write it once more with names that say so; compiled bytes stay.

auditwheel gives the verdict (in a process of its own, `_auditwheel.py`), `wheel_file` writes. Nothing is grafted and
no ELF file patched: a grafted libcudart keeps its version node and dies on an assertion of ld.so, and patched fat
binaries have given "device kernel image is invalid".
"""

import csv
import glob
import json
import posixpath
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from elftools.elf.elffile import ELFFile
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ._process import Runner
from .archive import zip_problems
from .elf import ELFTOOLS_ERRORS, ElfFacts, dynamic_tags, first
from .errors import (
    AbiMismatchError,
    EnvironmentUnfitError,
    ForeignLibraryError,
    MalformedWheelError,
    PlatformFloorError,
    RepairError,
)
from .inspection import Inspection, Look, inspect_wheel
from .splice import Donor, splice_wheel
from .wheel_file import (
    Edit,
    WheelFile,
    WrittenWheel,
    edit_members,
    one_tag,
    open_members,
    scan,
    values,
    wheel_name,
    write_wheel,
)

SCRIPT = Path(__file__).with_name("_auditwheel.py")
DRIVER = "the driver"
DRIVER_LIBRARIES = frozenset({"libcuda.so.1", "libnvidia-ml.so.1"})
"""What the kernel driver brings, in exactly the version it needs: in no wheel, owned by no project."""

LIBRARY = re.compile(r"lib[^/]*\.so(\.[0-9][^/]*)?")
LIBPYTHON = re.compile(r"libpython\d+\.\d+.*\.so.*")
ORIGIN = re.compile(r"\$(ORIGIN|\{ORIGIN\})(?=/|$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairPolicy:
    """What a wheel may leave to others.

    `owned`: soname to project, for what the wheel's own requirements bring. `strangers`: the same for projects that
    are merely installed, to name them as candidates. `ceiling`: the newest platform allowed (`manylinux_2_28`), empty
    for no limit.
    """

    owned: Mapping[str, str]
    strangers: Mapping[str, str] = field(default_factory=dict)
    ceiling: str = ""

    def owner(self, soname: str) -> str:
        """Give who brings a library: a project, the driver, or nobody."""
        return DRIVER if soname in DRIVER_LIBRARIES else self.owned.get(soname, "")


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditedWheel:
    """A built wheel that can be put right, and how: nothing is written yet.

    `external`: every library that it leaves to others, with the owner. `needed`: every NEEDED in it.
    `compiled`: RECORD's digest of every ELF file in it. `static_runtime`: files with the CUDA runtime linked in.
    """

    wheel: WheelFile
    platform_tag: str
    external: Mapping[str, str]
    needed: tuple[str, ...]
    compiled: Mapping[str, str]
    digests: Mapping[str, str] = field(default_factory=dict)
    """sha256 of every member, as RECORD spells it."""
    elf: tuple[ElfFacts, ...] = ()
    static_runtime: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Stamp:
    """What a finished wheel says of itself.

    `version` is the full one, with the local part; `requires` maps a project to the specifier that replaces whatever
    the wheel asked of it; `files` go into dist-info, `licenses` into dist-info/licenses.
    """

    version: str
    build_tag: str
    epoch: int
    requires: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    licenses: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class StampedWheel:
    """A repaired wheel under its final name."""

    path: Path
    sha256: str
    size: int
    platform_tag: str
    external: Mapping[str, str]
    needed: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One reason why a wheel cannot be put right."""

    error: type[RepairError]
    text: str
    advice: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What auditwheel says: its policy, what each kind of evidence allows, libraries that no policy allows."""

    policy: str
    generic: str
    limits: Mapping[str, str]
    foreign: tuple[str, ...]
    versions: tuple[str, ...]


# the three steps --------------------------------------------------------------------------------------


def audit(built: Path, *, policy: RepairPolicy, runner: Runner, env: Mapping[str, str]) -> AuditedWheel:
    """Judge a built wheel, in one pass over it.

    Raises MalformedWheelError for a broken one, else RepairError (or the kind that fits best) with every reason why
    it cannot be put right.
    """
    with tempfile.TemporaryDirectory(prefix="wheelmill-", dir=env.get("TMPDIR") or None) as folder:
        tree = Path(folder)
        wheel, inspection = look_into(built, tree)
        elf = inspection.elf
        if not elf:
            return replace(pure(wheel), digests=inspection.digests)
        owned = {*policy.owned, *DRIVER_LIBRARIES}
        verdict = ask_auditwheel(built, tree=tree, excluded=sorted(owned), runner=runner, env=env)
    reasons = [
        *run_path_problems(elf),
        *bundle_problems(elf, policy),
        *library_problems(elf, verdict.foreign, policy),
        *floor_problems(elf, verdict, policy),
    ]
    if reasons:
        raise refusal(wheel, reasons)
    needed = sorted({soname for file in elf for soname in file.needed})
    return AuditedWheel(
        wheel=wheel,
        platform_tag=verdict.policy,
        external={soname: policy.owner(soname) for soname in needed if soname in owned},
        needed=tuple(needed),
        compiled={file.path: inspection.digests.get(file.path, wheel.record[file.path].digest) for file in elf},
        digests=inspection.digests,
        elf=elf,
    )


def look_into(built: Path, tree: Path) -> tuple[WheelFile, Inspection]:
    """Read a wheel once: its structure, every digest, every ELF file, of which sparse copies are left in `tree`.

    Raises MalformedWheelError with everything that is wrong with its structure or digests.
    """
    wheel, problems = scan(built)
    problems = [*zip_problems(built), *problems]
    if wheel is None or problems:
        raise MalformedWheelError(built, problems)
    inspection = inspect_wheel(built, look=Look(keep=tree, tolerant=True))
    if problems := digest_problems(wheel, inspection):
        raise MalformedWheelError(built, problems)
    return wheel, inspection


def digest_problems(wheel: WheelFile, inspection: Inspection) -> list[str]:
    """Compare what a pass found with RECORD; RECORD of other algorithms than sha256 is read by `check_record`."""
    found = [f"{name} cannot be read: {text}" for name, text in sorted(inspection.damage.items())]
    for name, digest in sorted(inspection.digests.items()):
        entry = wheel.record.get(name)
        if entry is not None and entry.digest.partition("=")[0] == "sha256" and entry.digest != digest:
            found.append(f"{name} is not what RECORD says: {digest}, not {entry.digest}")
    return found


def stamp(audited: AuditedWheel, *, stamp: Stamp, destination: Path) -> StampedWheel:
    """Write an audited wheel once, canonically, under its final name into `destination`.

    Raises RepairError where the wheel is another release, its tags contradict its file name, or an added file is
    there already.
    """
    wheel = audited.wheel
    edit = Edit(
        version=stamp.version,
        tags=retagged(wheel, audited.platform_tag),
        build=stamp.build_tag,
        requires=stamp.requires,
        files=stamp.files,
        licenses=stamp.licenses,
    )
    name = wheel_name(name=values(wheel.metadata, "Name")[0], version=edit.version, build=edit.build, tags=edit.tags)
    with open_members(wheel.path) as members:
        edited = edit_members(wheel, members, edit)
        written = write_wheel(edited, destination / name, epoch=stamp.epoch)
    check_untouched(audited, written)
    return stamped_wheel(audited, written)


def repair(
    built: Path,
    *,
    policy: RepairPolicy,
    destination: Path,
    epoch: int,
    runner: Runner,
    env: Mapping[str, str],
    floor: str = "",
) -> StampedWheel:
    """Put any wheel right, version and requirements as they are, and what does not change packed as it was.

    `floor`: the oldest platform that the wheel may claim (torch's own); raises what `audit` and `stamp` raise.
    """
    audited = audit(built, policy=policy, runner=runner, env=env)
    wheel = audited.wheel
    if audited.elf and floor:
        audited = replace(audited, platform_tag=max(audited.platform_tag, floor, key=release))
    edit = Edit(version=wheel.metadata_version, tags=retagged(wheel, audited.platform_tag), build=wheel.build)
    name = wheel_name(name=values(wheel.metadata, "Name")[0], version=edit.version, build=edit.build, tags=edit.tags)
    with open_members(built) as members:
        edited = edit_members(wheel, members, edit)
        donor = Donor(path=built, digests=audited.digests)
        written = splice_wheel(edited, destination / name, donor=donor, epoch=epoch)
    check_untouched(audited, written)
    return stamped_wheel(audited, written)


def stamped_wheel(audited: AuditedWheel, written: WrittenWheel) -> StampedWheel:
    """Put together what is known of a wheel that was written."""
    return StampedWheel(
        path=written.path,
        sha256=written.sha256,
        size=written.size,
        platform_tag=audited.platform_tag,
        external=audited.external,
        needed=audited.needed,
        warnings=written.warnings,
    )


def pure(wheel: WheelFile) -> AuditedWheel:
    """Judge a wheel without compiled code: right only if its tags say so."""
    platforms = sorted({one_tag(tag).platform for tag in wheel.wheel_tags})
    if platforms != ["any"]:
        raise RepairError(
            f"{wheel.path.name} is tagged {', '.join(platforms)}, but there is no compiled code in it",
            advice="Look in the build log for the extension that was skipped (often for want of CUDA or torch).",
        )
    return AuditedWheel(wheel=wheel, platform_tag="any", external={}, needed=(), compiled={})


def retagged(wheel: WheelFile, platform: str) -> tuple[str, ...]:
    """Give the wheel's tags with this platform; RepairError where file name and WHEEL differ otherwise."""
    inside, outside = (
        {tag.rpartition("-")[0] for tag in map(str, map(one_tag, tags))} for tags in (wheel.wheel_tags, wheel.tags)
    )
    if inside != outside:
        raise RepairError(
            f"the file name of {wheel.path.name} says {', '.join(sorted(outside))}, "
            f"its WHEEL says {', '.join(sorted(inside))}",
            advice="One of the two was changed after the build; build the wheel again.",
        )
    return tuple(sorted(f"{tag}-{platform}" for tag in inside))


def check_untouched(audited: AuditedWheel, written: WrittenWheel) -> None:
    """Make sure that every compiled file is in the new wheel bit for bit; remove the wheel if not."""
    lost = Counter(audited.compiled.values()) - Counter(entry.digest for entry in written.record.values())
    if lost:
        written.path.unlink()
        names = sorted(name for name, digest in audited.compiled.items() if digest in lost)
        raise RepairError(
            f"compiled files of {audited.wheel.path.name} changed while it was written: {', '.join(names)}",
            advice="Something wrote to the built wheel meanwhile; build again.",
        )


def refusal(wheel: WheelFile, problems: Sequence[Problem]) -> RepairError:
    """Make one failure of all problems: the first one's kind, everybody's advice."""
    lines = [f"{wheel.path.name} cannot be put right:", *(f"  {problem.text}" for problem in problems)]
    advice = " ".join(dict.fromkeys(problem.advice for problem in problems))
    return problems[0].error("\n".join(lines), advice=advice)


def has_static_runtime(file: ElfFacts) -> bool:
    """Say whether kernels are launched by a CUDA runtime that is inside: nvcc links one, unless told otherwise."""
    return bool(file.device_code.archs) and not any(name.startswith("libcudart.so") for name in file.needed)


# problems ---------------------------------------------------------------------------------------------


def run_path_problems(elf: Iterable[ElfFacts]) -> Iterator[Problem]:
    """Find run paths that lead anywhere but to a place beside the file: they are folders of the build machine."""
    for file in elf:
        for entry in file.rpath.split(":") if file.rpath is not None else ():
            inside = ORIGIN.sub("", entry, count=1).lstrip("/")
            place = posixpath.normpath(posixpath.join(posixpath.dirname(file.path), inside))
            if not ORIGIN.match(entry):
                where = (
                    f"{entry!r}, a folder of the build machine"
                    if entry
                    else "the empty path, whatever folder is current"
                )
            elif place.split("/")[0] == "..":
                where = f"{entry!r}, which leaves site-packages"
            else:
                continue
            yield Problem(
                error=RepairError,
                text=f"{file.path} has the run path {where}",
                advice="Link with `-Wl,-rpath,$ORIGIN/…`, or without run path: `import torch` loads torch's libraries.",
            )


def bundle_problems(elf: Iterable[ElfFacts], policy: RepairPolicy) -> Iterator[Problem]:
    """Find copies of libraries that somebody else brings: two of them in one process is one too many."""
    for file in elf:
        soname = file.soname or posixpath.basename(file.path)
        if owner := policy.owner(soname):
            yield Problem(
                error=RepairError,
                text=f"{file.path} is a copy of {soname}, which {owner} brings",
                advice="Keep the copy out of the wheel: a second one in the process has its own state.",
            )


def library_problems(elf: Sequence[ElfFacts], foreign: Iterable[str], policy: RepairPolicy) -> Iterator[Problem]:
    """Explain every library that is neither the platform's, nor in the wheel, nor brought by an owner."""
    carried = {file.soname or posixpath.basename(file.path) for file in elf}
    for soname in foreign:
        users = sorted(file.path for file in elf if soname in file.needed)
        yield explain(soname, f"{', '.join(users)} needs {soname}", carried=carried, policy=policy)


def explain(soname: str, text: str, *, carried: set[str], policy: RepairPolicy) -> Problem:
    """Say about one unresolved library why nobody brings it."""
    if LIBPYTHON.fullmatch(soname):
        advice = "Link without -lpython: the interpreter itself has these symbols, and often no such library."
        return Problem(error=RepairError, text=f"{text}, which wheels must not", advice=advice)
    if soname in carried:
        advice = "Let the link use `-Wl,-rpath,$ORIGIN`."
        return Problem(
            error=ForeignLibraryError, text=f"{text}; it is in the wheel, but no run path leads there", advice=advice
        )
    relatives = [f"{other} ({owner})" for other, owner in sorted(policy.owned.items()) if stem(other) == stem(soname)]
    if relatives:
        return Problem(
            error=AbiMismatchError,
            text=f"{text}, but the locked stack has {', '.join(relatives)}",
            advice="The build saw another toolkit or torch than the stack's: check CUDA_HOME and the build lock.",
        )
    candidates = [
        f"{owner} ({other})" for other, owner in sorted(policy.strangers.items()) if stem(other) == stem(soname)
    ]
    if candidates:
        return Problem(
            error=ForeignLibraryError,
            text=f"{text}, which nothing that the wheel requires brings; installed candidates: {', '.join(candidates)}",
            advice="Link it statically, or let the wheel require the project that owns it.",
        )
    return Problem(
        error=ForeignLibraryError,
        text=f"{text}, which is neither the platform's, nor in the wheel, nor of any project in the build environment",
        advice="Link it statically, or lock the project that owns it and let the wheel require it.",
    )


def floor_problems(elf: Sequence[ElfFacts], verdict: Verdict, policy: RepairPolicy) -> Iterator[Problem]:
    """Find machine code of several kinds, and symbols or instructions that no policy or not this one allows."""
    machines = sorted({file.machine for file in elf})
    if len(machines) > 1:
        yield Problem(
            error=RepairError,
            text=f"it has code for several machines: {', '.join(machines)}",
            advice="Start the build from a fresh source tree: it packed leftovers of another build.",
        )
    newest = ", ".join(newest_versions(verdict.versions))
    held = [what for what, allowed in sorted(verdict.limits.items()) if allowed == verdict.generic]
    if held:
        yield Problem(
            error=PlatformFloorError,
            text=f"no platform policy allows its {' and '.join(held)} (it needs {newest})",
            advice="Build on an older system, or for the baseline instruction set (no -march=native).",
        )
    elif policy.ceiling and release(verdict.policy) > release(policy.ceiling):
        yield Problem(
            error=PlatformFloorError,
            text=f"it needs {newest}, so it is {verdict.policy}, newer than {policy.ceiling}",
            advice=f"Build on a system as old as {policy.ceiling} (a manylinux container), or raise the platform.",
        )


def newest_versions(versions: Iterable[str]) -> list[str]:
    """Give the newest symbol version of each library that numbers its symbols."""
    newest: dict[str, str] = {}
    for version in versions:
        library, _, number = version.partition("_")
        if re.fullmatch(r"[0-9]+(\.[0-9]+)*", number):
            newest[library] = max(newest.get(library, "0"), number, key=lambda text: [*map(int, text.split("."))])
    return [f"{library}_{number}" for library, number in sorted(newest.items())]


def release(platform: str) -> tuple[int, ...]:
    """Give the glibc release of a manylinux tag."""
    match = re.match(r"manylinux_(\d+)_(\d+)", platform)
    return (int(match[1]), int(match[2])) if match else ()


def stem(soname: str) -> str:
    """Give a library's name without its version."""
    return soname.partition(".so")[0]


# auditwheel -------------------------------------------------------------------------------------------


def ask_auditwheel(
    wheel: Path, *, tree: Path, excluded: Iterable[str], runner: Runner, env: Mapping[str, str]
) -> Verdict:
    """Get auditwheel's verdict on a wheel whose ELF files lie in `tree`; RepairError where it gives none."""
    # Variables that would let this machine's libraries have a say stay out.
    quiet = {
        name: value for name, value in env.items() if name != "LD_LIBRARY_PATH" and not name.startswith("AUDITWHEEL_")
    }
    patterns = [glob.escape(soname) for soname in excluded]
    argv = [sys.executable, "-P", str(SCRIPT), str(wheel.resolve()), *patterns]
    said = json.loads(runner.run(argv, env=quiet, cwd=tree).stdout)
    if "refusal" in said:
        raise RepairError(
            f"auditwheel gives no verdict on {wheel.name}: {said['refusal'].strip()}",
            advice=f"Look at `wheelmill inspect {wheel}`.",
        )
    if said["grafts"] and not said["foreign"]:
        raise RepairError(f"{wheel.name} could only be repaired by grafting: {', '.join(said['grafts'])}")
    return Verdict(
        policy=said["policy"],
        generic=said["linux"],
        limits=said["limits"],
        foreign=tuple(said["foreign"]),
        versions=tuple(said["versions"]),
    )


# owners -----------------------------------------------------------------------------------------------


def repair_policy(site_packages: Path, *, owners: Iterable[str] = ("torch",), ceiling: str = "") -> RepairPolicy:
    """Work out who brings which library from an installed, locked environment.

    Raises EnvironmentUnfitError where an owner is not installed.
    """
    owned = owned_sonames(site_packages, owners)
    everything = sonames(site_packages, sorted(distributions(site_packages)))
    strangers = {soname: project for soname, project in everything.items() if soname not in owned}
    return RepairPolicy(owned=owned, strangers=strangers, ceiling=ceiling)


def owned_sonames(site_packages: Path, owners: Iterable[str]) -> dict[str, str]:
    """Map every library of the given projects, and of NVIDIA's that they require, to its project.

    Others in between do not count: triton carries a libcupti.so.12 of its own beside torch's libcupti.so.13.
    Raises EnvironmentUnfitError where an owner is not installed.
    """
    asked = {str(canonicalize_name(owner)) for owner in owners}
    required = required_by(distributions(site_packages), asked, site_packages)
    return sonames(
        site_packages,
        [project for project in required if project in asked or project.startswith(("nvidia-", "cuda-"))],
    )


def sonames(site_packages: Path, projects: Iterable[str]) -> dict[str, str]:
    """Map every library of these projects to its project."""
    installed = distributions(site_packages)
    found: dict[str, str] = {}
    for project in projects:
        for path in libraries(site_packages, installed[project]):
            found.setdefault(soname_of(path), project)
    return {soname: found[soname] for soname in sorted(found) if soname not in DRIVER_LIBRARIES}


def libraries_of(site_packages: Path, projects: Iterable[str]) -> dict[str, Path]:
    """Map the sonames of these projects' libraries to their files."""
    installed = distributions(site_packages)
    found: dict[str, Path] = {}
    for project in sorted(projects):
        for path in libraries(site_packages, installed[project]) if project in installed else ():
            found.setdefault(soname_of(path), path)
    return found


def distributions(site_packages: Path) -> dict[str, Path]:
    """Map installed projects to their dist-info folders."""
    return {
        canonicalize_name(folder.name.partition("-")[0]): folder
        for folder in sorted(site_packages.glob("*.dist-info"))
        if (folder / "RECORD").is_file()
    }


def required_by(installed: Mapping[str, Path], owners: set[str], place: Path) -> list[str]:
    """Follow requirements from the owners, extras included: torch names CUDA as `cuda-toolkit[cudart,…]`."""
    missing = sorted(owner for owner in owners if owner not in installed)
    if missing:
        raise EnvironmentUnfitError(
            f"cannot tell whose libraries the wheel uses: {', '.join(missing)} is not installed in {place}",
            advice="Give the site-packages folder of the locked build environment.",
        )
    todo = [(owner, "") for owner in sorted(owners)]
    seen: dict[tuple[str, str], None] = {}
    while todo:
        project, extra = todo.pop(0)
        if (project, extra) in seen or project not in installed:
            continue
        seen[project, extra] = None
        text = (installed[project] / "METADATA").read_text("utf-8")
        for requirement in map(Requirement, values(text, "Requires-Dist")):
            if applies(requirement, extra):
                todo += [(canonicalize_name(requirement.name), name) for name in ("", *sorted(requirement.extras))]
    return list(dict.fromkeys(project for project, _ in seen))


def applies(requirement: Requirement, extra: str) -> bool:
    """Tell whether a requirement holds on this platform with one extra asked for (or none: the empty one)."""
    if requirement.marker is None:
        return True
    return requirement.marker.evaluate({"extra": extra})


def libraries(site_packages: Path, dist_info: Path) -> Iterator[Path]:
    """Give the shared libraries that a distribution has installed; stubs for linking are none."""
    with (dist_info / "RECORD").open(encoding="utf-8", newline="") as stream:
        listed = sorted(row[0] for row in csv.reader(stream) if row)
    for name in listed:
        folder, _, file = name.rpartition("/")
        if LIBRARY.fullmatch(file) and "stubs" not in folder.split("/"):
            yield site_packages / name


def soname_of(path: Path) -> str:
    """Give the name under which the loader knows a library: its SONAME, else its file name."""
    try:
        with path.open("rb") as stream:
            return first(dynamic_tags(ELFFile(stream)), "DT_SONAME") or path.name
    except (OSError, *ELFTOOLS_ERRORS):
        return path.name
