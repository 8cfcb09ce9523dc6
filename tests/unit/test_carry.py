"""What travels in the wheel: a recipes folder that gives the same derivation again, and nothing but inputs."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import RECIPE, write_catalog

from wheelmill.arch import Arch
from wheelmill.carry import carried, selection_of, spelled, toml, unpack
from wheelmill.catalog import load_catalog
from wheelmill.derivation import Derivation, Selection, instantiate
from wheelmill.errors import VerifyError
from wheelmill.fetch import FetchedSource, FetchedTree, tree_digest
from wheelmill.recipe import IndexSource

ROOT = Path(__file__).parents[2]
SHIPPED = load_catalog((ROOT / "tests" / "recipes", ROOT / "recipes"))
SELECTIONS = [
    Selection(name=name, stack=stack.name, variant=variant)
    for stack in SHIPPED.stacks.values()
    for name, recipe in SHIPPED.recipes.items()
    for variant in ("", *SHIPPED.release(recipe, stack).variants)
]
ARCHIVE = FetchedSource(path=Path("x.tar.gz"), file="x.tar.gz", sha256="a" * 64)


def fetched(derivation: Derivation) -> FetchedSource | FetchedTree:
    source = derivation.release.source
    if isinstance(source, IndexSource):
        return ARCHIVE
    path = Path(derivation.recipe.file).parent / source.path
    return FetchedTree(path=path, sha256=source.sha256)


def again(files: dict[str, bytes], derivation: Derivation, into: Path) -> Derivation:
    """Instantiate what was carried."""
    catalog = unpack({name.removeprefix("wheelmill/"): data for name, data in files.items()}, into)
    return instantiate(catalog, selection_of(derivation.inputs))


@pytest.mark.parametrize("selection", SELECTIONS, ids=lambda each: f"{each.stack}-{each.name}-{each.variant}")
def test_every_shipped_derivation_comes_back(selection: Selection, tmp_path: Path) -> None:
    """For each package, stack and variant the wheel alone gives the same hash, and carries the same again."""
    derivation = instantiate(SHIPPED, selection)
    files = carried(derivation, fetched(derivation))
    back = again(files, derivation, tmp_path)
    assert back.drv == derivation.drv
    assert carried(back, fetched(back)) == files
    assert sum(map(len, files.values())) < 64_000


def test_archs_and_epoch_come_back(tmp_path: Path) -> None:
    """What was asked on the command line is the carried recipe's own."""
    asked = Selection(
        name="flash-attn", stack="cu130", archs=(Arch.parse("9.0"), Arch.parse("12.0")), source_date_epoch=1_700_000_000
    )
    derivation = instantiate(SHIPPED, asked)
    back = again(carried(derivation, ARCHIVE), derivation, tmp_path)
    assert (back.drv, back.source_date_epoch) == (derivation.drv, 1_700_000_000)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("4 GiB", "9 GiB"),
        ("units = 5", "units = 7"),
        ('imports = ["demo"]', 'imports = ["demo", "demo.x"]'),
        ("backward is slow", "backward is fast"),
        ("A demo", "Another demo"),
        ("[version", "# a comment\n[version"),
        ('"torch", "ninja>=1.11"', '"ninja", "torch"'),
    ],
)
def test_equal_derivations_carry_equal_bytes(tmp_path: Path, old: str, new: str) -> None:
    """Comments, memory, checks and words are no inputs, so they must not reach the wheel."""
    recipes = write_catalog(tmp_path)
    before = instantiate(load_catalog((recipes,)), Selection(name="demo", stack="cu130"))
    assert old in RECIPE
    (recipes / "demo.toml").write_text(RECIPE.replace(old, new))
    after = instantiate(load_catalog((recipes,)), Selection(name="demo", stack="cu130"))
    assert after.drv == before.drv
    assert carried(after, ARCHIVE) == carried(before, ARCHIVE)


def test_a_lock_travels_without_its_layout(tmp_path: Path) -> None:
    """Comments and order of a lock are no input."""
    recipes = write_catalog(tmp_path)
    before = instantiate(load_catalog((recipes,)), Selection(name="demo", stack="cu130"))
    path = recipes / "stacks" / "cu130.build.txt"
    head, _, rest = path.read_text().partition("ninja")
    path.write_text(f"# locked on a Tuesday\nninja{rest}{head}")
    after = instantiate(load_catalog((recipes,)), Selection(name="demo", stack="cu130"))
    assert after.drv == before.drv
    assert carried(after, ARCHIVE) == carried(before, ARCHIVE)


def test_a_tree_travels_whole(tmp_path: Path) -> None:
    """Names, contents, links and exec bits; leftovers of a build stay behind; a large one stays where it is."""
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "a" / "run.sh").write_text("#!/bin/sh\n")
    (tree / "a" / "run.sh").chmod(0o700)
    (tree / "link").symlink_to("a/run.sh")
    (tree / "__pycache__").mkdir()
    (tree / "__pycache__" / "x.pyc").write_bytes(b"x")
    derivation = instantiate(SHIPPED, Selection(name="torch-cuda-ext", stack="cu130"))
    files = carried(derivation, FetchedTree(path=tree, sha256="x"))
    unpack({name.removeprefix("wheelmill/"): data for name, data in files.items()}, tmp_path / "into")
    assert tree_digest(tmp_path / "into" / "source") == tree_digest(tree)
    assert not (tmp_path / "into" / "source" / "__pycache__").exists()
    with (tree / "large").open("wb") as sink:
        sink.truncate(20 << 20)
    assert "wheelmill/source.tar" not in carried(derivation, FetchedTree(path=tree, sha256="x"))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a\\b"])
def test_no_carried_file_leaves_its_folder(tmp_path: Path, name: str) -> None:
    """A wheel from elsewhere is not believed."""
    with pytest.raises(VerifyError, match="which is no file of a recipes folder"):
        unpack({name: b""}, tmp_path)


VALUES = st.recursive(
    st.text() | st.integers(-(2**60), 2**60) | st.booleans() | st.lists(st.text(), max_size=3),
    lambda inner: st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), VALUES, max_size=5))
def test_toml_reads_back(values: dict[str, object]) -> None:
    """Whatever a recipe can hold, the standard library reads what was spelled."""
    assert tomllib.loads(toml(values)) == values


def test_what_toml_cannot_hold() -> None:
    """Nothing is spelled by accident."""
    with pytest.raises(TypeError, match="has no place in TOML"):
        spelled(None)


def test_the_variant_is_a_name_alone(tmp_path: Path) -> None:
    """Its patches are the carried release's; the label in the version stays."""
    derivation = instantiate(SHIPPED, Selection(name="flash-attn", stack="cu130", variant="hdim128-bf16-inference"))
    back = again(carried(derivation, ARCHIVE), derivation, tmp_path)
    assert back.full_version == derivation.full_version
    assert [patch.text for patch in back.patches] == [patch.text for patch in derivation.patches]
    assert replace(back, recipe=derivation.recipe).index_label == derivation.index_label
