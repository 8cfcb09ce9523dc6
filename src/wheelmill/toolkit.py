"""CUDA toolkits: which are here, which one fits, and the view of it that a build sees."""

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ._process import Runner
from ._uv import Uv
from ._validate import did_you_mean
from .arch import Arch
from .catalog import DEFAULT_STACK
from .errors import CommandFailedError, EnvironmentUnfitError, RecipeError, ToolkitError
from .lock import Lock, subset
from .runtime import Directories
from .stack import Stack
from .toolkit_recipe import Redistributable, ToolkitRecipe

Provider = Literal["given", "wheels", "redistributable", "host"]

INCLUDE_FOLDERS = ("include", "include/cccl", "targets/x86_64-linux/include", "targets/x86_64-linux/include/cccl")
LIBRARY_FOLDERS = ("lib64", "lib", "targets/x86_64-linux/lib")
LIST_SEPARATOR = re.compile(r"[:;,]")
ELF_MAGIC = b"\x7fELF"
VIEW = "view-1"
"""The number rises with every change of what a view looks like, so that an old one is not taken for a new one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Where toolkits are looked for, and with what; `driver` is the GPU driver's version or empty."""

    env: Mapping[str, str]
    runner: Runner
    directories: Directories
    cwd: Path
    roots: tuple[Path, ...] = (Path("/usr/local"), Path("/opt"))
    driver: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """What a build needs of a toolkit; `lock` is the toolkit's own, where it comes from wheels."""

    recipe: ToolkitRecipe
    lock: Lock | None
    build_lock: Lock
    stack: Stack
    archs: tuple[Arch, ...]

    @property
    def torch(self) -> str:
        """The torch that decides, as messages name it."""
        version = self.stack.torch.version
        label = "" if "+" in version else f"+{self.stack.cuda_label}"
        return f"{version}{label}, built with CUDA {self.stack.cuda}"


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundToolkit:
    """A toolkit on this machine and whether it serves; `problems` is empty where it does.

    `other_minor`: it could serve, as torch only warns then, but is no release that the recipe names: it is taken
    where the user gives it, and never of our own accord.
    """

    root: Path
    origins: tuple[str, ...]
    nvcc_version: str
    archs: tuple[str, ...]
    missing_headers: tuple[str, ...]
    missing_libraries: tuple[str, ...]
    problems: tuple[str, ...]
    other_minor: str = ""

    @property
    def cuda(self) -> str:
        """The `major.minor` release, or empty where nvcc did not say."""
        return ".".join(self.nvcc_version.split(".")[:2])

    @property
    def fits(self) -> bool:
        """Say whether a build may choose it."""
        return not self.problems and not self.other_minor

    def __str__(self) -> str:
        """Give one line: where, what, and why not."""
        what = f"CUDA {self.cuda}" if self.cuda else "no CUDA toolkit"
        reasons = (self.other_minor, *self.problems) if self.other_minor else self.problems
        return f"{self.root} ({what}): {'; '.join(reasons) or 'fits'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolkit:
    """The toolkit that a build uses. One of wheels may not be installed yet: `install` does it."""

    root: Path
    cuda: str
    nvcc_version: str
    digest: str
    provider: Provider
    pinned: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolkitView:
    """A folder of links that looks like a whole toolkit; `bin/nvcc` is left for the launcher."""

    root: Path

    @property
    def nvcc_real(self) -> Path:
        """The compiler itself, to be run with argv[0] = `<root>/bin/nvcc`, which makes the view its root."""
        return self.root / "root/bin/nvcc"

    @property
    def nvcc(self) -> Path:
        """Where the launcher goes. nvcc ends with a segmentation fault when argv[0] names no file (13.0.88)."""
        return self.root / "bin/nvcc"


# finding ---------------------------------------------------------------------------------------------


def survey(need: Need, machine: Machine) -> tuple[FoundToolkit, ...]:
    """Examine every toolkit on this machine: named by the environment, on PATH, and in the usual folders."""
    origins: dict[Path, list[str]] = {}
    strays: list[FoundToolkit] = []
    for origin, place in places(machine):
        origins.setdefault(Path(os.path.realpath(place)), []).append(origin)
    for nvcc in on_path(machine):
        root = root_behind(nvcc, machine)
        if root is None:
            strays.append(stray(nvcc))
            continue
        own = Path(os.path.realpath(nvcc)) == root / "bin/nvcc"
        origins.setdefault(root, []).append("PATH" if own else f"PATH, through {nvcc}")
    found = [examine(root, need, machine, origins=tuple(names)) for root, names in origins.items()]
    return (*found, *strays)


def places(machine: Machine) -> Iterator[tuple[str, Path]]:
    """Give the folders that may be a toolkit, with how each was come by."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if value := machine.env.get(name):
            yield name, Path(value)
    for root in machine.roots:
        for folder in sorted(root.glob("cuda*")):
            if (folder / "bin").is_dir():
                yield str(folder), folder


def on_path(machine: Machine) -> Iterator[Path]:
    """Give every nvcc on PATH, in order."""
    for folder in machine.env.get("PATH", "").split(os.pathsep):
        nvcc = Path(folder) / "nvcc"
        if folder and nvcc.is_file() and os.access(nvcc, os.X_OK):
            yield nvcc


def root_behind(nvcc: Path, machine: Machine) -> Path | None:
    """Give the toolkit of an nvcc on PATH.

    A link leads there. A wrapper (Debian's /usr/bin/nvcc, a ccache link, a site's own script) is no toolkit, and
    the folder above it is none: it is asked with -dryrun, which names the root and needs no input file.
    """
    real = Path(os.path.realpath(nvcc))
    if is_elf(real) and (real.parent / "nvcc.profile").exists():
        return real.parent.parent
    try:
        done = machine.runner.run(
            (str(nvcc), "-dryrun", "x.cu"), env={"PATH": machine.env.get("PATH", ""), "LC_ALL": "C"}, check=False
        )
    except EnvironmentUnfitError:
        return None
    top = re.search(r"^#\$ TOP=(.+)$", done.stderr + done.stdout, re.MULTILINE)
    root = Path(os.path.realpath(top[1])) if top else None
    return root if root is not None and is_elf(root / "bin/nvcc") else None


def stray(nvcc: Path) -> FoundToolkit:
    """Describe an nvcc on PATH that belongs to no toolkit."""
    kind = "a program" if is_elf(nvcc) else "a script"
    return FoundToolkit(
        root=nvcc,
        origins=("PATH",),
        nvcc_version="",
        archs=(),
        missing_headers=(),
        missing_libraries=(),
        problems=(f"{kind} that is part of no toolkit and names none",),
    )


def is_elf(path: Path) -> bool:
    """Say whether a file is a compiled program."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == ELF_MAGIC
    except OSError:
        return False


def examine(root: Path, need: Need, machine: Machine, *, origins: tuple[str, ...]) -> FoundToolkit:
    """Hold one folder against what is needed: release, headers, libraries, architectures."""
    version, archs, broken = interrogate(root, machine)
    headers = tuple(name for name in need.recipe.headers if not any_exists(root, INCLUDE_FOLDERS, name))
    libraries = tuple(name for name in need.recipe.libraries if not has_library(root, name))
    found = FoundToolkit(
        root=root,
        origins=origins,
        nvcc_version=version,
        archs=archs,
        missing_headers=headers,
        missing_libraries=libraries,
        problems=(),
    )
    if broken:
        return replace(found, problems=(broken,))
    return replace(found, problems=tuple(misfits(found, need)), other_minor=other_minor(found, need))


def other_minor(found: FoundToolkit, need: Need) -> str:
    """Say that a release differs from every accepted one by its minor number alone."""
    majors = {release.partition(".")[0] for release in need.recipe.accepts}
    if found.cuda in need.recipe.accepts or found.cuda.partition(".")[0] not in majors:
        return ""
    return f"CUDA {found.cuda}, where torch needs {' or '.join(need.recipe.accepts)}"


def misfits(found: FoundToolkit, need: Need) -> Iterator[str]:
    """Give every reason why a toolkit does not serve."""
    if found.cuda not in need.recipe.accepts and not other_minor(found, need):
        yield f"CUDA {found.cuda}, where torch needs {' or '.join(need.recipe.accepts)}"
    if found.missing_headers:
        yield f"header {few(found.missing_headers)} missing"
    if found.missing_libraries:
        yield f"library {few([f'lib{name}' for name in found.missing_libraries])} missing"
    made = [arch for arch in need.archs if f"sm_{arch.digits.rstrip('af')}" not in found.archs]
    if made and found.archs:
        yield f"makes no code for {few([arch.sm for arch in made])}"


def few(names: Sequence[str]) -> str:
    """List names, the first three of many."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def interrogate(root: Path, machine: Machine) -> tuple[str, tuple[str, ...], str]:
    """Ask nvcc for its version and architectures; the third value says why it cannot be asked."""
    nvcc = root / "bin/nvcc"
    noted = noted_version(root)
    if problem := no_compiler(nvcc):
        return noted, (), problem[0]
    env = {"PATH": f"{root}/bin:/usr/bin:/bin", "LC_ALL": "C"}
    try:
        said = machine.runner.run((str(nvcc), "--version"), env=env).stdout
        archs = machine.runner.run((str(nvcc), "--list-gpu-code"), env=env, check=False).stdout
    except (CommandFailedError, EnvironmentUnfitError) as error:
        return noted, (), f"bin/nvcc does not run: {str(error).splitlines()[0]}"
    version = re.search(r"\bV(\d+\.\d+\.\d+)", said)
    return version[1] if version else noted, tuple(re.findall(r"\bsm_\d+[af]?\b", archs)), ""


def noted_version(root: Path) -> str:
    """Read nvcc's version from the toolkit's version.json, for a toolkit that cannot be run."""
    try:
        text = (root / "version.json").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    noted = re.search(r'"cuda_nvcc"\s*:\s*\{[^}]*"version"\s*:\s*"([0-9.]+)"', text)
    return noted[1] if noted else ""


def any_exists(root: Path, folders: Iterable[str], name: str) -> bool:
    """Say whether a file lies in one of some folders of a toolkit."""
    return any((root / folder / name).exists() for folder in folders)


def has_library(root: Path, name: str) -> bool:
    """Say whether a library is there in any form: link name, versioned file or archive."""
    plain = name.removeprefix("lib").removesuffix(".so")
    return any(
        next((root / folder).glob(pattern), None)
        for folder in LIBRARY_FOLDERS
        for pattern in (f"lib{plain}.so", f"lib{plain}.so.*", f"lib{plain}.a")
    )


# choosing --------------------------------------------------------------------------------------------


def choose(need: Need, machine: Machine, *, given: str | None) -> Toolkit:
    """Choose the toolkit: the given one, else the pinned one, else a whole one on this machine.

    Wheels can be had at any time; NVIDIA's archives count only once they are fetched, since that takes a licence.

    `given` is `--cuda-home`; CUDA_HOME counts like it. Raises ToolkitError where the given one does not fit, or
    where there is none.
    """
    if given is not None:
        return given_toolkit(given, "--cuda-home", need, machine)
    if home := machine.env.get("CUDA_HOME"):
        return given_toolkit(home, "CUDA_HOME", need, machine)
    if need.lock is not None and need.recipe.wheels is not None:
        return wheels_toolkit(need.recipe, need.lock, machine.directories)
    if (fetched := fetched_toolkit(need, machine.directories)) is not None:
        return fetched
    found = survey(need, machine)
    if fitting := first_fit(found, need):
        return hosted(fitting, machine.directories, provider="host")
    raise none_fits(need, found, machine.roots)


def first_fit(found: Iterable[FoundToolkit], need: Need) -> FoundToolkit | None:
    """Give the toolkit that fits best: the recipe names its releases in order of preference."""
    fitting = [entry for entry in found if entry.fits]
    return min(fitting, key=lambda entry: need.recipe.accepts.index(entry.cuda), default=None)


def wheels_toolkit(recipe: ToolkitRecipe, lock: Lock, directories: Directories) -> Toolkit:
    """Describe the toolkit that a lock of wheels pins; nothing is installed by this.

    Raises ToolkitError where the recipe has no wheels, RecipeError where the lock has no nvcc.
    """
    if recipe.wheels is None:
        raise ToolkitError(f"toolkit {recipe.name} has no [wheels]", advice=f"See {recipe.file}.")
    if "nvidia-cuda-nvcc" not in lock.pins:
        raise RecipeError(
            f"the lock of toolkit {recipe.name} lacks nvidia-cuda-nvcc",
            file=lock.file,
            advice="Name it under [wheels] in the toolkit's recipe, then run `wheelmill lock`.",
        )
    nvcc = lock.pins["nvidia-cuda-nvcc"].version
    return Toolkit(
        root=directories.toolkits / lock.digest / "files" / recipe.wheels.root,
        cuda=".".join(nvcc.split(".")[:2]),
        nvcc_version=nvcc,
        digest=lock.digest,
        provider="wheels",
        pinned=True,
    )


def redistributed_toolkit(need: Need, directories: Directories) -> Toolkit:
    """Describe the toolkit that NVIDIA's pinned archives and the build lock's wheels make; nothing is fetched by this.

    Raises ToolkitError where the recipe has no such archives, RecipeError where the lock lacks a wheel.
    """
    pinned = archives_of(need.recipe)
    digest = hashlib.sha256(f"{pinned.digest} {completing_lock(need).digest}\n".encode()).hexdigest()
    return Toolkit(
        root=directories.toolkits / digest / "files",
        cuda=".".join(pinned.nvcc.split(".")[:2]),
        nvcc_version=pinned.nvcc,
        digest=digest,
        provider="redistributable",
        pinned=True,
    )


def archives_of(recipe: ToolkitRecipe) -> Redistributable:
    """Give the archives that a recipe pins; ToolkitError where it pins none."""
    if recipe.redistributable is None:
        raise ToolkitError(f"toolkit {recipe.name} has no [redistributable]", advice=f"See {recipe.file}.")
    return recipe.redistributable


def completing_lock(need: Need) -> Lock:
    """Give the part of the build lock that completes NVIDIA's archives; RecipeError names all that it lacks."""
    names = archives_of(need.recipe).from_build_lock
    if missing := [name for name in names if name not in need.build_lock.pins]:
        raise RecipeError(
            f"the build lock {need.build_lock.file} lacks: {', '.join(missing)}",
            file=need.recipe.file,
            key="redistributable.from-build-lock",
            advice=f"Correct the list, or lock again: `wheelmill lock {need.stack.name}`.",
        )
    return subset(need.build_lock, [need.build_lock.pins[name] for name in names])


def fetched_toolkit(need: Need, directories: Directories) -> Toolkit | None:
    """Give the toolkit of NVIDIA's archives where it is fetched already."""
    if need.recipe.redistributable is None:
        return None
    toolkit = redistributed_toolkit(need, directories)
    return toolkit if toolkit.root.is_dir() else None


def hosted(found: FoundToolkit, directories: Directories, *, provider: Provider) -> Toolkit:
    """Describe a toolkit of this machine, with the digest of what of it can reach a wheel."""
    return Toolkit(
        root=found.root,
        cuda=found.cuda,
        nvcc_version=found.nvcc_version,
        digest=tree_digest(found.root, notes=directories.toolkits / "digests"),
        provider=provider,
        pinned=False,
    )


def given_toolkit(text: str, origin: str, need: Need, machine: Machine) -> Toolkit:
    """Take the toolkit that the user names, or say exactly why it cannot serve."""
    try:
        root = given_root(text, origin, cwd=machine.cwd, home=machine.env.get("HOME", ""))
    except ToolkitError as error:
        fitting = first_fit((*listed(text, need, machine), *survey(need, machine)), need)
        if fitting is not None and f"`--cuda-home {fitting.root}`" not in error.advice:
            error.advice += f" `--cuda-home {fitting.root}` would fit (CUDA {fitting.cuda})."
        raise
    found = examine(root, need, machine, origins=(origin,))
    if not found.problems:
        return hosted(found, machine.directories, provider="given")
    others = survey(need, machine)
    lines = [
        f"{origin} {text} does not fit stack {need.stack.name}: {found.problems[0]}",
        *three(found.cuda, found.nvcc_version, root, need, machine),
        *(f"  also     {problem}" for problem in (*found.problems[1:], found.other_minor) if problem),
    ]
    raise ToolkitError("\n".join(lines), advice=would_fit(origin, need, others, machine.directories))


def listed(text: str, need: Need, machine: Machine) -> Iterator[FoundToolkit]:
    """Examine each folder of what the user gave as a list."""
    parts = [part for part in LIST_SEPARATOR.split(text) if part.startswith("/")]
    for part in parts if len(parts) > 1 else ():
        yield examine(Path(os.path.realpath(part)), need, machine, origins=("the list",))


def three(cuda: str, nvcc: str, root: Path, need: Need, machine: Machine) -> tuple[str, str, str]:
    """Name toolkit, torch and driver apart: three versions that people take for one."""
    return (
        f"  toolkit  CUDA {cuda or 'unknown'} (nvcc {nvcc or 'unknown'}) in {root}",
        f"  torch    {need.torch}",
        f"  driver   {machine.driver or 'none on this machine'}",
    )


def minor_mismatch(toolkit: Toolkit, need: Need, machine: Machine) -> str:
    """Say that toolkit and torch differ by a minor release, which torch takes with a warning; empty where not."""
    if toolkit.cuda == need.stack.cuda:
        return ""
    lines = (
        f"CUDA {toolkit.cuda} is another minor release than torch's {need.stack.cuda}; the build goes on",
        *three(toolkit.cuda, toolkit.nvcc_version, toolkit.root, need, machine),
    )
    return "\n".join(lines)


def would_fit(origin: str, need: Need, others: Iterable[FoundToolkit], directories: Directories) -> str:
    """Say what to type where the given toolkit does not serve."""
    if fitting := first_fit(others, need):
        return f"`--cuda-home {fitting.root}` would fit (CUDA {fitting.cuda})."
    if near := nearly(others):
        return f"`--cuda-home {near.root}` would serve (CUDA {near.cuda}, another minor release: a warning)."
    without = "Leave --cuda-home out" if origin == "--cuda-home" else f"Run `unset {origin}`"
    if need.lock is not None:
        return f"{without}: the pinned toolkit for CUDA {need.recipe.cuda} comes from wheels."
    if fetched_toolkit(need, directories) is not None:
        return f"{without}: the pinned toolkit for CUDA {need.recipe.cuda} is fetched already."
    return f"No toolkit on this machine would fit. {ways_on(need)}"


def nearly(found: Iterable[FoundToolkit]) -> FoundToolkit | None:
    """Give a toolkit that serves with a warning."""
    return next((entry for entry in found if entry.other_minor and not entry.problems), None)


def ways_on(need: Need) -> str:
    """List the ways to a toolkit that fits."""
    ways = ["`--cuda-home DIR` names one elsewhere"]
    if need.recipe.redistributable is not None:
        ways.append(f"`{fetch_command(need.recipe, need.stack)}` gets NVIDIA's")
    if need.lock is None:
        ways.append("`--stack cu130` takes its toolkit from wheels")
    return "Ways on: " + "; ".join(ways) + "."


def fetch_command(recipe: ToolkitRecipe, stack: Stack) -> str:
    """Spell the command that gets NVIDIA's archives; the stack decides which wheels complete them."""
    option = "" if stack.name == DEFAULT_STACK else f" --stack {stack.name}"
    return f"wheelmill fetch {recipe.name}{option} --accept-license"


def none_fits(need: Need, found: Sequence[FoundToolkit], roots: Sequence[Path]) -> ToolkitError:
    """Make the error for a machine without a toolkit that fits."""
    lines = [
        f"no CUDA toolkit for stack {need.stack.name} on this machine",
        f"  needed   CUDA {' or '.join(need.recipe.accepts)} for torch {need.torch}",
        f"  looked   in CUDA_HOME, CUDA_PATH, nvcc on PATH, {', '.join(f'{root}/cuda*' for root in roots)}",
        *(f"  found    {entry}" for entry in found),
    ]
    if not found:
        lines.append("  found    none")
    advice = ways_on(need)
    if near := nearly(found):
        advice = f"`--cuda-home {near.root}` would serve (CUDA {near.cuda}, another minor release: a warning). {advice}"
    return ToolkitError("\n".join(lines), advice=advice)


def given_root(text: str, origin: str, *, cwd: Path, home: str) -> Path:
    """Turn what the user gave into the folder of a toolkit, or say what is wrong with it."""
    path = Path(text)
    if not text.strip():
        raise ToolkitError(f"{origin} is empty", advice="Name the folder that holds bin/nvcc, or leave it out.")
    if text.startswith("~"):
        expanded = home + text[1:] if text[1:2] in {"", "/"} and home else "the path in full"
        raise ToolkitError(f"{origin} {text}: the shell did not expand ~", advice=f"Write {expanded}.")
    if not os.path.lexists(path) and (parts := [part for part in LIST_SEPARATOR.split(text) if part])[1:]:
        raise ToolkitError(
            f"{origin} {text}: is a list of {len(parts)} paths, and one toolkit is wanted",
            advice=f"Give one of them: `--cuda-home {parts[0]}`.",
        )
    if not path.is_absolute():
        raise ToolkitError(f"{origin} {text}: is not an absolute path", advice=f"Write {os.path.normpath(cwd / path)}.")
    try:
        path.stat()
    except OSError as error:
        raise ToolkitError(f"{origin} {text}: {unreachable(path, error)}", advice=nearby(path)) from error
    if problem := no_toolkit_root(path):
        raise ToolkitError(f"{origin} {text}: {problem[0]}", advice=problem[1])
    return Path(os.path.realpath(path))


def unreachable(path: Path, error: OSError) -> str:
    """Say why a path leads nowhere."""
    if error.errno == errno.ELOOP:
        return "is a link that leads back to itself"
    if error.errno == errno.ENOENT and path.is_symlink():
        return f"is a link to {path.readlink()}, which does not exist"
    if error.errno == errno.ENOENT:
        return "no such folder"
    return (error.strerror or str(error)).lower()


def nearby(path: Path) -> str:
    """Guess the folder that was meant."""
    try:
        names = sorted(entry.name for entry in path.parent.iterdir() if (entry / "bin/nvcc").exists())
    except OSError:
        names = []
    hint = did_you_mean(path.name, names).removeprefix("; ")
    listed = f"{path.parent} holds {', '.join(names)}." if names else ""
    guess = hint[:1].upper() + hint[1:]
    return guess or listed or "Name the folder that holds bin/nvcc."


def no_toolkit_root(path: Path) -> tuple[str, str] | None:
    """Say why an existing path is not the root of a toolkit, and what to do."""
    if not path.is_dir():
        root = f" {path.parent.parent}" if path.name == "nvcc" else " that holds bin/nvcc"
        return "is a file; the folder of a toolkit is wanted", f"Name the folder{root}."
    if path.name == "bin" and (path / "nvcc").exists():
        return "is the bin folder of a toolkit", f"Name the folder above it: {path.parent}."
    return no_compiler(path / "bin/nvcc")


def no_compiler(nvcc: Path) -> tuple[str, str] | None:
    """Say why a toolkit's nvcc is not the compiler, and what to do."""
    if nvcc.is_symlink() and not nvcc.exists():
        return f"bin/nvcc is a link to {nvcc.readlink()}, which does not exist", "Install the toolkit again."
    if not nvcc.is_file():
        return "has no bin/nvcc (a runtime, or no CUDA at all)", "Name a folder that holds bin/nvcc."
    if not os.access(nvcc, os.X_OK):
        return "bin/nvcc is not executable", f"Run `chmod +x {nvcc}`."
    if not is_elf(nvcc):
        return "bin/nvcc is a script, not the compiler", "Name the folder of the toolkit that the script starts."
    return None


# digests ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The files of a toolkit that can reach a wheel's bytes, and one key for their state on disk."""

    files: tuple[tuple[str, Path], ...] = field(repr=False)
    key: str


def tree_digest(root: Path, *, notes: Path) -> str:
    """Give the sha256 of the tools, headers and static libraries of a toolkit.

    Shared libraries enter by name and size: of them only the name gets into a wheel, and hashing 5 GB takes a
    minute. The result is noted by path, inode, size and time of change of every file, and found again by these.
    """
    listing = list_files(root)
    note = notes / listing.key
    try:
        return note.read_text(encoding="ascii").strip()
    except OSError:
        pass
    total = hashlib.sha256()
    for name, path in listing.files:
        shared = ".so" in path.suffixes
        content = str(path.stat().st_size) if shared else hash_file(path)
        total.update(f"{name}\0{content}\n".encode())
    try:
        notes.mkdir(parents=True, exist_ok=True)
        replace_text(note, total.hexdigest() + "\n")
    except OSError:
        pass  # a cache that cannot be written costs a second, no more
    return total.hexdigest()


def list_files(root: Path) -> Listing:
    """List what of a toolkit can reach a wheel, links to folders followed once."""
    folders = ("bin", "nvvm", include_folder(root), library_folder(root))
    files: dict[str, Path] = {}
    for folder in folders:
        for base, _, names in os.walk(os.path.realpath(root / folder)):
            inner = os.path.relpath(base, os.path.realpath(root / folder))
            for name in names:
                path = Path(base, name)
                if path.is_file():
                    files[f"{folder.rpartition('/')[2].rstrip('64')}/{inner}/{name}"] = path
    state = hashlib.sha256()
    for name, path in sorted(files.items()):
        status = path.stat()
        state.update(f"{path}\0{name}\0{status.st_ino}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return Listing(files=tuple(sorted(files.items())), key=state.hexdigest())


def hash_file(path: Path) -> str:
    """Give a file's sha256."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def replace_text(path: Path, text: str) -> None:
    """Write a small file so that no reader sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(text)
    Path(name).replace(path)


def include_folder(root: Path) -> str:
    """Give the folder of headers, relative to the toolkit."""
    return next((name for name in ("include", "targets/x86_64-linux/include") if (root / name).is_dir()), "include")


def library_folder(root: Path) -> str:
    """Give the folder of libraries, relative to the toolkit."""
    return next((name for name in LIBRARY_FOLDERS if (root / name).is_dir()), "lib")


# wheels ----------------------------------------------------------------------------------------------


def install(toolkit: Toolkit, lock: Lock, *, python: Path, directories: Directories, uv: Uv) -> None:
    """Install a toolkit of wheels where `toolkit` says, unless it is there.

    The folder appears at once and whole, by a rename; of two that install at the same time the second throws
    its own away. Raises HashMismatchError, FetchError or ResourcesError.
    """
    home = directories.toolkits / toolkit.digest
    files = home / "files"
    if files.is_dir():
        return
    home.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=home, prefix="partial-"))
    try:
        into = ("--python", str(python), "--target", str(partial / "files"))
        site = partial / "files"
        uv.install(lock, file=partial / "lock.txt", into=into, site=site, log=home / "install.log")
        give_way(partial / "files", files)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def give_way(made: Path, wanted: Path) -> None:
    """Rename a finished folder into place; where another process was faster, its work is as good."""
    try:
        made.rename(wanted)
    except OSError as error:
        if error.errno not in {errno.EEXIST, errno.ENOTEMPTY} or not wanted.is_dir():
            raise


# views -----------------------------------------------------------------------------------------------


def make_view(toolkit: Toolkit, directory: Path, *, gcc: str, runner: Runner, target: str | None = None) -> ToolkitView:
    """Make the view of a toolkit, unless it is there.

    One link, `root`, leads to the toolkit; every other link goes through it, so that a sandbox has one place to
    mind: `target` is where it leads there (default: relative when view and toolkit lie side by side in the cache,
    else the toolkit's own path). `bin/nvcc` is left out for the launcher.
    """
    view = ToolkitView(root=directory)
    if directory.is_dir():
        return view
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}-"))
    try:
        partial.chmod(0o755)
        (partial / "root").symlink_to(target or default_target(toolkit, directory))
        link_top(toolkit.root, partial)
        link_libraries(toolkit.root, partial)
        if not os.path.lexists(partial / "lib64/stubs/libcuda.so"):
            make_driver_stub(toolkit.root / "include/cuda.h", partial / "lib64/stubs", gcc=gcc, runner=runner)
        give_way(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return view


def default_target(toolkit: Toolkit, directory: Path) -> str:
    """Give where `root` leads: relative inside one folder of the cache, which may be moved or mounted as a whole."""
    beside = directory.parent in toolkit.root.parents
    return os.path.relpath(toolkit.root, directory) if beside else os.path.realpath(toolkit.root)


def link_top(real: Path, view: Path) -> None:
    """Link every tool by itself, and every folder that needs nothing added as a whole."""
    (view / "bin").mkdir()
    for tool in sorted((real / "bin").iterdir()):
        if tool.name != "nvcc":
            (view / "bin" / tool.name).symlink_to(f"../root/bin/{tool.name}")
    (view / "include").symlink_to(f"root/{include_folder(real)}")
    own = {"bin", "include", "lib", "lib64", "targets", "root"}
    for entry in sorted(real.iterdir()):
        if entry.name not in own:
            (view / entry.name).symlink_to(f"root/{entry.name}")
    if (real / "targets/x86_64-linux").is_dir():
        # nvcc takes its folders from here where it exists, so it must be here where it is there.
        (view / "targets/x86_64-linux").mkdir(parents=True)
        (view / "targets/x86_64-linux/include").symlink_to("../../include")
        (view / "targets/x86_64-linux/lib").symlink_to("../../lib64")


def link_libraries(real: Path, view: Path) -> None:
    """Link every library, and give each the name that linkers look for: wheels carry `libcudart.so.13` only."""
    folder = library_folder(real)
    (view / "lib64").mkdir()
    (view / "lib").symlink_to("lib64")
    names = sorted(entry.name for entry in (real / folder).iterdir())
    for name in names:
        if name != "stubs":
            (view / "lib64" / name).symlink_to(f"../root/{folder}/{name}")
    for name in names:
        plain, dot, _ = name.partition(".so.")
        if dot and "." not in plain and f"{plain}.so" not in names:
            (view / "lib64" / f"{plain}.so").unlink(missing_ok=True)
            (view / "lib64" / f"{plain}.so").symlink_to(name)
    (view / "lib64/stubs").mkdir()
    if "stubs" in names:
        for stub in sorted((real / folder / "stubs").iterdir()):
            (view / "lib64/stubs" / stub.name).symlink_to(f"../../root/{folder}/stubs/{stub.name}")


def make_driver_stub(header: Path, folder: Path, *, gcc: str, runner: Runner) -> None:
    """Make a `libcuda.so` to link with: CMake's CUDA::cuda_driver and `-lcuda` want it, and wheels have none.

    It defines every function that cuda.h names: an empty one would be dropped by `--as-needed`, the default of
    Ubuntu's gcc, and the wheel would not ask for the driver.
    """
    names = set(re.findall(r"\bcu[A-Z]\w*", header.read_text(encoding="utf-8", errors="replace")))
    symbols = sorted({name + ending for name in names for ending in ("", "_ptsz", "_ptds")})
    source = folder / "libcuda.c"
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in symbols), encoding="utf-8")
    options = ("-shared", "-fPIC", "-nostdlib", "-w", "-Wl,-soname,libcuda.so.1")
    argv = (gcc, *options, "-o", str(folder / "libcuda.so"), str(source))
    runner.run(argv, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
    source.unlink()


def driver_version(proc: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Read the version of the loaded NVIDIA driver; empty where there is none."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", proc.read_text(encoding="utf-8"))
    except OSError:
        return ""
    return found[1] if found else ""
