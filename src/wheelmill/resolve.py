"""Making a stack's locks: what its build environment holds, and what its wheels need at run time; through uv."""

import hashlib
import json
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ._uv import Uv
from .catalog import Catalog
from .errors import CommandFailedError, FetchError, RecipeError
from .lock import parse_lock
from .stack import Prebuilt, Stack

FORMAT = 1
"""Raised when the same inputs would be locked another way."""
INPUTS = "# inputs: sha256:"


@dataclass(frozen=True, kw_only=True, slots=True)
class LockInputs:
    """All that decides a lock: what is asked for, for which platform, as of when."""

    file: Path
    stack: Stack
    requirements: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The sha256 of the inputs, recorded in the lock: it tells offline whether the lock is current."""
        values = {
            "format": FORMAT,
            "python": self.stack.python,
            "platform": self.stack.platform,
            "cut-off": self.stack.cut_off,
            "torch": self.stack.torch.sha256,
            "requirements": self.requirements,
        }
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedFile:
    """One file that a resolution chose."""

    project: str
    version: str
    file: str
    sha256: str


def lock_inputs(catalog: Catalog, stack: Stack) -> tuple[LockInputs, LockInputs]:
    """Collect what the build lock and the run lock of a stack must hold."""
    folder = Path(stack.file).parent
    releases = [
        catalog.release(recipe, stack) for name, recipe in sorted(catalog.recipes.items()) if name in stack.packages
    ]
    torch = f"torch=={stack.torch.version}"
    build = [torch, *stack.build_requires, *(text for release in releases for text in release.build_requires)]
    return (
        LockInputs(file=folder / stack.build_lock, stack=stack, requirements=merged(build)),
        LockInputs(file=folder / stack.run_lock, stack=stack, requirements=merged([torch, *stack.run_requires])),
    )


def merged(requirements: Iterable[str]) -> tuple[str, ...]:
    """Join requirements of one project into one line, sorted: `a`, `a>=2` and `A<3` are `a<3,>=2`."""
    ranges: dict[str, SpecifierSet] = {}
    for text in requirements:
        parsed = Requirement(text)
        name = canonicalize_name(parsed.name)
        ranges[name] = ranges.get(name, SpecifierSet()) & parsed.specifier
    return tuple(f"{name}{spec}" for name, spec in sorted(ranges.items()))


def resolve(inputs: LockInputs, *, uv: Uv, python: Path) -> str:
    """Resolve one lock and give its text.

    Raises FetchError where uv finds no solution or no index, RecipeError where the torch found is not the
    stack's.
    """
    with tempfile.TemporaryDirectory(prefix="wheelmill-") as name:
        folder = Path(name)
        (folder / "requirements.in").write_text("\n".join([*inputs.requirements, ""]), "utf-8")
        try:
            uv.run(*compile_arguments(inputs.stack, python), cwd=folder)
        except CommandFailedError as error:
            said = "\n".join(f"  {line}" for line in error.tail)
            raise FetchError(
                f"cannot lock {inputs.file.name} of stack {inputs.stack.name}:\n{said}",
                advice=f"Change `build-requires`, `run-requires` or `cut-off` in {inputs.stack.file}, or the index.",
            ) from error
        files = resolved_files(tomllib.loads((folder / "pylock.toml").read_text("utf-8")))
    check_torch(files, inputs.stack)
    return lock_text(inputs, files)


def compile_arguments(stack: Stack, python: Path) -> tuple[str | Path, ...]:
    """Give uv's arguments: wheels only, for the stack's interpreter and platform, as of its cut-off."""
    return (
        *("pip", "compile", "requirements.in", "--quiet"),
        *("--format", "pylock.toml", "--output-file", "pylock.toml"),
        *("--python", python, "--python-version", stack.python),
        *("--python-platform", f"x86_64-{stack.platform}"),
        *("--exclude-newer", stack.cut_off, "--only-binary", ":all:"),
    )


def resolved_files(pylock: Mapping[str, object]) -> tuple[ResolvedFile, ...]:
    """Read the one wheel of every package from uv's pylock.

    A requirement file with all of a version's hashes would let two machines take two files of one version
    (manylinux_2_17 here, manylinux_2_28 there): other bytes from the same derivation.
    """
    found = []
    packages = pylock.get("packages", [])
    for package in packages if isinstance(packages, list) else []:
        match package.get("wheels", []):
            case [wheel]:
                file = wheel.get("name") or unquote(urlsplit(wheel["url"]).path.rpartition("/")[2])
                digest = wheel["hashes"]["sha256"]
            case wheels:
                raise FetchError(
                    f"{package['name']} {package.get('version', '')} has {len(wheels)} wheels for this platform"
                )
        found.append(
            ResolvedFile(
                project=canonicalize_name(package["name"]), version=package["version"], file=file, sha256=digest
            )
        )
    return tuple(sorted(found, key=lambda entry: entry.project))


def check_torch(files: Iterable[ResolvedFile], stack: Stack) -> None:
    """Refuse a lock whose torch is not the stack's very file."""
    for found in files:
        if found.project == "torch" and not same_file(found, stack.torch):
            raise RecipeError(
                f"the index gives {found.file} ({found.sha256}), the stack pins {stack.torch.file}",
                file=stack.file,
                key="prebuilt.torch",
                advice="Correct the pin, or use the index that it was made from.",
            )


def same_file(found: ResolvedFile, pinned: Prebuilt) -> bool:
    """Say whether a resolved file is a pinned one."""
    return (found.file, found.sha256) == (pinned.file, pinned.sha256)


def lock_text(inputs: LockInputs, files: Iterable[ResolvedFile]) -> str:
    """Write a lock: no index, no path, no time; each pin under its file's name."""
    lines = [
        f"{INPUTS}{inputs.digest}",
        f"# Made by `wheelmill lock {inputs.stack.name}`; change {Path(inputs.stack.file).name}, not this file.",
    ]
    for entry in files:
        lines += [
            f"#   {entry.file}",
            f"{entry.project}=={entry.version} \\",
            f"    --hash=sha256:{entry.sha256}",
        ]
    return "\n".join([*lines, ""])


def lock(catalog: Catalog, stack: Stack, *, uv: Uv, python: Path) -> tuple[Path, ...]:
    """Make both locks of a stack; give the files that changed. Raises as resolve; then nothing is written."""
    texts = {inputs.file: resolve(inputs, uv=uv, python=python) for inputs in lock_inputs(catalog, stack)}
    return tuple(path for path, text in texts.items() if write(path, text))


def write(path: Path, text: str) -> bool:
    """Write a file where its text differs."""
    if path.is_file() and path.read_text("utf-8") == text:
        return False
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text, "utf-8", newline="\n")
    temporary.replace(path)
    return True


def check(catalog: Catalog, stack: Stack) -> tuple[str, ...]:
    """Give what is wrong with a stack's locks, without a network; empty when they are current."""
    return tuple(problem for inputs in lock_inputs(catalog, stack) for problem in problems(inputs))


def problems(inputs: LockInputs) -> list[str]:
    """Give what is wrong with one lock."""
    name = inputs.file.name
    if not inputs.file.is_file():
        return [f"{name} does not exist"]
    text = inputs.file.read_text("utf-8")
    held = parse_lock(text, file=str(inputs.file))
    recorded = text.partition("\n")[0].removeprefix(INPUTS)
    found = [f"{name} lacks {item}" for item in held.missing(inputs.requirements)]
    if recorded != inputs.digest:
        found.append(f"{name} was made from other inputs than {Path(inputs.stack.file).name} and the recipes now give")
    pin = held.pins.get("torch")
    if pin is not None and pin.hashes != (inputs.stack.torch.sha256,):
        found.append(f"{name} pins another torch file than {Path(inputs.stack.file).name}")
    return found
