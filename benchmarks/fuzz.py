"""Feed damaged wheels, libraries and fat binaries to the readers: `python benchmarks/fuzz.py --seconds 3600`.

Every input must end in an answer or in one of our own errors, within ten seconds and 512 MB. What does not is written
to `--out` with its traceback, under a name that says the target and the round; the same seed makes the same rounds.
Seeds are the small files that the unit tests make, and whatever lies in `--corpus` (files of up to 4 MB are best).
"""

import argparse
import io
import json
import random
import resource
import runpy
import signal
import struct
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from wheelmill import device_code
from wheelmill.archive import zip_problems
from wheelmill.elf import read_elf
from wheelmill.errors import WheelmillError
from wheelmill.inspection import Look, inspect_file, inspect_wheel
from wheelmill.verify import Expectation, inspect_and_judge
from wheelmill.wheel_file import check_record

TESTS = Path(__file__).parents[1] / "tests" / "unit"
SECONDS_EACH = 10
MEMORY = 512 << 20
INTERESTING = (0, 1, 7, 8, 16, 63, 64, 127, 128, 255, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 64) - 1)


class TooSlowError(Exception):
    """A reader took longer than any honest file needs."""


def damaged(data: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    """Flip, cut, repeat and swap parts of a file, one to eight times."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        if not made:
            return bytes(chance.randbytes(chance.randrange(64)))
        place = chance.randrange(len(made))
        match chance.randrange(9):
            case 0:
                made[place] ^= 1 << chance.randrange(8)
            case 1:
                made[place] = chance.randrange(256)
            case 2 | 3 | 4:
                form = chance.choice(("<B", "<H", "<I", "<Q"))
                number = chance.choice(INTERESTING) & ((1 << 8 * struct.calcsize(form)) - 1)
                at = place - place % struct.calcsize(form)
                made[at : at + struct.calcsize(form)] = struct.pack(form, number)
            case 5:
                del made[place:]
            case 6:
                del made[place : place + chance.randrange(1, 64)]
            case 7:
                size = chance.randrange(1, 256)
                made[place:place] = made[place : place + size] * chance.choice((1, 1, 16))
            case _:
                other = chance.choice(others)
                start = chance.randrange(len(other) + 1)
                made[place:place] = other[start : start + chance.randrange(1, 512)]
    return bytes(made)


def repacked(data: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    """Damage members of an archive and pack them again, so that damage gets past the checksums."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            content = old.read(info)
            if chance.random() < 0.4:
                content = damaged(content, chance, others)
            new.writestr(info.filename, content)
    return stream.getvalue()


@dataclass(frozen=True, kw_only=True)
class Target:
    """A reader, with what it is fed."""

    name: str
    seeds: list[bytes]
    read: Callable[[bytes, Path], object]


def judge(data: bytes, place: Path) -> None:
    """Do with a wheel what inspect and verify do."""
    path = place / "demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    path.write_bytes(data)
    zip_problems(path)
    for step in (
        lambda: check_record(path),
        lambda: inspect_wheel(path, look=Look(kernels=True, tolerant=True)),
        lambda: inspect_file(path).to_json(),
        lambda: inspect_and_judge(path, Expectation()),
    ):
        try:
            step()
        except WheelmillError:
            continue


def library(data: bytes, place: Path) -> None:
    """Do with a library what inspect does, in both ways of reading."""
    path = place / "x.so"
    path.write_bytes(data)
    for step in (lambda: inspect_file(path, kernels=True), lambda: read_elf(io.BytesIO(data), "x.so", kernels=True)):
        try:
            step()
        except WheelmillError:
            continue


def section(data: bytes, _: Path) -> None:
    """Read a section of device code."""
    for entry in device_code.read(data, deep=True, kernels=True):
        device_code.payload(data, entry)


def targets(corpus: Sequence[bytes]) -> list[Target]:
    """Gather seeds: what the unit tests make, and the corpus."""
    elf, code = (runpy.run_path(str(TESTS / f"test_{name}.py")) for name in ("elf", "device_code"))
    wheels = runpy.run_path(str(TESTS / "test_inspection.py"))
    bins = [
        code["fatbin"](
            *(
                code["entry"](content, 100, kind=kind, compressed=packed, suffix="a")
                for packed in ("", "lz4", "zstd")
                for kind, content in ((2, code["cubin"](100, size=4096)), (1, code["ptx"]("sm_100a")))
            )
        )
    ]
    libraries = [
        elf["library"](
            tags=((1, "libc.so.6"), (29, "$ORIGIN")), versions=("GLIBC_2.34", "GLIBC_2.4"),
            symbols=(("f", 1, False), ("g", 1, True)), more=((".nv_fatbin", 1, bins[0], 0, 0, 0),),
        )
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        archives = [wheels["wheel_at"](Path(folder), {"demo/b.so": libraries[0]}).read_bytes()]
    for data in corpus:
        (archives if data.startswith(b"PK") else libraries if data.startswith(b"\x7fELF") else bins).append(data)
    for data in corpus:
        if data.startswith(b"\x7fELF"):
            bins += fat_sections(data)
    return [
        Target(name="wheel", seeds=archives, read=judge),
        Target(name="library", seeds=libraries, read=library),
        Target(name="section", seeds=bins, read=section),
    ]


def fat_sections(data: bytes) -> list[bytes]:
    """Cut the device code out of a library."""
    try:
        found = ELFFile(io.BytesIO(data)).get_section_by_name(".nv_fatbin")
        return [found.data()] if found is not None and found["sh_size"] else []
    except ELFError:
        return []


def too_slow(*_: object) -> None:
    """End what takes too long."""
    raise TooSlowError


def main() -> int:
    """Run for so many seconds; 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--out", type=Path, default=Path("fuzz-found"))
    options = parser.parse_args()
    corpus = [path.read_bytes() for path in sorted(options.corpus.iterdir())] if options.corpus else []
    aims, counts, found = targets(corpus), Counter[str](), 0
    signal.signal(signal.SIGALRM, too_slow)
    started, number = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() - started < options.seconds:
            number += 1
            chance = random.Random(f"{options.seed}.{number}")  # noqa: S311 - a repeatable choice, no secret
            aim = chance.choice(aims)
            found += attempt(aim, chance, f"{aim.name}-{options.seed}-{number}", Path(folder), options.out)
            counts[aim.name] += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    summary = {
        "seconds": round(time.monotonic() - started), "seed": options.seed, "inputs": dict(counts), "found": found,
        "peak_memory_bytes": peak,
    }  # fmt: skip
    sys.stdout.write(json.dumps(summary) + "\n")
    return 1 if found or peak > MEMORY else 0


def attempt(aim: Target, chance: random.Random, name: str, folder: Path, out: Path) -> int:
    """Feed one input; 1 where it did not end as it should."""
    seed = chance.choice(aim.seeds)
    change = repacked if aim.name == "wheel" and chance.random() < 0.5 else damaged
    data = change(seed, chance, aim.seeds)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    signal.alarm(SECONDS_EACH)
    try:
        aim.read(data, folder)
    except WheelmillError:
        text = ""
    except Exception:  # noqa: BLE001 - whatever it is, it is what we look for
        text = traceback.format_exc()
    else:
        text = ""
    finally:
        signal.alarm(0)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    if after > MEMORY >= before:
        text += f"memory rose from {before} to {after} bytes\n"
    if not text:
        return 0
    out.mkdir(parents=True, exist_ok=True)
    (out / name).write_bytes(data)
    (out / f"{name}.txt").write_text(text)
    return 1


if __name__ == "__main__":
    sys.exit(main())
