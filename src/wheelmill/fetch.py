"""Getting pinned sources: the recipe names project and file, the configured index says where they are."""

import configparser
import hashlib
import os
import re
import ssl
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import pypi_simple
import requests
import truststore
import urllib3
from requests.adapters import HTTPAdapter

from .errors import FetchError, HashMismatchError
from .recipe import IndexSource, TreeSource
from .store import CHUNK, Store, chunks_of, digest_of, out_of_space

T = TypeVar("T")
Progress = Callable[[str, int, int | None], None]
"""Called with file name, bytes so far, and bytes in all where that is known."""
Settings = Mapping[str, object]

RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
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
class IndexSettings:
    """Where this user's files come from: simple indexes (the default last), folders or pages of links."""

    urls: tuple[str, ...]
    find_links: tuple[str, ...] = ()

    @property
    def shared(self) -> "IndexSettings":
        """Only what other machines can reach too, where there is such: a lock must serve them."""
        remote = tuple(url for url in self.urls if not url.startswith("file:"))
        return IndexSettings(urls=remote) if remote else self

    def uv_environment(self) -> dict[str, str]:
        """Say the same to uv; by environment, since other users can read a command line and its passwords.

        The common default stays unsaid: uv's cache is by the index's exact spelling.
        """
        values = {"UV_FIND_LINKS": ",".join(self.find_links)}
        if self.urls:
            *extra, default = self.urls
            values["UV_DEFAULT_INDEX"] = "" if default == pypi_simple.PYPI_SIMPLE_ENDPOINT else default
            values["UV_INDEX"] = " ".join(extra)
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True, kw_only=True, slots=True)
class Http:
    """How patient to be: `tries` counts tries in a row that brought nothing."""

    tries: int = 3
    pause: float = 1.0
    timeout: float = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A place that has a file of the wanted name."""

    url: str
    where: str
    sha256: str | None


class UnreachableError(Exception):
    """A place did not answer, or broke off; the text is fit to be shown."""

    def __init__(self, text: str, *, again: bool) -> None:
        super().__init__(redact(text))
        self.again = again


# settings --------------------------------------------------------------------------------------------


def index_settings(env: Mapping[str, str], home: Path, *, etc: Path = Path("/etc")) -> IndexSettings:
    """Read the index settings of uv and pip, the nearest first: variables, then files, uv before pip.

    Raises FetchError for a settings file that cannot be read.
    """
    uv, pip = uv_settings(env, home, etc), pip_settings(env, home, etc)
    extra = [
        *words(env.get("UV_INDEX")),
        *words(env.get("UV_EXTRA_INDEX_URL")),
        *texts(uv.get("extra")),
        *words(pip.get("extra-index-url")),
    ]
    defaults = [
        *words(env.get("UV_DEFAULT_INDEX")),
        *words(env.get("UV_INDEX_URL")),
        *texts(uv.get("default")),
        *words(pip.get("index-url")),
        pypi_simple.PYPI_SIMPLE_ENDPOINT,
    ]
    links = [
        *(env.get("UV_FIND_LINKS") or "").replace(",", " ").split(),
        *texts(uv.get("find-links")),
        *words(pip.get("find-links")),
    ]
    no_index = uv.get("no-index") is True or pip.get("no-index", "").lower() in {"1", "true", "yes", "on"}
    urls = [] if no_index else [*(with_login(entry, env) for entry in extra), with_login(defaults[0], env)]
    return IndexSettings(urls=tuple(dict.fromkeys(urls)), find_links=tuple(dict.fromkeys(map(as_location, links))))


def uv_settings(env: Mapping[str, str], home: Path, etc: Path) -> Settings:
    """Read uv's user or system settings file: `default` and `extra` indexes, `find-links`, `no-index`."""
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    candidates = [config / "uv" / "uv.toml", etc / "xdg" / "uv" / "uv.toml", etc / "uv" / "uv.toml"]
    if env.get("UV_CONFIG_FILE"):
        candidates = [Path(env["UV_CONFIG_FILE"])]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None or env.get("UV_NO_CONFIG"):
        return {}
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise FetchError(f"cannot read uv's settings in {path}: {error}") from None
    values = {**values, **values.get("pip", {})}
    named: dict[bool, list[str]] = {True: [], False: []}
    for entry in values.get("index", ()):
        if not entry.get("explicit"):
            spelled = f"{entry['name']}={entry['url']}" if "name" in entry else entry["url"]
            named[bool(entry.get("default"))].append(spelled)
    return {
        "default": [*named[True], *texts(values.get("index-url"))],
        "extra": [*named[False], *texts(values.get("extra-index-url"))],
        "find-links": texts(values.get("find-links")),
        "no-index": values.get("no-index"),
    }


def pip_settings(env: Mapping[str, str], home: Path, etc: Path) -> Mapping[str, str]:
    """Read pip's settings files as pip does: system, user, PIP_CONFIG_FILE, variables; the later wins."""
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    system = [Path(folder) for folder in (env.get("XDG_CONFIG_DIRS") or str(etc / "xdg")).split(os.pathsep)]
    files = [
        *(folder / "pip" / "pip.conf" for folder in reversed(system)),
        etc / "pip.conf",
        home / ".pip" / "pip.conf",
        config / "pip" / "pip.conf",
    ]
    chosen = env.get("PIP_CONFIG_FILE")
    # pip's own rule: the null device there means no settings file at all
    files = [] if chosen == os.devnull else [*files, *([Path(chosen)] if chosen else [])]
    values: dict[str, str] = {}
    for path in files:
        values.update(read_pip_conf(path))
    for name in ("index-url", "extra-index-url", "find-links", "no-index"):
        if given := env.get("PIP_" + name.upper().replace("-", "_")):
            values[name] = given
    return values


def read_pip_conf(path: Path) -> dict[str, str]:
    """Read one pip.conf, sections [global] and [install]; nothing where there is no such file."""
    if not path.is_file():
        return {}
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise FetchError(f"cannot read pip's settings in {path}: {error}") from None
    sections = [section for section in ("global", "install") if parser.has_section(section)]
    return {key.replace("_", "-"): value for section in sections for key, value in parser.items(section)}


def words(value: str | None) -> list[str]:
    """Split a setting that may hold several values."""
    return (value or "").split()


def texts(value: object) -> list[str]:
    """Give the strings of a TOML value that is one string or a list of them."""
    values = value if isinstance(value, list) else [value]
    return [entry for entry in values if isinstance(entry, str)]


def with_login(entry: str, env: Mapping[str, str]) -> str:
    """Turn uv's `name=url` into the URL, with the login that UV_INDEX_<NAME>_USERNAME and …_PASSWORD give."""
    name, equals, url = entry.partition("=")
    if not equals or "/" in name or ":" in name:
        return as_location(entry)
    prefix = "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
    user, secret = env.get(f"{prefix}_USERNAME"), env.get(f"{prefix}_PASSWORD")
    if not user and not secret:
        return as_location(url)
    parts = urlsplit(as_location(url))
    host = parts.netloc.rpartition("@")[2]
    login = ":".join(quote(text, safe="") for text in (user or "", secret or ""))
    return urlunsplit(parts._replace(netloc=f"{login}@{host}"))


def as_location(text: str) -> str:
    """Give a URL for what may be a path."""
    return text if "://" in text else Path(text).expanduser().absolute().as_uri()


def redact(text: str) -> str:
    """Take logins and query strings out of every URL in a text."""
    bare = re.sub(r"(?<=://)[^/@\s'\"]*@", "***@", text)
    return re.sub(r"(://[^\s?'\"]*)\?[^\s'\"]*", r"\1?***", bare)


# fetching --------------------------------------------------------------------------------------------


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
    http: Http = Http(),
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


class Wire:
    """HTTP and file URLs alike: pages of links, and files that go on where they broke off."""

    def __init__(
        self, client: requests.Session, http: Http, progress: Progress, logins: Mapping[str, tuple[str, str]]
    ) -> None:
        self.client, self.http, self.progress, self.logins = client, http, progress, logins

    def links(self, url: str, project: str) -> list[tuple[str, str, str | None]]:
        """List a page's or folder's files: name, URL, announced sha256. Raises UnreachableError."""
        page = local_page(url, project) if url.startswith("file:") else self.page(url, project)
        if isinstance(page, list):
            return [(path.name, path.as_uri(), None) for path in page]
        return [(entry.filename, entry.url, entry.digests.get("sha256")) for entry in page.packages]

    def page(self, url: str, project: str) -> pypi_simple.ProjectPage:
        """Get one page, patiently."""

        def once() -> pypi_simple.ProjectPage:
            with self.get(url, {"Accept": pypi_simple.ACCEPT_ANY}, stream=False) as response:
                try:
                    return pypi_simple.ProjectPage.from_response(response, project)
                except (pypi_simple.UnsupportedContentTypeError, ValueError) as error:
                    raise UnreachableError(f"is no package index: {error}", again=False) from None

        return self.patiently(once, lambda: 0)

    def download(self, url: str, part: Path, name: str) -> None:
        """Get one file, going on after the bytes that are here. Raises UnreachableError."""
        if url.startswith("file:"):
            copy(local_path(url), part, lambda done, total: self.progress(name, done, total))
            return
        self.patiently(lambda: self.download_once(url, part, name), lambda: size_of(part))

    def download_once(self, url: str, part: Path, name: str) -> None:
        """Try once."""
        have = size_of(part)
        # identity: an archive that a server calls `Content-Encoding: gzip` must not be unpacked on the way
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
        with self.get(url, headers, stream=True) as response:
            goes_on = response.status_code == requests.codes.partial_content
            done = have if goes_on else 0
            length = response.headers.get("Content-Length")
            total = done + int(length) if length and length.isdigit() else None
            with part.open("ab" if goes_on else "wb") as sink:
                while chunk := response.raw.read(CHUNK, decode_content=False):
                    sink.write(chunk)
                    done += len(chunk)
                    self.progress(name, done, total)

    def get(self, url: str, headers: Mapping[str, str], *, stream: bool) -> requests.Response:
        """Ask once; UnreachableError for any status that is not a success."""
        # an index's links are often absolute, and then lack the login that the index was configured with
        login = self.logins.get(urlsplit(url).netloc)
        response = self.client.get(url, headers=headers, auth=login, timeout=self.http.timeout, stream=stream)
        status = response.status_code
        if status == requests.codes.requested_range_not_satisfiable and "Range" in headers:
            response.close()
            without = {name: value for name, value in headers.items() if name != "Range"}
            return self.get(url, without, stream=stream)
        if not response.ok:
            response.close()
            raise UnreachableError(f"answered {status} {response.reason}", again=status in RETRIED)
        return response

    def patiently(self, once: Callable[[], T], gained: Callable[[], int]) -> T:
        """Try again what may pass by itself; whoever brings new bytes has all tries again."""
        failures, before = 0, gained()
        while True:
            try:
                return once()
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                failure = UnreachableError(f"cannot be reached: {cause_of(error)}", again=True)
            except UnreachableError as error:
                failure = error
            now = gained()
            failures = 1 if now > before else failures + 1
            before = now
            if failures >= self.http.tries or not failure.again:
                raise failure
            time.sleep(self.http.pause * 2 ** (failures - 1))


def logins(index: IndexSettings) -> dict[str, tuple[str, str]]:
    """Give the logins in the settings' URLs, by host and port."""
    parts = [urlsplit(url) for url in (*index.urls, *index.find_links)]
    return {
        part.netloc.rpartition("@")[2]: (unquote(part.username), unquote(part.password or ""))
        for part in parts
        if part.username is not None
    }


class SystemCertificates(HTTPAdapter):
    """Trusts whom the machine trusts: its store, SSL_CERT_FILE, and by requests REQUESTS_CA_BUNDLE."""

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **kwargs: object) -> None:  # noqa: FBT001, FBT002 - the library's signature
        """Give every connection the machine's certificates."""
        context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        super().init_poolmanager(connections, maxsize, block, ssl_context=context, **kwargs)


def session() -> requests.Session:
    """Open an HTTP session that trusts whom the machine trusts."""
    client = requests.Session()
    client.headers["User-Agent"] = "wheelmill"
    client.mount("https://", SystemCertificates())
    return client


def local_page(url: str, project: str) -> list[Path] | pypi_simple.ProjectPage:
    """Read a page or folder on this machine."""
    path = local_path(url)
    page = path / "index.html" if path.is_dir() else path
    if page.is_file():
        base = page.as_uri()
        return pypi_simple.ProjectPage.from_html(project, page.read_bytes(), base_url=base)
    if not path.is_dir():
        raise UnreachableError("no such folder", again=False)
    return sorted(entry for entry in path.iterdir() if entry.is_file())


def local_path(url: str) -> Path:
    """Give the path of a file URL."""
    return Path(unquote(urlsplit(url).path))


def copy(path: Path, part: Path, progress: Callable[[int, int], None]) -> None:
    """Copy a file of this machine. Raises UnreachableError."""
    if not path.is_file():
        raise UnreachableError("listed, but not there", again=False)
    done, total = 0, path.stat().st_size
    with part.open("wb") as sink:
        for chunk in chunks_of(path):
            sink.write(chunk)
            done += len(chunk)
            progress(done, total)


def size_of(path: Path) -> int:
    """Give a file's size, 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def cause_of(error: BaseException) -> str:
    """Give the innermost cause in one line: `Connection refused` helps, a pool's address does not."""
    seen = {id(error)}
    while True:
        inner = error.__cause__ or error.__context__ or getattr(error, "reason", None)
        nested = next((value for value in error.args if isinstance(value, BaseException)), None)
        following = nested or inner
        if not isinstance(following, BaseException) or id(following) in seen:
            return f"{type(error).__name__}: {error}".splitlines()[0]
        seen.add(id(following))
        error = following


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
