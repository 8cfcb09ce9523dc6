"""The sandbox of a build: what its programs see, by fixed paths, and nothing else of the machine.

A path of the machine reaches bytes: nvcc hashes the real path of a source file into device symbols, so a link to a
fixed path does not do, and torch's headers put their own paths into error messages. `_sandbox.py` makes the
namespaces; this module decides what is in them. Where the kernel bars them, root's builds run one at a time in real
folders at the fixed paths: the bytes are the same, the network is not cut. Anybody else's run at the machine's own
paths. Less than namespaces is said, and recorded in the wheel.
"""

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from ._process import Runner
from .errors import EnvironmentUnfitError, WheelmillError

ROOT = "/wheelmill"
SOURCE, ENVIRONMENT, TOOLKIT, CUDA = f"{ROOT}/source", f"{ROOT}/env", f"{ROOT}/toolkit", f"{ROOT}/cuda"
PYTHON, SHIMS, OUT, HOME = f"{ROOT}/python", f"{ROOT}/shims", f"{ROOT}/out", f"{ROOT}/home"
TMP, OBJECTS, RUN, CCACHE = f"{ROOT}/tmp", f"{ROOT}/objects", f"{ROOT}/run", f"{ROOT}/ccache"  # noqa: S108 - inside
HOOK, CONTROL = f"{ROOT}/hook.py", f"{ROOT}/control"
USER = 1000
LAUNCHER = Path(__file__).with_name("_sandbox.py")
MARK = "wheelmill sandbox: "
"""How the launcher begins its one line when a sandbox cannot be made."""

TOP_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
SHARED_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
"""What compilers and linkers of the host need of /etc: Debian's `c++` is a link through it."""
ETC = {
    "passwd": f"build:x:{USER}:{USER}:build:{HOME}:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": f"build:x:{USER}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost wheelmill\n::1 localhost wheelmill\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "nameserver 127.0.0.1\noptions attempts:1 timeout:1\n",
}

Kind = Literal["read-only", "writable", "link", "file", "folder", "empty"]
Entry = tuple[Kind, str, str]
"""What a path inside is: kind, path, and the path outside, the link's target or the file's text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """How far builds can be shut in here; `reason` and `advice` say why no further."""

    name: Literal["namespaces", "folder", "none"]
    reason: str = ""
    advice: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A file or folder of the machine and the path by which the build sees it."""

    outside: Path
    inside: str
    writable: bool = False

    def entry(self) -> Entry:
        """Give it as the launcher's configuration has it."""
        return ("writable" if self.writable else "read-only", self.inside, os.path.realpath(self.outside))


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The top of the machine's file system: which of the usual names are links, which are there."""

    links: Mapping[str, str] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    etc: frozenset[str] = frozenset()


def read_layout(root: Path = Path("/")) -> Layout:
    """Look at the top of the file system."""
    tops = [root / name for name in TOP_FOLDERS]
    return Layout(
        links={path.name: str(path.readlink()) for path in tops if path.is_symlink()},
        folders=frozenset(path.name for path in tops if path.is_dir() and not path.is_symlink()),
        etc=frozenset(name for name in SHARED_ETC if (root / "etc" / name).exists()),
    )


def system(layout: Layout, *, compilers: Iterable[Path] = ()) -> tuple[Entry, ...]:
    """Say what of the machine itself a build sees: the system's own programs, libraries and headers.

    /usr/local is not the system's: what somebody has put there would be an undeclared input, as gcc looks there
    first. Only a compiler that lives there, or anywhere else, brings its folder with it.
    """
    roots = sorted({root for path in compilers if (root := own_root(path))})
    entries: list[Entry] = [("read-only", "/usr", "/usr"), ("empty", "/usr/local", "")]
    entries += [("link", f"/{name}", target) for name, target in sorted(layout.links.items())]
    entries += [("read-only", f"/{name}", f"/{name}") for name in sorted(layout.folders)]
    entries += [("read-only", f"/etc/{name}", f"/etc/{name}") for name in sorted(layout.etc)]
    entries += [("file", f"/etc/{name}", text) for name, text in sorted(ETC.items())]
    entries += [("read-only", root, root) for root in roots]
    entries += [("link", "/tmp", TMP.removeprefix("/")), ("link", "/var/tmp", TMP)]  # noqa: S108 - inside
    return tuple(entries)


def own_root(compiler: Path) -> str:
    """Give the folder that a compiler outside the system's own brings with it, else nothing."""
    path = PurePosixPath(compiler)
    ours = path.is_relative_to("/usr") and not path.is_relative_to("/usr/local")
    return "" if ours or str(path.parent) in {"/bin", "/sbin"} else str(path.parent.parent)


# the build -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Sandbox:
    """How the programs of one build are started, and which paths they know.

    `python` runs the launcher, `folder` holds its configuration and journal. With no namespaces every path is the
    machine's own, and a command runs as it is.
    """

    rung: Rung
    python: Path
    folder: Path
    system: tuple[Entry, ...] = ()
    shares: tuple[Share, ...] = ()

    @property
    def shut(self) -> bool:
        """Say whether the build knows fixed paths instead of the machine's."""
        return self.rung.name != "none"

    @property
    def journal(self) -> Path:
        """Where the launcher writes what the build tried."""
        return self.folder / "sandbox.jsonl"

    def see(self, path: Path) -> Path:
        """Give a path as the build sees it: by the innermost share that holds it, else as it is."""
        return Path(seen(str(path), self.shares)) if self.shut else path

    def enclose(self, argv: Sequence[str], *, cwd: Path, more: Sequence[Share] = ()) -> list[str]:
        """Give the command that runs `argv` inside; its words are translated, the rest of its input is not."""
        if not self.shut:
            return list(argv)
        shares = (*self.shares, *more)
        if self.rung.name == "folder":
            for share in shares:
                link_in(share)
            words = [seen(word, shares) for word in argv]
            return ["/bin/sh", "-c", 'umask 022 && cd "$0" && exec "$@"', seen(str(cwd), shares), *words]
        config = configuration(
            (*self.system, *(share.entry() for share in shares)), cwd=seen(str(cwd), shares), journal=self.journal
        )
        path = self.folder / "sandbox.json"
        path.write_text(json.dumps(config, indent=1) + "\n", "utf-8")
        return [*launcher(self.python), str(path), "--", *(seen(word, shares) for word in argv)]


def seen(text: str, shares: Iterable[Share]) -> str:
    """Translate a path, or leave another text as it is."""
    holding = [share for share in shares if text == str(share.outside) or text.startswith(f"{share.outside}/")]
    if not holding:
        return text
    share = max(holding, key=lambda each: len(str(each.outside)))
    return share.inside + text[len(str(share.outside)) :]


def configuration(entries: Iterable[Entry], *, cwd: str, journal: Path | None) -> dict[str, object]:
    """Give the launcher's configuration."""
    return {
        "hostname": "wheelmill",
        "uid": USER,
        "gid": USER,
        "cwd": cwd,
        "journal": None if journal is None else str(journal),
        "entries": [list(entry) for entry in entries],
    }


def launcher(python: Path) -> list[str]:
    """Give the start of the launcher's command."""
    return [str(python), "-S", "-I", str(LAUNCHER)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What a build tried: to find a name on the network, to reach an address there, or to leave a process behind."""

    kind: Literal["name", "address", "left"]
    program: str
    subject: str


def attempts(journal: Path, offset: int = 0) -> tuple[Attempt, ...]:
    """Read the journal from an offset on."""
    if not journal.is_file():
        return ()
    with journal.open("rb") as stream:
        stream.seek(offset)
        lines = stream.read().decode("utf-8", "replace").splitlines()
    return tuple(Attempt(**json.loads(line)) for line in lines)


# real folders ----------------------------------------------------------------------------------------

COPIED = (ENVIRONMENT, PYTHON, CUDA)
"""What compilers may resolve to its real path, so that a link does not do."""
OWNED = ".wheelmill"
"""Marks the folder as ours, and says where the source tree in it belongs."""


def second_rung(rung: Rung, *, uid: int, folder: Path = Path(ROOT)) -> Rung:
    """Take real folders at the fixed paths where namespaces are barred and root asks; else what there is."""
    if rung.name != "none" or uid != 0:
        return rung
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if any(folder.iterdir()) and not (folder / OWNED).is_file():
            return rung  # somebody else's
        (folder / OWNED).touch()
    except OSError:
        return rung
    return replace(rung, name="folder")


@contextmanager
def laid_out(box: Sandbox, *, folder: Path = Path(ROOT)) -> Iterator[None]:
    """Put everything at its fixed path while the block lasts, one build at a time on this machine."""
    if box.rung.name != "folder":
        yield
        return
    with (folder / OWNED).open("a+", encoding="utf-8") as owned:
        fcntl.flock(owned, fcntl.LOCK_EX)  # the kernel frees it with us
        tidy(folder)  # after a start that was killed
        try:
            for share in sorted(box.shares, key=lambda each: each.inside):
                lay(share, folder)
            yield
        finally:
            tidy(folder)


def lay(share: Share, folder: Path) -> None:
    """Put one share in its place: the source moves there, what compilers resolve is linked file by file."""
    target = folder / PurePosixPath(share.inside).relative_to(ROOT)
    if share.inside == SOURCE:
        (folder / OWNED).write_text(str(share.outside), "utf-8")
        shutil.move(share.outside, target)
        share.outside.symlink_to(target)
    elif share.inside.startswith(COPIED) and str(share.outside) != "/usr":
        remove(target)
        if share.outside.is_dir():
            shutil.copytree(share.outside, target, symlinks=True, copy_function=link_or_copy)
        else:
            shutil.copy2(share.outside, target)
    else:
        link_in(share, folder)


def link_in(share: Share, folder: Path = Path(ROOT)) -> None:
    """Link a share to its place, unless something stands there for it already."""
    target = folder / PurePosixPath(share.inside).relative_to(ROOT)
    if target.is_symlink() and target.readlink() != share.outside:
        target.unlink()
    if not os.path.lexists(target):
        target.symlink_to(share.outside)


def link_or_copy(source: str, target: str) -> None:
    """Give a file a second name; another file system needs a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def tidy(folder: Path) -> None:
    """Move the source tree back to where it belongs, and empty the folder."""
    home, source = (folder / OWNED).read_text("utf-8"), folder / PurePosixPath(SOURCE).name
    if home and source.is_dir() and not source.is_symlink():
        remove(Path(home))
        shutil.move(source, home)
    (folder / OWNED).write_text("", "utf-8")
    for path in folder.iterdir():
        if path.name != OWNED:
            remove(path)


def remove(path: Path) -> None:
    """Remove whatever stands at a path; of a link the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# the interpreter and the environment -----------------------------------------------------------------


def interpreter_shares(interpreter: Path, folder: Path, runner: Runner, *, patchelf: Path) -> tuple[Share, ...]:
    """Show an interpreter's installation at a fixed path, in whatever home it lies.

    A Python that was compiled in its place (pyenv's) says its own path in two more ways: sysconfig's file, and its
    program's run path, by which it finds its shared library. Both are made anew in `folder`.
    """
    prefix = interpreter.parent.parent
    shares = [Share(outside=prefix, inside=PYTHON)]
    if str(prefix) == "/usr":
        return tuple(shares)
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(prefix.glob("lib/python3.*/_sysconfigdata_*.py")):
        text = path.read_text("utf-8")
        built = re.search(r"'prefix': '([^']+)'", text)
        if built and built[1] not in {"/", "/usr"}:
            (folder / path.name).write_text(moved(text, built[1], PYTHON), "utf-8")
            shares.append(Share(outside=folder / path.name, inside=f"{PYTHON}/{path.relative_to(prefix)}"))
    if any(prefix.glob("lib/libpython3.*.so*")):
        program = folder / interpreter.name
        program.unlink(missing_ok=True)
        shutil.copy2(interpreter, program)
        program.chmod(0o755)
        runner.run([str(patchelf), "--set-rpath", f"{PYTHON}/lib", str(program)], env={"PATH": "/usr/bin:/bin"})
        shares.append(Share(outside=program, inside=f"{PYTHON}/bin/{interpreter.name}"))
    return tuple(shares)


def moved(text: str, old: str, new: str) -> str:
    """Replace a folder in a text, and none whose name only begins like it."""
    return re.sub(re.escape(old) + r"(?![\w.-])", lambda _: new, text)


def environment_shares(root: Path, interpreter: Path, folder: Path) -> tuple[Share, ...]:
    """Show a virtual environment at a fixed path: its programs name the environment, its settings the interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    for path in sorted((root / "bin").iterdir()):
        place_program(path, folder / "bin" / path.name, root=root, interpreter=interpreter)
    settings = (root / "pyvenv.cfg").read_text("utf-8")
    (folder / "pyvenv.cfg").write_text(re.sub(r"(?m)^home = .*$", f"home = {PYTHON}/bin", settings), "utf-8")
    return (
        Share(outside=root, inside=ENVIRONMENT),
        Share(outside=folder / "bin", inside=f"{ENVIRONMENT}/bin"),
        Share(outside=folder / "pyvenv.cfg", inside=f"{ENVIRONMENT}/pyvenv.cfg"),
    )


def place_program(path: Path, target: Path, *, root: Path, interpreter: Path) -> None:
    """Copy one program of an environment, with the paths in it as they are inside."""
    if path.is_symlink():
        link = path.readlink()
        target.symlink_to(f"{PYTHON}/bin/{interpreter.name}" if link.is_absolute() else link)
        return
    content = path.read_bytes()
    if content.startswith(b"\x7fELF"):
        shutil.copy2(path, target)
        return
    target.write_bytes(content.replace(str(root).encode(), ENVIRONMENT.encode()))
    target.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


# what the kernel allows ------------------------------------------------------------------------------

SYSCTLS = (
    "kernel/unprivileged_userns_clone",
    "kernel/apparmor_restrict_unprivileged_userns",
    "user/max_user_namespaces",
)
NO_NAMESPACES = "Where this is a container, start it with `--security-opt seccomp=unconfined --security-opt \
systempaths=unconfined`, or build outside of it."


def probe(runner: Runner, python: Path, *, root: Path = Path("/")) -> Rung:
    """Find out how far a build can be shut in, by shutting a trifle in."""
    with tempfile.TemporaryDirectory(prefix="wheelmill-") as scratch:
        folder = Path(scratch)
        shares = (Share(outside=folder, inside=TMP, writable=True),)
        trial = Sandbox(
            rung=Rung(name="namespaces"), python=python, folder=folder, system=system(read_layout(root)), shares=shares
        )
        argv = trial.enclose(["/bin/sh", "-c", f"test $$ = 2 && : > {TMP}/written"], cwd=folder)
        done = runner.run(argv, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}, check=False)
        written = (folder / "written").exists()
    if done.returncode == 0 and written:
        return Rung(name="namespaces")
    said = [line for line in done.stderr.splitlines() if line.strip()]
    reason = said[-1].removeprefix(MARK) if said else f"the trial ended with status {done.returncode}"
    return Rung(name="none", reason=reason, advice=advice(read_sysctls(root)))


def read_sysctls(root: Path) -> dict[str, str]:
    """Read the switches by which systems bar namespaces; those that a kernel has not are left out."""
    found = {}
    for name in SYSCTLS:
        try:
            found[name.replace("/", ".")] = (root / "proc/sys" / name).read_text("utf-8").strip()
        except OSError:
            continue
    return found


def advice(sysctls: Mapping[str, str]) -> str:
    """Say how namespaces can be had."""
    if sysctls.get("kernel.unprivileged_userns_clone") == "0":
        return "Allow them: `sudo sysctl kernel.unprivileged_userns_clone=1`."
    if sysctls.get("user.max_user_namespaces") == "0":
        return "Allow them: `sudo sysctl user.max_user_namespaces=15000`."
    if sysctls.get("kernel.apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor bars them: `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or a profile with "
            "`userns,` for this Python."
        )
    return NO_NAMESPACES


def unmakable(lines: Iterable[str]) -> WheelmillError | None:
    """Give the failure where the launcher said that it could not make the sandbox."""
    said = next((line for line in lines if line.startswith(MARK)), "")
    if not said:
        return None
    return EnvironmentUnfitError(
        f"the sandbox of the build cannot be made: {said.removeprefix(MARK)}",
        advice="Run `wheelmill doctor`; the cache must lie in a folder that this user can enter.",
    )
