"""Where files come from: the index settings of uv and pip, the places that they name, and how one fails to answer."""

import configparser
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from .errors import FetchError

Progress = Callable[[str, int, int | None], None]
"""Called with file name, bytes so far, and bytes in all where that is known."""
Settings = Mapping[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexSettings:
    """Where this user's files come from: simple indexes (the default last), folders or pages of links."""

    urls: tuple[str, ...]
    find_links: tuple[str, ...] = ()

    @property
    def shared(self) -> "IndexSettings":
        """Only what other machines can reach too, where there is such: a lock must serve them."""
        remote = tuple(url for url in self.urls if not url.startswith("file:"))
        return IndexSettings(urls=remote) if remote else self

    def uv_environment(self) -> dict[str, str]:
        """Say the same to uv; by environment, since other users can read a command line and its passwords.

        The common default stays unsaid: uv's cache is by the index's exact spelling.
        """
        from pypi_simple import PYPI_SIMPLE_ENDPOINT  # noqa: PLC0415 - 0.5 s of every start

        values = {"UV_FIND_LINKS": ",".join(self.find_links)}
        if self.urls:
            *extra, default = self.urls
            values["UV_DEFAULT_INDEX"] = "" if default == PYPI_SIMPLE_ENDPOINT else default
            values["UV_INDEX"] = " ".join(extra)
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True, kw_only=True, slots=True)
class Http:
    """How patient to be: `tries` counts tries in a row that brought nothing."""

    tries: int = 3
    pause: float = 1.0
    timeout: float = 30.0


PATIENCE = Http()
"""The usual patience."""


class UnreachableError(Exception):
    """A place did not answer, or broke off; the text is fit to be shown."""

    def __init__(self, text: str, *, again: bool) -> None:
        super().__init__(redact(text))
        self.again = again


def index_settings(env: Mapping[str, str], home: Path, *, etc: Path = Path("/etc")) -> IndexSettings:
    """Read the index settings of uv and pip, the nearest first: variables, then files, uv before pip.

    Raises FetchError for a settings file that cannot be read.
    """
    from pypi_simple import PYPI_SIMPLE_ENDPOINT  # noqa: PLC0415 - 0.5 s of every start

    uv, pip = uv_settings(env, home, etc), pip_settings(env, home, etc)
    extra = [
        *words(env.get("UV_INDEX")),
        *words(env.get("UV_EXTRA_INDEX_URL")),
        *texts(uv.get("extra")),
        *words(pip.get("extra-index-url")),
    ]
    defaults = [
        *words(env.get("UV_DEFAULT_INDEX")),
        *words(env.get("UV_INDEX_URL")),
        *texts(uv.get("default")),
        *words(pip.get("index-url")),
        PYPI_SIMPLE_ENDPOINT,
    ]
    links = [
        *(env.get("UV_FIND_LINKS") or "").replace(",", " ").split(),
        *texts(uv.get("find-links")),
        *words(pip.get("find-links")),
    ]
    no_index = uv.get("no-index") is True or pip.get("no-index", "").lower() in {"1", "true", "yes", "on"}
    urls = [] if no_index else [*(with_login(entry, env) for entry in extra), with_login(defaults[0], env)]
    return IndexSettings(urls=tuple(dict.fromkeys(urls)), find_links=tuple(dict.fromkeys(map(as_location, links))))


def uv_settings(env: Mapping[str, str], home: Path, etc: Path) -> Settings:
    """Read uv's user or system settings file: `default` and `extra` indexes, `find-links`, `no-index`."""
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    candidates = [config / "uv" / "uv.toml", etc / "xdg" / "uv" / "uv.toml", etc / "uv" / "uv.toml"]
    if env.get("UV_CONFIG_FILE"):
        candidates = [Path(env["UV_CONFIG_FILE"])]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None or env.get("UV_NO_CONFIG"):
        return {}
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise FetchError(f"cannot read uv's settings in {path}: {error}") from None
    values = {**values, **values.get("pip", {})}
    named: dict[bool, list[str]] = {True: [], False: []}
    for entry in values.get("index", ()):
        if not entry.get("explicit"):
            spelled = f"{entry['name']}={entry['url']}" if "name" in entry else entry["url"]
            named[bool(entry.get("default"))].append(spelled)
    return {
        "default": [*named[True], *texts(values.get("index-url"))],
        "extra": [*named[False], *texts(values.get("extra-index-url"))],
        "find-links": texts(values.get("find-links")),
        "no-index": values.get("no-index"),
    }


def pip_settings(env: Mapping[str, str], home: Path, etc: Path) -> Mapping[str, str]:
    """Read pip's settings files as pip does: system, user, PIP_CONFIG_FILE, variables; the later wins."""
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    system = [Path(folder) for folder in (env.get("XDG_CONFIG_DIRS") or str(etc / "xdg")).split(os.pathsep)]
    files = [
        *(folder / "pip" / "pip.conf" for folder in reversed(system)),
        etc / "pip.conf",
        home / ".pip" / "pip.conf",
        config / "pip" / "pip.conf",
    ]
    chosen = env.get("PIP_CONFIG_FILE")
    # pip's own rule: the null device there means no settings file at all
    files = [] if chosen == os.devnull else [*files, *([Path(chosen)] if chosen else [])]
    values: dict[str, str] = {}
    for path in files:
        values.update(read_pip_conf(path))
    for name in ("index-url", "extra-index-url", "find-links", "no-index"):
        if given := env.get("PIP_" + name.upper().replace("-", "_")):
            values[name] = given
    return values


def read_pip_conf(path: Path) -> dict[str, str]:
    """Read one pip.conf, sections [global] and [install]; nothing where there is no such file."""
    if not path.is_file():
        return {}
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise FetchError(f"cannot read pip's settings in {path}: {error}") from None
    sections = [section for section in ("global", "install") if parser.has_section(section)]
    return {key.replace("_", "-"): value for section in sections for key, value in parser.items(section)}


def words(value: str | None) -> list[str]:
    """Split a setting that may hold several values."""
    return (value or "").split()


def texts(value: object) -> list[str]:
    """Give the strings of a TOML value that is one string or a list of them."""
    values = value if isinstance(value, list) else [value]
    return [entry for entry in values if isinstance(entry, str)]


def with_login(entry: str, env: Mapping[str, str]) -> str:
    """Turn uv's `name=url` into the URL, with the login that UV_INDEX_<NAME>_USERNAME and …_PASSWORD give."""
    name, equals, url = entry.partition("=")
    if not equals or "/" in name or ":" in name:
        return as_location(entry)
    prefix = "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
    user, secret = env.get(f"{prefix}_USERNAME"), env.get(f"{prefix}_PASSWORD")
    if not user and not secret:
        return as_location(url)
    parts = urlsplit(as_location(url))
    host = parts.netloc.rpartition("@")[2]
    login = ":".join(quote(text, safe="") for text in (user or "", secret or ""))
    return urlunsplit(parts._replace(netloc=f"{login}@{host}"))


def as_location(text: str) -> str:
    """Give a URL for what may be a path."""
    return text if "://" in text else Path(text).expanduser().absolute().as_uri()


def local_path(url: str) -> Path:
    """Give the path of a file URL."""
    return Path(unquote(urlsplit(url).path))


def logins(index: IndexSettings) -> dict[str, tuple[str, str]]:
    """Give the logins in the settings' URLs, by host and port."""
    parts = [urlsplit(url) for url in (*index.urls, *index.find_links)]
    return {
        part.netloc.rpartition("@")[2]: (unquote(part.username), unquote(part.password or ""))
        for part in parts
        if part.username is not None
    }


def redact(text: str) -> str:
    """Take logins and query strings out of every URL in a text."""
    bare = re.sub(r"(?<=://)[^/@\s'\"]*@", "***@", text)
    return re.sub(r"(://[^\s?'\"]*)\?[^\s'\"]*", r"\1?***", bare)
