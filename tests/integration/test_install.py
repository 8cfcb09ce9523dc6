"""Offline installs by the real uv: a tiny wheel, its lock, a clean environment, an import."""

import base64
import hashlib
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from wheelmill._process import SystemRunner
from wheelmill._uv import Uv
from wheelmill.catalog import load_catalog
from wheelmill.errors import FetchError, VerifyError
from wheelmill.install import Installation, PinnedWheel, offline_install
from wheelmill.lock import Lock, parse_lock
from wheelmill.places import IndexSettings, index_settings
from wheelmill.resolve import lock
from wheelmill.store import digest_of

pytestmark = pytest.mark.integration


def make_wheel(folder: Path, name: str, version: str, *, requires: str = "", code: str = "") -> PinnedWheel:
    """Write a pure wheel by hand."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": metadata + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for path, text in files.items()
    }
    record = "".join(f"{path},sha256={digests[path]},{len(files[path])}\n" for path in files)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(member, text)
    return PinnedWheel(path=path, sha256=digest_of(path))


@pytest.fixture
def uv(tmp_path: Path) -> Uv:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "cache")}
    return Uv(runner=SystemRunner(), env=env, index=IndexSettings(urls=("http://127.0.0.1:9/simple",)))


@pytest.fixture
def links(tmp_path: Path) -> Path:
    (tmp_path / "links").mkdir()
    return tmp_path / "links"


def lock_of(wheel: PinnedWheel) -> Lock:
    text = f"#   {wheel.path.name}\nbase==1.0 \\\n    --hash=sha256:{wheel.sha256}\n"
    return parse_lock(text, file="demo.run.txt")


def installation(tmp_path: Path, lock: Lock, *wheels: PinnedWheel, find_links: Path | None) -> Installation:
    return Installation(
        interpreter=Path(sys.executable),
        venv=tmp_path / "venv",
        lock=lock,
        wheels=wheels,
        modules=("thing",),
        find_links=find_links,
    )


def test_a_wheel_and_its_lock_install_without_a_network(tmp_path: Path, links: Path, uv: Uv) -> None:
    """From a folder of links into a clean environment; modules come from there, under a plus in the file name too."""
    base = make_wheel(links, "base", "1.0", code="VALUE = 41\n")
    thing = make_wheel(
        tmp_path,
        "thing",
        "1.0+cu128.sm100",
        requires="base==1.0",
        code="import base, os\nassert 'SECRET' not in os.environ\nVALUE = base.VALUE + 1\n",
    )

    proof = offline_install(installation(tmp_path, lock_of(base), thing, find_links=links), uv=uv)

    assert proof.distributions == {"base": "1.0", "thing": "1.0+cu128.sm100"}
    assert Path(proof.modules["thing"]).is_relative_to(tmp_path / "venv")
    again = offline_install(installation(tmp_path, lock_of(base), thing, find_links=links), uv=uv)
    assert again.distributions == proof.distributions


def test_a_lock_file_that_changed_is_refused(tmp_path: Path, links: Path, uv: Uv) -> None:
    """Another file under a locked name and version is not installed."""
    base = make_wheel(links, "base", "1.0")
    held = lock_of(base)
    make_wheel(links, "base", "1.0", code="EVIL = True\n")

    with pytest.raises(FetchError, match=r"(?s)^cannot install demo\.run\.txt without a network:.*ash mismatch"):
        offline_install(installation(tmp_path, held, find_links=links), uv=uv)


def test_without_its_files_a_lock_is_to_be_fetched(tmp_path: Path, links: Path, uv: Uv) -> None:
    """Nothing cached, no folder: no index is asked, and the way on is told."""
    held = lock_of(make_wheel(links, "base", "1.0"))

    with pytest.raises(FetchError) as caught:
        offline_install(installation(tmp_path, held, find_links=None), uv=uv)

    assert caught.value.advice == "Run `wheelmill fetch` with a network, then try again."


def test_a_set_that_does_not_agree_is_found(tmp_path: Path, links: Path, uv: Uv) -> None:
    """A wheel whose requirement the lock does not meet does not pass."""
    base = make_wheel(links, "base", "1.0")
    thing = make_wheel(tmp_path, "thing", "1.0", requires="base==2.0")

    with pytest.raises(VerifyError, match=r"(?s)^the installed set does not agree:.*base"):
        offline_install(installation(tmp_path, lock_of(base), thing, find_links=links), uv=uv)


def test_a_module_that_does_not_import_is_found(tmp_path: Path, links: Path, uv: Uv) -> None:
    """The cause comes first."""
    thing = make_wheel(tmp_path, "thing", "1.0", code="import absent_module\n")

    with pytest.raises(VerifyError, match=r"^cannot import thing: ModuleNotFoundError: No module named 'absent_mod"):
        offline_install(installation(tmp_path, parse_lock("", file="e.txt"), thing, find_links=links), uv=uv)


@pytest.mark.network
@pytest.mark.parametrize("name", ["cu128", "cu130"])
def test_locking_again_changes_no_byte(name: str, tmp_path: Path) -> None:
    """The shipped locks are what their stacks and recipes give, today as on the day they were made."""
    recipes = Path(__file__).parents[2] / "recipes"
    shutil.copytree(recipes, tmp_path / "recipes")
    catalog = load_catalog((tmp_path / "recipes",))
    for path in (tmp_path / "recipes" / "stacks").glob("*.txt"):
        path.write_text(path.read_text().partition("\n")[0])
    settings = index_settings(os.environ, Path.home()).shared
    uv = Uv(runner=SystemRunner(), env=os.environ, index=settings)

    made = lock(catalog, catalog.stack(name), uv=uv, python=Path(sys.executable))

    assert {path.name: path.read_text() for path in made} == {
        path.name: path.read_text() for path in (recipes / "stacks").glob(f"{name}.*.txt")
    }
