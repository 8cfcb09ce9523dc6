"""How close the governor comes to the ideal on machines of several sizes, against fixed numbers of jobs.

`python benchmarks/simulate.py` simulates whole builds by the very account that the governor keeps, wheelmill.admission:
flash-attn's 73 units from the table that ships, and 250 units as vLLM has them (lognormal). What is true differs from
what is predicted: peaks by 4 %, times by 10 %. Memory follows the measured shape: a ramp to the peak within 30 % of the
time, then 41 % of it. Prints a table, writes benchmarks/results/simulated.json, and fails where the governor takes more
than 1.10 of the ideal or more memory than it may.

ideal = max(sum of time / cores, sum of time x peak / capacity, longest unit). Capacity is memory less the reserve (the
larger of 1 GiB and 15 %). `floor` is what no schedule can beat that knows each unit's memory at every moment.
"""

import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from wheelmill.peaks import GIB, SINGLE_SETTLED, SINGLE_TAIL, Peaks, Prediction, Unit, read_peaks  # noqa: E402
from wheelmill.resources import capacity  # noqa: E402
from wheelmill.simulation import Simulated, SimUnit, ideal_of, simulate  # noqa: E402

MACHINES = ((8, 24), (16, 32), (16, 64), (64, 128), (128, 288), (128, 432))
"""Cores and GiB."""
DRAWS = 10
GUESS = 4.5e9
"""Bytes per job, as people guess who have built flash-attn before."""
LIMIT = 1.10
ARCHS, TOOL = ("sm_100",), "nvcc 13.0.88"


def flash_names() -> list[str]:
    """Name flash-attn 2.8.3's 72 kernels, in the order of its setup.py."""
    return [
        f"csrc/flash_attn/src/flash_{kind}_hdim{size}_{dtype}{causal}_sm80.cu"
        for kind in ("fwd", "bwd", "fwd_split")
        for dtype in ("fp16", "bf16")
        for size in (32, 64, 96, 128, 192, 256)
        for causal in ("", "_causal")
    ]


def flash_attn() -> tuple[list[Prediction], int]:
    """Predict flash-attn's 73 units from the shipped tables; the second value is how many are measured."""
    folder = ROOT / "recipes/peaks"
    peaks = Peaks(
        (*read_peaks(folder / "flash-attn.hdim128-bf16-inference.jsonl"), *read_peaks(folder / "flash-attn.jsonl"))
    )
    flags = next((key.flags for key in peaks if key.archs == ARCHS and "_bwd_" in key.unit), "")
    units = [Unit(unit=name, archs=ARCHS, tool=TOOL, flags=flags) for name in flash_names()]
    host = [key for key in peaks if not key.archs][:1]
    found = [peaks.predict(unit) for unit in (*host, *units)]
    return found, sum(each.basis in {"measured", "nearby"} for each in found)


def vllm_like(rng: random.Random) -> list[Prediction]:
    """Draw 250 units: many small, few of up to 12 GiB, times in proportion."""
    found = []
    for _ in range(250):
        gibs = min(12.0, rng.lognormvariate(0.1, 0.8))
        peak = int(gibs * GIB)
        found.append(
            Prediction(
                peak_bytes=int(peak * 1.05),
                cpu_seconds=gibs * rng.uniform(20, 60) + 5,
                settled_at=SINGLE_SETTLED,
                tail_bytes=int(peak * SINGLE_TAIL),
                basis="measured",
                single=True,
                certain_bytes=peak,
            )
        )
    return found


def truth(known: Prediction, rng: random.Random) -> SimUnit:
    """Draw what a predicted unit really takes; a host unit keeps its memory to its end."""
    peak = int((known.peak_bytes / 1.05) * rng.uniform(0.96, 1.04))
    return SimUnit(
        prediction=known,
        cpu_seconds=known.cpu_seconds * rng.uniform(0.9, 1.1),
        peak_bytes=peak,
        settled_at=rng.uniform(0.26, 0.30) if known.single else 1.0,
        tail_bytes=int(peak * SINGLE_TAIL) if known.single else peak,
    )


def floor_of(units: Sequence[SimUnit], *, cpus: int, room: int) -> float:
    """Give what no schedule can beat: cores, the true memory over time, or the longest unit."""
    mean = [
        replace(
            unit,
            peak_bytes=int(unit.settled_at * unit.peak_bytes / 2 + (1 - unit.settled_at) * unit.tail_bytes),
        )
        for unit in units
    ]
    return ideal_of(mean, cpus=cpus, capacity_bytes=room)


def caps(units: Sequence[SimUnit], *, memory: int) -> dict[str, int]:
    """Give the fixed numbers of jobs: by the largest unit (what is known only afterwards), and as people guess."""
    largest = max(unit.peak_bytes for unit in units)
    return {"safe": max(1, memory // largest), "guessed": max(1, int(memory // GUESS))}


def measure(draw: Callable[[random.Random], list[Prediction]], *, cpus: int, gibs: int) -> dict[str, object]:
    """Simulate one load on one machine, several times, by every policy."""
    memory, room = gibs * GIB, capacity(gibs * GIB)
    runs: dict[str, list[Simulated]] = {"governor": [], "safe": [], "guessed": []}
    floors: list[float] = []
    jobs: dict[str, int] = {}
    for seed in range(DRAWS):
        rng = random.Random(seed)  # noqa: S311 - the same draws for everybody
        units = [truth(known, rng) for known in draw(rng)]
        floors.append(floor_of(units, cpus=cpus, room=room))
        runs["governor"].append(simulate(units, cpus=cpus, capacity_bytes=room))
        jobs = caps(units, memory=memory)
        for name, count in jobs.items():
            runs[name].append(simulate(units, cpus=cpus, capacity_bytes=memory, policy=count))
    ideals = [run.ideal for run in runs["governor"]]
    return {
        "cpus": cpus,
        "memory_gib": gibs,
        "capacity_gib": round(room / GIB, 1),
        "ideal_seconds": round(mean(ideals), 1),
        "floor_seconds": round(mean(floors), 1),
        "policies": {name: told(found, ideals, jobs.get(name), memory, room) for name, found in runs.items()},
    }


def told(
    runs: Sequence[Simulated], ideals: Sequence[float], jobs: int | None, memory: int, room: int
) -> dict[str, object]:
    """Sum up the draws of one policy; a fixed number of jobs may use all of the memory before something is killed."""
    may = room if jobs is None else memory
    ratios = [run.makespan / ideal for run, ideal in zip(runs, ideals, strict=True)]
    return {
        "jobs": jobs,
        "seconds": round(mean([run.makespan for run in runs]), 1),
        "of_ideal": round(mean(ratios), 3),
        "worst_of_ideal": round(max(ratios), 3),
        "at_start": runs[0].granted_at_start,
        "most_at_once": max(run.most_at_once for run in runs),
        "peak_of_capacity": round(max(run.peak_true_bytes for run in runs) / may, 3),
        "draws_over": sum(run.peak_true_bytes > may for run in runs),
    }


def mean(values: Sequence[float]) -> float:
    """Give the arithmetic mean."""
    return sum(values) / len(values)


def show(load: str, rows: Sequence[dict[str, object]]) -> bool:
    """Print one load's table; say whether the governor kept its word."""
    print(f"\n{load}: seconds, of the ideal; jobs or at start; highest true memory of what may be used")
    good = True
    for row in rows:
        policies = cast("dict[str, dict[str, Any]]", row["policies"])
        cells = []
        for name, each in policies.items():
            over = "  OVER" if each["draws_over"] else ""
            cells.append(
                f"{name} {each['seconds']:6.0f} s {each['of_ideal']:.2f}x "
                f"({each['jobs'] or each['at_start']:3}) {each['peak_of_capacity']:.2f}{over}"
            )
        print(f"{row['cpus']:4}c/{row['memory_gib']}G ideal {row['ideal_seconds']:6} s | " + " | ".join(cells))
        own = policies["governor"]
        good &= own["worst_of_ideal"] <= LIMIT and not own["draws_over"]
    return good


def main(out: Path) -> int:
    """Simulate both loads on all machines."""
    known, measured = flash_attn()
    loads: dict[str, Callable[[random.Random], list[Prediction]]] = {
        "flash-attn 2.8.3": lambda _: known,
        "vLLM-like": vllm_like,
    }
    document: dict[str, object] = {
        "schema": 1,
        "draws": DRAWS,
        "flash_attn_units": len(known),
        "flash_attn_units_measured": measured,
        "limit_of_ideal": LIMIT,
    }
    good = True
    for load, draw in loads.items():
        rows = [measure(draw, cpus=cpus, gibs=gibs) for cpus, gibs in MACHINES]
        good &= show(load, rows)
        document[load] = rows
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"\n{measured} of flash-attn's {len(known)} units are measured, the others go by their class; {out}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "benchmarks/results/simulated.json"))
