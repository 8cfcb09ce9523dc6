"""Peaks: what each translation unit took before, and what it will take next; pure, but for the two doors to a file.

A table is JSON Lines, one attempt a line, oldest first. Shipped: `recipes/peaks/PACKAGE.jsonl` (and
`PACKAGE.VARIANT.jsonl`); learned: the same names below the cache.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

How = Literal["cgroup2", "cgroup1", "poll", "wait4"]
Outcome = Literal["ok", "oom", "pressure", "failed"]
Basis = Literal["measured", "nearby", "class", "recipe", "default"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """What a compile's cost depends on.

    `unit`: the source, relative to the source tree (a link: its output); `archs`: codes like `sm_100`, sorted,
    () for host code; `tool`: `nvcc 13.0.88`, `g++ 12.2.0`; `flags`: see flags_digest.
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
    """One attempt, as measured.

    `settled_at`: fraction of cpu_s after which memory stays below tail_bytes; 1.0: unknown. In JSON the fields of `of` stand flat beside the others.
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
    """What a compile will take, and how we know. `single`: one architecture, one thread, thus one peak."""

    peak_bytes: int
    cpu_seconds: float
    settled_at: float = 1.0
    tail_bytes: int = 0
    basis: Basis
    single: bool = False


class Peaks:
    """The samples of one package, shipped ones first; later ones count for more."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        raise NotImplementedError

    def add(self, sample: Sample) -> None:
        """Learn one more."""
        raise NotImplementedError

    def predict(self, unit: Unit, fallback_bytes: int | None = None) -> Prediction:
        """Say what a compile will take; `fallback_bytes` is the recipe's memory-per-compile (device code only)."""
        raise NotImplementedError


def flags_digest(argv: Sequence[str]) -> str:
    """Give 16 hex digits for the flags that can change size or cost: macros, -O, -std, words for ptxas and g++.

    `argv` with or without the program. Paths, inputs, outputs, architectures, threads, dependencies and seeds are
    left out.
    """
    raise NotImplementedError


def table_name(package: str, variant: str | None = None) -> str:
    """Give the file name of a table: `flash-attn.jsonl`, a variant's `flash-attn.hdim128-bf16-inference.jsonl`."""
    raise NotImplementedError


def read_peaks(path: Path, *, learned: bool = False) -> tuple[Sample, ...]:
    """Read a table; no file: no samples. Raises RecipeError with file and line for a line that is no sample.

    Of a learned table a last line without its end is skipped: a crash cut it short.
    """
    raise NotImplementedError


def append_sample(path: Path, sample: Sample) -> None:
    """Add one line with one write, so that several builds may share a table."""
    raise NotImplementedError


def to_line(sample: Sample) -> str:
    """Spell a sample as its JSON line, without the newline."""
    raise NotImplementedError


def from_record(record: Mapping[str, object], tools: Mapping[str, str]) -> Sample | None:
    """Make a sample of one line of compile.jsonl; None for hits, links and failures.

    `tools` names what stands behind a record's tool: {"nvcc": "nvcc 13.0.88", "c++": "g++ 12.2.0"}.
    """
    raise NotImplementedError
