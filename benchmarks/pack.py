"""Time and memory of the canonical writer on one large library, beside `auditwheel repair` and `wheel pack`.

`python benchmarks/pack.py LIBRARY [--wheel-packages DIR]` packs the library as the one extension of a wheel, with one
thread and with all, and prints seconds, CPU seconds, peak memory and size of each as JSON. With DIR, where `wheel` is
installed (`pip install --target DIR wheel`), the tools that others use pack the same.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

WRITE = """
import os, resource, sys, time
from pathlib import Path
from wheelmill.wheel_file import open_members, write_wheel
if sys.argv[3] == "1":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
with open_members(Path(sys.argv[1])) as members:
    print(write_wheel(members, Path(sys.argv[2]), epoch=1_700_000_000).sha256)
"""
NAME = "big-1.0-py3-none-linux_x86_64.whl"


def main() -> int:
    """Run every packer once and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("library", type=Path)
    parser.add_argument("--wheel-packages", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as scratch:
        folder = Path(scratch)
        stored = make_input(asked.library, folder / "in")
        figures = {"library_bytes": asked.library.stat().st_size, "cores": len(os.sched_getaffinity(0))}
        hashes = set()
        for threads in ("all", "1"):
            out = folder / f"ours-{threads}" / NAME
            out.parent.mkdir()
            done, said = measured([sys.executable, "-c", WRITE, str(stored), str(out), threads], dict(os.environ))
            figures[f"ours, {threads} thread(s)"] = {**done, "bytes": out.stat().st_size}
            hashes.add(said.strip())
        figures["equal bytes"] = len(hashes) == 1
        if asked.wheel_packages:
            figures |= others(stored, folder, asked.wheel_packages)
    print(json.dumps(figures, indent=2))
    return 0 if figures["equal bytes"] else 1


def make_input(library: Path, folder: Path) -> Path:
    """Make the wheel that a backend would leave, not deflated: reading it costs everybody the same."""
    folder.mkdir()
    path = folder / NAME
    info = "big-1.0.dist-info"
    wheel = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n"
    texts = {
        "METADATA": "Metadata-Version: 2.1\nName: big\nVersion: 1.0\n",
        "WHEEL": wheel,
        "RECORD": f"big/{library.name},,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(library, f"big/{library.name}")
        for name, text in texts.items():
            archive.writestr(f"{info}/{name}", text)
    return path


def others(stored: Path, folder: Path, packages: Path) -> dict[str, object]:
    """Repair by auditwheel, leaving every library to others, then unpack and pack by wheel, as one has to edit it."""
    env = {**os.environ, "PYTHONPATH": str(packages)}
    repaired, edited, packed = folder / "repaired", folder / "edited", folder / "packed"
    audit = [sys.executable, "-m", "auditwheel", "repair", "--exclude", "*", "-w", str(repaired), str(stored)]
    figures: dict[str, object] = {"auditwheel repair": measured(audit, env)[0]}
    result = next(repaired.glob("*.whl"), stored)
    measured([sys.executable, "-m", "wheel", "unpack", "-d", str(edited), str(result)], env)
    packed.mkdir()
    pack = [sys.executable, "-m", "wheel", "pack", "-d", str(packed), str(next(edited.iterdir()))]
    figures["wheel pack"] = {**measured(pack, env)[0], "bytes": next(packed.glob("*.whl")).stat().st_size}
    return figures


def measured(argv: list[str], env: dict[str, str]) -> tuple[dict[str, float], str]:
    """Run a program; give its seconds, CPU seconds and peak memory, and what it said."""
    started = time.monotonic()
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
        said = process.stdout.read() if process.stdout else ""
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{argv[:4]} ended with {process.returncode}")
    figures = {
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_mb": round(used.ru_maxrss / 1000),
    }
    return figures, said


if __name__ == "__main__":
    sys.exit(main())
