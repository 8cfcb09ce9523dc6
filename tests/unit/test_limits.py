import json
from pathlib import Path

import pytest

from wheelmill import cli
from wheelmill.limits import Limits, count_cpus, find_places, read_limits, read_now
from wheelmill.resources import capacity

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


def test_cache_that_nobody_runs_from_is_free(tmp_path: Path) -> None:
    """Active or not: a pass by splice makes pages active at once. What is mapped is a program's own text."""
    stat = f"anon {GIB}\ninactive_file {GIB}\nactive_file {2 * GIB}\nfile_mapped {GIB // 2}"
    files = MACHINE | {
        "proc/self/mountinfo": V2_MOUNT,
        "sys/fs/cgroup/memory.max": 10 * GIB,
        "sys/fs/cgroup/memory.current": 6 * GIB,
        "sys/fs/cgroup/memory.stat": stat,
    }

    assert read_limits(tree(tmp_path, files), "0::/").available_bytes == int(6.5 * GIB)


def test_a_pods_limit_above_a_v1_container(tmp_path: Path) -> None:
    """v1 tells of limits of ancestors that the container does not see; what is left below them it does not."""
    pod = "/kubepods/burstable/pod1/c1"
    files = MACHINE | {
        "proc/self/mountinfo": f"31 24 0:27 {pod} /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        "proc/self/cgroup": f"9:memory:{pod}",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": 0x7FFFFFFFFFFFF000,
        "sys/fs/cgroup/memory/memory.usage_in_bytes": GIB,
        "sys/fs/cgroup/memory/memory.stat": f"hierarchical_memory_limit {4 * GIB}",
    }
    limits = read_limits(tree(tmp_path, files))

    assert (limits.memory_bytes, limits.available_bytes) == (4 * GIB, 3 * GIB)
    assert limits.sources["memory"] == "/sys/fs/cgroup/memory/memory.stat hierarchical_memory_limit"


def test_docker_in_docker(tmp_path: Path) -> None:
    """The inner container is mounted at its own group; the outer one's limit is seen where v2 shows it."""
    files = MACHINE | {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": "0::/docker/inner",
        "sys/fs/cgroup/memory.max": 6 * GIB,
        "sys/fs/cgroup/memory.current": GIB,
        "sys/fs/cgroup/cpu.max": "150000 100000",
        "sys/fs/cgroup/docker/memory.max": "max",
        "sys/fs/cgroup/docker/inner/memory.max": 8 * GIB,
        "sys/fs/cgroup/docker/inner/memory.current": GIB,
        "sys/fs/cgroup/docker/inner/cpu.max": "800000 100000",
    }
    limits = read_limits(tree(tmp_path, files))

    assert (limits.cpus, limits.memory_bytes, limits.available_bytes) == (1.5, 6 * GIB, 5 * GIB)
    assert limits.sources["memory"] == "/sys/fs/cgroup/memory.max"


def test_a_slice_of_systemds(tmp_path: Path) -> None:
    """A user's slice holds memory and processes of all of that user's sessions together."""
    user = "sys/fs/cgroup/user.slice/user-1000.slice"
    scope = f"{user}/user@1000.service/app.slice/run-u5.scope"
    files = MACHINE | {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": f"0::/{scope.removeprefix('sys/fs/cgroup/')}",
        f"{scope}/memory.max": "max",
        f"{scope}/memory.high": "max",
        f"{scope}/pids.max": "max",
        f"{scope}/pids.current": 12,
        f"{user}/memory.max": 20 * GIB,
        f"{user}/memory.current": 18 * GIB,
        f"{user}/pids.max": 10813,
        f"{user}/pids.current": 10000,
    }
    limits = read_limits(tree(tmp_path, files))

    assert (limits.memory_bytes, limits.available_bytes) == (20 * GIB, 2 * GIB)
    assert (limits.pids, limits.pids_free) == (10813, 813)
    assert limits.sources["pids"] == "/sys/fs/cgroup/user.slice/user-1000.slice/pids.max"


def test_room_for_processes_is_the_smallest_anywhere(tmp_path: Path) -> None:
    """A large limit that is nearly used up leaves less than a small one; the machine's threads count."""
    files = MACHINE | {
        "proc/loadavg": "0.10 0.20 0.30 2/199900 4711",
        "proc/self/mountinfo": V2_MOUNT,
        "sys/fs/cgroup/pids.max": 5000,
        "sys/fs/cgroup/pids.current": 10,
    }
    limits = read_limits(tree(tmp_path, files), "0::/")

    assert (limits.pids, limits.pids_free) == (5000, 100)


def test_found_once_read_often(tmp_path: Path) -> None:
    """What a neighbour takes, and a limit that is lowered meanwhile, are seen at the next reading."""
    files = MACHINE | {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": "0::/job",
        "sys/fs/cgroup/job/memory.max": "max",
        "sys/fs/cgroup/job/memory.current": GIB,
    }
    places = find_places(tree(tmp_path, files))
    assert read_now(places).available_bytes == 48 * GIB

    tree(tmp_path, {"proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {5 << 20} kB"})
    assert read_now(places).available_bytes == 5 * GIB
    tree(tmp_path, {"sys/fs/cgroup/job/memory.max": 3 * GIB})
    assert (read_now(places).memory_bytes, read_now(places).available_bytes) == (3 * GIB, 2 * GIB)


def test_the_command_answers_for_a_copied_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --root, of nothing but the files there; the fields are the documented ones."""
    files = MACHINE | {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": "0::/",
        "sys/fs/cgroup/memory.max": 20 * GIB,
        "sys/fs/cgroup/memory.current": 4 * GIB,
        "sys/fs/cgroup/pids.max": 5000,
        "sys/fs/cgroup/pids.current": 10,
    }
    root = str(tree(tmp_path, files))
    assert cli.main(["limits", "--root", root, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": 1,
        "cpus": 16.0,
        "memory_bytes": 20 * GIB,
        "capacity_bytes": capacity(16 * GIB),
        "pids": 5000,
        "from": {
            "cpus": "/proc/self/status Cpus_allowed_list",
            "memory": "/sys/fs/cgroup/memory.max",
            "available": "/sys/fs/cgroup/memory.max",
            "pids": "/sys/fs/cgroup/pids.max",
        },
    }

    assert cli.main(["limits", "--root", root, "--memory", "8GiB"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "cpus: 16 (/proc/self/status Cpus_allowed_list)",
        "memory: 8.0 GiB (--memory)",
        "for compiles now: 6.8 GiB, of 8.0 GiB free (--memory)",
        "processes: 5000, 4990 more fit now (/sys/fs/cgroup/pids.max)",
    ]


def test_the_command_says_what_a_copy_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong folder is a usage error, not a machine of one cpu without memory."""
    assert cli.main(["limits", "--root", str(tmp_path)]) == 2
    assert f"error: --root: {tmp_path} holds no copy of a machine's files: no proc/meminfo" in capsys.readouterr().err
