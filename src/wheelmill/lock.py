"""Locks: requirement files in which every line is one exact version with the digests of its files."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from .errors import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """One locked requirement: exact version, marker, allowed digests."""

    name: str
    version: str
    requirement: str
    hashes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """A whole lock: `text` is what installers are given, `pins` what it says."""

    file: str
    text: str
    pins: Mapping[str, Pin]

    @property
    def digest(self) -> str:
        """The sha256 of what the lock pins; comments, order and layout do not enter."""
        lines = sorted(f"{pin.requirement} {' '.join(sorted(pin.hashes))}\n" for pin in self.pins.values())
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def missing(self, requirements: tuple[str, ...]) -> tuple[str, ...]:
        """Give all requirements that the lock does not satisfy, each with what it holds instead."""
        found = []
        for text in requirements:
            wanted = Requirement(text)
            pin = self.pins.get(canonicalize_name(wanted.name))
            if pin is None:
                found.append(f"{text} (not in the lock)")
            elif not wanted.specifier.contains(Version(pin.version), prereleases=True):
                found.append(f"{text} (the lock holds {pin.version})")
        return tuple(found)


def subset(lock: Lock, pins: Iterable[Pin]) -> Lock:
    """Give a lock of some of the pins."""
    chosen = sorted(pins, key=lambda pin: pin.name)
    lines = [f"{pin.requirement} {' '.join(f'--hash=sha256:{value}' for value in pin.hashes)}\n" for pin in chosen]
    return Lock(file=lock.file, text="".join(lines), pins={pin.name: pin for pin in chosen})


def parse_lock(text: str, *, file: str) -> Lock:
    """Read a hash-locked requirement file; RecipeError where a line is not exact or has no digest."""
    pins: dict[str, Pin] = {}
    joined = re.sub(r"\\\n\s*", " ", text)
    for line in joined.splitlines():
        body = line.split(" #")[0].strip()
        if not body or body.startswith("#"):
            continue
        pin = parse_pin(body, file=file)
        if pin.name in pins:
            raise RecipeError("is locked twice", file=file, key=pin.name)
        pins[pin.name] = pin
    return Lock(file=file, text=text, pins=pins)


def parse_pin(body: str, *, file: str) -> Pin:
    """Read one joined line `name==version --hash=sha256:…`."""
    if body.startswith("-"):
        raise RecipeError(
            f"option {body.split(maxsplit=1)[0]!r} has no place in a lock: "
            "the user's own settings say where files come from",
            file=file,
        )
    words = body.split()
    hashes = tuple(word.removeprefix("--hash=sha256:") for word in words if word.startswith("--hash=sha256:"))
    requirement = " ".join(word for word in words if not word.startswith("--hash="))
    try:
        parsed = Requirement(requirement)
    except InvalidRequirement as error:
        raise RecipeError(f"{requirement!r} is not a requirement: {error}", file=file) from None
    specifiers = list(parsed.specifier)
    if len(specifiers) != 1 or specifiers[0].operator != "==" or "*" in specifiers[0].version:
        raise RecipeError(f"{requirement!r} is not one exact version", file=file, key=parsed.name)
    if not hashes or any(not re.fullmatch(r"[0-9a-f]{64}", value) for value in hashes):
        raise RecipeError("has no sha256, or a broken one", file=file, key=parsed.name)
    name = canonicalize_name(parsed.name)
    return Pin(name=name, version=specifiers[0].version, requirement=requirement, hashes=hashes)
