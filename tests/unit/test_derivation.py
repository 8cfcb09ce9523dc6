"""Derivations: the hash knows every input that can change bytes, and nothing else."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import RECIPE, write_catalog

from wheelmill.arch import Arch, gpu_named
from wheelmill.catalog import load_catalog, read_toml
from wheelmill.derivation import Derivation, Selection, canonical, instantiate, parse_epoch
from wheelmill.errors import PatchError, RecipeError, UsageError
from wheelmill.lock import parse_lock, subset
from wheelmill.recipe import parse_recipe
from wheelmill.stack import parse_stack

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


# laws ------------------------------------------------------------------------------------------------

CATALOG = load_catalog((Path(__file__).parents[2] / "recipes",))
STACK, PACKAGES = "cu130", ("flash-attn", "causal-conv1d", "torch-scatter")


def shuffled(value: object, order: random.Random) -> object:
    """Give the same tables and lists of unordered things in another order of writing."""
    if isinstance(value, dict):
        names = list(value)
        order.shuffle(names)
        return {name: shuffled(value[name], order) for name in names}
    return value


@given(st.sampled_from(PACKAGES), st.randoms(use_true_random=False))
def test_the_order_of_writing_is_no_input(package: str, order: random.Random) -> None:
    """Tables of a recipe and of a stack may stand in any order."""
    derivation = instantiate(CATALOG, Selection(name=package, stack=STACK))
    recipe = read_toml(Path(derivation.recipe.file))
    turned = parse_recipe(shuffled(recipe, order), file=derivation.recipe.file)
    stack = parse_stack(shuffled(read_toml(Path(derivation.stack.file)), order), file=derivation.stack.file)
    again = replace(CATALOG, recipes={**CATALOG.recipes, package: turned}, stacks={**CATALOG.stacks, STACK: stack})
    assert instantiate(again, Selection(name=package, stack=STACK)).drv == derivation.drv


@given(st.permutations(["9.0", "10.0", "12.0"]), st.lists(st.sampled_from(["9.0", "10.0", "12.0"]), max_size=3))
def test_the_order_of_archs_is_no_input(archs: list[str], twice: list[str]) -> None:
    """Nor is it whether one is named twice."""
    asked = Selection(name="flash-attn", stack=STACK, archs=tuple(map(Arch.parse, [*archs, *twice])))
    ordered = Selection(name="flash-attn", stack=STACK, archs=tuple(map(Arch.parse, ["9.0", "10.0", "12.0"])))
    assert instantiate(CATALOG, asked).drv == instantiate(CATALOG, ordered).drv


@given(st.randoms(use_true_random=False), st.text("# abc\t", max_size=20))
def test_the_layout_of_a_lock_is_no_input(order: random.Random, comment: str) -> None:
    """Lines in any order, comments anywhere."""
    lock = CATALOG.build_lock(CATALOG.stacks[STACK])
    entries = [f"{pin.requirement} {' '.join(f'--hash=sha256:{h}' for h in pin.hashes)}" for pin in lock.pins.values()]
    order.shuffle(entries)
    text = "".join(f"# {comment}\n{entry}\n" for entry in entries)
    assert parse_lock(text, file="x").digest == lock.digest


def leaves(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Give the place of each value in the inputs."""
    if isinstance(value, dict) and value:
        return [leaf for name, inner in value.items() for leaf in leaves(inner, (*path, name))]
    if isinstance(value, list) and value:
        return [leaf for number, inner in enumerate(value) for leaf in leaves(inner, (*path, number))]
    return [path]


def with_other(value: object, path: tuple[object, ...]) -> object:
    """Give the inputs with another value at one place."""
    if not path:
        return f"not {value!r}"
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = with_other(copy[path[0]], path[1:])
    return copy


INPUTS = json.loads(
    json.dumps(instantiate(CATALOG, Selection(name="flash-attn", stack=STACK, variant="hdim128-bf16-inference")).inputs)
)


@given(st.sampled_from(leaves(INPUTS)))
def test_every_single_input_changes_the_hash(path: tuple[object, ...]) -> None:
    """No value among the inputs is without effect."""
    assert canonical(with_other(INPUTS, path)) != canonical(INPUTS)


CHANGES: dict[str, Callable[[Derivation], Derivation]] = {
    "source": lambda d: replace(d, release=replace(d.release, source=replace(d.release.source, sha256="0" * 64))),
    "patch text": lambda d: replace(d, patches=(replace(d.patches[0], text="x"), *d.patches[1:])),
    "patch order": lambda d: replace(d, patches=tuple(reversed(d.patches))),
    "build lock": lambda d: replace(d, build_lock=subset(d.build_lock, list(d.build_lock.pins.values())[1:])),
    "toolkit lock": lambda d: replace(d, toolkit_lock=None),
    "python": lambda d: replace(d, python="3.13"),
    "torch": lambda d: replace(d, stack=replace(d.stack, prebuilt={"torch": replace(d.stack.torch, sha256="0" * 64)})),
    "stack's name": lambda d: replace(d, stack=replace(d.stack, name="mine")),
    "platform": lambda d: replace(d, stack=replace(d.stack, platform="manylinux_2_34")),
    "archs": lambda d: replace(d, archs=(Arch.parse("12.0"),)),
    "variant": lambda d: replace(d, variant=None),
    "environment": lambda d: replace(d, release=replace(d.release, environment={"A": "1"})),
    "nvcc threads": lambda d: replace(d, release=replace(d.release, nvcc_threads=4)),
    "epoch": lambda d: replace(d, source_date_epoch=1),
    "revision": lambda d: replace(d, release=replace(d.release, revision=9)),
    "gcc": lambda d: replace(d, toolkit=replace(d.toolkit, gcc_below=3)),
    "toolkit's headers": lambda d: replace(d, toolkit=replace(d.toolkit, headers=())),
    "how archs are told": lambda d: replace(d, release=replace(d.release, arch=replace(d.release.arch, separator=","))),
    "licences": lambda d: replace(d, release=replace(d.release, licenses=())),
    "vendored code": lambda d: replace(d, release=replace(d.release, vendored=())),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_input_is_one(name: str) -> None:
    """What can change bytes changes the hash: and each in its own way."""
    derivation = instantiate(CATALOG, Selection(name="flash-attn", stack=STACK, variant="hdim128-bf16-inference"))
    assert CHANGES[name](derivation).drv != derivation.drv
    assert len({change(derivation).drv for change in CHANGES.values()}) == len(CHANGES)
