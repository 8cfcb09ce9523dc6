"""`python -m wheelmill`: the only place that exits, and that turns signals into a report."""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Never


def stop(number: int, _frame: FrameType | None) -> Never:
    """Turn SIGTERM into the same orderly end as Ctrl-C: no `except Exception` on the way can swallow it."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def main() -> Never:
    """Run the command line and exit with its status."""
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a lost terminal stops no build; its compilers outlived us before
    try:
        status = run(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        with suppress(OSError):  # a terminal that is gone
            print("error: interrupted", file=sys.stderr)  # noqa: T201 - the console may be what was interrupted
        status = 130
    except BrokenPipeError:
        # Whoever read our stdout has gone; Python would complain again while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


def run(words: list[str]) -> int:
    """Run a command; the parser's own exits (--help, a bad option) become a status."""
    from .options import Options, make_parser  # noqa: PLC0415 - Ctrl-C during the imports is an interruption, too

    try:
        make_parser().parse_args(words, Options())  # --help and mistyped options end here, before the rest is loaded
        from .cli import main as command_line  # noqa: PLC0415

        return command_line(words)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0


if __name__ == "__main__":
    main()
