from pathlib import Path

import pytest

from wheelmill.limits import Limits, count_cpus, read_limits

GIB = 1 << 30
V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"


def tree(root: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n", "utf-8")
    return root


MACHINE: dict[str, object] = {
    "proc/meminfo": f"MemTotal: {64 << 20} kB\nMemFree: 1 kB\nMemAvailable: {48 << 20} kB\nHugePages: 0",
    "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-15",
    "proc/sys/kernel/pid_max": 4194304,
    "proc/sys/kernel/threads-max": 200000,
    "sys/devices/system/cpu/online": "0-31",
}


def test_a_machine_without_limits(tmp_path: Path) -> None:
    """Where no group limits, the machine itself does."""
    limits = read_limits(tree(tmp_path, MACHINE))

    assert limits == Limits(
        cpus=16.0,
        memory_bytes=64 * GIB,
        available_bytes=48 * GIB,
        pids=200000,
        sources={
            "cpus": "/proc/self/status Cpus_allowed_list",
            "memory": "/proc/meminfo MemTotal",
            "available": "/proc/meminfo MemAvailable",
            "pids": "/proc/sys/kernel/threads-max",
        },
    )


def test_v2_takes_the_smallest_up_the_hierarchy(tmp_path: Path) -> None:
    """A parent's limit binds its children; cache that can be dropped is free."""
    group = "sys/fs/cgroup/user.slice/build"
    limits = read_limits(
        tree(
            tmp_path,
            MACHINE
            | {
                "proc/self/mountinfo": V2_MOUNT,
                "proc/self/cgroup": "0::/user.slice/build",
                f"{group}/memory.max": "max",
                f"{group}/memory.current": 3 * GIB,
                f"{group}/memory.stat": f"anon {2 * GIB}\ninactive_file {GIB}",
                f"{group}/cpu.max": "max 100000",
                f"{group}/pids.max": 500,
                f"{group}/cpuset.cpus.effective": "0-7",
                "sys/fs/cgroup/user.slice/memory.max": 10 * GIB,
                "sys/fs/cgroup/user.slice/memory.high": 9 * GIB,
                "sys/fs/cgroup/user.slice/memory.current": 4 * GIB,
                "sys/fs/cgroup/user.slice/memory.stat": f"inactive_file {GIB}",
                "sys/fs/cgroup/user.slice/cpu.max": "250000 100000",
            },
        )
    )

    assert (limits.cpus, limits.memory_bytes, limits.available_bytes, limits.pids) == (
        2.5,
        9 * GIB,
        6 * GIB,
        500,
    )
    assert limits.sources == {
        "cpus": "/sys/fs/cgroup/user.slice/cpu.max",
        "memory": "/sys/fs/cgroup/user.slice/memory.high",
        "available": "/sys/fs/cgroup/user.slice/memory.high",
        "pids": "/sys/fs/cgroup/user.slice/build/pids.max",
    }


def test_v1_knows_its_sentinels(tmp_path: Path) -> None:
    """v1 writes "none" as a huge number or -1."""
    mounts = (
        "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 24 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    )
    files = MACHINE | {
        "proc/self/mountinfo": mounts,
        "proc/self/cgroup": "9:memory:/job\n4:cpu,cpuacct:/job",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": 0x7FFFFFFFFFFFF000,
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": 8 * GIB,
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": 5 * GIB,
        "sys/fs/cgroup/memory/job/memory.stat": f"inactive_file 0\ntotal_inactive_file {2 * GIB}",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1,
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000,
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": 400000,
        "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": 100000,
    }
    limits = read_limits(tree(tmp_path, files))

    assert (limits.cpus, limits.memory_bytes, limits.available_bytes) == (4.0, 8 * GIB, 5 * GIB)
    assert limits.sources["memory"] == "/sys/fs/cgroup/memory/job/memory.limit_in_bytes"


def test_hybrid_reads_both(tmp_path: Path) -> None:
    """On a hybrid machine v2 may lack the memory controller that v1 has."""
    files = MACHINE | {
        "proc/self/mountinfo": (
            "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            "33 24 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        ),
        "proc/self/cgroup": "9:memory:/job\n0::/job",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": 8 * GIB,
        "sys/fs/cgroup/unified/job/pids.max": 77,
    }
    limits = read_limits(tree(tmp_path, files))

    assert (limits.memory_bytes, limits.pids) == (8 * GIB, 77)


def test_a_container_sees_its_group_at_the_mount(tmp_path: Path) -> None:
    """The host's path in /proc/self/cgroup is not visible in a container: the mount itself is the group."""
    files = MACHINE | {
        "proc/self/mountinfo": V2_MOUNT.replace(" / /sys", " /docker/abc /sys"),
        "sys/fs/cgroup/memory.max": 2 * GIB,
    }
    root = tree(tmp_path, files)

    assert read_limits(root, "0::/docker/abc").memory_bytes == 2 * GIB
    assert read_limits(root, "0::/elsewhere").memory_bytes == 2 * GIB


def test_usage_over_the_limit_leaves_nothing(tmp_path: Path) -> None:
    """What is left is never negative."""
    files = MACHINE | {
        "proc/self/mountinfo": V2_MOUNT,
        "sys/fs/cgroup/memory.max": GIB,
        "sys/fs/cgroup/memory.current": 2 * GIB,
    }

    assert read_limits(tree(tmp_path, files), "0::/").available_bytes == 0


def test_affinity_binds(tmp_path: Path) -> None:
    """A caller's own affinity counts."""
    limits = read_limits(tree(tmp_path, MACHINE), affinity=frozenset({3, 5}))

    assert (limits.cpus, limits.sources["cpus"]) == (2.0, "affinity")


def test_nothing_known(tmp_path: Path) -> None:
    """An empty root gives one cpu and no memory rather than a guess."""
    assert read_limits(tmp_path) == Limits(
        cpus=1.0,
        memory_bytes=0,
        available_bytes=0,
        pids=None,
        sources={"cpus": "unknown", "memory": "unknown", "available": "unknown", "pids": "unknown"},
    )


@pytest.mark.parametrize(("text", "count"), [("0-3,8", 5), ("0", 1), ("", 0), ("x", 0), ("2-2", 1)])
def test_lists_of_cpus(text: str, count: int) -> None:
    """The kernel's lists are counted, nonsense is nothing."""
    assert count_cpus(text) == count


@pytest.mark.parametrize("limits", [(1, 2, 3), (3, 2, 1), (2, 1, 3), (100, 90, 80)])
def test_the_smallest_wins_wherever_it_stands(limits: tuple[int, ...], tmp_path: Path) -> None:
    """The order of limits up the hierarchy does not matter, and none exceeds the machine."""
    files = MACHINE | {"proc/self/mountinfo": V2_MOUNT}
    group = ""
    for limit in limits:
        group += f"/g{limit}"
        files[f"sys/fs/cgroup{group}/memory.max"] = limit * GIB

    found = read_limits(tree(tmp_path, files), f"0::{group}")

    assert found.memory_bytes == min(*limits, 64) * GIB
