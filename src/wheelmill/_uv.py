"""uv as we call it: hash-checked installs from a lock, its failures turned into ours."""

import base64
import csv
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import uv

from ._process import Completed, Runner
from .errors import (
    CommandFailedError,
    EnvironmentUnfitError,
    FetchError,
    HashMismatchError,
    ResourcesError,
    WheelmillError,
)
from .lock import Lock
from .places import IndexSettings

PASSED = frozenset(
    {
        *("PATH", "HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "NETRC"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_CLIENT_CERT", "UV_INSECURE_HOST", "UV_KEYRING_PROVIDER"),
        *("UV_CACHE_DIR", "UV_LINK_MODE", "UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES", "UV_CONCURRENT_DOWNLOADS"),
    }
)
"""What uv may know of the user's environment: ways to files, never choices of versions (UV_PRERELEASE …)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Uv:
    """uv with everything that its calls share.

    `env`: the user's environment. `index`: where this user's files come from. `on_line` sees every line of progress.
    """

    runner: Runner
    env: Mapping[str, str]
    index: IndexSettings
    offline: bool = False
    on_line: Callable[[str], None] | None = None

    def environment(self) -> dict[str, str]:
        """Give the user's index settings, certificates and caches, and nothing that would change the outcome."""
        env = self.env
        kept = {name: env[name] for name in env if name in PASSED or name.upper().endswith("_PROXY")}
        fixed = {"UV_NO_CONFIG": "1", "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1"}
        return {**kept, **self.index.uv_environment(), **fixed, "NO_COLOR": "1"}

    def run(self, *arguments: str | Path, cwd: Path | None = None, check: bool = True) -> Completed:
        """Run uv and capture what it says; CommandFailedError with its last lines."""
        argv = [str(uv_binary()), *map(str, arguments)]
        return self.runner.run(argv, env=self.environment(), cwd=cwd, check=check)

    def install(self, lock: Lock, *, file: Path, into: Sequence[str], site: Path, log: Path) -> None:
        """Install exactly what a lock pins, wheels only: an sdist would run code that no lock pins.

        `file` gets the lock's text; `into` is `--python …` or `--target …`, and `site` the folder of packages that
        this means. Raises HashMismatchError, FetchError or ResourcesError.
        """
        file.write_text(lock.text, encoding="utf-8")
        options = ("--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-python-downloads")
        # As pip does: a project may be on several indexes. The digests decide, so no index can slip a file in.
        strategy = ("--index-strategy", "unsafe-best-match")
        argv = (str(uv_binary()), "pip", "install", *into, *options, *strategy, "-r", str(file))
        self.stream((*argv, "--offline") if self.offline else argv, lock=lock, log=log)
        check_records(site)

    def venv(self, root: Path, *, python: Path, lock: Lock, log: Path) -> None:
        """Make an empty virtual environment of exactly this interpreter."""
        options = ("--python", str(python), "--no-python-downloads", "--no-project", "--clear")
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


def check_records(site: Path) -> None:
    """Hold every installed file against its wheel's RECORD; HashMismatchError for the first that differs.

    uv checks a wheel's digest when it downloads it, and after that trusts the unpacked files in its cache. These
    are hard links into every environment, so that one stray write there reaches all of them [tried]. Reading torch
    and CUDA whole takes 12 CPU seconds, once per environment.
    """
    rows = [(record.parent.name, row) for record in sorted(site.glob("*.dist-info/RECORD")) for row in rows_of(record)]
    with ThreadPoolExecutor() as pool:
        for (owner, row), actual in zip(rows, pool.map(lambda entry: digest_of_row(site, entry[1]), rows), strict=True):
            if actual != row[1]:
                name, version = owner.removesuffix(".dist-info").split("-", 1)
                error = HashMismatchError(f"{row[0]} of {name} {version}", expected=row[1], actual=actual)
                error.advice = (
                    f"uv's cache holds a changed file: run `uv cache clean {name.replace('_', '-')}`, then again."
                )
                raise error


def rows_of(record: Path) -> list[list[str]]:
    """Read the rows of a RECORD that have a digest."""
    with record.open(encoding="utf-8", newline="") as stream:
        return [row for row in csv.reader(stream) if len(row) > 1 and row[1]]


def digest_of_row(site: Path, row: Sequence[str]) -> str:
    """Give a file's digest as RECORD writes it."""
    algorithm = row[1].partition("=")[0]
    try:
        with (site / row[0]).open("rb") as stream:
            found = hashlib.file_digest(stream, algorithm).digest()
    except OSError as error:
        return (error.strerror or "unreadable").lower()
    return f"{algorithm}={base64.urlsafe_b64encode(found).rstrip(b'=').decode()}"


MISMATCH = re.compile(
    r"[Hh]ash mismatch for `(?P<subject>[^`]+)`.*?Expected:\s*sha256:(?P<expected>[0-9a-f]{64})"
    r".*?Computed:\s*sha256:(?P<actual>[0-9a-f]{64})",
    re.DOTALL,
)
NOT_CACHED = (
    re.compile(r"Failed to (?:download|fetch|read metadata for)[: ]*`(?P<subject>[^`]+)`"),
    re.compile(r"and you require (?P<subject>[^\s,]+==[^\s,]+)"),
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
