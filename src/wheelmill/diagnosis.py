"""Diagnose: the root cause of a failing log, by ranked rules that are data (data/diagnosis.toml)."""

import re
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePath

from .arch import gpu_named

WHOLE = 1 << 18
"""Of a log up to this size every line is looked at; of a larger one both ends, and what stands around an alarm."""
ALARMS = (b"rror:", b"rror ", b"illed", b"FAILED")
"""What some line near a failure holds, as every tool that gives up says so: ninja FAILED, make, nvcc and pip error, a
shell Killed. Few, as each costs 0.1 s in 200 MB with bytes.find, and a regular expression for all of them 4 s."""
AROUND_ALARM = re.compile(rb"(?i:error\s*(?:[#\w-]+\s*)?:|\bcmake error|\] error \d|\bkilled\b)|\bFAILED")
BEFORE, AFTER = 40, 20
"""Lines that are taken along before and after an alarm."""
NEAR = 80
"""Lines before in which a rule looks for more names: a traceback through setuptools has sixty."""
LONGEST = 4096
"""Characters of a line that are looked at; longer lines are compiler commands, or no text."""
BUDGET = 30_000
"""Lines that are taken of the middle of a large log. Whoever has more alarms has had the first cause among them."""
CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>]|\x00|.\x08")
STAMP = re.compile(r"^(?:\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)\s?|#\d+ \d+\.\d+ |\[?\d\d:\d\d:\d\d\]?\s)+")
INDENT = re.compile("^[\\s\u2502\u2570\u256d\u2500>\u00d7]*(?:[|]\\s+)?")  # with the frames that pip draws
CAPABILITY = re.compile(r"(?i)capability[ =:(]*(?:(\d{1,2})\.(\d)\b|sm_(\d{1,2})(\d)\b)")
PROGRESS = re.compile(r"^\[(\d+)/(\d+)\]")
COMPILE = re.compile(r"(?:^|\s)-c\s+(?:-c\s+)?(\S+\.(?:cu|cpp|cc|cxx|c|C|hip|S))(?=\s|$)")
FAILED = re.compile(r"^FAILED: (?:\[code=-?\d+\] )?(\S+)")
INCLUDED = re.compile(r"^(?:In file included )?from (\S+?):\d+(?::\d+)?[:,]$|^In file included from (\S+?):\d+")
PLACED = re.compile(r"^(\S+\.(?:cu|cpp|cc|cxx|c|C))(?:\(\d+\)|:\d+)")
DETECTED = re.compile(r'errors? detected in the compilation of "([^"]+)"')
PATH = re.compile(r"(?<![\w/.:])/[^\s:'\"`(),;]+")
PLACEHOLDER = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")
SHOWN = 300
CHAIN = 12
"""Lines before an error in which its chain of includes is looked for: gcc says it once for several errors."""
NEVER = -1
UNKNOWN_LINES = 3


# what is told ----------------------------------------------------------------------------------------


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


# rules -----------------------------------------------------------------------------------------------


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


# reading ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """A line that may tell: its number in the log, and its text without colours, stamps and indentation."""

    number: int
    text: str


def excerpt(blocks: Iterable[bytes]) -> list[Line]:
    """Take of a log the lines that may tell.

    All lines of a small log; of a large one both ends and the lines around alarms, so that 200 MB take a second.
    """
    first, number = b"", 1
    stream = iter(pieces(blocks))
    taken: list[Line] = []
    for piece in stream:
        first += piece
        if len(first) > WHOLE:
            break
    else:
        return [*lines_of(first, number)]
    taken += lines_of(first, number)
    number += first.count(b"\n")
    middle = Middle(budget=BUDGET)
    last: deque[tuple[int, bytes]] = deque()
    held = 0
    for piece in stream:
        taken += middle.alarming(piece, number)
        last.append((number, piece))
        held += len(piece)
        while held - len(last[0][1]) >= WHOLE:
            held -= len(last.popleft()[1])
        number += piece.count(b"\n")
    seen = taken[-1].number if taken else 0
    ends = [line for start, piece in last for line in lines_of(piece, start)]
    begins = ends[0].number if ends else seen + 1
    return [line for line in taken if line.number < begins] + ends


def pieces(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut blocks at line ends, and a line longer than 1 MiB anywhere."""
    rest = b""
    for block in blocks:
        cut = block.rfind(b"\n") + 1
        if cut:
            yield rest + block[:cut]
            rest = block[cut:]
        else:
            rest += block
        if len(rest) > WHOLE:
            yield rest
            rest = b""
    if rest:
        yield rest


class Middle:
    """Takes the lines around alarms, up to a budget."""

    def __init__(self, *, budget: int) -> None:
        self.budget = budget

    def alarming(self, piece: bytes, number: int) -> list[Line]:
        """Give the lines around each alarm of a piece, in order, each once."""
        taken: list[Line] = []
        counted, upto = 0, 0  # lines before `counted` are in `number`; bytes before `upto` are taken already
        for position in sorted(self.positions(piece)):
            if position < upto or self.budget <= 0:
                continue
            start = max(upto, back(piece, position, BEFORE))
            upto = ahead(piece, position, AFTER)
            number += piece.count(b"\n", counted, start)
            counted = start
            found = [*lines_of(piece[start:upto], number)]
            self.budget -= len(found)
            taken += found
        return taken

    def positions(self, piece: bytes) -> set[int]:
        """Find the alarms of a piece; an alarm word in a path or a flag is none."""
        found: set[int] = set()
        for word in ALARMS:
            position = piece.find(word)
            while position >= 0:
                start = piece.rfind(b"\n", 0, position) + 1
                end = piece.find(b"\n", position)
                end = len(piece) if end < 0 else end
                if AROUND_ALARM.search(piece, max(start, position - 100), min(end, position + 100)):
                    found.add(position)
                    if len(found) > self.budget:
                        return found
                position = piece.find(word, end)
        return found


def back(piece: bytes, position: int, lines: int) -> int:
    """Give where the line stands that is some lines before a position."""
    for _ in range(lines + 1):
        newline = piece.rfind(b"\n", 0, position)
        if newline < 0:
            return 0
        position = newline
    return position + 1


def ahead(piece: bytes, position: int, lines: int) -> int:
    """Give the end of the line that is some lines after a position."""
    for _ in range(lines + 1):
        newline = piece.find(b"\n", position)
        if newline < 0:
            return len(piece)
        position = newline + 1
    return position


def lines_of(piece: bytes, number: int) -> Iterator[Line]:
    """Give the lines of a piece, cleaned; what a carriage return overwrote is a line of its own."""
    for raw in piece.removesuffix(b"\n").split(b"\n") if piece else ():
        if len(raw) > LONGEST:
            raw = clipped(raw)  # noqa: PLW2901 - the rest of it has nothing to tell
        for part in raw.decode("utf-8", "replace").split("\r"):
            if text := clean(part):
                yield Line(number, text)
        number += 1


def clipped(raw: bytes) -> bytes:
    """Shorten a long line to its ends and what stands around its first alarm."""
    half = LONGEST // 4
    found = AROUND_ALARM.search(raw, half, min(len(raw), 1 << 22))
    middle = raw[max(half, found.start() - half) : found.end() + half] if found else b""
    return b" ... ".join(part for part in (raw[:half], middle, raw[-half:]) if part)


def clean(text: str) -> str:
    """Take colours, time stamps, frames and indentation off a line."""
    if "\x1b" in text or "\x00" in text or "\x08" in text:
        text = CONTROL.sub("", text)
    return INDENT.sub("", STAMP.sub("", text)).rstrip()


# judging ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sign:
    """A rule that found something: at which place of the excerpt, and the names it found."""

    rule: Rule
    at: int
    names: Mapping[str, str]
    found: str


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


# telling ---------------------------------------------------------------------------------------------


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
