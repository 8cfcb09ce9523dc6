"""Why two builds are not the same: every input has its words, and cached wheels are explained."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from samples import write_catalog
from test_provenance import FOUND

from wheelmill import explain
from wheelmill.arch import Arch
from wheelmill.carry import carried
from wheelmill.catalog import load_catalog
from wheelmill.derivation import Derivation, Selection, instantiate
from wheelmill.errors import UsageError, VerifyError
from wheelmill.explain import of_derivation, of_record, of_wheel, reasons, relatives, subject
from wheelmill.fetch import FetchedSource
from wheelmill.provenance import embedded, realisation
from wheelmill.wheel_file import content, write_wheel
from wheelmill.wheelhouse import Wheelhouse

ARCHIVE = FetchedSource(path=Path("x.tar.gz"), file="x.tar.gz", sha256="a" * 64)


def derive(recipes: Path, **asked: object) -> Derivation:
    return instantiate(load_catalog((recipes,)), Selection(name="demo", stack="cu130", **asked))


def wheel(folder: Path, derivation: Derivation) -> Path:
    """Make a wheel of a derivation, with its build record."""
    folder.mkdir(exist_ok=True)
    info = f"demo-{derivation.full_version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.4\nName: demo\nVersion: {derivation.full_version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nBuild: 1\nTag: cp312-cp312-manylinux_2_28_x86_64\n",
        f"{info}/wheelmill.json": embedded(derivation, FOUND),
        **{f"{info}/{name}": data for name, data in carried(derivation, ARCHIVE).items()},
    }
    path = folder / derivation.wheel_name
    written = write_wheel([content(name, data) for name, data in files.items()], path, epoch=1_700_000_000)
    record = {
        "drv": derivation.drv,
        "realisation": realisation(derivation, FOUND),
        "sha256": written.sha256,
        "size": written.size,
        "inputs": derivation.inputs,
        "found": FOUND.to_json(),
    }
    path.with_name(path.name + ".build.json").write_text(json.dumps(record))
    return path


def texts(ours: explain.Subject, theirs: explain.Subject) -> list[str]:
    return [reason.text for reason in reasons(ours, theirs)]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("a" * 64, "f" * 64, "the source's sha256: aaaaaaaaaaaa, not ffffffffffff"),
        ("demo-1.0.tar.gz", "demo-1.0.zip", "the source's file: demo-1.0.tar.gz, not demo-1.0.zip"),
        ("1700000000", "1700000001", "SOURCE_DATE_EPOCH: 1700000000, not 1700000001"),
        ('"TRUE"', '"FALSE"', "the build variable DEMO_FORCE_BUILD: TRUE, not FALSE"),
        ("source-date-epoch", "revision = 2\nsource-date-epoch", "the recipe's revision: 1, not 2"),
        ("source-date-epoch", "nvcc-threads = 2\nsource-date-epoch", "nvcc's threads: 1, not 2"),
    ],
)
def test_an_input_in_words(tmp_path: Path, old: str, new: str, text: str) -> None:
    """Each input that can differ is named with both values."""
    recipes = write_catalog(tmp_path)
    before = of_derivation(derive(recipes))
    path = recipes / "demo.toml"
    path.write_text(path.read_text().replace(old, new))
    assert texts(before, of_derivation(derive(recipes))) == [text]


def test_patches_by_name(tmp_path: Path) -> None:
    """What a patch says, which are there, and their order."""
    recipes = write_catalog(tmp_path)
    before = of_derivation(derive(recipes))
    folder = tmp_path / "patches" / "demo" / "1.0"
    (folder / "0001-why.patch").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+c\n")
    [changed] = texts(before, of_derivation(derive(recipes)))
    assert changed.startswith("the patch 0001-why.patch says something else: sha256 ")
    (folder / "0002-more.patch").write_text("x")
    text = (recipes / "demo.toml").read_text()
    (recipes / "demo.toml").write_text(text.replace('["0001-why.patch"]', '["0001-why.patch", "0002-more.patch"]'))
    two = of_derivation(derive(recipes))
    assert texts(before, two)[0] == "the patch 0002-more.patch is only in the second"
    (recipes / "demo.toml").write_text(text.replace('["0001-why.patch"]', '["0002-more.patch", "0001-why.patch"]'))
    assert texts(two, of_derivation(derive(recipes))) == ["the patches are applied in another order"]


def test_pins_by_name(tmp_path: Path) -> None:
    """A lock's digest says nothing; the requirement that moved does."""
    recipes = write_catalog(tmp_path)
    made = wheel(tmp_path / "house", derive(recipes))
    lock = recipes / "stacks" / "cu130.build.txt"
    lock.write_text(lock.read_text().replace("ninja==1.13.0", "ninja==1.13.1"))
    assert texts(of_wheel(made), of_derivation(derive(recipes))) == ["the build lock pins ninja 1.13.0, not 1.13.1"]
    lock.write_text(lock.read_text().replace("ninja==1.13.1", "ninja==1.13.0").replace("d" * 64, "9" * 64))
    assert texts(of_wheel(made), of_derivation(derive(recipes))) == ["the build lock pins another file of ninja 1.13.0"]
    bare = replace(of_wheel(made), pins=None)
    assert texts(bare, of_derivation(derive(recipes))) == [
        "the build lock pins other files (one of the two locks is not at hand)"
    ]


def test_what_the_machines_added(tmp_path: Path) -> None:
    """The same derivation by another compiler is another realisation."""
    one = of_wheel(wheel(tmp_path / "house", derive(write_catalog(tmp_path))))
    other = replace(one, found={**one.found, "host_compiler": "i" * 64, "sandbox": "namespaces"})
    assert texts(one, other) == [
        f"the host compiler and linker found (digest): {'h' * 64}, not {'i' * 64}",
        "how far the build was shut in: none, not namespaces",
    ]
    assert texts(one, one) == []


def test_every_input_has_words(tmp_path: Path) -> None:
    """Nobody reads `inputs.foo`: a new input needs words here."""
    derivation = derive(write_catalog(tmp_path))
    assert set(derivation.inputs) - {"patches", "build_lock", "archs"} == set(explain.WORDS)
    assert set(FOUND.to_json()) == set(explain.FOUND)


def test_subjects(tmp_path: Path) -> None:
    """A wheel, a record and the beginning of any of its hashes name the same build."""
    derivation = derive(write_catalog(tmp_path))
    house = Wheelhouse(root=tmp_path / "house")
    made = wheel(house.root, derivation)
    for word in (str(made), f"{made}.build.json", derivation.drv[:6], realisation(derivation, FOUND)[:12]):
        assert subject(word, cwd=tmp_path, house=house).drv == derivation.drv
    assert of_record(Path(f"{made}.build.json")).pins == of_wheel(made).pins


@pytest.mark.parametrize(
    ("word", "message"),
    [("abc", "is neither a wheel"), ("0" * 12, "is neither a wheel"), ("gone.json", "cannot read")],
)
def test_no_such_subject(tmp_path: Path, word: str, message: str) -> None:
    """Exit status 2, with what would do."""
    with pytest.raises(UsageError, match=message):
        subject(word, cwd=tmp_path, house=Wheelhouse(root=tmp_path))


def test_somebody_elses_wheel(tmp_path: Path) -> None:
    """A wheel that says nothing of its making cannot be explained; exit status 8."""
    files = {
        "demo-1.0.dist-info/METADATA": b"Metadata-Version: 2.4\nName: demo\nVersion: 1.0\n",
        "demo-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    write_wheel([content(name, data) for name, data in files.items()], path, epoch=1_700_000_000)
    with pytest.raises(VerifyError, match="wheelmill did not make it"):
        of_wheel(path)


def test_the_nearest_cached_wheel_comes_first(tmp_path: Path) -> None:
    """Why it did not serve is the shortest list of other inputs."""
    recipes = write_catalog(tmp_path)
    house = Wheelhouse(root=tmp_path / "house")
    wheel(house.root, derive(recipes, archs=(Arch.parse("12.0"),)))
    wheel(house.root, derive(recipes, archs=(Arch.parse("9.0"),), variant="small-one", source_date_epoch=1))
    now = derive(recipes)
    first, second = relatives(now, house)
    assert [reason.input for reason in reasons(first, of_derivation(now))] == [
        "archs",
        "environment.DEMO_ARCHS",
        "environment.DEMO_LOCAL",
        "local_version",
    ]
    assert len(reasons(second, of_derivation(now))) > 4
