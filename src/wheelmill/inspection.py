"""What is in a wheel: name, tags, and what each ELF file in it needs and brings.

Every member is unpacked once, a piece at a time and several members at once (zlib, lz4 and hashlib let other threads
run); digests, device code and whatever else somebody looks for are found in that one pass.
"""

import ctypes
import errno
import hashlib
import os
import re
import tempfile
import zlib
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import BinaryIO, cast
from zipfile import BadZipFile, ZipFile, ZipInfo

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from .arch import Arch, machine_of, served, spell_gpus
from .elf import MAGIC as ELF_MAGIC
from .elf import ElfFacts
from .errors import NO_ROOM, DeviceCodeError, VerifyError
from .skim import Skimmer

SCHEMA = 1
WORKERS = 2
"""More would wait for the largest member, and each holds an entry of device code in memory."""
M_MMAP_THRESHOLD, LARGE = -3, 1 << 20
METADATA_MAX = 16 << 20
MATCH_MAX = 256
"""What of a match is kept for the report, and how far one may reach from one piece into the next."""
ZIP_ERRORS = (BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)
"""Damaged, truncated, compressed in a way that wheels may not be, or encrypted."""
DAMAGED = "Download or build it again; a wheel is a zip file with one *.dist-info directory."


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """A wheel, by what it claims and what it holds."""

    name: str
    version: str
    tags: tuple[str, ...]
    requires_torch: str | None
    """The requirement as METADATA writes it."""
    elf: tuple[ElfFacts, ...]
    size: int
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of every member, as RECORD spells them."""
    matches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What was looked for and found, by member."""
    damage: Mapping[str, str] = field(default_factory=dict)
    """Members that cannot be read, and why; empty unless the caller goes on in spite of it."""

    @property
    def archs(self) -> tuple[Arch, ...]:
        """Every architecture that some file in it has code for."""
        return tuple(sorted({arch for file in self.elf for arch in file.device_code.archs}))

    @property
    def gpus(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """The GPUs that every file with device code runs on, those that some do, and the others.

        GPUs of another kind of machine than the wheel's tags name are left out.
        """
        files = [file.device_code.archs for file in self.elf if file.device_code.archs and file.machine != "cuda"]
        files = files or ([self.archs] if self.archs else [])
        hosts = {file.machine for file in self.elf} - {"cuda"}
        machine = machine_of(self.tags) or (hosts.pop() if len(hosts) == 1 else "")
        runs = [set(served(archs, machine=machine)[0]) for archs in files]
        known = served((), machine=machine)[1] if runs else ()
        common, some = (set.intersection(*runs), set.union(*runs)) if runs else (set(), set())
        return (
            tuple(name for name in known if name in common),
            tuple(name for name in known if name in some - common),
            tuple(name for name in known if name not in some),
        )

    def report(self, *, kernels: bool = False) -> Iterator[str]:
        """Describe it for people, a line each; cubins, of which there may be thousands, in one."""
        yield f"{self.name} {self.version}  {', '.join(self.tags)}  {self.size:,} bytes".replace("    ", "  ")
        if self.tags:
            yield f"  requires {self.requires_torch or 'no torch'}"
        cubins = [file for file in self.elf if file.machine == "cuda"]
        for file in self.elf:
            if file.machine != "cuda":
                yield census_line(file, kernels=kernels)
                if kernels:
                    yield from (f"    {name}: {' '.join(codes)}" for name, codes in file.device_code.kernels.items())
        if cubins:
            counts = Counter(name for file in cubins for name in file.device_code.sass)
            yield f"  {len(cubins)} cubins: {', '.join(f'{name} {n}' for name, n in sorted(counts.items()))}"
        served, partly, not_served = self.gpus
        for what, names in (("runs on", served), ("in part on", partly), ("does not run on", not_served)):
            if names:
                yield f"  {what}: {spell_gpus(names)}"

    def to_json(self, *, kernels: bool = False) -> dict[str, object]:
        """Give the document of `inspect --json`; `kernels` adds the name of every one."""
        gpus, partly, not_served = self.gpus
        return {
            "schema": SCHEMA,
            "name": self.name,
            "version": self.version,
            "tags": list(self.tags),
            "requires_torch": self.requires_torch,
            "elf": [elf_to_json(elf, kernels=kernels) for elf in self.elf],
            "gpus": list(gpus),
            "gpus_partly": list(partly),
            "gpus_not_served": list(not_served),
            "size": self.size,
        }


def census_line(file: ElfFacts, *, kernels: bool) -> str:
    """Describe one ELF file for people."""
    code = file.device_code
    parts = [f"{name} {count} ({megabytes(code.sass_bytes.get(name, 0))})" for name, count in code.sass.items()]
    parts += [
        f"{name.replace('sm_', 'compute_')} {count} ({megabytes(code.ptx_bytes.get(name, 0))})"
        for name, count in code.ptx.items()
    ]
    text = f"  {file.path}: {', '.join(parts) or 'no device code'}; glibc {file.glibc_floor or 'any'}"
    if file.needed:
        text += f"; needs {', '.join(file.needed)}"
    return text + (f"; {len(code.kernels)} kernels" if kernels and parts else "")


def megabytes(count: int) -> str:
    """Spell a size for people."""
    return f"{count / 1e6:.1f} MB"


def elf_to_json(elf: ElfFacts, *, kernels: bool = False) -> dict[str, object]:
    """Give one entry of `elf` in that document."""
    names = {"kernel_names": {name: list(codes) for name, codes in elf.device_code.kernels.items()}} if kernels else {}
    return {
        "path": elf.path,
        "needed": list(elf.needed),
        "rpath": elf.rpath,
        "glibc_floor": elf.glibc_floor,
        "device_code": elf.device_code.to_json() | names,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What one pass over a wheel looks for.

    `algorithms`: the digest that RECORD has of a member (sha256 where it is not said); `needles`: what must not stand
    in a member; `keep`: a folder for sparse copies of ELF files, in the wheel's own layout; `tolerant`: damaged members
    are recorded, and do not end the pass.
    """

    kernels: bool = False
    algorithms: Mapping[str, str] = field(default_factory=dict)
    needles: Callable[[str], Sequence[re.Pattern[bytes]]] = lambda _: ()
    keep: Path | None = None
    scratch: Path | None = None
    tolerant: bool = False

    def copy_of(self, name: str) -> BinaryIO:
        """Open the file for the sparse copy of a member."""
        if self.keep is None:
            return cast("BinaryIO", tempfile.TemporaryFile(dir=self.scratch))
        path = self.keep / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w+b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One member, as a pass saw it."""

    name: str
    digest: str
    elf: ElfFacts | None
    matches: tuple[str, ...]
    damage: str = ""


def inspect_file(path: Path, *, kernels: bool = False) -> Inspection:
    """Look at a wheel, or at one library or cubin by itself; raises VerifyError when it is neither."""
    look = Look(kernels=kernels)
    try:
        with path.open("rb") as stream:
            if stream.read(len(ELF_MAGIC)) != ELF_MAGIC:
                return inspect_wheel(path, look=look)
        ear = Ear(algorithm="sha256", needles=())
        skimmer = Skimmer(scratch=look.copy_of, kernels=kernels)
        elf = skimmer.read(path.name, path.stat().st_size, lambda: path.open("rb"), ear)
    except OSError as error:
        raise VerifyError(
            f"{path}: cannot be read: {error.strerror or error}", advice="Give the path of a .whl or .so file."
        ) from error
    return Inspection(
        name=path.name, version="", tags=(), requires_torch=None, elf=(elf,) if elf else (), size=path.stat().st_size,
        digests={path.name: ear.spelled},
    )  # fmt: skip


def inspect_wheel(path: Path, *, scratch: Path | None = None, look: Look | None = None) -> Inspection:
    """Open a wheel and look at all it holds; what is not device code of an ELF file goes through a temporary file.

    Raises VerifyError when it is no readable wheel.
    """
    look = look or Look(scratch=scratch)
    try:
        with ZipFile(path) as archive:
            dist_info = dist_info_of(archive, path)
            metadata = headers(archive, f"{dist_info}/METADATA", path)
            wheel = headers(archive, f"{dist_info}/WHEEL", path)
            seen = survey(archive, look)
            return Inspection(
                name=required(metadata, "Name", path, f"{dist_info}/METADATA"),
                version=required(metadata, "Version", path, f"{dist_info}/METADATA"),
                tags=tuple(sorted(str(tag).strip() for tag in wheel.get_all("Tag", []))),
                requires_torch=torch_requirement(metadata),
                elf=tuple(member.elf for member in seen if member.elf is not None),
                size=path.stat().st_size,
                digests={member.name: member.digest for member in seen if not member.damage},
                matches={member.name: member.matches for member in seen if member.matches},
                damage={member.name: member.damage for member in seen if member.damage},
            )
    except DeviceCodeError as error:
        raise DeviceCodeError(f"{path.name}: {error}", advice=error.advice) from error
    except ZIP_ERRORS as error:
        raise VerifyError(f"{path}: no readable wheel: {error}", advice=DAMAGED) from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise VerifyError(
            f"{path}: cannot be read: {error.strerror or error}", advice="Give the path of a .whl file."
        ) from error


def survey(archive: ZipFile, look: Look) -> tuple[Seen, ...]:
    """Read every member, the largest first so that none is waited for alone; by name."""
    members = [info for info in archive.infolist() if not info.filename.endswith("/")]
    members.sort(key=lambda info: -info.file_size)
    give_back_large_pieces()
    workers = min(WORKERS, len(os.sched_getaffinity(0)), max(len(members), 1))
    with ThreadPoolExecutor(workers) as pool:
        seen = list(pool.map(lambda info: look_at(archive, info, look), members))
    return tuple(sorted(seen, key=lambda member: member.name))


def give_back_large_pieces() -> None:
    """Have glibc return what is large as soon as it is freed.

    By default it keeps pieces of up to 32 MB for later, in an arena per thread: 339 MB for vLLM 0.15.1 instead of 188.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)


def look_at(archive: ZipFile, info: ZipInfo, look: Look) -> Seen:
    """Read one member to its end."""
    ear = Ear(algorithm=look.algorithms.get(info.filename, "sha256"), needles=look.needles(info.filename))
    skimmer = Skimmer(scratch=look.copy_of, kernels=look.kernels)
    elf, damage = None, ""
    try:
        elf = skimmer.read(info.filename, info.file_size, lambda: archive.open(info), ear)
        if ear.total != info.file_size:
            raise BadZipFile(f"{info.filename} unpacks to {ear.total} bytes, not {info.file_size}")
    except (DeviceCodeError, *ZIP_ERRORS) as error:
        if not look.tolerant:
            raise
        damage = str(error) or type(error).__name__
    except OSError as error:
        if not look.tolerant or error.errno != errno.EINVAL:  # a damaged list sends zipfile to before the beginning
            raise
        damage = str(error)
    return Seen(name=info.filename, digest=ear.spelled, elf=elf, matches=tuple(ear.found), damage=damage)


class Ear:
    """Digest what goes by, and look for patterns in it; the first match of each counts."""

    def __init__(self, *, algorithm: str, needles: Iterable[re.Pattern[bytes]]) -> None:
        self.algorithm, self.digest = algorithm, hashlib.new(algorithm)
        self.needles, self.tail = list(needles), b""
        self.found: list[str] = []
        self.total = 0

    def __call__(self, chunk: bytes) -> None:
        """Take one piece."""
        self.digest.update(chunk)
        self.total += len(chunk)
        if not self.needles:
            return
        text = self.tail + chunk
        for needle in tuple(self.needles):
            if match := needle.search(text):
                hit = re.split(rb"[^\x20-\x7e]", text[match.start() : match.start() + MATCH_MAX])[0]
                self.found.append(hit.decode("utf-8", "replace"))
                self.needles.remove(needle)
        self.tail = text[-MATCH_MAX:]

    @property
    def spelled(self) -> str:
        """The digest as RECORD spells it."""
        return f"{self.algorithm}={urlsafe_b64encode(self.digest.digest()).rstrip(b'=').decode()}"


def dist_info_of(archive: ZipFile, path: Path) -> str:
    """Find the one dist-info directory at the top of the wheel; raises VerifyError for none or several."""
    tops = {name.partition("/")[0] for name in archive.namelist() if "/" in name}
    match sorted(top for top in tops if top.endswith(".dist-info")):
        case [only]:
            return only
        case []:
            raise VerifyError(f"{path}: no wheel: it has no *.dist-info directory", advice=DAMAGED)
        case several:
            raise VerifyError(f"{path}: no wheel: it has several of {', '.join(several)}", advice=DAMAGED)


def headers(archive: ZipFile, member: str, path: Path) -> Message:
    """Read a metadata file; raises VerifyError when it is missing or absurdly large."""
    try:
        info = archive.getinfo(member)
    except KeyError:
        raise VerifyError(f"{path}: no wheel: {member} is missing", advice=DAMAGED) from None
    if info.file_size > METADATA_MAX:
        raise VerifyError(f"{path}: no wheel: {member} has {info.file_size} bytes", advice=DAMAGED)
    return BytesParser().parsebytes(archive.read(info))


def required(message: Message, field: str, path: Path, member: str) -> str:
    """Read a field that must be there."""
    value = message[field]
    if value is None:
        raise VerifyError(f"{path}: {member} has no field {field}", advice=DAMAGED)
    return str(value).strip()


def torch_requirement(metadata: Message) -> str | None:
    """Find the requirement on torch that holds without extras."""
    for text in metadata.get_all("Requires-Dist", []):
        try:
            requirement = Requirement(str(text))
        except InvalidRequirement:
            continue
        extra_only = requirement.marker is not None and "extra" in str(requirement.marker)
        if canonicalize_name(requirement.name) == "torch" and not extra_only:
            return str(text).strip()
    return None
