"""Who has the symbols that an extension wants: the locked torch, CUDA, the interpreter, the driver or the platform."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .elf import ElfFacts, exports_of
from .repair import DRIVER_LIBRARIES, libraries_of

PLATFORM_VERSION = re.compile(r"(GLIBC|GLIBCXX|CXXABI|GCC|LIBATOMIC|ZLIB|GOMP|OMP)_")
INTERPRETER = re.compile(r"_?Py[A-Z_]")
DRIVER_SYMBOL = re.compile(r"(cu[A-Z]|nvml[A-Z])")
FOLDERS = tuple(map(Path, ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64")))
PLATFORM_LIBRARIES = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1")
CXX11 = re.compile(r"__cxx11|B5cxx11")
OLD_STRING = re.compile(r"Ss(?=[A-Z]|$|[a-z]|_)")
NESTED = re.compile(r"_ZN[VKOR]*")
SHOWN = 5
TORCH_GONE = "no function of the locked torch: another minor release of it"
NOBODY = "nobody has it whom the file will find beside it"
TORCH = ("libtorch", "libc10")
FAMILIES = {
    **{f"_Z{kind}N{const}3c10": "libc10" for kind in ("", "TI", "TV") for const in ("", "K")},
    **{f"_ZN{const}{space}": "libtorch" for const in ("", "K") for space in ("2at", "5torch", "5caffe")},
    "torch_": "libtorch",
    "aoti_torch_": "libtorch",
    "cublasLt": "libcublasLt",
    "cublas": "libcublas",
    "cudnn": "libcudnn",
    "cusparse": "libcusparse",
    "cusolver": "libcusolver",
    "cufft": "libcufft",
    "curand": "libcurand",
    "nccl": "libnccl",
    "nvrtc": "libnvrtc",
    "cuda": "libcudart",
    "__cuda": "libcudart",
}
"""How the functions of each library begin."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """A library that somebody else brings: what it offers, and which libraries it takes along."""

    soname: str
    project: str
    exports: frozenset[str]
    needed: tuple[str, ...]
    names: frozenset[str] = field(default_factory=frozenset)
    """The qualified names of its C++ functions, whatever their arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What the platform's libraries offer, as far as they are on this machine; `unread` are those that are not."""

    symbols: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """A symbol that nobody has, and what that means."""

    path: str
    symbol: str
    reason: str


def providers(site_packages: Path, owned: Mapping[str, str], wanted: Iterable[str]) -> dict[str, Provider]:
    """Read the libraries of locked wheels that these sonames lead to, theirs included."""
    paths = libraries_of(site_packages, set(owned.values()))
    found: dict[str, Provider] = {}
    todo = [soname for soname in wanted if soname in owned]
    while todo:
        soname = todo.pop()
        if soname in found or soname not in paths:
            continue
        exports, needed = exports_of(paths[soname])
        names = frozenset(name for name in map(qualified, exports) if name) if "torch" in owned[soname] else frozenset()
        found[soname] = Provider(soname=soname, project=owned[soname], exports=exports, needed=needed, names=names)
        todo += [name for name in needed if name in owned]
    return found


def missing(files: Iterable[ElfFacts], known: Mapping[str, Provider], *, offered: Offer = Offer()) -> list[Missing]:
    """Find the symbols of each file that nobody has whom it will find beside it; `offered`: the platform's."""
    listed, found = list(files), []
    own = carried(listed)
    for file in listed:
        scope = scope_of(file, own, known, offered)
        found += [
            Missing(path=file.path, symbol=symbol, reason=reason(symbol, known))
            for symbol in sorted(file.undefined)
            if not has_owner(symbol, file, scope)
        ]
    return found


def carried(files: Iterable[ElfFacts]) -> dict[str, ElfFacts]:
    """Give the libraries of a wheel by the names that the loader knows them by: of their file, and their soname.

    What auditwheel grafts has a new file name, and sometimes its old soname.
    """
    found = list(files)
    return {file.soname: file for file in found if file.soname} | {file.path.rpartition("/")[2]: file for file in found}


def platform_offer(libraries: Iterable[str], folders: Iterable[Path] = FOLDERS) -> Offer:
    """Look at the platform's libraries of this machine: for symbols that were linked without a version."""
    places = list(folders)
    found: set[str] = set()
    unread: set[str] = set()
    for name in (*PLATFORM_LIBRARIES, *libraries):
        exports = {symbol for folder in places for symbol in exports_of(folder / name)[0]}
        found |= exports
        if not exports:
            unread.add(name)
    return Offer(symbols=frozenset(found), unread=frozenset(unread))


def reach(file: ElfFacts, own: Mapping[str, ElfFacts], known: Mapping[str, Provider]) -> frozenset[str]:
    """Give the libraries that the loader looks through for a file: what it needs, and what these need."""
    seen: set[str] = set()
    todo = list(file.needed)
    while todo:
        soname = todo.pop()
        if soname not in seen:
            seen.add(soname)
            todo += own[soname].needed if soname in own else known[soname].needed if soname in known else ()
    return frozenset(seen)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """What the loader looks through for one file: names of libraries, and all that they and the platform offer."""

    sonames: frozenset[str]
    exports: tuple[frozenset[str], ...]
    open_ended: bool
    """Whether there is a library among them that is the platform's, and not on this machine."""


def scope_of(file: ElfFacts, own: Mapping[str, ElfFacts], known: Mapping[str, Provider], offered: Offer) -> Scope:
    """Gather what a file will find beside it."""
    sonames = reach(file, own, known)
    exports = [own[each].exported for each in sonames if each in own]
    exports += [known[each].exports for each in sonames if each in known and each not in own]
    open_ended = bool((sonames & offered.unread) - own.keys() - known.keys())
    return Scope(sonames=sonames, exports=(*exports, offered.symbols), open_ended=open_ended)


def has_owner(symbol: str, file: ElfFacts, scope: Scope) -> bool:
    """Tell whether somebody within reach has a symbol."""
    if PLATFORM_VERSION.match(file.versions.get(symbol, "")) or INTERPRETER.match(symbol):
        return True  # versions of the platform's symbols are held against its tag elsewhere
    if DRIVER_SYMBOL.match(symbol) and scope.sonames & DRIVER_LIBRARIES:
        return True
    return scope.open_ended or any(symbol in exports for exports in scope.exports)


def reason(symbol: str, known: Mapping[str, Provider]) -> str:
    """Say what it means that nobody has a symbol."""
    holders = [each for each in known.values() if symbol in each.exports]
    if holders:
        return f"{holders[0].soname} has it, and the file does not name that library"
    name = qualified(symbol)
    related = [each for each in known.values() if name and name in each.names]
    if related:
        if CXX11.search(symbol) or OLD_STRING.search(symbol.removeprefix(name)):
            return f"{related[0].project} has this function with the other C++ ABI (std::string)"
        return f"{related[0].project} has this function with other arguments: another minor release"
    for prefix, library in FAMILIES.items():
        if symbol.startswith(prefix) and any(soname.startswith(library) for soname in known):
            return TORCH_GONE if library in TORCH else f"no function of the locked {library}: another CUDA"
    return NOBODY


def qualified(symbol: str) -> str:
    """Give the beginning of a mangled name that says which function it is, without its arguments.

    `_ZN3c105ErrorC2ENS_14SourceLocationENSt…` gives `_ZN3c105ErrorC2E`; nothing for what is no such name.
    """
    if symbol.startswith("_ZNK"):
        symbol = "_ZN" + symbol[4:]
    match = NESTED.match(symbol)
    if match is None:
        return ""
    place = match.end()
    while place < len(symbol):
        if number := re.match(r"[1-9][0-9]*", symbol[place:]):
            place += number.end() + int(number[0])
        elif step := re.match(r"[CD][0-5]|St|B[0-9]+", symbol[place:]):
            place += step.end()
        else:
            break
    return symbol[: place + 1] if symbol[place : place + 1] == "E" else ""


def summarise(found: Iterable[Missing]) -> list[str]:
    """Say for each file and reason which symbols are missing, a few of them by name; the file comes first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for each in found:
        groups.setdefault((each.path, each.reason), []).append(each.symbol)
    return [
        f"{path} wants {', '.join(names[:SHOWN])}"
        + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        + f": {why}"
        for (path, why), names in groups.items()
    ]
