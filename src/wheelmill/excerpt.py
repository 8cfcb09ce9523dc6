"""Excerpt: of a log of any size the lines that may tell why it failed, cleaned, in bounded time and memory."""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

WHOLE = 1 << 18
"""Of a log up to this size every line is looked at; of a larger one both ends, and what stands around an alarm."""
ALARMS = (b"rror:", b"rror ", b"illed", b"FAILED")
"""What some line near a failure holds, as every tool that gives up says so: ninja FAILED, make, nvcc and pip error, a
shell Killed. Few, as each costs 0.1 s in 200 MB with bytes.find, and a regular expression for all of them 4 s."""
AROUND_ALARM = re.compile(rb"(?i:error\s*(?:[#\w-]+\s*)?:|\bcmake error|\] error \d|\bkilled\b)|\bFAILED")
BEFORE, AFTER = 40, 20
"""Lines that are taken along before and after an alarm."""
LONGEST = 4096
"""Characters of a line that are looked at; longer lines are compiler commands, or no text."""
BUDGET = 30_000
"""Lines that are taken of the middle of a large log. Whoever has more alarms has had the first cause among them."""
CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>]|\x00|.\x08")
STAMP = re.compile(r"^(?:\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)\s?|#\d+ \d+\.\d+ |\[?\d\d:\d\d:\d\d\]?\s)+")
INDENT = re.compile("^[\\s\u2502\u2570\u256d\u2500>\u00d7]*(?:[|]\\s+)?")  # with the frames that pip draws
PROGRESS = re.compile(r"^\[(\d+)/(\d+)\]")


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
