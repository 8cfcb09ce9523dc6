"""Getting pinned sources: the recipe names project and file, the configured index says where they are."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import FetchError, HashMismatchError
from .places import PATIENCE, Http, IndexSettings, Progress, UnreachableError, logins, redact
from .recipe import IndexSource, TreeSource
from .store import Store, digest_of, out_of_space

if TYPE_CHECKING:
    from .wire import Wire

IGNORED_ANYWHERE = ("__pycache__", "*.egg-info", "*.pyc")
IGNORED_AT_TOP = (".git", "build")
"""What builds and tools leave in a source tree; it enters neither the digest nor the build."""
SETTINGS_ADVICE = (
    "Check the package index that pip or uv is set to (PIP_INDEX_URL, UV_DEFAULT_INDEX, pip.conf, uv.toml), "
    "or put the file into a folder and name that in PIP_FIND_LINKS."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchedSource:
    """A pinned archive in the store, its digest checked."""

    path: Path
    sha256: str
    file: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchedTree:
    """A pinned directory, its digest checked."""

    path: Path
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A place that has a file of the wanted name."""

    url: str
    where: str
    sha256: str | None


def quiet(_file: str, _done: int, _total: int | None) -> None:
    """Show no progress."""


def fetch_source(
    source: IndexSource,
    *,
    store: Store,
    index: IndexSettings,
    offline: bool = False,
    progress: Progress = quiet,
    place: str = "",
    http: Http = PATIENCE,
) -> FetchedSource:
    """Get one pinned archive into the store.

    `place` is the recipe's file and key, for messages. Raises FetchError where no configured place has it (or
    offline, where the store lacks it), HashMismatchError where they have another file under its name.
    """
    with store.locked(source.sha256), out_of_space(store.root):
        path = store.get(source.sha256)
        if path is None and offline:
            raise FetchError(
                f"{source.file} of {source.project} is not in the store, and --offline forbids the network",
                advice=f"Run `wheelmill fetch {source.project}` with a network, then try again.",
            )
        if path is None:
            from .wire import Wire, session  # noqa: PLC0415 - 0.5 s of every start

            with session() as client:
                path = Search(source, store, index, Wire(client, http, progress, logins(index)), place).run()
    return FetchedSource(path=path, sha256=source.sha256, file=source.file)


class Search:
    """One file's way from the configured places into the store; keeps what each place said."""

    def __init__(self, source: IndexSource, store: Store, index: IndexSettings, wire: "Wire", place: str) -> None:
        self.source, self.store, self.index, self.wire, self.place = source, store, index, wire, place
        self.said: list[str] = []
        self.mismatch: HashMismatchError | None = None

    def run(self) -> Path:
        """Try every place; the first right bytes win, whoever has them."""
        for offer in self.offers():
            if offer.sha256 is not None and offer.sha256 != self.source.sha256:
                self.differs(offer, offer.sha256)
                continue
            try:
                return self.take(offer)
            except HashMismatchError as error:
                self.differs(offer, error.actual)
            except UnreachableError as error:
                self.said.append(f"{offer.where}: {error}")
        if self.mismatch is not None:
            raise self.mismatch
        looked = "\n".join(f"  {line}" for line in self.said) or "  nowhere: no index is configured"
        raise FetchError(
            f"cannot get {self.source.file} of {self.source.project}; looked in:\n{looked}",
            advice=SETTINGS_ADVICE,
        )

    def differs(self, offer: Offer, actual: str) -> None:
        """Keep the first file that has the right name and the wrong bytes."""
        if self.mismatch is None:
            self.mismatch = HashMismatchError(
                f"{self.source.file} from {offer.where}",
                expected=self.source.sha256,
                actual=actual,
                place=self.place,
            )

    def take(self, offer: Offer) -> Path:
        """Download one offer into the store."""
        return take(offer.url, sha256=self.source.sha256, name=self.source.file, store=self.store, wire=self.wire)

    def offers(self) -> Iterator[Offer]:
        """Ask each place in turn for files of the wanted name."""
        for location in self.index.find_links:
            yield from self.ask(location, location)
        for url in self.index.urls:
            yield from self.ask(url, f"{url.rstrip('/')}/{self.source.project}/")

    def ask(self, location: str, page: str) -> Iterator[Offer]:
        """Ask one place."""
        where = redact(location)
        try:
            found = self.wire.links(page, self.source.project)
        except UnreachableError as error:
            self.said.append(f"{where}: {error}")
            return
        offers = [Offer(url=url, where=where, sha256=digest) for name, url, digest in found if name == self.source.file]
        if not offers:
            self.said.append(f"{where}: no such file among {len(found)}")
        yield from offers


def take(url: str, *, sha256: str, name: str, store: Store, wire: "Wire") -> Path:
    """Download one file into the store, going on where an earlier try broke off; call it under the content's lock.

    Raises UnreachableError, or HashMismatchError where the bytes are not those that were pinned.
    """
    part = store.partial(sha256)
    resumed = part.exists()
    if resumed and digest_of(part) == sha256:
        return store.adopt(part, sha256, subject=name)
    try:
        wire.download(url, part, name)
        return store.adopt(part, sha256, subject=name)
    except HashMismatchError:
        # the first half may be another run's, from a place with other bytes
        if not resumed:
            raise
        wire.download(url, part, name)
        return store.adopt(part, sha256, subject=name)


# directories -----------------------------------------------------------------------------------------


def fetch_tree(source: TreeSource, *, base: Path, place: str = "") -> FetchedTree:
    """Check a pinned directory beside the recipe; `base` is the recipe's folder.

    Raises FetchError where there is none, HashMismatchError with the digest found.
    """
    path = base / source.path
    if not path.is_dir():
        raise FetchError(
            f"the source directory {path} does not exist",
            advice=f"Correct `source.path` in {place or 'the recipe'}.",
        )
    found = tree_digest(path)
    if found != source.sha256:
        error = HashMismatchError(str(path), expected=source.sha256, actual=found, place=place)
        error.advice = f'Where the change is meant, write `sha256 = "{found}"` under source in the recipe.'
        raise error
    return FetchedTree(path=path, sha256=found)


def tree_files(root: Path) -> list[Path]:
    """List a source tree's files and links in the order of their names, without what builds leave behind.

    Raises FetchError for what is neither file, folder nor link.
    """
    found: list[tuple[str, Path]] = []
    for folder, folders, names in os.walk(root):
        top = Path(folder) == root
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        folders[:] = [name for name in folders if name not in links and not ignored(name, top=top)]
        for name in [*names, *links]:
            path = Path(folder) / name
            if ignored(name, top=top):
                continue
            if not (path.is_file() or path.is_symlink()):
                raise FetchError(f"{path} is neither file, folder nor link; it cannot be part of a source")
            found.append((path.relative_to(root).as_posix(), path))
    return [path for _, path in sorted(found)]


def ignored(name: str, *, top: bool) -> bool:
    """Say whether a name is a leftover."""
    patterns = (*IGNORED_ANYWHERE, *IGNORED_AT_TOP) if top else IGNORED_ANYWHERE
    return any(fnmatch(name, pattern) for pattern in patterns)


def tree_digest(root: Path) -> str:
    """Give the sha256 of a directory: names, contents, exec bits; no times, owners or other modes."""
    whole = hashlib.sha256()
    for path in tree_files(root):
        if path.is_symlink():
            kind, content = b"link", hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
        else:
            kind = b"program" if path.stat().st_mode & 0o100 else b"file"
            content = digest_of(path)
        name = os.fsencode(path.relative_to(root).as_posix())
        whole.update(b"\0".join((kind, content.encode(), name)) + b"\n")
    return whole.hexdigest()


def fetch(
    source: IndexSource | TreeSource,
    *,
    store: Store,
    index: IndexSettings,
    base: Path,
    offline: bool = False,
    progress: Progress = quiet,
    place: str = "",
) -> FetchedSource | FetchedTree:
    """Get any pinned source; see fetch_source and fetch_tree."""
    match source:
        case IndexSource():
            return fetch_source(source, store=store, index=index, offline=offline, progress=progress, place=place)
        case TreeSource():
            return fetch_tree(source, base=base, place=place)
