"""Build: from a patched tree to a wheel, by the package's own backend, every compile through the launcher."""

import fcntl
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import build as pypa_build

from ._console import Reporter
from ._process import Runner
from .derivation import Derivation
from .diagnosis import Diagnosis, diagnose
from .environment import BuildEnvironment, BuildPaths, BuildSettings, build_variables
from .errors import (
    BuildFailedError,
    CommandFailedError,
    EnvironmentUnfitError,
    InterruptedBuildError,
    WheelmillError,
)
from .governor import VANISHED, CompileRecord, CompileSummary, Event, Governor, read_records
from .plan import spell_seconds
from .remedies import Surroundings
from .resources import Grant, gib
from .rulebook import rulebook
from .runtime import Directories
from .shims import HostCompiler, Nvcc, ObjectCache, Shims, ShimSpec, make_shims
from .source import SourceTree
from .toolkit import Toolkit, ToolkitView

FLOOR_SOURCE = 'char __libc_single_threaded __attribute__((visibility("hidden"))) = 0;\n'
"""Linked into every extension. libstdc++'s headers read this symbol of glibc 2.32; a hidden zero of our own ("there
may be threads") is always right, and the floor becomes what the code really needs (measured on causal-conv1d:
manylinux_2_34 becomes 2_28)."""
HEARTBEAT_SECONDS = 60.0
KILLED = 128 + 9
CRASHED = {128 + 4, 128 + 6, 128 + 7, 128 + 8, 128 + 11}
"""A compiler that ended by a fault of its own."""
"""The exit status in the record of a compile that was killed by SIGKILL."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workplace:
    """The folder of one build. Tree and records outlive a failure, so that the next start goes on."""

    root: Path

    @property
    def source(self) -> Path:
        """The patched tree, with the backend's own build folder in it."""
        return self.root / "source"

    @property
    def shims(self) -> Path:
        """Launcher and gate."""
        return self.root / "shims"

    @property
    def view(self) -> Path:
        """The toolkit as the build sees it."""
        return self.root / "toolkit"

    @property
    def out(self) -> Path:
        """Wheels on their way: built, then repaired and stamped."""
        return self.root / "out"

    @property
    def home(self) -> Path:
        """The build's HOME."""
        return self.root / "home"

    @property
    def tmp(self) -> Path:
        """The build's TMPDIR: on the cache's disk, as nvcc's intermediates are large."""
        return self.root / "tmp"

    @property
    def log(self) -> Path:
        """Everything that the build said, over all its starts."""
        return self.root / "build.log"

    @property
    def records(self) -> Path:
        """One line per compile, over all its starts."""
        return self.root / "compile.jsonl"


@contextmanager
def occupied(derivation: Derivation, directories: Directories) -> Iterator[Workplace]:
    """Hold the workplace of a derivation.

    Raises BuildFailedError where another process builds it, EnvironmentUnfitError where it cannot be written.
    """
    place = Workplace(root=directories.builds / derivation.drv[:20])
    try:
        lock = locked(place.root)
    except BlockingIOError:
        raise BuildFailedError(
            f"{derivation.name} {derivation.full_version} is being built by another process",
            advice=f"Follow it: `tail -f {place.log}`; the wheel will be in that process's wheelhouse.",
        ) from None
    except OSError as error:
        raise EnvironmentUnfitError(
            f"cannot write to {place.root}: {error.strerror}", advice="Give a writable folder: --cache DIR."
        ) from error
    with lock:
        for folder in (place.out, place.tmp):
            shutil.rmtree(folder, ignore_errors=True)  # of a start that was killed
        for folder in (place.out, place.tmp, place.home):
            folder.mkdir(exist_ok=True)
        yield place


def locked(root: Path) -> IO[str]:
    """Make a folder and lock it; BlockingIOError where another process holds it.

    The lock goes away with its folder (see `retire`): one that was opened before and locked after that is worth
    nothing, as the next comer finds another file.
    """
    while True:
        root.mkdir(parents=True, exist_ok=True)
        path = root / "lock"
        lock = path.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and path.samefile(f"/proc/self/fd/{lock.fileno()}"):
                return lock
        except BaseException:
            lock.close()
            raise
        lock.close()


def retire(place: Workplace) -> None:
    """Remove the workplace of a finished build, under another name: a half removed tree would be gone on with."""
    gone = place.root.with_name(f".{place.root.name}.{os.getpid()}")
    place.root.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Equipment:
    """What compiles: environment, toolkit and its view, host compiler, object cache, jobs."""

    environment: BuildEnvironment
    toolkit: Toolkit
    view: ToolkitView
    host: HostCompiler
    cache: ObjectCache | None
    grant: Grant


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltWheel:
    """A wheel as the backend made it, and what its compiles took."""

    path: Path
    compiles: CompileSummary
    records: tuple[CompileRecord, ...]


def build_wheel(
    tree: SourceTree,
    place: Workplace,
    equipment: Equipment,
    derivation: Derivation,
    *,
    runner: Runner,
    report: Reporter,
) -> BuiltWheel:
    """Run the backend with every compile through launcher, cache and governor.

    Raises BuildFailedError that names the translation unit, or what the backend said last.
    """
    before = len(recorded(place.records))
    with tempfile.TemporaryDirectory(prefix="wheelmill-") as short:
        socket = Path(short) / "governor"
        shims = make_shims(place.shims, shim_spec(place, equipment, derivation, socket=socket, runner=runner))
        install_nvcc(shims, equipment.view)
        variables = variables_of(place, equipment, derivation)
        progress = Progress(report, equipment.grant)
        with (
            Governor(socket, place.records, equipment.grant.granted, on_event=progress.saw) as governor,
            progress.beating(),
        ):
            said_before = place.log.stat().st_size if place.log.exists() else 0
            try:
                path = run_backend(tree, place, equipment.environment, variables, runner)
            except (pypa_build.BuildBackendException, pypa_build.BuildException) as error:
                if governor.broken is not None:  # every compile after that failed for no reason of its own
                    raise WheelmillError(f"the governor broke: {governor.broken!r}\n  log: {place.log}") from error
                verdict = diagnose(blocks(place.log, said_before), surroundings=lambda: around(equipment, derivation))
                raise explained(error, recorded(place.records)[before:], verdict, place) from error
        summary = governor.summary()
    return BuiltWheel(path=path, compiles=summary, records=recorded(place.records)[before:])


def recorded(path: Path) -> tuple[CompileRecord, ...]:
    """Read the records that there are."""
    return read_records(path) if path.is_file() else ()


def shim_spec(
    place: Workplace, equipment: Equipment, derivation: Derivation, *, socket: Path, runner: Runner
) -> ShimSpec:
    """Say what the launcher is to do in this build."""
    return ShimSpec(
        python=equipment.environment.python.resolve(),
        socket=socket,
        host=equipment.host,
        nvcc=Nvcc(real=equipment.view.nvcc_real, view=equipment.view.nvcc, identity=equipment.toolkit.digest),
        cache=equipment.cache,
        archs=tuple(str(arch) for arch in derivation.archs),
        threads=derivation.release.nvcc_threads,
        release=True,
        prefix_maps=(f"{place.source}=/wheelmill/source", f"{equipment.environment.root}=/wheelmill/env"),
        link_objects=(str(floor_object(place, equipment.host, runner)),),
        source_root=place.source,
        refusals=place.log,
    )


def floor_object(place: Workplace, host: HostCompiler, runner: Runner) -> Path:
    """Compile the object that keeps stray new symbols of glibc out."""
    source, target = place.root / "floor.c", place.root / "floor.o"
    source.write_text(FLOOR_SOURCE, "utf-8")
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TMPDIR": str(place.tmp)}
    runner.run([str(host.cc), "-O2", "-fPIC", "-c", source.name, "-o", target.name], env=env, cwd=place.root)
    return target


def install_nvcc(shims: Shims, view: ToolkitView) -> None:
    """Put the launcher where nvcc is looked for: torch takes it from CUDA_HOME/bin, not from PATH."""
    view.nvcc.unlink(missing_ok=True)
    shutil.copy2(shims.tools["nvcc"], view.nvcc)


def variables_of(place: Workplace, equipment: Equipment, derivation: Derivation) -> dict[str, str]:
    """Give the whole environment of the build."""
    return build_variables(
        BuildPaths(
            shims=place.shims / "bin",
            environment=equipment.environment.root,
            view=equipment.view.root,
            home=place.home,
            tmp=place.tmp,
        ),
        BuildSettings(
            package=derivation.environment,
            source_date_epoch=derivation.source_date_epoch,
            max_jobs=equipment.grant.granted,
            nvcc_threads=derivation.release.nvcc_threads,
            cccl=(equipment.view.root / "include" / "cccl").is_dir(),
        ),
    )


def run_backend(
    tree: SourceTree, place: Workplace, environment: BuildEnvironment, variables: Mapping[str, str], runner: Runner
) -> Path:
    """Ask the package's PEP 517 backend for a wheel, without isolation: the environment is locked and complete."""

    def run_hook(cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None) -> None:
        runner.stream(
            [str(part) for part in cmd],
            env={**variables, **(extra_environ or {})},
            log=place.log,
            cwd=Path(cwd) if cwd else tree.root,
        )

    builder = pypa_build.ProjectBuilder(tree.root, python_executable=str(environment.python), runner=run_hook)
    with warnings.catch_warnings(), place.log.open("a", encoding="utf-8") as log:
        # The frontend raises the backend's warnings again in our process; they belong into the log.
        warnings.showwarning = partial(log_warning, log)
        return Path(builder.build("wheel", place.out / "built"))


def log_warning(log: IO[str], message: Warning | str, *_where: object) -> None:
    """Write a warning as warnings.showwarning would."""
    log.write(f"{message}\n")


BLOCK = 1 << 18
SHOWN_LINES = 6
AGAIN = "Then run the same command again: finished objects are reused."


def blocks(log: Path, offset: int) -> Iterator[bytes]:
    """Read a log from an offset on: what this start of the build said."""
    if not log.is_file():  # the frontend refused before anything ran
        return
    with log.open("rb") as stream:
        stream.seek(offset)
        while block := stream.read(BLOCK):
            yield block


def explained(
    error: Exception, records: Sequence[CompileRecord], verdict: Diagnosis, place: Workplace
) -> WheelmillError:
    """Turn a failed backend into its cause: what the log says, and the first compile that failed.

    A compile whose record says that it was killed decides: the kernel leaves no word in the log.
    """
    cause = getattr(error, "exception", error)  # the frontend wraps what our runner raised
    if isinstance(cause, WheelmillError) and not isinstance(cause, CommandFailedError):
        return cause
    failed = [record for record in records if record.exit != 0]
    # One that vanished was stopped with another that failed, unless there is no other.
    first = next((record for record in failed if record.exit != VANISHED), failed[0] if failed else None)
    killed = first is not None and first.exit == KILLED
    known = verdict.certain and not killed
    lines = compile_failure(first, others=len(failed) - 1) if first else backend_failure(cause)
    if known:
        lines = [verdict.cause, *([f"  {lines[0]}", *lines[1:]] if first else [])]
    lines += [f"  | {line[:300]}" for line in said(verdict, cause)]
    lines += [f"  log: {place.log}", f"  compiles: {place.records}"]
    if known and verdict.kind == InterruptedBuildError.kind:
        return InterruptedBuildError("\n".join(lines))
    advice = "Read the log above its first error; run the same command again to go on with the finished objects."
    found = BuildFailedError("\n".join(lines), advice=advice)
    if killed:
        found.kind = "out-of-memory"
        found.advice = "Give fewer jobs (--max-jobs) or more memory, then run again: finished objects are reused."
    elif known:
        found.kind, found.advice = verdict.kind or found.kind, f"{verdict.advice} {AGAIN}"
    elif first and first.exit in CRASHED:
        found.kind, found.advice = "compiler-crash", f"{rulebook().advice['crash']} {AGAIN}"
    return found


def said(verdict: Diagnosis, cause: BaseException) -> Sequence[str]:
    """Give the lines that prove a cause, or the last ones where none does."""
    if verdict.kind is not None and verdict.line is not None:
        numbered = [text for _, text in verdict.likeliest]
        return numbered or [verdict.evidence]
    return cause.tail[-SHOWN_LINES:] if isinstance(cause, CommandFailedError) else ()


def around(equipment: Equipment, derivation: Derivation) -> Surroundings:
    """Say what advice may name: what this build has."""
    return Surroundings(
        toolkits=((str(equipment.toolkit.root), equipment.toolkit.cuda),),
        compilers=((str(equipment.host.cc), equipment.host.version.split()[-1]),),
        requirements={derivation.name: derivation.release.build_requires},
    )


def compile_failure(record: CompileRecord, *, others: int) -> list[str]:
    """Say which compile failed and how."""
    subject = f"{record.tool} failed on {record.source or record.output} with status {record.exit}"
    if record.exit == VANISHED:
        subject = f"{record.tool} was stopped on {record.source or record.output}"
    lines = [f"{subject} after {spell_seconds(record.wall_s)}, at {gib(record.peak_rss_bytes)}"]
    if record.exit == KILLED:
        lines.append("  it was killed by signal 9: where nobody did that by hand, memory ran out")
    if others:
        lines.append(f"  {others} more compile{'s' if others > 1 else ''} failed or were stopped with it")
    return lines


def backend_failure(cause: BaseException) -> list[str]:
    """Say how a backend failed of which no compile did."""
    first = next(iter(str(cause).splitlines()), type(cause).__name__)
    return [f"the package's build backend failed: {first[:300]}"]


class Progress:
    """Tells of every compile that ends, and that work goes on while none does."""

    def __init__(self, report: Reporter, grant: Grant) -> None:
        self.report, self.grant = report, grant
        self.done = self.running = 0
        self.started = self.spoke = time.monotonic()
        self.stop = threading.Event()

    def saw(self, event: Event) -> None:
        """Take an event of the governor (called from its thread)."""
        self.running = event.running
        record = event.record
        if event.kind != "finished" or record is None:
            return
        self.done += 1
        took = f"{spell_seconds(record.wall_s)}, {gib(record.peak_rss_bytes)}"
        how = {"hit": "from the object cache", "link": f"linked, {took}"}.get(record.cache, took)
        if record.exit == VANISHED:
            how = "stopped"
        elif record.exit:
            how = f"FAILED with status {record.exit}, {took}"
        self.say(f"[{self.done}] {record.tool} {record.source or record.output}: {how}")

    def say(self, text: str) -> None:
        """Tell, and remember when."""
        self.spoke = time.monotonic()
        self.report.note(text)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Say every minute of silence that work goes on."""
        thread = threading.Thread(target=self.beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stop.set()
            thread.join()

    def beat(self) -> None:
        """Wait, and speak where nothing else did."""
        while not self.stop.wait(5.0):
            if time.monotonic() - self.spoke >= HEARTBEAT_SECONDS:
                passed = spell_seconds(time.monotonic() - self.started)
                self.say(f"… {self.running} running, {self.done} done, {passed} so far")
