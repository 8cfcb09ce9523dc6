"""Derivations: the hash knows every input that can change bytes, and nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest
from samples import RECIPE, write_catalog

from wheelmill.arch import Arch, gpu_named
from wheelmill.catalog import load_catalog
from wheelmill.derivation import Derivation, Selection, canonical, instantiate, parse_epoch
from wheelmill.errors import PatchError, RecipeError, UsageError

ASKED = Selection(name="demo", stack="cu130")


def derive(recipes: Path, selection: Selection = ASKED) -> Derivation:
    return instantiate(load_catalog((recipes,)), selection)


def test_names_say_what_is_inside(tmp_path: Path) -> None:
    """Local version, wheel name and index carry stack, torch, archs and variant."""
    recipes = write_catalog(tmp_path)
    plain = derive(recipes)
    assert plain.full_version == "1.0+cu130.torch2.11.0.sm100"
    assert plain.wheel_name == "demo-1.0+cu130.torch2.11.0.sm100-1-cp312-cp312-manylinux_2_28_x86_64.whl"
    assert plain.index_label == "cu130-torch2.11.0-sm100"
    both = derive(recipes, replace(ASKED, archs=(Arch.parse("12.0"), Arch.parse("10.0")), variant="small-one"))
    assert both.local_version == "cu130.torch2.11.0.sm100.sm120.small.one"
    assert both.index_label == "cu130-torch2.11.0-sm100-sm120-small-one"
    assert both.environment == {
        "DEMO_FORCE_BUILD": "TRUE",
        "DEMO_LOCAL": "cu130.torch2.11.0.sm100.sm120.small.one",
        "DEMO_ARCHS": "100;120",
    }


def edited(recipes: Path, old: str, new: str) -> Path:
    path = recipes / "demo.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return recipes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a" * 64, "f" * 64),
        ("1700000000", "1700000001"),
        ('"TRUE"', '"FALSE"'),
        ("source-date-epoch", "revision = 2\nsource-date-epoch"),
        ("source-date-epoch", "nvcc-threads = 2\nsource-date-epoch"),
        ("source-date-epoch", 'licenses."L.txt" = { spdx = "MIT" }\nsource-date-epoch'),
    ],
)
def test_the_hash_changes_with_an_input(tmp_path: Path, old: str, new: str) -> None:
    """Source, epoch, environment, revision, threads and licences can change bytes."""
    before = derive(write_catalog(tmp_path)).drv
    assert derive(edited(tmp_path / "recipes", old, new)).drv != before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("4 GiB", "9 GiB"),
        ("units = 5", "units = 7"),
        ("cpu-seconds = 400", "cpu-seconds = 1"),
        ('imports = ["demo"]', 'imports = ["demo", "demo.x"]'),
        ("backward is slow", "backward is fast"),
        ("A demo", "Another demo"),
        ("[version", "# a comment\n[version"),
    ],
)
def test_the_hash_ignores_what_cannot_change_bytes(tmp_path: Path, old: str, new: str) -> None:
    """Resources, checks, advisories and comments are no inputs."""
    before = derive(write_catalog(tmp_path)).drv
    assert derive(edited(tmp_path / "recipes", old, new)).drv == before


def test_the_hash_does_not_know_where_the_recipes_lie(tmp_path: Path) -> None:
    """Two checkouts give one hash."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert derive(write_catalog(tmp_path / "a")).drv == derive(write_catalog(tmp_path / "b")).drv


def test_patch_lock_and_toolkit_enter_the_hash(tmp_path: Path) -> None:
    """A changed patch, build lock or toolkit lock is another derivation; the run lock is not."""
    recipes = write_catalog(tmp_path)
    hashes = {derive(recipes).drv}
    for path in (
        tmp_path / "patches" / "demo" / "1.0" / "0001-why.patch",
        recipes / "stacks" / "cu130.build.txt",
        recipes / "toolkits" / "cuda-13.0.txt",
    ):
        text = path.read_text()
        path.write_text(text.replace("+b", "+c").replace("d" * 64, "9" * 64).replace("e" * 64, "8" * 64))
        hashes.add(derive(recipes).drv)
    assert len(hashes) == 4
    run = recipes / "stacks" / "cu130.run.txt"
    run.write_text(run.read_text().replace("d" * 64, "9" * 64))
    assert derive(recipes).drv in hashes


def test_the_canonical_form_is_pinned() -> None:
    """One spelling for one value: another Python or another order gives the same bytes."""
    assert canonical({"b": [1, "é"], "a": None}) == b'{"a":null,"b":[1,"\\u00e9"]}'


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (replace(ASKED, name="dmo"), "no recipe 'dmo'; did you mean 'demo'?; there are: demo"),
        (replace(ASKED, stack="cu13"), "no stack 'cu13'; did you mean 'cu130'?; there are: cu130"),
        (
            replace(ASKED, variant="small"),
            "demo 1.0 has no variant 'small'; did you mean 'small-one'?; variants: small-one",
        ),
        (
            replace(ASKED, archs=(Arch.parse("10.3"),)),
            "demo 1.0 cannot be built for 10.3: its build knows 9.0, 10.0, 12.0 and would drop anything else "
            "without a word",
        ),
    ],
)
def test_what_cannot_be_selected(tmp_path: Path, selection: Selection, message: str) -> None:
    """A wrong name, variant or arch is refused with the choices; exit status 2."""
    with pytest.raises(UsageError) as caught:
        derive(write_catalog(tmp_path), selection)
    assert str(caught.value) == message
    assert caught.value.exit_status == 2


def test_a_missing_patch_is_refused(tmp_path: Path) -> None:
    """A recipe that names a patch nobody has says which; exit status 4."""
    recipes = write_catalog(tmp_path)
    patch = tmp_path / "patches" / "demo" / "1.0" / "0001-why.patch"
    patch.unlink()
    with pytest.raises(PatchError) as caught:
        derive(recipes)
    assert str(caught.value) == f"patch {patch} does not exist; {recipes / 'demo.toml'} names it"
    assert caught.value.exit_status == 4


def test_all_missing_build_requirements_at_once(tmp_path: Path) -> None:
    """Every requirement that the lock lacks is named, with what the lock holds instead."""
    recipes = write_catalog(tmp_path)
    edited(recipes, '"ninja>=1.11"', '"ninja>=99", "psutil", "wheel"')
    with pytest.raises(RecipeError, match=r"lacks: ninja>=99 .the lock holds 1.13.0., psutil .not in the lock., wheel"):
        derive(recipes)


@pytest.mark.parametrize("text", ["", "abc", "-1", "0", "99999999999", "1e9", "1700000000.5"])
def test_an_epoch_that_cannot_be(text: str) -> None:
    """SOURCE_DATE_EPOCH is a whole number of seconds from 1980 to now."""
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH="):
        parse_epoch(text, now=1_800_000_000)


def test_an_epoch_from_the_environment_enters_the_hash(tmp_path: Path) -> None:
    """A valid value replaces the recipe's and is an input."""
    recipes = write_catalog(tmp_path)
    epoch = parse_epoch("1600000000", now=1_800_000_000)
    assert derive(recipes, replace(ASKED, source_date_epoch=epoch)).drv != derive(recipes).drv
    assert "1700000000" in RECIPE


def test_a_gpu_is_held_against_the_archs(tmp_path: Path) -> None:
    """Code that would not run on the card that was named is refused with the right --arch; it is no input."""
    recipes = write_catalog(tmp_path)
    card = gpu_named("RTX PRO 6000 Blackwell")
    with pytest.raises(UsageError) as caught:
        derive(recipes, replace(ASKED, gpus=(card,)))
    assert str(caught.value) == (
        "sm_100 code does not run on RTX PRO 6000 Blackwell, which is sm_120 (compute capability 12.0): "
        "sm_100 code runs on 10.0 to 10.9"
    )
    assert caught.value.advice == "Build for it: `--arch 12.0`, or for both: `--arch '10.0;12.0'`."
    both = replace(ASKED, archs=(Arch.parse("10.0"), Arch.parse("12.0")))
    assert derive(recipes, replace(both, gpus=(card,))).drv == derive(recipes, both).drv


def test_what_must_reach_the_compilers_is_no_input(tmp_path: Path) -> None:
    """It is a check, and checks change no bytes."""
    recipes = write_catalog(tmp_path)
    before = derive(recipes).drv
    edited(recipes, 'advisories = ["backward', 'expects = { macros = ["X"] }\nadvisories = ["backward')
    assert derive(recipes).drv == before
