"""flash-attn inside a memory limit: a fixed set of 16 units against the ideal, and the whole package to its wheel.

`python benchmarks/memory_limit.py set [--limit 10GiB] [--max-jobs 8]` compiles, without a cache, all backward units of
head dimension 256 and 192, four forward and four split ones, through `wheelmill measure`, in a control group with that
limit (as root; else by --memory). It writes benchmarks/results/flash-attn-16-units-10GiB.json and fails where the
kernel killed anything or where it took more than 1.15 of the ideal, by this run's own CPU seconds: max(CPU seconds /
cores, sum of CPU seconds x peak / capacity, longest unit), with the limit less the reserve as capacity. Run it with
nothing else on the machine.

`python benchmarks/memory_limit.py whole WHEEL.build.json` writes benchmarks/results/flash-attn-10GiB.json from the
record of a wheel that was built inside such a limit, over as many starts as it took, or from the compile.jsonl of a
build that is not done: `wheelmill build flash-attn --stack cu130 --max-jobs 128`.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
UNITS = ("flash_bwd_hdim256_*", "flash_bwd_hdim192_*", "flash_fwd_hdim128_*", "flash_fwd_split_hdim128_*")
"""Four each: bf16 and fp16, causal and not."""
WORST = 1.15
GIB = 1 << 30


def limit_group(limit: int) -> Path | None:
    """Make a control group with a memory limit below our own; None where that is not to be had."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            group, name = Path("/sys/fs/cgroup/memory") / path.lstrip("/"), "memory.limit_in_bytes"
        elif number == "0" and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            group, name = Path("/sys/fs/cgroup") / path.lstrip("/"), "memory.max"
        else:
            continue
        group = group / f"benchmark-{os.getpid()}"
        try:
            group.mkdir()
            (group / name).write_text(str(limit))
        except OSError:
            continue
        return group
    return None


def kernel_kills(group: Path | None) -> int | None:
    """Read how many processes of a group the kernel has killed for memory."""
    if group is None:
        return None
    for name in ("memory.oom_control", "memory.events"):
        if (group / name).exists():
            table = dict(line.split() for line in (group / name).read_text().splitlines())
            return int(table["oom_kill"])
    return None


def run_set(limit: int, jobs: int) -> int:
    """Compile the fixed set inside the limit, write down how it went, and judge it."""
    load, group = os.getloadavg(), limit_group(limit)
    words = [sys.executable, "-m", "wheelmill", "measure", "flash-attn", "--stack", "cu130", "--json"]
    words += ["--max-jobs", str(jobs), *(word for unit in UNITS for word in ("--unit", unit))]
    words += [] if group else ["--memory", str(limit)]

    def join() -> None:
        if group:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "UV_PYTHON_DOWNLOADS": "never"}
    started = time.monotonic()
    done = subprocess.run(words, env=env, cwd=ROOT, stdout=subprocess.PIPE, preexec_fn=join, check=False)
    if done.returncode:
        return done.returncode
    [measured] = json.loads(done.stdout)["measurements"]
    result = {
        **machine(load),
        "limit_bytes": limit,
        "limit_by": "control group" if group else "--memory",
        "max_jobs": jobs,
        "whole_command_seconds": round(time.monotonic() - started, 1),
        "kernel_kills": kernel_kills(group),
        "ratio_to_ideal": round(measured["seconds"] / measured["ideal_seconds"], 3),
        **measured,
    }
    if group:
        group.rmdir()
    write("flash-attn-16-units-10GiB.json", result)
    kills = result["kernel_kills"] or result["oom_kills"]
    print(f"{len(measured['units'])} units in {measured['seconds']:.0f} s, ideal {measured['ideal_seconds']:.0f} s")
    print(f"ratio {result['ratio_to_ideal']:.2f}; killed: {kills} by the kernel, {measured['pressure_kills']} by us")
    return int(bool(kills) or result["ratio_to_ideal"] > WORST)


def write_whole(record: Path) -> int:
    """Summarise a wheel's build record, or what a build that is not done yet has compiled, in whichever start."""
    if record.suffix == ".jsonl":
        built: dict[str, Any] = {"complete": False, "name": "flash-attn", "version": "2.8.3"}
        made: dict[str, dict[str, Any]] = {}
        for line in record.read_text("utf-8").splitlines():
            unit = json.loads(line)
            if unit["exit"] == 0 and not (unit["cache"] == "hit" and unit["source"] in made):
                made[unit["source"]] = unit
        units = [unit for unit in made.values() if unit["cache"] != "link"]
    else:
        whole = json.loads(record.read_text("utf-8"))
        names = ("name", "version", "drv", "wheel", "sha256", "size")
        built = {"complete": True, **{name: whole[name] for name in names}}
        units = [unit for unit in whole["units"] if unit["cache"] != "link"]
    shown = (
        "source",
        "archs_used",
        "cache",
        "wall_s",
        "cpu_s",
        "peak_bytes",
        "peak_rss_bytes",
        "reserved_bytes",
        "attempt",
    )
    result = {
        **machine(os.getloadavg()),
        **built,
        "units_count": len(units),
        "cpu_seconds": round(sum(unit["cpu_s"] for unit in units), 1),
        "peak_bytes": max(unit["peak_bytes"] or unit["peak_rss_bytes"] for unit in units),
        "retries": sum(unit["attempt"] - 1 for unit in units),
        "units": [{name: unit[name] for name in shown} for unit in sorted(units, key=lambda unit: unit["source"])],
    }
    write("flash-attn-10GiB.json", result)
    return 0


def machine(load: tuple[float, float, float]) -> dict[str, Any]:
    """Say what this was measured on."""
    return {"cores": len(os.sched_getaffinity(0)), "kernel": platform.release(), "load_before": round(load[0], 2)}


def write(name: str, result: dict[str, Any]) -> None:
    """Write a result for people to read and compare."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / name).write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def main() -> int:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["set", "whole"])
    parser.add_argument("record", nargs="?", type=Path)
    parser.add_argument("--limit", type=lambda text: int(float(text.removesuffix("GiB")) * GIB), default=10 * GIB)
    parser.add_argument("--max-jobs", type=int, default=8)
    options = parser.parse_args()
    if options.what == "whole":
        return write_whole(options.record)
    return run_set(options.limit, options.max_jobs)


if __name__ == "__main__":
    sys.exit(main())
