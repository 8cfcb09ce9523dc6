"""GPU architectures: how they are written, which code runs on which GPU, and which GPUs that means."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Self

CAPABILITIES = (
    "7.0", "7.2", "7.5", "8.0", "8.6", "8.7", "8.8", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"
)  # fmt: skip
FIRST_WITH_SUFFIX = {"a": (9, 0), "f": (10, 0)}
"""Architecture-specific code came with Hopper, family-specific code with Blackwell (nvcc 12.9)."""
RENAMED = {"10.1": "11.0"}
"""CUDA 12.8 and 12.9 called Thor sm_101; CUDA 13.0 renamed it and dropped the old number."""
CODENAMES = {
    "volta": "7.0",
    "turing": "7.5",
    "ampere": "8.0 (A100) or 8.6 (RTX 30, A40)",
    "ada": "8.9",
    "hopper": "9.0",
    "blackwell": "10.0 (B200) or 12.0 (RTX PRO 6000, RTX 50)",
}

HOSTS = ("x86_64", "aarch64")

NUMBER = r"(?P<major>[1-9][0-9]{0,2}){dot}(?P<minor>[0-9])(?P<suffix>[af]?)"
DOTTED = re.compile(NUMBER.replace("{dot}", r"\.") + r"(?P<ptx>\+PTX)?")
CODE = re.compile(r"(?P<kind>sm|compute)_" + NUMBER.replace("{dot}", ""))
GLUED = re.compile(
    r"(?:sm|compute)?[-_ ]?" + NUMBER.replace("{dot}", r"\.?") + r"(?P<ptx>\+?ptx)?", re.IGNORECASE | re.ASCII
)
"""Nearly right: only ever used to guess what was meant."""


@dataclass(frozen=True, order=True, kw_only=True, slots=True)
class Arch:
    """An architecture to compile for, or of code that was compiled; `ptx` means that there is PTX of it."""

    major: int
    minor: int
    suffix: str = ""
    ptx: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `10.0`, `10.0a`, `12.0+PTX`, `sm_100a` or `compute_90`.

        Raises ValueError, with what was probably meant, for an architecture that does not exist.
        """
        match = DOTTED.fullmatch(text) or CODE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not an architecture{meant(text)}")
        arch = cls.from_match(match)
        if (number := f"{arch.major}.{arch.minor}") not in CAPABILITIES:
            raise ValueError(f"{text!r}: no GPU has compute capability {number}{nearest(number)}")
        since = FIRST_WITH_SUFFIX.get(arch.suffix, (0, 0))
        if (arch.major, arch.minor) < since:
            first = "{}.{}".format(*since)
            raise ValueError(f"{text!r}: suffix {arch.suffix!r} begins with {first}; did you mean '{number}'?")
        return arch

    @classmethod
    def of_code(cls, name: str) -> Self:
        """Read the name of compiled code (`sm_52`, `compute_90a`), also of a GPU that we do not build for.

        Raises ValueError when it is no such name.
        """
        match = CODE.fullmatch(name)
        if match is None:
            raise ValueError(f"{name!r} is not the name of compiled code, such as sm_100 or compute_90")
        return cls.from_match(match)

    @classmethod
    def from_match(cls, match: re.Match[str]) -> Self:
        """Take the fields of one of the patterns above."""
        found = match.groupdict()
        return cls(
            major=int(found["major"]),
            minor=int(found["minor"]),
            suffix=found["suffix"],
            ptx=bool(found.get("ptx")) or found.get("kind") == "compute",
        )

    @property
    def dotted(self) -> str:
        """As torch writes it, without PTX: `10.0a`."""
        return f"{self.major}.{self.minor}{self.suffix}"

    @property
    def digits(self) -> str:
        """As flash-attn and file names write it: `100a`."""
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def sm(self) -> str:
        """As nvcc names machine code: `sm_100a`."""
        return f"sm_{self.digits}"

    @property
    def compute(self) -> str:
        """As nvcc names PTX: `compute_100a`."""
        return f"compute_{self.digits}"

    def gencode(self) -> tuple[str, ...]:
        """Give nvcc's arguments for machine code of this architecture, and its PTX where that is wanted."""
        code = (self.sm, self.compute) if self.ptx else (self.sm,)
        return tuple(f"-gencode=arch={self.compute},code={name}" for name in code)

    def __str__(self) -> str:
        """Write it so that `parse` reads it back."""
        return f"{self.dotted}+PTX" if self.ptx else self.dotted


def meant(text: str) -> str:
    """Guess what a word that is no architecture was meant to be, as the end of a sentence."""
    if code := CODENAMES.get(text.strip().lower()):
        return f"; did you mean {code}?"
    if match := GLUED.fullmatch(text.strip()):
        guess = Arch.from_match(match)
        guess = replace(guess, suffix=guess.suffix.lower())
        if f"{guess.major}.{guess.minor}" in CAPABILITIES:
            return f"; did you mean '{guess}'?"
    if gpu := gpu_called(text.strip().lower()):
        return f"; did you mean '{gpu.capability}' ({gpu.name})?"
    return "; write it like '10.0', '10.0a' or '12.0+PTX'"


def gpu_called(text: str) -> "Gpu | None":
    """Find the GPU that a lower-case name or the beginning of one means, if any."""
    by_name = {gpu.name.lower(): gpu for gpu in gpus()}
    begins = [name for name in by_name if text and name.startswith(f"{text} ")]
    close = get_close_matches(text, by_name, n=1, cutoff=0.8)
    return by_name[([text] if text in by_name else begins or close)[0]] if begins or close else None


def nearest(number: str) -> str:
    """Name the existing capabilities closest to one that does not exist, as the end of a sentence."""
    if number in RENAMED:
        return f"; since CUDA 13.0 it is {RENAMED[number]} (Thor)"
    major = number.partition(".")[0]
    same = [known for known in CAPABILITIES if known.partition(".")[0] == major]
    if same:
        return f"; did you mean {' or '.join(repr(known) for known in same)}?"
    return f"; known are {', '.join(CAPABILITIES)}"


def code_runs_on(code: Arch, capability: Arch) -> bool:
    """Tell whether code compiled for `code` runs on a GPU of this capability.

    Machine code runs on its major version from its minor version on; with suffix `a` on that one GPU only,
    with `f` in its family; PTX is compiled by the driver for any newer GPU, unless it has a suffix.
    (Blackwell Compatibility Guide 13.0; the families known so far coincide with the major versions.)
    """
    made, runs = (code.major, code.minor), (capability.major, capability.minor)
    if code.suffix == "a":
        return made == runs
    if code.ptx and not code.suffix:
        return made <= runs
    return code.major == capability.major and made <= runs


def why_not(code: Arch, capability: Arch) -> str:
    """Say which rule keeps code from running on a GPU of this capability; empty where it runs."""
    if code_runs_on(code, capability):
        return ""
    name = code.compute if code.ptx else code.sm
    if code.suffix == "a":
        return f"{name} code runs on {code.major}.{code.minor} alone"
    if code.suffix == "f":
        return f"{name} code runs in its family, {code.major}.{code.minor} to {code.major}.9"
    if code.ptx:
        return f"{name} is compiled by the driver for {code.major}.{code.minor} and newer"
    return f"{name} code runs on {code.major}.{code.minor} to {code.major}.9"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU by its marketing name."""

    name: str
    capability: Arch
    hosts: tuple[str, ...] = HOSTS
    """The processors of the machines that it exists in."""
    toolkit: str = ""
    """The first CUDA release that compiles for it."""
    driver: int = 0
    """The first branch of Linux drivers that runs it."""


@cache
def gpus() -> tuple[Gpu, ...]:
    """List the GPUs we know, newest first."""
    table = tomllib.loads((files(__package__) / "data" / "gpus.toml").read_text(encoding="utf-8"))
    only = {name: (host,) for host, names in table["hosts"].items() for name in names}
    return tuple(
        Gpu(
            name=name,
            capability=Arch.parse(capability),
            hosts=only.get(name, HOSTS),
            toolkit=table["requires"][capability]["toolkit"],
            driver=table["requires"][capability]["driver"],
        )
        for capability, names in table["capabilities"].items()
        for name in names
    )


def machine_of(tags: Iterable[str]) -> str:
    """Tell for which kind of machine a wheel of these tags is; empty for any."""
    found = {match[0] for tag in tags if (match := re.search(r"x86_64$|aarch64$", tag))}
    return found.pop() if len(found) == 1 else ""


def served(archs: Iterable[Arch], *, machine: str = "x86_64") -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the known GPUs into those that code for these architectures runs on, and the others.

    Only GPUs that exist in this kind of machine count: no x86_64 wheel meets a GB200. Empty: all.
    """
    code = tuple(archs)
    known = [gpu for gpu in gpus() if not machine or machine in gpu.hosts]
    runs = {gpu.name: any(code_runs_on(arch, gpu.capability) for arch in code) for gpu in known}
    return tuple(name for name in runs if runs[name]), tuple(name for name in runs if not runs[name])


def spell_gpus(names: Iterable[str], *, each: int = 4) -> str:
    """List GPUs for people, by the code that is their own: `B300 (sm_103), B200 (sm_100)`; a few names of each."""
    wanted = set(names)
    groups: dict[str, list[str]] = {}
    for gpu in gpus():
        if gpu.name in wanted:
            groups.setdefault(gpu.capability.sm, []).append(gpu.name)
    return "; ".join(
        f"{', '.join(found[:each])}{', …' if len(found) > each else ''} ({sm})" for sm, found in groups.items()
    )


def needs(names: Iterable[str]) -> str:
    """Say which CUDA and driver the GPUs of these names need at least: the oldest among them decides."""
    wanted = set(names)
    found = [gpu for gpu in gpus() if gpu.name in wanted]
    if not found:
        return ""
    first = min(found, key=lambda gpu: gpu.driver)
    return f"CUDA {first.toolkit}, driver {first.driver} or newer"


def gpu_named(text: str) -> Gpu:
    """Find the GPU that a name means, as people, NVML or `nvidia-smi` write it, or a capability such as `12.0`.

    Raises ValueError, with what may have been meant, for a name that is none or that means several.
    """
    words = text.strip().lower()
    if DOTTED.fullmatch(words) or CODE.fullmatch(words):
        capability = Arch.parse(words)
        return Gpu(
            name=f"a GPU of capability {capability.dotted}", capability=replace(capability, suffix="", ptx=False)
        )
    if code := CODENAMES.get(words):
        raise ValueError(f"{text!r} is a line of GPUs, not one; did you mean {code}?")
    inside = [gpu for gpu in gpus() if re.search(rf"\b{re.escape(gpu.name.lower().split(' (')[0])}\b", words)]
    if found := max(inside, key=lambda gpu: len(gpu.name), default=gpu_called(words)):
        return found
    raise ValueError(f"{text!r} is no GPU that is known; give its compute capability instead, such as '12.0'")
