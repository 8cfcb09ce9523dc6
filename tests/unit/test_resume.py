"""What a start goes on with."""

import json
import os
from pathlib import Path

import pytest

from wheelmill.build import Workplace
from wheelmill.resume import Earlier, resume

EPOCH = 1_764_547_200


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    made = Workplace(root=tmp_path / "place")
    made.source.mkdir(parents=True)
    shipped = made.source / "prebuilt.so"
    shipped.write_text("from the archive")
    os.utime(shipped, (EPOCH, EPOCH))
    (made.root / "boot-id").write_text(Path("/proc/sys/kernel/random/boot_id").read_text())
    return made


def record(output: str, status: int = 0) -> str:
    return json.dumps(
        {
            "v": 1,
            "id": 1,
            "tool": "nvcc",
            "source": "a.cu",
            "output": output,
            "argv": [],
            "archs_asked": [],
            "archs_used": [],
            "rewrites": [],
            "cache": "miss",
            "wall_s": 1.0,
            "cpu_s": 1.0,
            "peak_rss_bytes": 1,
            "exit": status,
            "started_s": 0.0,
            "waited_s": 0.0,
            "attempt": 1,
        }
    )


def made(place: Workplace, *names: str) -> None:
    for name in names:
        path = place.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("object")


def test_only_what_a_good_compile_made_is_kept(place: Workplace) -> None:
    """One that failed, one that nobody knows, a half linked library go; the source's own stay, other files too."""
    made(place, "build/a.o", "build/b.o", "build/c.o", "build/_C.so", "build/lib.so.1", "build/a.o.d", "build.ninja")
    place.records.write_text(record("build/a.o") + "\n" + record("build/b.o", 137) + "\n" + record("gone.o") + "\n")
    found = resume(place, EPOCH)
    assert found == Earlier(objects=1, dropped=4, recorded=2, rebooted=False)
    left = sorted(str(path.relative_to(place.source)) for path in place.source.rglob("*") if path.is_file())
    assert left == ["build.ninja", "build/a.o", "build/a.o.d", "prebuilt.so"]
    assert found.told == "goes on with 1 finished object of an earlier start; 4 that may be partial are made again"


def test_after_a_reboot_nothing_of_the_tree_is_trusted(place: Workplace) -> None:
    """The tree is gone; its finished objects are in the object cache."""
    made(place, "build/a.o")
    place.records.write_text(record("build/a.o") + "\n" + record("build/b.o") + "\n" + record("_C.so") + "\n")
    (place.root / "boot-id").write_text("another\n")
    found = resume(place, EPOCH)
    assert found == Earlier(objects=0, dropped=0, recorded=2, rebooted=True)
    assert sorted(path.name for path in place.root.iterdir()) == ["boot-id", "compile.jsonl"]
    assert found.told == (
        "the machine was started again since the last start: its tree is made anew, and 2 finished objects can come "
        "from the object cache"
    )
    assert resume(place, EPOCH) is None


def test_a_first_start_goes_on_with_nothing(tmp_path: Path) -> None:
    """It only remembers the boot."""
    place = Workplace(root=tmp_path)
    assert resume(place, EPOCH) is None
    assert (tmp_path / "boot-id").read_text().strip() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
