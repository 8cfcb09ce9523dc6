"""What a person sees: talk on stderr, results on stdout, nothing that a log could use to take over a terminal."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TextIO

from .errors import WheelmillError

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
REPORT_LINES = 25


def escaped(text: str) -> str:
    """Show control characters, and file names' bytes that are no text, instead of obeying them; tabs, newlines stay."""
    return CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


class Reporter(Protocol):
    """Where stages say what they do."""

    def step(self, text: str) -> None:
        """Begin a stage."""
        ...

    def note(self, text: str) -> None:
        """Tell a detail of the stage."""
        ...

    def warn(self, text: str) -> None:
        """Tell what does not stop the work but should be known."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Console:
    """Plain lines on stderr, coloured on a terminal unless NO_COLOR is set."""

    talk: TextIO
    colour: bool
    quiet: bool

    def step(self, text: str) -> None:
        """Begin a stage."""
        self.say(self.paint("1;34", "==> ") + escaped(text))

    def note(self, text: str) -> None:
        """Tell a detail of the stage."""
        self.say("    " + escaped(text).replace("\n", "\n    "))

    def warn(self, text: str) -> None:
        """Tell what does not stop the work but should be known."""
        self.say(self.paint("33", "  ! ") + escaped(text))

    def say(self, text: str) -> None:
        """Write one line at once, so that a pipe sees progress too."""
        if not self.quiet:
            self.write(text)

    def write(self, text: str) -> None:
        """Write whole lines in one piece, as threads speak too; work does not end where nobody listens any more."""
        try:
            self.talk.write(text + "\n")
            self.talk.flush()
        except (OSError, ValueError):  # a pipe or terminal that is gone, a stream that was closed
            return

    def failure(self, error: WheelmillError) -> None:
        """Print the report of a failure: the last thing said, cause first, at most 25 lines, also when quiet."""
        cause, *rest = escaped(str(error)).splitlines() or [type(error).__name__]
        lines = [self.paint("1;31", "error: ") + cause, *rest]
        advice = [f"  next: {line}" if number == 0 else f"        {line}"
                  for number, line in enumerate(escaped(error.advice).splitlines())]  # fmt: skip
        room = REPORT_LINES - len(advice)
        if len(lines) > room:
            kept = max(1, room - 1)  # the cause, whatever the advice takes
            lines = [*lines[:kept], f"  … {len(lines) - kept} more lines in the log"]
        self.write("\n".join([*lines, *advice]))

    def paint(self, code: str, text: str) -> str:
        """Colour a word on a terminal."""
        return f"\033[{code}m{text}\033[0m" if self.colour else text


def make_console(*, quiet: bool, no_colour: bool, talk: TextIO | None = None) -> Console:
    """Make the console of this process."""
    stream = talk or sys.stderr
    return Console(talk=stream, colour=stream.isatty() and not no_colour, quiet=quiet)


def result(text: str) -> None:
    """Print a result on stdout; what a wheel calls its members may have been made to drive a terminal."""
    sys.stdout.write(escaped(text) + "\n")


def deliver(words: Callable[[], None]) -> bool:
    """Print a result of work that is done whether anybody reads it or not; False where nobody does.

    What the stream holds still would raise once more at exit, so it goes to the null device.
    """
    try:
        words()
        sys.stdout.flush()
    except OSError:  # a pipe without a reader, a terminal that is gone
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        return False
    return True


def document(value: Mapping[str, object]) -> None:
    """Print one JSON document on stdout, in ASCII: no terminal, locale or file name can break it."""
    sys.stdout.write(json.dumps(value, indent=2).replace("\x7f", "\\u007f") + "\n")
