"""uv as we call it: hash-checked installs from a lock, its failures turned into ours."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import uv

from ._process import Runner
from .errors import (
    CommandFailedError,
    EnvironmentUnfitError,
    FetchError,
    HashMismatchError,
    ResourcesError,
    WheelmillError,
)
from .lock import Lock

WHAT_NOT_WHERE = (
    "UV_BUILD_CONSTRAINT",
    "UV_COMPILE_BYTECODE",
    "UV_CONSTRAINT",
    "UV_EXCLUDE_NEWER",
    "UV_FORK_STRATEGY",
    "UV_NO_BINARY",
    "UV_NO_BINARY_PACKAGE",
    "UV_OFFLINE",
    "UV_OVERRIDE",
    "UV_PRERELEASE",
    "UV_PROJECT",
    "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON",
    "UV_RESOLUTION",
    "UV_SYSTEM_PYTHON",
    "UV_TARGET",
    "UV_TORCH_BACKEND",
    "UV_WORKING_DIRECTORY",
)
"""uv's variables that say what is installed. The lock says that; the user's settings say where files come from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Uv:
    """uv with everything that its calls share.

    `env`: the user's environment, as index settings, credentials and certificates live there. `on_line` sees every
    line of progress.
    """

    runner: Runner
    env: Mapping[str, str]
    offline: bool = False
    on_line: Callable[[str], None] | None = None

    def environment(self) -> dict[str, str]:
        """Give the user's environment without what would change the outcome."""
        dropped = ("VIRTUAL_ENV", "CONDA_PREFIX", *WHAT_NOT_WHERE)
        kept = {name: value for name, value in self.env.items() if name not in dropped}
        return kept | {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}

    def install(self, lock: Lock, *, file: Path, into: Sequence[str], log: Path) -> None:
        """Install exactly what a lock pins, wheels only: an sdist would run code that no lock pins.

        `file` gets the lock's text; `into` is `--python …` or `--target …`. Raises HashMismatchError, FetchError
        or ResourcesError.
        """
        file.write_text(lock.text, encoding="utf-8")
        options = ("--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-python-downloads")
        argv = (str(uv_binary()), "pip", "install", *into, *options, "-r", str(file))
        self.stream((*argv, "--offline") if self.offline else argv, lock=lock, log=log)

    def venv(self, root: Path, *, python: Path, lock: Lock, log: Path) -> None:
        """Make an empty virtual environment of exactly this interpreter."""
        options = ("--python", str(python), "--no-python-downloads", "--no-project", "--no-config")
        self.stream((str(uv_binary()), "venv", *options, str(root)), lock=lock, log=log)

    def stream(self, argv: Sequence[str], *, lock: Lock, log: Path) -> None:
        """Run uv and hand its lines on."""
        lines: list[str] = []

        def heard(line: str) -> None:
            lines.append(line)
            if self.on_line is not None:
                self.on_line(line)

        try:
            self.runner.stream(argv, env=self.environment(), log=log, on_line=heard)
        except CommandFailedError as error:
            raise ours("\n".join(lines), error, lock=lock, offline=self.offline, log=log) from error


def uv_binary() -> Path:
    """Find the uv that was installed with us."""
    try:
        return Path(uv.find_uv_bin())
    except FileNotFoundError as error:
        raise EnvironmentUnfitError(
            f"uv is missing from wheelmill's own environment: {error}",
            advice="Install wheelmill again: `uv pip install --reinstall uv wheelmill`.",
        ) from error


MISMATCH = re.compile(
    r"[Hh]ash mismatch for `(?P<subject>[^`]+)`.*?Expected:\s*sha256:(?P<expected>[0-9a-f]{64})"
    r".*?Computed:\s*sha256:(?P<actual>[0-9a-f]{64})",
    re.DOTALL,
)
NOT_CACHED = (
    re.compile(r"Failed to (?:download|fetch|read metadata for)[: ]*`(?P<subject>[^`]+)`"),
    re.compile(r"was not found in the cache and you require (?P<subject>[^\s,]+)"),
    re.compile(r"Because (?P<subject>\S+) was not found in the cache"),
)


def ours(said: str, error: CommandFailedError, *, lock: Lock, offline: bool, log: Path) -> WheelmillError:
    """Turn what uv said into the error that it means."""
    flat = re.sub(r"\s+", " ", said)
    if match := MISMATCH.search(flat):
        return HashMismatchError(match["subject"], expected=match["expected"], actual=match["actual"], place=lock.file)
    if "No space left on device" in said:
        return ResourcesError(
            f"the disk is full: {lock.file} could not be installed\n  log: {log}",
            advice="Free space (`wheelmill gc`), or put the cache elsewhere: `--cache DIR`.",
        )
    if offline:
        subject = next((found["subject"] for form in NOT_CACHED if (found := form.search(flat))), "")
        what = f"{subject} is" if subject else "a pinned file is"
        return FetchError(
            f"{what} not in the cache, and --offline forbids to get it (pinned in {lock.file})\n  log: {log}",
            advice="Run `wheelmill fetch` once while the network is there.",
        )
    tail = [f"  | {line}" for line in said.splitlines() if line.strip()][-8:]
    return FetchError(
        "\n".join((f"uv could not install {lock.file} (status {error.returncode})", *tail, f"  log: {log}")),
        advice="Check the package index that pip and uv are set to (UV_DEFAULT_INDEX, uv.toml), then run again.",
    )
