"""Remedies: the sentences of a diagnosis, filled with what its rule found and what this machine has."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from .arch import gpu_named
from .excerpt import AFTER, PROGRESS, Line
from .rulebook import Rulebook, Sign

CAPABILITY = re.compile(r"(?i)capability[ =:(]*(?:(\d{1,2})\.(\d)\b|sm_(\d{1,2})(\d)\b)")
PATH = re.compile(r"(?<![\w/.:])/[^\s:'\"`(),;]+")
PLACEHOLDER = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What advice may name of the machine and the recipes at hand."""

    toolkits: tuple[tuple[str, str], ...] = ()
    """(folder, CUDA release)"""
    compilers: tuple[tuple[str, str], ...] = ()
    """(gcc, its version)"""
    glibc: str = ""
    requirements: Mapping[str, tuple[str, ...]] | None = None
    """Build requirements by package, of the recipes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """All that a message may draw on."""

    lines: Sequence[Line]
    sign: Sign
    signs: Sequence[Sign]
    rules: Rulebook
    surroundings: Callable[[], Surroundings]

    @property
    def advice(self) -> str:
        """The rule's advice, or the shared one that it names."""
        text = self.sign.rule.advice
        return self.rules.advice[text[1:]] if text.startswith("&") else text

    def fill(self, template: str) -> str:
        """Put names into a template: {a|b|a text} is the first that there is, {a:before } nothing where a is not."""

        def value(found: re.Match[str]) -> str:
            for name in found[1].split("|"):
                text = self.name(name)
                if text:
                    return (found[2] or "") + text
            return ""

        return PLACEHOLDER.sub(value, template)

    def name(self, name: str) -> str:
        """Give a name that was found or derived; a text with a space stands for itself."""
        if " " in name:
            return name
        if name in DERIVED:
            return DERIVED[name](self)
        return self.sign.names.get(name, "")

    def first(self, *names: str) -> str:
        """Give the first of some names that was found."""
        return next((self.sign.names[name] for name in names if name in self.sign.names), "")

    def table(self, name: str, key: str) -> str:
        """Look up a key, or the longest entry that it holds."""
        table = self.rules.tables[name]
        best = max((part for part in table if part in key), key=len, default="")
        return table.get(key) or table.get(best, "")


def modules(context: Context) -> str:
    """Name every module that the log misses."""
    names: dict[str, None] = {}
    for sign in context.signs:
        if sign.rule.kind == "missing-module":
            for name in ("module", "module2", "command", "list"):
                if value := sign.names.get(name):
                    names["wheel" if value == "bdist_wheel" else value.split(".")[0]] = None
    return ", ".join(names) or "the package's build backend"


def module_advice(context: Context) -> str:
    """Say where the missing modules belong, with all others that the package is known to need."""
    known = context.surroundings().requirements or {}
    text = "\n".join(line.text for line in context.lines[:2000]).lower().replace("_", "-")
    package = next((name for name in sorted(known, key=len, reverse=True) if name in text), "")
    words = [*modules(context).split(", "), *known.get(package, ())]
    wanted = " ".join(dict.fromkeys(word for word in words if " " not in word))
    build = f"`wheelmill build {package}`" if package else "a recipe's build-requires"
    return (
        f"pip builds in a new environment that has only what pyproject.toml lists. Into the build environment: "
        f"`pip install {wanted}`, then build with --no-build-isolation; {build} locks them all beforehand."
    )


def full_path(context: Context) -> str:
    """Give the file that found no room: the last path before the message, else the first after it."""
    before, _, after = context.lines[context.sign.at].text.partition(context.sign.found)
    paths = PATH.findall(before)[-1:] + PATH.findall(after)[:1]
    return paths[0] if paths else ""


def directory(context: Context) -> str:
    """Name the folder that is full, and what decides about it."""
    path = full_path(context)
    if not path:
        return "a folder that the log does not name"
    folder = str(PurePath(path).parent)
    return f"{folder} (TMPDIR)" if is_temporary(path) else folder


def is_temporary(path: str) -> bool:
    """Say whether a file lies where compilers put their intermediates."""
    file = PurePath(path)
    passing = file.name.startswith(("tmpxft_", "cc")) and file.suffix in {".s", ".ii", ".o", ".cubin", ".ptx"}
    return passing or (file.parts[1:2] == ("tmp",) and len(file.parts) == 3) or file.parts[1:3] == ("var", "tmp")


def disk_advice(context: Context) -> str:
    """Say how to give room."""
    path = full_path(context)
    if path and is_temporary(path):
        return (
            "Set TMPDIR to a folder on a roomy disk: a unit's intermediates take hundreds of MB, times the jobs. "
            "`wheelmill build` keeps them beside the build, on the disk of --cache DIR."
        )
    return "Free space there (`df -h` shows who is full, `wheelmill gc` what is ours), or build elsewhere: --cache DIR."


def since(context: Context) -> str:
    """Say which nvcc makes an architecture."""
    digits = re.sub(r"\D", "", context.first("arch", "arch2").split("_")[-1])
    first = context.rules.tables["since"].get(digits)
    last = context.rules.tables["dropped"].get(digits)
    return f"{first} or newer" if first else f"older than {last}" if last else ""


def arch_advice(context: Context) -> str:
    """Name a toolkit that makes the architecture, or say that none does."""
    need = since(context)
    if not need:
        return "No nvcc that we know of makes it: `nvcc --list-gpu-arch` shows what yours can; see --arch."
    release = need.split()[-1] if need.startswith("older") else need.split()[0]
    older = need.startswith("older")
    fitting = [
        f"{folder} ({cuda})"
        for folder, cuda in context.surroundings().toolkits
        if (numbers(cuda) < numbers(release)) == older
    ]
    here = (
        f"on this machine: {', '.join(fitting)}"
        if fitting
        else "none is on this machine; `wheelmill doctor` shows the ways"
    )
    return f"Take a CUDA toolkit {need} (--cuda-home DIR; {here}), or leave the architecture out: --arch."


def numbers(version: str) -> tuple[int, ...]:
    """Read a version for comparison."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def toolkit_advice(context: Context) -> str:
    """Name the toolkit on this machine that goes with torch, or how to get one."""
    torch = context.first("torch")
    toolkits = context.surroundings().toolkits
    exact = [folder for folder, cuda in toolkits if numbers(cuda)[:2] == numbers(torch)[:2]]
    major = [f"{folder}" for folder, cuda in toolkits if numbers(cuda)[:1] == numbers(torch)[:1]]
    if exact or major:
        return f"Take the toolkit that fits torch: `--cuda-home {(exact or major)[0]}` (or CUDA_HOME)."
    have = ", ".join(f"{folder} ({cuda})" for folder, cuda in toolkits) or "none"
    return (
        f"No CUDA {torch} toolkit is on this machine (found: {have}). `wheelmill fetch cuda-{torch} --accept-license` "
        "brings one; or take a stack whose torch fits the toolkit: `wheelmill plan --stack cu130`."
    )


def compiler_advice(context: Context) -> str:
    """Name the compilers on this machine that the toolkit takes."""
    limit = context.first("limit")
    if not limit:
        return "Install gcc and g++ of one release that the toolkit takes; `wheelmill doctor` says which that is."
    fitting = [
        (path, version) for path, version in context.surroundings().compilers if numbers(version)[:1] <= (int(limit),)
    ]
    if not fitting:
        return (
            f"None on this machine fits: install gcc-{limit} and g++-{limit} (`apt install g++-{limit}`), and put "
            "them first on PATH under their plain names."
        )
    path, version = max(fitting, key=lambda entry: numbers(entry[1]))
    others = f"; also {', '.join(other for other, _ in fitting if other != path)}" if len(fitting) > 1 else ""
    return (
        f"Use gcc {limit} or older: {path} ({version}) is on this machine{others}. "
        f"`CC={path} CXX={path.replace('gcc', 'g++')} NVCC_CCBIN={path.replace('gcc', 'g++')}`."
    )


def owner(context: Context) -> str:
    """Say whom a header belongs to."""
    header = context.first("header")
    if header == "Python.h":
        return "the headers of Python"
    if header.startswith(("torch/", "ATen/", "c10/")):
        return "torch"
    part = header_part(context)
    return f"the CUDA toolkit ({part}), so this toolkit is partial" if part else ""


def header_part(context: Context) -> str:
    """Give the part of a toolkit that brings a header."""
    header = context.first("header")
    table = context.rules.tables["headers"]
    return table.get(max((part for part in table if header.startswith(part)), key=len, default=""), "")


def header_advice(context: Context) -> str:
    """Say where a header can come from."""
    header, part = context.first("header"), header_part(context)
    if header == "Python.h":
        return "Install them for the interpreter that builds (`apt install python3-dev`), or take one that has them."
    if part:
        whole = [folder for folder, _ in context.surroundings().toolkits]
        here = f" (on this machine: {', '.join(whole)}; `wheelmill doctor` says which are whole)" if whole else ""
        return (
            f"Take a whole toolkit: --cuda-home DIR{here}. Or add the part: package {part} (CUDA 13) or {part}-cu12 "
            "(CUDA 12), its include folder on CPATH; wheelmill's own toolkits have it."
        )
    return "Install the development package that has it, or put its folder on the include path (CPATH)."


def library_advice(context: Context) -> str:
    """Say where a library can come from."""
    lib = context.first("lib").removeprefix("lib").split(".so")[0]
    if lib == "cuda":
        return "It is the driver's, never bundled. To link, a toolkit's lib64/stubs serves: wheelmill's view has it."
    if re.match(r"cu|nv", lib):
        return "The toolkit is partial: take a whole one (--cuda-home DIR); `wheelmill doctor` lists what is missing."
    if re.match(r"torch|c10", lib):
        return "It is torch's: import torch first; to link, take torch.utils.cpp_extension.library_paths()."
    return "Install the package that brings it (to link, its -dev package), or add its folder to LIBRARY_PATH."


def abi(context: Context) -> str:
    """Say in which way an extension and torch differ."""
    symbol = context.first("symbol")
    if re.search(r"(?:[a-z]|E)S[s](?:$|[A-Z_0-9]|RK)", symbol) and "cxx11" not in symbol:
        return "was built with the old C++ ABI (_GLIBCXX_USE_CXX11_ABI=0), the installed torch with the new one"
    if "__cxx11" in symbol and re.search(r"3c105Error|3c106detail", symbol):
        return "was built for another torch: another minor version, or one with the old C++ ABI"
    return "was built for another minor version of torch than the installed one"


def progress(context: Context) -> str:
    """Say how many units are done, going by the last progress line before: the unit that it names may not be."""
    for line in reversed(context.lines[: context.sign.at + 1]):
        if step := PROGRESS.match(line.text):
            return f"at least {max(0, int(step[1]) - 1)} of {step[2]} units are done"
    return ""


def fetched(context: Context) -> str:
    """Name what the build wanted to get."""
    url = context.first("url")
    if not url:
        return f"a file of {host}" if (host := context.first("host")) else "something"
    parts = [part for part in re.sub(r"^https?://", "", url).split("/") if part]
    if "archive" in parts[2:] or "releases" in parts[2:]:
        return parts[2]
    return parts[-1].removesuffix(".git") if parts else "something"


def network_advice(context: Context) -> str:
    """Say how to hand over what the build wanted to get."""
    what, url = fetched(context), context.first("url")
    variable = context.table("sources", url) or context.table("sources", what)
    if "/simple/" in url:
        return f"Get {what} beforehand: into the build environment (a stack's lock has it), then --no-build-isolation."
    if variable:
        return (
            f"Get {what} beforehand and hand it over: {variable}=/absolute/path/to/{what} (a relative path never "
            "reaches the build); in a recipe it is a nested source, which `wheelmill fetch` gets by hash."
        )
    if not url:
        what = "it"
    return (
        f"Get {what} beforehand (`wheelmill fetch NAME` gets every input that a recipe pins) and hand it over: with "
        "CMake's FetchContent, -DFETCHCONTENT_SOURCE_DIR_<NAME>=/absolute/path."
    )


def submodule(context: Context) -> str:
    """Name the source that a header belongs to."""
    top = context.first("header").split("/")[0]
    return {"cute": "CUTLASS", "cutlass": "CUTLASS", "ck": "composable_kernel", "ck_tile": "composable_kernel"}.get(
        top, top
    )


def card(context: Context) -> str:
    """Give the capability of the card that the log names: in numbers, as an architecture, or by its name."""
    at = context.sign.at
    for line in context.lines[max(0, at - AFTER) : at + AFTER]:
        if found := CAPABILITY.search(line.text):
            return f"{found[1] or found[3]}.{found[2] or found[4]}"
        if "NVIDIA" in line.text or "GeForce" in line.text:
            try:
                return gpu_named(line.text).capability.dotted
            except ValueError:
                continue
    return ""


def sm(context: Context) -> str:
    """Name the card's architecture."""
    return context.first("sm") or (f"sm_{capability.replace('.', '')}" if (capability := card(context)) else "")


def arch_option(context: Context) -> str:
    """Give the option that builds for the card."""
    return f"`wheelmill build NAME --arch {card(context) or 'CAPABILITY'}`"


def toolname(context: Context) -> str:
    """Name the program that is missing."""
    name = context.first("tool", "tool2", "tool3", "tool4", "tool5")
    return PurePath(name).name if name.count("/") <= 1 else name


def here(context: Context) -> str:
    """Name this machine's C library, where the log asks for another."""
    glibc = context.surroundings().glibc
    return f"glibc {glibc}" if glibc and context.first("symbol") == "GLIBC" else ""


def toolkits_here(context: Context) -> str:
    """List the toolkits of this machine."""
    return ", ".join(f"{folder} ({cuda})" for folder, cuda in context.surroundings().toolkits)


RUNTIMES = {"GLIBC": "glibc", "GLIBCXX": "libstdc++ (GLIBCXX)", "CXXABI": "libstdc++ (CXXABI)"}

DERIVED: dict[str, Callable[[Context], str]] = {
    "abi": abi,
    "arch_advice": arch_advice,
    "arch_option": arch_option,
    "compiler_advice": compiler_advice,
    "directory": directory,
    "disk_advice": disk_advice,
    "fetched": fetched,
    "filename": lambda context: PurePath(context.first("file")).name,
    "header_advice": header_advice,
    "here": here,
    "library_advice": library_advice,
    "module_advice": module_advice,
    "modules": modules,
    "network_advice": network_advice,
    "owner": owner,
    "progress": progress,
    "runtime": lambda context: RUNTIMES.get(context.first("symbol"), "a library"),
    "since": since,
    "sm": sm,
    "submodule": submodule,
    "toolkit_advice": toolkit_advice,
    "toolkits_here": toolkits_here,
    "toolname": toolname,
    "torch_floor": lambda context: "torch 2.14 and newer do" if context.first("std") == "20" else "",
}
"""Names that a message may use beside those that its rule finds."""
