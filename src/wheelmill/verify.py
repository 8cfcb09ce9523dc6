"""Verify: a wheel is what it claims and what was asked for; every finding at once, nothing enters without."""

import hashlib
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from .arch import Arch, code_runs_on
from .archive import zip_problems
from .derivation import Derivation, canonical
from .elf import ElfFacts
from .errors import VerifyError
from .inspection import Inspection, Look, inspect_wheel
from .platforms import oldest
from .preflight import Finding
from .recipe import CodePolicy
from .repair import DRIVER_LIBRARIES, RepairPolicy, explain
from .symbols import NOBODY, carried, missing, platform_offer, providers, summarise
from .wheel_file import DAMAGE, DIGESTS, WheelFile, disagreements, read_wheel, scan

FACTS = "wheelmill.json"
"""The file in dist-info that carries the derivation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What a wheel shall be; empty fields demand nothing."""

    version: str = ""
    archs: tuple[Arch, ...] = ()
    torch: str = ""
    extensions: tuple[str, ...] = ()
    top_level: tuple[str, ...] = ()
    licenses: tuple[str, ...] = ()
    machine_paths: tuple[str, ...] = ()
    """Folders of the building machine that must not stand in any file."""
    code: Mapping[str, CodePolicy] = field(default_factory=dict)
    """Which device code each extension must have; the others exactly `archs`."""
    absent: tuple[str, ...] = ()
    """What must not be in it."""
    surroundings: "Beside | None" = None
    channel: str = ""
    """Where it is to be published: `pypi` or `github`, which limit the size."""
    shut_in: bool = False
    """Whether the build was in a sandbox, so that a trace of the machine is an error and no surprise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """An environment in which the locked stack is installed, and what a wheel may take of it."""

    site_packages: Path
    policy: RepairPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedWheel:
    """A wheel that passed every check, with what was found."""

    path: Path
    inspection: Inspection
    findings: tuple[Finding, ...]


def expected(derivation: Derivation) -> Expectation:
    """Say what the wheel of a derivation shall be."""
    checks = derivation.release.checks
    return Expectation(
        version=derivation.full_version,
        archs=derivation.archs,
        torch=derivation.stack.torch.version,
        extensions=checks.extensions,
        top_level=checks.top_level,
        code=checks.code,
        absent=checks.absent,
        licenses=tuple(entry.path for entry in derivation.release.licenses),
    )


def claimed(path: Path) -> Expectation:
    """Say what a wheel claims of itself by the facts that it carries; nothing where it is somebody else's.

    Raises VerifyError where they cannot be read, or where the derivation is not the hash of its inputs.
    """
    try:
        facts = embedded_facts(path)
        if facts is None:
            return Expectation()
        check_hashes(facts)
        inputs = mapping(facts["inputs"])
        archs = tuple(Arch.parse(str(arch)) for arch in listed(inputs["archs"]))
        version = str(Version(f"{inputs['version']}+{inputs['local_version']}"))
        return Expectation(
            version=version,
            archs=archs,
            torch=str(mapping(inputs["torch"])["version"]),
            shut_in=mapping(facts["found"])["sandbox"] != "none",
        )
    except (KeyError, TypeError, ValueError, RecursionError, *DAMAGE) as error:
        raise VerifyError(
            f"{path.name}: its {FACTS} cannot be read ({error})",
            advice="The wheel was altered, or made by a newer wheelmill; build or fetch it again.",
        ) from error


def check_hashes(facts: Mapping[str, object]) -> None:
    """Hold the two hashes against what they are of; ValueError where one is of something else."""
    drv = hashlib.sha256(canonical(facts["inputs"])).hexdigest()
    if facts["drv"] != drv:
        raise ValueError(f"its derivation is {facts['drv']}, and its inputs give {drv}")
    whole = hashlib.sha256(canonical({"drv": drv, "found": facts["found"]})).hexdigest()
    if facts["realisation"] != whole:
        raise ValueError(f"its realisation is {facts['realisation']}, and derivation and findings give {whole}")


def mapping(value: object) -> Mapping[str, object]:
    """Take a JSON object; TypeError for anything else."""
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected, not {value!r}")
    return value


def listed(value: object) -> list[object]:
    """Take a JSON array; TypeError for anything else."""
    if not isinstance(value, list):
        raise TypeError(f"a list was expected, not {value!r}")
    return value


def embedded_facts(path: Path) -> Mapping[str, object] | None:
    """Read the facts that a wheel of ours carries, None where it is somebody else's."""
    wheel = read_wheel(path)
    name = f"{wheel.dist_info}/{FACTS}"
    if name not in wheel.record:
        return None
    with zipfile.ZipFile(path) as archive:
        return mapping(json.loads(archive.read(name)))


def inspect_and_judge(path: Path, expectation: Expectation) -> tuple[Inspection, tuple[Finding, ...]]:
    """Run every static check on a wheel, in one pass over it; VerifyError only where it is no readable wheel."""
    wheel = read_wheel(path)
    inspection = inspect_wheel(path, look=look_for(wheel, expectation))
    files = inspection.elf
    return inspection, (
        *archive(path),
        *names(wheel, expectation),
        *record(wheel, inspection),
        *platform(wheel, expectation),
        *floor(wheel, files),
        *compiled(files),
        *libraries(wheel, files, expectation),
        *symbols(wheel, files, expectation),
        *requirements(inspection, expectation),
        *run_paths(files),
        *device_code(files, expectation),
        *kernels(files, expectation),
        *contents(wheel, expectation),
        *sizes(inspection, expectation),
        *paths(inspection, expectation),
    )


def judge_file(path: Path, expectation: Expectation) -> tuple[Finding, ...]:
    """Judge any file that should be a wheel: what is too broken to be one has findings, too, all of them."""
    wheel, problems = scan(path)
    if wheel is not None and not problems:
        return inspect_and_judge(path, expectation)[1]
    advice = "Download or build it again: no installer may be trusted to read it as it was meant."
    return tuple(
        Finding(id="readable", status="error", subject=path.name, message=text, advice=advice)
        for text in dict.fromkeys((*zip_problems(path), *problems))
    )


def look_for(wheel: WheelFile, expectation: Expectation) -> Look:
    """Say what the one pass over a wheel looks for."""
    algorithms = {name: entry.digest.partition("=")[0] for name, entry in wheel.record.items()}
    return Look(
        kernels=bool(expectation.archs),
        algorithms={name: found for name, found in algorithms.items() if found in DIGESTS},
        needles=lambda name: needles(name, expectation),
        tolerant=True,
    )


def require(path: Path, findings: Iterable[Finding]) -> None:
    """Raise VerifyError with every error among the findings, if there is one."""
    errors = [finding for finding in findings if finding.status == "error"]
    if errors:
        raise VerifyError(
            "\n".join(
                [
                    f"{path.name} failed {len(errors)} of its checks; it does not enter the wheelhouse",
                    *(f"  {finding.id}: {finding.message}" for finding in errors),
                ]
            ),
            advice=errors[0].advice,
        )


def judge(check: str, subject: str, problems: Iterable[str], *, fine: str, advice: str) -> Iterator[Finding]:
    """Turn a list of problems into findings: one each, or one `ok`."""
    found = list(problems)
    for problem in found:
        yield Finding(id=check, status="error", subject=subject, message=problem, advice=advice)
    if not found:
        yield Finding(id=check, status="ok", subject=subject, message=fine, advice="")


def names(wheel: WheelFile, expectation: Expectation) -> Iterator[Finding]:
    """File name, WHEEL, METADATA and dist-info folder say the same, and what was asked for."""
    problems = list(disagreements(wheel))
    if expectation.version and Version(wheel.version) != Version(expectation.version):
        problems.append(f"it is version {wheel.version}, and {expectation.version} was asked for")
    yield from judge(
        "names",
        wheel.path.name,
        problems,
        fine=f"file name, WHEEL and METADATA agree on {wheel.version}",
        advice="Build it again: a renamed or edited wheel cannot be trusted.",
    )


def archive(path: Path) -> Iterator[Finding]:
    """Make sure that the archive means the same to every reader, and harms none."""
    yield from judge(
        "archive",
        path.name,
        zip_problems(path),
        fine="every zip reader finds the same members in it",
        advice="Pack it again with one of the field's own tools; indexes refuse such archives.",
    )


def record(wheel: WheelFile, inspection: Inspection) -> Iterator[Finding]:
    """RECORD lists every file with its digest."""
    problems = [f"{name} cannot be unpacked: {text}" for name, text in sorted(inspection.damage.items())]
    problems += [
        f"{name} is not what RECORD says: {actual}, not {entry.digest}"
        for name, actual in sorted(inspection.digests.items())
        if (entry := wheel.record.get(name)) is not None and entry.digest and entry.digest != actual
    ]
    yield from judge(
        "record",
        wheel.path.name,
        problems,
        fine="RECORD is complete and every digest is right",
        advice="The file is damaged or was edited by hand; build or fetch it again.",
    )


def platform(wheel: WheelFile, expectation: Expectation) -> Iterator[Finding]:
    """No platform tag that the building machine alone understands; a wheel of ours has exactly one.

    Others may have an old and a new name of the same platform (manylinux2014, manylinux_2_17).
    """
    platforms = sorted({tag.rpartition("-")[2] for tag in wheel.wheel_tags})
    problems = [f"{tag} is no manylinux tag" for tag in platforms if tag.startswith("linux_")]
    if expectation.version and len(platforms) != 1:
        problems.append(f"it has {len(platforms)} platform tags: {', '.join(platforms)}")
    yield from judge(
        "platform",
        wheel.path.name,
        problems,
        fine=f"platform {', '.join(platforms)}",
        advice="Installers prefer an unrepaired wheel to a repaired one; build it by `wheelmill build`, which repairs.",
    )


def floor(wheel: WheelFile, files: Sequence[ElfFacts]) -> Iterator[Finding]:
    """Hold every symbol version and instruction that it needs against the oldest platform that it claims."""
    claimed = oldest(tag.rpartition("-")[2] for tag in wheel.wheel_tags)
    if not files or claimed is None:
        return
    problems = []
    for file in files:
        if file.machine not in {claimed.machine, "cuda"}:
            problems.append(f"{file.path} is for {file.machine}, and the wheel for {claimed.machine}")
            continue
        if file.isa:
            problems.append(f"{file.path} needs a processor of level {file.isa}")
        for version in claimed.beyond(file.requires):
            users = sorted(name for name, found in file.versions.items() if found == version)
            problems.append(
                f"{file.path} needs {version}, for {some(users)}" if users else f"{file.path} needs {version}"
            )
    needed = max((file.glibc_floor for file in files if file.glibc_floor), key=numbers, default="any")
    yield from judge(
        "floor",
        wheel.path.name,
        problems,
        fine=f"{claimed.tag} has every symbol version it needs (glibc {needed})",
        advice="Lower what is named (builds here do so for __libc_single_threaded), build on an older system, or let "
        "the tags say so: `wheelmill repair WHEEL`.",
    )


def numbers(version: str) -> list[int]:
    """Sort versions as numbers."""
    return [int(part) for part in version.split(".")]


def some(names: Sequence[str], count: int = 3) -> str:
    """List a few names."""
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")


def compiled(files: Sequence[ElfFacts]) -> Iterator[Finding]:
    """No code that writes into itself, no executable stack."""
    problems = [f"{file.path} has relocations in its code (TEXTREL)" for file in files if file.textrel]
    problems += [f"{file.path} asks for an executable stack" for file in files if file.execstack]
    if files:
        yield from judge(
            "elf",
            "extensions",
            problems,
            fine="no executable stack and no relocation in code",
            advice="Hardened systems refuse to load it; compile with -fPIC and link with -Wl,-z,noexecstack.",
        )


def libraries(wheel: WheelFile, files: Sequence[ElfFacts], expectation: Expectation) -> Iterator[Finding]:
    """Every library that it needs is the platform's, in the wheel, the driver's, or of a locked requirement."""
    claimed = oldest(tag.rpartition("-")[2] for tag in wheel.wheel_tags)
    if claimed is None or not files:
        return
    inside = set(carried(files))
    known = claimed.libraries | inside | DRIVER_LIBRARIES
    open_questions = sorted({soname for file in files for soname in file.needed} - known)
    beside = expectation.surroundings
    if beside is None:
        if open_questions:
            yield skipped("libraries", f"{some(open_questions)}: nothing is known of who brings them")
        return
    open_questions = [soname for soname in open_questions if soname not in beside.policy.owned]
    problems = []
    for soname in open_questions:
        problem = explain(soname, f"{some(users(soname, files))} needs {soname}", carried=inside, policy=beside.policy)
        problems.append((problem.text, any(is_module(file) for file in files if soname in file.needed)))
    yield from judge_modules(
        "libraries",
        problems,
        expectation,
        fine=f"all {len({soname for file in files for soname in file.needed})} libraries have an owner",
        advice="The build saw another toolkit or torch than the stack's, or the wheel lacks a requirement.",
    )


def is_module(file: ElfFacts) -> bool:
    """Tell what an import loads (a module, a library of torch operators) from what somebody may load or not."""
    linked = any(LINKS_TORCH.fullmatch(soname) for soname in file.needed)
    return linked or any(name.startswith("PyInit_") for name in file.exported)


def judge_modules(
    check: str, problems: Sequence[tuple[str, bool]], expectation: Expectation, *, fine: str, advice: str
) -> Iterator[Finding]:
    """Turn problems into findings; of a library that an import does not load, in a wheel of others, a warning.

    bitsandbytes carries a library for every CUDA, and loads the one that fits.
    """
    for text, module in problems:
        grave = module or bool(expectation.version)
        yield Finding(id=check, status="error" if grave else "warn", subject="extensions", message=text, advice=advice)
    if not problems:
        yield Finding(id=check, status="ok", subject="extensions", message=fine, advice="")


def users(soname: str, files: Iterable[ElfFacts]) -> list[str]:
    """Name the files that need a library."""
    return sorted(file.path for file in files if soname in file.needed)


def skipped(check: str, why: str) -> Finding:
    """Say that a check had nothing to compare with."""
    return Finding(
        id=check,
        status="skip",
        subject="extensions",
        message=f"{why}; no environment with the stack was given",
        advice="Name one: `wheelmill verify WHEEL --stack STACK --python ENV/bin/python`.",
    )


def symbols(wheel: WheelFile, files: Sequence[ElfFacts], expectation: Expectation) -> Iterator[Finding]:
    """Every undefined symbol is offered by the locked torch, CUDA, the interpreter, the driver or the platform."""
    beside = expectation.surroundings
    if not any(file.undefined for file in files):
        return
    if beside is None:
        yield skipped("symbols", "undefined symbols were not looked for")
        return
    wanted = {soname for file in files for soname in file.needed}
    known = providers(beside.site_packages, beside.policy.owned, sorted(wanted))
    claimed = oldest(tag.rpartition("-")[2] for tag in wheel.wheel_tags)
    offered = platform_offer(sorted(claimed.libraries & wanted) if claimed else ())
    lacking = missing(files, known, offered=offered)
    problems = [
        (text, is_module(file) and not text.endswith(NOBODY))  # something else may have loaded it before (cupy does)
        for file in files
        for text in summarise(each for each in lacking if each.path == file.path)
    ]
    yield from judge_modules(
        "symbols",
        problems,
        expectation,
        fine=f"all {len({name for file in files for name in file.undefined})} undefined symbols have an owner",
        advice="It would fail at import with `undefined symbol`; build it against the locked torch and CUDA.",
    )


LINKS_TORCH = re.compile(r"lib(torch|c10)[^/]*\.so.*")


def requirements(inspection: Inspection, expectation: Expectation) -> Iterator[Finding]:
    """METADATA pins the very torch that the extension was compiled against."""
    linked = any(LINKS_TORCH.fullmatch(soname) for file in inspection.elf for soname in file.needed)
    found = (inspection.requires_torch or "nothing").replace(" ", "")
    if expectation.torch:
        wanted = f"torch=={expectation.torch}"
        yield from judge(
            "requires-torch",
            inspection.name,
            [] if found == wanted else [f"METADATA requires {found}, and it was compiled against {wanted}"],
            fine=f"METADATA requires {wanted}",
            advice="Beside another torch it would fail at import; build it again, so that the stamp is right.",
        )
    elif not linked or canonicalize_name(inspection.name) == "torch":
        return
    elif not pins(found):
        yield Finding(
            id="requires-torch",
            status="warn",
            subject=inspection.name,
            message=f"it is linked to torch's libraries, and METADATA requires {found}",
            advice="Installers will put it beside any torch; unless it keeps to torch's stable ABI it fails at import.",
        )
    else:
        message = f"METADATA requires {found}"
        yield Finding(id="requires-torch", status="ok", subject=inspection.name, message=message, advice="")


def pins(requirement: str) -> bool:
    """Tell whether a requirement names one release."""
    if requirement == "nothing":
        return False
    return any(each.operator in {"==", "==="} for each in Requirement(requirement).specifier)


def run_paths(files: Iterable[ElfFacts]) -> Iterator[Finding]:
    """No library is looked for at a path of the machine that built it."""
    problems = [
        f"{file.path} has run path {part}"
        for file in files
        for part in (file.rpath or "").split(":")
        if part and not part.startswith(("$ORIGIN", "${ORIGIN}"))
    ]
    yield from judge(
        "run-path",
        "extensions",
        problems,
        fine="no run path of the building machine",
        advice="Links must go through the launcher, which drops such paths; check the package's own linker flags.",
    )


def device_code(files: Iterable[ElfFacts], expectation: Expectation) -> Iterator[Finding]:
    """Hold the device code of every extension against what was asked for, by the rule that the recipe has for it."""
    if not expectation.archs:
        return
    present = {file.path: file.device_code.archs for file in files}
    problems = []
    for path, archs in sorted(present.items()):
        policy = policy_of(path, expectation)
        named = is_one_of(path, expectation.extensions)
        problems += [f"{path} {text}" for text in code_problems(archs, policy, expectation.archs, named=named)]
    problems += [
        f"there is no extension {name}"
        for name in (*expectation.extensions, *expectation.code)
        if not any(is_one_of(path, (name,)) for path in present)
    ]
    wanted = {name for arch in expectation.archs for name in codes(arch)}
    yield from judge(
        "device-code",
        "extensions",
        list(dict.fromkeys(problems)),
        fine=f"every extension with device code holds exactly {spell(wanted)}"
        if not expectation.code
        else f"every extension has the device code that its rule asks for ({spell(wanted)})",
        advice="See `compile.jsonl` beside the log: it shows what each compile was asked for and what was used.",
    )


def codes(arch: Arch) -> tuple[str, ...]:
    """Name the code that asking for an architecture makes."""
    return (arch.sm, arch.compute) if arch.ptx else (arch.sm,)


def policy_of(path: str, expectation: Expectation) -> CodePolicy:
    """Give the rule for an extension."""
    return next((found for name, found in expectation.code.items() if is_one_of(path, (name,))), CodePolicy())


def code_problems(archs: Sequence[Arch], policy: CodePolicy, asked: Sequence[Arch], *, named: bool) -> Iterator[str]:
    """Compare the code of one extension with its rule; one that is not named may have none."""
    wanted = policy.archs or asked
    expected_codes = {name for arch in wanted for name in codes(arch)}
    found = {arch.compute if arch.ptx else arch.sm for arch in archs}
    holds = f"holds {spell(found) if found else 'no device code'}"
    if policy.rule == "none":
        if found:
            yield f"{holds}, and none was to be in it"
    elif not found:
        if named:
            yield f"{holds}, and {spell(expected_codes)} was asked for"
    elif policy.rule == "exactly":
        if found != expected_codes:
            yield f"{holds}, and {spell(expected_codes)} was asked for"
    elif policy.rule == "at-least":
        if lacking := expected_codes - found:
            yield f"{holds}, and lacks {spell(lacking)}"
    elif unserved := [arch.sm for arch in wanted if not any(code_runs_on(each, arch) for each in archs)]:
        yield f"{holds}, of which nothing runs on {spell(unserved)}"


def kernels(files: Iterable[ElfFacts], expectation: Expectation) -> Iterator[Finding]:
    """Every kernel exists for every architecture: one that is missing fails when it is launched, hours later."""
    if not expectation.archs:
        return
    problems: list[str] = []
    count = 0
    for file in files:
        policy = policy_of(file.path, expectation)
        count += len(file.device_code.kernels)
        if policy.kernels == "every" and policy.rule != "none":
            problems += kernel_problems(file, policy, policy.archs or expectation.archs)
    if count:
        yield from judge(
            "kernels",
            "extensions",
            problems,
            fine=f"all {count} kernels exist for every architecture asked for",
            advice='Compile every unit for every arch; where a package means it so, `kernels = "any"` in the recipe.',
        )


def kernel_problems(file: ElfFacts, policy: CodePolicy, asked: Sequence[Arch]) -> Iterator[str]:
    """Find the kernels of one file that are missing for an architecture; PTX counts where the rule says so."""
    for arch in asked:
        if not any(code_runs_on(each, arch) for each in file.device_code.archs if policy.rule == "ptx" or not each.ptx):
            continue  # there is none at all: the check of device code says so
        runs: dict[tuple[str, ...], bool] = {}
        for names in file.device_code.kernels.values():
            if names not in runs:
                there = [Arch.of_code(name) for name in names]
                runs[names] = any(code_runs_on(each, arch) for each in there if policy.rule == "ptx" or not each.ptx)
        lacking = [kernel for kernel, names in file.device_code.kernels.items() if not runs[names]]
        if lacking:
            yield f"{file.path} has no {arch.sm} of {some(lacking)}, which it has for other architectures"


def is_one_of(path: str, names: Iterable[str]) -> bool:
    """Say whether a member is the module of one of these names, whatever its ABI suffix (a `.pth` is no module)."""
    return path.endswith((".so", ".py")) and any(path.startswith(f"{name}.") for name in names)


def spell(archs: Iterable[str]) -> str:
    """List architectures for people."""
    return ", ".join(sorted(archs)) or "nothing"


LEFTOVER = re.compile(r"(^|/)(__pycache__/|\.git/|CMakeFiles/|\.ninja_log$|\.ninja_deps$)|\.(pyc|o|obj)$")
"""What a build leaves behind and no wheel should carry."""
LIMITS = {"pypi": 100_000_000, "github": 2 << 30}
"""What a channel takes as one file, unless somebody was granted more (PyPI; releases on GitHub)."""


def sizes(inspection: Inspection, expectation: Expectation) -> Iterator[Finding]:
    """Compare its size with what the channel takes for which it is meant."""
    if limit := LIMITS.get(expectation.channel, 0):
        problems = []
        if inspection.size > limit:
            problems.append(f"it has {inspection.size:,} bytes, and {expectation.channel} takes {limit:,}")
        yield from judge(
            "size",
            inspection.name,
            problems,
            fine=f"{inspection.size:,} bytes, of the {limit:,} that {expectation.channel} takes",
            advice="Build for fewer architectures, publish elsewhere, or ask the channel for more.",
        )


def contents(wheel: WheelFile, expectation: Expectation) -> Iterator[Finding]:
    """Nothing stray stands at the top, and the licences that must travel do."""
    members = [name for name in wheel.record if not name.startswith(f"{wheel.dist_info}/")]
    problems = []
    if expectation.top_level:
        tops = {name.partition("/")[0] for name in members}
        allowed = {*expectation.top_level, *(top for top in tops if is_one_of(top, expectation.top_level))}
        problems += [f"stray top-level {name}" for name in sorted(tops - allowed)]
        problems += [
            f"{name} is missing"
            for name in expectation.top_level
            if not any(is_one_of(t, (name,)) or t == name for t in tops)
        ]
    problems += [
        f"{path} is in it, and must not be"
        for path in expectation.absent
        if any(name == path or name.startswith(f"{path}/") for name in members)
    ]
    problems += [f"{name} is a leftover of the build" for name in members if LEFTOVER.search(name)]
    problems += [
        f"the licence {path} is not in it"
        for path in expectation.licenses
        if not any(name.startswith(f"{wheel.dist_info}/") and name.endswith(f"/{path}") for name in wheel.record)
    ]
    yield from judge(
        "contents",
        wheel.path.name,
        problems,
        fine="nothing stray at the top level, licences are in it",
        advice="The recipe's checks and licenses say what belongs in the wheel; correct the recipe or its patches.",
    )


TEMPORARY_NAME = re.compile(rb"tmpxft_[0-9a-f]{8}_")
"""How nvcc names its intermediate files: after its process id."""
SHORT_PATH = 8


def paths(inspection: Inspection, expectation: Expectation) -> Iterator[Finding]:
    """No file tells of the machine that built it: no folder of its cache or home, no process id of nvcc."""
    found = [f"{name} holds {trace!r}" for name, hits in sorted(inspection.matches.items()) for trace in hits]
    yield from (
        Finding(
            id="paths",
            status="error" if expectation.shut_in else "warn",
            subject=inspection.name,
            message=problem,
            advice="Another machine would make other bytes; look in the log for the command that names it.",
        )
        for problem in found
    )
    if not found:
        message = "no path and no process id of the building machine"
        yield Finding(id="paths", status="ok", subject=inspection.name, message=message)


def needles(name: str, expectation: Expectation) -> list[re.Pattern[bytes]]:
    """Give what would be a trace of the building machine in one file.

    A short folder (`/root/`) stands in many a text, so it counts in compiled code alone.
    """
    is_compiled = ".so" in name.rpartition("/")[2]
    return [
        TEMPORARY_NAME,
        *(
            re.compile(re.escape(folder.rstrip("/").encode()) + rb"/")
            for folder in expectation.machine_paths
            if folder.strip("/") and (is_compiled or len(folder) >= SHORT_PATH)
        ),
    ]
