"""The network: pages of links, and files that go on where they broke off.

The one module that needs requests and pypi_simple, which cost 0.5 s of every start: whoever reaches a network imports
it there and then.
"""

import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import pypi_simple
import requests
import truststore
import urllib3
from requests.adapters import HTTPAdapter

from .places import Http, Progress, UnreachableError, local_path
from .store import CHUNK, chunks_of

T = TypeVar("T")
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


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
