"""What a person sees: talk on stderr, results on stdout, nothing that a log could use to take over a terminal."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TextIO

from .errors import WheelmillError

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
REPORT_LINES = 25


def escaped(text: str) -> str:
    """Show control characters instead of obeying them; tabs and newlines stay."""
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
            print(text, file=self.talk, flush=True)

    def failure(self, error: WheelmillError) -> None:
        """Print the report of a failure: the last thing said, cause first, at most 25 lines, also when quiet."""
        cause, *rest = escaped(str(error)).splitlines() or [type(error).__name__]
        lines = [self.paint("1;31", "error: ") + cause, *rest]
        advice = [f"  next: {line}" if number == 0 else f"        {line}"
                  for number, line in enumerate(escaped(error.advice).splitlines())]  # fmt: skip
        room = REPORT_LINES - len(advice)
        if len(lines) > room:
            lines = [*lines[: room - 1], f"  … {len(lines) - room + 1} more lines in the log"]
        print("\n".join([*lines, *advice]), file=self.talk, flush=True)

    def paint(self, code: str, text: str) -> str:
        """Colour a word on a terminal."""
        return f"\033[{code}m{text}\033[0m" if self.colour else text


def make_console(*, quiet: bool, no_colour: bool, talk: TextIO | None = None) -> Console:
    """Make the console of this process."""
    stream = talk or sys.stderr
    return Console(talk=stream, colour=stream.isatty() and not no_colour, quiet=quiet)


def result(text: str, write: Callable[[str], object] | None = None) -> None:
    """Print a result on stdout."""
    (write or sys.stdout.write)(text + "\n")
