"""Fetching over real sockets, from a small index on this machine that misbehaves on request."""

import base64
import hashlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from wheelmill.catalog import load_catalog
from wheelmill.errors import FetchError, HashMismatchError
from wheelmill.fetch import fetch_source
from wheelmill.places import Http, IndexSettings, index_settings
from wheelmill.recipe import IndexSource
from wheelmill.store import Store, digest_of

pytestmark = pytest.mark.integration

CONTENT = b"".join(hashlib.sha256(bytes([number % 251])).digest() for number in range(20_000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SOURCE = IndexSource(project="demo", file="demo-1.0.tar.gz", sha256=SHA256)
QUICK = Http(pause=0, timeout=5)


class Index(BaseHTTPRequestHandler):
    """A simple index with one project; class attributes say how it misbehaves."""

    protocol_version = "HTTP/1.1"
    broken_off: ClassVar[list[int]] = []
    statuses: ClassVar[list[int]] = []
    ranges: ClassVar[list[str]] = []
    seen: ClassVar[list[str]] = []
    logins: ClassVar[list[str | None]] = []
    announced: ClassVar[str] = ""
    content: ClassVar[bytes] = CONTENT

    def do_GET(self) -> None:
        """Answer."""
        self.seen.append(self.path)
        self.logins.append(self.headers.get("Authorization"))
        if self.statuses:
            self.answer(self.statuses.pop(0), b"later")
        elif self.path == "/simple/demo/":
            fragment = f"#sha256={self.announced}" if self.announced else ""
            link = f'<a href="http://{self.headers["Host"]}/files/demo-1.0.tar.gz{fragment}">demo-1.0.tar.gz</a>'
            self.answer(200, link.encode(), {"Content-Type": "text/html"})
        elif self.path == "/files/demo-1.0.tar.gz":
            self.file()
        else:
            self.answer(404, b"no")

    def file(self) -> None:
        """Send the file, or its rest, or only a piece of what was promised."""
        wanted = self.headers.get("Range", "")
        self.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-") or 0)
        body = self.content[start:]
        if start > len(self.content) - 1:
            self.answer(416, b"")
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Encoding", "gzip")  # some servers say so of every .gz
        self.end_headers()
        if self.broken_off:
            self.wfile.write(body[: self.broken_off.pop(0)])
            self.close_connection = True
        else:
            self.wfile.write(body)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a short answer."""
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("broken_off", "statuses", "ranges", "seen", "logins"):
        monkeypatch.setattr(Index, name, [])
    monkeypatch.setattr(Index, "announced", "")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(root=tmp_path / "store")


def settings(url: str) -> IndexSettings:
    return IndexSettings(urls=(url,))


def test_a_source_is_fetched_once(index: str, store: Store) -> None:
    """Through page and link into the store; the second time nobody is asked. Bytes are not unpacked on the way."""
    steps: list[tuple[str, int, int | None]] = []
    fetched = fetch_source(
        SOURCE, store=store, index=settings(index), progress=lambda *step: steps.append(step), http=QUICK
    )
    again = fetch_source(SOURCE, store=store, index=settings(index), http=QUICK)

    assert fetched.path.read_bytes() == CONTENT
    assert again == fetched
    assert Index.seen == ["/simple/demo/", "/files/demo-1.0.tar.gz"]
    assert steps[-1] == ("demo-1.0.tar.gz", len(CONTENT), len(CONTENT))


def test_a_broken_connection_is_gone_on_with(index: str, store: Store) -> None:
    """What came before the break is kept; only the rest is asked for, as often as something comes."""
    Index.broken_off += [100_000] * 4

    fetched = fetch_source(SOURCE, store=store, index=settings(index), http=QUICK)

    assert fetched.path.read_bytes() == CONTENT
    assert Index.ranges == ["", "bytes=100000-", "bytes=200000-", "bytes=300000-", "bytes=400000-"]


def test_a_later_run_goes_on(index: str, store: Store) -> None:
    """A fetch that failed half-way leaves its bytes to the next one."""
    Index.broken_off += [100_000, 0, 0, 0]
    with pytest.raises(FetchError) as caught:
        fetch_source(SOURCE, store=store, index=settings(index), http=QUICK)
    assert str(caught.value).startswith(
        f"cannot get demo-1.0.tar.gz of demo; looked in:\n  {index}: cannot be reached: IncompleteRead: "
    )

    assert fetch_source(SOURCE, store=store, index=settings(index), http=QUICK).path.read_bytes() == CONTENT
    assert Index.ranges[-1] == "bytes=100000-"


def test_a_busy_server_is_asked_again(index: str, store: Store) -> None:
    """A status that passes by itself is waited out, twice; the third ends it."""
    Index.statuses += [503, 429]
    assert fetch_source(SOURCE, store=store, index=settings(index), http=QUICK).path.read_bytes() == CONTENT


def test_a_broken_server_is_told(index: str, store: Store) -> None:
    """After three tries the server's own word; a refusal is not tried again."""
    Index.statuses += [500, 500, 500]
    with pytest.raises(FetchError, match=r"/simple: answered 500 Internal Server Error$"):
        fetch_source(SOURCE, store=store, index=settings(index), http=QUICK)

    Index.seen.clear()
    Index.statuses += [403]
    with pytest.raises(FetchError, match=r"/simple: answered 403 Forbidden$"):
        fetch_source(SOURCE, store=store, index=settings(index), http=QUICK)
    assert Index.seen == ["/simple/demo/"]


def test_a_wrong_file_is_refused(index: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other bytes under the pinned name do not reach the store."""
    monkeypatch.setattr(Index, "content", CONTENT + b"!")

    with pytest.raises(HashMismatchError) as caught:
        fetch_source(SOURCE, store=store, index=settings(index), http=QUICK)

    assert caught.value.actual == hashlib.sha256(CONTENT + b"!").hexdigest()
    assert store.get(SHA256) is None
    assert not store.partial(SHA256).exists()


def test_an_announced_other_file_is_not_even_downloaded(index: str, store: Store) -> None:
    """The page's own digest suffices for a refusal."""
    Index.announced = "f" * 64

    with pytest.raises(HashMismatchError, match=r"f{64}"):
        fetch_source(SOURCE, store=store, index=settings(index), http=QUICK)
    assert Index.seen == ["/simple/demo/"]


def test_offline_nobody_is_asked(index: str, store: Store) -> None:
    """Offline means no socket at all."""
    with pytest.raises(FetchError, match="--offline forbids the network"):
        fetch_source(SOURCE, store=store, index=settings(index), offline=True, http=QUICK)
    assert Index.seen == []


def test_a_login_is_used_and_not_shown(index: str, store: Store) -> None:
    """Credentials in the index's URL reach the server for page and file, and never a message."""
    url = index.replace("127", "me:s%40cret@127")
    Index.statuses += [401]
    with pytest.raises(FetchError) as caught:
        fetch_source(SOURCE, store=store, index=settings(url), http=QUICK)
    assert "cret" not in str(caught.value)
    assert "//***@127.0.0.1" in str(caught.value)

    fetch_source(SOURCE, store=store, index=settings(url), http=QUICK)
    assert set(Index.logins) == {"Basic " + base64.b64encode(b"me:s@cret").decode()}
    assert len(Index.logins) == 3


def test_two_at_once_download_once(index: str, store: Store) -> None:
    """The second waits for the first and takes its file."""
    found: list[Path] = []
    workers = [
        threading.Thread(
            target=lambda: found.append(fetch_source(SOURCE, store=store, index=settings(index), http=QUICK).path)
        )
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert len(found) == 4
    assert Index.seen.count("/files/demo-1.0.tar.gz") == 1


def test_a_full_half_starts_again(index: str, store: Store) -> None:
    """A half that is as long as the file and is not the file: asked for the rest, the server has none."""
    with store.locked(SHA256):
        store.partial(SHA256).write_bytes(bytes(len(CONTENT)))

    assert fetch_source(SOURCE, store=store, index=settings(index), http=QUICK).path.read_bytes() == CONTENT


@pytest.mark.network
@pytest.mark.parametrize("name", ["torch-scatter", "causal-conv1d"])
def test_a_recipes_pinned_source_is_on_the_configured_index(name: str, store: Store) -> None:
    """The shipped pins can be had from wherever pip and uv are set to."""
    recipes = Path(__file__).parents[2] / "recipes"
    [release] = load_catalog((recipes,)).recipe(name).releases.values()
    assert isinstance(release.source, IndexSource)

    fetched = fetch_source(release.source, store=store, index=index_settings(os.environ, Path.home()))

    assert digest_of(fetched.path) == release.source.sha256
