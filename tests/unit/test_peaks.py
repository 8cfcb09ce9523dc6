"""Peaks: what a unit took before says what it will take."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmill.errors import RecipeError
from wheelmill.peaks import (
    GIB,
    Peaks,
    Sample,
    Unit,
    append_sample,
    flags_digest,
    from_record,
    read_peaks,
    shared_words,
    table_name,
    threads_of,
    to_line,
    to_table,
)

BWD = Unit(unit="csrc/src/flash_bwd_hdim64_bf16_sm80.cu", archs=("sm_100",), tool="nvcc 13.0.88", flags="f")
HOST = Unit(unit="csrc/api.cpp", tool="g++ 12.2.0", flags="f")


def sample(of: Unit = BWD, peak: int = 1000, **more: object) -> Sample:
    """One run of 100 CPU seconds that ended well."""
    fields: dict[str, object] = {"wall_s": 110.0, "cpu_s": 100.0, "how": "cgroup1", "outcome": "ok", **more}
    return Sample(of=of, peak_bytes=peak, **fields)  # type: ignore[arg-type]


def test_the_last_three_runs_count() -> None:
    """The largest of them and 5 %; the mean of their CPU seconds; the latest end of the peak."""
    runs = [
        sample(peak=9000),
        sample(peak=1000, settled_at=0.25, tail_bytes=300),
        sample(peak=2000, cpu_s=130.0, settled_at=0.3, tail_bytes=400),
        sample(peak=1500, settled_at=0.28, tail_bytes=350),
    ]
    found = Peaks(runs).predict(BWD)
    assert (found.peak_bytes, found.certain_bytes, found.basis) == (2100, 2000, "measured")
    assert (found.cpu_seconds, found.settled_at, found.tail_bytes, found.single) == (110.0, 0.3, 400, True)


def test_a_run_that_says_nothing_of_its_tail_says_the_peak() -> None:
    """Then nothing is given back early."""
    found = Peaks([sample(peak=1000)]).predict(BWD)
    assert (found.settled_at, found.tail_bytes) == (1.0, 1000)


def test_a_kernel_kill_is_a_lower_bound() -> None:
    """30 % more than it used and than it was promised, until it has ended well again."""
    peaks = Peaks([sample(peak=1000), sample(peak=900, outcome="oom", reserved_bytes=2000)])
    assert peaks.predict(BWD).peak_bytes == 2600
    assert peaks.predict(BWD).certain_bytes == 1000
    peaks.add(sample(peak=1100))
    assert peaks.predict(BWD).peak_bytes == 1155


def test_a_kill_under_pressure_counts_what_was_used() -> None:
    """Not what was promised: else starts under pressure raise it until nothing fits."""
    runs = [sample(peak=1000), *[sample(peak=900, outcome="pressure", reserved_bytes=2000)] * 9]
    assert Peaks(runs).predict(BWD).peak_bytes == 1170


def test_a_kill_of_a_unit_that_never_ended_well() -> None:
    """The guess, unless the kill says more."""
    killed = Peaks([sample(peak=2 * GIB, outcome="oom", reserved_bytes=7 * GIB)])
    assert killed.predict(BWD, 7 * GIB).peak_bytes == int(7 * GIB * 1.3)
    assert killed.predict(BWD, 20 * GIB).peak_bytes == 20 * GIB


def test_a_compile_error_says_nothing() -> None:
    """It may have ended at the first line."""
    peaks = Peaks([sample(peak=5, outcome="failed")])
    assert peaks.predict(BWD, 7 * GIB).basis == "recipe"
    assert list(peaks) == []


@pytest.mark.parametrize("other", [{"tool": "nvcc 12.8.93"}, {"flags": "g"}])
def test_another_compiler_or_flags_are_nearby(other: dict[str, str]) -> None:
    """The same unit tells most of itself."""
    found = Peaks([sample(peak=1000, settled_at=0.3, tail_bytes=400)]).predict(replace(BWD, **other))  # type: ignore[arg-type]
    assert (found.peak_bytes, found.basis, found.settled_at) == (1050, "nearby", 0.3)


def test_other_architectures_are_reckoned() -> None:
    """Peaks stand beside each other as many threads as there are, CPU seconds add up; when it settles is not known."""
    peaks = Peaks([sample(peak=1000, settled_at=0.3, tail_bytes=400)])
    four = replace(BWD, archs=("sm_100", "sm_120", "sm_80", "sm_90"), threads=4)
    found = peaks.predict(four)
    assert (found.peak_bytes, found.cpu_seconds, found.settled_at, found.single) == (4200, 400.0, 1.0, False)
    assert peaks.predict(replace(four, threads=1)).peak_bytes == 1050
    assert peaks.predict(replace(four, threads=8)).peak_bytes == 4200
    assert Peaks([sample(four, peak=4000)]).predict(BWD).peak_bytes == 1050


def test_an_unknown_unit_goes_by_its_class() -> None:
    """Those whose names share most words, in the same folder: the largest and 10 %; sure is only the least."""
    peaks = Peaks(
        [
            sample(replace(BWD, unit="csrc/src/flash_bwd_hdim64_fp16_sm80.cu"), peak=1000),
            sample(replace(BWD, unit="csrc/src/flash_bwd_hdim64_fp16_causal_sm80.cu"), peak=2000),
            sample(replace(BWD, unit="csrc/src/flash_bwd_hdim96_fp16_sm80.cu"), peak=7000),
            sample(replace(BWD, unit="csrc/src/flash_fwd_hdim64_bf16_sm80.cu"), peak=9000),
            sample(replace(BWD, unit="csrc/flash_bwd_hdim64_bf16_x.cu"), peak=9000),
            sample(replace(HOST, unit="csrc/src/flash_bwd_hdim64_bf16_sm90.cpp"), peak=9000),
        ]
    )
    found = peaks.predict(BWD, 7 * GIB)
    assert (found.peak_bytes, found.certain_bytes, found.basis) == (2200, 1000, "class")
    assert peaks.predict(replace(BWD, unit="csrc/src/flash_bwd_hdim96_bf16.cu")).peak_bytes == 7700
    assert peaks.predict(replace(BWD, unit="csrc/src/flash_new.cu")).peak_bytes == 9900
    assert peaks.predict(replace(BWD, unit="csrc/src/other.cu"), 7 * GIB).basis == "recipe"


def test_where_nothing_is_known() -> None:
    """The recipe's figure for device code, else 5 GB per architecture at once; 2.5 GiB for g++, 1.5 GiB for a link."""
    nothing = Peaks()
    assert nothing.predict(BWD, 7 * GIB).peak_bytes == nothing.predict(BWD, 7 * GIB).certain_bytes == 7 * GIB
    two = replace(BWD, archs=("sm_80", "sm_90"), threads=4)
    assert (nothing.predict(two).peak_bytes, nothing.predict(two).certain_bytes) == (10_000_000_000, 0)
    assert nothing.predict(HOST, 7 * GIB).peak_bytes == int(2.5 * GIB)
    assert nothing.predict(Unit(unit="x.so", tool="link"), 7 * GIB).peak_bytes == int(1.5 * GIB)
    assert nothing.predict(HOST).basis == "default"


UNITS = [
    replace(BWD, unit=f"csrc/src/{name}.cu", archs=archs, threads=threads, flags=flags)
    for name in ("flash_bwd_64", "flash_bwd_96", "flash_fwd_64")
    for archs, threads in ((("sm_100",), 1), (("sm_100", "sm_90"), 2))
    for flags in ("f", "g")
]
SAMPLES = st.builds(
    sample,
    st.sampled_from(UNITS),
    st.integers(1, 10**10),
    cpu_s=st.integers(1, 1000),
    outcome=st.sampled_from(["ok", "ok", "ok", "oom", "pressure", "failed"]),
    reserved_bytes=st.integers(0, 10**10),
    settled_at=st.sampled_from([0.3, 1.0]),
)


@settings(max_examples=40)
@given(st.lists(SAMPLES, max_size=6), st.sampled_from(UNITS), st.data())
def test_more_use_never_predicts_less(samples: list[Sample], unit: Unit, data: st.DataObject) -> None:
    """Raise any one observed peak, and no prediction falls."""
    before = Peaks(samples).predict(unit, GIB)
    if samples:
        place = data.draw(st.integers(0, len(samples) - 1))
        more = data.draw(st.integers(0, 10**10))
        samples[place] = replace(samples[place], peak_bytes=samples[place].peak_bytes + more)
    after = Peaks(samples).predict(unit, GIB)
    assert after.peak_bytes >= before.peak_bytes
    assert after.certain_bytes >= before.certain_bytes


@settings(max_examples=40)
@given(st.lists(SAMPLES, max_size=6), st.sampled_from(UNITS), st.integers())
def test_the_order_of_a_table_counts_within_a_unit_only(samples: list[Sample], unit: Unit, seed: int) -> None:
    """Units may be mixed in any order; the runs of one stay in theirs."""
    keys = [one.of for one in samples]
    random.Random(seed).shuffle(keys)  # noqa: S311 - no secret
    runs = {key: iter([one for one in samples if one.of == key]) for key in keys}
    mixed = [next(runs[key]) for key in keys]
    assert Peaks(mixed).predict(unit) == Peaks(samples).predict(unit)


@settings(max_examples=40)
@given(st.lists(SAMPLES, max_size=6), st.sampled_from(UNITS))
def test_what_is_certain_is_not_more_than_what_is_predicted(samples: list[Sample], unit: Unit) -> None:
    """And a unit that took something is predicted to take it again."""
    found = Peaks(samples).predict(unit)
    assert 0 <= found.certain_bytes <= found.peak_bytes
    last = [one.peak_bytes for one in samples if one.of == unit and one.outcome == "ok"][-3:]
    assert found.peak_bytes >= max(last, default=0)


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [
        ("a/flash_bwd_hdim64_x.cu", "a/flash_bwd_hdim96_x.cu", 2),
        ("a/flash_bwd.cu", "b/flash_bwd_x.cu", 2),
        ("scatter.cpp", "segment.cpp", 0),
    ],
)
def test_words_of_names(one: str, other: str, count: int) -> None:
    """Whole words count, not letters."""
    assert shared_words(one, other) == count


# flags


def digest(*words: str) -> str:
    return flags_digest(words)


@pytest.mark.parametrize(
    "noise",
    [
        ["-I/a", "-I", "/b", "-isystem", "/c", "-L/d"],
        ["-c", "x.cu", "-o", "/y/x.o"],
        ["-gencode", "arch=compute_100,code=sm_100", "--gpu-architecture=sm_90", "-arch=sm_90"],
        ["--threads=4", "-t", "4", "-t=4", "--threads", "4"],
        ["-MD", "-MF", "x.d", "-MMD", "--generate-dependencies-with-compile", "--dependency-output", "x.d"],
        ["--objdir-as-tempdir", "-frandom-seed=/wheelmill/x.o", "-ffile-prefix-map=/a=/b"],
        ["-Xcompiler", "-ffile-prefix-map=/a=/b", "-Wall", "-Wsign-compare", "-pipe"],
        ["/usr/bin/nvcc"],
    ],
)
def test_what_cannot_change_a_units_cost(noise: list[str]) -> None:
    """Paths, inputs, architectures, threads, dependencies, seeds, warnings."""
    assert digest("-O3", *noise, "-DX") == digest("-O3", "-DX")


@pytest.mark.parametrize(
    "word",
    ["-O2", "-DX", "-UX", "-std=c++17", "--use_fast_math", "-Xptxas -O2", "-Xcompiler -fPIC", "-lineinfo", "-g", "-G"],
)
def test_what_can_change_it(word: str) -> None:
    """Macros, levels, standards, what is handed on."""
    assert digest("-O3", *word.split()) != digest("-O3")
    assert len(digest("-O3")) == 16


def test_a_macro_that_is_a_path_counts_by_its_name() -> None:
    """The path differs between machines."""
    assert digest('-DHOME="/a/b"') == digest('-DHOME="/c"') != digest("-DHOMES=1")
    assert digest("-D", "HOME=/a") == digest("-D", "HOME=/b")


@pytest.mark.parametrize(
    ("argv", "threads"),
    [(["-t", "4"], 4), (["-t=3"], 3), (["--threads", "2"], 2), (["--threads=0"], 1), (["-O3"], 1), (["-t"], 1)],
)
def test_threads_of_nvcc(argv: list[str], threads: int) -> None:
    """As nvcc spells them."""
    assert threads_of(argv) == threads


# files


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    """One line, one attempt; the folder is made."""
    path = tmp_path / "peaks" / table_name("flash-attn", "small")
    assert path.name == "flash-attn.small.jsonl"
    assert read_peaks(path) == ()
    first, second = sample(settled_at=0.3, tail_bytes=9), sample(HOST, outcome="oom", reserved_bytes=5, attempt=2)
    append_sample(path, first)
    append_sample(path, second)
    assert read_peaks(path) == (first, second)
    assert set(json.loads(path.read_text().splitlines()[0])) == {
        *("v", "unit", "archs", "threads", "tool", "flags", "wall_s", "cpu_s", "peak_bytes", "settled_at"),
        *("tail_bytes", "how", "outcome", "reserved_bytes", "attempt"),
    }


def test_a_crash_cut_a_learned_line_short(tmp_path: Path) -> None:
    """It is skipped, and the next sample stands on a line of its own."""
    path = tmp_path / "x.jsonl"
    path.write_text(to_line(sample()) + "\n" + to_line(sample())[:40])
    assert read_peaks(path, learned=True) == (sample(),)
    append_sample(path, sample(peak=7))
    assert read_peaks(path, learned=True) == (sample(), sample(peak=7))
    with pytest.raises(RecipeError):
        read_peaks(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"v": 2}, "is no sample: format 2, we read 1"),
        ({"unit": 5}, "is no sample: unit is not a string"),
        ({"archs": "sm_100"}, "is no sample: archs is not a list of strings"),
        ({"peak_bytes": -1}, "is no sample: peak_bytes is not a number of at least 0"),
        ({"cpu_s": True}, "is no sample: cpu_s is not a number of at least 0"),
        ({"settled_at": 1.5}, "is no sample: settled_at is a fraction, found 1.5"),
        ({"how": "guess"}, "is no sample: how is 'guess', not one of cgroup2, cgroup1, poll, wait4"),
        ({"outcome": None}, "is no sample: outcome is not a string"),
    ],
)
def test_a_shipped_line_that_is_no_sample(tmp_path: Path, change: dict[str, object], said: str) -> None:
    """File, line and what is wrong."""
    path = tmp_path / "x.jsonl"
    path.write_text(f"{to_line(sample())}\n{json.dumps({**json.loads(to_line(sample())), **change})}\n")
    with pytest.raises(RecipeError) as caught:
        read_peaks(path)
    assert str(caught.value) == f"{path}:2: {said}"


def test_a_line_without_a_field(tmp_path: Path) -> None:
    """The field is named; a list is no sample either; nor are bytes that are no text."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"v":1,"archs":[]}\n')
    with pytest.raises(RecipeError, match=r"x\.jsonl:1: has no 'unit'"):
        read_peaks(path)
    path.write_text("[]")
    with pytest.raises(RecipeError, match="is no sample: not an object"):
        read_peaks(path)
    path.write_bytes(b"\xff\n")
    with pytest.raises(RecipeError, match="cannot be read"):
        read_peaks(path)
    assert read_peaks(path, learned=True) == ()


@settings(max_examples=40)
@given(st.lists(SAMPLES, max_size=5))
def test_the_table_that_ships(samples: list[Sample]) -> None:
    """Sorted, one line per unit's last good run, without traces of a build; the same from any order of units."""
    text = to_table(samples)
    lines = text.splitlines()
    assert lines == sorted(lines)
    assert len(lines) == len({one.of for one in samples if one.outcome == "ok"})
    assert all('"reserved_bytes":0,"attempt":1' in line for line in lines)


SHIPPED = Path(__file__).parents[2] / "recipes/peaks"


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.jsonl")), ids=lambda path: path.stem)
def test_the_tables_that_we_ship(path: Path) -> None:
    """As `to_table` writes them, of a recipe or its variant, without a path of a machine."""
    samples = read_peaks(path)
    assert samples
    assert to_table(samples) == path.read_text()
    assert all(not one.of.unit.startswith("/") and one.of.tool.count(" ") == 1 for one in samples)
    package, _, variant = path.stem.partition(".")
    recipe = (SHIPPED.parent / f"{package}.toml").read_text()
    assert not variant or f".variant.{variant}]" in recipe


# records

RECORD: dict[str, object] = {
    "tool": "nvcc",
    "source": "csrc/a.cu",
    "argv": ["-O3", "-c", "csrc/a.cu"],
    "archs_used": ["sm_100"],
    "cache": "miss",
    "wall_s": 12.34,
    "cpu_s": 10.06,
    "peak_rss_bytes": 1000,
    "exit": 0,
}


def test_a_record_becomes_a_sample() -> None:
    """Of the largest process only; its shape may be taken from units like it."""
    known = Sample(
        of=Unit(unit="csrc/a.cu", archs=("sm_100",), tool="nvcc 13.0.88", flags=digest("-O3")),
        wall_s=12.3,
        cpu_s=10.1,
        peak_bytes=1000,
        settled_at=0.3,
        tail_bytes=410,
        how="wait4",
        outcome="ok",
    )
    assert from_record(RECORD, {"nvcc": "nvcc 13.0.88"}, assume_shape=True) == known
    plain = replace(known, settled_at=1.0, tail_bytes=1000)
    assert from_record(RECORD, {"nvcc": "nvcc 13.0.88"}) == plain
    two = from_record({**RECORD, "archs_used": ["sm_90", "sm_100"]}, {}, assume_shape=True)
    assert two is not None
    assert (two.of.archs, two.settled_at) == (("sm_100", "sm_90"), 1.0)


def test_a_measured_record_keeps_its_measure() -> None:
    """The whole tree's peak, and when it passed."""
    measured = {"peak_bytes": 1100, "how": "cgroup1", "settled_at": 0.28, "tail_bytes": 390}
    found = from_record({**RECORD, **measured}, {})
    assert found is not None
    assert (found.peak_bytes, found.how, found.settled_at, found.tail_bytes) == (1100, "cgroup1", 0.28, 390)
    assert found.of.tool == "nvcc"


@pytest.mark.parametrize("change", [{"cache": "hit"}, {"cache": "link"}, {"exit": 1}])
def test_records_that_say_nothing(change: dict[str, object]) -> None:
    """Hits, links and failures."""
    assert from_record({**RECORD, **change}, {}) is None


def test_a_host_units_peak_lasts() -> None:
    """What is not known of its shape is not assumed; nor of several architectures."""
    host = from_record({**RECORD, "archs_used": [], "tool": "c++"}, {})
    assert host is not None
    assert (host.settled_at, host.tail_bytes) == (1.0, 1000)
    with pytest.raises(ValueError, match="archs_used or argv is not a list"):
        from_record({**RECORD, "archs_used": "sm_100"}, {})


def test_the_same_unit_of_a_variant_tells_more_than_another_of_the_package() -> None:
    """A variant compiles the same source with less in it; another kernel of the package may take twice as much."""
    forward = replace(BWD, unit="csrc/src/flash_fwd_hdim64_bf16_sm80.cu")
    kin = sample(replace(forward, flags="of a variant"), peak=400)
    found = Peaks([sample(peak=1000)], kin=[kin]).predict(forward)
    assert (found.peak_bytes, found.basis) == (420, "nearby")
    assert list(Peaks([sample(peak=1000)], kin=[kin])) == [BWD]


def test_a_variants_likest_unit_counts_where_the_package_has_none_so_like() -> None:
    """Two names that begin alike in a variant's table say more than one that shares the first word."""
    forward = replace(BWD, unit="csrc/src/flash_fwd_hdim64_bf16_sm80.cu")
    kin = sample(replace(BWD, unit="csrc/src/flash_fwd_hdim128_bf16_sm80.cu"), peak=400)
    found = Peaks([sample(peak=1000)], kin=[kin]).predict(forward)
    assert (found.peak_bytes, found.basis) == (440, "class")
    assert Peaks([kin], kin=[sample(peak=1000)]).predict(forward).peak_bytes == 440
