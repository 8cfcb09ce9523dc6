"""Rulebook: how causes look in a log, as data (data/diagnosis.toml), and what one is found by."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One way in which a log tells a cause."""

    kind: str
    has: tuple[str, ...]
    match: re.Pattern[str]
    says: str
    advice: str
    rank: int = 10
    span: int = 1
    near: re.Pattern[str] | None = None
    needs_near: bool = False
    unit: bool = True
    clip: bool = False
    noisy: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rulebook:
    """Every rule in order, and the tables that messages draw on."""

    rules: tuple[Rule, ...]
    noise: re.Pattern[str]
    success: re.Pattern[str]
    advice: Mapping[str, str]
    tables: Mapping[str, Mapping[str, str]]


@cache
def rulebook() -> Rulebook:
    """Read the rules that are shipped."""
    return parse_rules((files(__package__) / "data" / "diagnosis.toml").read_text(encoding="utf-8"))


def parse_rules(text: str) -> Rulebook:
    """Read rules; KeyError, TypeError or re.error where they are not sound (a test reads the shipped ones)."""
    document = tomllib.loads(text)
    rules = []
    for entry in document["rule"]:
        near = entry.pop("near", None)
        rules.append(
            Rule(
                **{**entry, "has": tuple(entry["has"]), "match": re.compile(entry["match"])},
                near=re.compile(near) if near else None,
            )
        )
    tables = {name: document.get(name, {}) for name in ("since", "dropped", "headers", "sources")}
    return Rulebook(
        rules=tuple(rules),
        noise=re.compile(document["noise"]),
        success=re.compile(document["success"]),
        advice=document.get("advice", {}),
        tables=tables,
    )


@dataclass(frozen=True, slots=True)
class Sign:
    """A rule that found something: at which place of the excerpt, and the names it found."""

    rule: Rule
    at: int
    names: Mapping[str, str]
    found: str
