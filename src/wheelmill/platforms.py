"""What each manylinux platform has: auditwheel's own policies, read as data.

The verdict while a wheel is repaired is auditwheel's; verify holds any wheel's symbols against the platform that it
claims, symbol by symbol, and needs no process for it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from .elf import ElfFacts, wanted_by

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
    text = (resources.files("auditwheel") / "policy" / "manylinux-policy.json").read_text("utf-8")
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Above:
    """A symbol version that a platform does not have, and the symbols of one file that want it."""

    path: str
    version: str
    symbols: tuple[str, ...]


def above(files: Iterable[ElfFacts], platform: Platform) -> tuple[Above, ...]:
    """Give everything by which files miss a platform."""
    return tuple(
        Above(
            path=file.path,
            version=version,
            symbols=tuple(sorted(name for name, found in file.versions.items() if found == version)),
        )
        for file in files
        for version in platform.beyond(file.requires)
    )


def brought_in(found: Iterable[Above], folder: Path) -> Mapping[str, tuple[str, ...]]:
    """Say which object files below a folder want each of these symbols; one of none of them comes from a library."""
    symbols = {symbol for each in found for symbol in each.symbols}
    users: dict[str, list[str]] = {symbol: [] for symbol in sorted(symbols)}
    for path in sorted(folder.rglob("*.o")) if symbols else ():
        for symbol in sorted(symbols & wanted_by(path)):
            users[symbol].append(path.relative_to(folder).as_posix())
    return {symbol: tuple(paths) for symbol, paths in users.items()}


def explain_above(found: Iterable[Above], users: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Say of each symbol where it comes from."""
    lines = []
    for each in found:
        for symbol in each.symbols or ("",):
            objects = users.get(symbol, ())
            where = f", which {shortened(objects)} brings in" if objects else ", which a static library brings in"
            lines.append(f"{each.path} needs {each.version}" + (f" for {symbol}{where}" if symbol else ""))
    return lines


def shortened(names: tuple[str, ...], count: int = 3) -> str:
    """List a few names."""
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")


def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """Sort numbers inside text as numbers."""
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in re.findall(r"[0-9]+|[^0-9]+", text))
