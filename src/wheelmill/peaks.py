"""Peaks: what each translation unit took before, and what it will take next; pure, but for the two doors to a file.

A table is JSON Lines, one attempt a line, oldest first. Shipped: `recipes/peaks/PACKAGE.jsonl` (a variant's units are
compiled with other flags: `PACKAGE.VARIANT.jsonl`); learned: the same names below the cache.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal, cast, get_args

from .errors import RecipeError

How = Literal["cgroup2", "cgroup1", "poll", "wait4"]
Outcome = Literal["ok", "oom", "pressure", "failed"]
Basis = Literal["measured", "nearby", "class", "recipe", "default"]

FORMAT = 1
GIB = 2**30
LINK = "link"
LAST = 3
"""So many runs count: what a compiler took long ago is of another time."""
MARGIN = 1.05
"""A unit's peak varies by 4 % between ways to measure it, and less from run to run."""
CLASS_MARGIN = 1.1
"""Neighbours in name differ more than runs of one unit."""
AFTER_KILL = 1.3
PER_STREAM = 5_000_000_000
"""Per architecture compiled at once where nothing is known: kernels made of CUTLASS took 3.8 to 7 GB."""
HOST_BYTES, HOST_SECONDS = int(2.5 * GIB), 10.0
"""Host code where nothing is known: units with all of torch's headers took 1.6 to 2.3 GiB (g++ 12, -O3)."""
LINK_BYTES, LINK_SECONDS = int(1.5 * GIB), 1.0
"""A link holds what it reads and writes: extensions up to the wheels' 1 GB."""
DEVICE_SECONDS = 60.0
SINGLE_SETTLED, SINGLE_TAIL = 0.30, 0.41
"""The shape of flash-attn's units, one architecture each: the peak within 28 % of the time, then at most 41 % of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """What a compile's cost depends on.

    `unit`: the source, relative to the source tree (a link: its output); `archs`: codes like `sm_100`, sorted,
    () for host code; `tool`: `nvcc 13.0.88`, `g++ 12.2.0`, `link`; `flags`: see flags_digest.
    """

    unit: str
    archs: tuple[str, ...] = ()
    threads: int = 1
    tool: str = ""
    flags: str = ""

    @property
    def streams(self) -> int:
        """How many architectures are compiled at the same time, each with a peak of its own."""
        return max(1, min(self.threads, len(self.archs)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One attempt, as measured; in JSON the fields of `of` stand flat beside the others.

    `settled_at`: fraction of cpu_s after which memory stays below `tail_bytes`; 1.0: unknown.
    """

    of: Unit
    wall_s: float
    cpu_s: float
    peak_bytes: int
    settled_at: float = 1.0
    tail_bytes: int = 0
    """0: unknown, then the peak counts."""
    how: How
    outcome: Outcome
    reserved_bytes: int = 0
    attempt: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What a compile will take, and how we know. `single`: one architecture, one thread, thus one peak.

    `certain_bytes`: what it will need for sure, without margins (0: only guesses); a machine with less cannot do it.
    """

    peak_bytes: int
    cpu_seconds: float
    settled_at: float = 1.0
    tail_bytes: int = 0
    basis: Basis
    single: bool = False
    certain_bytes: int = 0


class Peaks:
    """The samples of one package, shipped ones first; of each unit's the last ones count.

    `kin`: samples of its variants, or of what this is a variant of. The same unit there tells more than others here.
    """

    def __init__(self, samples: Iterable[Sample] = (), kin: Iterable[Sample] = ()) -> None:
        related = tuple(kin)
        self._kin = Peaks(related) if related else None
        self._of: dict[str, dict[Unit, list[Sample]]] = {}
        self._folders: dict[str, list[str]] = {}
        for sample in samples:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        """Learn one more; what a compile error ended says nothing."""
        if sample.outcome == "failed":
            return
        unit = sample.of.unit
        if unit not in self._of:
            self._of[unit] = {}
            self._folders.setdefault(folder_of(unit), []).append(unit)
        self._of[unit].setdefault(sample.of, []).append(sample)

    def __iter__(self) -> Iterator[Unit]:
        """Give every unit of which something is known, sorted by name, then in the order of the table."""
        return (key for name in sorted(self._of) for key in self._of[name])

    def predict(self, unit: Unit, fallback_bytes: int | None = None) -> Prediction:
        """Say what a compile will take; `fallback_bytes` is the recipe's memory-per-compile (device code only)."""
        exact = self._of.get(unit.unit, {}).get(unit, [])
        near = measured(unit, exact) or self.nearby(unit) or (self._kin and self._kin.nearby(unit))
        return with_kills(near or self._class(unit) or guess(unit, fallback_bytes), exact)

    def _class(self, unit: Unit) -> Prediction | None:
        """Go by the units with the likest names, of this package before its variants."""
        own, found = self.likest(unit)
        other, theirs = self._kin.likest(unit) if self._kin else (0, None)
        return theirs if other > own else found

    def nearby(self, unit: Unit) -> Prediction | None:
        """Go by the same unit under another compiler, other flags or for other architectures.

        Those for the same architectures and threads tell more than the rest.
        """
        known = self._of.get(unit.unit, {})
        found = [(key, made) for key, samples in known.items() if (made := measured(key, samples)) is not None]
        found = [(key, made) for key, made in found if bool(key.archs) == bool(unit.archs)]
        same = [(key, made) for key, made in found if (key.archs, key.threads) == (unit.archs, unit.threads)]
        return merged([scaled(made, key, unit) for key, made in same or found], unit, basis="nearby")

    def likest(self, unit: Unit) -> tuple[int, Prediction | None]:
        """Go by the units of the same folder whose names share the most first words; give how many, at least one."""
        best, members = 0, list[str]()
        for name in self._folders.get(folder_of(unit.unit), []):
            shared = shared_words(name, unit.unit)
            if shared and shared >= best and name != unit.unit and self._has(name, device=bool(unit.archs)):
                members = [*members, name] if shared == best else [name]
                best = shared
        made = [prediction for name in members if (prediction := self.nearby(replace(unit, unit=name)))]
        found = merged(made, unit, basis="class")
        if found is None:
            return 0, None
        # Which of them it is like is not known: the least of them is certain, a margin over the largest is predicted.
        return best, replace(
            found,
            peak_bytes=int(found.peak_bytes * CLASS_MARGIN / MARGIN),
            certain_bytes=min(other.certain_bytes for other in made),
        )

    def _has(self, name: str, *, device: bool) -> bool:
        return any(
            bool(key.archs) == device and any(sample.outcome == "ok" for sample in samples)
            for key, samples in self._of[name].items()
        )


def measured(unit: Unit, samples: Sequence[Sample]) -> Prediction | None:
    """Go by the last runs of this very unit that ended well; None without one."""
    last = [sample for sample in samples if sample.outcome == "ok"][-LAST:]
    if not last:
        return None
    peak = max(sample.peak_bytes for sample in last)
    return Prediction(
        peak_bytes=int(peak * MARGIN),
        cpu_seconds=fmean(sample.cpu_s for sample in last),
        settled_at=max(sample.settled_at for sample in last),
        tail_bytes=max(sample.tail_bytes or sample.peak_bytes for sample in last),
        basis="measured",
        single=len(unit.archs) == 1 and unit.threads == 1,
        certain_bytes=peak,
    )


def with_kills(known: Prediction, samples: Sequence[Sample]) -> Prediction:
    """Raise a prediction by what was killed for memory since the last run that ended well.

    A kill under pressure is the machine's fault as often as the unit's: only what it used then counts. Else each start
    under pressure would raise the reservation by 30 %, until nothing fits any more.
    """
    since = 0
    for number, sample in enumerate(samples, 1):
        since = number if sample.outcome == "ok" else since
    kills = [sample for sample in samples[since:] if sample.outcome in {"oom", "pressure"}]
    if not kills:
        return known
    used = max(sample.peak_bytes for sample in kills)
    bound = max(max(sample.peak_bytes, sample.reserved_bytes * (sample.outcome == "oom")) for sample in kills)
    return replace(
        known,
        peak_bytes=max(known.peak_bytes, int(bound * AFTER_KILL)),
        certain_bytes=max(known.certain_bytes, used),
    )


def scaled(known: Prediction, of: Unit, unit: Unit) -> Prediction:
    """Carry a prediction over to other architectures and threads: one peak per stream, CPU time per architecture."""
    size = unit.streams / of.streams
    return replace(
        known,
        peak_bytes=int(known.peak_bytes * size),
        tail_bytes=int(known.tail_bytes * size),
        certain_bytes=int(known.certain_bytes * size),
        cpu_seconds=known.cpu_seconds * max(1, len(unit.archs)) / max(1, len(of.archs)),
        # Another number of architectures has its last peak at another time.
        settled_at=known.settled_at if (len(unit.archs), unit.threads) == (len(of.archs), of.threads) else 1.0,
    )


def merged(found: Sequence[Prediction], unit: Unit, *, basis: Basis) -> Prediction | None:
    """Take the largest of several predictions; None of none."""
    if not found:
        return None
    return Prediction(
        peak_bytes=max(one.peak_bytes for one in found),
        cpu_seconds=max(one.cpu_seconds for one in found),
        settled_at=max(one.settled_at for one in found),
        tail_bytes=max(one.tail_bytes for one in found),
        basis=basis,
        single=len(unit.archs) == 1 and unit.threads == 1,
        certain_bytes=max(one.certain_bytes for one in found),
    )


def guess(unit: Unit, fallback_bytes: int | None) -> Prediction:
    """Go by the recipe, else by what compilers of this kind usually take."""
    if unit.tool == LINK:
        return Prediction(peak_bytes=LINK_BYTES, cpu_seconds=LINK_SECONDS, basis="default")
    if not unit.archs:
        return Prediction(peak_bytes=HOST_BYTES, cpu_seconds=HOST_SECONDS, basis="default")
    return Prediction(
        peak_bytes=PER_STREAM * unit.streams if fallback_bytes is None else fallback_bytes,
        cpu_seconds=DEVICE_SECONDS * len(unit.archs),
        basis="default" if fallback_bytes is None else "recipe",
        single=len(unit.archs) == 1 and unit.threads == 1,
        certain_bytes=fallback_bytes or 0,
    )


def folder_of(unit: str) -> str:
    """Give the folder of a unit's name."""
    return unit.rpartition("/")[0]


def shared_words(one: str, other: str) -> int:
    """Count the first words that two file names share: `flash_bwd_hdim64_x` and `flash_bwd_hdim96_x` share two."""
    count = 0
    for left, right in zip(_words(one), _words(other), strict=False):
        if left != right:
            break
        count += 1
    return count


def _words(unit: str) -> list[str]:
    stem = unit.rpartition("/")[2].rpartition(".")[0]
    return stem.replace("-", "_").split("_")


# flags -----------------------------------------------------------------------------------------------------


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


WITH_VALUE = _set(
    "-o --output-file -I --include-path -isystem --system-include -L --library-path -MF --dependency-output -MT -MQ "
    "-gencode --generate-code -arch --gpu-architecture -code --gpu-code -t --threads -ccbin --compiler-bindir "
    "-odir --output-directory --keep-dir -isysroot --sysroot -idirafter -iquote -l --library"
)
"""What cannot change size or cost, or stands elsewhere in the key; these take the next word as their value."""
WITHOUT_VALUE = _set(
    "-c --compile -dc --device-c -M -MM -MD -MMD -MP -MG --objdir-as-tempdir -pipe -v --verbose -w --keep "
    "--generate-dependencies-with-compile --generate-nonsystem-dependencies-with-compile"
)
JOINED = (
    "-frandom-seed", "-ffile-prefix-map", "-fmacro-prefix-map", "-fdebug-prefix-map", "-fdiagnostics-color", "-W",
)  # fmt: skip
PASSED_ON = _set(
    "-D --define-macro -U --undefine-macro -Xcompiler --compiler-options -Xptxas --ptxas-options -Xcicc -Xnvvm "
    "-Xlinker --linker-options -Xfatbin --fatbin-options -Xcudafe -x --x -std --std -O --optimize -include "
    "--pre-include -maxrregcount --maxrregcount -Xarch_device -Xarch_host --diag-suppress -diag-suppress"
)
"""These count, and so does the next word."""


def flags_digest(argv: Sequence[str]) -> str:
    """Give 16 hex digits for the flags that can change size or cost: macros, -O, -std, words for ptxas and g++.

    `argv` with or without the program. Paths, inputs, outputs, architectures, threads, dependencies, warnings and seeds
    are left out.
    """
    text = json.dumps(_kept(argv), ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _kept(argv: Sequence[str]) -> list[str]:
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word in WITH_VALUE:
            next(words, "")
        elif word in PASSED_ON:
            value = next(words, "")
            if not _is_left_out(value.strip("'\"")):
                kept += [word, _without_path(value)]
        elif word.startswith("-") and not _is_left_out(word):
            kept.append(_without_path(word))
    return kept


def _is_left_out(word: str) -> bool:
    name, equals, _ = word.partition("=")
    if word in WITHOUT_VALUE or word.startswith(JOINED) or (equals and name in WITH_VALUE):
        # -Wl and its kin hand words to the linker and assembler; they cost a compile nothing
        return True
    return word.startswith(("-I", "-L", "-l", "-o", "-isystem", "-MF", "-MT", "-MQ", "-B")) and word != "-lineinfo"


def _without_path(word: str) -> str:
    """Cut a value that is a path: it differs between machines where no sandbox is."""
    name, equals, value = word.partition("=")
    return name if equals and "/" in value else word


ADVICE = "Restore the file, or delete it: then the recipe's memory-per-compile counts."

# files -----------------------------------------------------------------------------------------------------


def table_name(package: str, variant: str | None = None) -> str:
    """Give the file name of a table: `flash-attn.jsonl`, a variant's `flash-attn.hdim128-bf16-inference.jsonl`."""
    return f"{package}.{variant}.jsonl" if variant else f"{package}.jsonl"


def read_peaks(path: Path, *, learned: bool = False) -> tuple[Sample, ...]:
    """Read a table; no file: no samples. Raises RecipeError with file and line for a line that is no sample.

    Of a learned table such lines are skipped: it is a cache, a crash may have cut a line short, and no build must
    fail of it.
    """
    try:
        text = path.read_text("utf-8", "replace" if learned else "strict")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot be read: {error}", file=str(path), advice=ADVICE) from None
    samples: list[Sample] = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            samples += [_parse(line, place=f"{path}:{number}")] if line.strip() else []
        except RecipeError:
            if not learned:
                raise
    return tuple(samples)


def append_sample(path: Path, sample: Sample) -> None:
    """Add one line with one write, so that several builds may share a table.

    A line that a crash cut short is ended first, and stays unread.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        line = f"{to_line(sample)}\n".encode()
        os.write(descriptor, b"\n" + line if torn else line)
    finally:
        os.close(descriptor)


def to_line(sample: Sample) -> str:
    """Spell a sample as its JSON line, without the newline."""
    fields = asdict(sample)
    return json.dumps({"v": FORMAT, **fields.pop("of"), **fields}, ensure_ascii=True, separators=(",", ":"))


def _parse(line: str, *, place: str) -> Sample:
    try:
        raw = json.loads(line)
        if not isinstance(raw, dict):
            raise ValueError("not an object")  # noqa: TRY004, TRY301 - one kind of error for a bad line
        return _sample(raw)
    except (ValueError, KeyError) as error:
        said = f"has no {error}" if isinstance(error, KeyError) else f"is no sample: {error}"
        raise RecipeError(said, file=place, advice=ADVICE) from None


def _sample(raw: Mapping[str, object]) -> Sample:
    """Check the fields. Raises ValueError and KeyError."""
    if raw["v"] != FORMAT:
        raise ValueError(f"format {raw['v']}, we read {FORMAT}")
    archs = raw["archs"]
    if not isinstance(archs, list) or not all(isinstance(arch, str) for arch in archs):
        raise ValueError("archs is not a list of strings")
    settled = _number(raw, "settled_at", 1.0)
    if settled > 1:
        raise ValueError(f"settled_at is a fraction, found {settled}")
    return Sample(
        of=Unit(
            unit=_text(raw, "unit"),
            archs=tuple(sorted(archs)),
            threads=int(_number(raw, "threads")),
            tool=_text(raw, "tool"),
            flags=_text(raw, "flags"),
        ),
        wall_s=_number(raw, "wall_s"),
        cpu_s=_number(raw, "cpu_s"),
        peak_bytes=int(_number(raw, "peak_bytes")),
        settled_at=settled,
        tail_bytes=int(_number(raw, "tail_bytes", 0)),
        how=cast("How", _choice(raw, "how", get_args(How))),
        outcome=cast("Outcome", _choice(raw, "outcome", get_args(Outcome))),
        reserved_bytes=int(_number(raw, "reserved_bytes", 0)),
        attempt=int(_number(raw, "attempt", 1)),
    )


def _text(raw: Mapping[str, object], key: str) -> str:
    value = raw[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a string")  # noqa: TRY004 - as above
    return value


def _number(raw: Mapping[str, object], key: str, default: float | None = None) -> float:
    value = raw[key] if default is None else raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**63:
        raise ValueError(f"{key} is not a number of at least 0")
    return value


def _choice(raw: Mapping[str, object], key: str, choices: Sequence[str]) -> str:
    value = _text(raw, key)
    if value not in choices:
        raise ValueError(f"{key} is {value!r}, not one of {', '.join(choices)}")
    return value


# from the records of a build -------------------------------------------------------------------------------


def from_record(record: Mapping[str, object], tools: Mapping[str, str], *, assume_shape: bool = False) -> Sample | None:
    """Make a sample of one line of compile.jsonl; None for hits, links and failures.

    `tools` names what stands behind a record's tool: {"nvcc": "nvcc 13.0.88", "c++": "g++ 12.2.0"}. A record of wait4
    knows the largest process only, which is right for one architecture, and not when its peak passed: `assume_shape`
    takes that of flash-attn's units, where cicc holds nearly all (not for units with torch's headers, whose g++ at the
    end takes as much). Raises ValueError and KeyError for a line that is no record.
    """
    if record["cache"] not in {"miss", "off"} or record["exit"] != 0:
        return None
    archs, argv = record["archs_used"], record.get("argv", [])
    if not isinstance(archs, list) or not isinstance(argv, list):
        raise ValueError("archs_used or argv is not a list")  # noqa: TRY004 - as above
    words = [str(word) for word in argv]
    tool, tree = _text(record, "tool"), int(_number(record, "peak_bytes", 0))
    unit = Unit(
        unit=_text(record, "source"),
        archs=tuple(sorted(str(arch) for arch in archs)),
        threads=threads_of(words),
        tool=tools.get(tool, tool),
        flags=flags_digest(words) if words else "",
    )
    peak = max(tree, int(_number(record, "peak_rss_bytes")))
    settled, tail = _number(record, "settled_at", 1.0), int(_number(record, "tail_bytes", 0))
    if assume_shape and not tree and len(unit.archs) == unit.threads == 1:
        settled, tail = SINGLE_SETTLED, int(peak * SINGLE_TAIL)
    return Sample(
        of=unit,
        wall_s=round(_number(record, "wall_s"), 1),
        cpu_s=round(_number(record, "cpu_s"), 1),
        peak_bytes=peak,
        settled_at=settled,
        tail_bytes=tail or peak,
        how=cast("How", _choice(record, "how", get_args(How))) if tree else "wait4",
        outcome="ok",
    )


def threads_of(argv: Sequence[str]) -> int:
    """Read nvcc's --threads; 1 without it, and for 0 (one per core), which no build of ours asks for."""
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name in {"-t", "--threads"}:
            text = value if equals else following
            return max(1, int(text)) if text.isdigit() else 1
    return 1


def to_table(samples: Iterable[Sample]) -> str:
    """Spell the table that ships: of each unit the last sample that ended well, sorted, without traces of a run."""
    last = {sample.of: sample for sample in samples if sample.outcome == "ok"}
    lines = sorted(to_line(replace(sample, reserved_bytes=0, attempt=1)) for sample in last.values())
    return "".join(f"{line}\n" for line in lines)
