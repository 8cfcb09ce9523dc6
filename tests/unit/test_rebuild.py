"""Rebuild: what a wheel must carry, whom it trusts, and what is varied around it."""

import os
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from samples import write_catalog
from test_explain import derive, wheel
from test_pipeline import FakeRunner, Heard

from wheelmill import rebuild
from wheelmill.carry import unpack
from wheelmill.catalog import load_catalog
from wheelmill.compare import Comparison, Difference
from wheelmill.derivation import FORMATS
from wheelmill.errors import EnvironmentUnfitError, UsageError, VerifyError
from wheelmill.explain import of_wheel
from wheelmill.pipeline import Bounds, Tools
from wheelmill.rebuild import (
    CAUTIOUS,
    Rebuilt,
    carried_derivation,
    carried_files,
    contents,
    known_here,
    require_formats,
    stranger,
    varied,
)
from wheelmill.runtime import Directories, Runtime


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return wheel(tmp_path / "house", derive(write_catalog(tmp_path)))


@pytest.fixture
def tools(tmp_path: Path, made: Path) -> Tools:
    directories = Directories(cache=tmp_path / "cache", wheelhouse=tmp_path / "house")
    return Tools(
        runtime=Runtime(env={}, directories=directories, cwd=tmp_path, python=Path("/env/bin/python")),
        runner=FakeRunner(),
        report=Heard(),
        catalog=load_catalog((tmp_path / "recipes",)),
        offline=True,
        cuda_home=None,
        python=None,
        bounds=Bounds(),
    )


def test_a_wheel_of_this_checkout_needs_no_trust(made: Path, tools: Tools, tmp_path: Path) -> None:
    """The same recipe, patches and locks are here: whatever is built is known."""
    assert known_here(of_wheel(made), tools.catalog)
    patch = tmp_path / "patches" / "demo" / "1.0" / "0001-why.patch"
    patch.write_text(patch.read_text().replace("+b", "+c"))
    assert not known_here(of_wheel(made), tools.catalog)
    patch.unlink()
    assert not known_here(of_wheel(made), tools.catalog)


def test_a_strangers_wheel_shows_what_it_would_run(made: Path, tools: Tools, tmp_path: Path) -> None:
    """Source and patches with digests and what they touch; exit status 2, and the way on."""
    derivation = carried_derivation(unpack(carried_files(made), tmp_path / "x"), of_wheel(made), tools)
    assert list(contents(derivation)) == [
        f"source: demo-1.0.tar.gz of demo, sha256 {'a' * 64}",
        f"patch: 0001-why.patch: x +1 -1, sha256 {derivation.patches[0].sha256[:12]}",
        "build environment: 2 locked files; toolkit cuda-13.0",
    ]
    refused = stranger(made, derivation)
    assert isinstance(refused, UsageError)
    assert str(refused).splitlines()[1:] == [f"  {line}" for line in contents(derivation)]
    assert f"wheelmill rebuild --trust {made}" in refused.advice


def test_an_unknown_package_is_built_with_care(made: Path, tools: Tools, tmp_path: Path) -> None:
    """Memory figures are no inputs: they come from this checkout, else cautious ones are taken."""
    catalog = unpack(carried_files(made), tmp_path / "x")
    here = carried_derivation(catalog, of_wheel(made), tools)
    assert here.release.resources.units == 5
    nowhere = carried_derivation(catalog, of_wheel(made), replace(tools, catalog=replace(tools.catalog, recipes={})))
    assert nowhere.release.resources == CAUTIOUS
    assert nowhere.drv == here.drv == of_wheel(made).drv


def test_another_wheelmill(made: Path) -> None:
    """Other format numbers cannot be rebuilt here; exit status 5 says which."""
    other = replace(of_wheel(made), inputs={**of_wheel(made).inputs, "formats": {**FORMATS, "stamp": 99}})
    require_formats(of_wheel(made))
    with pytest.raises(EnvironmentUnfitError, match=r'other formats: .*"stamp": 99'):
        require_formats(other)


def test_an_altered_wheel(made: Path, tools: Tools, tmp_path: Path) -> None:
    """What is carried must hash to what the wheel says of itself; exit status 8."""
    files = carried_files(made)
    recipe = files["recipes/demo.toml"].replace(b"revision = 1", b"revision = 2")
    catalog = unpack({**files, "recipes/demo.toml": recipe}, tmp_path / "x")
    with pytest.raises(VerifyError, match="carries is not what it was made of: drv "):
        carried_derivation(catalog, of_wheel(made), tools)
    catalog = unpack(files, tmp_path / "y")
    (tmp_path / "y" / "recipes" / "stacks" / "cu130.build.txt").unlink()
    with pytest.raises(VerifyError, match="is no recipe, stack and lock"):
        carried_derivation(catalog, of_wheel(made), tools)


def test_a_wheel_that_carries_nothing(made: Path, tmp_path: Path) -> None:
    """One of an older wheelmill is refused; exit status 8."""
    bare = tmp_path / made.name
    with zipfile.ZipFile(made) as source, zipfile.ZipFile(bare, "w") as target:
        for name in source.namelist():
            if "/wheelmill/" not in name:
                target.writestr(name, source.read(name))
    with pytest.raises(VerifyError, match="carries no recipe"):
        carried_files_without_record(bare)


def carried_files_without_record(path: Path) -> None:
    """RECORD still lists what was taken out, so the wheel is written anew first."""
    from wheelmill.wheel_file import content, write_wheel

    with zipfile.ZipFile(path) as archive:
        members = [content(name, archive.read(name)) for name in archive.namelist()]
    carried_files(write_wheel(members, path, epoch=1_700_000_000).path)


def test_what_is_varied_is_put_back(tools: Tools) -> None:
    """Umask and cores are the process's own; zone, locale, names, path and jobs are handed down."""
    mask = os.umask(0o022)
    cores = os.sched_getaffinity(0)
    with varied(tools, on=True) as (other, what):
        assert os.umask(0o077) == 0o077
        assert len(os.sched_getaffinity(0)) == 1
        assert other.runtime.env["TZ"] == "Pacific/Kiritimati"
        assert other.runtime.directories.rebuilds != tools.runtime.directories.rebuilds
        assert other.runtime.directories.store == tools.runtime.directories.store
        assert other.bounds.max_jobs == 1
        assert {"path", "umask", "zone", "locale", "jobs", "cores"} <= set(what)
    assert os.umask(mask) == 0o022
    assert os.sched_getaffinity(0) == cores
    with varied(tools, on=False) as (same, nothing):
        assert (same, nothing) == (tools, ())
    assert time.tzname


def test_to_json(tmp_path: Path) -> None:
    """Grade and differences as others rely on them, and what could not be varied."""
    found = Comparison(grade="different", differences=(Difference(kind="content", member="x", detail="y"),))
    done = Rebuilt(
        wheel=tmp_path / "a", comparison=found, reasons=(), kept=tmp_path / "b", varied=("path",), seconds=1.26
    )
    document = done.to_json()
    assert (document["schema"], document["grade"], document["seconds"]) == (1, "different", 1.3)
    assert document["not_varied"] == dict(rebuild.NOT_VARIED)
    assert replace(done, varied=()).to_json()["not_varied"] == {}
