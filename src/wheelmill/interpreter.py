"""The CPython that a stack is for: looked for in every usual place, and asked what it is."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ._process import Completed, Runner
from .errors import EnvironmentUnfitError

PROBE = """\
import hashlib, json, os, platform, sys, sysconfig
include = sysconfig.get_path("include")
flags = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
names = ("CC", "CXX", "CFLAGS", "OPT", "CCSHARED", "LDSHARED", "LDCXXSHARED", "LDFLAGS", "SOABI", "EXT_SUFFIX")
said = json.dumps([[name, sysconfig.get_config_var(name)] for name in names])
for folder, word in ((sysconfig.get_config_var("prefix"), "{prefix}"), (os.path.expanduser("~"), "{home}")):
    said = said.replace(str(folder) + "/", word + "/") if len(str(folder)) > 1 else said
print(json.dumps({
    "path": os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable),
    "version": platform.python_version(),
    "release": "%d.%d" % sys.version_info[:2],
    "implementation": sys.implementation.name,
    "abi": "cp%d%d%s" % (sys.version_info[0], sys.version_info[1], flags),
    "platform": sysconfig.get_platform(),
    "include_dir": include,
    "has_headers": os.path.isfile(os.path.join(include, "Python.h")),
    "flags": hashlib.sha256(said.encode()).hexdigest(),
}))
"""
"""Runs on any Python 3, so that a wrong one can say what it is. `_base_executable` leads out of a venv."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """An interpreter that was run and asked; `path` is the real file, never a shim, link or venv."""

    path: Path
    version: str
    implementation: str
    abi: str
    platform: str
    include_dir: Path
    has_headers: bool
    flags: str = ""
    """Digest of the compiler flags that it gives to every extension, wherever it lies."""

    @property
    def release(self) -> str:
        """The `major.minor` of it."""
        return ".".join(self.version.split(".")[:2])


@dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    """A place where an interpreter was looked for, and what was found instead of a fitting one."""

    path: Path
    found: str


def find_interpreter(
    release: str, *, given: Path | str | None, env: Mapping[str, str], runner: Runner, root: Path = Path("/")
) -> Interpreter:
    """Find a CPython of this `major.minor` that can compile extensions.

    A given one (`--python`) must fit; a bare `3.12` or `python3.12` only repeats what the stack says.
    Raises EnvironmentUnfitError, which says what was looked for, where, what was found and the ways on.
    """
    if given and str(given) not in {release, f"python{release}"}:
        return given_interpreter(release, str(given), env=env, runner=runner)
    looked: list[Looked] = []
    headless: list[Interpreter] = []
    for candidate in candidates(release, env, root):
        asked = ask(candidate, env=env, runner=runner)
        if isinstance(asked, Looked):
            looked.append(asked)
        elif problem := misfit(release, asked):
            looked.append(Looked(path=candidate, found=problem))
        elif not asked.has_headers:
            headless.append(asked)
        else:
            return asked
    if headless:
        raise no_headers(headless[0])
    raise not_found(release, looked)


def given_interpreter(release: str, given: str, *, env: Mapping[str, str], runner: Runner) -> Interpreter:
    """Take the interpreter that the user names, by path or by a name on PATH."""
    path = Path(given)
    if "/" not in given:
        path = next(on_path(given, env), Path())
        if path == Path():
            raise EnvironmentUnfitError(
                f"--python {given}: no such program on PATH", advice=f"Give the path of a CPython {release}."
            )
    asked = ask(path, env=env, runner=runner)
    if isinstance(asked, Looked):
        raise EnvironmentUnfitError(f"--python {given}: {asked.found}", advice=f"Give the path of a CPython {release}.")
    if problem := misfit(release, asked):
        raise EnvironmentUnfitError(
            f"--python {given}: is {problem}; the stack is for CPython {release}",
            advice=f"Give the path of a CPython {release}, or leave --python out.",
        )
    if not asked.has_headers:
        raise no_headers(asked)
    return asked


def candidates(release: str, env: Mapping[str, str], root: Path = Path("/")) -> Iterator[Path]:
    """Give every existing place of an interpreter of this release once, most wanted first."""
    name = f"python{release}"
    digits = release.replace(".", "")
    home = Path(env.get("HOME") or "/nonexistent")
    pyenv = Path(env.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    data = Path(env.get("XDG_DATA_HOME") or home / ".local/share")
    managed = Path(env.get("UV_PYTHON_INSTALL_DIR") or data / "uv/python")
    places = (
        *on_path(name, env),
        *(folder / "bin" / name for folder in newest_first(pyenv, f"{release}.*")),
        root / f"opt/python/cp{digits}-cp{digits}/bin/{name}",
        *(folder / "bin" / name for folder in newest_first(managed, f"cpython-{release}.*")),
        root / "usr/bin" / name,
        root / "usr/local/bin" / name,
    )
    seen: set[str] = set()
    for place in places:
        real = os.path.realpath(place)
        if real not in seen and place.is_file():
            seen.add(real)
            yield place


def on_path(name: str, env: Mapping[str, str]) -> Iterator[Path]:
    """Give the executables of this name on PATH, in order."""
    for folder in env.get("PATH", "").split(os.pathsep):
        place = Path(folder) / name
        if folder and place.is_file() and os.access(place, os.X_OK):
            yield place


def newest_first(folder: Path, pattern: str) -> list[Path]:
    """List folders whose names end in a version, the newest first (`3.12.10` is newer than `3.12.9`)."""
    return sorted(
        folder.glob(pattern),
        key=lambda path: ([int(number) for number in re.findall(r"\d+", path.name)], path.name),
        reverse=True,
    )


def ask(path: Path, *, env: Mapping[str, str], runner: Runner) -> Interpreter | Looked:
    """Run an interpreter without site and user settings, and let it describe itself.

    A pyenv shim that leads to no version ends with 127: as every other failure, a finding and no error.
    """
    try:
        done = runner.run((str(path), "-I", "-S", "-c", PROBE), env=probe_environment(env), check=False)
    except EnvironmentUnfitError as error:
        return Looked(path=path, found=str(error))
    if done.returncode:
        return Looked(path=path, found=f"does not run: {first_line(done)}")
    try:
        said = json.loads(done.stdout)
        return Interpreter(
            path=Path(said["path"]),
            version=said["version"],
            implementation=said["implementation"],
            abi=said["abi"],
            platform=said["platform"],
            include_dir=Path(said["include_dir"]),
            has_headers=said["has_headers"],
            flags=said["flags"],
        )
    except (ValueError, KeyError, TypeError):
        return Looked(path=path, found="is no Python interpreter")


def probe_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Give what a shim needs to find its interpreter, and nothing that changes what an interpreter is."""
    kept = ("HOME", "PATH", "PYENV_ROOT", "PYENV_VERSION", "LD_LIBRARY_PATH")
    return {name: env[name] for name in kept if name in env} | {"LC_ALL": "C.UTF-8"}


def first_line(done: Completed) -> str:
    """Give the first line of what a failed program said: shims say why there, and advise below."""
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[0].strip()[:160] if lines else f"ended with status {done.returncode}"


def misfit(release: str, asked: Interpreter) -> str:
    """Say what the interpreter is where it is not the wanted one, else nothing."""
    digits = release.replace(".", "")
    if asked.implementation != "cpython":
        return f"{asked.implementation} {asked.version}"
    if asked.release != release:
        return f"CPython {asked.version}"
    if asked.abi != f"cp{digits}":
        return f"CPython {asked.version} with ABI {asked.abi}"
    return ""


def no_headers(asked: Interpreter) -> EnvironmentUnfitError:
    """Make the error for an interpreter without its C headers."""
    header = asked.include_dir / "Python.h"
    return EnvironmentUnfitError(
        f"CPython {asked.version} at {asked.path} has no C headers: {header} is missing",
        advice=f"Install python{asked.release}-dev (apt) or python{asked.release}-devel (dnf), "
        f"or use another one: `uv python install {asked.release}`, `--python PATH`.",
    )


def not_found(release: str, looked: Sequence[Looked]) -> EnvironmentUnfitError:
    """Make the error for no interpreter at all, with everything that was looked at."""
    digits = release.replace(".", "")
    places = f"pyenv's versions, /opt/python/cp{digits}-cp{digits}, uv's interpreters, /usr/bin and /usr/local/bin"
    lines = [
        f"no CPython {release} on this machine",
        f"  looked for python{release} on PATH, in {places}",
        *(f"  found {entry.path}: {entry.found}" for entry in looked),
    ]
    if not looked:
        lines.append("  found nothing of that name")
    return EnvironmentUnfitError(
        "\n".join(lines),
        advice=f"`uv python install {release}`, `apt install python{release}-dev`, "
        f"`dnf install python{release}-devel`, or name one: `--python PATH`.",
    )
