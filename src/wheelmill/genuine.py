"""Whether what is installed is what was locked, by the bytes: installers remember names, and files change."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from .errors import MalformedWheelError
from .lock import Lock
from .store import digest_of as file_digest
from .wheel_file import DIGESTS, Recorded, digest_of, parse_record, read_wheel, spelled, values

WORKERS = 4
SHOWN = 3
UNRECORDED = (".pyc", "/RECORD", "/INSTALLER", "/REQUESTED", "/direct_url.json", "/uv_cache.json", "/uv_build.json")
"""What installers write themselves: a wheel's own RECORD does not have it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """A distribution in an environment: where its files lie, and the folder that describes it."""

    name: str
    version: str
    site: Path
    dist_info: Path

    @property
    def record(self) -> Mapping[str, Recorded]:
        """What the installer wrote down; empty where there is nothing to read."""
        try:
            text = (self.dist_info / "RECORD").read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return {}
        return parse_record(text)[0]

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the wheel that it came from."""
        try:
            return values((self.dist_info / "WHEEL").read_text("utf-8"), "Tag")
        except (OSError, UnicodeDecodeError):
            return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Files of one distribution that are not what they should be."""

    name: str
    texts: tuple[str, ...]


def find(site_of: Mapping[str, tuple[str, str]]) -> dict[str, Installed]:
    """Find the folders that describe distributions, of which version and site-packages folder are known."""
    found = {}
    for name, (version, folder) in site_of.items():
        site = Path(folder)
        for dist_info in sorted(site.glob("*.dist-info")):
            if canonicalize_name(dist_info.name.partition("-")[0]) == name:
                found[name] = Installed(name=name, version=version, site=site, dist_info=dist_info)
    return found


def changed_files(distributions: Iterable[Installed]) -> tuple[list[Difference], int]:
    """Hold every installed file against its digest in RECORD; gives the differences, and how many files were read."""
    jobs = [(each, entry) for each in distributions for entry in each.record.values() if checkable(entry)]
    jobs.sort(key=lambda job: -(job[1].size or 0))
    with ThreadPoolExecutor(WORKERS) as pool:
        verdicts = list(pool.map(lambda job: verdict(*job), jobs))
    texts: dict[str, list[str]] = {}
    for (each, _), text in zip(jobs, verdicts, strict=True):
        if text:
            texts.setdefault(each.name, []).append(text)
    return [Difference(name=name, texts=tuple(sorted(found))) for name, found in sorted(texts.items())], len(jobs)


def checkable(entry: Recorded) -> bool:
    """Tell whether RECORD has a digest to compare with."""
    return entry.digest.partition("=")[0] in DIGESTS and not entry.name.endswith(".pyc")


def verdict(each: Installed, entry: Recorded) -> str:
    """Say what is wrong with one file; nothing where it is right."""
    path = each.site / entry.name
    try:
        if entry.size is not None and path.stat().st_size != entry.size:
            return f"{entry.name} has another size"
        with path.open("rb") as stream:
            algorithm = entry.digest.partition("=")[0]
            same = spelled(algorithm, digest_of(stream, algorithm).digest()) == entry.digest
    except OSError:
        return f"{entry.name} is missing"
    return "" if same else f"{entry.name} was changed"


def against_wheels(
    installed: Mapping[str, Installed], wheels: Iterable[Path], lock: Lock, ours: Mapping[str, str]
) -> tuple[list[Difference], set[str]]:
    """Hold what was installed against the pinned wheels themselves, as far as they are at hand.

    A wheel counts if its sha256 is locked, or is that of our own build (`ours`: by file name). Gives the differences,
    and the names of the distributions that were compared.
    """
    differences, compared = [], set()
    for path in wheels:
        name = project_of(path)
        each = installed.get(name)
        if each is None or not pinned(path, name, lock, ours):
            continue
        try:
            wheel = read_wheel(path)
        except MalformedWheelError:
            continue
        if wheel.metadata_version != each.version:
            continue
        compared.add(name)
        if texts := tuple(differing(wheel.record, each)):
            differences.append(Difference(name=name, texts=texts))
    return differences, compared


def project_of(path: Path) -> str:
    """Give the project of a wheel's file name; nothing where it is none."""
    try:
        return str(parse_wheel_filename(path.name)[0])
    except InvalidWheelFilename:
        return ""


def pinned(path: Path, name: str, lock: Lock, ours: Mapping[str, str]) -> bool:
    """Tell whether a wheel is the locked one, by its digest."""
    hashes = set(lock.pins[name].hashes) if name in lock.pins else set()
    if not hashes and path.name not in ours:
        return False
    digest = file_digest(path)
    return ours.get(path.name) == digest or bool({digest, f"sha256:{digest}"} & hashes)


def differing(record: Mapping[str, Recorded], each: Installed) -> Iterator[str]:
    """Compare what a wheel says of its files with what the installer wrote down of them."""
    there = each.record
    for name, entry in sorted(record.items()):
        if name.endswith(UNRECORDED) or ".data/" in name:
            continue
        if name not in there:
            yield f"{name} of the wheel was not installed"
        elif there[name].digest != entry.digest:
            yield f"{name} is not the wheel's"


def some(texts: tuple[str, ...]) -> str:
    """List a few, and count the others."""
    more = len(texts) - SHOWN
    return "; ".join(texts[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
