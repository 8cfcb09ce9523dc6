"""The configured places decide where a file comes from, its digest whether it is the one."""

import errno
import hashlib
import os
from pathlib import Path

import pypi_simple
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from wheelmill.errors import DiskFullError, FetchError, HashMismatchError
from wheelmill.fetch import FetchedTree, fetch, fetch_source, fetch_tree, tree_digest
from wheelmill.places import IndexSettings, index_settings, redact
from wheelmill.recipe import IndexSource, TreeSource
from wheelmill.store import Store
from wheelmill.wire import Wire, cause_of

GOOD = b"a source distribution"
SHA256 = hashlib.sha256(GOOD).hexdigest()
SOURCE = IndexSource(project="demo", file="demo-1.0.tar.gz", sha256=SHA256)
DEFAULT = pypi_simple.PYPI_SIMPLE_ENDPOINT
NOWHERE = IndexSettings(urls=())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(root=tmp_path / "store")


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    return tmp_path / "etc"


def links(folder: Path, content: bytes = GOOD) -> IndexSettings:
    folder.mkdir(exist_ok=True)
    (folder / SOURCE.file).write_bytes(content)
    return IndexSettings(urls=(), find_links=(folder.as_uri(),))


# settings


def test_without_settings_it_is_the_common_index(tmp_path: Path, etc: Path) -> None:
    """Nothing configured: the index that every installer asks; uv needs no word about it."""
    settings = index_settings({}, tmp_path, etc=etc)

    assert settings == IndexSettings(urls=(DEFAULT,))
    assert settings.uv_environment() == {}


@pytest.mark.parametrize(
    ("env", "urls"),
    [
        ({"PIP_INDEX_URL": "https://a.test/s"}, ("https://a.test/s",)),
        ({"UV_DEFAULT_INDEX": "https://a.test/s", "PIP_INDEX_URL": "https://b.test/s"}, ("https://a.test/s",)),
        ({"UV_INDEX_URL": "https://a.test/s"}, ("https://a.test/s",)),
        ({"PIP_EXTRA_INDEX_URL": "https://b.test https://c.test"}, ("https://b.test", "https://c.test", DEFAULT)),
        ({"UV_INDEX": "corp=https://b.test/s"}, ("https://b.test/s", DEFAULT)),
        (
            {
                "UV_INDEX": "my-corp=https://b.test/s",
                "UV_INDEX_MY_CORP_USERNAME": "u",
                "UV_INDEX_MY_CORP_PASSWORD": "p@",
            },
            ("https://u:p%40@b.test/s", DEFAULT),
        ),
        ({"PIP_NO_INDEX": "1"}, ()),
    ],
)
def test_variables_name_the_indexes(env: dict[str, str], urls: tuple[str, ...], tmp_path: Path, etc: Path) -> None:
    """The variables of uv and of pip are understood, uv first."""
    assert index_settings(env, tmp_path, etc=etc).urls == urls


def test_pip_conf_files_are_read_the_nearer_winning(tmp_path: Path, etc: Path) -> None:
    """System, user, PIP_CONFIG_FILE: the later replaces the earlier, key by key."""
    (etc / "pip.conf").write_text("[global]\nindex-url = https://system.test/s\nfind-links = /opt/wheels\n")
    (tmp_path / ".config" / "pip").mkdir(parents=True)
    (tmp_path / ".config" / "pip" / "pip.conf").write_text("[global]\nindex_url = https://user.test/s\n")
    chosen = tmp_path / "chosen.conf"
    chosen.write_text("[install]\nindex-url = https://chosen.test/s\n")

    assert index_settings({}, tmp_path, etc=etc) == IndexSettings(
        urls=("https://user.test/s",), find_links=("file:///opt/wheels",)
    )
    assert index_settings({"PIP_CONFIG_FILE": str(chosen)}, tmp_path, etc=etc).urls == ("https://chosen.test/s",)
    assert index_settings({"PIP_CONFIG_FILE": os.devnull}, tmp_path, etc=etc) == IndexSettings(urls=(DEFAULT,))


def test_uv_toml_is_read(tmp_path: Path, etc: Path) -> None:
    """Named indexes, the default one, and explicit ones, which serve only who names them."""
    (tmp_path / ".config" / "uv").mkdir(parents=True)
    (tmp_path / ".config" / "uv" / "uv.toml").write_text(
        '[[index]]\nname = "corp"\nurl = "https://corp.test/s"\n'
        '[[index]]\nurl = "https://mirror.test/s"\ndefault = true\n'
        '[[index]]\nname = "torch"\nurl = "https://torch.test/s"\nexplicit = true\n'
        '[pip]\nfind-links = ["/opt/wheels"]\n'
    )

    assert index_settings({}, tmp_path, etc=etc) == IndexSettings(
        urls=("https://corp.test/s", "https://mirror.test/s"), find_links=("file:///opt/wheels",)
    )
    assert index_settings({"UV_NO_CONFIG": "1"}, tmp_path, etc=etc).urls == (DEFAULT,)


def test_broken_settings_are_named(tmp_path: Path, etc: Path) -> None:
    """A file that cannot be read is said, not skipped."""
    (etc / "pip.conf").write_text("index-url = x\n")

    with pytest.raises(FetchError, match=r"^cannot read pip's settings in .*/pip\.conf: File contains no section"):
        index_settings({}, tmp_path, etc=etc)

    (etc / "uv.toml").write_text("index-url =\n")
    with pytest.raises(FetchError, match=r"^cannot read uv's settings in .*/uv\.toml: Invalid value"):
        index_settings({"UV_CONFIG_FILE": str(etc / "uv.toml")}, tmp_path, etc=etc)


def test_uv_is_told_the_same() -> None:
    """The settings reach uv by its environment."""
    settings = IndexSettings(
        urls=("https://a.test", "https://b.test", "https://c.test"), find_links=("file:///w", "file:///v")
    )

    assert settings.uv_environment() == {
        "UV_DEFAULT_INDEX": "https://c.test",
        "UV_INDEX": "https://a.test https://b.test",
        "UV_FIND_LINKS": "file:///w,file:///v",
    }


def test_only_what_others_reach_is_shared() -> None:
    """A lock is made from remote indexes, unless this machine has none."""
    mixed = IndexSettings(urls=("file:///opt/simple", "https://a.test"), find_links=("file:///opt/wheels",))
    local = IndexSettings(urls=("file:///opt/simple",))

    assert mixed.shared == IndexSettings(urls=("https://a.test",))
    assert local.shared == local


def test_logins_and_tokens_are_not_shown() -> None:
    """No URL in a message carries a secret."""
    assert redact("GET https://me:secret@a.test/s?token=abc failed") == "GET https://***@a.test/s?*** failed"
    assert redact("https://a.test/simple/x") == "https://a.test/simple/x"


# fetching


def test_a_folder_of_links_serves(tmp_path: Path, store: Store) -> None:
    """A file of the right name and bytes is taken into the store, with its progress told."""
    steps: list[tuple[str, int, int | None]] = []

    fetched = fetch_source(SOURCE, store=store, index=links(tmp_path / "w"), progress=lambda *step: steps.append(step))

    assert fetched.path.read_bytes() == GOOD
    assert (fetched.file, fetched.sha256) == (SOURCE.file, SHA256)
    assert steps == [(SOURCE.file, len(GOOD), len(GOOD))]


def test_an_index_on_disk_serves(tmp_path: Path, store: Store) -> None:
    """A static index with relative links is an index as any other."""
    page = tmp_path / "simple" / "demo"
    page.mkdir(parents=True)
    page.joinpath("index.html").write_text(f'<a href="../../files/demo-1.0.tar.gz#sha256={SHA256}">demo-1.0.tar.gz</a>')
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / SOURCE.file).write_bytes(GOOD)

    fetched = fetch_source(SOURCE, store=store, index=IndexSettings(urls=((tmp_path / "simple").as_uri(),)))

    assert fetched.path.read_bytes() == GOOD


def test_what_is_in_the_store_needs_no_place(tmp_path: Path, store: Store) -> None:
    """Once fetched, a source is there offline too."""
    fetch_source(SOURCE, store=store, index=links(tmp_path / "w"))

    assert fetch_source(SOURCE, store=store, index=NOWHERE, offline=True).path.read_bytes() == GOOD


def test_the_right_bytes_win_whoever_has_them(tmp_path: Path, store: Store) -> None:
    """A wrong file under the same name does not hide the right one behind it."""
    wrong, right = links(tmp_path / "a", b"other"), links(tmp_path / "b")
    both = IndexSettings(urls=(), find_links=wrong.find_links + right.find_links)

    assert fetch_source(SOURCE, store=store, index=both).path.read_bytes() == GOOD


def test_a_wrong_file_is_refused(tmp_path: Path, store: Store) -> None:
    """The message names the file, its place, the pin's place and both digests."""
    index = links(tmp_path / "w", b"other")

    with pytest.raises(HashMismatchError) as caught:
        fetch_source(SOURCE, store=store, index=index, place='recipes/demo.toml: version."1.0".source.sha256')

    assert str(caught.value) == (
        f"hash mismatch for demo-1.0.tar.gz from {index.find_links[0]} "
        '(pinned in recipes/demo.toml: version."1.0".source.sha256)\n'
        f"  expected {SHA256}\n  actual   {hashlib.sha256(b'other').hexdigest()}"
    )
    assert store.get(SHA256) is None


def test_a_file_that_nobody_has_lists_the_places(tmp_path: Path, store: Store) -> None:
    """Each place says why it did not serve."""
    empty = tmp_path / "empty"
    empty.mkdir()
    index = IndexSettings(urls=("file:///nonexistent/simple",), find_links=(empty.as_uri(),))

    with pytest.raises(FetchError) as caught:
        fetch_source(SOURCE, store=store, index=index)

    assert str(caught.value) == (
        "cannot get demo-1.0.tar.gz of demo; looked in:\n"
        f"  {empty.as_uri()}: no such file among 0\n"
        "  file:///nonexistent/simple: no such folder"
    )
    assert caught.value.advice == (
        "Check the package index that pip or uv is set to (PIP_INDEX_URL, UV_DEFAULT_INDEX, pip.conf, uv.toml), "
        "or put the file into a folder and name that in PIP_FIND_LINKS."
    )
    with pytest.raises(FetchError, match="nowhere: no index is configured"):
        fetch_source(SOURCE, store=store, index=NOWHERE)


def test_offline_says_what_to_run(store: Store) -> None:
    """Offline, an absent source is a failure with the command that gets it."""
    with pytest.raises(FetchError) as caught:
        fetch_source(SOURCE, store=store, index=NOWHERE, offline=True)

    assert str(caught.value) == "demo-1.0.tar.gz of demo is not in the store, and --offline forbids the network"
    assert caught.value.advice == "Run `wheelmill fetch demo` with a network, then try again."
    assert caught.value.exit_status == 4


def test_a_damaged_first_half_is_fetched_anew(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half that does not belong to the file costs a second download, not the fetch."""
    index = links(tmp_path / "w")
    with store.locked(SHA256):
        store.partial(SHA256).write_bytes(b"rubbish")
    real, tries = Wire.download, []

    def resuming(wire: Wire, url: str, part: Path, name: str) -> None:
        tries.append(part.exists())
        if part.exists():
            part.write_bytes(part.read_bytes() + GOOD)
        else:
            real(wire, url, part, name)

    monkeypatch.setattr(Wire, "download", resuming)

    assert fetch_source(SOURCE, store=store, index=index).path.read_bytes() == GOOD
    assert tries == [True, False]


def test_a_finished_half_needs_no_place(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the last byte and the move: the bytes are not fetched again."""
    with store.locked(SHA256):
        store.partial(SHA256).write_bytes(GOOD)
    monkeypatch.setattr(Wire, "download", lambda *_: pytest.fail("downloaded again"))

    assert fetch_source(SOURCE, store=store, index=links(tmp_path / "w")).path.read_bytes() == GOOD


def test_a_full_disk_is_no_network_failure(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room for the download is said as such, whatever place was asked."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Wire, "download", full)

    with pytest.raises(DiskFullError, match=r"^no room left on the disk of "):
        fetch_source(SOURCE, store=store, index=links(tmp_path / "w"))


def test_the_innermost_cause_is_told() -> None:
    """A pool's wrapping says nothing; what went wrong in the end does."""
    inner = ConnectionRefusedError(111, "Connection refused")

    assert cause_of(requests.ConnectionError(inner)) == "ConnectionRefusedError: [Errno 111] Connection refused"


# directories


def make_tree(root: Path) -> Path:
    (root / "src").mkdir(parents=True)
    (root / "setup.py").write_text("setup()\n")
    (root / "src" / "a.cu").write_text("__global__\n")
    (root / "src" / "link").symlink_to("a.cu")
    return root


def test_a_tree_with_its_digest_is_fetched(tmp_path: Path) -> None:
    """A directory beside the recipe is pinned as an archive is."""
    digest = tree_digest(make_tree(tmp_path / "demo"))

    assert fetch_tree(TreeSource(path="demo", sha256=digest), base=tmp_path).path == tmp_path / "demo"


def test_a_changed_tree_tells_its_digest(tmp_path: Path) -> None:
    """The author can paste the digest that was found."""
    found = tree_digest(make_tree(tmp_path / "demo"))

    with pytest.raises(HashMismatchError) as caught:
        fetch_tree(TreeSource(path="demo", sha256="0" * 64), base=tmp_path)

    assert caught.value.actual == found
    assert caught.value.advice == f'Where the change is meant, write `sha256 = "{found}"` under source in the recipe.'
    with pytest.raises(FetchError, match="does not exist"):
        fetch_tree(TreeSource(path="absent", sha256="0" * 64), base=tmp_path)


def test_leftovers_and_times_do_not_enter_a_tree_digest(tmp_path: Path) -> None:
    """Building in a tree does not change what it is."""
    root = make_tree(tmp_path / "demo")
    before = tree_digest(root)
    for folder in ("build", ".git", "src/__pycache__", "demo.egg-info"):
        (root / folder).mkdir()
        (root / folder / "x").write_text("x")
    (root / "setup.pyc").write_text("x")
    os.utime(root / "setup.py", (1, 1))
    (root / "setup.py").chmod(0o600)

    assert tree_digest(root) == before


@pytest.mark.parametrize("change", ["content", "name", "program", "link", "kind", "nested build"])
def test_whatever_can_matter_enters_a_tree_digest(change: str, tmp_path: Path) -> None:
    """Content, names, the exec bit, where links lead, and folders called build further down."""
    root = make_tree(tmp_path / "demo")
    before = tree_digest(root)
    match change:
        case "content":
            (root / "setup.py").write_text("setup() \n")
        case "name":
            (root / "setup.py").rename(root / "setup2.py")
        case "program":
            (root / "setup.py").chmod(0o755)
        case "link":
            (root / "src" / "link").unlink()
            (root / "src" / "link").symlink_to("../setup.py")
        case "kind":
            (root / "src" / "link").unlink()
            (root / "src" / "link").write_text("a.cu")
        case _:
            (root / "src" / "build").mkdir()
            (root / "src" / "build" / "x.py").write_text("")

    assert tree_digest(root) != before


def test_a_pipe_is_no_source(tmp_path: Path) -> None:
    """What cannot be hashed is refused, not skipped."""
    os.mkfifo(make_tree(tmp_path / "demo") / "pipe")

    with pytest.raises(FetchError, match="neither file, folder nor link"):
        tree_digest(tmp_path / "demo")


def test_either_kind_of_source_is_fetched(tmp_path: Path, store: Store) -> None:
    """One door for both kinds."""
    digest = tree_digest(make_tree(tmp_path / "demo"))
    index = links(tmp_path / "w")

    tree = fetch(TreeSource(path="demo", sha256=digest), store=store, index=index, base=tmp_path)
    archive = fetch(SOURCE, store=store, index=index, base=tmp_path)

    assert isinstance(tree, FetchedTree)
    assert archive.sha256 == SHA256


@given(st.text(alphabet="abc:/@?=&. ", max_size=40))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    """Redaction is stable, and no login survives it."""
    once = redact(text)

    assert redact(once) == once
