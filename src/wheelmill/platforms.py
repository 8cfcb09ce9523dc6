"""What each manylinux platform has: auditwheel's own policies, read as data.

The verdict while a wheel is repaired is auditwheel's; verify holds any wheel's symbols against the platform that it
claims, symbol by symbol, and needs no process for it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

TAG = re.compile(r"manylinux_(?P<major>[0-9]+)_(?P<minor>[0-9]+)_(?P<machine>\w+)")
ALIAS = re.compile(r"(?P<alias>manylinux(?:1|2010|2014))_(?P<machine>\w+)")
LOADERS = frozenset({"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """One platform of one kind of machine: its glibc, the symbol versions and the libraries that are there."""

    tag: str
    machine: str
    glibc: tuple[int, int]
    versions: Mapping[str, frozenset[str]]
    """By library, such as GLIBCXX; empty where auditwheel knows no such machine."""
    libraries: frozenset[str]

    def beyond(self, required: Iterable[str]) -> tuple[str, ...]:
        """Give the symbol versions that this platform does not have."""
        return tuple(version for version in sorted(required, key=natural) if not self.has(version))

    def has(self, version: str) -> bool:
        """Tell whether a symbol version is there; names of other libraries' versions are not ours to judge."""
        library, _, number = version.partition("_")
        if library not in self.versions:
            return True
        if library == "GLIBC" and re.fullmatch(r"[0-9.]+", number):
            return tuple(map(int, number.split(".")))[:2] <= self.glibc
        return number in self.versions[library]


@cache
def policies() -> tuple[Mapping[str, object], ...]:
    """Read auditwheel's policies, the oldest platform first."""
    text = (files("auditwheel") / "policy" / "manylinux-policy.json").read_text("utf-8")
    found = [each for each in json.loads(text) if each["name"] != "linux"]
    return tuple(sorted(found, key=lambda each: release_of(each["name"])))


def release_of(name: str) -> tuple[int, int]:
    """Give the glibc of `manylinux_2_28`."""
    _, major, minor = name.split("_")
    return int(major), int(minor)


def platform_called(tag: str) -> Platform | None:
    """Give the platform of a tag: what the newest listed one has that is no newer; None for other systems."""
    if match := ALIAS.fullmatch(tag):
        names = {alias: each["name"] for each in policies() for alias in aliases(each)}
        tag = f"{names[match['alias']]}_{match['machine']}"
    match = TAG.fullmatch(tag)
    if match is None:
        return None
    glibc = int(match["major"]), int(match["minor"])
    listed = [each for each in policies() if release_of(str(each["name"])) <= glibc]
    if not listed:
        return None
    symbols, whitelist = listed[-1]["symbol_versions"], listed[-1]["lib_whitelist"]
    assert isinstance(symbols, dict)  # noqa: S101 - auditwheel's file, whose version is pinned
    assert isinstance(whitelist, list)  # noqa: S101
    versions = {library: frozenset(found) for library, found in symbols.get(match["machine"], {}).items()}
    libraries = LOADERS | frozenset(map(str, whitelist))
    return Platform(tag=tag, machine=match["machine"], glibc=glibc, versions=versions, libraries=libraries)


def aliases(policy: Mapping[str, object]) -> list[str]:
    """Give the older names of a platform."""
    found = policy["aliases"]
    return list(found) if isinstance(found, list) else []


def oldest(tags: Iterable[str]) -> Platform | None:
    """Give the oldest platform among the last parts of wheel tags: the wheel claims to run there, too."""
    found = [platform for tag in tags if (platform := platform_called(tag)) is not None]
    return min(found, key=lambda platform: platform.glibc, default=None)


def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """Sort numbers inside text as numbers."""
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in re.findall(r"[0-9]+|[^0-9]+", text))
