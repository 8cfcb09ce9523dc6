"""What a person sees."""

import io

from wheelmill._console import Console, escaped
from wheelmill.errors import WheelmillError


def test_log_text_cannot_drive_a_terminal() -> None:
    """Control characters of a log are shown, not obeyed."""
    assert escaped("a\033]0;title\007\tb\r\nc") == "a\\x1b]0;title\\x07\tb\\x0d\nc"


def test_a_failure_ends_with_the_next_step_within_25_lines() -> None:
    """Cause first, advice last, the middle cut, also when quiet."""
    talk = io.StringIO()
    console = Console(talk=talk, colour=False, quiet=True)
    console.failure(WheelmillError("\n".join(["the cause", *map(str, range(100))]), advice="do this\nor that"))
    lines = talk.getvalue().splitlines()
    assert len(lines) == 25
    assert lines[0] == "error: the cause"
    assert lines[-3:] == ["  … 79 more lines in the log", "  next: do this", "        or that"]


def test_quiet_says_nothing_else() -> None:
    """With --quiet only failures are told."""
    talk = io.StringIO()
    console = Console(talk=talk, colour=False, quiet=True)
    console.step("build")
    console.warn("hm")
    assert talk.getvalue() == ""
