"""The store holds only what was promised, and notices when a file has changed."""

import errno
import hashlib
import threading
from pathlib import Path

import pytest

from wheelmill import store as module
from wheelmill.errors import DiskFullError, HashMismatchError
from wheelmill.store import Store, out_of_space


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, said: list[str]) -> Store:
    return Store(root=tmp_path / "store", warn=said.append)


def test_what_is_added_is_found_again(store: Store) -> None:
    """A content is found under its digest, and nothing else is."""
    path = store.add([b"he", b"llo"], digest(b"hello"))

    assert store.get(digest(b"hello")) == path
    assert path.read_bytes() == b"hello"
    assert path == store.path(digest(b"hello"))
    assert store.get(digest(b"other")) is None


def test_a_file_can_be_added(store: Store, tmp_path: Path) -> None:
    """A file is copied in and stays where it was."""
    source = tmp_path / "x.tar.gz"
    source.write_bytes(b"hello")

    store.add(source, digest(b"hello"))
    store.add(source, digest(b"hello"))

    assert source.exists()
    assert store.get(digest(b"hello")) is not None


def test_stored_files_are_read_only_and_the_folder_is_a_cache(store: Store) -> None:
    """Nobody changes a stored file by accident, and backups can leave the folder out."""
    path = store.add([b"x"], digest(b"x"))

    assert path.stat().st_mode & 0o777 == 0o444
    assert (store.root / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")


def test_another_content_is_refused_and_leaves_nothing(store: Store) -> None:
    """Bytes that were not promised do not stay, not even half-way."""
    with pytest.raises(HashMismatchError) as caught:
        store.add([b"evil"], digest(b"good"), subject="x.tar.gz", place="recipes/x.toml: source.sha256")

    assert str(caught.value) == (
        "hash mismatch for x.tar.gz (pinned in recipes/x.toml: source.sha256)\n"
        f"  expected {digest(b'good')}\n"
        f"  actual   {digest(b'evil')}"
    )
    assert store.get(digest(b"good")) is None
    assert not store.partial(digest(b"good")).exists()


def test_a_damaged_file_is_moved_aside_with_a_word(store: Store, said: list[str]) -> None:
    """A stored file that changed is not given out; it is kept for whoever wants to know why."""
    path = store.add([b"hello"], digest(b"hello"))
    path.chmod(0o644)
    path.write_bytes(b"hellO")

    assert store.get(digest(b"hello")) is None

    [aside] = (store.root / "damaged").iterdir()
    assert aside.read_bytes() == b"hellO"
    assert said == [f"{path} is damaged: moved to {aside}, to be fetched again"]
    assert store.add([b"hello"], digest(b"hello")).read_bytes() == b"hello"


def test_a_large_file_is_read_again_only_after_a_change(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inode that was checked is believed; another one is checked again."""
    monkeypatch.setattr(module, "STAMPED_ABOVE", 3)
    path = store.add([b"hello"], digest(b"hello"))
    read: list[Path] = []
    real = module.digest_of
    monkeypatch.setattr(module, "digest_of", lambda path: (read.append(path), real(path))[1])

    assert store.get(digest(b"hello")) == path
    assert read == []

    path.chmod(0o644)
    path.write_bytes(b"hellO")
    assert store.get(digest(b"hello")) is None
    assert read == [path]


def test_two_at_once_end_with_one_good_file(store: Store) -> None:
    """Whoever comes second waits, then takes the first one's file."""
    found: list[Path] = []
    workers = [
        threading.Thread(target=lambda: found.append(store.add([b"hel", b"lo"], digest(b"hello")))) for _ in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert set(found) == {store.path(digest(b"hello"))}
    assert found[0].read_bytes() == b"hello"


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """No room left is a failure of its own kind, with a way on; other trouble stays what it is."""
    with pytest.raises(DiskFullError) as caught, out_of_space(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(caught.value) == f"no room left on the disk of {tmp_path}"
    assert caught.value.advice == "Free space (`wheelmill gc`), or put the cache elsewhere with --cache DIR."
    assert (caught.value.kind, caught.value.exit_status) == ("disk-full", 6)

    with pytest.raises(PermissionError), out_of_space(tmp_path):
        raise PermissionError(errno.EACCES, "no")
