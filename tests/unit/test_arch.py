"""Architectures: spelling, compatibility, and the GPUs they stand for."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmill.arch import (
    CAPABILITIES,
    FIRST_WITH_SUFFIX,
    Arch,
    code_runs_on,
    gpu_named,
    gpus,
    machine_of,
    needs,
    served,
    spell_gpus,
    why_not,
)


def known_archs() -> st.SearchStrategy[Arch]:
    """Every architecture that exists."""
    return st.sampled_from(
        [
            Arch(major=int(major), minor=int(minor), suffix=suffix, ptx=ptx)
            for major, _, minor in (known.partition(".") for known in CAPABILITIES)
            for suffix in ("", "a", "f")
            if (int(major), int(minor)) >= FIRST_WITH_SUFFIX.get(suffix, (0, 0))
            for ptx in (False, True)
        ]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0", Arch(major=10, minor=0)),
        ("10.0a", Arch(major=10, minor=0, suffix="a")),
        ("10.3f", Arch(major=10, minor=3, suffix="f")),
        ("12.0+PTX", Arch(major=12, minor=0, ptx=True)),
        ("sm_100", Arch(major=10, minor=0)),
        ("sm_100a", Arch(major=10, minor=0, suffix="a")),
        ("sm_75", Arch(major=7, minor=5)),
        ("compute_90", Arch(major=9, minor=0, ptx=True)),
    ],
)
def test_parse_reads_every_usual_spelling(text: str, expected: Arch) -> None:
    """Torch's, nvcc's and PTX spellings mean the same value."""
    assert Arch.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("100", "'100' is not an architecture; did you mean '10.0'?"),
        ("90a", "'90a' is not an architecture; did you mean '9.0a'?"),
        ("sm100", "'sm100' is not an architecture; did you mean '10.0'?"),
        ("12.0 ", "'12.0 ' is not an architecture; did you mean '12.0'?"),
        ("12.0+ptx", "'12.0+ptx' is not an architecture; did you mean '12.0+PTX'?"),
        ("rtx 5090", "'rtx 5090' is not an architecture; did you mean '12.0' (RTX 5090)?"),
        (
            "RTX PRO 6000",
            "'RTX PRO 6000' is not an architecture; did you mean '12.0' (RTX PRO 6000 Blackwell)?",
        ),
        (
            "Blackwell",
            "'Blackwell' is not an architecture; did you mean 10.0 (B200) or 12.0 (RTX PRO 6000, RTX 50)?",
        ),
        ("", "'' is not an architecture; write it like '10.0', '10.0a' or '12.0+PTX'"),
        ("10.1", "'10.1': no GPU has compute capability 10.1; since CUDA 13.0 it is 11.0 (Thor)"),
        ("10.2", "'10.2': no GPU has compute capability 10.2; did you mean '10.0' or '10.3'?"),
        (
            "99.0",
            f"'99.0': no GPU has compute capability 99.0; known are {', '.join(CAPABILITIES)}",
        ),
        ("8.0a", "'8.0a': suffix 'a' begins with 9.0; did you mean '8.0'?"),
        ("9.0f", "'9.0f': suffix 'f' begins with 10.0; did you mean '9.0'?"),
    ],
)
def test_parse_says_what_was_meant(text: str, message: str) -> None:
    """An impossible architecture is refused with the nearest possible one."""
    with pytest.raises(ValueError, match=r".") as caught:
        Arch.parse(text)
    assert str(caught.value) == message


@given(known_archs())
def test_spelling_round_trips(arch: Arch) -> None:
    """What is printed can be read back, in each spelling."""
    assert Arch.parse(str(arch)) == arch
    assert Arch.parse(arch.compute if arch.ptx else arch.sm) == arch
    assert Arch.of_code(arch.compute if arch.ptx else arch.sm) == arch


@given(st.text(max_size=12))
def test_parse_raises_nothing_but_value_error(text: str) -> None:
    """Any text is an architecture or a ValueError."""
    with contextlib.suppress(ValueError):
        Arch.parse(text)


def test_of_code_reads_code_we_do_not_build_for() -> None:
    """A wheel may hold code of an old GPU."""
    assert Arch.of_code("sm_52").dotted == "5.2"
    with pytest.raises(ValueError, match=r"'5\.2' is not the name of compiled code, such as sm_100"):
        Arch.of_code("5.2")


def test_names() -> None:
    """Each tool gets its own spelling."""
    arch = Arch.parse("10.0a")
    assert (arch.dotted, arch.digits, arch.sm, arch.compute) == ("10.0a", "100a", "sm_100a", "compute_100a")


def test_gencode() -> None:
    """PTX is added, never instead of machine code."""
    assert Arch.parse("10.0").gencode() == ("-gencode=arch=compute_100,code=sm_100",)
    assert Arch.parse("12.0+PTX").gencode() == (
        "-gencode=arch=compute_120,code=sm_120",
        "-gencode=arch=compute_120,code=compute_120",
    )


def test_archs_are_ordered_by_number() -> None:
    """9.0 stands before 10.0, and plain before special."""
    texts = ["12.0", "9.0a", "10.0f", "10.0", "9.0"]
    assert [str(arch) for arch in sorted(map(Arch.parse, texts))] == ["9.0", "9.0a", "10.0", "10.0f", "12.0"]


@pytest.mark.parametrize(
    ("code", "runs_on"),
    [
        ("sm_80", "8.0 8.6 8.7 8.8 8.9"),
        ("sm_86", "8.6 8.7 8.8 8.9"),
        ("sm_90a", "9.0"),
        ("sm_100", "10.0 10.3"),
        ("sm_100a", "10.0"),
        ("sm_100f", "10.0 10.3"),
        ("sm_103", "10.3"),
        ("sm_120", "12.0 12.1"),
        ("sm_120f", "12.0 12.1"),
        ("sm_121", "12.1"),
        ("compute_80", "8.0 8.6 8.7 8.8 8.9 9.0 10.0 10.3 11.0 12.0 12.1"),
        ("compute_100", "10.0 10.3 11.0 12.0 12.1"),
        ("compute_100a", "10.0"),
        ("compute_100f", "10.0 10.3"),
        ("compute_121", "12.1"),
    ],
)
def test_code_runs_on(code: str, runs_on: str) -> None:
    """Compatibility is NVIDIA's: same major, no older minor; `a` exact, `f` its family, PTX forward."""
    found = [known for known in CAPABILITIES if code_runs_on(Arch.parse(code), Arch.parse(known))]
    assert " ".join(found) == runs_on


@given(known_archs())
def test_code_runs_on_its_own_gpu(arch: Arch) -> None:
    """Whatever the suffix, code runs where it was made for."""
    assert code_runs_on(arch, Arch(major=arch.major, minor=arch.minor))


def test_every_gpu_has_one_name() -> None:
    """The data file holds no name twice."""
    names = [gpu.name for gpu in gpus()]
    assert len(names) == len(set(names))


def test_rtx_pro_6000_is_not_served_by_sm_100() -> None:
    """The mistake that began it all: B200 code does not run on RTX PRO 6000."""
    yes, no = served([Arch.parse("10.0")])
    assert yes == ("B300", "B200")
    assert "RTX PRO 6000 Blackwell" in no
    assert "RTX PRO 6000 Blackwell" in served([Arch.parse("10.0"), Arch.parse("12.0")])[0]


@given(st.lists(known_archs(), max_size=4))
def test_served_is_a_partition(archs: list[Arch]) -> None:
    """Each GPU is served or not, never both and never forgotten."""
    yes, no = served(archs, machine="")
    assert sorted(yes + no) == sorted(gpu.name for gpu in gpus())
    assert not set(yes) & set(no)


@pytest.mark.parametrize(
    ("text", "name", "capability"),
    [
        ("RTX PRO 6000 Blackwell", "RTX PRO 6000 Blackwell", "12.0"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell", "12.0"),
        ("rtx pro 6000", "RTX PRO 6000 Blackwell", "12.0"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti", "8.9"),
        ("NVIDIA L40S", "L40S", "8.9"),
        ("NVIDIA A100-SXM4-80GB", "A100", "8.0"),
        ("NVIDIA GB10", "GB10 (DGX Spark)", "12.1"),
        ("B200", "B200", "10.0"),
        ("12.0", "a GPU of capability 12.0", "12.0"),
        ("sm_120", "a GPU of capability 12.0", "12.0"),
    ],
)
def test_a_gpu_by_any_of_its_names(text: str, name: str, capability: str) -> None:
    """As people, NVML and nvidia-smi write it, or by its capability."""
    found = gpu_named(text)

    assert (found.name, found.capability) == (name, Arch.parse(capability))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "Blackwell",
            "'Blackwell' is a line of GPUs, not one; did you mean 10.0 (B200) or 12.0 (RTX PRO 6000, RTX 50)?",
        ),
        ("Voodoo 2", "'Voodoo 2' is no GPU that is known; give its compute capability instead, such as '12.0'"),
        ("10.1", "'10.1': no GPU has compute capability 10.1; since CUDA 13.0 it is 11.0 (Thor)"),
    ],
)
def test_a_gpu_that_cannot_be_meant(text: str, message: str) -> None:
    """A line of GPUs is not one: Blackwell names two that cannot run each other's code."""
    with pytest.raises(ValueError) as caught:
        gpu_named(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("code", "gpu", "why"),
    [
        ("10.0", "12.0", "sm_100 code runs on 10.0 to 10.9"),
        ("10.0a", "10.3", "sm_100a code runs on 10.0 alone"),
        ("10.0f", "12.0", "sm_100f code runs in its family, 10.0 to 10.9"),
        ("compute_120", "10.0", "compute_120 is compiled by the driver for 12.0 and newer"),
        ("10.0", "10.3", ""),
        ("compute_90", "12.0", ""),
    ],
)
def test_why_code_does_not_run(code: str, gpu: str, why: str) -> None:
    """The rule that keeps it from running, in words; empty where it runs."""
    assert why_not(Arch.parse(code), Arch.parse(gpu)) == why


def test_gpus_of_arm_machines_are_no_matter_of_x86_64_wheels() -> None:
    """GB200, GH200, Jetson and DGX Spark only exist beside Arm processors; an aarch64 wheel meets them all."""
    x86 = {name for part in served([Arch.parse("10.0")]) for name in part}
    arm = served([Arch.parse("10.0")], machine="aarch64")
    assert not x86 & {"GB200", "GB300", "GH200", "GB10 (DGX Spark)", "Jetson AGX Orin", "Jetson T5000 (Thor)"}
    assert arm[0] == ("B300", "GB300", "B200", "GB200")
    assert {"B200", "RTX 5090", "H100"} <= x86


@pytest.mark.parametrize(
    ("tags", "machine"),
    [
        (("cp312-cp312-manylinux_2_28_x86_64", "cp312-cp312-manylinux2014_x86_64"), "x86_64"),
        (("cp312-cp312-manylinux_2_28_aarch64",), "aarch64"),
        (("py3-none-any",), ""),
    ],
)
def test_machine_of_a_wheel(tags: tuple[str, ...], machine: str) -> None:
    """The tags say for which processor a wheel is, if for one."""
    assert machine_of(tags) == machine


def test_gpus_are_listed_with_their_code() -> None:
    """B200 and RTX PRO 6000 Blackwell are told apart by what runs on them."""
    names = ("RTX PRO 6000 Blackwell", "B200", "RTX 5090")
    assert spell_gpus(names) == "RTX PRO 6000 Blackwell, RTX 5090 (sm_120); B200 (sm_100)"
    assert spell_gpus(("L4", "L40", "L40S"), each=2) == "L4, L40, … (sm_89)"


def test_every_capability_has_its_first_toolkit_and_driver() -> None:
    """As the release notes say; newer GPUs need no older ones."""
    assert {gpu.capability.dotted for gpu in gpus()} <= set(CAPABILITIES)
    assert all(gpu.toolkit and gpu.driver for gpu in gpus())
    assert needs(["B300", "B200"]) == "CUDA 12.8, driver 570 or newer"
    assert needs(["RTX PRO 6000 Blackwell"]) == "CUDA 12.8, driver 570 or newer"
    assert needs([]) == ""
