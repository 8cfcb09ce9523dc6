"""What travels in a wheel's dist-info, so that `rebuild` needs the wheel alone: recipe, patches, stack, locks, toolkit.

Not the files as they lie in the recipes folder: comments, other releases, checks and memory figures are no inputs, and
what is part of the bytes must be an input. So each file here is spelled anew from the derivation, and equal
derivations carry equal bytes; a folder of them is a recipes folder that instantiates to the same derivation.
"""

import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from .catalog import Catalog, load_catalog
from .derivation import Derivation, Selection
from .errors import FetchError, VerifyError
from .fetch import FetchedSource, FetchedTree, tree_files
from .lock import Lock
from .recipe import IndexSource

FOLDER = "wheelmill"
"""Where it lies in dist-info."""
SOURCE = "source.tar"
"""A tree that no index has; relative to FOLDER."""
SOURCE_MAX = 16 << 20
"""Bytes of a source tree that a wheel still carries."""
SUMMARY = "as carried by the wheel"


def carried(derivation: Derivation, fetched: FetchedSource | FetchedTree) -> dict[str, bytes]:
    """Give the files for dist-info, by name; a function of the derivation alone."""
    toolkit, stack = derivation.toolkit, derivation.stack
    texts = {
        f"recipes/{derivation.name}.toml": toml(recipe_values(derivation)),
        f"recipes/stacks/{stack.name}.toml": toml(stack_values(derivation)),
        f"recipes/stacks/{stack.name}.build.txt": lock_text(derivation.build_lock),
        f"recipes/toolkits/{toolkit.name}.toml": toml(toolkit_values(derivation)),
    }
    if derivation.toolkit_lock is not None:
        texts[f"recipes/toolkits/{toolkit.name}.txt"] = lock_text(derivation.toolkit_lock)
    folder = f"patches/{derivation.name}/{derivation.version}"
    texts |= {
        f"{folder}/{name}": patch.text for name, patch in zip(patch_names(derivation), derivation.patches, strict=True)
    }
    files = {name: text.encode() for name, text in texts.items()}
    if isinstance(fetched, FetchedTree) and (packed := packed_tree(fetched)) is not None:
        files[SOURCE] = packed
    return {f"{FOLDER}/{name}": data for name, data in sorted(files.items())}


def patch_names(derivation: Derivation) -> list[str]:
    """Give each patch a folder: a release's and its variant's may have the same name."""
    return [f"{number:02}/{patch.name}" for number, patch in enumerate(derivation.patches, start=1)]


def recipe_values(derivation: Derivation) -> dict[str, object]:
    """Spell the one release as a recipe; the variant is a name, its patches and environment are the release's."""
    release = derivation.release
    computed = {*release.arch.environment(derivation.archs), release.local_version_variable}
    licenses = {each.path: each.spdx for each in release.licenses}
    values: dict[str, object] = {
        "revision": release.revision,
        "source": carried_source(derivation),
        "source-date-epoch": derivation.source_date_epoch,
        "patches": patch_names(derivation),
        "build-requires": [],
        "local-version-variable": release.local_version_variable,
        "nvcc-threads": release.nvcc_threads,
        "environment": {name: text for name, text in sorted(derivation.environment.items()) if name not in computed},
        "arch": {name: value for name, value in derivation.arch_inputs.items() if value or name == "via"},
        "checks": {"imports": []},
        "licenses": {path: {"spdx": spdx} for path, spdx in sorted(licenses.items())},
        "vendored": dict(sorted((each.path, each.inputs) for each in release.vendored)),
    }
    if derivation.variant:
        values["variant"] = {derivation.variant.name: {"summary": SUMMARY}}
    if release.arch.via != "variable":
        values["arch"] = {"via": release.arch.via}
    return {"name": derivation.name, "summary": SUMMARY, "home": "", "version": {derivation.version: values}}


def carried_source(derivation: Derivation) -> dict[str, str]:
    """Spell where the code comes from."""
    source = derivation.release.source
    if isinstance(source, IndexSource):
        return {"project": source.project, "file": source.file, "sha256": source.sha256}
    return {"path": "../source", "sha256": source.sha256}


def stack_values(derivation: Derivation) -> dict[str, object]:
    """Spell the stack with what this build takes of it."""
    stack, torch = derivation.stack, derivation.stack.torch
    return {
        "name": stack.name,
        "summary": SUMMARY,
        "python": stack.python,
        "cuda": stack.cuda,
        "toolkit": derivation.toolkit.name,
        "archs": [str(arch) for arch in derivation.archs],
        "platform": stack.platform,
        "cut-off": "",
        "build-lock": f"{stack.name}.build.txt",
        "run-lock": f"{stack.name}.build.txt",
        "packages": {derivation.name: derivation.version},
        "prebuilt": {"torch": {"version": torch.version, "file": torch.file, "sha256": torch.sha256}},
    }


def toolkit_values(derivation: Derivation) -> dict[str, object]:
    """Spell the toolkit recipe."""
    toolkit = derivation.toolkit
    values: dict[str, object] = {
        "name": toolkit.name,
        "cuda": toolkit.cuda,
        "accepts": list(toolkit.accepts),
        "headers": list(toolkit.headers),
        "libraries": list(toolkit.libraries),
        "gcc-below": toolkit.gcc_below,
        "needs-license": toolkit.needs_license,
    }
    if toolkit.wheels is not None:
        values["wheels"] = {"requirements": f"{toolkit.name}.txt", "root": toolkit.wheels.root}
    if (pinned := toolkit.redistributable) is not None:
        values["redistributable"] = {
            name.replace("_", "-"): value for name, value in pinned.inputs.items() if name != "merged"
        }
    return values


def lock_text(lock: Lock) -> str:
    """Spell what a lock pins, as its digest is made: its comments and layout stay behind."""
    lines = [
        " ".join([pin.requirement, *(f"--hash=sha256:{value}" for value in sorted(pin.hashes))])
        for pin in lock.pins.values()
    ]
    return "".join(f"{line}\n" for line in sorted(lines))


# a source tree ---------------------------------------------------------------------------------------


def packed_tree(fetched: FetchedTree) -> bytes | None:
    """Pack a tree: its names, contents, links and exec bits, nothing else; None where it is too large to carry."""
    paths = tree_files(fetched.path)
    if sum(path.lstat().st_size for path in paths) > SOURCE_MAX:
        return None
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in paths:
            entry = tarfile.TarInfo(path.relative_to(fetched.path).as_posix())
            if path.is_symlink():
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
                archive.addfile(entry)
                continue
            data = path.read_bytes()
            entry.size, entry.mode = len(data), 0o755 if path.stat().st_mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return sink.getvalue()


# reading ---------------------------------------------------------------------------------------------


def unpack(files: Mapping[str, bytes], into: Path) -> Catalog:
    """Lay carried files out as a recipes folder with patches, and read it; VerifyError for a name that is none."""
    for name, data in sorted(files.items()):
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts or "\\" in name:
            raise VerifyError(f"the wheel carries {name!r}, which is no file of a recipes folder")
        path = into / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    packed = into / SOURCE
    if packed.is_file():
        try:
            with tarfile.open(packed) as archive:
                archive.extractall(into / "source", filter="data")
        except (tarfile.TarError, OSError) as error:
            raise FetchError(f"the source tree in the wheel cannot be unpacked: {error}") from error
    return load_catalog((into / "recipes",))


def selection_of(inputs: Mapping[str, object]) -> Selection:
    """Say what a derivation's inputs select among what is carried with them."""
    stack = inputs["stack"]
    assert isinstance(stack, dict)  # noqa: S101 - `claimed` has read it
    return Selection(name=str(inputs["name"]), stack=str(stack["name"]), variant=str(inputs["variant"] or ""))


# TOML ------------------------------------------------------------------------------------------------


def toml(values: Mapping[str, object], path: tuple[str, ...] = ()) -> str:
    """Spell a table; the standard library only reads TOML, and what a library writes changes with its version."""
    plain = [(name, value) for name, value in values.items() if not isinstance(value, Mapping)]
    tables = [(name, value) for name, value in values.items() if isinstance(value, Mapping)]
    lines = [f"{key(name)} = {spelled(value)}\n" for name, value in plain]
    head = f"[{'.'.join(key(part) for part in path)}]\n" if path and (lines or not tables) else ""
    body = "".join([head, *lines])
    return "\n".join(part for part in (body, *(toml(table, (*path, name)) for name, table in tables)) if part)


def key(name: str) -> str:
    """Spell a key."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else spelled(name)


def spelled(value: object) -> str:
    """Spell a value: text, whole number, truth, or a list of such."""
    match value:
        case str():
            # A basic string of TOML is a string of JSON but for DEL and for characters beyond 16 bits.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool() | int():
            return json.dumps(value)
        case list() | tuple():
            return "[" + ", ".join(spelled(entry) for entry in items(value)) + "]"
        case _:
            raise TypeError(f"{value!r} has no place in TOML")


def items(value: Iterable[object]) -> Iterable[object]:
    """Give the entries of a list."""
    return value
