"""Groups on a kernel of the tests' own: what is made, moved, killed and removed, and in which order."""

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmill import cgroups
from wheelmill.cgroups import (
    LEAF,
    PAGE,
    TICK,
    ControlGroups,
    Files,
    Meter,
    Polling,
    Stray,
    Usage,
    end_stray,
    find_oom_counter,
    oom_count,
    probe,
    strays,
)

MB = 1 << 20
GATE, CHILD, OURS = 500, 77, 40
V2 = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
ACCOUNT = "32 24 0:28 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n"
TOGETHER = "32 24 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
FRESH = {
    "cgroup2": {
        "cgroup.procs": "",
        "cgroup.controllers": "cpu memory",
        "cgroup.subtree_control": "",
        "cgroup.freeze": "0",
        "memory.current": 30 * MB,
        "memory.peak": 40 * MB,
        "memory.stat": f"anon 1\ninactive_file {4 * MB}\nactive_file {2 * MB}\nfile_mapped {MB}",
        "memory.events.local": "low 0\noom 0\noom_kill 0",
        "cpu.stat": "usage_usec 2500000\nuser_usec 1",
    },
    "cgroup1": {
        "cgroup.procs": "",
        "memory.use_hierarchy": "1",
        "memory.usage_in_bytes": 30 * MB,
        "memory.max_usage_in_bytes": 40 * MB,
        "memory.stat": f"inactive_file 7\ntotal_inactive_file {4 * MB}\ntotal_active_file {2 * MB}\ntotal_mapped_file {MB}",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0",
        "cpuacct.usage": 1500000000,
    },
}


def put(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", "utf-8")


def process(
    root: Path,
    pid: int,
    parent: int = 1,
    *,
    name: str = "cicc",
    mb: int = 1,
    cpu: int = 0,
    began: int = 9,
    at: str = "S",
) -> None:
    tail = ["0"] * 30
    tail[0], tail[1], tail[11], tail[19], tail[21] = at, str(parent), str(cpu), str(began), str(mb * MB // PAGE)
    put(root / f"proc/{pid}/stat", f"{pid} ({name}) {' '.join(tail)}")


class Kernel(Files):
    """Does to files in a folder what the kernel does to groups."""

    def __init__(self, root: Path, fresh: dict[str, object], *, refuse: str = "nothing") -> None:
        self.root, self.fresh, self.refuse = root, fresh, refuse
        self.log: list[str] = []

    def make(self, directory: Path) -> None:
        self._check(directory)
        directory.mkdir()
        for name, text in self.fresh.items():
            put(directory / name, text)

    def remove(self, directory: Path) -> None:
        if self.members(directory):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(directory))
        shutil.rmtree(directory)

    def write(self, path: Path, text: str) -> None:
        self._check(path)
        self.log.append(f"{path.parent.name}/{path.name}={text}")
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        busy = path.name == "cgroup.subtree_control" and self.members(path.parent) and path.parent.name != "cgroup"
        if busy:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        if path.name != "cgroup.procs":
            put(path, text.removeprefix("+"))
            return
        if not (self.root / "proc" / text).exists():
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        top = self.root / "sys/fs/cgroup"
        hierarchy = top / path.relative_to(top).parts[0] if V1 in read(self.root / "proc/self/mountinfo") else top
        for other in hierarchy.rglob("cgroup.procs"):
            self._leave(other, text)
        put(path, "\n".join([*path.read_text().split(), text]))

    def signal(self, pid: int, number: signal.Signals, still: Callable[[int], bool]) -> bool:
        if not still(pid):
            return False
        self.log.append(f"{number.name} {pid}")
        if number == signal.SIGKILL:
            shutil.rmtree(self.root / "proc" / str(pid))
            for procs in (self.root / "sys").rglob("cgroup.procs"):
                self._leave(procs, str(pid))
        return True

    def members(self, directory: Path) -> list[str]:
        return read(directory / "cgroup.procs").split()

    def _leave(self, procs: Path, pid: str) -> None:
        put(procs, "\n".join(word for word in procs.read_text().split() if word != pid))

    def _check(self, path: Path) -> None:
        if self.refuse in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def child(self) -> Callable[[], "contextmanager[int]"]:
        @contextmanager
        def one() -> Iterator[int]:
            process(self.root, CHILD)
            yield CHILD

        return one


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def machine(root: Path, mounts: str, own: str) -> Path:
    put(root / "proc/self/mountinfo", mounts)
    put(root / "proc/self/cgroup", own)
    put(root / "proc/vmstat", "pgpgin 1\noom_kill 17")
    process(root, OURS)
    process(root, GATE, OURS, name="gate", cpu=TICK)
    return root


def group(root: Path, path: str, fresh: dict[str, object], **files: object) -> Path:
    directory = root / "sys/fs/cgroup" / path
    for name, text in {**fresh, **{key.replace("_", ".", 1): text for key, text in files.items()}}.items():
        put(directory / name, text)
    return directory


@pytest.fixture
def v2(tmp_path: Path) -> Kernel:
    """Give a machine of cgroup v2 where we are in a group of our own, job, with one process beside us."""
    machine(tmp_path, V2, "0::/job")
    group(tmp_path, "", FRESH["cgroup2"])
    group(tmp_path, "job", FRESH["cgroup2"], cgroup_procs=f"{OURS}\n{GATE}")
    return FollowingKernel(tmp_path, FRESH["cgroup2"])


class FollowingKernel(Kernel):
    """Lets /proc/self/cgroup follow our process."""

    def write(self, path: Path, text: str) -> None:
        super().write(path, text)
        if path.name == "cgroup.procs" and text == str(OURS):
            put(self.root / "proc/self/cgroup", f"0::/{path.parent.relative_to(self.root / 'sys/fs/cgroup')}")


@pytest.fixture
def v1(tmp_path: Path) -> Kernel:
    """Give a machine of cgroup v1, with a v2 beside it that has no memory controller."""
    hybrid = V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")
    machine(tmp_path, V1 + ACCOUNT + hybrid, "4:memory:/job\n3:cpuacct:/job\n0::/")
    group(tmp_path, "memory/job", FRESH["cgroup1"], cgroup_procs=f"{OURS}\n{GATE}")
    group(tmp_path, "cpuacct/job", FRESH["cgroup1"])
    group(tmp_path, "unified", FRESH["cgroup2"] | {"cgroup.controllers": "hugetlb"})
    return Kernel(tmp_path, FRESH["cgroup1"])


def found(kernel: Kernel) -> ControlGroups | Polling:
    return probe(kernel.root, files=kernel, child=kernel.child())


def groups(kernel: Kernel) -> ControlGroups:
    way = found(kernel)
    assert isinstance(way, ControlGroups), way.passed_over
    kernel.log.clear()
    return way


def name(number: int) -> str:
    return f"wheelmill-{os.getpid()}-{number}"


# which way -------------------------------------------------------------------------------------------


def test_v2_moves_what_is_in_our_group_to_a_leaf_first(v2: Kernel) -> None:
    """A group with limited children holds no process itself; the trial leaves nothing."""
    way = found(v2)

    job = v2.root / "sys/fs/cgroup/job"
    assert isinstance(way, ControlGroups)
    assert (way.name, way.exact_oom, way.passed_over) == ("cgroup2", True, ())
    assert (way.base, way.home) == (job, job / LEAF)
    assert sorted(v2.members(job / LEAF)) == [str(OURS), str(GATE)]
    assert v2.log[:5] == [
        "job/cgroup.subtree_control=+memory",
        f"{LEAF}/cgroup.procs={OURS}",
        f"{LEAF}/cgroup.procs={GATE}",
        "job/cgroup.subtree_control=+memory",
        f"{name(0)}/cgroup.procs={CHILD}",
    ]
    assert sorted(path.name for path in job.iterdir() if path.is_dir()) == [LEAF]


def test_a_second_build_stands_beside_the_first(v2: Kernel) -> None:
    """Whoever starts in the leaf makes its groups beside it, not below."""
    first, second = groups(v2), groups(v2)

    assert (first.base, first.home) == (second.base, second.home)


def test_v2_root_needs_no_leaf(v2: Kernel) -> None:
    """The root group may hold processes beside its children."""
    put(v2.root / "proc/self/cgroup", "0::/")
    way = groups(v2)

    assert way.base == way.home == v2.root / "sys/fs/cgroup"


def test_v2_without_a_memory_controller_falls_to_v1(v1: Kernel) -> None:
    """A hybrid machine is v1's."""
    way = groups(v1)

    assert way.name == "cgroup1"
    assert way.base == v1.root / "sys/fs/cgroup/memory/job"
    assert way.accounts == (v1.root / "sys/fs/cgroup/cpuacct/job",)
    assert way.passed_over == (f"cgroup2: {v1.root}/sys/fs/cgroup/unified has no memory controller",)


def test_what_may_not_be_made_is_not_used(v1: Kernel) -> None:
    """A cgroup file system that is mounted but read-only leaves polling, with both reasons."""
    v1.refuse = "sys/fs/cgroup/memory"
    way = found(v1)

    assert (way.name, way.exact_oom) == ("poll", False)
    assert way.passed_over[1:] == (f"cgroup1: {v1.root}/sys/fs/cgroup/memory/job/{name(0)}: Permission denied",)


def test_a_machine_without_cgroups_is_polled(tmp_path: Path) -> None:
    """Nothing mounted: /proc is left."""
    kernel = Kernel(machine(tmp_path, "", ""), {})
    way = found(kernel)

    assert way.name == "poll"
    assert way.passed_over == ("cgroup2: not mounted", "cgroup1: no memory controller is mounted")


def test_v1_without_hierarchy_is_not_used(v1: Kernel) -> None:
    """There a container's limit would not hold below it."""
    put(v1.root / "sys/fs/cgroup/memory/job/memory.use_hierarchy", 0)

    assert found(v1).passed_over[1] == (
        f"cgroup1: {v1.root}/sys/fs/cgroup/memory/job: memory.use_hierarchy is 0, "
        "its limit would not hold for groups below it"
    )


def test_a_group_that_counts_nothing_is_not_used(v1: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making and moving are not enough."""
    monkeypatch.setattr(cgroups, "TRIALS", 2)
    v1.fresh = v1.fresh | {"memory.usage_in_bytes": 0, "memory.max_usage_in_bytes": 0}

    assert found(v1).passed_over[1] == f"cgroup1: groups below {v1.root}/sys/fs/cgroup/memory/job count no memory"


@pytest.mark.parametrize("attribute", ["user.delegate", "trusted.delegate"])
def test_systemd_is_asked_for_a_group(v2: Kernel, attribute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under systemd only a delegated group is changed; else the reason says how to get one."""
    (v2.root / "run/systemd/system").mkdir(parents=True)
    marks: dict[str, bytes] = {}

    def getxattr(_: Path, mark: str) -> bytes:
        if mark not in marks:
            raise OSError(errno.ENODATA, "no data")
        return marks[mark]

    monkeypatch.setattr(os, "getxattr", getxattr)

    assert found(v2).passed_over[0] == (
        f"cgroup2: systemd keeps {v2.root}/sys/fs/cgroup/job for itself; start with "
        "`systemd-run --user --scope -p Delegate=yes wheelmill …` to use it"
    )
    marks[attribute] = b"1"
    assert found(v2).name == "cgroup2"


def test_v1_cpu_time_mounted_with_cpu_is_left_alone(v1: Kernel) -> None:
    """A group in `cpu` would weigh as much as any other, whatever the nice of what is in it."""
    put(v1.root / "proc/self/mountinfo", V1 + TOGETHER)

    assert groups(v1).accounts == ()


# leases ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "cpu"), [("v2", 2.5), ("v1", 1.5)])
def test_a_lease_is_measured(kind: str, cpu: float, request: pytest.FixtureRequest) -> None:
    """Cache that nobody runs from is not in use; the peak is the kernel's, less cache that was there all along."""
    kernel: Kernel = request.getfixturevalue(kind)
    lease = groups(kernel).lease(1)
    lease.enter(GATE)

    assert lease.pids() == {GATE}
    assert lease.read() == Usage(current_bytes=25 * MB, peak_bytes=40 * MB, cpu_seconds=cpu, oom_kills=0)


def test_v2_without_its_own_peak_is_sampled(v2: Kernel) -> None:
    """Before Linux 5.19 there is no memory.peak."""
    del v2.fresh["memory.peak"]
    way = groups(v2)
    lease = way.lease(1)
    lease.read()
    put(way.base / name(1) / "memory.current", 8 * MB)

    assert (lease.read().current_bytes, lease.read().peak_bytes) == (3 * MB, 25 * MB)


@pytest.mark.parametrize(
    ("kind", "counter"), [("v2", "memory.events.local"), ("v2", "memory.events"), ("v1", "memory.oom_control")]
)
def test_kernel_kills_are_counted(kind: str, counter: str, request: pytest.FixtureRequest) -> None:
    """By either version; v2 before 5.2 has no local count."""
    kernel: Kernel = request.getfixturevalue(kind)
    way = groups(kernel)
    lease = way.lease(3)
    for path in (way.base / name(3)).glob("memory.events*"):
        path.unlink()
    put(way.base / name(3) / counter, "oom 3\noom_kill 2")

    assert lease.read().oom_kills == 2


def test_v1_cpu_time_by_proc(v1: Kernel) -> None:
    """Without an account of the kernel's: what its processes and their waited-for children took, never less than seen."""
    put(v1.root / "proc/self/mountinfo", V1)
    lease = groups(v1).lease(1)
    lease.enter(GATE)
    process(v1.root, GATE, OURS, cpu=4 * TICK)
    assert lease.read().cpu_seconds == 3.0
    shutil.rmtree(v1.root / f"proc/{GATE}")

    assert lease.read().cpu_seconds == 3.0


def test_all_but_the_gate_are_killed(v2: Kernel) -> None:
    """Frozen first, so that none forks; thawed after, so that the gate goes on."""
    lease = groups(v2).lease(1)
    for pid in (GATE, 501, 502):
        process(v2.root, pid)
        lease.enter(pid)
    v2.log.clear()

    assert lease.kill(except_pid=GATE) == 2
    assert lease.pids() == {GATE}
    assert v2.log[0] == f"{name(1)}/cgroup.freeze=1"
    assert sorted(v2.log[1:3]) == ["SIGKILL 501", "SIGKILL 502"]
    assert v2.log[3:] == [f"{name(1)}/cgroup.freeze=0"]


def test_a_stuck_process_does_not_hold_us_for_ever(v1: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits for a device is given up after a while."""
    lease = groups(v1).lease(1)
    monkeypatch.setattr(cgroups, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(v1, "signal", lambda *_: True)
    lease.enter(GATE)

    assert lease.kill() == 1


def test_the_gate_goes_home(v1: Kernel) -> None:
    """Closing removes the groups; a gate that still waits for its answer lives on in ours."""
    way = groups(v1)
    lease = way.lease(1)
    lease.enter(GATE)
    assert str(GATE) not in v1.members(way.base)
    lease.close()

    assert str(GATE) in v1.members(way.base)
    assert str(GATE) in v1.members(way.accounts[0])
    assert [path for path in way.base.iterdir() if path.is_dir()] == []
    assert [path for path in way.accounts[0].iterdir() if path.is_dir()] == []
    lease.close()


def test_a_backend_closes_its_leases(v1: Kernel) -> None:
    """What was not closed by itself goes with the backend."""
    way = groups(v1)
    way.lease(1)
    way.lease(2)
    way.close()

    assert [path for path in way.base.iterdir() if path.is_dir()] == []


def test_a_group_that_was_swept_is_made_again(v1: Kernel) -> None:
    """Between making and entering another build may have taken it for left over."""
    way = groups(v1)
    lease = way.lease(1)
    shutil.rmtree(way.base / name(1))
    lease.enter(GATE)

    assert lease.pids() == {GATE}


def test_the_dead_cannot_enter(v1: Kernel) -> None:
    """The gate may have been killed while it waited."""
    lease = groups(v1).lease(1)

    with pytest.raises(ProcessLookupError):
        lease.enter(12345)


def test_only_the_empty_groups_of_the_dead_are_swept(v1: Kernel) -> None:
    """Not those of living builds, not those with processes, not what is not ours."""
    way = groups(v1)
    for stem in ("wheelmill-99991-1", f"wheelmill-{OURS}-1", "wheelmill-99992-1", LEAF, "wheelmill-other"):
        v1.make(way.base / stem)
    v1.write(way.base / "wheelmill-99992-1/cgroup.procs", str(GATE))

    assert way.sweep() == 1
    assert not (way.base / "wheelmill-99991-1").exists()
    assert (way.base / f"wheelmill-{OURS}-1").exists()


# the peak and the time -------------------------------------------------------------------------------


def test_cache_that_was_there_before_is_none_of_the_peak() -> None:
    """2 GB of objects read by a link are no need: the next compile of that group is measured above them."""
    meter = Meter()
    meter.note_peak(10, 2000, 2010)

    assert meter.note_peak(400, 2000, 2400) == 2010
    assert Meter().note_peak(400, 2000, 2400) == 2400


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100), st.integers(0, 50))))
def test_the_peak_lies_between_what_was_seen_and_what_the_kernel_says(samples: list[tuple[int, int, int]]) -> None:
    """Never below the largest seen, never above the kernel's, never falling."""
    meter, kernel, before, largest = Meter(), 0, 0, 0
    for current, cache, more in samples:
        kernel, largest = max(kernel, current + cache) + more, max(largest, current)
        peak = meter.note_peak(current, cache, kernel)
        assert max(largest, before) <= peak <= kernel
        before = peak


@given(st.lists(st.floats(0, 1e6)))
def test_cpu_time_never_falls(samples: list[float]) -> None:
    """A process that ends unseen takes nothing away."""
    meter = Meter()
    seen = [meter.note_cpu(seconds) for seconds in samples]

    assert seen == sorted(seen)
    assert not samples or seen[-1] == max(samples)


# polling ---------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def polled(root: Path) -> Polling:
    return Polling(root=machine(root, "", ""), files=Kernel(root, {}), clock=Clock())


def test_a_tree_is_summed(tmp_path: Path) -> None:
    """Everything below the gate, whoever is between; nothing beside it; not what the gate spent before."""
    way = polled(tmp_path)
    lease = way.lease(1)
    lease.enter(GATE)
    process(tmp_path, 510, GATE, name="nvcc", mb=20, cpu=TICK)
    process(tmp_path, 511, 510, name="odd ) name", mb=300, cpu=2 * TICK)
    process(tmp_path, 600, OURS, mb=5000)

    assert lease.read() == Usage(current_bytes=321 * MB, peak_bytes=321 * MB, cpu_seconds=3.0, oom_kills=0)
    shutil.rmtree(tmp_path / "proc/511")
    assert lease.read() == Usage(current_bytes=21 * MB, peak_bytes=321 * MB, cpu_seconds=3.0, oom_kills=0)


def test_an_orphan_is_not_lost(tmp_path: Path) -> None:
    """A process that was seen belongs to its lease when its parent has died; another with its number does not."""
    way = polled(tmp_path)
    lease = way.lease(1)
    lease.enter(GATE)
    process(tmp_path, 510, GATE)
    process(tmp_path, 511, 510, mb=300)
    lease.read()
    shutil.rmtree(tmp_path / "proc/510")
    process(tmp_path, 511, 1, mb=300)
    process(tmp_path, 512, 511, mb=7)
    assert lease.pids() == {GATE, 511, 512}

    process(tmp_path, 511, 1, mb=300, began=99)
    process(tmp_path, 512, 1, mb=7, began=99)
    assert lease.pids() == {GATE}


def test_zombies_take_nothing(tmp_path: Path) -> None:
    """What has ended and was not waited for is neither memory nor to be killed; its time counts."""
    way = polled(tmp_path)
    lease = way.lease(1)
    lease.enter(GATE)
    process(tmp_path, 510, GATE, mb=300, cpu=TICK, at="Z")

    assert lease.pids() == {GATE}
    assert lease.read().current_bytes == MB
    assert lease.read().cpu_seconds == 1.0


def test_a_tree_is_stopped_before_it_is_killed(tmp_path: Path) -> None:
    """A child born between look and kill would be nobody's."""
    way = polled(tmp_path)
    kernel = way.files
    assert isinstance(kernel, Kernel)
    lease = way.lease(1)
    lease.enter(GATE)
    process(tmp_path, 510, GATE)
    process(tmp_path, 511, 510)

    assert lease.kill(except_pid=GATE) == 2
    assert sorted(kernel.log[:2]) == ["SIGSTOP 510", "SIGSTOP 511"]
    assert sorted(kernel.log[2:]) == ["SIGKILL 510", "SIGKILL 511"]
    assert lease.pids() == {GATE}


def test_one_look_serves_all_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a tick /proc is read once; a lease that enters makes the next look a new one."""
    way = Polling(root=machine(tmp_path, "", ""), files=Kernel(tmp_path, {}), clock=lambda: 5.0)
    looks: list[Path] = []
    scan = cgroups.scan
    monkeypatch.setattr(cgroups, "scan", lambda proc: looks.append(proc) or scan(proc))
    one, two = way.lease(1), way.lease(2)
    one.enter(GATE)
    one.read()
    two.read()
    assert len(looks) == 1

    two.enter(OURS)
    assert two.read().current_bytes
    assert len(looks) == 2


def test_polling_counts_kills_of_our_own_group(tmp_path: Path) -> None:
    """From the lease's beginning on; perhaps another compile's, which exact_oom says."""
    way = polled(tmp_path)
    lease = way.lease(1)
    put(tmp_path / "proc/vmstat", "oom_kill 19")

    assert lease.read().oom_kills == 2
    lease.close()
    way.close()


def test_the_dead_cannot_be_polled(tmp_path: Path) -> None:
    """As with groups."""
    with pytest.raises(ProcessLookupError):
        polled(tmp_path).lease(1).enter(12345)


# counters and strays ---------------------------------------------------------------------------------


def test_the_closest_counter_of_kills(v1: Kernel) -> None:
    """Our own group's, else the machine's."""
    counter = v1.root / "sys/fs/cgroup/memory/job/memory.oom_control"
    put(counter, "oom_kill_disable 0\noom_kill 3")
    assert (find_oom_counter(v1.root), oom_count(v1.root)) == (counter, 3)

    counter.unlink()
    assert (find_oom_counter(v1.root), oom_count(v1.root)) == (v1.root / "proc/vmstat", 17)


def test_v2_counts_at_the_first_ancestor_with_a_memory_controller(v2: Kernel) -> None:
    """A group without one is counted above."""
    above = v2.root / "sys/fs/cgroup/memory.events"
    put(above, "oom 1\noom_kill 5\noom_group_kill 0")
    assert (find_oom_counter(v2.root), oom_count(v2.root)) == (above, 5)


def test_strays_are_what_no_lease_holds(tmp_path: Path) -> None:
    """The biggest first, with their names; the dead, the leased and the rest of the machine are none."""
    way = polled(tmp_path)
    lease = way.lease(1)
    lease.enter(GATE)
    process(tmp_path, 510, GATE, mb=900)
    process(tmp_path, 520, OURS, name="python3.12", mb=500)
    process(tmp_path, 521, 520, name="cicc", mb=800)
    process(tmp_path, 522, 520, name="ninja", mb=500)
    process(tmp_path, 523, 520, name="cicc", mb=999, at="Z")
    process(tmp_path, 700, 1, mb=9999)
    found = strays(OURS, [lease], tmp_path / "proc")

    assert [(one.pid, one.name, one.memory_bytes // MB, one.compiler) for one in found] == [
        (521, "cicc", 800, True),
        (520, "python3.12", 500, False),
        (522, "ninja", 500, False),
    ]


def test_a_stray_is_killed_and_no_other(tmp_path: Path) -> None:
    """Not a process that has its number by now."""
    kernel = Kernel(machine(tmp_path, "", ""), {})
    process(tmp_path, 521, began=5)
    one = Stray(pid=521, name="cicc", memory_bytes=1, started=4)

    assert not end_stray(one, tmp_path / "proc", kernel)
    process(tmp_path, 521, began=4)
    assert end_stray(one, tmp_path / "proc", kernel)


@pytest.mark.parametrize(
    ("word", "compiler"),
    [
        *(
            (word, True)
            for word in ("nvcc", "cicc", "ptxas", "cudafe++", "cc1plus", "x86_64-linux-gnu-g++-12", "ld.lld")
        ),
        *((word, False) for word in ("python3", "ninja", "make", "cmake", "sh", "gate", "ccache", "uv")),
    ],
)
def test_compilers_are_known_by_name(word: str, compiler: bool) -> None:  # noqa: FBT001 - a table
    """The build's own driver programs are never ended for pressure."""
    assert Stray(pid=1, name=word, memory_bytes=0, started=0).compiler is compiler


# the real files --------------------------------------------------------------------------------------


def test_a_refusal_is_heard() -> None:
    """A buffered file would swallow it."""
    with pytest.raises(OSError, match="No space left"):
        Files().write(Path("/dev/full"), "x")


def test_signals_reach_only_who_is_meant() -> None:
    """Signal 0 to ourselves is real; a process that is not the one, or is gone, is told apart."""
    files = Files()
    null = signal.Signals(signal.SIGCONT)

    assert files.signal(os.getpid(), null, lambda _: True)
    assert not files.signal(os.getpid(), null, lambda _: False)
    assert not files.signal(1 << 22, null, lambda _: True)


def test_groups_are_made_and_removed(tmp_path: Path) -> None:
    """The seam does what it says."""
    Files().make(tmp_path / "a")
    assert cgroups.remove(Files(), tmp_path / "a")
    assert cgroups.remove(Files(), tmp_path / "a")
    (tmp_path / "b/c").mkdir(parents=True)
    assert not cgroups.remove(Files(), tmp_path / "b", tries=2)
