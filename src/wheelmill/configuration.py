"""Proof of the effective configuration: what was asked, held against what reached the compilers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .derivation import Derivation
from .errors import ConfigurationError
from .knobs import Knobs, knowledge
from .preflight import Finding, Status
from .recipe import Expects
from .records import CompileRecord

CXX = (".cu", ".cpp", ".cc", ".cxx", ".C")
"""Sources that a C++ standard means something for."""
FORWARD = ("-Xcompiler", "--compiler-options")
SEPARATE = {"-D", "-U", "--define-macro", "--undefine-macro", "-std", "--std", "-O", "--optimize", "-t", "--threads"}
"""Options of nvcc whose value may be the next word; of these gcc has -D and -U."""
SHORT = {"--define-macro": "-D", "--undefine-macro": "-U", "--std": "-std", "--optimize": "-O", "--threads": "-t"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """What one compile was told, as far as recipes speak of it. `macros`: value by name; None is undefined again."""

    macros: Mapping[str, str | None]
    standard: str
    optimisation: str
    threads: int


def reached(argv: Sequence[str]) -> Reached:
    """Read the last word that a command says on each matter; what nvcc hands to gcc counts where it says none."""
    own, handed = map(said, parted(argv))
    macros: dict[str, str | None] = {}
    for name, value in (*handed, *own):
        if name == "-D":
            macro, equals, content = value.partition("=")
            macros[macro] = content if equals else "1"
        elif name == "-U":
            macros[value] = None

    def last(name: str) -> str:
        return next((value for option, value in reversed([*handed, *own]) if option == name), "")

    level, threads = last("-O"), last("-t")
    return Reached(
        macros=macros,
        standard=last("-std"),
        optimisation=f"-O{level}" if level else "",
        threads=int(threads) if threads.isdigit() else 1,
    )


def said(words: Sequence[str]) -> list[tuple[str, str]]:
    """Split words into option and value, in any of the spellings of gcc and nvcc."""
    out: list[tuple[str, str]] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if word in SEPARATE:
            out.append((SHORT.get(word, word), next(rest, "")))
        elif equals and (name in SHORT or name == "-std"):
            out.append((SHORT.get(name, name), value))
        elif word[:2] in {"-D", "-U", "-O"}:
            out.append((word[:2], word[2:].removeprefix("=")))
        elif word.startswith("-t") and word[2:].removeprefix("=").isdigit():
            out.append(("-t", word[2:].removeprefix("=")))
    return out


def parted(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part a command into its own words and those that nvcc hands to the host compiler."""
    own: list[str] = []
    handed: list[str] = []
    rest = iter(argv)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in FORWARD:
            handed += (value if equals else next(rest, "")).strip("'\"").split(",")
        else:
            own.append(word)
    return own, handed


# units -----------------------------------------------------------------------------------------------


def units_of(records: Iterable[CompileRecord]) -> tuple[CompileRecord, ...]:
    """Give the last good compile of every object of the package, over all starts of a build.

    What a build system tries out (CMake's compiler checks, a probe in TMPDIR) is no unit.
    """
    last: dict[str, CompileRecord] = {}
    for record in records:
        inside = record.source and not record.source.startswith("/") and "CMakeFiles/" not in record.source
        if record.exit == 0 and record.cache != "link" and inside:
            last[record.output] = record
    return tuple(last.values())


def is_cuda(record: CompileRecord) -> bool:
    """Say whether nvcc compiled device code here."""
    return record.tool == "nvcc" and record.source.endswith(".cu")


def expectation(derivation: Derivation) -> Expects:
    """Give what the recipe, or its variant, says must reach the compilers."""
    return (derivation.variant or derivation.release).expects


# proof -----------------------------------------------------------------------------------------------


def prove(derivation: Derivation, records: Iterable[CompileRecord]) -> tuple[Finding, ...]:
    """Hold archs, threads, macros, standard and optimisation against what every unit was compiled with.

    An error is a knob without effect. A warning is one that the launcher had to enforce: the wheel is right, the
    recipe is not.
    """
    units = units_of(records)
    cuda = tuple(unit for unit in units if is_cuda(unit))
    told = {unit.output: reached(unit.argv) for unit in units}
    findings = (
        *arch_findings(derivation, cuda),
        *thread_findings(derivation, cuda, told),
        *macro_findings(derivation, units, told),
        *flag_findings(derivation, units, told),
    )
    return findings or (finding(derivation, "ok", summary(derivation, units, cuda)),)


def require_effect(derivation: Derivation, findings: Iterable[Finding]) -> None:
    """Raise ConfigurationError that lists every knob without effect, if there is one."""
    if errors := [each for each in findings if each.status == "error"]:
        lines = [f"the build of {derivation.name} {derivation.full_version} is not what was asked for:"]
        lines += [f"  {each.message}" for each in errors]
        advice = " ".join(dict.fromkeys(each.advice for each in errors))
        raise ConfigurationError("\n".join(lines), advice=advice)


def finding(derivation: Derivation, status: Status, message: str, advice: str = "") -> Finding:
    """Make a finding about the configuration."""
    subject = f"{derivation.name} {derivation.version}"
    return Finding(id="configuration", status=status, subject=subject, message=message, advice=advice)


def summary(derivation: Derivation, units: Sequence[CompileRecord], cuda: Sequence[CompileRecord]) -> str:
    """Say what was proved."""
    if not units:
        return "no compile was recorded, so nothing is proved of macros, standard and optimisation"
    wanted = expectation(derivation)
    archs = " and ".join(sorted(codes(derivation))) if cuda else ""
    parts = [archs, wanted.standard, wanted.optimisation, *(f"-D{macro}" for macro in wanted.macros)]
    return f"{len(units)} units ({len(cuda)} of CUDA) were compiled as asked: {', '.join(p for p in parts if p) or '-'}"


def codes(derivation: Derivation) -> frozenset[str]:
    """Give the names of the code that was asked for."""
    return frozenset(
        name for arch in derivation.archs for name in ((arch.sm, arch.compute) if arch.ptx else (arch.sm,))
    )


def few(units: Sequence[CompileRecord], of: int) -> str:
    """Name the units: how many of how many, and the first."""
    return f"{len(units)} of {of} units ({units[0].source})"


def known(derivation: Derivation) -> Knobs | None:
    """Give what is known of the package's variables."""
    return knowledge().of(derivation.name, derivation.version)


def arch_findings(derivation: Derivation, cuda: Sequence[CompileRecord]) -> Iterator[Finding]:
    """See whether the code that was made is the code asked for, and whether the package's own knob asked for it."""
    wanted, control, knobs = codes(derivation), derivation.release.arch, known(derivation)
    name = f"{derivation.name} {derivation.version}"
    reads = (
        f"{name} reads {knobs.arch_variable or 'no variable'} for it" if knobs else f"see what {name}'s setup.py reads"
    )
    place = f'{derivation.recipe.file}: version."{derivation.version}".arch'
    if off := [unit for unit in cuda if frozenset(unit.archs_used) != wanted]:
        made, want = " and ".join(off[0].archs_used) or "none", " and ".join(sorted(wanted))
        message = f"architectures: {few(off, len(cuda))} were compiled for {made}, not for {want}"
        yield finding(derivation, "error", message, f"Correct {place}: {reads}.")
    held = [unit for unit in cuda if unit not in off and frozenset(unit.archs_asked) != wanted]
    if held and control.via != "launcher":
        variable = "TORCH_CUDA_ARCH_LIST" if control.via == "torch" else control.variable
        asked = " and ".join(held[0].archs_asked) or "nothing"
        message = f"{variable} had no effect: {few(held, len(cuda))} asked for {asked}, and the launcher corrected it"
        yield finding(derivation, "warn", message, f"Correct {place}: {reads}.")


def thread_findings(
    derivation: Derivation, cuda: Sequence[CompileRecord], told: Mapping[str, Reached]
) -> Iterator[Finding]:
    """See whether nvcc ran with the threads that the recipe gives it."""
    wanted, knobs = derivation.release.nvcc_threads, known(derivation)
    place = f'{derivation.recipe.file}: version."{derivation.version}".nvcc-threads'
    if off := [unit for unit in cuda if told[unit.output].threads != wanted]:
        message = f"nvcc threads: {few(off, len(cuda))} ran with {told[off[0].output].threads}, not with {wanted}"
        yield finding(derivation, "error", message, f"Correct {place}, or what sets --threads after the launcher.")
    held = [unit for unit in cuda if any(text.startswith("threads: ") for text in unit.rewrites)]
    if held and not off and knobs is not None and knobs.threads:
        asked = next(text for text in held[0].rewrites if text.startswith("threads: ")).removeprefix("threads: ")
        message = f"{knobs.threads} had no effect: on {few(held, len(cuda))} the launcher corrected it, {asked}"
        yield finding(derivation, "warn", message, f"See what sets --threads in {derivation.name}'s setup.py.")


def macro_findings(
    derivation: Derivation, units: Sequence[CompileRecord], told: Mapping[str, Reached]
) -> Iterator[Finding]:
    """See whether every macro was defined in every unit of C++ and CUDA: host code often refuses what kernels lack."""
    cxx = [unit for unit in units if unit.source.endswith(CXX)]
    for macro in expectation(derivation).macros:
        name, _, value = macro.partition("=")
        off = [unit for unit in cxx if told[unit.output].macros.get(name) != (value or "1")]
        if off:
            found = told[off[0].output].macros.get(name)
            how = "did not reach" if found is None else f"reached as {name}={found}"
            message = f"macro {macro}: {how} {few(off, len(cxx))}"
            yield finding(derivation, "error", message, unset(derivation, "macros"))


def flag_findings(
    derivation: Derivation, units: Sequence[CompileRecord], told: Mapping[str, Reached]
) -> Iterator[Finding]:
    """See whether standard and optimisation are what counts in every unit."""
    wanted = expectation(derivation)
    cxx = [unit for unit in units if unit.source.endswith(CXX)]
    standards = [unit for unit in cxx if told[unit.output].standard != wanted.standard]
    if wanted.standard and standards:
        found = told[standards[0].output].standard or "the compiler's default"
        message = f"standard {wanted.standard}: {few(standards, len(cxx))} were compiled with {found}"
        yield finding(derivation, "error", message, unset(derivation, "standard"))
    levels = [unit for unit in units if told[unit.output].optimisation != wanted.optimisation]
    if wanted.optimisation and levels:
        found = told[levels[0].output].optimisation or "the compiler's default"
        message = f"optimisation {wanted.optimisation}: {few(levels, len(units))} were compiled with {found}"
        yield finding(derivation, "error", message, unset(derivation, "optimisation"))


def unset(derivation: Derivation, key: str) -> str:
    """Say where to set what did not arrive, and whether the package has a variable for it: none that we know does."""
    variant = f".variant.{derivation.variant.name}" if derivation.variant else ""
    place = f'{derivation.recipe.file}: version."{derivation.version}"{variant}.expects.{key}'
    name = f"{derivation.name} {derivation.version}"
    reads = (
        f"{name} reads no variable for it: set it by a patch" if known(derivation) else f"Set it in {name} by a patch"
    )
    return f"{reads} of its build files, or correct {place}."
