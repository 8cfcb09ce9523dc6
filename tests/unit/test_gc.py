"""gc frees what no build holds."""

import fcntl
import shutil
from pathlib import Path

import pytest

from wheelmill.gc import collect
from wheelmill.runtime import Directories


def cache(tmp_path: Path) -> Directories:
    directories = Directories(cache=tmp_path, wheelhouse=tmp_path / "wheelhouse")
    for folder in (directories.builds / "a", directories.builds / "b", directories.environments / "x"):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"12345")
    return directories


def test_leftovers_go_and_environments_stay(tmp_path: Path) -> None:
    """Without --all only the workplaces of failed builds are removed, and their sizes told."""
    directories = cache(tmp_path)
    freed = list(collect(directories, everything=False))
    assert [(each.path.name, each.size) for each in freed] == [("a", 5), ("b", 5)]
    assert not (directories.builds / "a").exists()
    assert (directories.environments / "x" / "file").exists()


def test_everything_means_all_that_can_be_made_again(tmp_path: Path) -> None:
    """With --all environments, toolkits, objects and fetched files go too."""
    directories = cache(tmp_path)
    assert [each.path.name for each in collect(directories, everything=True)] == ["a", "b", "environments"]


def test_a_running_build_keeps_its_workplace_and_all_that_it_uses(tmp_path: Path) -> None:
    """A held lock means that somebody builds there: environments and toolkits are in use."""
    directories = cache(tmp_path)
    with (directories.builds / "a" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [each.path.name for each in collect(directories, everything=True)] == ["b"]
    assert (directories.builds / "a" / "file").exists()
    assert (directories.environments / "x" / "file").exists()


def test_what_goes_is_renamed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle leaves no half of an environment under its own name; the next run removes the rest."""
    directories = cache(tmp_path)

    def stopped(_: Path, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", stopped)
        with pytest.raises(KeyboardInterrupt):
            list(collect(directories, everything=False))
    assert not (directories.builds / "a").exists()
    directories.environments.rename(tmp_path / ".environments.1")
    list(collect(directories, everything=True))
    assert list(directories.builds.iterdir()) == []
    assert not (tmp_path / ".environments.1").exists()


def test_no_cache_is_no_error(tmp_path: Path) -> None:
    """Where nothing was built there is nothing to free."""
    assert list(collect(Directories(cache=tmp_path / "none", wheelhouse=tmp_path), everything=True)) == []


def test_a_running_rebuild_keeps_its_folders(tmp_path: Path) -> None:
    """Those of a rebuild that ended badly go, and a wheel that was kept to be looked at; a running one stays."""
    directories = cache(tmp_path)
    for name in ("done", "kept", "far/away/running"):
        (directories.rebuilds / name / "objects").mkdir(parents=True)
    (directories.rebuilds / "done" / "lock").touch()
    with (directories.rebuilds / "far/away/running/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [each.path.name for each in collect(directories, everything=True)] == ["a", "b", "done", "kept"]
    assert (directories.rebuilds / "far/away/running/objects").is_dir()
    assert (directories.environments / "x" / "file").exists()
