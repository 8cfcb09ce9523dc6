"""The catalog: every recipe, stack and toolkit recipe of one or more recipes folders, with their locks and patches."""

import hashlib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ._validate import did_you_mean
from .errors import PatchError, RecipeError, UsageError
from .lock import Lock, parse_lock
from .recipe import Recipe, Release, Variant, parse_recipe
from .stack import Stack, parse_stack
from .toolkit_recipe import ToolkitRecipe, parse_toolkit

T = TypeVar("T", Recipe, Stack, ToolkitRecipe)

DEFAULT_STACK = "cu128"


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """One patch file, read: applied strictly, in order."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        """Digest of the patch's text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalog:
    """All that can be built: values by name, and the folder each came from (for locks, patches and trees)."""

    roots: tuple[Path, ...]
    recipes: Mapping[str, Recipe]
    stacks: Mapping[str, Stack]
    toolkits: Mapping[str, ToolkitRecipe]

    def recipe(self, name: str) -> Recipe:
        """Give a recipe by name; UsageError with the choices where there is none."""
        return chosen(self.recipes, name, "recipe")

    def stack(self, name: str) -> Stack:
        """Give a stack by name; UsageError with the choices where there is none."""
        return chosen(self.stacks, name, "stack")

    def toolkit(self, stack: Stack) -> ToolkitRecipe:
        """Give the toolkit recipe that a stack names."""
        if stack.toolkit not in self.toolkits:
            hint = did_you_mean(stack.toolkit, sorted(self.toolkits))
            raise RecipeError(f"no toolkit recipe {stack.toolkit!r}{hint}", file=stack.file, key="toolkit")
        return self.toolkits[stack.toolkit]

    def release(self, recipe: Recipe, stack: Stack) -> Release:
        """Give the release that the stack pins, else the recipe's only one."""
        version = stack.packages.get(recipe.name)
        if version is None:
            if len(recipe.releases) == 1:
                return next(iter(recipe.releases.values()))
            raise UsageError(
                f"stack {stack.name} does not pin {recipe.name}, and its recipe has {len(recipe.releases)} versions: "
                f"{', '.join(sorted(recipe.releases))}",
                advice=f'Add `{recipe.name} = "VERSION"` under [packages] in {stack.file}.',
            )
        if version not in recipe.releases:
            raise RecipeError(
                f"{recipe.file} has no version {version!r}; it has {', '.join(sorted(recipe.releases))}",
                file=stack.file,
                key=f"packages.{recipe.name}",
            )
        return recipe.releases[version]

    def build_lock(self, stack: Stack) -> Lock:
        """Read the lock of the stack's build environment."""
        return stack_lock(stack, stack.build_lock, key="build-lock")

    def run_lock(self, stack: Stack) -> Lock:
        """Read the lock of what the stack's packages need at run time."""
        return stack_lock(stack, stack.run_lock, key="run-lock")

    def toolkit_lock(self, toolkit: ToolkitRecipe) -> Lock | None:
        """Read the lock of a toolkit that comes from wheels."""
        if toolkit.wheels is None:
            return None
        file = Path(toolkit.file).parent / toolkit.wheels.requirements
        advice = "Restore the file: it belongs to the toolkit recipe and pins every file of the toolkit."
        return read_lock(file, owner=toolkit.file, key="wheels.requirements", advice=advice)

    def patches(self, recipe: Recipe, release: Release, variant: Variant | None) -> tuple[Patch, ...]:
        """Read the patches of a release, then its variant's, in the recipe's order."""
        folder = patches_folder(recipe) / recipe.name / release.version
        names = [*release.patches, *(variant.patches if variant else ())]
        return tuple(read_patch(folder / name, recipe) for name in names)


def patches_folder(recipe: Recipe) -> Path:
    """Patches lie beside the recipes folder: `recipes/x.toml` and `patches/x/…`."""
    return Path(recipe.file).parent.parent / "patches"


def read_patch(path: Path, recipe: Recipe) -> Patch:
    """Read one patch; PatchError where it is missing or no text."""
    try:
        return Patch(name=path.name, text=path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise PatchError(
            f"patch {path} does not exist; {recipe.file} names it",
            advice="Restore the file, or take its line out of `patches` in the recipe.",
        ) from None
    except UnicodeDecodeError as error:
        raise PatchError(
            f"patch {path} is not UTF-8: byte {error.start}",
            advice="Make it again with `git format-patch`; a patch of other text needs a source tree of its own.",
        ) from None


def stack_lock(stack: Stack, file: str, *, key: str) -> Lock:
    """Read one of a stack's two locks."""
    advice = f"Make it: `wheelmill lock {stack.name}`."
    return read_lock(Path(stack.file).parent / file, owner=stack.file, key=key, advice=advice)


def read_lock(path: Path, *, owner: str, key: str, advice: str) -> Lock:
    """Read one lock; RecipeError where it is missing or no text."""
    try:
        return parse_lock(path.read_text("utf-8"), file=str(path))
    except FileNotFoundError:
        raise RecipeError(f"{path} does not exist", file=owner, key=key, advice=advice) from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"is not UTF-8: byte {error.start}", file=str(path), advice=advice) from None


def chosen(values: Mapping[str, T], name: str, what: str) -> T:
    """Look a name up; UsageError with a did-you-mean and the choices."""
    if name not in values:
        raise UsageError(
            f"no {what} {name!r}{did_you_mean(name, sorted(values))}; there are: {', '.join(sorted(values)) or 'none'}"
        )
    return values[name]


def load_catalog(roots: tuple[Path, ...]) -> Catalog:
    """Read the recipes folders; a name in an earlier folder hides the same name in a later one."""
    return Catalog(
        roots=roots,
        recipes=read_all(roots, "", parse_recipe),
        stacks=read_all(roots, "stacks", parse_stack),
        toolkits=read_all(roots, "toolkits", parse_toolkit),
    )


def read_all(roots: tuple[Path, ...], folder: str, parse: Callable[..., T]) -> dict[str, T]:
    """Read every TOML file of one kind."""
    found: dict[str, T] = {}
    for root in reversed(roots):
        for path in sorted((root / folder).glob("*.toml")):
            value = parse(read_toml(path), file=str(path))
            if value.name != path.stem:
                raise RecipeError(f"is {value.name!r} in a file called {path.name}", file=str(path), key="name")
            found[value.name] = value
    return found


def read_toml(path: Path) -> Mapping[str, object]:
    """Read one TOML file; RecipeError names line and column."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"is not TOML: {error}", file=str(path)) from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"is not UTF-8: byte {error.start}", file=str(path)) from None
    except OSError as error:
        raise RecipeError(f"cannot be read: {error.strerror}", file=str(path)) from None


def find_roots(given: Path | None, cwd: Path) -> tuple[Path, ...]:
    """Give the recipes folders: the given one over the nearest `recipes/` upwards, else those shipped in the package.

    UsageError where the given folder holds no recipe.
    """
    nearest = next((folder / "recipes" for folder in (cwd, *cwd.parents) if is_recipes(folder / "recipes")), None)
    shipped = Path(__file__).parent / "_shipped" / "recipes"
    checkout = Path(__file__).parents[2] / "recipes"
    base = nearest or (shipped if is_recipes(shipped) else checkout)
    if given is None:
        return (base,)
    path = (cwd / given).resolve()
    if not is_recipes(path):
        raise UsageError(f"--recipes {given}: no recipe (*.toml) in {path}")
    return (path, base) if path != base.resolve() else (base,)


def is_recipes(folder: Path) -> bool:
    """Say whether a folder holds recipes."""
    return folder.is_dir() and any(folder.glob("*.toml"))
