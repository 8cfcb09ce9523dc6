"""Verify: a wheel is what it claims and what was asked for; every finding at once, nothing enters without."""

import hashlib
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from packaging.version import Version

from .arch import Arch
from .derivation import Derivation, canonical
from .elf import ElfFacts
from .errors import VerifyError
from .inspection import Inspection, inspect_wheel
from .preflight import Finding
from .wheel_file import DAMAGE, Member, WheelFile, check_record, disagreements, open_members, read_wheel

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
    shut_in: bool = False
    """Whether the build was in a sandbox, so that a trace of the machine is an error and no surprise."""


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
    """Run every static check on a wheel; VerifyError only where it is no readable wheel."""
    wheel = read_wheel(path)
    inspection = inspect_wheel(path)
    return inspection, (
        *names(wheel, expectation),
        *record(path),
        *platform(wheel, expectation),
        *requirements(inspection, expectation),
        *run_paths(inspection.elf),
        *device_code(inspection.elf, expectation),
        *contents(wheel, expectation),
        *paths(path, expectation),
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


def record(path: Path) -> Iterator[Finding]:
    """RECORD lists every file with its digest."""
    yield from judge(
        "record",
        path.name,
        check_record(path),
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


def requirements(inspection: Inspection, expectation: Expectation) -> Iterator[Finding]:
    """METADATA pins the very torch that the extension was compiled against."""
    if not expectation.torch:
        return
    wanted = f"torch=={expectation.torch}"
    found = (inspection.requires_torch or "nothing").replace(" ", "")
    yield from judge(
        "requires-torch",
        inspection.name,
        [] if found == wanted else [f"METADATA requires {found}, and it was compiled against {wanted}"],
        fine=f"METADATA requires {wanted}",
        advice="Beside another torch it would fail at import; build it again, so that the stamp is right.",
    )


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
    """Hold the device code of every extension against what was asked for: exactly that."""
    if not expectation.archs:
        return
    present = {file.path: file.device_code for file in files}
    problems = []
    sass = {arch.sm for arch in expectation.archs}
    ptx = {arch.compute for arch in expectation.archs if arch.ptx}
    for path, code in sorted(present.items()):
        found_sass = {arch.sm for arch in code.archs if not arch.ptx}
        found_ptx = {arch.compute for arch in code.archs if arch.ptx}
        if (found_sass or found_ptx) and (found_sass, found_ptx) != (sass, ptx):
            problems.append(f"{path} holds {spell(found_sass | found_ptx)}, and {spell(sass | ptx)} was asked for")
        elif is_one_of(path, expectation.extensions) and not found_sass:
            problems.append(f"{path} holds no device code, and {spell(sass | ptx)} was asked for")
    problems += [
        f"there is no extension {name}"
        for name in expectation.extensions
        if not any(is_one_of(path, (name,)) for path in present)
    ]
    yield from judge(
        "device-code",
        "extensions",
        problems,
        fine=f"every extension with device code holds exactly {spell(sass | ptx)}",
        advice="See `compile.jsonl` beside the log: it shows what each compile was asked for and what was used.",
    )


def is_one_of(path: str, names: Iterable[str]) -> bool:
    """Say whether a member is the module of one of these names, whatever its ABI suffix (a `.pth` is no module)."""
    return path.endswith((".so", ".py")) and any(path.startswith(f"{name}.") for name in names)


def spell(archs: Iterable[str]) -> str:
    """List architectures for people."""
    return ", ".join(sorted(archs)) or "nothing"


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
CHUNK = 1 << 20


def paths(path: Path, expectation: Expectation) -> Iterator[Finding]:
    """No file tells of the machine that built it: no folder of its cache or home, no process id of nvcc."""
    with open_members(path) as members:
        found = [f"{member.name} holds {trace}" for member in members for trace in traces(member, expectation)]
    fine = Finding(
        id="paths", status="ok", subject=path.name, message="no path and no process id of the building machine"
    )
    yield from (
        Finding(
            id="paths",
            status="error" if expectation.shut_in else "warn",
            subject=path.name,
            message=problem,
            advice="Another machine would make other bytes; look in the log for the command that names it.",
        )
        for problem in found
    )
    if not found:
        yield fine


def traces(member: Member, expectation: Expectation) -> Iterator[str]:
    """Give each trace of the building machine in one file.

    A short folder (`/root/`) stands in many a text, so it counts in compiled code alone.
    """
    compiled = ".so" in member.name.rpartition("/")[2]
    needles = [
        re.compile(re.escape(folder.rstrip("/").encode()) + rb"/")
        for folder in expectation.machine_paths
        if folder.strip("/") and (compiled or len(folder) >= SHORT_PATH)
    ]
    for needle in (TEMPORARY_NAME, *needles):
        try:
            with member.open() as stream:
                hit = first_match(stream, needle)
        except DAMAGE:
            return  # the check of RECORD says so
        if hit is not None:
            yield repr(hit.decode("utf-8", "replace"))


def first_match(stream: IO[bytes], needle: re.Pattern[bytes]) -> bytes | None:
    """Give the first match and what follows it, a piece at a time; a match may lie across two pieces."""
    kept = b""
    while chunk := stream.read(CHUNK):
        text = kept + chunk
        if match := needle.search(text):
            return re.split(rb"[^\x20-\x7e]", text[match.start() : match.start() + 200])[0]
        kept = text[-(len(needle.pattern) + 16) :]
    return None
