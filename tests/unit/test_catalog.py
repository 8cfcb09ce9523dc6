"""The catalog: names become values, whatever is missing is said with its place and the way on."""

from pathlib import Path

import pytest
from samples import RECIPE, STACK, write_catalog

from wheelmill.catalog import Catalog, find_roots, load_catalog
from wheelmill.errors import PatchError, RecipeError, UsageError


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    return write_catalog(tmp_path)


@pytest.fixture
def catalog(recipes: Path) -> Catalog:
    return load_catalog((recipes,))


# looking up


def test_everything_by_name(catalog: Catalog) -> None:
    """Recipes, stacks and toolkits, with the locks and patches that belong to them."""
    stack, recipe = catalog.stack("cu130"), catalog.recipe("demo")
    release = catalog.release(recipe, stack)
    assert (recipe.name, release.version, catalog.toolkit(stack).name) == ("demo", "1.0", "cuda-13.0")
    assert set(catalog.build_lock(stack).pins) == set(catalog.run_lock(stack).pins) == {"torch", "ninja"}
    toolkit_lock = catalog.toolkit_lock(catalog.toolkit(stack))
    assert toolkit_lock is not None
    assert set(toolkit_lock.pins) == {"nvidia-cuda-nvcc"}
    [patch] = catalog.patches(recipe, release, None)
    assert (patch.name, patch.text.splitlines()[0], len(patch.sha256)) == ("0001-why.patch", "--- a/x", 64)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("recipe", "dmo", "no recipe 'dmo'; did you mean 'demo'?; there are: demo"),
        ("recipe", "zzz", "no recipe 'zzz'; there are: demo"),
        ("stack", "cu13", "no stack 'cu13'; did you mean 'cu130'?; there are: cu130"),
    ],
)
def test_a_wrong_name_gets_the_choices(catalog: Catalog, kind: str, name: str, message: str) -> None:
    """And a guess where one is near."""
    with pytest.raises(UsageError) as caught:
        getattr(catalog, kind)(name)
    assert str(caught.value) == message


def test_no_stack_at_all(recipes: Path) -> None:
    """A folder of recipes alone has none to choose from."""
    (recipes / "stacks" / "cu130.toml").unlink()
    with pytest.raises(UsageError, match=r"^no stack 'cu130'; there are: none$"):
        load_catalog((recipes,)).stack("cu130")


def test_a_stack_that_names_no_toolkit_we_have(recipes: Path) -> None:
    """The stack's file and key, and a guess."""
    path = recipes / "stacks" / "cu130.toml"
    path.write_text(STACK.replace('toolkit = "cuda-13.0"', 'toolkit = "cuda-13.1"'))
    catalog = load_catalog((recipes,))
    with pytest.raises(RecipeError) as caught:
        catalog.toolkit(catalog.stack("cu130"))
    assert str(caught.value) == f"{path}: toolkit: no toolkit recipe 'cuda-13.1'; did you mean 'cuda-13.0'?"


def test_a_version_that_the_recipe_has_not(recipes: Path) -> None:
    """The stack pins 2.0, the recipe has 1.0: both files are named."""
    path = recipes / "stacks" / "cu130.toml"
    path.write_text(STACK.replace('demo = "1.0"', 'demo = "2.0"'))
    catalog = load_catalog((recipes,))
    with pytest.raises(RecipeError) as caught:
        catalog.release(catalog.recipe("demo"), catalog.stack("cu130"))
    assert str(caught.value) == f"{path}: packages.demo: {recipes / 'demo.toml'} has no version '2.0'; it has 1.0"


def test_a_package_that_the_stack_does_not_pin(recipes: Path) -> None:
    """Its only version is meant; of several one must be pinned."""
    path = recipes / "stacks" / "cu130.toml"
    path.write_text(STACK.replace('packages = { demo = "1.0" }', "packages = {}"))
    catalog = load_catalog((recipes,))
    assert catalog.release(catalog.recipe("demo"), catalog.stack("cu130")).version == "1.0"
    second = RECIPE[RECIPE.index('[version."1.0"]') :].replace('version."1.0"', 'version."1.1"')
    (recipes / "demo.toml").write_text(RECIPE + second)
    catalog = load_catalog((recipes,))
    with pytest.raises(UsageError) as caught:
        catalog.release(catalog.recipe("demo"), catalog.stack("cu130"))
    assert str(caught.value) == "stack cu130 does not pin demo, and its recipe has 2 versions: 1.0, 1.1"
    assert caught.value.advice == f'Add `demo = "VERSION"` under [packages] in {path}.'


# what lies beside


@pytest.mark.parametrize(
    ("file", "key", "advice"),
    [
        ("stacks/cu130.build.txt", "build-lock", "Make it: `wheelmill lock cu130`."),
        ("stacks/cu130.run.txt", "run-lock", "Make it: `wheelmill lock cu130`."),
        (
            "toolkits/cuda-13.0.txt",
            "wheels.requirements",
            "Restore the file: it belongs to the toolkit recipe and pins every file of the toolkit.",
        ),
    ],
)
def test_a_lock_that_is_missing_or_no_text(recipes: Path, catalog: Catalog, file: str, key: str, advice: str) -> None:
    """Who names it, and what makes it: `wheelmill lock` does not make a toolkit's."""
    stack = catalog.stack("cu130")
    read = {
        "build-lock": lambda: catalog.build_lock(stack),
        "run-lock": lambda: catalog.run_lock(stack),
        "wheels.requirements": lambda: catalog.toolkit_lock(catalog.toolkit(stack)),
    }[key]
    owner = stack.file if "stacks" in file else catalog.toolkit(stack).file
    (recipes / file).unlink()
    with pytest.raises(RecipeError) as caught:
        read()
    assert str(caught.value) == f"{owner}: {key}: {recipes / file} does not exist"
    assert caught.value.advice == advice
    (recipes / file).write_bytes(b"torch\xff")
    with pytest.raises(RecipeError) as caught:
        read()
    assert str(caught.value) == f"{recipes / file}: is not UTF-8: byte 5"


def test_a_patch_that_is_missing_or_no_text(recipes: Path, catalog: Catalog) -> None:
    """The patch, the recipe that names it, and the two ways out."""
    recipe, stack = catalog.recipe("demo"), catalog.stack("cu130")
    path = recipes.parent / "patches" / "demo" / "1.0" / "0001-why.patch"
    path.write_bytes(b"--- a/\xe4\n")
    with pytest.raises(PatchError) as caught:
        catalog.patches(recipe, catalog.release(recipe, stack), None)
    assert str(caught.value) == f"patch {path} is not UTF-8: byte 6"
    path.unlink()
    with pytest.raises(PatchError) as caught:
        catalog.patches(recipe, catalog.release(recipe, stack), None)
    assert str(caught.value) == f"patch {path} does not exist; {recipes / 'demo.toml'} names it"
    assert caught.value.advice == "Restore the file, or take its line out of `patches` in the recipe."


def test_a_patch_is_read_byte_by_byte(recipes: Path, catalog: Catalog) -> None:
    """Line ends count: a patch of a file with CRLF must keep them."""
    recipe, stack = catalog.recipe("demo"), catalog.stack("cu130")
    path = recipes.parent / "patches" / "demo" / "1.0" / "0001-why.patch"
    path.write_bytes(b"-a\r\n+b\r\n")
    [patch] = catalog.patches(recipe, catalog.release(recipe, stack), None)
    assert patch.text == "-a\r\n+b\r\n"


def test_a_variants_patches_come_last(recipes: Path) -> None:
    """In the recipe's order, from the same folder."""
    (recipes / "demo.toml").write_text(
        RECIPE.replace('summary = "Less of it"', 'summary = "Less of it"\npatches = ["0002-less.patch"]')
    )
    folder = recipes.parent / "patches" / "demo" / "1.0"
    (folder / "0002-less.patch").write_text("x")
    catalog = load_catalog((recipes,))
    recipe = catalog.recipe("demo")
    release = catalog.release(recipe, catalog.stack("cu130"))
    variant = release.variants["small-one"]
    assert [patch.name for patch in catalog.patches(recipe, release, variant)] == ["0001-why.patch", "0002-less.patch"]
    assert [patch.name for patch in catalog.patches(recipe, release, None)] == ["0001-why.patch"]


# reading


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"name = ", "is not TOML: Invalid value (at end of document)"),
        (b'name = "a"\nname = "b"\n', "is not TOML: Cannot overwrite a value (at line 2, column 11)"),
        (b'name = "\xff"', "is not UTF-8: byte 8"),
    ],
)
def test_a_file_that_is_no_toml(recipes: Path, data: bytes, message: str) -> None:
    """The file, and where in it."""
    (recipes / "demo.toml").write_bytes(data)
    with pytest.raises(RecipeError) as caught:
        load_catalog((recipes,))
    assert str(caught.value) == f"{recipes / 'demo.toml'}: {message}"


def test_a_folder_that_is_called_like_a_recipe(recipes: Path) -> None:
    """It cannot be read, and says so."""
    (recipes / "other.toml").mkdir()
    with pytest.raises(RecipeError) as caught:
        load_catalog((recipes,))
    assert str(caught.value) == f"{recipes / 'other.toml'}: cannot be read: Is a directory"


def test_a_file_is_called_as_what_is_in_it(recipes: Path) -> None:
    """Whoever looks for demo finds demo.toml."""
    (recipes / "demo.toml").rename(recipes / "other.toml")
    with pytest.raises(RecipeError) as caught:
        load_catalog((recipes,))
    assert str(caught.value) == f"{recipes / 'other.toml'}: name: is 'demo' in a file called other.toml"


def test_the_earlier_folder_wins(tmp_path: Path) -> None:
    """A user's recipe hides ours of the same name, its stacks go on to be found in ours."""
    base, own = write_catalog(tmp_path / "base"), tmp_path / "own" / "recipes"
    own.mkdir(parents=True)
    (own / "demo.toml").write_text(RECIPE.replace("A demo", "Another demo"))
    for roots, summary in (((own, base), "Another demo"), ((base, own), "A demo")):
        catalog = load_catalog(roots)
        assert catalog.recipe("demo").summary == summary
        assert set(catalog.stacks) == {"cu130"}


# finding


def test_the_nearest_recipes_folder_upwards(tmp_path: Path, recipes: Path) -> None:
    """As git finds its folder; one without a recipe in it does not count."""
    deep = tmp_path / "a" / "b"
    (deep / "recipes").mkdir(parents=True)
    assert find_roots(None, deep) == (recipes,)
    (deep / "recipes" / "x.toml").write_text("")
    assert find_roots(None, deep) == (deep / "recipes",)


def test_a_given_folder_stands_before_the_nearest(tmp_path: Path, recipes: Path) -> None:
    """Relative to where the command runs; the nearest one itself is not read twice."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "x.toml").write_text("")
    assert find_roots(Path("own"), tmp_path) == (own, recipes)
    assert find_roots(Path("recipes"), tmp_path) == (recipes,)
    assert find_roots(Path("../recipes"), own) == (recipes,)


def test_a_given_folder_without_a_recipe(tmp_path: Path) -> None:
    """A typo must not lead to our recipes in silence."""
    with pytest.raises(UsageError) as caught:
        find_roots(Path("recipse"), tmp_path)
    assert str(caught.value) == f"--recipes recipse: no recipe (*.toml) in {tmp_path / 'recipse'}"


def test_the_shipped_recipes_where_there_are_no_others(tmp_path: Path) -> None:
    """From anywhere on the machine the stacks are there."""
    [root] = find_roots(None, tmp_path)
    assert {"cu128", "cu130"} <= set(load_catalog((root,)).stacks)
