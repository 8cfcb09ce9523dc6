"""Why two builds are not the same one: which inputs differ, in words; and why no cached wheel served."""

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .carry import FOLDER
from .derivation import Derivation
from .errors import UsageError, VerifyError
from .lock import Pin, parse_lock
from .provenance import marks
from .verify import check_hashes, embedded_facts, listed, mapping
from .wheel_file import DAMAGE, read_wheel
from .wheelhouse import RECORD_SUFFIX, Wheelhouse

SHORTEST_HASH = 6
WORDS = {
    "schema": "the form of derivations",
    "formats": "wheelmill's own format of",
    "name": "the package",
    "version": "the version",
    "revision": "the recipe's revision",
    "source": "the source's",
    "python": "the Python's",
    "stack": "the stack's",
    "torch": "torch's",
    "toolkit": "the toolkit's",
    "host_compiler": "the host compiler's",
    "arch_control": "how archs are told, the",
    "variant": "the variant",
    "environment": "the build variable",
    "local_version_variable": "the variable for the local version",
    "nvcc_threads": "nvcc's threads",
    "source_date_epoch": "SOURCE_DATE_EPOCH",
    "licenses": "the licence of",
    "vendored": "the vendored",
    "local_version": "the local version",
    "repair": "the repair's",
}
FOUND = {
    "host_compiler": "the host compiler and linker found (digest)",
    "libc": "the C library found",
    "nvcc": "the nvcc found",
    "toolkit_provider": "where the toolkit came from",
    "toolkit_digest": "the toolkit found (digest)",
    "toolkit_pinned": "whether the toolkit is pinned",
    "python": "the interpreter's version",
    "python_flags": "the interpreter's compiler flags (digest)",
    "zlib": "the zlib that packed it",
    "compile_backend": "what ran the compiles",
    "sandbox": "how far the build was shut in",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One build to be explained: its inputs, what its machine added, and the pins of its build lock where known."""

    label: str
    drv: str
    inputs: Mapping[str, object]
    found: Mapping[str, object] | None = None
    pins: Mapping[str, Pin] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """One input that differs: in words, and the two values."""

    input: str
    text: str

    def to_json(self) -> dict[str, str]:
        """Give it as `why --json` does."""
        return {"input": self.input, "text": self.text}


# subjects --------------------------------------------------------------------------------------------


def subject(text: str, *, cwd: Path, house: Wheelhouse) -> Subject:
    """Find what a word names: a wheel, a build record, or the hash of a wheel of the wheelhouse.

    Raises UsageError where nothing is of that name, VerifyError for a wheel that says nothing of its making.
    """
    path = cwd / text
    if text.endswith(".whl"):
        return of_wheel(path)
    if text.endswith(".json"):
        return of_record(path)
    fitting = [record for record in sorted(house.root.glob(f"*{RECORD_SUFFIX}")) if names(record, text)]
    if len(text) < SHORTEST_HASH or not fitting:
        raise UsageError(
            f"{text!r} is neither a wheel, nor a build record, nor a hash of one in {house.root}",
            advice="Give a path that ends in .whl or .build.json, or at least six digits of a drv, realisation or "
            "sha256.",
        )
    if len(fitting) > 1:
        raise UsageError(f"{text!r} begins {len(fitting)} hashes in {house.root}", advice="Give more digits.")
    return of_record(fitting[0])


def names(record: Path, text: str) -> bool:
    """Say whether a hash begins one that a build record tells."""
    values = read_json(record)
    return any(str(values.get(key, "")).startswith(text.lower()) for key in ("drv", "realisation", "sha256"))


def of_wheel(path: Path) -> Subject:
    """Read what a wheel says of its making."""
    facts = embedded_facts(path)
    if facts is None:
        raise VerifyError(
            f"{path.name} does not say how it was made: wheelmill did not make it",
            advice=f"`wheelmill inspect {path}` shows what is in it.",
        )
    try:
        check_hashes(facts)
        return Subject(
            label=path.name,
            drv=str(facts["drv"]),
            inputs=mapping(facts["inputs"]),
            found=mapping(facts["found"]),
            pins=carried_pins(path),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise VerifyError(f"{path.name}: what it says of its making cannot be read ({error})") from error


def carried_pins(path: Path) -> Mapping[str, Pin] | None:
    """Read the build lock that a wheel carries."""
    wheel = read_wheel(path)
    for name in sorted(wheel.record):
        if name.startswith(f"{wheel.dist_info}/{FOLDER}/recipes/stacks/") and name.endswith(".build.txt"):
            try:
                with zipfile.ZipFile(path) as archive:
                    return parse_lock(archive.read(name).decode(), file=name).pins
            except (*DAMAGE, UnicodeDecodeError) as error:
                raise VerifyError(f"{path.name}: {name} cannot be read: {error}") from error
    return None


def of_record(path: Path) -> Subject:
    """Read a build record; the wheel beside it has the lock."""
    values = read_json(path)
    wheel = path.with_name(path.name.removesuffix(RECORD_SUFFIX))
    try:
        return Subject(
            label=path.name,
            drv=str(values["drv"]),
            inputs=mapping(values["inputs"]),
            found=mapping(values["found"]),
            pins=carried_pins(wheel) if wheel.suffix == ".whl" and wheel.is_file() else None,
        )
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} is no build record of wheelmill ({error})") from error


def read_json(path: Path) -> Mapping[str, object]:
    """Read a JSON object; UsageError where there is none."""
    try:
        return mapping(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None


def of_derivation(derivation: Derivation) -> Subject:
    """Take what would be built now."""
    document = json.loads(json.dumps(derivation.inputs))
    return Subject(
        label=f"{derivation.name} {derivation.full_version} as it would be built now",
        drv=derivation.drv,
        inputs=document,
        pins=derivation.build_lock.pins,
    )


def relatives(derivation: Derivation, house: Wheelhouse) -> tuple[Subject, ...]:
    """Give what the wheelhouse has of a package, the likest first: those with the fewest other inputs."""
    found = []
    for record in sorted(house.root.glob(f"*{RECORD_SUFFIX}")):
        if record.with_name(record.name.removesuffix(RECORD_SUFFIX)).is_file():
            made = of_record(record)
            if made.inputs.get("name") == derivation.name:
                found.append(made)
    now = of_derivation(derivation)
    return tuple(sorted(found, key=lambda made: len(reasons(made, now))))


@dataclass(frozen=True, kw_only=True, slots=True)
class Making:
    """By which derivation a wheel was made, and what lowers its claim."""

    drv: str
    marks: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Give it as `inspect --json` does."""
        return {"drv": self.drv, "marks": list(self.marks)}

    def line(self) -> str:
        """Say it in one line."""
        return "; ".join([f"made by wheelmill, drv {self.drv[:12]}", *self.marks])


def making(path: Path) -> Making | None:
    """Say by which derivation a wheel was made and what lowers its claim; None for somebody else's file.

    The record beside it, where there is one of this very wheel, knows of the checkout, too.
    """
    try:
        made = of_wheel(path) if path.suffix == ".whl" else None
    except VerifyError:  # `verify` says what is wrong with it
        return None
    if made is None:
        return None
    held = Wheelhouse(root=path.parent).held(path.name)
    told = marks(made.found or {})
    return Making(drv=made.drv, marks=tuple(dict.fromkeys([*told, *(held.marks if held else ())])))


# reasons ---------------------------------------------------------------------------------------------


def reasons(ours: Subject, theirs: Subject) -> tuple[Reason, ...]:
    """Say which inputs differ, then what the two machines added."""
    made = [*inputs_that_differ(ours, theirs)]
    if ours.found is not None and theirs.found is not None:
        for name in sorted(ours.found.keys() | theirs.found.keys()):
            a, b = ours.found.get(name), theirs.found.get(name)
            if a != b:
                made.append(Reason(input=f"found.{name}", text=f"{FOUND.get(name, name)}: {say(a)}, not {say(b)}"))
    return tuple(made)


def inputs_that_differ(ours: Subject, theirs: Subject) -> Iterator[Reason]:
    """Say which inputs differ."""
    for name in sorted(ours.inputs.keys() | theirs.inputs.keys()):
        a, b = ours.inputs.get(name), theirs.inputs.get(name)
        if a == b:
            continue
        match name:
            case "patches":
                texts = patches_that_differ(listed(a), listed(b)) if a is not None and b is not None else [""]
                yield from (Reason(input=name, text=text) for text in texts)
            case "build_lock":
                yield from (Reason(input=name, text=text) for text in pins_that_differ(ours.pins, theirs.pins))
            case "archs":
                yield Reason(input=name, text=f"the archs: {say(a)}, not {say(b)}")
            case _:
                yield from values_that_differ(name, a, b, WORDS.get(name, name))


def values_that_differ(key: str, a: object, b: object, words: str) -> Iterator[Reason]:
    """Go down into tables, and say what differs there."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in sorted(a.keys() | b.keys()):
            if a.get(name) != b.get(name):
                yield from values_that_differ(f"{key}.{name}", a.get(name), b.get(name), f"{words} {name}")
        return
    yield Reason(input=key, text=f"{words}: {say(a)}, not {say(b)}")


def patches_that_differ(ours: Iterable[object], theirs: Iterable[object]) -> list[str]:
    """Name the patches that differ."""
    one, other = ([patch_of(entry) for entry in entries] for entries in (ours, theirs))
    texts = [f"the patch {name} is only in the first" for name, _ in one if name not in dict(other)]
    texts += [f"the patch {name} is only in the second" for name, _ in other if name not in dict(one)]
    texts += [
        f"the patch {name} says something else: sha256 {digest[:12]}, not {dict(other)[name][:12]}"
        for name, digest in one
        if name in dict(other) and dict(other)[name] != digest
    ]
    return texts or ["the patches are applied in another order"]


def patch_of(entry: object) -> tuple[str, str]:
    """Read one patch of a derivation's inputs; derivations of schema 1 had no names."""
    if isinstance(entry, dict):
        return str(entry.get("name")), str(entry.get("sha256"))
    return str(entry)[:12], str(entry)


def pins_that_differ(ours: Mapping[str, Pin] | None, theirs: Mapping[str, Pin] | None) -> list[str]:
    """Name the build requirements that differ."""
    if ours is None or theirs is None:
        return ["the build lock pins other files (one of the two locks is not at hand)"]
    texts = []
    for name in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(name), theirs.get(name)
        if a is None or b is None:
            texts.append(f"the build lock pins {name} only in the {'first' if a else 'second'}")
        elif a.version != b.version:
            texts.append(f"the build lock pins {name} {a.version}, not {b.version}")
        elif set(a.hashes) != set(b.hashes):
            texts.append(f"the build lock pins another file of {name} {a.version}")
        elif a.requirement != b.requirement:
            texts.append(f"the build lock says {a.requirement!r}, not {b.requirement!r}")
    return texts or ["the build lock pins other files"]


def say(value: object) -> str:
    """Spell a value for people."""
    match value:
        case None:
            return "nothing"
        case str() if len(value) == 64 and set(value) <= set("0123456789abcdef"):
            return value[:12]
        case list():
            return ", ".join(say(entry) for entry in value) or "nothing"
        case dict():
            return json.dumps(value, sort_keys=True)
        case _:
            return str(value)
