"""NVIDIA's redistributable archives: fetched side by side, checked, and merged into one toolkit."""

import lzma
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from filecmp import cmp
from pathlib import Path

from packaging.utils import canonicalize_name

from ._console import Reporter
from ._uv import Uv
from .errors import FetchError, HashMismatchError, ToolkitError
from .fetch import take
from .places import PATIENCE, Http, IndexSettings, UnreachableError, as_location, logins, redact
from .store import Store, out_of_space
from .toolkit import (
    Machine,
    Need,
    Toolkit,
    archives_of,
    completing_lock,
    examine,
    fetch_command,
    give_way,
    redistributed_toolkit,
)
from .toolkit_recipe import Component, Redistributable

VARIABLE = "WHEELMILL_CUDA_REDIST"
"""Names a mirror of NVIDIA's archives: a URL or a folder with the same paths below it."""
AT_ONCE = 4
TOLD_ABOVE = 10 * 1000**2
"""Bytes above which a download tells each tenth of its way; a smaller one only tells its end."""
FOLDERS = ("bin", "include", "lib", "nvvm")
"""One of these is in every archive of NVIDIA's that a build can use."""
LICENSE_NAMES = ("license", "license.txt", "eula.txt")


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where archives come from and go to; `recipe` is the file that pins them."""

    base: str
    store: Store
    http: Http
    recipe: str

    @property
    def advice(self) -> str:
        """What to do where an archive cannot be had."""
        return (
            f"Check the way there (HTTPS_PROXY), or name a mirror or folder with the same paths: `{VARIABLE}=URL`. "
            "What has come is kept: the same command goes on."
        )

    def place(self, component: Component) -> str:
        """Name where a component is pinned."""
        return f"{self.recipe}: redistributable.components.{component.name}"


def provide(need: Need, machine: Machine, *, uv: Uv, python: Path, report: Reporter, http: Http = PATIENCE) -> Toolkit:
    """Get NVIDIA's archives and the wheels that complete them, and make the toolkit of them, unless it is here.

    The licence is accepted before. Raises FetchError, HashMismatchError, ResourcesError, or ToolkitError where the
    recipe has no archives or what they make does not serve the stack.
    """
    toolkit, pinned = redistributed_toolkit(need, machine.directories), archives_of(need.recipe)
    store = Store(root=machine.directories.store, warn=report.warn)
    origin = Origin(base=base_url(pinned, machine.env), store=store, http=http, recipe=need.recipe.file)
    with store.locked(toolkit.digest):  # of two that come at once the second waits, and finds what the first made
        if not toolkit.root.is_dir():
            command = fetch_command(need.recipe, need.stack)
            require_reach(pinned.components, origin, offline=uv.offline, command=command)
            archives = fetch_archives(pinned.components, origin, report)
            with workplace(toolkit.root.parent) as partial:
                merge_archives(archives, partial, origin, report)
                merge_wheels(need, partial, uv=uv, python=python, report=report)
                require_fit(need, partial / "files", machine)
                give_way(partial / "licenses", toolkit.root.parent / "licenses")
                give_way(partial / "files", toolkit.root)
    report.note(f"CUDA {toolkit.cuda} (nvcc {toolkit.nvcc_version}): {toolkit.root}")
    report.note(f"licences: {toolkit.root.parent / 'licenses'}")
    return toolkit


@contextmanager
def workplace(home: Path) -> Iterator[Path]:
    """Give a folder to make a toolkit in, gone afterwards; what a killed run left is cleared away first.

    Call it under the toolkit's lock. Raises DiskFullError.
    """
    with out_of_space(home):
        home.mkdir(parents=True, exist_ok=True)
        for left in home.glob("partial-*"):
            shutil.rmtree(left, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(dir=home, prefix="partial-"))
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def base_url(pinned: Redistributable, env: Mapping[str, str]) -> str:
    """Give the address that the archives' paths are put after: the user's mirror, else NVIDIA's own."""
    return as_location(env.get(VARIABLE) or pinned.base_url).rstrip("/") + "/"


def require_fit(need: Need, files: Path, machine: Machine) -> None:
    """Hold the finished toolkit against what the stack needs, before anybody can find it.

    Raises ToolkitError with every reason.
    """
    found = examine(files, need, machine, origins=())
    if not found.fits:
        raise ToolkitError(
            f"the toolkit made of NVIDIA's archives does not serve stack {need.stack.name}: "
            + "; ".join(found.problems),
            advice=f"Correct [redistributable] in {need.recipe.file}, or give another toolkit: `--cuda-home DIR`.",
        )


# fetching --------------------------------------------------------------------------------------------


class Meter:
    """Tells how far downloads are, one whole line at a time, and ends all of them when told to."""

    def __init__(self, report: Reporter, components: Sequence[Component]) -> None:
        self.report, self.sizes = report, {component.file: component.size for component in components}
        self.told = dict.fromkeys(self.sizes, 0)
        self.lock, self.stop = threading.Lock(), threading.Event()

    def __call__(self, file: str, done: int, _total: int | None) -> None:
        """Hear of a piece that has come; CancelledError where its download is to end."""
        if self.stop.is_set():
            raise CancelledError
        size = max(1, self.sizes[file])
        tenth = 10 * done // size if size > TOLD_ABOVE else 10 * (done // size)
        with self.lock:
            if tenth > self.told[file]:
                self.told[file] = tenth
                self.report.note(f"{file}: {done / 1e6:.2f} of {size / 1e6:.2f} MB")


def require_reach(components: Sequence[Component], origin: Origin, *, offline: bool, command: str) -> None:
    """Refuse to begin offline where an archive is not in the store; FetchError names all that are missing."""
    missing = [component.file for component in components if offline and origin.store.get(component.sha256) is None]
    if missing:
        raise FetchError(
            "\n".join(["not in the store, and --offline forbids the network:", *(f"  {file}" for file in missing)]),
            advice=f"Run `{command}` with a network, then try again.",
        )


def fetch_archives(
    components: Sequence[Component], origin: Origin, report: Reporter
) -> tuple[tuple[Component, Path], ...]:
    """Get all archives into the store, some at once; the first that cannot be had ends the others.

    Raises FetchError, HashMismatchError or DiskFullError.
    """
    total = sum(component.size for component in components) / 1e6
    report.note(f"{len(components)} archives, {total:.1f} MB, from {redact(origin.base)}")
    meter = Meter(report, components)
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        jobs = [pool.submit(fetch_archive, component, origin, meter) for component in components]
        try:
            done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
            for job in jobs:
                if job in done:
                    job.result()
            return tuple((component, job.result()) for component, job in zip(components, jobs, strict=True))
        finally:
            # Also on Ctrl-C: else leaving the pool would wait for every download to its end.
            meter.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


def fetch_archive(component: Component, origin: Origin, meter: Meter) -> Path:
    """Get one archive into the store; FetchError, HashMismatchError or DiskFullError."""
    from .wire import Wire, session  # noqa: PLC0415 - 0.5 s of every start

    store, url = origin.store, origin.base + component.path
    with store.locked(component.sha256), out_of_space(store.root), session() as client:
        if (found := store.get(component.sha256)) is not None:
            return found
        wire = Wire(client, origin.http, meter, logins(IndexSettings(urls=(origin.base,))))
        try:
            return take(url, sha256=component.sha256, name=component.file, store=store, wire=wire)
        except UnreachableError as error:
            raise FetchError(f"cannot get {redact(url)}: {error}", advice=origin.advice) from None
        except HashMismatchError as error:
            raise HashMismatchError(
                redact(url), expected=error.expected, actual=error.actual, place=origin.place(component)
            ) from None


# merging ---------------------------------------------------------------------------------------------


def merge_archives(archives: Sequence[tuple[Component, Path]], partial: Path, origin: Origin, report: Reporter) -> None:
    """Unpack every archive into one tree, `files`, and keep each one's licence in `licenses`.

    Raises FetchError for an archive that is not of NVIDIA's shape.
    """
    for component, path in archives:
        report.note(f"unpack {component.file}")
        scratch = partial / component.name
        scratch.mkdir()
        try:
            top = unpacked(path, scratch)
        except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError) as error:
            raise FetchError(
                f"{component.file} is no archive of NVIDIA's shape: {error}",
                advice=f"Its digest is the pinned one: correct {origin.place(component)}.",
            ) from error
        keep_licenses(top, component.name, partial / "licenses")
        for folder in sorted(entry for entry in top.iterdir() if entry.is_dir() and not entry.is_symlink()):
            merge(folder, partial / "files" / folder.name, report)
        shutil.rmtree(scratch)


def unpacked(archive: Path, into: Path) -> Path:
    """Unpack an archive and give its one folder; ValueError, TarError or LZMAError for another shape."""
    with tarfile.open(archive, mode="r:xz") as content:
        content.extractall(into, filter="data")
    match sorted(into.iterdir()):
        case [top] if top.is_dir() and not top.is_symlink():
            if not any((top / name).is_dir() for name in FOLDERS):
                raise ValueError(f"its folder {top.name} has none of {', '.join(FOLDERS)}")
            return top
        case entries:
            listed = ", ".join(entry.name for entry in entries[:5]) or "nothing"
            raise ValueError(f"it has {listed} at its top, where one folder is wanted")


def merge_wheels(need: Need, partial: Path, *, uv: Uv, python: Path, report: Reporter) -> None:
    """Install the wheels of the build lock that complete the archives, and merge their `nvidia/NAME` folders.

    Raises HashMismatchError, FetchError or ResourcesError.
    """
    lock, site = completing_lock(need), partial / "site"
    if not lock.pins:
        return
    report.note(f"{len(lock.pins)} wheels of {lock.file}")
    into = ("--python", str(python), "--target", str(site))
    uv.install(lock, file=partial / "lock.txt", into=into, site=site, log=partial.parent / "install.log")
    for info in sorted(site.glob("*.dist-info")):
        project = canonicalize_name(info.name.split("-", 1)[0])
        keep_licenses(info, project, partial / "licenses")
    for folder in sorted(site.glob("nvidia/*/")):
        for name in FOLDERS:
            if (folder / name).is_dir():
                merge(folder / name, partial / "files" / name, report)
    shutil.rmtree(site)


def keep_licenses(folder: Path, name: str, into: Path) -> None:
    """Copy a licence text that lies in a folder, or in `licenses` below it, to `NAME.txt`."""
    found = [entry for place in (folder, folder / "licenses") if place.is_dir() for entry in sorted(place.iterdir())]
    texts = [entry.read_bytes() for entry in found if entry.name.lower() in LICENSE_NAMES and entry.is_file()]
    into.mkdir(exist_ok=True)
    if texts:
        (into / f"{name}.txt").write_bytes(b"\n".join(texts))


def merge(source: Path, target: Path, report: Reporter) -> None:
    """Move a tree into another; where both have a name with other content, the first stays and a warning is told.

    The order is fixed and all content is pinned, so the outcome is the same everywhere.
    """
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        if entry.is_dir() and not entry.is_symlink() and (place.is_dir() or not os.path.lexists(place)):
            if entry.name != "__pycache__":
                merge(entry, place, report)
        elif entry.name == "__init__.py":
            continue
        elif not os.path.lexists(place):
            entry.rename(place)
        elif not alike(entry, place):
            report.warn(f"{'/'.join(place.parts[-2:])} comes twice, with other content: the first one stays")


def alike(one: Path, other: Path) -> bool:
    """Say whether two entries are the same link or have the same bytes."""
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    return one.is_file() and other.is_file() and cmp(one, other, shallow=False)
