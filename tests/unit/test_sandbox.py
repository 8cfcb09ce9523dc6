"""The sandbox's decisions: what a build sees of a machine, and by which paths."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from wheelmill import _sandbox, sandbox
from wheelmill._process import Completed
from wheelmill.sandbox import (
    Attempt,
    Layout,
    Rung,
    Sandbox,
    Share,
    advice,
    attempts,
    environment_shares,
    interpreter_shares,
    laid_out,
    lay,
    moved,
    own_root,
    probe,
    read_layout,
    second_rung,
    seen,
    system,
    unmakable,
)

MERGED = Layout(links={"bin": "usr/bin", "lib64": "usr/lib64"}, etc=frozenset({"alternatives", "ld.so.cache"}))
SHARES = (
    Share(outside=Path("/cache/env"), inside="/wheelmill/env"),
    Share(outside=Path("/cache/env/bin"), inside="/wheelmill/programs"),
    Share(outside=Path("/cache/source"), inside="/wheelmill/source", writable=True),
)


# paths


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/cache/env", "/wheelmill/env"),
        ("/cache/env/lib/x.py", "/wheelmill/env/lib/x.py"),
        ("/cache/env/bin/python", "/wheelmill/programs/python"),
        ("/cache/environment", "/cache/environment"),
        ("/usr/bin/gcc", "/usr/bin/gcc"),
        ("build_wheel", "build_wheel"),
        ("-I/cache/env", "-I/cache/env"),
    ],
)
def test_a_path_is_seen_by_the_innermost_share(text: str, expected: str) -> None:
    """A name that only begins alike is another; what is no path stays."""
    assert seen(text, SHARES) == expected


def test_without_namespaces_every_path_is_the_machines(tmp_path: Path) -> None:
    """And a command runs as it is."""
    box = Sandbox(rung=Rung(name="none"), python=Path("/python"), folder=tmp_path, shares=SHARES)
    assert box.see(Path("/cache/env")) == Path("/cache/env")
    assert box.enclose(["/cache/env/bin/python", "x"], cwd=Path("/cache/source")) == ["/cache/env/bin/python", "x"]
    assert not list(tmp_path.iterdir())


def test_a_command_inside(tmp_path: Path) -> None:
    """Launcher, configuration, and the words as they are inside; shares in the order in which they are mounted."""
    box = Sandbox(rung=Rung(name="namespaces"), python=Path("/python"), folder=tmp_path, shares=SHARES)
    more = Share(outside=Path("/tmp/x"), inside="/wheelmill/control", writable=True)
    argv = box.enclose(["/cache/env/bin/python", "/tmp/x"], cwd=Path("/cache/source"), more=(more,))
    launcher = str(Path(_sandbox.__file__))
    assert argv == [
        *("/python", "-S", "-I", launcher, str(tmp_path / "sandbox.json")),
        *("--", "/wheelmill/programs/python", "/wheelmill/control"),
    ]
    config = json.loads((tmp_path / "sandbox.json").read_text())
    assert config == {
        "hostname": "wheelmill",
        "uid": 1000,
        "gid": 1000,
        "cwd": "/wheelmill/source",
        "journal": str(tmp_path / "sandbox.jsonl"),
        "entries": [
            ["read-only", "/wheelmill/env", "/cache/env"],
            ["read-only", "/wheelmill/programs", "/cache/env/bin"],
            ["writable", "/wheelmill/source", "/cache/source"],
            ["writable", "/wheelmill/control", "/tmp/x"],
        ],
    }


# the machine's own part


def test_the_system_is_read_only_and_nobodys_additions_are_left_out() -> None:
    """/usr without /usr/local, the usual links, and of /etc what compilers need; the rest of it is written anew."""
    entries = system(MERGED)
    assert entries[:6] == (
        ("read-only", "/usr", "/usr"),
        ("empty", "/usr/local", ""),
        ("link", "/bin", "usr/bin"),
        ("link", "/lib64", "usr/lib64"),
        ("read-only", "/etc/alternatives", "/etc/alternatives"),
        ("read-only", "/etc/ld.so.cache", "/etc/ld.so.cache"),
    )
    assert not [entry for entry in entries if entry[0] == "writable"]
    files = {path for kind, path, _ in entries if kind == "file"}
    assert files == {"/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf"}
    assert entries[-2:] == (("link", "/tmp", "wheelmill/tmp"), ("link", "/var/tmp", "/wheelmill/tmp"))


@pytest.mark.parametrize(
    ("compiler", "root"),
    [
        ("/usr/bin/gcc", ""),
        ("/bin/gcc", ""),
        ("/usr/local/bin/gcc", "/usr/local"),
        ("/opt/rh/gcc-toolset-14/root/usr/bin/g++", "/opt/rh/gcc-toolset-14/root/usr"),
    ],
)
def test_a_compiler_from_elsewhere_brings_its_folder(compiler: str, root: str) -> None:
    """At its own path, after /usr/local was emptied."""
    assert own_root(Path(compiler)) == root
    entries = system(Layout(folders=frozenset({"lib"})), compilers=(Path(compiler),))
    assert ("read-only", "/lib", "/lib") in entries
    assert [entry[1] for entry in entries[2:] if entry[0] == "read-only" and entry[1] != "/lib"] == [root][: bool(root)]


def test_the_top_of_a_file_system_is_read(tmp_path: Path) -> None:
    """Links as links, folders as folders."""
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "lib").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_text("")
    assert read_layout(tmp_path) == Layout(
        links={"bin": "usr/bin"}, folders=frozenset({"lib"}), etc=frozenset({"ld.so.cache"})
    )


# interpreter and environment


class Patching:
    """A runner that remembers what it was to run."""

    argv: tuple[str, ...] = ()

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, check: bool = True
    ) -> Completed:
        assert (env, cwd, check) == ({"PATH": "/usr/bin:/bin"}, None, True)
        self.argv = tuple(argv)
        return Completed(argv=self.argv, returncode=0, stdout="", stderr="", seconds=0)

    def stream(self, *_: object, **__: object) -> Completed:
        raise AssertionError


def test_an_interpreter_compiled_in_its_place_forgets_that_place(tmp_path: Path) -> None:
    """Sysconfig says the path inside, and so does the program's run path, by which it finds its shared library."""
    prefix = tmp_path / "me/.pyenv/versions/3.12.1"
    config = prefix / "lib/python3.12/_sysconfigdata__linux_x86_64-linux-gnu.py"
    config.parent.mkdir(parents=True)
    config.write_text(f"build_time_vars = {{'prefix': '{prefix}', 'A': '-L{prefix}/lib {prefix}0', 'B': '{prefix}'}}")
    (prefix / "lib/libpython3.12.so.1.0").write_bytes(b"")
    (prefix / "bin").mkdir()
    (prefix / "bin/python3.12").write_bytes(b"\x7fELF")
    runner = Patching()
    shares = interpreter_shares(prefix / "bin/python3.12", tmp_path / "box", runner, patchelf=Path("/patchelf"))
    written = tmp_path / "box" / config.name
    assert shares == (
        Share(outside=prefix, inside="/wheelmill/python"),
        Share(outside=written, inside=f"/wheelmill/python/lib/python3.12/{config.name}"),
        Share(outside=tmp_path / "box/python3.12", inside="/wheelmill/python/bin/python3.12"),
    )
    assert runner.argv == ("/patchelf", "--set-rpath", "/wheelmill/python/lib", str(tmp_path / "box/python3.12"))
    assert written.read_text() == (
        "build_time_vars = {'prefix': '/wheelmill/python', "
        f"'A': '-L/wheelmill/python/lib {prefix}0', 'B': '/wheelmill/python'}}"
    )


def test_the_systems_own_interpreter_stays_as_it_is(tmp_path: Path) -> None:
    """Its paths are there inside, too."""
    assert interpreter_shares(Path("/usr/bin/python3.12"), tmp_path, Patching(), patchelf=Path("/patchelf")) == (
        Share(outside=Path("/usr"), inside="/wheelmill/python"),
    )


def test_a_folder_is_moved_in_a_text() -> None:
    """None whose name only begins like it, and no group reference in the new name."""
    assert moved("/a/b:/a/b/c:/a/bc:/a/b.d", "/a/b", r"/n\1") == r"/n\1:/n\1/c:/a/bc:/a/b.d"


def test_an_environment_inside(tmp_path: Path) -> None:
    """Its programs start the interpreter inside; the environment itself is not changed."""
    root, folder = tmp_path / "env", tmp_path / "box"
    (root / "bin").mkdir(parents=True)
    (root / "bin/python").symlink_to("/home/me/3.12/bin/python3.12")
    (root / "bin/python3").symlink_to("python")
    (root / "bin/torchrun").write_text(f"#!{root}/bin/python\nimport torch\n")
    (root / "bin/torchrun").chmod(0o755)
    (root / "bin/ninja").write_bytes(b"\x7fELF" + str(root).encode())
    (root / "pyvenv.cfg").write_text("home = /home/me/3.12/bin\nversion_info = 3.12.1\n")
    shares = environment_shares(root, Path("/home/me/3.12/bin/python3.12"), folder)
    assert [(share.inside, share.writable) for share in shares] == [
        ("/wheelmill/env", False),
        ("/wheelmill/env/bin", False),
        ("/wheelmill/env/pyvenv.cfg", False),
    ]
    programs = shares[1].outside
    assert str((programs / "python").readlink()) == "/wheelmill/python/bin/python3.12"
    assert str((programs / "python3").readlink()) == "python"
    assert (programs / "torchrun").read_text() == "#!/wheelmill/env/bin/python\nimport torch\n"
    assert (programs / "torchrun").stat().st_mode & 0o777 == 0o755
    assert (programs / "ninja").read_bytes() == (root / "bin/ninja").read_bytes()
    assert shares[2].outside.read_text() == "home = /wheelmill/python/bin\nversion_info = 3.12.1\n"
    assert str(root) in (root / "bin/torchrun").read_text()


# what the kernel allows


class Kernel:
    """A runner on a machine that allows namespaces or says why not."""

    def __init__(self, stderr: str = "", *, status: int = 0, writes: bool = True) -> None:
        self.stderr, self.status, self.writes = stderr, status, writes

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, check: bool = True
    ) -> Completed:
        assert env
        assert (cwd, check) == (None, False)
        config = json.loads(Path(argv[argv.index("--") - 1]).read_text())
        [folder] = [source for kind, _, source in config["entries"] if kind == "writable"]
        if self.writes:
            (Path(folder) / "written").write_text("")
        return Completed(argv=tuple(argv), returncode=self.status, stdout="", stderr=self.stderr, seconds=0)

    def stream(self, *_: object, **__: object) -> Completed:
        raise AssertionError


def test_a_trial_decides(tmp_path: Path) -> None:
    """By doing, never by version."""
    assert probe(Kernel(), Path("/python"), root=tmp_path) == Rung(name="namespaces")


def test_a_failed_trial_gives_the_kernels_reason_and_a_way(tmp_path: Path) -> None:
    """What failed, and which switch bars it."""
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/unprivileged_userns_clone").write_text("0\n")
    kernel = Kernel(
        "noise\nwheelmill sandbox: new namespaces: Operation not permitted (errno 1)\n", status=125, writes=False
    )
    assert probe(kernel, Path("/python"), root=tmp_path) == Rung(
        name="none",
        reason="new namespaces: Operation not permitted (errno 1)",
        advice="Allow them: `sudo sysctl kernel.unprivileged_userns_clone=1`.",
    )


def test_a_trial_that_says_nothing(tmp_path: Path) -> None:
    """Success without the file that was to be written is none."""
    found = probe(Kernel(writes=False), Path("/python"), root=tmp_path)
    assert (found.name, found.reason) == ("none", "the trial ended with status 0")


@pytest.mark.parametrize(
    ("sysctls", "word"),
    [
        ({"kernel.unprivileged_userns_clone": "0"}, "kernel.unprivileged_userns_clone=1"),
        ({"kernel.unprivileged_userns_clone": "1", "user.max_user_namespaces": "0"}, "max_user_namespaces=15000"),
        ({"kernel.apparmor_restrict_unprivileged_userns": "1"}, "AppArmor"),
        ({"user.max_user_namespaces": "9", "kernel.apparmor_restrict_unprivileged_userns": "0"}, "container"),
    ],
)
def test_the_switch_that_bars_namespaces_is_named(sysctls: dict[str, str], word: str) -> None:
    """The first that is closed; where none is, a container's own filter is the likeliest."""
    assert word in advice(sysctls)


def test_a_sandbox_that_was_not_made_is_a_failure_of_its_own() -> None:
    """What the launcher says is no word of the package's build."""
    error = unmakable(["x", "wheelmill sandbox: mount /old/x at /new/x: Permission denied (errno 13)"])
    assert error is not None
    assert error.exit_status == 5
    assert str(error) == (
        "the sandbox of the build cannot be made: mount /old/x at /new/x: Permission denied (errno 13)"
    )
    assert unmakable(["compiling"]) is None


def test_the_journal_is_read_from_an_offset(tmp_path: Path) -> None:
    """Each start of a build has its own part."""
    journal = tmp_path / "sandbox.jsonl"
    assert attempts(journal) == ()
    first = json.dumps({"kind": "name", "program": "git", "subject": "a.example"}) + "\n"
    journal.write_text(first + json.dumps({"kind": "left", "program": "sleep 1", "subject": "7"}) + "\n")
    assert [attempt.kind for attempt in attempts(journal)] == ["name", "left"]
    assert attempts(journal, len(first)) == (Attempt(kind="left", program="sleep 1", subject="7"),)


# the launcher's own


def question(name: str) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">6H", 7, 256, 1, 0, 0, 0) + labels + b"\0\0\1\0\1"


def test_the_name_in_a_question() -> None:
    """As DNS writes it; a question that is cut or empty has what is there."""
    assert _sandbox.name_in(question("files.example.org")) == "files.example.org"
    assert _sandbox.name_in(b"") == ""
    assert _sandbox.name_in(question("a.b")[:14]) == "a"


def test_paths_of_mountinfo() -> None:
    """Blanks and backslashes are written in octal."""
    assert _sandbox.unescape(r"/a\040b\134c") == "/a b\\c"


def test_each_attempt_is_written_once(tmp_path: Path) -> None:
    """A program that asks a thousand times fills no disk."""
    path = tmp_path / "journal"
    with path.open("wb", buffering=0) as sink:
        journal = _sandbox.Journal(sink.fileno())
        for _ in range(3):
            journal.note("name", "git", "a.example")
        for number in range(2000):
            journal.note("name", "git", f"{number}.example")
    assert len(attempts(path)) == 1001


# real folders ----------------------------------------------------------------------------------------

BARRED = Rung(name="none", reason="barred", advice="Allow them.")


def test_the_second_rung_is_roots(tmp_path: Path) -> None:
    """Real folders at the fixed paths, where namespaces are barred; never in a folder that is somebody else's."""
    own = tmp_path / "own"
    assert second_rung(BARRED, uid=1000, folder=own) == BARRED
    assert not own.exists()
    assert second_rung(Rung(name="namespaces"), uid=0, folder=own).name == "namespaces"
    assert second_rung(BARRED, uid=0, folder=own) == Rung(name="folder", reason="barred", advice="Allow them.")
    assert second_rung(BARRED, uid=0, folder=own).name == "folder"
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").touch()
    assert second_rung(BARRED, uid=0, folder=tmp_path / "theirs") == BARRED
    assert second_rung(BARRED, uid=0, folder=tmp_path / "missing" / "below") == BARRED


@pytest.fixture
def fixed(tmp_path: Path) -> tuple[Sandbox, Path]:
    """Give a build's folders, and the folder that stands for /wheelmill."""
    for name in ("source", "env/bin", "new-bin", "out", "fixed"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "source" / "x.cu").write_text("x")
    (tmp_path / "env" / "bin" / "python").write_text("old")
    (tmp_path / "env" / "lib").symlink_to("bin")
    (tmp_path / "new-bin" / "python").write_text("new")
    rung = second_rung(BARRED, uid=0, folder=tmp_path / "fixed")
    shares = (
        Share(outside=tmp_path / "new-bin", inside="/wheelmill/env/bin"),
        Share(outside=tmp_path / "env", inside="/wheelmill/env"),
        Share(outside=tmp_path / "source", inside="/wheelmill/source", writable=True),
        Share(outside=tmp_path / "out", inside="/wheelmill/out", writable=True),
    )
    return Sandbox(rung=rung, python=Path("/python"), folder=tmp_path / "box", shares=shares), tmp_path / "fixed"


def test_what_compilers_resolve_is_really_there(fixed: tuple[Sandbox, Path], tmp_path: Path) -> None:
    """The source moves, the environment is a tree of second names, the rest are links; then all is as it was."""
    box, folder = fixed
    with laid_out(box, folder=folder):
        assert (folder / "source" / "x.cu").resolve() == folder / "source" / "x.cu"
        assert (tmp_path / "source").readlink() == folder / "source"
        assert (folder / "env" / "bin" / "python").read_text() == "new"
        assert (folder / "env" / "lib").readlink() == Path("bin")
        assert (folder / "out").readlink() == tmp_path / "out"
        (folder / "source" / "made.o").write_text("o")
    assert sorted(path.name for path in folder.iterdir()) == [".wheelmill"]
    assert not (tmp_path / "source").is_symlink()
    assert (tmp_path / "source" / "made.o").read_text() == "o"
    assert (tmp_path / "env" / "bin" / "python").read_text() == "old"


def test_a_killed_builds_tree_comes_home(fixed: tuple[Sandbox, Path], tmp_path: Path) -> None:
    """The next one that lays out finds the tree of a start that was killed, and brings it back."""
    box, folder = fixed
    for share in box.shares:
        lay(share, folder)
    assert (tmp_path / "source").is_symlink()
    with laid_out(replace(box, shares=()), folder=folder):
        assert (tmp_path / "source" / "x.cu").read_text() == "x"
        assert not (tmp_path / "source").is_symlink()


def test_a_command_in_real_folders(
    fixed: tuple[Sandbox, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It begins in its folder with the fixed umask, and knows the fixed paths."""
    monkeypatch.setattr(sandbox, "link_in", lambda _share: None)
    box, _ = fixed
    argv = box.enclose(["python", str(tmp_path / "source" / "setup.py")], cwd=tmp_path / "source")
    script = 'umask 022 && cd "$0" && exec "$@"'
    assert argv == ["/bin/sh", "-c", script, "/wheelmill/source", "python", "/wheelmill/source/setup.py"]
    assert box.shut
    assert box.see(tmp_path / "out" / "x") == Path("/wheelmill/out/x")
