"""Building: one at a time, every cause named, progress told."""

import errno
import io
import json
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import build as pypa_build
import pytest
from machines import Computer
from samples import write_catalog

from wheelmill import build
from wheelmill._console import Console
from wheelmill._process import Completed
from wheelmill.account import Foresight, Terms
from wheelmill.build import Equipment, Progress, Workplace, blocks, explained, occupied, retire, run_backend
from wheelmill.catalog import load_catalog
from wheelmill.derivation import Derivation, Selection, instantiate
from wheelmill.diagnosis import diagnose
from wheelmill.environment import BuildEnvironment
from wheelmill.errors import BuildFailedError, CommandFailedError, DiskFullError, EnvironmentUnfitError, WheelmillError
from wheelmill.governor import State
from wheelmill.records import CompileRecord, Event
from wheelmill.resources import GIB, Grant
from wheelmill.runtime import Directories
from wheelmill.sandbox import Attempt, Rung, Sandbox, Share
from wheelmill.shims import HostCompiler
from wheelmill.source import SourceTree
from wheelmill.toolkit import Toolkit, ToolkitView

GRANT = Grant(requested=None, granted=2, limited_by="cores", reason="2 cores", memory_per_compile=4 * GIB)


@pytest.fixture
def derivation(tmp_path: Path) -> Derivation:
    return instantiate(load_catalog((write_catalog(tmp_path),)), Selection(name="demo", stack="cu130"))


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    return Directories(cache=tmp_path / "cache", wheelhouse=tmp_path / "wheelhouse")


def compile_record(source: str = "csrc/a.cu", *, exit: int = 0, **fields: object) -> CompileRecord:  # noqa: A002 - its name
    values: dict[str, object] = {
        "id": 1,
        "tool": "nvcc",
        "source": source,
        "output": "build/a.o",
        "argv": (),
        "archs_asked": (),
        "archs_used": (),
        "rewrites": (),
        "cache": "miss",
        "wall_s": 65.4,
        "cpu_s": 60.0,
        "peak_rss_bytes": 3 * GIB,
        "exit": exit,
        "started_s": 0.0,
        "waited_s": 0.0,
        "attempt": 1,
    }
    return CompileRecord(**{**values, **fields})


# the workplace


def test_a_workplace_is_fresh_where_it_must_be(derivation: Derivation, directories: Directories) -> None:
    """Tree and records of an earlier start stay, its output and temporary files do not."""
    with occupied(derivation, directories) as place:
        assert place.root == directories.builds / derivation.drv[:20]
        place.source.mkdir()
        for folder in (place.out, place.tmp):
            (folder / "left").write_text("")
        place.records.write_text("{}\n")
    with occupied(derivation, directories) as again:
        assert again == place
        assert again.source.is_dir()
        assert again.records.read_text() == "{}\n"
        assert [list(folder.iterdir()) for folder in (again.out, again.tmp, again.home)] == [[], [], []]


def test_one_derivation_is_built_once_at_a_time(derivation: Derivation, directories: Directories) -> None:
    """A second start says who is at it, and where to look; the first one's files stay."""
    with occupied(derivation, directories) as place:
        (place.out / "wheel").write_text("")
        with pytest.raises(BuildFailedError) as caught, occupied(derivation, directories):
            pass
        assert (place.out / "wheel").exists()
    assert str(caught.value) == f"demo {derivation.full_version} is being built by another process"
    assert caught.value.advice == (f"Follow it: `tail -f {place.log}`; the wheel will be in that process's wheelhouse.")
    with occupied(derivation, directories):
        pass


def test_what_a_killed_build_was_about_to_remove_goes(derivation: Derivation, directories: Directories) -> None:
    """A build that is killed after its wheel was entered leaves its workplace under another name."""
    gone = directories.builds / f".{'0' * 20}.4711"
    (gone / "source").mkdir(parents=True)
    with occupied(derivation, directories) as place:
        assert sorted(directories.builds.iterdir()) == [place.root]


def test_a_cache_without_room(
    derivation: Derivation, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full before anything starts is named as that."""

    def full(root: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(root))

    monkeypatch.setattr(build, "locked", full)
    with pytest.raises(DiskFullError) as caught, occupied(derivation, directories):
        pass
    assert str(caught.value) == f"no room left on the disk of {directories.builds / derivation.drv[:20]}"


def test_a_cache_that_cannot_be_written(derivation: Derivation, directories: Directories) -> None:
    """A file where the cache should be: the place, the reason and the option."""
    directories.cache.write_text("")
    with pytest.raises(EnvironmentUnfitError) as caught, occupied(derivation, directories):
        pass
    assert str(caught.value) == f"cannot write to {directories.builds / derivation.drv[:20]}: Not a directory"
    assert caught.value.advice == "Give a writable folder: --cache DIR."


def test_a_lock_that_cannot_be_had_is_not_another_process(
    derivation: Derivation, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems have no locks."""

    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(EnvironmentUnfitError, match="No locks available"), occupied(derivation, directories):
        pass


def test_a_finished_workplace_is_gone_and_its_lock_worth_nothing(
    derivation: Derivation, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opened the lock before the other was done, and got it after, holds a lock that nobody else would see."""
    import fcntl

    flock = fcntl.flock
    strikes = iter([True])

    def late(lock: io.TextIOBase, operation: int) -> None:
        if next(strikes, False):
            retire(Workplace(root=directories.builds / derivation.drv[:20]))
        flock(lock, operation)

    monkeypatch.setattr("fcntl.flock", late)
    with occupied(derivation, directories) as place:
        assert (place.root / "lock").is_file()
        with pytest.raises(BuildFailedError), occupied(derivation, directories):
            pass
    assert [path.name for path in directories.builds.iterdir()] == [derivation.drv[:20]]


def test_an_interrupted_removal_leaves_no_half_tree(
    derivation: Derivation, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree under its own name is taken as whole by the next start."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with occupied(derivation, directories) as place:
        place.source.mkdir()
        monkeypatch.setattr("shutil.rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            retire(place)
    assert not place.root.exists()


def test_a_start_that_preflight_refuses_leaves_nothing(derivation: Derivation, directories: Directories) -> None:
    """There is nothing to go on with; a tree, or a log, is kept."""
    with pytest.raises(EnvironmentUnfitError), occupied(derivation, directories) as place:
        raise EnvironmentUnfitError("no toolkit")
    assert list(directories.builds.iterdir()) == []
    (place.root / "source").mkdir(parents=True)
    with pytest.raises(EnvironmentUnfitError), occupied(derivation, directories):
        raise EnvironmentUnfitError("no compiler")
    assert place.source.is_dir()


# the cause


def cause(
    tmp_path: Path,
    records: Sequence[CompileRecord] = (),
    log: Sequence[str] = (),
    *,
    error: Exception | None = None,
) -> WheelmillError:
    failed = CommandFailedError(
        ["python", "-m", "hook"], 1, tail=["first", "ModuleNotFoundError: No module named 'torch'"]
    )
    verdict = diagnose([line.encode() + b"\n" for line in log])
    return explained(error or pypa_build.BuildBackendException(failed), records, verdict, Workplace(root=tmp_path))


def test_the_first_failed_compile_is_the_cause(tmp_path: Path) -> None:
    """Unit, time, memory, what the compiler said, and the files to open."""
    records = [
        compile_record("csrc/ok.cu"),
        compile_record("csrc/bad.cu", exit=2),
        compile_record("csrc/b.cu", exit=-1),
    ]
    found = cause(tmp_path, records, ["bad.cu(3): error: no such thing"])
    assert isinstance(found, BuildFailedError)
    assert str(found) == (
        "nvcc failed on csrc/bad.cu with status 2 after 1 min 5 s, at 3.0 GiB\n"
        "  1 more compile failed or were stopped with it\n"
        "  | bad.cu(3): error: no such thing\n"
        f"  log: {tmp_path}/build.log\n"
        f"  compiles: {tmp_path}/compile.jsonl"
    )
    assert (found.kind, found.exit_status) == ("unknown", 1)
    assert found.advice == (
        "Read the log above its first error; run the same command again to go on with the finished objects."
    )


def test_one_that_was_stopped_is_no_cause(tmp_path: Path) -> None:
    """A launcher that vanished went down with another, unless there is no other."""
    stopped, failed = compile_record("csrc/a.cu", exit=-1), compile_record("csrc/b.cu", exit=1)
    assert str(cause(tmp_path, [stopped, failed])).startswith("nvcc failed on csrc/b.cu with status 1 ")
    assert str(cause(tmp_path, [stopped])).startswith("nvcc was stopped on csrc/a.cu after 1 min 5 s")


def test_a_killed_compile_is_a_matter_of_memory(tmp_path: Path) -> None:
    """Signal 9 comes from the kernel when memory runs out: its kind, and what to change."""
    found = cause(tmp_path, [compile_record(source="", exit=137)])
    first, second, *_ = str(found).splitlines()
    assert first == "nvcc failed on build/a.o with status 137 after 1 min 5 s, at 3.0 GiB"
    assert second == "  it was killed by signal 9: where nobody did that by hand, memory ran out"
    assert found.kind == "out-of-memory"
    assert found.advice.startswith("Give fewer jobs (--max-jobs) or more memory")


@pytest.mark.parametrize("status", [-9, 137])
@pytest.mark.parametrize("records", [[], [-1, -1]])
def test_a_killed_backend_is_a_matter_of_memory(tmp_path: Path, status: int, records: list[int]) -> None:
    """It, its sandbox or their guard: the compiles that went down with it are no cause."""
    error = pypa_build.BuildBackendException(CommandFailedError(["python"], status))
    found = cause(tmp_path, [compile_record(exit=each) for each in records], error=error)
    assert str(found).splitlines()[0] == (
        "the package's build backend was killed by signal 9: where nobody did that by hand, memory ran out"
    )
    assert found.kind == "out-of-memory"


def test_what_the_log_tells_is_the_cause(tmp_path: Path) -> None:
    """The first line is the cause, then the compile; kind and advice are those of the diagnosis."""
    log = ["[1/2] nvcc -c csrc/a.cu -o a.o", "fatal error: cannot write /tmp/x.s: No space left on device", "after"]
    found = cause(tmp_path, [compile_record(exit=1)], log)
    assert str(found).splitlines()[:3] == [
        "no space left in /tmp (TMPDIR)",
        "  nvcc failed on csrc/a.cu with status 1 after 1 min 5 s, at 3.0 GiB",
        "  | fatal error: cannot write /tmp/x.s: No space left on device",
    ]
    assert found.kind == "disk-full"
    assert found.advice.startswith("Set TMPDIR to a folder on a roomy disk")
    assert found.advice.endswith("Then run the same command again: finished objects are reused.")


def test_a_record_of_signal_9_outranks_the_log(tmp_path: Path) -> None:
    """The kernel leaves no word in the log, others do: the record decides."""
    found = cause(tmp_path, [compile_record(exit=137)], ["a.cpp:1:1: fatal error: Python.h: No such file or directory"])
    assert found.kind == "out-of-memory"


def test_a_record_of_signal_11_is_a_crash(tmp_path: Path) -> None:
    """A compiler that crashes without a word is not cured by fewer jobs."""
    found = cause(tmp_path, [compile_record(exit=139)])
    assert found.kind == "compiler-crash"
    assert "jobs" not in found.advice


def test_a_backend_that_somebody_stopped(tmp_path: Path) -> None:
    """An interruption is no failure: status 130, and the same command goes on."""
    found = cause(tmp_path, [], ["[17/73] nvcc -c a.cu", "ninja: build stopped: interrupted by user."])
    assert (found.kind, found.exit_status) == ("interrupted", 130)
    assert str(found).startswith("the build was stopped from outside; that is no failure; at least 16 of 73 units")


def test_a_backend_that_fails_before_any_compile(tmp_path: Path) -> None:
    """Its command, and its last lines where the log names no error."""
    lines = str(cause(tmp_path)).splitlines()
    assert lines[:3] == [
        "the package's build backend failed: python ended with status 1: python -m hook",
        "  | first",
        "  | ModuleNotFoundError: No module named 'torch'",
    ]


def test_a_backend_that_says_nothing(tmp_path: Path) -> None:
    """An exception without words is called by its class."""
    found = cause(tmp_path, error=pypa_build.BuildBackendException(ValueError()))
    assert str(found).startswith("the package's build backend failed: ValueError\n")


def test_an_error_of_ours_goes_through(tmp_path: Path) -> None:
    """The frontend wraps what our runner raises; a full disk or a missing program keeps its own words and status."""
    full = DiskFullError("no room")
    assert cause(tmp_path, [compile_record(exit=1)], error=pypa_build.BuildBackendException(full)) is full


def test_errors_of_earlier_starts_are_not_this_ones(tmp_path: Path) -> None:
    """The log has all starts; only what stands after the offset counts."""
    log = tmp_path / "log"
    log.write_bytes(b"Killed\nfatal: x\n")
    assert b"".join(blocks(log, 7)) == b"fatal: x\n"
    assert list(blocks(tmp_path / "none", 0)) == []


# the backend


class FakeBackend:
    """A Runner in whose place a PEP 517 hook would run: it writes what `answer` says."""

    def __init__(self, answer: Callable[[Mapping[str, object]], object]) -> None:
        self.answer, self.calls = answer, list[tuple[tuple[str, ...], Mapping[str, str], Path | None]]()

    def stream(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: Path | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> Completed:
        assert on_line is None
        self.calls.append((tuple(argv), env, cwd))
        control = Path(argv[-1])
        given = json.loads((control / "input.json").read_text())
        (control / "output.json").write_text(json.dumps({"return_val": self.answer(given["kwargs"])}))
        with log.open("a") as stream:
            stream.write("the backend speaks\n")
        return Completed(argv=tuple(argv), returncode=0, stdout="", stderr="", seconds=0.0)

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, check: bool = True
    ) -> Completed:
        raise AssertionError(f"nothing but hooks runs: {argv} {env} {cwd} {check}")


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    place = Workplace(root=tmp_path / "place")
    for folder in (place.source, place.out, place.tmp, place.home):
        folder.mkdir(parents=True)
    (place.source / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "demo_backend"\n')
    return place


def equipment(tmp_path: Path) -> Equipment:
    host = HostCompiler(cc=Path("/usr/bin/gcc"), cxx=Path("/usr/bin/g++"), version="", identity="i" * 64, triplet="x")
    toolkit = Toolkit(
        root=tmp_path, cuda="13.0", nvcc_version="13.0.88", digest="d" * 64, provider="wheels", pinned=True
    )
    environment = BuildEnvironment.at(tmp_path / "environment", "3.12")
    view = ToolkitView(root=tmp_path / "view")
    box = Sandbox(rung=Rung(name="none"), python=Path("/usr/bin/python3"), folder=tmp_path)
    return Equipment(
        environment=environment,
        toolkit=toolkit,
        view=view,
        host=host,
        cache=None,
        grant=GRANT,
        box=box,
        terms=Terms(),
        means=Computer().means(),
        foresight=Foresight(),
    )


def tree(place: Workplace) -> SourceTree:
    return SourceTree(root=place.source, sha256="a" * 64, patches=())


def test_the_backend_runs_with_exactly_our_variables(place: Workplace, tmp_path: Path) -> None:
    """The environment's interpreter, the tree as folder, our variables and the frontend's own, one log."""

    def answer(kwargs: Mapping[str, object]) -> str:
        (Path(str(kwargs["wheel_directory"])) / "demo-1.0-py3-none-any.whl").write_bytes(b"")
        return "demo-1.0-py3-none-any.whl"

    runner = FakeBackend(answer)
    tools = equipment(tmp_path)
    wheel = run_backend(tree(place), place, tools, {"ONLY": "this"}, runner)
    assert wheel == place.out / "built" / "demo-1.0-py3-none-any.whl"
    assert wheel.is_file()
    [(argv, env, cwd)] = runner.calls
    assert argv[0] == str(tools.environment.python)
    assert cwd == place.source
    assert {name: value for name, value in env.items() if not name.startswith("_PYPROJECT_HOOKS")} == {"ONLY": "this"}
    assert place.log.read_text() == "the backend speaks\n"


def test_the_backends_warnings_go_into_the_log(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frontend raises them in our process; a person at the terminal is not who they are for."""

    class Builder:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def build(self, _kind: str, folder: Path) -> str:
            warnings.warn("old metadata", UserWarning, stacklevel=1)
            return str(folder / "x.whl")

    shown = warnings.showwarning
    monkeypatch.setattr(build.pypa_build, "ProjectBuilder", Builder)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        run_backend(tree(place), place, equipment(tmp_path), {}, FakeBackend(lambda _: ""))
    assert place.log.read_text() == "old metadata\n"
    assert warnings.showwarning is shown


def test_the_build_sees_jobs_and_its_own_folders(derivation: Derivation, place: Workplace, tmp_path: Path) -> None:
    """What the recipe sets, jobs as granted, and HOME, TMPDIR and CUDA_HOME inside the build."""
    tools = equipment(tmp_path)
    variables = build.variables_of(place, tools, derivation)
    assert variables["MAX_JOBS"] == "7"  # two run, five may wait
    assert variables["HOME"] == str(place.home)
    assert variables["TMPDIR"] == str(place.tmp)
    assert variables["CUDA_HOME"] == str(tools.view.root)
    assert variables["SOURCE_DATE_EPOCH"] == "1700000000"
    assert variables["DEMO_LOCAL"] == "cu130.torch2.11.0.sm100"
    assert variables["PATH"].startswith(str(place.shims / "bin"))
    assert set(os.environ) - set(variables)  # nothing is inherited


def test_the_launcher_stands_in_nvccs_place(tmp_path: Path) -> None:
    """Torch takes nvcc from CUDA_HOME/bin; a link there would lead the launcher to the wrong root."""
    place = Workplace(root=tmp_path)
    launcher = place.shims / "bin" / "nvcc"
    launcher.parent.mkdir(parents=True)
    launcher.write_text("#!launcher\n")
    launcher.chmod(0o755)
    view = ToolkitView(root=tmp_path / "view")
    view.nvcc.parent.mkdir(parents=True)
    view.nvcc.symlink_to("/real/nvcc")
    build.install_nvcc(place, view)
    assert not view.nvcc.is_symlink()
    assert view.nvcc.read_text() == "#!launcher\n"
    assert view.nvcc.stat().st_mode & 0o111


# the whole step, with the tools left out


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Leave launcher and compilers out; give the governor's socket, once there is one."""
    sockets: list[Path] = []

    def shim_spec(*_: object, socket: Path, **__: object) -> None:
        sockets.append(socket)

    monkeypatch.setattr(build, "shim_spec", shim_spec)
    monkeypatch.setattr(build, "make_shims", lambda *_: None)
    monkeypatch.setattr(build, "compile_launcher", lambda *_: None)
    monkeypatch.setattr(build, "install_nvcc", lambda *_: None)
    yield sockets
    assert not any(path.exists() for path in sockets)


def compile_with(path: Path, *, status: int) -> None:
    """Do what a launcher does for one compile that needs no lease."""
    message = {
        "op": "begin",
        "tool": "nvcc",
        "kind": "compile",
        "argv": [],
        "cwd": "/",
        "output": "a.o",
        "source": "csrc/a.cu",
        "archs_asked": [],
        "archs_used": ["sm_100"],
        "rewrites": [],
        "ccache": False,
    }
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rwb") as stream:
        connection.settimeout(5)
        connection.connect(os.fspath(path))
        for sent in (message, {"op": "end", "exit": status}):
            stream.write(json.dumps(sent).encode() + b"\n")
            stream.flush()
            stream.readline()


class Heard:
    """A Reporter that remembers."""

    def __init__(self, broken: Exception | None = None) -> None:
        self.lines: list[str] = []
        self.broken = broken

    def step(self, text: str) -> None:
        self.lines.append(text)

    def note(self, text: str) -> None:
        if self.broken:
            raise self.broken
        self.lines.append(text)

    warn = step


def build_with(
    monkeypatch: pytest.MonkeyPatch,
    derivation: Derivation,
    place: Workplace,
    backend: Callable[[], Path],
    report: Heard,
) -> build.BuiltWheel:
    monkeypatch.setattr(build, "run_backend", lambda *_: backend())
    return build.build_wheel(
        tree(place), place, equipment(place.root), derivation, runner=FakeBackend(str), report=report
    )


def made(place: Workplace) -> Path:
    """Do what a backend does in the end."""
    (place.out / "built").mkdir(exist_ok=True)
    (place.out / "built" / "x.whl").write_bytes(b"")
    return place.out / "built" / "x.whl"


def test_records_of_this_start_only(
    monkeypatch: pytest.MonkeyPatch, derivation: Derivation, place: Workplace, bare: list[Path]
) -> None:
    """The file has all starts, the result has this one's; each compile is told."""

    def backend() -> Path:
        compile_with(bare[-1], status=0)
        return made(place)

    report = Heard()
    build_with(monkeypatch, derivation, place, backend, report)
    built = build_with(monkeypatch, derivation, place, backend, report)
    assert [record.source for record in built.records] == ["csrc/a.cu"]
    assert [record.source for record in built.units] == ["csrc/a.cu"]
    assert (built.compiles.compiles, built.path) == (1, place.built / "x.whl")
    assert len(place.records.read_text().splitlines()) == 2
    assert report.lines == ["[1/5] nvcc csrc/a.cu: 0 s, 0.0 GiB"] * 2


def test_a_failed_build_names_its_compile(
    monkeypatch: pytest.MonkeyPatch, derivation: Derivation, place: Workplace, bare: list[Path]
) -> None:
    """The record, and the log from this start on."""
    place.log.write_text("error: of an earlier start\n")

    def backend() -> Path:
        compile_with(bare[-1], status=2)
        with place.log.open("a") as log:
            log.write("csrc/a.cu(1): error: now\n")
        raise pypa_build.BuildBackendException(CommandFailedError(["python"], 1))

    with pytest.raises(BuildFailedError) as caught:
        build_with(monkeypatch, derivation, place, backend, Heard())
    assert str(caught.value).startswith(
        "nvcc failed on csrc/a.cu with status 2 after 0 s, at 0.0 GiB\n  | csrc/a.cu(1): "
    )
    assert "earlier" not in str(caught.value)


def test_a_tree_without_a_sound_pyproject(
    monkeypatch: pytest.MonkeyPatch, derivation: Derivation, place: Workplace, bare: list[Path]
) -> None:
    """The frontend refuses before anything ran, so there is no log yet; its words are the cause."""
    (place.source / "pyproject.toml").write_text("[build-system]\nrequires = 3\n")
    with pytest.raises(BuildFailedError) as caught:
        build.build_wheel(
            tree(place), place, equipment(place.root), derivation, runner=FakeBackend(str), report=Heard()
        )
    assert str(caught.value).startswith(
        "the package's build backend failed: Failed to validate `build-system` in pyproject.toml"
    )


def test_a_broken_governor_is_the_cause_not_the_compiles(
    monkeypatch: pytest.MonkeyPatch, derivation: Derivation, place: Workplace, bare: list[Path]
) -> None:
    """When its thread ends, every compile fails for no reason of its own."""

    def backend() -> Path:
        compile_with(bare[-1], status=0)
        raise pypa_build.BuildBackendException(CommandFailedError(["python"], 1))

    with pytest.raises(WheelmillError) as caught:
        build_with(monkeypatch, derivation, place, backend, Heard(LookupError("a bug")))
    assert str(caught.value) == f"the governor broke: LookupError('a bug')\n  log: {place.log}"


# what a build may leave


def test_the_wheel_is_taken_out_and_the_rest_thrown_away(place: Workplace) -> None:
    """A link that the build has left where we write next would lead us anywhere."""
    path = made(place)
    (place.tmp / "venv").symlink_to(place.root)
    (place.out / "stamped").symlink_to(place.root)
    assert build.taken_out(path, place) == place.built / "x.whl"
    assert [list(folder.iterdir()) for folder in (place.out, place.tmp, place.home)] == [[], [], []]


@pytest.mark.parametrize("name", ["../../log", "../built/x.whl", "link.whl", "missing.whl", "folder.whl"])
def test_a_wheel_that_is_no_file_of_the_builds_own(place: Workplace, name: str) -> None:
    """A backend names any path it likes."""
    made(place)
    (place.root / "log").write_text("ours")
    (place.out / "built" / "link.whl").symlink_to(place.root / "log")
    (place.out / "built" / "folder.whl").mkdir()
    with pytest.raises(BuildFailedError) as caught:
        build.taken_out(place.out / "built" / name, place)
    assert "as its wheel, which is no file of its own\n  log: " in str(caught.value)


NAME = Attempt(kind="name", program="git clone", subject="example.org")
LEFT = Attempt(kind="left", program="watcher", subject="7")


def test_a_name_asked_for_is_the_cause_of_a_failure_without_another() -> None:
    """Exit 1, the program and the host by name, and how to pin what it wants."""
    failure = build.with_attempts(BuildFailedError("it failed\n  log: x"), (NAME, LEFT), compiled=False)
    assert (failure.exit_status, failure.kind) == (1, "network-at-build")
    assert str(failure) == (
        "the build asked the network for example.org, and the network is cut\n"
        "  the build asked for example.org (git clone); the network is cut, so it got nothing\n"
        "  the build left a process behind (watcher); it was ended\n"
        "  it failed\n  log: x"
    )
    assert "`build-requires`" in failure.advice


def test_a_failed_compile_is_a_better_cause_than_a_name_asked_for() -> None:
    """What was tried is told beside it."""
    failure = build.with_attempts(BuildFailedError("nvcc failed\n  log: x"), (NAME,), compiled=True)
    assert failure.kind == "unknown"
    assert str(failure).splitlines()[0] == "nvcc failed"
    assert str(failure).splitlines()[2] == "  log: x"
    assert "example.org" in str(failure).splitlines()[1]


def test_hooks_are_told_the_paths_inside(place: Workplace, tmp_path: Path) -> None:
    """The frontend's script, its input and its folders, the tree in the backend's own path."""

    def answer(kwargs: Mapping[str, object]) -> str:
        assert kwargs["wheel_directory"] == "/wheelmill/out/built"
        return "demo-1.0-py3-none-any.whl"

    tools = equipment(tmp_path)
    shares = (
        Share(outside=place.source, inside="/wheelmill/source"),
        Share(outside=place.out, inside="/wheelmill/out"),
    )
    box = replace(tools.box, rung=Rung(name="namespaces"), shares=shares)

    class Inside(FakeBackend):
        def stream(self, argv: Sequence[str], **rest: Any) -> Completed:
            [control] = [entry[2] for entry in config()["entries"] if entry[1] == "/wheelmill/control"]
            assert argv[-1] == "/wheelmill/control"
            return super().stream([*argv[:-1], control], **rest)

    def config() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((tmp_path / "sandbox.json").read_text())
        return found

    runner = Inside(answer)
    run_backend(tree(place), place, replace(tools, box=box), {}, runner)
    [(argv, _, _)] = runner.calls
    assert argv[:3] == ("/usr/bin/python3", "-S", "-I")
    assert argv[argv.index("--") + 2 : -1] == ("/wheelmill/hook.py", "build_wheel")
    assert config()["cwd"] == "/wheelmill/source"


# progress


def event(record: CompileRecord | None, *, running: int = 1) -> Event:
    kind = "finished" if record else "started"
    return Event(kind=kind, id=1, tool="nvcc", source="csrc/a.cu", running=running, waiting=0, record=record)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (compile_record(), "[1/3] nvcc csrc/a.cu: 1 min 5 s, 3.0 GiB"),
        (compile_record(cache="hit"), "[1/3] nvcc csrc/a.cu: from the object cache"),
        (compile_record("", cache="link", tool="g++"), "[1/3] g++ build/a.o: linked, 1 min 5 s, 3.0 GiB"),
        (compile_record(exit=1), "[1/3] nvcc csrc/a.cu: FAILED with status 1, 1 min 5 s, 3.0 GiB"),
    ],
    ids=["compiled", "hit", "linked", "failed"],
)
def test_every_compile_that_ends_is_told(record: CompileRecord, said: str) -> None:
    """Its number, tool, source, time and peak."""
    report = Heard()
    progress = Progress(report, units=3)
    progress.saw(event(None, running=2))
    progress.saw(event(record))
    assert report.lines == [said]
    assert progress.done == 1


@pytest.mark.parametrize("outcome", ["vanished", "turned-away"])
def test_what_ends_with_the_build_is_not_told_one_by_one(outcome: str) -> None:
    """After Ctrl-C or a failure a hundred waiting compiles go at once."""
    report = Heard()
    progress = Progress(report, units=3)
    progress.saw(event(compile_record(exit=-1, outcome=outcome)))
    assert (report.lines, progress.done) == ([], 0)


def test_silence_is_broken_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody shall wonder whether a build of hours still lives; where a compile spoke just now, nothing is said."""
    now = [0.0]
    monkeypatch.setattr("wheelmill.build.time.monotonic", lambda: now[0])
    talk = io.StringIO()
    progress = Progress(Console(talk=talk, colour=False, quiet=False), units=3)

    class Clock:
        """An event that waits five seconds of ours."""

        def wait(self, seconds: float) -> bool:
            now[0] += seconds
            return now[0] > 125

    progress.stop = Clock()
    states = iter(
        [
            State(running=2, waiting=0, reserved=6 * GIB, used=4 * GIB, reason=""),
            State(running=0, waiting=1, reserved=0, used=0, reason="needs 7.0 GiB, 3.1 GiB are free"),
        ]
    )
    progress.beat(lambda: next(states))
    assert talk.getvalue().splitlines() == [
        "    … 2 running with 4.0 GiB of the 6.0 GiB reserved for them, 0 done, 1 min 0 s so far",
        "    … 0 running, 1 waiting (needs 7.0 GiB, 3.1 GiB are free), 0 done, 2 min 0 s so far",
    ]


def test_the_heart_stops_with_the_build() -> None:
    """Also when the build fails: no thread is left."""
    import threading

    before = threading.active_count()
    progress = Progress(Heard(), units=3)
    with progress.beating(Computer.idle):
        assert threading.active_count() == before + 1
    with pytest.raises(IndexError), Progress(Heard(), units=3).beating(Computer.idle):
        [].pop()
    assert threading.active_count() == before


def test_each_object_goes_by_the_compile_that_made_it() -> None:
    """Of several starts: a hit tells nothing of memory, a failure made nothing, what was compiled again counts anew."""
    first, other = compile_record(cpu_s=1.0), compile_record("csrc/b.cu", exit=1)
    hit, again = compile_record(cache="hit", cpu_s=0.0), compile_record(cpu_s=2.0)

    assert build.last_of_each([first, other, hit]) == (first,)
    assert build.last_of_each([hit]) == (hit,)
    assert build.last_of_each([first, again]) == (again,)
