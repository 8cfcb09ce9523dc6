"""What was asked for, held against what reached the compilers."""

from dataclasses import replace
from pathlib import Path

import pytest
from samples import write_catalog

from wheelmill.arch import Arch
from wheelmill.catalog import load_catalog
from wheelmill.configuration import prove, reached, require_effect, units_of
from wheelmill.derivation import Derivation, Selection, instantiate
from wheelmill.errors import ConfigurationError
from wheelmill.recipe import ArchControl, Expects
from wheelmill.records import CompileRecord

GOOD = ("-DB", "-O3", "-std=c++17", "-DA=2", "-c", "k.cu")


def record(source: str, *argv: str, **fields: object) -> CompileRecord:
    """Give the record of one compile."""
    values: dict[str, object] = {
        "id": 1,
        "tool": "nvcc" if source.endswith(".cu") else "c++",
        "source": source,
        "output": f"build/{source}.o",
        "argv": argv,
        "archs_asked": ("sm_100",),
        "archs_used": ("sm_100",),
        "rewrites": (),
        "cache": "miss",
        "wall_s": 1.0,
        "cpu_s": 1.0,
        "peak_rss_bytes": 1,
        "exit": 0,
        "started_s": 0.0,
        "waited_s": 0.0,
        "attempt": 1,
    }
    return CompileRecord(**{**values, **fields})


@pytest.fixture
def derivation(tmp_path: Path) -> Derivation:
    """Give the sample package, of which macros, standard and optimisation are expected."""
    made = instantiate(load_catalog((write_catalog(tmp_path),)), Selection(name="demo", stack="cu130"))
    expects = Expects(macros=("A=2", "B"), standard="c++17", optimisation="-O3")
    recipe = replace(made.recipe, file="recipes/demo.toml")
    return replace(made, recipe=recipe, release=replace(made.release, expects=expects))


def lines(derivation: Derivation, *records: CompileRecord) -> list[str]:
    """Prove, and give the findings as lines."""
    found = prove(derivation, records)
    assert {(each.id, each.subject) for each in found} == {("configuration", "demo 1.0")}
    return [f"{each.status}: {each.message}" + (f" -> {each.advice}" if each.advice else "") for each in found]


@pytest.mark.parametrize(
    ("argv", "standard", "optimisation", "threads", "macros"),
    [
        (("-std=c++17", "-O3"), "c++17", "-O3", 1, {}),
        (("-std", "c++20", "-O", "2", "--threads", "4"), "c++20", "-O2", 4, {}),
        (("--std=c++17", "--optimize=3", "--threads=2"), "c++17", "-O3", 2, {}),
        (("-t4", "-O2", "-O3"), "", "-O3", 4, {}),
        (("-t=8",), "", "", 8, {}),
        (("-std=c++17", "-std=c++20"), "c++20", "", 1, {}),
        (("-Xcompiler", "-std=c++17,-O2,-DH"), "c++17", "-O2", 1, {"H": "1"}),
        (("--compiler-options", "'-O3'", "-O1"), "", "-O1", 1, {}),
        (("-Xcompiler=-O3",), "", "-O3", 1, {}),
        (("-DX", "-D", "Y=2", "-UX", "--define-macro", "Z=a=b"), "", "", 1, {"X": None, "Y": "2", "Z": "a=b"}),
        (("-U", "X", "-DX=1", "--undefine-macro=Q"), "", "", 1, {"X": "1", "Q": None}),
        (("--expt-relaxed-constexpr", "-o", "x.o", "-Xcompiler"), "", "", 1, {}),
    ],
)
def test_the_last_word_counts_in_every_spelling(
    argv: tuple[str, ...], standard: str, optimisation: str, threads: int, macros: dict[str, str | None]
) -> None:
    """As gcc and nvcc read a command; what nvcc hands to gcc counts where it says nothing itself."""
    found = reached(argv)

    assert (found.standard, found.optimisation, found.threads, found.macros) == (
        *(standard, optimisation, threads, macros),
    )


def test_what_is_tried_out_is_no_unit() -> None:
    """Links, failures, CMake's checks and probes elsewhere say nothing of the package; the last start counts."""
    old, new = record("a.cu", "-O1"), record("a.cu", "-O3")
    aside = (
        record("b.cu", cache="link"),
        record("c.cu", exit=1),
        record("build/CMakeFiles/3.30/CompilerIdCUDA/x.cu"),
        record("/tmp/probe.c"),
        record(""),
    )

    assert units_of((old, *aside, new)) == (new,)


def test_a_build_as_asked_says_so(derivation: Derivation) -> None:
    """One line, with what was proved."""
    assert lines(derivation, record("k.cu", *GOOD), record("a.cpp", *GOOD), record("c.c", "-O3")) == [
        "ok: 3 units (1 of CUDA) were compiled as asked: sm_100, c++17, -O3, -DA=2, -DB"
    ]
    require_effect(derivation, prove(derivation, (record("k.cu", *GOOD),)))


def test_without_records_nothing_is_proved(derivation: Derivation) -> None:
    """It is said, and stops nothing: the device code is verified in the wheel itself."""
    assert lines(derivation) == [
        "ok: no compile was recorded, so nothing is proved of macros, standard and optimisation"
    ]


def test_knobs_without_effect_are_errors(derivation: Derivation) -> None:
    """Each says how many units it missed, what they had instead, and where to set it."""
    bad = record("k.cu", "-DA=1", "-std=c++14", "-std=gnu++17", "-c")
    place = 'recipes/demo.toml: version."1.0".expects'

    advice = "Set it in demo 1.0 by a patch of its build files, or correct"
    assert lines(derivation, bad, record("a.cpp", *GOOD)) == [
        f"error: macro A=2: reached as A=1 1 of 2 units (k.cu) -> {advice} {place}.macros.",
        f"error: macro B: did not reach 1 of 2 units (k.cu) -> {advice} {place}.macros.",
        f"error: standard c++17: 1 of 2 units (k.cu) were compiled with gnu++17 -> {advice} {place}.standard.",
        f"error: optimisation -O3: 1 of 2 units (k.cu) were compiled with the compiler's default -> {advice} {place}.optimisation.",
    ]
    with pytest.raises(ConfigurationError) as caught:
        require_effect(derivation, prove(derivation, (bad,)))
    assert caught.value.exit_status == 8
    assert str(caught.value).splitlines()[:2] == [
        "the build of demo 1.0+cu130.torch2.11.0.sm100 is not what was asked for:",
        "  macro A=2: reached as A=1 1 of 1 units (k.cu)",
    ]


def known_as(derivation: Derivation, name: str, version: str, via: str, variable: str = "") -> Derivation:
    """Give the derivation the name of a package whose variables are known, and no expectations."""
    control = ArchControl(via=via, variable=variable, spelling="digits", separator=";", supports=())
    release = replace(derivation.release, version=version, arch=control, expects=Expects())
    return replace(derivation, recipe=replace(derivation.recipe, name=name), release=release)


def prove_lines(derivation: Derivation, *records: CompileRecord) -> list[str]:
    """Give status, message and advice of each finding."""
    return [f"{each.status}: {each.message} -> {each.advice}" for each in prove(derivation, records)]


def test_an_arch_knob_that_nobody_heard(derivation: Derivation) -> None:
    """TORCH_CUDA_ARCH_LIST for flash-attn: the launcher held it, and the variable that counts is named."""
    asked = record("k.cu", archs_asked=("sm_80", "sm_90"), rewrites=("archs: …",))
    flash = known_as(derivation, "flash-attn", "2.8.3", "torch")

    assert prove_lines(flash, asked) == [
        "warn: TORCH_CUDA_ARCH_LIST had no effect: 1 of 1 units (k.cu) asked for sm_80 and sm_90, and the launcher "
        'corrected it -> Correct recipes/demo.toml: version."2.8.3".arch: flash-attn 2.8.3 reads FLASH_ATTN_CUDA_ARCHS for it.'
    ]
    other = known_as(derivation, "demo", "1.0", "variable", "DEMO_ARCHS")
    assert prove_lines(other, replace(asked, archs_asked=())) == [
        "warn: DEMO_ARCHS had no effect: 1 of 1 units (k.cu) asked for nothing, and the launcher corrected it "
        '-> Correct recipes/demo.toml: version."1.0".arch: see what demo 1.0\'s setup.py reads.'
    ]
    assert [each.status for each in prove(known_as(derivation, "causal-conv1d", "1.7.0", "launcher"), (asked,))] == [
        "ok"
    ]


def test_code_for_another_gpu_is_an_error(derivation: Derivation) -> None:
    """Where not even the launcher held it."""
    made = record("k.cu", archs_asked=("sm_80",), archs_used=("sm_80",))

    assert prove_lines(known_as(derivation, "causal-conv1d", "1.7.0", "launcher"), made) == [
        "error: architectures: 1 of 1 units (k.cu) were compiled for sm_80, not for sm_100 "
        '-> Correct recipes/demo.toml: version."1.7.0".arch: causal-conv1d 1.7.0 reads no variable for it.'
    ]


def test_ptx_is_part_of_what_was_asked(derivation: Derivation) -> None:
    """`10.0+PTX` means both kinds of code."""
    wanted = replace(derivation, archs=(Arch.parse("10.0+PTX"),))
    both = record("k.cu", *GOOD, archs_asked=("sm_100", "compute_100"), archs_used=("compute_100", "sm_100"))

    assert [each.status for each in prove(wanted, (both,))] == ["ok"]


def test_threads_are_what_the_recipe_gives(derivation: Derivation) -> None:
    """Memory is linear in them; a variable that the launcher had to overrule is told."""
    flash = known_as(derivation, "flash-attn", "2.8.3", "variable", "FLASH_ATTN_CUDA_ARCHS")

    assert prove_lines(flash, record("k.cu", "--threads", "4")) == [
        "error: nvcc threads: 1 of 1 units (k.cu) ran with 4, not with 1 "
        '-> Correct recipes/demo.toml: version."2.8.3".nvcc-threads, or what sets --threads after the launcher.'
    ]
    assert prove_lines(flash, record("k.cu", rewrites=("threads: 4 became 1",))) == [
        "warn: NVCC_THREADS had no effect: on 1 of 1 units (k.cu) the launcher corrected it, 4 became 1 "
        "-> See what sets --threads in flash-attn's setup.py."
    ]
    conv = known_as(derivation, "causal-conv1d", "1.7.0", "launcher")
    assert [each.status for each in prove(conv, (record("k.cu", rewrites=("threads: 4 became 1",)),))] == ["ok"]
