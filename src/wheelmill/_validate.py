"""Typed reading of TOML tables: every error names the file and the key path, unknown keys get a did-you-mean."""

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

from .errors import RecipeError

T = TypeVar("T")
TOMLValue: TypeAlias = object

SHA256 = re.compile(r"[0-9a-f]{64}")
TYPE_NAMES = {str: "a string", int: "an integer", bool: "true or false", list: "a list", dict: "a table"}


def did_you_mean(wrong: str, known: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    """Give `; did you mean 'x'?`, or nothing where no name is near."""
    near = get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


class Table:
    """One TOML table that remembers its place and which keys were read.

    Use as a context manager: on a clean exit an unread key raises RecipeError.
    """

    def __init__(self, values: Mapping[str, TOMLValue], *, file: str, path: str = "") -> None:
        self.values, self.file, self.path = values, file, path
        self.known: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.reject_unknown()

    def reject_unknown(self) -> None:
        """Raise RecipeError for the first key that nobody asked for."""
        for key in self.values:
            if key not in self.known:
                hint = did_you_mean(key, self.known) or f"; known here: {', '.join(sorted(self.known))}"
                raise self.error(key, f"unknown key{hint}")

    def error(self, key: str, problem: str) -> RecipeError:
        """Make an error that names this file and the whole key path."""
        return RecipeError(problem, file=self.file, key=self.at(key))

    def at(self, key: str) -> str:
        """Give the whole path of a key of this table."""
        quoted = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"'
        return f"{self.path}.{quoted}" if self.path else quoted

    def has(self, key: str) -> bool:
        """Say whether the key is given."""
        self.known.append(key)
        return key in self.values

    def required(self, key: str, parse: Callable[["Field"], T]) -> T:
        """Read a key that must be there."""
        if not self.has(key):
            near = [name for name in self.values if get_close_matches(name, [key], n=1, cutoff=0.6)]
            hint = f"; did you mean {key!r} where {near[0]!r} stands?" if near else ""
            raise self.error(key, f"missing{hint}")
        return parse(Field(self, key, self.values[key]))

    def optional(self, key: str, parse: Callable[["Field"], T], default: T) -> T:
        """Read a key that has a default."""
        return parse(Field(self, key, self.values[key])) if self.has(key) else default

    def subtable(self, key: str) -> "Table":
        """Read a table that may be absent (then empty)."""
        return self.optional(key, table, Table({}, file=self.file, path=self.at(key)))

    def subtables(self, key: str) -> dict[str, "Table"]:
        """Read a table of tables, by name."""
        outer = self.subtable(key)
        return {name: outer.required(name, table) for name in outer.values}


class Field:
    """One value with its place."""

    def __init__(self, owner: Table, key: str, value: TOMLValue) -> None:
        self.owner, self.key, self.value = owner, key, value

    def error(self, problem: str) -> RecipeError:
        """Make an error that names this field."""
        return self.owner.error(self.key, problem)

    def of(self, kind: type[T]) -> T:
        """Give the value if it is of this very type (true is no integer)."""
        if type(self.value) is not kind:
            found = TYPE_NAMES.get(type(self.value), f"a {type(self.value).__name__}")
            raise self.error(f"must be {TYPE_NAMES[kind]}, found {found}: {self.value!r}")
        return self.value


def string(field: Field) -> str:
    """Read a string."""
    return field.of(str)


def integer(field: Field) -> int:
    """Read an integer that is not negative."""
    value = field.of(int)
    if value < 0:
        raise field.error(f"must not be negative, found {value}")
    return value


def strings(field: Field) -> tuple[str, ...]:
    """Read a list of strings."""
    values = field.of(list)
    for position, value in enumerate(values):
        if not isinstance(value, str):
            raise field.error(f"item {position} must be a string, found {value!r}")
    return tuple(values)


def string_map(field: Field) -> dict[str, str]:
    """Read a table whose values are strings."""
    values = field.of(dict)
    for name, value in values.items():
        if not isinstance(value, str):
            raise table(field).error(name, f"must be a string (quote it), found {value!r}")
    return dict(values)


def table(field: Field) -> Table:
    """Read a table."""
    return Table(field.of(dict), file=field.owner.file, path=field.owner.at(field.key))


def sha256(field: Field) -> str:
    """Read a digest: 64 lower-case hexadecimal digits."""
    value = field.of(str)
    if not SHA256.fullmatch(value):
        raise field.error(f"must be a sha256 of 64 lower-case hexadecimal digits, found {value!r}")
    return value


def relative_path(field: Field) -> str:
    """Read a path that stays inside its folder."""
    value = field.of(str)
    parts = value.split("/")
    if not value or value.startswith("/") or ".." in parts or "\\" in value:
        raise field.error(f"must be a relative path without '..', found {value!r}")
    return value


def relative_paths(field: Field) -> tuple[str, ...]:
    """Read a list of paths that stay inside their folder."""
    return tuple(relative_path(Field(field.owner, field.key, value)) for value in strings(field))


def one_of(*choices: str) -> Callable[[Field], str]:
    """Read one of a few words."""

    def parse(field: Field) -> str:
        value = field.of(str)
        if value not in choices:
            hint = did_you_mean(value, choices)
            raise field.error(f"must be one of {', '.join(choices)}, found {value!r}{hint}")
        return value

    return parse


UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def parse_size(text: str) -> int:
    """Turn `7 GiB`, `288GiB` or `1024` into bytes; ValueError where it cannot be meant."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None:
        raise ValueError(f"not a size: {text!r}; write it like 7GiB or 512MiB")
    number, unit = match.groups()
    aliases = {"": "B", "K": "KiB", "M": "MiB", "G": "GiB", "T": "TiB"}
    unit = aliases.get(unit.upper(), unit)
    for name, factor in UNITS.items():
        if unit.lower() == name.lower():
            return int(float(number) * factor)
    raise ValueError(f"not a size: {text!r}; units are {', '.join(UNITS)} (powers of 1024)")


def size(field: Field) -> int:
    """Read a size in bytes, written like `7 GiB`."""
    try:
        return parse_size(field.of(str))
    except ValueError as error:
        raise field.error(str(error)) from None
