"""What a person sees."""

import io
import json
import os
import threading

import pytest

from wheelmill._console import Console, deliver, document, escaped, make_console, result
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


def test_the_cause_survives_endless_advice() -> None:
    """However long the advice, the first line is the cause."""
    talk = io.StringIO()
    advice = "\n".join(map(str, range(40)))
    Console(talk=talk, colour=False, quiet=False).failure(WheelmillError("cause\n1\n2", advice=advice))
    assert talk.getvalue().splitlines()[:3] == ["error: cause", "  … 2 more lines in the log", "  next: 0"]


def test_a_failure_without_words_has_a_name() -> None:
    """An error without a message is called by its class."""
    talk = io.StringIO()
    Console(talk=talk, colour=False, quiet=False).failure(WheelmillError(""))
    assert talk.getvalue() == "error: WheelmillError\n"


class Gone(io.StringIO):
    """A terminal that has hung up."""

    def write(self, _text: str) -> int:
        raise OSError(5, "Input/output error")


def test_work_goes_on_where_nobody_listens() -> None:
    """A lost terminal or a closed pipe on stderr is no failure: `ssh host '… | tail'` was cut, the build goes on."""
    console = Console(talk=Gone(), colour=False, quiet=False)
    console.step("build")
    console.note("a detail")
    console.warn("hm")
    console.failure(WheelmillError("cause"))


def test_threads_do_not_mix_their_lines() -> None:
    """Each line is one write."""
    written: list[str] = []

    class Pieces(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    console = Console(talk=Pieces(), colour=False, quiet=False)
    threads = [threading.Thread(target=console.note, args=(f"line {number}",)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(written) == [f"    line {number}\n" for number in range(5)]


def test_what_a_person_sees() -> None:
    """Stages stand out, details are indented, also over several lines."""
    talk = io.StringIO()
    console = Console(talk=talk, colour=False, quiet=False)
    console.step("build")
    console.note("one\ntwo")
    console.warn("mind\x1b[0m")
    assert talk.getvalue() == "==> build\n    one\n    two\n  ! mind\\x1b[0m\n"


@pytest.mark.parametrize(
    ("terminal", "no_colour", "coloured"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_colour_is_for_terminals(terminal: bool, no_colour: bool, coloured: bool) -> None:  # noqa: FBT001 - a table
    """Unless NO_COLOR is set."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    talk = Terminal()
    make_console(quiet=False, no_colour=no_colour, talk=talk).step("x")
    assert ("\033[1;34m" in talk.getvalue()) == coloured


HOSTILE = ("\x1b]0;t\x07", "\x9b31m", "\x7f", "\udcff", "ünï", "a\nb\tc")
"""What terminals, locales or JSON readers stumble over."""


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_results_cannot_drive_a_terminal(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A crafted wheel's member names are shown, not obeyed; JSON is pure ASCII and says the same."""
    result(text)
    shown = capsys.readouterr().out
    shown.encode()
    assert not any(character in shown for character in "\x1b\x07\x9b\x7f")
    document({"text": text})
    said = capsys.readouterr().out
    assert said.isascii()
    assert said.replace("\n", "").isprintable()
    assert json.loads(said) == {"text": text}


def test_a_result_that_nobody_reads_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is there all the same; what the stream holds goes nowhere, so that nothing is raised at exit."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert deliver(lambda: result("read"))
        os.close(reader)
        assert not deliver(lambda: result("not read"))
        assert deliver(lambda: result("not read either"))
