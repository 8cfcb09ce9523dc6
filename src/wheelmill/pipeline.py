"""The whole line: from a derivation to a verified wheel in the wheelhouse; the top function reads like the design."""

import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import cgroups, sbom
from . import toolkit as toolkits
from ._console import Reporter
from ._process import Runner
from ._uv import Uv
from .account import Foresight, Means, Terms
from .arch import Arch
from .attest import statement
from .build import BuiltWheel, Equipment, Walls, Workplace, build_wheel, occupied, recorded, retire, shut_in
from .carry import carried
from .catalog import Catalog, patches_folder
from .configuration import prove, require_effect
from .derivation import Derivation, Selection, instantiate
from .doctor import examine, sandbox_finding
from .environment import BuildEnvironment, create, demand
from .errors import (
    CommandFailedError,
    EnvironmentUnfitError,
    InterruptedBuildError,
    OccupiedError,
    RecipeError,
    ResourcesError,
    ToolkitError,
    VerifyError,
    WheelmillError,
    of_system,
)
from .fetch import FetchedSource, FetchedTree, fetch
from .following import follow, take_over, told_elsewhere
from .index import write_index
from .install import Installation, PinnedWheel, offline_install
from .interpreter import Interpreter, find_interpreter
from .limits import Limits, find_places, read_limits, read_now
from .lock import subset
from .nvml import binding, read_driver
from .peaks import Peaks, read_peaks, table_name
from .places import IndexSettings, index_settings
from .plan import Forecast, Plan, Planned, ToolkitSummary, Wanted, forecast, refused, spell_seconds
from .platforms import above, brought_in, explain_above, platform_called
from .preflight import SAME_RELEASE, Finding, Situation, checks
from .preflight import require as require_fit
from .provenance import BuildRecord, Found, Origin, embedded, gather, marks, realisation
from .records import CompileSummary
from .redist import provide
from .repair import AuditedWheel, Stamp, StampedWheel, audit, release, repair_policy, stamp
from .resources import Grant
from .resume import resume
from .roster import Occupant, Seat, open_roster
from .runtime import Runtime
from .sandbox import CUDA, ROOT, Rung, laid_out, probe, second_rung
from .sbom import Linked
from .shims import HostCompiler, ObjectCache, host_compilers
from .source import SourceTree, prepare
from .stack import Stack
from .store import Store
from .tenancy import settle, telling
from .toolkit import Machine, Need, Toolkit, choose, make_view, minor_mismatch, wheels_toolkit
from .verify import FACTS, Beside, VerifiedWheel, expected, inspect_and_judge, require
from .watch import Watch
from .wheel_file import read_wheel
from .wheelhouse import Entry, Wheelhouse


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """The user's caps: jobs, memory in bytes, cores. None: no cap."""

    max_jobs: int | None = None
    memory: int | None = None
    cpus: int | None = None
    nvcc_threads: int | None = None
    """No cap: what the user would have set; only plans speak of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tools:
    """What the stages need besides the derivation."""

    runtime: Runtime
    runner: Runner
    report: Reporter
    catalog: Catalog
    offline: bool
    cuda_home: str | None
    python: str | None
    bounds: Bounds
    seat: Seat | None = None
    """This build's place in the roster, once it has one."""
    takeover: bool = False
    """A running build of the same derivation is ended, not followed."""
    watch: Watch = field(default_factory=Watch)

    @property
    def machine(self) -> Machine:
        """Where toolkits are looked for."""
        return Machine(
            env=self.runtime.env,
            runner=self.runner,
            directories=self.runtime.directories,
            cwd=self.runtime.cwd,
            driver=driver_version(Path("/proc/driver/nvidia/version")),
        )

    def uv(self) -> Uv:
        """Make the uv that fills environments."""
        return Uv(
            runner=self.runner,
            env=self.runtime.env,
            index=self.index,
            offline=self.offline,
            on_line=self.heard,
        )

    def heard(self, line: str) -> None:
        """Pass on what uv does, without its list of every distribution."""
        if not line.startswith(" + "):
            self.report.note(line)

    @property
    def index(self) -> IndexSettings:
        """Where this user's files come from."""
        return index_settings(self.runtime.env, Path(self.runtime.env.get("HOME", "/")))

    def interpreter(self, release: str) -> Interpreter:
        """Find the interpreter to build for."""
        return find_interpreter(release, given=self.python, env=self.runtime.env, runner=self.runner)

    def limits(self) -> Limits:
        """Read what this process may use now, within the user's caps."""
        return capped(self.here(), self.bounds)

    def limits_reader(self) -> Callable[[], Limits]:
        """Give what reads the limits again and again: where they stand is looked for once."""
        places = find_places(affinity=frozenset(os.sched_getaffinity(0)))
        return lambda: capped(read_now(places), self.bounds)

    def here(self) -> Limits:
        """Read what this process may use now."""
        return read_limits(affinity=frozenset(os.sched_getaffinity(0)))

    def elsewhere(self) -> Limits:
        """Give the limits of the machine that --cpus and --memory describe: all of it free."""
        found, bounds = self.here(), self.bounds
        return replace(
            found,
            cpus=bounds.cpus or found.cpus,
            memory_bytes=bounds.memory or found.memory_bytes,
            available_bytes=bounds.memory or found.available_bytes,
            pids_free=None if bounds.cpus or bounds.memory else found.pids_free,
        )


def capped(found: Limits, bounds: Bounds) -> Limits:
    """Hold limits to the user's caps; a cap that decides is named as the source."""
    cpus, memory = bounds.cpus or found.cpus, bounds.memory
    caps = {
        "cpus": "--cpus" if cpus < found.cpus else None,
        "memory": "--memory" if memory and memory < found.memory_bytes else None,
        "available": "--memory" if memory and memory < found.available_bytes else None,
    }
    return replace(
        found,
        cpus=min(found.cpus, cpus),
        memory_bytes=min(found.memory_bytes, memory or found.memory_bytes),
        available_bytes=min(found.available_bytes, memory or found.available_bytes),
        sources={**found.sources, **{name: option for name, option in caps.items() if option}},
    )


def need_of(derivation: Derivation) -> Need:
    """Say what a derivation needs of a toolkit."""
    return Need(
        recipe=derivation.toolkit,
        lock=derivation.toolkit_lock,
        build_lock=derivation.build_lock,
        stack=derivation.stack,
        archs=derivation.archs,
    )


def need_of_stack(stack: Stack, catalog: Catalog) -> Need:
    """Say what a stack needs of a toolkit, whatever is built."""
    recipe = catalog.toolkit(stack)
    return Need(
        recipe=recipe,
        lock=catalog.toolkit_lock(recipe),
        build_lock=catalog.build_lock(stack),
        stack=stack,
        archs=stack.archs,
    )


# the line --------------------------------------------------------------------------------------------


def realise(derivation: Derivation, tools: Tools, house: Wheelhouse) -> "Built":
    """Build, repair and verify one derivation, and enter it into the wheelhouse; or follow who does that already."""
    while (there := present(derivation, house)) is None:
        house.check_free(derivation.wheel_name, derivation.drv)
        try:
            with (
                occupied(derivation, tools.runtime.directories) as place,
                telling(place.root, tools.report) as report,
                seated(derivation, place, replace(tools, report=report)) as here,
            ):
                return realised(derivation, place, here, house)
        except OccupiedError as error:
            join(derivation, error.place, tools, house)
    return there


def realised(derivation: Derivation, place: Workplace, tools: Tools, house: Wheelhouse) -> "Built":
    """Build, repair and verify one derivation in a workplace of its own, and enter it into the wheelhouse."""
    started = time.monotonic()
    if (there := present(derivation, house)) is not None:  # another process was at it, and is done
        settle(place.root, wheel=there.wheel, sha256=there.sha256)
        retire(place)
        return there
    fitted = fit(derivation, tools)
    made = make(derivation, fitted, place, tools)
    verified = verify(made.stamped, place, fitted, derivation, tools)
    verified = replace(verified, findings=(*made.proof, *verified.findings))
    origin, seconds = origin_of(derivation, tools), time.monotonic() - started
    record = make_record(made, verified, derivation, jobs=fitted.grant.granted, seconds=seconds, origin=origin)
    for mark in marks(made.found.to_json(), origin):
        tools.report.note(f"marked: {mark}")
    entry = enter(verified, record, place, house, tools)
    settle(place.root, wheel=entry.wheel, sha256=entry.sha256)
    retire(place)
    return Built(derivation=derivation, wheel=entry.wheel, record=record, seconds=record.seconds, sha256=entry.sha256)


def join(derivation: Derivation, place: Path, tools: Tools, house: Wheelhouse) -> None:
    """Follow the build of this derivation that runs in a workplace, or end it (--takeover); then look again.

    Raises what the other failed with; its wheel, in another wheelhouse, is taken into this one.
    """
    if tools.takeover:
        take_over(place, tools.report)
        return
    outcome = follow(place, tools.report)
    if outcome is None:
        return
    if outcome.status:
        raise outcome.failure()
    if Path(outcome.wheelhouse) == house.root:
        return
    entry = Wheelhouse(root=Path(outcome.wheelhouse)).find(derivation.drv)
    if entry is not None:
        tools.report.step(f"takes {entry.wheel} into this wheelhouse")
        entry.check()
        record = json.loads(entry.build_record.read_text("utf-8"))
        proof = entry.proof.read_bytes() if entry.proof.is_file() else None
        house.enter(entry.wheel, build_record=record, log=entry.log, proof=proof)
        index_again(house, derivation.index_label)


@contextmanager
def seated(derivation: Derivation, place: Workplace, tools: Tools) -> Iterator[Tools]:
    """Enter a build into the roster of this user: it admits compiles against one account with all others."""
    occupant = Occupant(
        name=derivation.name,
        version=derivation.full_version,
        drv=derivation.drv,
        pid=os.getpid(),
        workplace=place.root,
        log=place.log,
        wheelhouse=tools.runtime.directories.wheelhouse,
        started=time.time(),
    )
    roster = open_roster(tools.runtime.env)
    if elsewhere := told_elsewhere(roster, derivation.drv, place.root):
        tools.report.warn(elsewhere)
    with roster.enter(occupant) as seat:
        tools.watch.when_lost(seat.detach)
        yield replace(tools, seat=seat)


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A repaired wheel in its workplace, and how it came about."""

    built: BuiltWheel
    proof: tuple[Finding, ...]
    found: Found
    stamped: StampedWheel


def make(derivation: Derivation, fitted: "Fitted", place: Workplace, tools: Tools) -> Made:
    """Build and repair one derivation."""
    fetched = fetch_input(derivation, tools)
    tree = patched_tree(fetched, derivation, place, tools)
    equipment = equip(derivation, fitted, place, tools)
    built = compiled(tree, place, equipment, derivation, tools)
    proof = effect(derivation, place, tools)
    found = gather(
        fitted.host,
        fitted.toolkit,
        fitted.interpreter,
        libc=" ".join(platform.libc_ver()),
        ccache=equipment.cache is not None,
        sandbox=fitted.rung.name,
    )
    stamped = repaired(built, fetched, tree, place, equipment, derivation, found, tools)
    return Made(built=built, proof=proof, found=found, stamped=stamped)


def present(derivation: Derivation, house: Wheelhouse) -> "Built | None":
    """Give the wheel that is in the wheelhouse already; VerifyError where it was altered there."""
    entry = house.find(derivation.drv)
    if entry is None:
        return None
    entry.check()
    return Built(derivation=derivation, wheel=entry.wheel, record=None, seconds=0.0, sha256=entry.sha256)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """What preflight found to build with."""

    interpreter: Interpreter
    toolkit: Toolkit
    host: HostCompiler
    grant: Grant
    rung: Rung


def fit(derivation: Derivation, tools: Tools) -> Fitted:
    """Check the machine before anything starts; every problem at once."""
    tools.report.step(f"{derivation.name} {derivation.full_version}  drv {derivation.drv[:12]}")
    require_probes(derivation)
    limits = tools.limits()
    findings = checks(situation(derivation.stack, need_of(derivation), tools, limits))
    warn_of(findings, tools.report)
    require_fit(findings)
    toolkit = choose(need_of(derivation), tools.machine, given=tools.cuda_home)
    ahead = forecast_for(derivation, limits, tools.bounds, known_peaks(derivation, tools), toolkit.nvcc_version)
    tools.report.note(ahead.paragraph)
    return Fitted(
        interpreter=tools.interpreter(derivation.python),
        toolkit=toolkit,
        host=host_compilers(lambda name, path: shutil.which(name, path=path), tools.runner, tools.runtime.env),
        grant=ahead.grant,
        rung=walls(tools),
    )


def warn_of(findings: Sequence[Finding], report: Reporter) -> None:
    """Tell what does not stop a build, variables that stay outside in one line."""
    warnings = [finding for finding in findings if finding.status == "warn"]
    outside = [finding.subject for finding in warnings if finding.id == "variable"]
    for finding in warnings:
        if finding.id != "variable":
            report.warn(f"{finding.message}\n{finding.advice}".strip())
    if outside:
        report.note(f"set here and kept out of the build: {', '.join(outside)}")


def walls(tools: Tools) -> Rung:
    """Find out how far the build can be shut in; less than wholly is said."""
    rung = second_rung(probe(tools.runner, tools.runtime.python), uid=os.geteuid())
    if rung.name == "folder":
        tools.report.warn(
            f"no namespaces: {rung.reason}. The build runs in real folders below {ROOT}, one at a time; the network is "
            f"not cut. {rung.advice}"
        )
    if rung.name == "none":
        tools.report.warn(
            f"no sandbox: {rung.reason}. The network is not cut, and equal bytes are promised for equal paths only. "
            f"{rung.advice}"
        )
    return rung


def situation(stack: Stack, need: Need, tools: Tools, limits: Limits) -> Situation:
    """Put together what preflight and doctor look at."""
    return Situation(
        need=need,
        build_lock=tools.catalog.build_lock(stack),
        machine=tools.machine,
        python=tools.python,
        cuda_home=tools.cuda_home,
        limits=limits,
        driver=read_driver(binding()),
        tools=tools.runtime.python.parent,
    )


def forecast_for(derivation: Derivation, limits: Limits, bounds: Bounds, peaks: Peaks, nvcc: str) -> Forecast:
    """Say how a build will go; a variant has figures of its own."""
    return forecast(
        (derivation.variant or derivation.release).resources,
        peaks,
        Wanted(
            archs=tuple(sorted(arch.sm for arch in derivation.archs)),
            threads=derivation.release.nvcc_threads,
            nvcc=nvcc,
        ),
        limits=limits,
        requested=bounds.max_jobs,
    )


def pinned_nvcc(derivation: Derivation) -> str:
    """Give the version of the compiler that is pinned, empty where none is."""
    lock, recipe = derivation.toolkit_lock, derivation.toolkit
    if lock is not None and "nvidia-cuda-nvcc" in lock.pins:
        return lock.pins["nvidia-cuda-nvcc"].version
    return recipe.redistributable.nvcc if recipe.redistributable is not None else ""


def fetch_input(derivation: Derivation, tools: Tools) -> FetchedSource | FetchedTree:
    """Get the pinned source."""
    tools.report.step("fetch")
    recipe, runtime = derivation.recipe, tools.runtime
    return fetch(
        derivation.release.source,
        store=Store(root=runtime.directories.store, warn=tools.report.warn),
        index=tools.index,
        base=Path(recipe.file).parent,
        offline=tools.offline,
        place=f'{recipe.file}: version."{derivation.version}".source',
    )


def patched_tree(
    fetched: FetchedSource | FetchedTree, derivation: Derivation, place: Workplace, tools: Tools
) -> SourceTree:
    """Unpack and patch, unless a tree of an earlier start is there to go on with."""
    earlier = resume(place, derivation.source_date_epoch)
    tools.report.step("source tree" + (f": {earlier.told}" if earlier else ""))
    return prepare(
        fetched,
        patches=derivation.patches,
        must_exist=derivation.release.must_exist,
        licenses=[entry.path for entry in derivation.release.licenses],
        destination=place.source,
        epoch=derivation.source_date_epoch,
    )


def equip(derivation: Derivation, fitted: Fitted, place: Workplace, tools: Tools) -> Equipment:
    """Make the locked environment and the toolkit's view."""
    directories = tools.runtime.directories
    tools.report.step(f"build environment ({len(derivation.build_lock.pins)} locked files, CUDA {fitted.toolkit.cuda})")
    environment = create(derivation.build_lock, fitted.interpreter, directories=directories, uv=tools.uv())
    demand(environment, derivation.release.build_requires, tools.runner, lock=derivation.build_lock)
    cache_run_files(derivation, environment, place.tmp, tools)
    if derivation.toolkit_lock is not None and fitted.toolkit.provider == "wheels":
        toolkits.install(
            fitted.toolkit, derivation.toolkit_lock, python=environment.python, directories=directories, uv=tools.uv()
        )
    shutil.rmtree(place.view, ignore_errors=True)
    target = None if fitted.rung.name == "none" else CUDA
    view = make_view(fitted.toolkit, place.view, gcc=str(fitted.host.cc), runner=tools.runner, target=target)
    ccache = tools.runtime.python.parent / "ccache"
    objects = ObjectCache(ccache=ccache, directory=directories.objects / derivation.name)
    cache = objects if ccache.is_file() else None
    sandbox = shut_in(
        place,
        Walls(rung=fitted.rung, python=tools.runtime.python, interpreter=fitted.interpreter.path),
        environment=environment,
        toolkit=fitted.toolkit,
        host=fitted.host,
        cache=cache,
        runner=tools.runner,
    )
    return Equipment(
        environment=environment,
        toolkit=fitted.toolkit,
        view=view,
        host=fitted.host,
        cache=cache,
        grant=fitted.grant,
        box=sandbox,
        terms=Terms(jobs=tools.bounds.max_jobs, memory_bytes=tools.bounds.memory),
        means=Means(
            backend=cgroups.probe(),
            limits=tools.limits_reader(),
            roster=open_roster(tools.runtime.env) if tools.seat else None,
            seat=tools.seat,
        ),
        foresight=foresee(derivation, fitted, tools),
    )


def peaks_files(derivation: Derivation, tools: Tools) -> tuple[Path, Path]:
    """Name the table that the recipe ships, and the one that was learned here."""
    name = table_name(derivation.name, derivation.variant.name if derivation.variant else None)
    return Path(derivation.recipe.file).parent / "peaks" / name, tools.runtime.directories.peaks / name


def known_peaks(derivation: Derivation, tools: Tools) -> Peaks:
    """Read what is known of the compiles of a derivation, and of the package's other variants."""
    own = peaks_files(derivation, tools)
    shipped, learned = own
    kin = sorted(
        path
        for folder in (shipped.parent, learned.parent)
        for pattern in (f"{derivation.name}.jsonl", f"{derivation.name}.*.jsonl")
        for path in folder.glob(pattern)
        if path not in own
    )
    return Peaks(
        (*read_peaks(shipped), *read_peaks(learned, learned=True)),
        kin=(sample for path in kin for sample in read_peaks(path, learned=path.parent == learned.parent)),
    )


def foresee(derivation: Derivation, fitted: Fitted, tools: Tools) -> Foresight:
    """Gather what the governor knows of the compiles before they run."""
    host = f"g++ {fitted.host.version.split()[-1]}"
    names = ("gcc", "g++", "cc", "c++", f"{fitted.host.triplet}-gcc", f"{fitted.host.triplet}-g++")
    return Foresight(
        peaks=known_peaks(derivation, tools),
        tools={"nvcc": f"nvcc {fitted.toolkit.nvcc_version}", **dict.fromkeys(names, host)},
        fallback_bytes=(derivation.variant or derivation.release).resources.memory_per_compile,
        learned=peaks_files(derivation, tools)[1],
    )


def cache_run_files(derivation: Derivation, environment: BuildEnvironment, scratch: Path, tools: Tools) -> None:
    """Bring what verify installs, and the build environment lacks, into uv's cache: verify works without a network."""
    known = {(pin.name, pin.version) for pin in derivation.build_lock.pins.values()}
    more = [pin for pin in derivation.run_lock.pins.values() if (pin.name, pin.version) not in known]
    if more:
        site = scratch / "run-files"
        into = ("--python", str(environment.python), "--target", str(site))
        rest = subset(derivation.run_lock, more)
        tools.uv().install(rest, file=scratch / "run-files.txt", into=into, site=site, log=scratch / "run-files.log")
        shutil.rmtree(site)


def compiled(
    tree: SourceTree, place: Workplace, equipment: Equipment, derivation: Derivation, tools: Tools
) -> BuiltWheel:
    """Build, and say what it took."""
    tools.report.step(f"build, log in {place.log}")
    with laid_out(equipment.box):
        built = build_wheel(tree, place, equipment, derivation, runner=tools.runner, report=tools.report)
    took = built.compiles
    tools.report.note(
        f"{took.compiles - took.links} compiles ({took.cache_hits} from the object cache), {took.links} links, "
        f"{spell_seconds(took.cpu_seconds)} of CPU time"
    )
    return built


def effect(derivation: Derivation, place: Workplace, tools: Tools) -> tuple[Finding, ...]:
    """Prove that what was asked for reached the compilers, in this start of the build or in an earlier one."""
    findings = prove(derivation, recorded(place.records))
    for finding in findings:
        (tools.report.note if finding.status == "ok" else tools.report.warn)(finding.message)
    require_effect(derivation, findings)
    return findings


def repaired(
    built: BuiltWheel,
    fetched: FetchedSource | FetchedTree,
    tree: SourceTree,
    place: Workplace,
    equipment: Equipment,
    derivation: Derivation,
    found: Found,
    tools: Tools,
) -> StampedWheel:
    """Audit the wheel, give it its final name and facts; nothing is grafted, no ELF byte changes."""
    tools.report.step("repair and stamp")
    tool_bin = tools.runtime.python.parent
    env = {"PATH": f"{tool_bin}:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(place.home), "TMPDIR": str(place.tmp)}
    policy = repair_policy(equipment.environment.site_packages)
    audited = audit(built.path, policy=policy, runner=tools.runner, env=env)
    for line in missed_floor(audited, tree, derivation.stack):
        tools.report.warn(line)
    audited = with_floor(audited, derivation.stack)
    linked = Linked(external=audited.external, static_runtime=audited.static_runtime)
    files = {FACTS: embedded(derivation, found), sbom.FILE: sbom.bill(derivation, found, linked)}
    final = place.out / "stamped"
    final.mkdir()
    stamped = stamp(
        audited,
        stamp=Stamp(
            version=derivation.full_version,
            build_tag=str(derivation.release.revision),
            epoch=derivation.source_date_epoch,
            requires={"torch": f"=={derivation.stack.torch.version}"},
            files={**files, **carried(derivation, fetched)},
            licenses=missing_licenses(built, tree, derivation),
        ),
        destination=final,
    )
    for text in stamped.warnings:
        tools.report.warn(text)
    return stamped


def missed_floor(audited: AuditedWheel, tree: SourceTree, stack: Stack) -> list[str]:
    """Say for each symbol above the stack's own platform which object brings it in; nothing where there is none."""
    wanted = platform_called(f"{stack.platform}_x86_64")
    if wanted is None or release(audited.platform_tag) <= release(wanted.tag):
        return []
    found = above(audited.elf, wanted)
    lines = explain_above(found, brought_in(found, tree.root))
    return [f"the wheel is {audited.platform_tag}, newer than {wanted.tag}: {line}" for line in lines]


def with_floor(audited: AuditedWheel, stack: Stack) -> AuditedWheel:
    """Raise the platform tag to the stack's: where torch does not install, the wheel is of no use."""
    own = f"{stack.platform}_x86_64"
    return replace(audited, platform_tag=max(audited.platform_tag, own, key=release))


def missing_licenses(built: BuiltWheel, tree: SourceTree, derivation: Derivation) -> dict[str, bytes]:
    """Read the licence texts that the backend did not put into the wheel itself."""
    wheel = read_wheel(built.path)
    inside = [name for name in wheel.record if name.startswith(f"{wheel.dist_info}/")]
    return {
        entry.path: licence_text(tree, entry.path)
        for entry in derivation.release.licenses
        if not any(name.endswith(f"/{entry.path}") for name in inside)
    }


def licence_text(tree: SourceTree, name: str) -> bytes:
    """Read a licence out of the tree, as the build left it: a link could lead to any file of ours."""
    path = tree.root / name
    if path.resolve() != tree.root.resolve() / name or not path.is_file():
        raise VerifyError(
            f"the licence {name} is no file of the source tree after the build",
            advice="Read what the package's build does to it, or correct the recipe's `licenses`.",
        )
    return path.read_bytes()


def verify(
    stamped: StampedWheel, place: Workplace, fitted: Fitted, derivation: Derivation, tools: Tools
) -> VerifiedWheel:
    """Run every check, the last one an offline install beside the locked torch and an import."""
    tools.report.step("verify")
    lock, directories = derivation.build_lock, tools.runtime.directories
    site = create(lock, fitted.interpreter, directories=directories, uv=tools.uv()).site_packages
    expectation = replace(
        expected(derivation),
        surroundings=Beside(site_packages=site, policy=repair_policy(site)),
        machine_paths=(str(tools.runtime.directories.cache), tools.runtime.env.get("HOME", "")),
        shut_in=fitted.rung.name != "none",
    )
    inspection, findings = inspect_and_judge(stamped.path, expectation)
    require(stamped.path, findings)
    proof = offline_install(
        Installation(
            interpreter=fitted.interpreter.path,
            venv=place.tmp / "venv",
            lock=derivation.run_lock,
            wheels=(PinnedWheel(path=stamped.path, sha256=stamped.sha256),),
            modules=derivation.release.checks.imports,
        ),
        uv=tools.uv(),
    )
    installed = Finding(
        id="install",
        status="ok",
        subject=stamped.path.name,
        message=f"installs offline beside {len(proof.distributions) - 1} locked distributions; "
        f"{', '.join(proof.modules)} imported",
    )
    probed = run_probes(proof.venv / "bin" / "python", derivation, place, tools.runner)
    for finding in (*findings, installed, *probed):
        tools.report.note(f"{finding.status:5} {finding.id}: {finding.message}")
    return VerifiedWheel(path=stamped.path, inspection=inspection, findings=(*findings, installed, *probed))


def probes(derivation: Derivation) -> tuple[Path, ...]:
    """Give the recipe's own checks of a release, then its variant's."""
    names = (*derivation.release.checks.probes, *(derivation.variant.probes if derivation.variant else ()))
    return tuple(Path(derivation.recipe.file).parent / name for name in names)


def require_probes(derivation: Derivation) -> None:
    """Raise RecipeError for a check that is not there: after the build would be hours too late."""
    for path in probes(derivation):
        if not path.is_file():
            raise RecipeError(f"the check {path} does not exist", file=derivation.recipe.file, key="checks.probes")


def run_probes(python: Path, derivation: Derivation, place: Workplace, runner: Runner) -> tuple[Finding, ...]:
    """Run the recipe's own checks with the wheel installed; VerifyError with what a failing one said last."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(place.home), "TMPDIR": str(place.tmp), "LC_ALL": "C.UTF-8"}
    paths = probes(derivation)
    for path in paths:
        try:
            runner.run([str(python), "-I", "-B", str(path)], env=env, cwd=place.tmp)
        except CommandFailedError as error:
            said = "\n".join(f"  | {line[:300]}" for line in error.tail[-12:])
            raise VerifyError(
                f"the wheel fails the check {path.name}:\n{said}",
                advice=f"Read {path}: it says what the wheel must do; correct the recipe's patches.",
            ) from error
    return tuple(Finding(id="probe", status="ok", subject=path.stem, message=f"{path.name} passed") for path in paths)


def make_record(
    made: Made, verified: VerifiedWheel, derivation: Derivation, *, jobs: int, seconds: float, origin: Origin
) -> BuildRecord:
    """Write down how the build went."""
    stamped = made.stamped
    return BuildRecord(
        derivation=derivation,
        found=made.found,
        wheel=stamped.path.name,
        sha256=stamped.sha256,
        size=stamped.size,
        content_digest=read_wheel(stamped.path).content_digest,
        jobs=jobs,
        seconds=seconds,
        compiles=made.built.compiles,
        units=made.built.units,
        external=stamped.external,
        findings=tuple(finding.to_json() for finding in verified.findings),
        origin=origin,
    )


def origin_of(derivation: Derivation, tools: Tools) -> Origin:
    """Ask git for the checkout that the recipes lie in: what is not committed nobody else can look up."""
    files = (derivation.recipe.file, derivation.stack.file, derivation.toolkit.file)
    folders = sorted({str(Path(file).parent) for file in files})
    commit, dirty = "", False
    for folder in folders:
        head, status = (
            ask_git(folder, words, tools) for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--", "."])
        )
        commit = head.strip() if folder == str(Path(derivation.recipe.file).parent) else commit
        dirty |= bool(head and status.strip())
    patches = patches_folder(derivation.recipe) / derivation.name
    changed = ask_git(str(patches), ["status", "--porcelain", "--", "."], tools) if patches.is_dir() else ""
    return Origin(commit=commit, dirty=dirty or bool(changed.strip())) if commit else Origin()


def ask_git(folder: str, words: Sequence[str], tools: Tools) -> str:
    """Ask git about a folder; nothing where it has no answer, is not there, or the checkout is somebody else's."""
    env = {"PATH": tools.runtime.env.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = tools.runner.run(["git", "-C", folder, *words], env=env, check=False)
    except EnvironmentUnfitError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def enter(verified: VerifiedWheel, record: BuildRecord, place: Workplace, house: Wheelhouse, tools: Tools) -> Entry:
    """Enter the wheel into the wheelhouse, and write its index again."""
    proof = statement(record)
    entry = house.enter(verified.path, build_record=record.to_json(), log=place.log, proof=proof)
    label = record.derivation.index_label
    folder = index_again(house, label)
    tools.report.step(f"done in {spell_seconds(record.seconds)}: {entry.wheel.name}")
    tools.report.note(f"sha256 {entry.sha256}")
    pin = f"{record.derivation.name}=={record.derivation.full_version}"
    tools.report.note(f'pip install --no-deps --only-binary :all: --index-url {folder.as_uri()} "{pin}"')
    return entry


def index_again(house: Wheelhouse, label: str) -> Path:
    """Write the index that a wheel stands in."""
    return write_index(house.root, label, [each.wheel for each in house.entries() if each.index == label])


# outcomes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A wheel in the wheelhouse. `record` is None where it was there already."""

    derivation: Derivation
    wheel: Path
    sha256: str
    record: BuildRecord | None
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Give the fields of `build --json`."""
        record = self.record
        return outcome_json(
            self.derivation,
            status="built" if record else "present",
            seconds=self.seconds,
            compiles=record.compiles if record else CompileSummary(),
            wheel=str(self.wheel),
            sha256=self.sha256,
            realisation=realisation(self.derivation, record.found) if record else None,
            ideal_seconds=record.ideal_seconds if record else 0,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """A build that ended with a failure we understand."""

    derivation: Derivation
    error: WheelmillError
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Give the fields of `build --json`."""
        error = self.error
        return outcome_json(
            self.derivation,
            status="interrupted" if error.exit_status == 130 else "failed",
            seconds=self.seconds,
            compiles=CompileSummary(),
            error={"kind": error.kind, "exit": error.exit_status, "message": str(error), "advice": error.advice},
        )


def outcome_json(
    derivation: Derivation, *, status: str, seconds: float, compiles: CompileSummary, **more: object
) -> dict[str, object]:
    """Give every field of an outcome; what a failure has not is null."""
    fields: dict[str, object] = {
        "name": derivation.name,
        "status": status,
        "wheel": None,
        "sha256": None,
        "drv": derivation.drv,
        "realisation": None,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(compiles.cpu_seconds, 1),
        "ideal_seconds": 0,
        "peak_memory_bytes": compiles.peak_rss_bytes,
        "compiles": compiles.compiles - compiles.links,
        "cache_hits": compiles.cache_hits,
        "retries": compiles.retries,
        "oom_kills": compiles.oom_kills,
        "error": None,
    }
    return {**fields, **more}


Line = Callable[[Derivation, Tools, Wheelhouse], Built]
"""What turns a derivation into a wheel in the wheelhouse."""


def attempt(derivation: Derivation, tools: Tools, house: Wheelhouse, *, line: Line | None = None) -> Built | Failed:
    """Realise a derivation; an understood failure is a value."""
    started = time.monotonic()
    try:
        return (line or realise)(derivation, tools, house)
    except WheelmillError as error:
        return Failed(derivation=derivation, error=error, seconds=time.monotonic() - started)
    except BrokenPipeError:  # whoever reads what we say has gone: no trouble of the build's
        raise
    except OSError as error:
        trouble = of_system(error, cache=tools.runtime.directories.cache)
        return Failed(derivation=derivation, error=trouble, seconds=time.monotonic() - started)
    except KeyboardInterrupt:
        stopped = InterruptedBuildError(f"interrupted while building {derivation.name}")
        return Failed(derivation=derivation, error=stopped, seconds=time.monotonic() - started)


# before and beside the line --------------------------------------------------------------------------


def plan(selections: Sequence[Selection], tools: Tools, *, with_prebuilt: bool, house: Wheelhouse) -> Plan:
    """Say what would be built; a toolkit that is missing here is a problem, not a failure."""
    derivations = [instantiate(tools.catalog, selection) for selection in selections]
    stack = derivations[0].stack
    problems: dict[str, str] = {}
    items = []
    look = looked_once(tools)
    limits = tools.elsewhere()
    for derivation in derivations:
        try:
            chosen = look(derivation)
            toolkit = ToolkitSummary(cuda=chosen.cuda, nvcc=chosen.nvcc_version, provider=chosen.provider)
            if differs := minor_mismatch(chosen, need_of(derivation), tools.machine):
                problems[differs] = SAME_RELEASE.format(cuda=stack.cuda)
        except ToolkitError as error:
            if tools.cuda_home is not None:
                raise
            toolkit = None
            problems[str(error)] = error.advice
        try:
            nvcc = toolkit.nvcc if toolkit else pinned_nvcc(derivation)
            ahead = forecast_for(derivation, limits, tools.bounds, known_peaks(derivation, tools), nvcc)
        except ResourcesError as error:
            figures = (derivation.variant or derivation.release).resources
            ahead = refused(figures, limits, tools.bounds.max_jobs, str(error))
            problems[str(error)] = error.advice
        entry = house.find(derivation.drv)
        items.append(
            Planned(
                derivation=derivation,
                state="built" if entry else "build",
                wheel=entry.wheel.name if entry else derivation.wheel_name,
                forecast=ahead,
                toolkit=toolkit,
                nvcc_threads=tools.bounds.nvcc_threads,
            )
        )
    return Plan(
        stack=stack,
        items=tuple(items),
        prebuilt=tuple(stack.prebuilt.values()) if with_prebuilt else (),
        problems=tuple({"message": message, "advice": advice} for message, advice in problems.items()),
    )


def looked_once(tools: Tools) -> Callable[[Derivation], Toolkit]:
    """Look for a toolkit once for all that need the same: each of the machine's is run and asked, found or not."""
    known: dict[tuple[str, tuple[Arch, ...]], Toolkit | ToolkitError] = {}

    def look(derivation: Derivation) -> Toolkit:
        key = (derivation.stack.name, derivation.archs)
        if key not in known:
            try:
                known[key] = choose(need_of(derivation), tools.machine, given=tools.cuda_home)
            except ToolkitError as error:
                known[key] = error
        found = known[key]
        if isinstance(found, ToolkitError):
            raise found
        return found

    return look


def fetch_all(derivations: Sequence[Derivation], tools: Tools) -> None:
    """Get every pinned input: sources, build environment, toolkit, and what verify installs."""
    directories = tools.runtime.directories
    for derivation in derivations:
        tools.report.step(f"{derivation.name} {derivation.version}")
        fetch_input(derivation, tools)
        interpreter = tools.interpreter(derivation.python)
        environment = create(derivation.build_lock, interpreter, directories=directories, uv=tools.uv())
        with tempfile.TemporaryDirectory(prefix="wheelmill-") as scratch:
            cache_run_files(derivation, environment, Path(scratch), tools)
        toolkit = choose(need_of(derivation), tools.machine, given=tools.cuda_home)
        if derivation.toolkit_lock is not None and toolkit.provider == "wheels":
            toolkits.install(
                toolkit, derivation.toolkit_lock, python=environment.python, directories=directories, uv=tools.uv()
            )


def fetch_toolkit(stack: Stack, tools: Tools) -> Toolkit:
    """Get the pinned toolkit of a stack; where NVIDIA's licence is needed, it is accepted before."""
    need = need_of_stack(stack, tools.catalog)
    tools.report.step(f"{need.recipe.name} for stack {stack.name}")
    python, uv = tools.runtime.python, tools.uv()
    if need.lock is None:
        return provide(need, tools.machine, uv=uv, python=python, report=tools.report)
    toolkit = wheels_toolkit(need.recipe, need.lock, tools.runtime.directories)
    toolkits.install(toolkit, need.lock, python=python, directories=tools.runtime.directories, uv=uv)
    return toolkit


def survey_machine(stack: Stack, tools: Tools, archs: tuple[Arch, ...] = ()) -> tuple[Finding, ...]:
    """Look at everything that a build of this stack needs of this machine."""
    need = need_of_stack(stack, tools.catalog)
    need = replace(need, archs=archs or need.archs)
    found = examine(situation(stack, need, tools, tools.limits()))
    rung = second_rung(probe(tools.runner, tools.runtime.python), uid=os.geteuid())
    return (*found, sandbox_finding(rung))


def driver_version(path: Path) -> str:
    """Read the NVIDIA driver's version from the kernel; empty where there is none."""
    try:
        words = path.read_text("utf-8").split()
    except OSError:
        return ""
    return next((word for word in words if word[:1].isdigit() and "." in word), "")
