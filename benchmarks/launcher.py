"""What launcher, cache and gate cost: time per compile, and memory of 250 compiles that wait.

`python benchmarks/launcher.py [ROUNDS] [WAITING]` (default 30 and 250) compiles a small C++ file by itself, through
ccache alone, and through the shims with a real governor, each way in turn in every round so that a busy machine slows
them alike; the least of each is what a quiet one would show. Then so many compiles wait for one that runs, and the
memory of all is read. Results go to benchmarks/results/launcher.json. Fails where launcher and gate take more than
50 ms, a compile of 10 s 1 % more, or governor and gates together more than 100 MB.
"""

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from wheelmill import cgroups
from wheelmill._process import SystemRunner
from wheelmill.account import Means, Terms
from wheelmill.governor import Governor
from wheelmill.limits import find_places, read_now
from wheelmill.shims import HostCompiler, ObjectCache, ShimSpec, compile_gate, host_compilers, make_shims

RESULT = Path(__file__).parent / "results/launcher.json"
LIMIT_MS, LIMIT_SHARE, LIMIT_BYTES = 50.0, 0.01, 100 * 10**6
LONG_SECONDS = 10
COMMAND = [f"-I/wheelmill/env/lib/python3.12/site-packages/torch/include/folder-{n}" for n in range(20)]
"""As long as the commands of torch's extensions: they stay in memory while a compile waits."""


class Place:
    """A folder with a source, shims in every combination, and what to start them with."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {"PATH": os.environ["PATH"], "HOME": str(root), "TMPDIR": str(root)}
        self.host = host_compilers(lambda name, path: shutil.which(name, path=path), SystemRunner(), self.env)
        self.ccache = Path(sys.executable).with_name("ccache")
        self.gate = compile_gate(root, self.host.cc, SystemRunner(), tmp=root)
        self.socket = root / "s"
        self.spec = ShimSpec(python=Path(os.path.realpath(sys.executable)), socket=self.socket, host=self.host)
        (root / "a.cpp").write_text("int f() { return 1; }\n", "utf-8")
        os.utime(root / "a.cpp", (1_700_000_000, 1_700_000_000))

    def path(self, name: str, *, cache: bool, gate: Path | None, host: HostCompiler | None = None) -> dict[str, str]:
        """Make shims; give the environment with them in front."""
        objects = ObjectCache(ccache=self.ccache, directory=self.root / f"cache-{name}") if cache else None
        spec = replace(self.spec, cache=objects, gate=gate, host=host or self.host)
        shims = make_shims(self.root / name, spec)
        return {**self.env, "PATH": f"{shims.bin}:{self.env['PATH']}"}

    def fake(self, script: str) -> HostCompiler:
        """Make a g++ of our own."""
        path = self.root / f"g++-{abs(hash(script))}"
        path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        path.chmod(0o755)
        return replace(self.host, cc=path, cxx=path)

    def governor(self, jobs: int | None = None) -> Governor:
        """Give a governor as a build has it."""
        means = Means(backend=cgroups.probe(), limits=partial(read_now, find_places()))
        return Governor(self.socket, self.root / "compile.jsonl", Terms(jobs=jobs), means)


def took(argv: list[str], env: Mapping[str, str], cwd: Path) -> tuple[float, float]:
    """Give the milliseconds that a program takes, by the clock and of all processors."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, env=env, cwd=cwd, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (time.perf_counter() - started) * 1000, cpu * 1000


def times(place: Place, rounds: int) -> dict[str, object]:
    """Compile in every way, in turn."""
    alone = {
        **place.env,
        "CCACHE_DIR": str(place.root / "cache-alone"),
        "CCACHE_CONFIGPATH": "/dev/null",
        "CCACHE_DEPEND": "1",
    }
    shims = {
        f"{kind}, {how}": place.path(f"{kind}-{how}", cache=how == "cached", gate=gate)
        for kind, gate in (("gate.c", place.gate), ("python", None))
        for how in ("bare", "cached")
    }
    found: dict[str, list[tuple[float, float]]] = {}
    with place.governor():
        for number in range(rounds):
            line = ["-c", "a.cpp", "-o", "a.o", f"-DROUND={number}", "-MD", "-MF", "a.d"]
            ways = {"plain": (["g++", *line], place.env)}
            for way in ("miss", "hit"):
                ways[f"ccache alone, {way}"] = ([str(place.ccache), "g++", *line], alone)
            for name, env in shims.items():
                ways[f"{name} miss" if "cached" in name else name] = (["g++", *line], env)
                if "cached" in name:
                    ways[f"{name} hit"] = (["g++", *line], env)
            for name, (argv, env) in ways.items():
                found.setdefault(name, []).append(took(argv, env, place.root))
    figures: dict[str, object] = {"rounds": rounds}
    for measure, at, of in (("wall", 0, statistics.median), ("least", 0, min), ("cpu", 1, statistics.median)):
        middle = {name: of([each[at] for each in runs]) for name, runs in found.items()}
        figures[f"{measure}_ms"] = {name: round(value, 1) for name, value in middle.items()}
        for kind in ("gate.c", "python"):
            figures[f"{measure}_ms_added_with_{kind}"] = {
                way: round(middle[f"{kind}, {way}"] - middle[without], 1)
                for way, without in (
                    ("bare", "plain"),
                    ("cached miss", "ccache alone, miss"),
                    ("cached hit", "ccache alone, hit"),
                )
            }
    return figures


def long_one(place: Place) -> dict[str, float]:
    """Compare a compile of ten seconds, which only waits, so that nothing else on the machine counts."""
    host = place.fake(f"exec sleep {LONG_SECONDS}")
    env = place.path("long", cache=False, gate=place.gate, host=host)
    with place.governor():
        plain, _ = took([str(host.cxx), "-c", "a.cpp", "-o", "a.o"], place.env, place.root)
        through, _ = took(["g++", "-c", "a.cpp", "-o", "a.o"], env, place.root)
    return {"plain_ms": round(plain, 1), "shims_ms": round(through, 1), "more": round(through / plain - 1, 5)}


def memory(pid: int) -> Counter[str]:
    """Give a process's bytes: resident, its fair share of them, and what it alone has."""
    found: Counter[str] = Counter(processes=1)
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()[1:]:
        name, _, value = line.partition(":")
        if name in {"Rss", "Pss", "Private_Dirty"}:
            found[name.lower()] = int(value.split()[0]) * 1024
    return found


def role(place: Place, pid: int) -> str:
    """Tell what a process of ours is."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    program = Path(f"/proc/{pid}/exe").resolve()
    if program == (place.root / "waiting/gate").resolve():
        return "launch role" if words[1].startswith(b"--") else "gate role"
    return "ccache" if program == place.ccache.resolve() else program.name


@contextmanager
def governor_process(place: Place) -> Iterator["subprocess.Popen[str]"]:
    """Run a governor in a process of its own, which says how many wait when a line is sent to it."""
    argv = [sys.executable, __file__, "--governor", str(place.root)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        asked(process)
        try:
            yield process
        finally:
            process.kill()  # gates and compilers end by themselves


def asked(governor: "subprocess.Popen[str]") -> int:
    """Ask such a process how many wait."""
    print("?", file=governor.stdin, flush=True)
    return int((governor.stdout or sys.stdin).readline())


def govern(root: Path) -> None:
    """Be that process."""
    means = Means(backend=cgroups.probe(), limits=partial(read_now, find_places()))
    with Governor(root / "s", root / "compile.jsonl", Terms(jobs=1), means) as governor:
        for _ in sys.stdin:
            print(governor.state().waiting, flush=True)


def until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for something."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the compiles did not come to wait")
        time.sleep(0.2)


def waiting_ones(place: Place, count: int) -> dict[str, object]:
    """Have so many compiles wait for one that runs, and read the memory of all."""
    env = place.path("waiting", cache=True, gate=place.gate, host=place.fake("exec sleep 1000"))
    with governor_process(place) as governor:
        before = memory(governor.pid)
        line = ["g++", *COMMAND, "-MD", "-MF", "a.d", "-c", "a.cpp", "-o"]
        compiles = [
            subprocess.Popen(
                [*line, f"{number}.o", f"-DN={number}"], env=env, cwd=place.root, stderr=subprocess.DEVNULL
            )
            for number in range(count + 1)
        ]
        until(lambda: asked(governor) == count, 300)
        found: dict[str, Counter[str]] = {"governor": memory(governor.pid)}
        for pid in ours(place):
            found.setdefault(role(place, pid), Counter()).update(memory(pid))
        governor.kill()
        started = time.monotonic()
        statuses = Counter(each.wait(60) for each in compiles)
        ended = time.monotonic() - started
    gates = sum(found[name]["pss"] for name in ("governor", "launch role", "gate role"))
    return {
        "waiting": count,
        "bytes": {name: dict(sorted(each.items())) for name, each in sorted(found.items())},
        "governor_alone": dict(sorted(before.items())),
        "governor_and_gates_pss": gates,
        "each_waiting_ccache_pss": found["ccache"]["pss"] // found["ccache"]["processes"],
        "all_ended_seconds_after_the_governor": round(ended, 2),
        "statuses": {str(status): number for status, number in statuses.items()},
        "survivors": len(ours(place)),
    }


def ours(place: Place) -> list[int]:
    """Give the processes below this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"{place.root}/waiting".encode() in words or f"{place.root}/g++".encode() in words:
                found.append(int(entry.name))
    return found


def main(rounds: int, count: int) -> int:
    """Measure all of it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        if place.gate is None:
            print("gate.c cannot be compiled here", file=sys.stderr)
            return 1
        result = {
            "compiler": place.host.version,
            "python": sys.version.split()[0],
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "time": times(place, rounds),
            "long": long_one(place),
            "memory": waiting_ones(place, count),
        }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps(result, indent=1))
    added = result["time"]["least_ms_added_with_gate.c"]  # type: ignore[index]
    slow = max(added.values()) > LIMIT_MS or result["long"]["more"] > LIMIT_SHARE  # type: ignore[index]
    return int(slow or result["memory"]["governor_and_gates_pss"] > LIMIT_BYTES)  # type: ignore[index,operator]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--governor"]:
        govern(Path(sys.argv[2]))
    else:
        numbers = [int(word) for word in sys.argv[1:]]
        sys.exit(main(*(numbers + [30, 250][len(numbers) :])))
