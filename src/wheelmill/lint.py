"""Lint: what recipes and stacks say that cannot have the effect that was meant; nothing of this machine is asked."""

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.version import Version

from ._validate import did_you_mean
from .arch import Arch, Gpu
from .catalog import Catalog, patches_folder
from .derivation import check_archs, unserved
from .errors import UsageError
from .knobs import Knobs, Together, knowledge, makes
from .preflight import Finding, Status
from .recipe import Recipe, Release, Variant
from .stack import Stack

COMPILERS = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "CMAKE_ARGS")
"""Read by compilers or build tools whatever the package is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One release of a recipe, or one of its variants, that is looked at."""

    recipe: Recipe
    release: Release
    variant: Variant | None = None

    @property
    def known(self) -> Knobs | None:
        """What is known of its variables."""
        return knowledge().of(self.recipe.name, self.release.version)

    def __str__(self) -> str:
        """Name it as findings do."""
        name = f"{self.recipe.name} {self.release.version}"
        return f"{name} [{self.variant.name}]" if self.variant else name

    def at(self, key: str) -> str:
        """Give file and key path of a part of it."""
        middle = f".variant.{self.variant.name}" if self.variant else ""
        return f'{self.recipe.file}: version."{self.release.version}"{middle}.{key}'

    def finding(self, check: str, status: Status, message: str, advice: str = "") -> Finding:
        """Make a finding about it."""
        return Finding(id=check, status=status, subject=str(self), message=message, advice=advice)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What is held against each other: packages (none: all), a stack, and the GPUs that shall be served."""

    catalog: Catalog
    stack: Stack
    names: tuple[str, ...] = ()
    archs: tuple[Arch, ...] = ()
    gpus: tuple[Gpu, ...] = ()

    @property
    def wanted(self) -> tuple[Arch, ...]:
        """The architectures asked for, else the stack's."""
        return self.archs or self.stack.archs


def lint(request: Request) -> tuple[Finding, ...]:
    """Check recipes and the stack; UsageError for a name that no recipe has."""
    findings = [*stack_findings(request)]
    for name in request.names or tuple(sorted(request.catalog.recipes)):
        if name in request.stack.prebuilt:
            continue
        recipe = request.catalog.recipe(name)
        for release in recipe.releases.values():
            subject = Subject(recipe=recipe, release=release)
            findings += release_findings(subject) or (subject.finding("recipe", "ok", "nothing to object to"),)
            if request.stack.packages.get(name, release.version) == release.version:
                findings += pinned_findings(subject, request)
    return tuple(findings)


# a release by itself ---------------------------------------------------------------------------------


def release_findings(subject: Subject) -> tuple[Finding, ...]:
    """Look at one release and its variants."""
    release = subject.release
    variants = [Subject(recipe=subject.recipe, release=release, variant=each) for each in release.variants.values()]
    return (
        *arch_variable_findings(subject),
        *(finding for each in (subject, *variants) for finding in variable_findings(each)),
        *jobs_findings(subject),
        *patch_findings(subject),
        *content_findings(subject),
        *(
            finding
            for each in (subject, *variants)
            for finding in (each.finding("advisory", "warn", text) for text in advisories(each))
        ),
    )


def advisories(subject: Subject) -> tuple[str, ...]:
    """Give what a user should know of a release, or of a variant beyond it."""
    return (subject.variant or subject.release).advisories


def arch_variable_findings(subject: Subject) -> Iterator[Finding]:
    """See whether the package is asked for architectures where it listens, and in its spelling."""
    known, arch = subject.known, subject.release.arch
    if known is None:
        return
    asked = {"torch": "TORCH_CUDA_ARCH_LIST", "variable": arch.variable, "launcher": ""}[arch.via]
    wanted, key = known.arch_variable, subject.at("arch")
    spelling = f'spelling = "{known.arch_spelling}", separator = "{known.arch_separator}"'
    torch = (
        'via = "torch"' if wanted == "TORCH_CUDA_ARCH_LIST" else f'via = "variable", variable = "{wanted}", {spelling}'
    )
    launcher = 'via = "launcher"'
    right = f"Write in {key}: {torch if wanted else launcher}."
    if asked and not wanted:
        message = f"{asked} has no effect: {subject} reads no variable for its architectures"
        yield subject.finding("arch-variable", "error", message, right)
    elif asked and asked != wanted:
        message = f"{asked} has no effect: {subject} reads {wanted}"
        yield subject.finding("arch-variable", "error", message, right)
    elif not asked and wanted:
        message = f"the launcher holds the architectures, though {subject} reads {wanted}"
        yield subject.finding("arch-variable", "warn", message, right)
    elif arch.via == "variable" and (arch.spelling, arch.separator) != (known.arch_spelling, known.arch_separator):
        example = known.spell((Arch(major=10, minor=0), Arch(major=12, minor=0)))
        message = f"{wanted} is spelled another way: {subject} reads {example!r}"
        yield subject.finding("arch-variable", "error", message, right)


def variable_findings(subject: Subject) -> Iterator[Finding]:
    """See whether every variable is one that this release reads, with a value that counts."""
    known, place = subject.known, subject.at("environment")
    for name, value in (subject.variant or subject.release).environment.items():
        if owner := set_anyway(name, subject):
            message = f"{name}={value!r} is overwritten: {owner}"
            yield subject.finding("value", "error", message, f"Take it out of {place}.")
        elif name.endswith("_SRC_DIR") or (known is not None and name in known.sources):
            message = f"{name}={value!r} is a folder of one machine: nothing pins what is in it"
            yield subject.finding("source-path", "error", message, f"Take it out of {place}; pin the source instead.")
        elif known is not None and name in known.literal:
            values = known.literal[name]
            if value not in values:
                message = f"{name}={value!r} is ignored: {subject} takes {' or '.join(values)} alone"
                yield subject.finding("value", "error", message, f'Write in {place}: {name} = "{values[0]}".')
        elif known is not None and name not in (*known.variables, *COMPILERS):
            yield unread(name, subject, known, place)


def set_anyway(name: str, subject: Subject) -> str:
    """Say what sets a variable after the recipe's `environment`; empty where nothing does."""
    if name == subject.release.arch.variable:
        return "the architectures set it (`--arch`, or the stack's)"
    return "the local version sets it" if name == subject.release.local_version_variable else ""


def unread(name: str, subject: Subject, known: Knobs, place: str) -> Finding:
    """Say whose variable it is that a release does not read."""
    readers = knowledge().readers(name)
    same = [each for each in readers if each.project == known.project]
    advice = f"Take it out of {place}."
    if same:
        message = (
            f"{name} has no effect: {known.project} reads it in {same[0].versions}, not in {subject.release.version}"
        )
        return subject.finding("variable", "error", message, advice)
    if readers:
        return subject.finding(
            "variable",
            "error",
            f"{name} has no effect: it is {readers[0].project}'s, {subject} does not read it",
            advice,
        )
    hint = did_you_mean(name, known.variables)
    return subject.finding("variable", "error" if hint else "warn", f"{subject} does not read {name}{hint}", advice)


def jobs_findings(subject: Subject) -> Iterator[Finding]:
    """See whether threads of nvcc mean what the recipe takes them for."""
    known, threads = subject.known, subject.release.nvcc_threads
    if known is not None and known.jobs == "divide" and threads > 1:
        message = f"nvcc-threads = {threads}: {subject} divides MAX_JOBS by it, so that fewer units run at once"
        yield subject.finding(
            "jobs", "warn", message, f"Write in {subject.at('nvcc-threads')}: 1. One arch needs no more."
        )


def patch_findings(subject: Subject) -> Iterator[Finding]:
    """Hold the patches that a release names against the files that there are."""
    folder = patches_folder(subject.recipe) / subject.recipe.name / subject.release.version
    release = subject.release
    named = {*release.patches, *(name for each in release.variants.values() for name in each.patches)}
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*.patch")} if folder.is_dir() else set()
    for name in sorted(named - there):
        message = f"{folder / name} does not exist, and the recipe names it"
        yield subject.finding("patch", "error", message, f"Restore it, or take it out of {subject.at('patches')}.")
    for name in sorted(there - named):
        message = f"{folder / name} is never applied: the recipe does not name it"
        yield subject.finding("patch", "warn", message, f"Name it in {subject.at('patches')}, or delete it.")


def content_findings(subject: Subject) -> Iterator[Finding]:
    """See whether the recipe guards against an incomplete archive, and takes licences along."""
    if not subject.release.must_exist:
        message = "must-exist is empty: an archive without submodules would be found out in the middle of a build"
        yield subject.finding("must-exist", "warn", message, f"Name a file or two in {subject.at('must-exist')}.")
    if not subject.release.licenses:
        message = "no licences: the wheel may leave without the text that its licence demands"
        yield subject.finding("licenses", "warn", message, f"Name the file in {subject.at('licenses')}.")


# a release in a stack --------------------------------------------------------------------------------


def pinned_findings(subject: Subject, request: Request) -> Iterator[Finding]:
    """Hold a release against the stack that it is built for."""
    stack = request.stack
    try:
        check_archs(subject.recipe, subject.release, request.wanted)
    except UsageError as error:
        yield subject.finding("package-arch", "error", str(error), error.advice)
    lock = request.catalog.build_lock(stack)
    if missing := lock.missing(subject.release.build_requires):
        message = f"the build lock {lock.file} lacks: {', '.join(missing)}"
        yield subject.finding("build-lock", "error", message, f"Lock again: `wheelmill lock {stack.name}`.")
    patches = readable_patches(subject)
    for rule in rules(subject.recipe.name, subject.release.version):
        if not rule.unless or rule.unless not in patches:
            yield from together_findings(str(subject), rule, request)


def readable_patches(subject: Subject) -> str:
    """Give the text of the release's patches, as far as they can be read."""
    folder = patches_folder(subject.recipe) / subject.recipe.name / subject.release.version
    files = [folder / name for name in subject.release.patches]
    return "\n".join(path.read_text("utf-8", "replace") for path in files if path.is_file())


def rules(project: str, version: str) -> Iterator[Together]:
    """Give the rules that hold for a release."""
    for rule in knowledge().together:
        if rule.project == project and rule.versions.contains(version, prereleases=True):
            yield rule


def together_findings(subject: str, rule: Together, request: Request) -> Iterator[Finding]:
    """Hold a rule against what the stack pins: by name, in its locks, or its Python."""
    stack, catalog = request.stack, request.catalog
    held = {
        **{pin.name: pin.version for pin in catalog.build_lock(stack).pins.values()},
        **{pin.name: pin.version for pin in catalog.run_lock(stack).pins.values()},
        **stack.packages,
        **{member.name: member.version for member in stack.prebuilt.values()},
        "python": stack.python,
    }
    for name, needed in rule.needs.items():
        if name in held and not needed.contains(Version(held[name]).public, prereleases=True):
            message = f"{subject} needs {name} {needed}, stack {stack.name} has {held[name]}: {rule.because}"
            advice = rule.advice
            if name not in {*stack.packages, *stack.prebuilt, "python"}:
                advice = f"Bound it in {stack.file} (`{name}{needed}`), then `wheelmill lock {stack.name}`."
            yield Finding(id="together", status="error", subject=subject, message=message, advice=advice)


# the stack -------------------------------------------------------------------------------------------


def stack_findings(request: Request) -> Iterator[Finding]:
    """Look at the stack: can its toolkit make the code, is the GPU served, do its prebuilt members fit."""
    stack = request.stack
    toolkit = request.catalog.toolkit(stack)
    for arch in request.wanted:
        reasons = {cuda: makes(cuda, arch) for cuda in toolkit.accepts}
        if unable := [reason for reason in reasons.values() if reason]:
            able = [cuda for cuda in toolkit.accepts if not reasons[cuda]]
            message = f"{unable[0]}, and stack {stack.name} takes CUDA {' or '.join(toolkit.accepts)}"
            advice = (
                f"Give a toolkit of CUDA {able[0]}: `--cuda-home DIR`." if able else "Choose another --arch or stack."
            )
            yield stack_finding(stack, "toolkit-arch", "warn" if able else "error", message, advice)
    for gpu in request.gpus:
        if problem := unserved(request.wanted, gpu):
            yield stack_finding(stack, "gpu", "error", *problem)
    for name in [name for name in request.names or tuple(stack.packages) if name in stack.packages]:
        if name not in request.catalog.recipes or stack.packages[name] not in request.catalog.recipes[name].releases:
            message = f"no recipe for {name} {stack.packages[name]}, which the stack pins"
            yield stack_finding(stack, "recipe", "error", message, f"Correct [packages] in {stack.file}.")
    for member in stack.prebuilt.values():
        if not request.names or member.name in request.names:
            for rule in rules(member.name, member.version):
                yield from together_findings(f"{member.name} {member.version}", rule, request)


def stack_finding(stack: Stack, check: str, status: Status, message: str, advice: str) -> Finding:
    """Make a finding about a stack."""
    return Finding(id=check, status=status, subject=f"stack {stack.name}", message=message, advice=advice)
