"""Recipes: whatever cannot be meant is refused with file, key path and a did-you-mean."""

import tomllib
from pathlib import Path

import pytest

from wheelmill._validate import parse_size
from wheelmill.arch import Arch
from wheelmill.errors import RecipeError
from wheelmill.recipe import CodePolicy, Expects, IndexSource, TreeSource, parse_recipe

GOOD = """
name = "demo"
summary = "A demo"
home = "https://example.invalid/demo"

[version."1.0"]
revision = 2
source = { project = "demo", file = "demo-1.0.tar.gz", sha256 = "@" }
source-date-epoch = 1700000000
build-requires = ["torch", "ninja"]
patches = ["0001-why.patch"]
environment = { DEMO_FORCE_BUILD = "TRUE" }
local-version-variable = "DEMO_LOCAL"
arch = { via = "variable", variable = "DEMO_ARCHS", spelling = "digits", supports = ["9.0", "10.0"] }
resources = { memory-per-compile = "4 GiB", units = 5, cpu-seconds = 400 }
checks = { imports = ["demo"] }

[version."1.0".variant.small-one]
summary = "Less of it"
patches = ["small/0001-less.patch"]
resources = { units = 2 }
""".replace("@", "a" * 64)


def read(text: str) -> object:
    return parse_recipe(tomllib.loads(text), file="recipes/demo.toml")


def test_a_recipe_reads_as_its_schema() -> None:
    """Every key lands in its field; a variant inherits the resources that it does not state."""
    recipe = parse_recipe(tomllib.loads(GOOD), file="recipes/demo.toml")
    release = recipe.releases["1.0"]
    assert release.source == IndexSource(project="demo", file="demo-1.0.tar.gz", sha256="a" * 64)
    assert release.revision == 2
    assert release.arch.environment((Arch.parse("9.0"), Arch.parse("10.0"))) == {"DEMO_ARCHS": "90;100"}
    variant = release.variants["small-one"]
    assert variant.label == "small.one"
    assert (variant.resources.units, variant.resources.memory_per_compile) == (2, 4 * 2**30)


def test_what_must_reach_the_compilers() -> None:
    """A variant adds macros and inherits the rest; without the table nothing is demanded."""
    text = GOOD.replace(
        "revision = 2", 'revision = 2\nexpects = { macros = ["A=1"], standard = "c++17", optimisation = "-O3" }'
    )
    text = text.replace('patches = ["small', 'expects = { macros = ["B"], optimisation = "-O2" }\npatches = ["small')
    release = parse_recipe(tomllib.loads(text), file="recipes/demo.toml").releases["1.0"]
    assert release.expects == Expects(macros=("A=1",), standard="c++17", optimisation="-O3")
    assert release.variants["small-one"].expects == Expects(macros=("A=1", "B"), standard="c++17", optimisation="-O2")
    assert parse_recipe(tomllib.loads(GOOD), file="x").releases["1.0"].expects == Expects()


def test_rules_for_the_device_code_of_one_extension() -> None:
    """Rule, architectures and kernels of each; without a table the rule is what was asked for, exactly."""
    text = GOOD.replace('checks = { imports = ["demo"] }', "")
    text += """
[version."1.0".checks]
imports = ["demo"]
absent = ["hopper"]

[version."1.0".checks.code."demo/_C"]
rule = "at-least"
archs = ["10.0", "12.0"]
kernels = "any"

[version."1.0".checks.code."demo/_fa2"]
rule = "ptx"
"""
    checks = parse_recipe(tomllib.loads(text), file="x").releases["1.0"].checks
    assert checks.absent == ("hopper",)
    assert checks.code["demo/_fa2"] == CodePolicy(rule="ptx")
    both = (Arch.parse("10.0"), Arch.parse("12.0"))
    assert checks.code["demo/_C"] == CodePolicy(rule="at-least", archs=both, kernels="any")
    with pytest.raises(RecipeError, match="at-most"):
        parse_recipe(tomllib.loads(text.replace("at-least", "at-most")), file="x")


def test_a_tree_beside_the_recipe_is_a_source_too() -> None:
    """A source with a path is pinned by the digest of its tree."""
    text = GOOD.replace('project = "demo", file = "demo-1.0.tar.gz"', 'path = "../projects/demo"')
    recipe = parse_recipe(tomllib.loads(text), file="recipes/demo.toml")
    assert recipe.releases["1.0"].source == TreeSource(path="../projects/demo", sha256="a" * 64)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("revision = 2", "revison = 2", 'version."1.0".revison: unknown key; did you mean \'revision\'?'),
        ('DEMO_FORCE_BUILD = "TRUE"', 'VLLM_CUTLASS_SRC_DIR = "../cutlass"',
         'version."1.0".environment.VLLM_CUTLASS_SRC_DIR: \'../cutlass\' is a relative path, which means another folder '
         "in every build"),
        ("revision = 2", 'expects = { macros = ["-DX"] }',
         'version."1.0".expects.macros: \'-DX\' is no macro; write NAME or NAME=VALUE, without -D'),
        ("revision = 2", 'expects = { macro = ["X"] }',
         'version."1.0".expects.macro: unknown key; did you mean \'macros\'?'),
        ("revision = 2", "revision = 0", 'version."1.0".revision: must be at least 1, found 0'),
        ("revision = 2", 'revision = "2"', 'version."1.0".revision: must be an integer, found a string: \'2\''),
        ("revision = 2", "revision = true", 'version."1.0".revision: must be an integer, found true or false: True'),
        (
            "a" * 64,
            "A" * 64,
            'version."1.0".source.sha256: must be a sha256 of 64 lower-case hexadecimal digits, '
            f"found {'A' * 64!r}",
        ),
        (
            '"10.0"]',
            '"10.1"]',
            "version.\"1.0\".arch.supports: '10.1': no GPU has compute capability 10.1; since CUDA 13.0 it is 11.0 (Thor)",
        ),
        (
            'via = "variable"',
            'via = "varable"',
            'version."1.0".arch.via: must be one of variable, torch, launcher, found \'varable\'; '
            "did you mean 'variable'?",
        ),
        (
            '"0001-why.patch"',
            '"../0001-why.patch"',
            "version.\"1.0\".patches: must be a relative path without '..', found '../0001-why.patch'",
        ),
        (
            'DEMO_FORCE_BUILD = "TRUE"',
            'MAX_JOBS = "8"',
            'version."1.0".environment.MAX_JOBS: is set by wheelmill: '
            "jobs are the user's and the governor's (--max-jobs)",
        ),
        (
            'DEMO_FORCE_BUILD = "TRUE"',
            "DEMO_FORCE_BUILD = true",
            'version."1.0".environment.DEMO_FORCE_BUILD: must be a string (quote it), found True',
        ),
        (
            '"4 GiB"',
            '"4 GB"',
            'version."1.0".resources.memory-per-compile: not a size: \'4 GB\'; '
            "units are B, KiB, MiB, GiB, TiB (powers of 1024)",
        ),
        ('name = "demo"', 'name = "Demo_X"', "name: must be a normalised project name, found 'Demo_X'; write 'demo-x'"),
        ('summary = "A demo"\n', "", "summary: missing"),
        ('"ninja"]', '"ninja @ file:///x"]', "version.\"1.0\".build-requires: 'ninja @ file:///x': only names and "
         "version ranges; files are pinned by the stack's lock"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(old: str, new: str, message: str) -> None:
    """File, key path and what would be right, in one line; exit status 2."""
    assert old in GOOD
    with pytest.raises(RecipeError) as caught:
        read(GOOD.replace(old, new))
    assert str(caught.value) == f"recipes/demo.toml: {message}"
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("7 GiB", 7 * 2**30),
        ("288GiB", 288 * 2**30),
        ("512M", 512 * 2**20),
        ("1024", 1024),
        ("1.5 GiB", 3 * 2**29),
    ],
)
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    """Sizes are read with a unit, or as bytes."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1 GiB", "7 GB", "lots", "1e9"])
def test_a_size_that_cannot_be_meant(text: str) -> None:
    """Anything else is a ValueError that shows how to write it."""
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_shipped_recipes_are_right(path: Path) -> None:
    """Every recipe in the repository reads, and is named like its file."""
    recipe = parse_recipe(tomllib.loads(path.read_text("utf-8")), file=str(path))
    assert recipe.name == path.stem
