"""Installing pinned things and nothing else: a clean environment, a hash-locked set, wheels by path and digest."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import parse_wheel_filename

from ._process import Completed, Runner
from ._uv import Uv
from .errors import CommandFailedError, FetchError, VerifyError
from .lock import Lock
from .store import digest_of

IMPORT_PROBE = """
import importlib, json, sys, traceback
said = {}
for name in sys.argv[1:]:
    try:
        module = importlib.import_module(name)
        said[name] = {"file": getattr(module, "__file__", None) or "", "error": ""}
    except BaseException:
        said[name] = {"file": "", "error": traceback.format_exc()}
json.dump(said, sys.__stdout__)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedWheel:
    """A wheel on this machine that is installed only if it has this digest."""

    path: Path
    sha256: str

    @property
    def name(self) -> str:
        """The project's normalised name, from the file name."""
        return str(parse_wheel_filename(self.path.name)[0])

    @property
    def requirement(self) -> str:
        """The line that makes an installer take this file and no other."""
        return f"{self.name} @ {self.path.absolute().as_uri()} --hash=sha256:{self.sha256}\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Installation:
    """What is to be installed where: `lock` first, then `wheels`, then `modules` are imported.

    `find_links`: a folder with all the lock's files; without it they come from uv's own cache.
    """

    interpreter: Path
    venv: Path
    lock: Lock
    wheels: tuple[PinnedWheel, ...]
    modules: tuple[str, ...] = ()
    find_links: Path | None = None

    @property
    def python(self) -> Path:
        """The interpreter inside."""
        return self.venv / "bin" / "python"


@dataclass(frozen=True, kw_only=True, slots=True)
class InstallProof:
    """What an installation showed: every distribution with its version, every module with its file."""

    venv: Path
    wheels: tuple[PinnedWheel, ...]
    distributions: Mapping[str, str]
    modules: Mapping[str, str]
    talk: str


def offline_install(installation: Installation, *, uv: Uv) -> InstallProof:
    """Install without a network, check that the set agrees, and import what should be importable.

    Raises FetchError where the lock's files are not on this machine, VerifyError where a wheel is not the pinned
    one, the set does not agree or a module does not import.
    """
    for wheel in installation.wheels:
        check_digest(wheel)
    uv.run("venv", "--clear", "--no-project", "--python", installation.interpreter, installation.venv)
    install_locked(installation, uv)
    install_wheels(installation, uv)
    check_agreement(installation, uv)
    modules, talk = import_modules(installation, uv.runner)
    return InstallProof(
        venv=installation.venv,
        wheels=installation.wheels,
        distributions=distributions(installation, uv),
        modules=modules,
        talk=talk,
    )


def check_digest(wheel: PinnedWheel) -> None:
    """Refuse a wheel that is not the pinned one."""
    actual = digest_of(wheel.path)
    if actual != wheel.sha256:
        raise VerifyError(
            f"{wheel.path} is not the pinned wheel\n  expected {wheel.sha256}\n  actual   {actual}",
            advice="Build or download it again.",
        )


def install_locked(installation: Installation, uv: Uv) -> None:
    """Install the lock, every file by hash, none built."""
    lock = installation.lock
    if not lock.pins:
        return
    # any index may have the file: its digest is what says that it is the right one
    where: tuple[str | Path, ...] = ("--index-strategy", "unsafe-best-match")
    if installation.find_links:
        where = ("--no-index", "--find-links", installation.find_links)
    with requirements_file(lock.text) as path:
        try:
            uv.run(*pip_install(installation), "--no-build", *where, "-r", path)
        except CommandFailedError as error:
            raise FetchError(
                f"cannot install {lock.file} without a network:\n" + "\n".join(f"  {line}" for line in error.tail),
                advice="Run `wheelmill fetch` with a network, then try again.",
            ) from error


def install_wheels(installation: Installation, uv: Uv) -> None:
    """Install the wheels by path and digest."""
    if not installation.wheels:
        return
    with requirements_file("".join(wheel.requirement for wheel in installation.wheels)) as path:
        try:
            # no cache: it is keyed by path and time, and a wheel can change under both
            uv.run(*pip_install(installation), "--no-cache", "--no-index", "-r", path)
        except CommandFailedError as error:
            names = ", ".join(wheel.path.name for wheel in installation.wheels)
            raise VerifyError(
                f"cannot install {names}:\n" + "\n".join(f"  {line}" for line in error.tail),
                advice="Compare the wheel's tags with the interpreter: `wheelmill inspect WHEEL`.",
            ) from error


def pip_install(installation: Installation) -> tuple[str | Path, ...]:
    """Give the arguments that both installs share."""
    return ("pip", "install", "--offline", "--no-deps", "--require-hashes", "--python", installation.python)


@contextmanager
def requirements_file(text: str) -> Iterator[Path]:
    """Write requirements where a tool can read them."""
    with tempfile.TemporaryDirectory(prefix="wheelmill-") as folder:
        path = Path(folder) / "requirements.txt"
        path.write_text(text, "utf-8")
        yield path


def check_agreement(installation: Installation, uv: Uv) -> None:
    """Refuse a set whose members' own requirements are not met."""
    done = uv.run("pip", "check", "--python", installation.python, check=False)
    if done.returncode:
        said = "\n".join(f"  {line}" for line in (done.stderr or done.stdout).strip().splitlines())
        raise VerifyError(
            f"the installed set does not agree:\n{said}",
            advice="Add what is missing to `run-requires` of the stack, then `wheelmill lock STACK`.",
        )


def distributions(installation: Installation, uv: Uv) -> dict[str, str]:
    """List what is installed."""
    done = uv.run("pip", "list", "--format", "json", "--python", installation.python)
    return {entry["name"]: entry["version"] for entry in json.loads(done.stdout)}


def import_modules(installation: Installation, runner: Runner) -> tuple[dict[str, str], str]:
    """Import each module in one fresh process with a cleared environment, torch before all others.

    torch first: extensions have no path to its libraries of their own, its import loads them.
    """
    names = list(dict.fromkeys((*(["torch"] if "torch" in installation.lock.pins else []), *installation.modules)))
    if not names:
        return {}, ""
    with tempfile.TemporaryDirectory(prefix="wheelmill-") as home:
        env = {"PATH": "/usr/bin:/bin", "HOME": home, "LC_ALL": "C.UTF-8", "TMPDIR": home}
        argv = [str(installation.python), "-I", "-B", "-c", IMPORT_PROBE, *names]
        done = runner.run(argv, env=env, cwd=Path(home), check=False)
    return read_imports(done, names, installation.venv), done.stderr


def read_imports(done: Completed, names: Sequence[str], venv: Path) -> dict[str, str]:
    """Read what the probe said; VerifyError for the first module that did not import, or came from elsewhere."""
    try:
        said = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        tail = "\n".join(f"  {line}" for line in done.stderr.splitlines()[-10:])
        raise VerifyError(
            f"importing {', '.join(names)} ended the interpreter (status {done.returncode}):\n{tail}",
            advice="Run the import by hand in " + str(venv) + ".",
        ) from None
    for name in names:
        if said[name]["error"]:
            *trace, cause = said[name]["error"].strip().splitlines()
            lines = "\n".join(f"  {line}" for line in trace[-6:])
            raise VerifyError(
                f"cannot import {name}: {cause}\n{lines}",
                advice=f"Try `{venv}/bin/python -I -c 'import torch, {name}'`.",
            )
        file = said[name]["file"]
        if file and venv.resolve() not in Path(file).resolve().parents:
            raise VerifyError(f"{name} was imported from {file}, which is not inside {venv}")
    return {name: said[name]["file"] for name in names}
