"""The command line: options to values, commands to stages, outcomes to text or JSON and an exit status."""

import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from . import explain
from ._console import Console, deliver, document, make_console, result
from ._process import Runner, SystemRunner
from ._validate import parse_size
from .again import in_rounds
from .arch import Arch, Gpu, gpu_named
from .catalog import Catalog, find_roots, load_catalog
from .derivation import Derivation, Selection, instantiate, parse_epoch
from .diagnosis import diagnose
from .errors import (
    InterruptedBuildError,
    NothingSelectedError,
    NotReproducibleError,
    RecipeError,
    UsageError,
    VerifyError,
    WheelmillError,
    of_system,
)
from .following import as_json, chosen, end, find_log, log_lines, paragraph, title
from .gc import collect
from .index import remove_indexes, write_index
from .inspection import inspect_file
from .install import Installation, PinnedWheel, offline_install
from .installed import COMPILERS, Here, verify_stack
from .limits import Limits, read_limits
from .lint import Request, lint
from .measure import measure, refresh
from .nvml import binding, read_driver
from .options import Options, make_parser
from .peaks import to_line
from .pipeline import (
    Bounds,
    Built,
    Failed,
    Tools,
    attempt,
    capped,
    fetch_all,
    fetch_toolkit,
    plan,
    survey_machine,
)
from .plan import Plan, spell_seconds
from .preflight import Finding
from .published import beside, repair_published
from .rebuild import rebuild
from .remedies import Surroundings
from .resolve import check, lock
from .resources import capacity, gib, parse_jobs
from .roster import open_roster
from .runtime import Runtime, capture
from .stack import Stack
from .surroundings import look_around, requirements_of
from .toolkit import fetch_command
from .toolkit_recipe import ToolkitRecipe
from .verify import Expectation, claimed, judge_file, require
from .watch import Watch
from .wheel_file import scan
from .wheelhouse import Wheelhouse

LATER = {
    "build-stack": "Building and collecting a whole stack arrives with a later release; build its packages by name.",
    "release": "Publishing with proofs arrives with a later release; `wheelmill index` makes a static index now.",
}
LOG_BLOCK = 1 << 18
LEAST_MEMORY = 1 << 28
"""Bytes: whoever types less has forgotten the unit."""
PREBUILT_ADVICE = "Install it from the package index; `wheelmill plan` shows its pinned file and digest."


@dataclass(frozen=True, kw_only=True)
class Session:
    """One run of the program: what was asked, and the means to do it."""

    options: Options
    runtime: Runtime
    console: Console
    runner: Runner

    @cached_property
    def catalog(self) -> Catalog:
        """The recipes, read when first needed."""
        return load_catalog(find_roots(self.options.recipes, self.runtime.cwd))

    @cached_property
    def tools(self) -> Tools:
        """What the stages need besides the derivation."""
        return Tools(
            runtime=self.runtime,
            runner=self.runner,
            report=self.console,
            catalog=self.catalog,
            offline=self.options.offline,
            cuda_home=self.options.cuda_home,
            python=self.options.python,
            bounds=bounds(self.options, self.runtime),
            takeover=self.options.takeover,
            watch=self.watch,
        )

    @cached_property
    def watch(self) -> Watch:
        """Who looks whether anybody still listens; nox is followed into its end (it sets this variable)."""
        return Watch(stop_when_lost=self.options.no_detach, follows_parent="NOX_CURRENT_SESSION" in self.runtime.env)

    @property
    def wheelhouse(self) -> Wheelhouse:
        """The wheelhouse asked for."""
        return Wheelhouse(root=self.runtime.directories.wheelhouse)

    def surroundings(self) -> Surroundings:
        """Look at what advice may name."""
        return look_around(self.tools.machine, requirements_of(self.catalog))

    def selections(self, *, default_all: bool, without: Sequence[str] = ()) -> tuple[Selection, ...]:
        """Turn names into selections; NothingSelectedError without a name where a command needs one."""
        stack = self.catalog.stack(self.options.stack)
        named = [canonicalize_name(name) for name in self.options.names if name not in without]
        names: list[str] = [*named] or (list(stack.packages) if default_all else [])
        if not names:
            raise NothingSelectedError(
                f"nothing to do: no package named; stack {stack.name} pins {', '.join(stack.packages) or 'none'}",
                advice=f"Name one: `wheelmill {self.options.command} {next(iter(stack.packages), 'NAME')}`.",
            )
        epoch = self.runtime.env.get("SOURCE_DATE_EPOCH")
        return tuple(
            Selection(
                name=name,
                stack=stack.name,
                archs=parse_archs(self.options.arch),
                variant=self.options.variant,
                source_date_epoch=None if epoch is None else parse_epoch(epoch, now=int(time.time())),
                gpus=parse_gpus(self.options.gpu),
            )
            for name in names
        )

    def paths(self, what: str, found: Sequence[Path]) -> int:
        """Give what was made: a path a line, or one document."""
        if self.options.json:
            self.document({"schema": 1, what: [str(path) for path in found]})
        else:
            for path in found:
                result(str(path))
        return 0

    def document(self, value: dict[str, object]) -> None:
        """Print the one JSON document."""
        document(value)


def bounds(options: Options, runtime: Runtime) -> Bounds:
    """Read the caps; UsageError for what cannot be one. The option wins over MAX_JOBS."""
    jobs = None
    if options.max_jobs is not None:
        jobs = parse_jobs(options.max_jobs, source="--max-jobs")
    elif "MAX_JOBS" in runtime.env:
        jobs = parse_jobs(runtime.env["MAX_JOBS"], source="MAX_JOBS")
    try:
        memory = None if options.memory is None else parse_size(options.memory)
    except ValueError as error:
        raise UsageError(f"--memory: {error}") from None
    if memory is not None and memory < LEAST_MEMORY:
        raise UsageError(
            f"--memory={options.memory} is {memory} bytes, and no compiler works with so little",
            advice="Write it with its unit, like 24GiB, or leave it out.",
        )
    cpus = None if options.cpus is None else parse_jobs(options.cpus, source="--cpus", what="cores")
    threads = runtime.env.get("NVCC_THREADS", "").strip()
    return Bounds(
        max_jobs=jobs,
        memory=memory,
        cpus=cpus,
        nvcc_threads=int(threads) if re.fullmatch(r"[1-9][0-9]{0,3}", threads) else None,
    )


def parse_archs(texts: Sequence[str]) -> tuple[Arch, ...]:
    """Read `--arch "10.0;12.0"` or repeated options; UsageError with what was probably meant."""
    words = [word for text in texts for word in text.replace(",", ";").split(";") if word.strip()]
    try:
        return tuple(Arch.parse(word.strip()) for word in words)
    except ValueError as error:
        raise UsageError(f"--arch {error}") from None


def parse_gpus(texts: Sequence[str] | None) -> tuple[Gpu, ...]:
    """Read `--gpu "RTX PRO 6000 Blackwell"`, perhaps several; UsageError with what was probably meant."""
    try:
        return tuple(gpu_named(text) for text in texts or ())
    except ValueError as error:
        raise UsageError(f"--gpu {error}") from None


# commands --------------------------------------------------------------------------------------------


def run_plan(session: Session) -> int:
    """Show what would be built; starts nothing."""
    options, stack = session.options, session.catalog.stack(session.options.stack)
    published = [name for name in options.names if canonicalize_name(name) in stack.prebuilt]
    if published and len(published) == len(options.names):
        made = Plan(stack=stack, items=(), prebuilt=(), problems=())
    else:
        selections = session.selections(default_all=True, without=published)
        made = plan(selections, session.tools, with_prebuilt=not options.names, house=session.wheelhouse)
    if published:
        made = replace(made, prebuilt=tuple(stack.prebuilt[canonicalize_name(name)] for name in published))
    if options.json:
        session.document(made.to_json())
        return 0
    for item in made.items:
        result(item.paragraph())
    for member in made.prebuilt:
        result(f"{member.name} {member.version}  [prebuilt]  {member.file}\n  sha256 {member.sha256}")
    for problem in made.problems:
        session.console.warn(f"{problem['message']}\n  next: {problem['advice']}")
    return 0


def run_build(session: Session) -> int:
    """Build to verified wheels in the wheelhouse; their paths on stdout."""
    selections = session.selections(default_all=False)
    stack = session.catalog.stack(session.options.stack)
    refuse_prebuilt(selections, stack, "building it from source arrives with a later release")
    derivations = [instantiate(session.catalog, selection) for selection in selections]
    rounds = parse_jobs(session.options.rounds, source="--rounds", what="rounds") or 1
    line = None if rounds == 1 else partial(in_rounds, rounds=rounds)
    outcomes = []
    with session.watch.looking():
        for derivation in derivations:
            outcome = attempt(derivation, session.tools, session.wheelhouse, line=line)
            outcomes.append(outcome)
            match outcome:
                case Built(wheel=wheel):
                    if not session.options.json:
                        deliver(partial(result, str(wheel)))
                case Failed(error=error):
                    session.console.failure(error)
                    if error.exit_status == 130:
                        break
    if session.options.json:
        builds = [outcome.to_json() for outcome in outcomes]
        deliver(partial(session.document, {"schema": 1, "builds": builds}))
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    return failures[-1].error.exit_status if failures else 0


def refuse_prebuilt(selections: Sequence[Selection], stack: Stack, why: str) -> None:
    """Raise UsageError, with file and digest, for a member that the stack takes as published."""
    for selection in selections:
        if (member := stack.prebuilt.get(selection.name)) is not None:
            raise UsageError(
                f"{member.name} is taken as published by stack {stack.name}; {why}\n"
                f"  {member.file}\n  sha256 {member.sha256}",
                advice=PREBUILT_ADVICE,
            )


def run_fetch(session: Session) -> int:
    """Get every pinned input of the named packages, or of the whole stack."""
    toolkits = tuple(name for name in session.options.names if name in session.catalog.toolkits)
    only_toolkits = bool(toolkits) and len(toolkits) == len(session.options.names)
    packages = () if only_toolkits else session.selections(default_all=True, without=toolkits)
    refuse_prebuilt(packages, session.catalog.stack(session.options.stack), "there is nothing to fetch for a build")
    derivations = [instantiate(session.catalog, each) for each in packages]
    for stack in stacks_to_equip(session, toolkits, packages=bool(packages)):
        fetch_toolkit(stack, session.tools)
    fetch_all(derivations, session.tools)
    if session.options.json:
        session.document({"schema": 1, "fetched": [*toolkits, *(each.name for each in derivations)]})
    return 0


def stacks_to_equip(session: Session, named: Sequence[str], *, packages: bool) -> tuple[Stack, ...]:
    """Give the stacks whose pinned toolkit is to be fetched; UsageError where a licence is not accepted.

    A toolkit is fetched where it is named, and along with packages where its licence is accepted.
    """
    options, catalog = session.options, session.catalog
    asked = catalog.stack(options.stack)
    stacks = []
    for name in named:
        serving = [stack for _, stack in sorted(catalog.stacks.items()) if stack.toolkit == name]
        if not serving:
            raise UsageError(f"no stack takes toolkit {name}", advice=f'Name it in a stack: `toolkit = "{name}"`.')
        stacks.append(asked if asked in serving else serving[0])
        require_license(catalog.toolkits[name], stacks[-1], accepted=options.accept_license)
    given = options.cuda_home or session.runtime.env.get("CUDA_HOME")
    if packages and options.accept_license and not given and catalog.toolkit(asked).redistributable:
        stacks.append(asked)
    return tuple({stack.name: stack for stack in stacks}.values())


def require_license(toolkit: ToolkitRecipe, stack: Stack, *, accepted: bool) -> None:
    """Refuse to fetch what only comes with a licence that the user has not accepted; UsageError names it."""
    if toolkit.redistributable is not None and toolkit.wheels is None and not accepted:
        raise UsageError(
            f"{toolkit.name} comes under a licence that only you can accept: {toolkit.needs_license}",
            advice=f"Read {toolkit.redistributable.license_url}, then `{fetch_command(toolkit, stack)}`.",
        )


def run_lock(session: Session) -> int:
    """Resolve and hash a stack's requirements, or check offline that its locks are current."""
    names = session.options.names or [session.options.stack]
    written: list[Path] = []
    for name in names:
        stack = session.catalog.stack(name)
        if session.options.check:
            if problems := check(session.catalog, stack):
                raise RecipeError("; ".join(problems), file=stack.file, advice=f"Run `wheelmill lock {name}`.")
            session.console.note(f"{name}: both locks are current")
            continue
        python = session.tools.interpreter(stack.python).path
        uv = session.tools.uv()
        shared = replace(uv, index=uv.index.shared)  # what only this machine can reach has no place in a lock
        changed = lock(session.catalog, stack, uv=shared, python=python)
        session.console.note(f"{name}: " + (", ".join(path.name for path in changed) or "nothing changed"))
        written += changed
    return session.paths("changed", written) if session.options.json else 0


def run_doctor(session: Session) -> int:
    """Look at this machine: each finding with advice."""
    stack, archs = session.catalog.stack(session.options.stack), parse_archs(session.options.arch)
    return show_findings(session, survey_machine(stack, session.tools, archs))


def run_lint(session: Session) -> int:
    """Check recipes and the stack; 2 where one says something that cannot have the effect that was meant."""
    options = session.options
    request = Request(
        catalog=session.catalog,
        stack=session.catalog.stack(options.stack),
        names=tuple(canonicalize_name(name) for name in options.names),
        archs=parse_archs(options.arch),
        gpus=parse_gpus(options.gpu),
    )
    return 2 if show_findings(session, lint(request)) else 0


def run_diagnose(session: Session) -> int:
    """Give the root cause of a log; 0 where it tells of success, 130 where somebody stopped the build, else 1."""
    if len(session.options.names) != 1:
        raise UsageError(
            "diagnose reads one log", advice="Give its path, or - for stdin: `wheelmill diagnose build.log`."
        )
    verdict = diagnose(log_blocks(session.options.names[0], session.runtime.cwd), surroundings=session.surroundings)
    if session.options.json:
        session.document({"schema": 1, **verdict.to_json()})
    else:
        for line in verdict.report():
            result(line)
    return {None: 0, "interrupted": 130}.get(verdict.kind, 1)


def log_blocks(name: str, cwd: Path) -> Iterator[bytes]:
    """Read a log, or stdin, in blocks; UsageError where there is none to read."""
    if name == "-":
        yield from iter(lambda: sys.stdin.buffer.read(LOG_BLOCK), b"")
        return
    path = cwd / name
    try:
        with path.open("rb") as stream:
            yield from iter(lambda: stream.read(LOG_BLOCK), b"")
    except IsADirectoryError:
        inside = next(iter(sorted(path.glob("*.log"))), None)
        advice = f"Give a file: `wheelmill diagnose {inside or path / 'build.log'}`."
        raise UsageError(f"{path} is a folder, not a log", advice=advice) from None
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}",
            advice="Give the log of a build, or - for stdin; `wheelmill build` names its log when it fails.",
        ) from None


def run_limits(session: Session) -> int:
    """Show effective cpus, memory and processes, and where each bound comes from."""
    root = session.options.root
    limits = session.tools.limits() if root is None else capped(copied_limits(session, root), session.tools.bounds)
    usable, sources = max(0, capacity(limits.available_bytes)), limits.sources
    figures: dict[str, object] = {
        "cpus": limits.cpus,
        "memory_bytes": limits.memory_bytes,
        "capacity_bytes": usable,
        "pids": limits.pids,
        "from": sources,
    }
    if session.options.json:
        session.document({"schema": 1, **figures})
        return 0
    left = "" if limits.pids_free is None else f", {limits.pids_free} more fit now"
    result(f"cpus: {limits.cpus:g} ({sources['cpus']})")
    result(f"memory: {gib(limits.memory_bytes)} ({sources['memory']})")
    result(f"for compiles now: {gib(usable)}, of {gib(limits.available_bytes)} free ({sources['available']})")
    result(f"processes: {limits.pids or 'no limit known'}{left} ({sources['pids']})")
    return 0


def copied_limits(session: Session, root: Path) -> Limits:
    """Answer for another machine from a copy of its files; UsageError where the folder holds none."""
    directory = session.runtime.cwd / root
    if not (directory / "proc/meminfo").is_file():
        raise UsageError(
            f"--root: {directory} holds no copy of a machine's files: no proc/meminfo",
            advice="Make one there: `wheelmill limits --help` says how.",
        )
    return read_limits(directory)


def run_inspect(session: Session) -> int:
    """Show what is in wheels or libraries; as JSON, several are a list in one document."""
    kernels = session.options.kernels
    inspections = [inspect_file(path, kernels=kernels) for path in wheel_paths(session)]
    makings = [explain.making(path) for path in wheel_paths(session)]
    if session.options.json:
        documents = [
            {**inspection.to_json(kernels=kernels), "made": made and made.to_json()}
            for inspection, made in zip(inspections, makings, strict=True)
        ]
        session.document(documents[0] if len(documents) == 1 else {"schema": 1, "wheels": documents})
        return 0
    for inspection, made in zip(inspections, makings, strict=True):
        for line in inspection.report(kernels=kernels):
            result(line)
        if made is not None:
            result(f"  {made.line()}")
    return 0


def run_repair(session: Session) -> int:
    """Put wheels right, into the wheelhouse and an index."""
    stack = session.catalog.stack(session.options.stack)
    paths = wheel_paths(session)
    entries = repair_published(paths, stack, session.tools, session.wheelhouse)
    return session.paths("repaired", [entry.wheel for entry in entries])


def run_verify(session: Session) -> int:
    """Check wheels; every finding at once."""
    documents: list[dict[str, Any]] = []
    failed: list[VerifyError] = []
    for path in wheel_paths(session):
        try:
            findings = judged(path, session)
            documents.append({"wheel": path.name, "findings": [finding.to_json() for finding in findings]})
            for finding in findings:
                session.console.note(f"{finding.status:5} {finding.id}: {finding.message}")
            require(path, findings)
        except VerifyError as error:
            failed.append(error)
            session.console.failure(error)
    if session.options.json:
        session.document({"schema": 1, "findings": [f for d in documents for f in d["findings"]], "wheels": documents})
    return failed[-1].exit_status if failed else 0


def judged(path: Path, session: Session) -> tuple[Finding, ...]:
    """Check one wheel; one that cannot be read is a finding, too."""
    try:
        return judge_file(path, expectation_of(path, session))
    except VerifyError as error:
        return (Finding(id="readable", status="error", subject=path.name, message=str(error), advice=error.advice),)


def expectation_of(path: Path, session: Session) -> Expectation:
    """Say what a wheel shall be: what it claims of itself, the archs asked for, and what its recipe says."""
    options = session.options
    wheel, problems = scan(path)
    if wheel is None or problems:
        return Expectation()
    claims = claimed(path)
    recipe = session.catalog.recipes.get(wheel.name)
    release = recipe.releases.get(str(Version(wheel.version).public)) if recipe else None
    if release is not None:
        checks = release.checks
        claims = replace(
            claims, top_level=checks.top_level, extensions=checks.extensions, code=checks.code, absent=checks.absent
        )
    stack = session.catalog.stack(options.stack)
    return replace(
        claims,
        archs=parse_archs(options.arch) or claims.archs,
        surroundings=beside(wheel, stack, session.tools),
        channel=options.channel,
    )


def run_measure(session: Session) -> int:
    """Compile a package's units to learn what each takes; their lines for a table of peaks on stdout."""
    options, results = session.options, []
    for selection in session.selections(default_all=False):
        measured = measure(instantiate(session.catalog, selection), options.unit or [], session.tools)
        results.append(measured)
        session.console.note(
            f"{len(measured.units)} units in {spell_seconds(measured.seconds)}, "
            f"{spell_seconds(measured.cpu_seconds)} of CPU time; ideal {spell_seconds(measured.ideal_seconds)}"
        )
        if options.table is not None:
            units = refresh(options.table, measured.samples)
            session.console.note(f"{options.table}: {units} units")
        if not options.json:
            for sample in measured.samples:
                result(to_line(sample))
    if options.json:
        session.document({"schema": 1, "measurements": [measured.to_json() for measured in results]})
    return 0


def run_rebuild(session: Session) -> int:
    """Build a wheel again from what it carries; 9 unless the bytes are the same."""
    wheel = only_wheel(session)
    options = session.options
    done = rebuild(wheel, session.tools, trust=options.trust, vary=options.vary)
    grade = done.comparison.grade
    if options.json:
        session.document(done.to_json())
    else:
        result(f"{grade}: {wheel.name}")
        for each in done.comparison.differences:
            result(f"  {each.line()}")
        for reason in done.reasons:
            result(f"  why: {reason.text}")
    if done.kept is not None:
        session.console.warn(f"the second wheel is kept: {done.kept}")
    return 0 if grade == "identical" else NotReproducibleError.exit_status


def only_wheel(session: Session) -> Path:
    """Give the one wheel named; UsageError for several."""
    first, *more = wheel_paths(session)
    if more:
        raise UsageError(f"{session.options.command} takes one wheel at a time, not {len(more) + 1}")
    return first


def run_why(session: Session) -> int:
    """Say which inputs of two builds differ, or why no wheel of the wheelhouse served a build."""
    names = session.options.names
    if len(names) == 2:
        first, second = (explain.subject(name, cwd=session.runtime.cwd, house=session.wheelhouse) for name in names)
    elif len(names) == 1 and not names[0].endswith((".whl", ".json")):
        [selection] = session.selections(default_all=False)
        derivation = instantiate(session.catalog, selection)
        second = explain.of_derivation(derivation)
        found = explain.relatives(derivation, session.wheelhouse)
        if not found:
            raise NothingSelectedError(
                f"{session.wheelhouse.root} has no wheel of {derivation.name}",
                advice=f"Build one: `{build_command(derivation)}`.",
            )
        first = found[0]
    else:
        raise UsageError(
            "why compares two builds, or a package with the wheelhouse",
            advice="Give two of wheel, build record, hash; or one package: `wheelmill why flash-attn`.",
        )
    reasons = explain.reasons(first, second)
    same = first.drv == second.drv
    if session.options.json:
        document = {"first": first.label, "second": second.label, "same_derivation": same}
        session.document({"schema": 1, **document, "reasons": [reason.to_json() for reason in reasons]})
        return 0
    result(f"{first.label}  drv {first.drv[:12]}\n{second.label}  drv {second.drv[:12]}")
    if not reasons:
        result("  no input differs: the same derivation" + (", the same realisation" if second.found else ""))
    for reason in reasons:
        result(f"  {reason.text}")
    return 0


def run_ps(session: Session) -> int:
    """Show the builds of this user that run here."""
    running = open_roster(session.runtime.env).others()
    if session.options.json:
        session.document({"schema": 1, "builds": [as_json(each) for each in running]})
        return 0
    for each in running:
        result(paragraph(each, time.time()))
    if not running:
        session.console.note("nothing is being built")
    return 0


def run_stop(session: Session) -> int:
    """End running builds, each with its whole tree."""
    options, roster = session.options, open_roster(session.runtime.env)
    stopped = []
    for each in chosen(roster, options.names, everything=options.all):
        session.console.step(f"stop {title(each)}")
        how = end(roster.target(each))
        session.console.note(f"{how}; finished objects stay, the same build goes on with them")
        stopped.append({"name": each.occupant.name, "drv": each.occupant.drv, "pid": each.occupant.pid, "how": how})
    if options.json:
        session.document({"schema": 1, "stopped": stopped})
    return 0


def run_log(session: Session) -> int:
    """Show the log of a build, with --follow until it ends."""
    options = session.options
    log = find_log(open_roster(session.runtime.env), session.runtime.directories, options.names)
    if options.json:
        session.document({"schema": 1, "log": str(log.path), "running": log.running()})
        return 0
    for line in log_lines(log, follow_it=options.follow):
        result(line)
        if options.follow:
            sys.stdout.flush()
    return 0


def run_gc(session: Session) -> int:
    """Free space in the cache."""
    freed = list(collect(session.runtime.directories, everything=session.options.all))
    if session.options.json:
        session.document({"schema": 1, "freed": [{"path": str(each.path), "size": each.size} for each in freed]})
    for each in freed:
        session.console.note(f"{each.path}: {gib(each.size)}")
    session.console.note(f"freed {gib(sum(each.size for each in freed))}")
    return 0


def run_verify_stack(session: Session) -> int:
    """Compare an environment with the pinned stack."""
    stack = session.catalog.stack(session.options.stack)
    if session.options.python is None:
        raise UsageError(
            "verify-stack needs the environment's interpreter",
            advice=f"wheelmill verify-stack --stack {stack.name} --python ENV/bin/python",
        )
    recipes = session.catalog.recipes
    findings = verify_stack(
        stack,
        session.catalog.run_lock(stack),
        python=session.runtime.cwd / session.options.python,
        modules={
            name: recipes[name].releases[version].checks.imports
            for name, version in stack.packages.items()
            if name in recipes and version in recipes[name].releases
        },
        runner=session.runner,
        here=here(session),
    )
    return 8 if show_findings(session, findings) else 0


def here(session: Session) -> Here:
    """Look at the machine that is to run the stack."""
    env, house = session.runtime.env, session.wheelhouse
    compilers = (env.get("CC", ""), *COMPILERS)
    found = [path for name in compilers if name and (path := shutil.which(name, path=env.get("PATH")))]
    libc = re.fullmatch(r"([0-9]+)\.([0-9]+).*", platform.libc_ver()[1])
    return Here(
        driver=read_driver(binding()),
        glibc=(int(libc[1]), int(libc[2])) if libc else (0, 0),
        compilers=tuple(found),
        wheels=tuple(sorted(house.root.glob("*.whl"))),
        built={entry.wheel.name: entry.sha256 for entry in house.entries()},
    )


def run_index(session: Session) -> int:
    """Write the static indexes of the wheelhouse again."""
    house = session.wheelhouse
    labels: dict[str, list[Path]] = {}
    entries = house.entries()
    for entry in entries:
        if entry.index:
            labels.setdefault(entry.index, []).append(entry.wheel)
        else:
            session.console.warn(f"{entry.wheel.name} stands in no index: its build record names none; build it again")
    for folder in remove_indexes(house.root, but=labels):
        session.console.note(f"{folder}: removed, no wheel stands in it")
    if not entries:
        raise NothingSelectedError(f"no wheel in {house.root}", advice="Build one: `wheelmill build flash-attn`.")
    folders = [write_index(house.root, label, wheels) for label, wheels in sorted(labels.items())]
    return session.paths("indexes", folders)


def run_install(session: Session) -> int:
    """Install wheels of the wheelhouse beside the stack's run lock, offline and with hashes, into an environment."""
    stack, house = session.catalog.stack(session.options.stack), session.wheelhouse
    derivations = [instantiate(session.catalog, each) for each in session.selections(default_all=True)]
    entries = {each.drv: house.find(each.drv) for each in derivations}
    if missing := [each for each in derivations if entries[each.drv] is None]:
        raise NothingSelectedError(
            f"{house.root} lacks {', '.join(f'{each.name} {each.full_version}' for each in missing)}",
            advice=f"Build what is missing: {'; '.join(f'`{build_command(each)}`' for each in missing)}; or name what "
            "to install: `wheelmill install NAME`.",
        )
    venv = session.runtime.cwd / session.options.into
    installation = Installation(
        interpreter=session.tools.interpreter(stack.python).path,
        venv=venv,
        lock=session.catalog.run_lock(stack),
        wheels=tuple(PinnedWheel(path=entry.wheel, sha256=entry.sha256) for entry in entries.values() if entry),
        modules=tuple(name for each in derivations for name in each.release.checks.imports),
    )
    proof = offline_install(installation, uv=session.tools.uv())
    session.console.note(f"{len(proof.distributions)} distributions; {', '.join(proof.modules)} imported")
    return session.paths("environments", [venv])


def build_command(derivation: Derivation) -> str:
    """Give the command that builds a derivation of a stack's own archs."""
    variant = f" --variant {derivation.variant.name}" if derivation.variant else ""
    return f"wheelmill build {derivation.name} --stack {derivation.stack.name}{variant}"


def run_later(session: Session) -> int:
    """Say that a command is not there yet."""
    raise UsageError(LATER[session.options.command])


def wheel_paths(session: Session) -> tuple[Path, ...]:
    """Give the wheels named; NothingSelectedError without one."""
    if not session.options.names:
        raise NothingSelectedError(
            "no wheel named", advice=f"Give a path: `wheelmill {session.options.command} wheelhouse/NAME.whl`."
        )
    return tuple(session.runtime.cwd / name for name in session.options.names)


def show_findings(session: Session, findings: Sequence[Finding]) -> int:
    """Print findings; 5 where one is an error."""
    if session.options.json:
        session.document({"schema": 1, "findings": [finding.to_json() for finding in findings]})
    else:
        for finding in findings:
            result(f"{finding.status:5} {finding.subject}: {finding.message}")
            if finding.advice and finding.status in {"warn", "error"}:
                result(f"      next: {finding.advice}")
    return 5 if any(finding.status == "error" for finding in findings) else 0


# parser ----------------------------------------------------------------------------------------------


RUN: dict[str, Callable[[Session], int]] = {
    "plan": run_plan,
    "doctor": run_doctor,
    "lint": run_lint,
    "diagnose": run_diagnose,
    "limits": run_limits,
    "lock": run_lock,
    "fetch": run_fetch,
    "build": run_build,
    "ps": run_ps,
    "stop": run_stop,
    "log": run_log,
    "rebuild": run_rebuild,
    "why": run_why,
    "inspect": run_inspect,
    "repair": run_repair,
    "verify": run_verify,
    "verify-stack": run_verify_stack,
    "index": run_index,
    "install": run_install,
    "measure": run_measure,
    "gc": run_gc,
    "build-stack": run_later,
    "release": run_later,
}
"""What does each command."""


def main(argv: Sequence[str]) -> int:
    """Run one command and give the exit status."""
    options = make_parser().parse_args(argv, Options())
    runtime = capture(cache=options.cache, wheelhouse=options.wheelhouse)
    console = make_console(quiet=options.quiet, no_colour="NO_COLOR" in runtime.env)
    session = Session(options=options, runtime=runtime, console=console, runner=SystemRunner())
    try:
        return RUN[options.command](session)
    except WheelmillError as error:
        return report_failure(session, error)
    except BrokenPipeError:
        raise
    except OSError as error:
        return report_failure(session, of_system(error, cache=runtime.directories.cache))
    except KeyboardInterrupt:
        return report_failure(session, InterruptedBuildError("interrupted"))
    finally:
        sys.stdout.flush()


def report_failure(session: Session, error: WheelmillError) -> int:
    """Report a failure, as JSON too where that was asked for; give its exit status."""
    session.console.failure(error)
    if session.options.json:
        session.document({"schema": 1, "error": error_document(error)})
    return error.exit_status


def error_document(error: WheelmillError) -> dict[str, object]:
    """Give a failure as JSON."""
    return {"kind": error.kind, "exit": error.exit_status, "message": str(error), "advice": error.advice}
