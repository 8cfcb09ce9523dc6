"""What is known of packages' variables, and what follows from it."""

import pytest
from packaging.version import Version

from wheelmill.arch import CAPABILITIES, Arch
from wheelmill.errors import RecipeError
from wheelmill.knobs import effective, knowledge, makes, parse_knowledge


def test_the_data_is_consistent() -> None:
    """Every range means some version, no two of one project overlap at the versions named, every rule has advice."""
    known = knowledge()
    for each in known.packages:
        assert list(each.versions), each
        assert each.literal.keys().isdisjoint(each.reads)
        ends = [spec.version for spec in each.versions]
        for version in ends:
            assert sum(other.versions.contains(version) for other in known.named(each.project)) <= 1
    assert all(rule.advice.endswith(".") and rule.because for rule in known.together)
    assert {*known.nvcc_first, *known.nvcc_last} <= {*CAPABILITIES, "f"}
    assert all(Version(text) for text in (*known.nvcc_first.values(), *known.nvcc_last.values()))


def test_a_release_is_known_by_its_range() -> None:
    """Post releases count; what nobody has read is unknown."""
    known = knowledge()
    assert known.of("flash-attn", "2.8.3.post2") is known.of("flash-attn", "2.8.3")
    assert known.of("flash-attn", "2.8.4") is None
    assert known.of("numpy", "1.0") is None
    assert [each.project for each in known.readers("FORCE_CUDA")] == ["torch-scatter"]


@pytest.mark.parametrize(
    ("project", "version", "jobs", "threads"),
    [("vllm", "0.15.1", 1, 8), ("flash-attn", "2.8.3", 8, 64), ("unheard-of", "1", 8, 64)],
)
def test_the_same_two_variables_mean_different_totals(project: str, version: str, jobs: int, threads: int) -> None:
    """MAX_JOBS=8 NVCC_THREADS=8: vLLM divides and makes one job of it, flash-attn multiplies to 64 threads."""
    said = effective(project, version, max_jobs=8, nvcc_threads=8)

    assert (said.jobs, said.threads) == (jobs, threads)
    assert said.to_json() == {"jobs": jobs, "threads_per_job": 8, "threads": threads}


def test_vllm_keeps_one_job() -> None:
    """More threads than jobs is still one job, as its setup.py has it."""
    assert effective("vllm", "0.15.1", max_jobs=2, nvcc_threads=8).jobs == 1


@pytest.mark.parametrize(
    ("cuda", "arch", "why"),
    [
        ("12.8", "10.0", ""),
        ("12.6", "10.0", "sm_100 needs nvcc 12.8 or newer"),
        ("12.8", "10.3", "sm_103 needs nvcc 12.9 or newer"),
        ("12.8", "10.0f", "sm_100f needs nvcc 12.9 or newer"),
        ("12.8", "10.0a", ""),
        ("12.9", "12.0f", ""),
        ("13.0", "7.0", "sm_70 was made by nvcc 12.9 and older"),
        ("13.0", "7.5", ""),
        ("12.9", "11.0", "sm_110 needs nvcc 13.0 or newer"),
    ],
)
def test_which_nvcc_makes_which_code(cuda: str, arch: str, why: str) -> None:
    """The first release with an architecture, and the last."""
    assert makes(cuda, Arch.parse(arch)) == why


def test_archs_in_the_packages_own_spelling() -> None:
    """flash-attn wants digits, vLLM what torch reads."""
    archs = (Arch.parse("10.0"), Arch.parse("12.0+PTX"))
    known = knowledge()
    assert [known.of(*name).spell(archs) for name in (("flash-attn", "2.8.3"), ("vllm", "0.15.1"))] == [
        "100;120",
        "10.0;12.0+PTX",
    ]


def test_a_wrong_entry_is_named() -> None:
    """The data is read as strictly as recipes are."""
    entry = {"project": "x", "versions": ">1", "archs": {"variable": "none"}, "jobs": "add", "threads": "none"}
    with pytest.raises(RecipeError) as caught:
        parse_knowledge({"package": [entry]}, file="knobs.toml")
    assert str(caught.value) == "knobs.toml: package[0].jobs: must be one of multiply, divide, found 'add'"
