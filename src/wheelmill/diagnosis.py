"""Diagnose: the root cause of a failing log: the first cause by rank, not the last line."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .excerpt import AFTER, BEFORE, PROGRESS, Line, excerpt
from .remedies import Context, Surroundings
from .rulebook import Rulebook, Sign, rulebook

NEAR = 80
"""Lines before in which a rule looks for more names: a traceback through setuptools has sixty."""
COMPILE = re.compile(r"(?:^|\s)-c\s+(?:-c\s+)?(\S+\.(?:cu|cpp|cc|cxx|c|C|hip|S))(?=\s|$)")
FAILED = re.compile(r"^FAILED: (?:\[code=-?\d+\] )?(\S+)")
INCLUDED = re.compile(r"^(?:In file included )?from (\S+?):\d+(?::\d+)?[:,]$|^In file included from (\S+?):\d+")
PLACED = re.compile(r"^(\S+\.(?:cu|cpp|cc|cxx|c|C))(?:\(\d+\)|:\d+)")
DETECTED = re.compile(r'errors? detected in the compilation of "([^"]+)"')
SHOWN = 300
CHAIN = 12
"""Lines before an error in which its chain of includes is looked for: gcc says it once for several errors."""
NEVER = -1
UNKNOWN_LINES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """The verdict on a log: `kind` is None where it succeeded, `line` counts from 1."""

    kind: str | None
    cause: str
    line: int | None = None
    evidence: str = ""
    translation_unit: str | None = None
    advice: str = ""
    likeliest: tuple[tuple[int, str], ...] = ()
    """Of `unknown`: the lines that most likely tell, with their numbers."""
    certain: bool = False
    """Whether a rule of the first rank decided."""

    def to_json(self) -> dict[str, object]:
        """Give the fields that others rely on."""
        return {
            "kind": self.kind,
            "line": self.line,
            "evidence": self.evidence,
            "translation_unit": self.translation_unit,
            "advice": self.advice,
            "cause": self.cause,
            "likeliest": [{"line": number, "text": text} for number, text in self.likeliest],
        }

    def report(self) -> tuple[str, ...]:
        """Give at most 25 lines for a person, the first of them the cause."""
        if self.kind is None:
            return (self.cause, *((f"  {self.advice}",) if self.advice else ()))
        lines = [f"{self.kind}: {self.cause}"]
        if self.translation_unit:
            lines.append(f"  unit: {self.translation_unit}")
        if self.likeliest:
            lines.append("  the likeliest lines:")
            lines += [f"  {number}: {text}" for number, text in self.likeliest]
        elif self.line is not None:
            lines.append(f"  line {self.line}: {self.evidence}")
        return (*lines, f"  next: {self.advice}")


def diagnose(
    blocks: Iterable[bytes], *, surroundings: Callable[[], Surroundings] = Surroundings, rules: Rulebook | None = None
) -> Diagnosis:
    """Give the root cause of a log that comes in blocks of bytes; `surroundings` is asked only if need be."""
    lines = excerpt(blocks)
    return judge(lines, rules or rulebook(), surroundings)


def judge(lines: Sequence[Line], rules: Rulebook, surroundings: Callable[[], Surroundings]) -> Diagnosis:
    """Weigh what the lines say."""
    signs, succeeded = read_signs(lines, rules)
    failures = [sign for sign in signs if sign.rule.rank < 50]
    if succeeded != NEVER and all(sign.at < succeeded for sign in failures):
        return Diagnosis(kind=None, cause="the log tells of success", line=lines[succeeded].number)
    if not signs:
        return silent(lines)
    sign = chosen(signs, succeeded)
    context = Context(lines=lines, sign=sign, signs=signs, rules=rules, surroundings=surroundings)
    evidence = sign.found if sign.rule.clip else " ".join(sign.found.split("\n") if sign.rule.span > 1 else [])
    likeliest = likely(signs, lines) if sign.rule.kind == "unknown" else ()
    unit = translation_unit(lines, sign.at) if sign.rule.unit else None
    return Diagnosis(
        kind=sign.rule.kind,
        cause=context.fill(sign.rule.says),
        line=lines[sign.at].number,
        evidence=(evidence or lines[sign.at].text)[:SHOWN],
        translation_unit=unit,
        advice=context.fill(context.advice),
        likeliest=likeliest,
        certain=sign.rule.rank <= 20,
    )


def silent(lines: Sequence[Line]) -> Diagnosis:
    """Judge a log in which nothing speaks of failure or success."""
    if not lines:
        return Diagnosis(
            kind="unknown",
            cause="the log is empty",
            advice="Give the whole log: stdout and stderr (`2>&1`) of the build.",
        )
    steps = [step for line in lines if (step := PROGRESS.match(line.text))]
    if steps and int(steps[-1][1]) < int(steps[-1][2]):
        return Diagnosis(
            kind="unknown",
            cause=f"the log ends at {steps[-1][0]} without a word of failure: the build is running, was killed as a "
            "whole, or the log was cut",
            line=lines[-1].number,
            evidence=lines[-1].text[:SHOWN],
            translation_unit=translation_unit(lines, len(lines) - 1),
            advice="See whether it runs (`ps`, `tail -f`); `dmesg | grep -i killed` shows what the kernel ended.",
        )
    return Diagnosis(
        kind=None,
        cause="nothing in the log speaks of a failure",
        advice="If the build failed all the same, the log is cut: give stdout and stderr (`2>&1`) of all of it.",
    )


def read_signs(lines: Sequence[Line], rules: Rulebook) -> tuple[list[Sign], int]:
    """Give what the rules find, in order, and where the log last tells of success."""
    signs: list[Sign] = []
    succeeded = NEVER
    for at, line in enumerate(lines):
        sign = first_sign(lines, at, rules)
        if sign is not None:
            signs.append(sign)
        elif rules.success.search(line.text):
            succeeded = at
    return signs, succeeded


def first_sign(lines: Sequence[Line], at: int, rules: Rulebook) -> Sign | None:
    """Ask each rule about a line, and give the first that answers."""
    text = lines[at].text
    noise: bool | None = None
    for rule in rules.rules:
        for part in rule.has:  # any() would take three times as long
            if part in text:
                break
        else:
            continue
        if not rule.noisy:
            noise = bool(rules.noise.search(text)) if noise is None else noise
            if noise:
                continue
        whole = text if rule.span == 1 else "\n".join(line.text for line in lines[at : at + rule.span])
        if (found := rule.match.search(whole)) is None:
            continue
        names = {name: value for name, value in found.groupdict().items() if value}
        if rule.near is not None:
            around = near(rule.near, lines, at)
            if rule.needs_near and not around:
                continue
            names = {**around, **names}
        return Sign(rule, at, names, found[0])
    return None


def near(pattern: re.Pattern[str], lines: Sequence[Line], at: int) -> dict[str, str]:
    """Search a line, those before it from the nearest on, then those after it."""
    order = (*range(at, max(-1, at - NEAR), -1), *range(at + 1, min(len(lines), at + AFTER)))
    for place in order:
        if found := pattern.search(lines[place].text):
            return {name: value for name, value in found.groupdict().items() if value}
    return {}


def chosen(signs: Sequence[Sign], succeeded: int) -> Sign:
    """Give the sign of the cause: lowest rank first, then the first line.

    Of a log that holds several runs, what stands after the last success counts. A failure before an interruption is
    the cause, also one that no rule knows: whoever saw it stopped the build.
    """
    late = [sign for sign in signs if sign.at > succeeded and sign.rule.rank < 40]
    pool = late or signs
    best = min(pool, key=lambda sign: (sign.rule.rank, sign.at))
    if best.rule.kind == "interrupted":
        earlier = [sign for sign in pool if sign.at < best.at and sign.rule.rank <= 30]
        best = min(earlier, key=lambda sign: (sign.rule.rank, sign.at), default=best)
    return best


def likely(signs: Sequence[Sign], lines: Sequence[Line]) -> tuple[tuple[int, str], ...]:
    """Give the lines that most likely tell, the likeliest first."""
    best = sorted(signs, key=lambda sign: (sign.rule.rank, sign.at))[:UNKNOWN_LINES]
    return tuple((lines[sign.at].number, lines[sign.at].text[:SHOWN]) for sign in best)


def translation_unit(lines: Sequence[Line], at: int) -> str | None:
    """Say which unit was compiled at a line.

    By, in this order: the chain of includes above it, the command that ninja repeats after FAILED, the file that the
    line itself names, the last command before it, the object that failed.
    """
    for place in range(at - 1, max(-1, at - CHAIN), -1):
        text = lines[place].text
        if FAILED.match(text) or COMPILE.search(text):
            break
        if text.endswith(":") and (found := INCLUDED.match(text)):
            return found[1] or found[2]
    here = lines[at].text
    if found := COMPILE.search(here) or DETECTED.search(here):
        return found[1]
    failed = None
    for place in range(at, max(-1, at - BEFORE), -1):
        text = lines[place].text
        if found := COMPILE.search(text):
            return found[1]
        if failed is None and (found := FAILED.match(text)):
            failed = found[1]
    if found := PLACED.match(here):
        return found[1]
    for place in range(at + 1, min(len(lines), at + 6)):
        text = lines[place].text
        if found := COMPILE.search(text) or DETECTED.search(text):
            return found[1]
        if failed is None and (found := FAILED.match(text)):
            failed = found[1]
    return failed
