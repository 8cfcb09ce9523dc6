"""Launcher, cache, gate and governor with real compilers: shims first on PATH, as in a build."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from wheelmill import cgroups
from wheelmill._process import SystemRunner
from wheelmill.account import Means, Terms
from wheelmill.build import PID_SOURCE
from wheelmill.elf import read_elf
from wheelmill.governor import Governor
from wheelmill.limits import find_places, read_now
from wheelmill.records import CompileRecord, read_records
from wheelmill.shims import (
    HostCompiler,
    Nvcc,
    ObjectCache,
    Shims,
    ShimSpec,
    compile_gate,
    host_compilers,
    make_shims,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
]

CCACHE = Path(sys.executable).with_name("ccache")
PYTHON = Path(os.path.realpath(sys.executable))
CODE = "#include <vector>\nint f(int n) { std::vector<int> v(n); return int(v.size()); }\n"
KERNEL = """
namespace { __device__ int counter; }
__global__ void add(float *a) { a[threadIdx.x] += 1; atomicAdd(&counter, 1); }
void run(float *a) { add<<<1, 32>>>(a); }
"""
NINE = [f"-gencode=arch=compute_{n},code=sm_{n}" for n in (75, 80, 86, 87, 89, 90, 100, 103, 120)]


class Site:
    """A place to compile in: sources, shims, a cache, and the governor of the moment."""

    def __init__(self, root: Path, gate: Path | None) -> None:
        self.root = root
        self.source = root / "source"
        self.source.mkdir()
        self.socket = root / "s"
        self.base = {"PATH": os.environ["PATH"], "HOME": str(root), "TMPDIR": str(root)}
        host = host_compilers(lambda name, path: shutil.which(name, path=path), SystemRunner(), self.base)
        self.spec = ShimSpec(
            python=PYTHON,
            socket=self.socket,
            host=host,
            cache=ObjectCache(ccache=CCACHE, directory=root / "cache"),
            source_root=self.source,
            refusals=root / "refusals",
            gate=gate,
        )

    def shims(self, name: str = "shims", **changes: object) -> Shims:
        return make_shims(self.root / name, replace(self.spec, **changes))  # type: ignore[arg-type]

    def env(self, shims: Shims, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**self.base, "PATH": f"{shims.bin}:{self.base['PATH']}", **(extra or {})}

    def write(self, name: str, text: str) -> Path:
        """Write a source with an old time: ccache distrusts what changed while it looked."""
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        return path

    def run(
        self, shims: Shims, *argv: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            argv,
            env=self.env(shims, env),
            cwd=cwd or self.source,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def compile(self, shims: Shims, *argv: str, env: Mapping[str, str] | None = None) -> None:
        done = self.run(shims, *argv, env=env)
        assert done.returncode == 0, done.stderr

    def start(self, shims: Shims, *argv: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(argv, env=self.env(shims), cwd=self.source)

    def governor(self, jobs: int = 2) -> Governor:
        means = Means(backend=cgroups.probe(), limits=partial(read_now, find_places()))
        return Governor(self.socket, self.root / "compile.jsonl", Terms(jobs=jobs), means)

    def records(self) -> tuple[CompileRecord, ...]:
        return read_records(self.root / "compile.jsonl")

    def fake(self, name: str, before: str) -> HostCompiler:
        """Make a g++ that does something before it compiles."""
        path = self.root / name
        path.write_text(f'#!/bin/sh\n{before}\nexec {self.spec.host.cxx} "$@"\n', "utf-8")
        path.chmod(0o755)
        return replace(self.spec.host, cc=path, cxx=path)


@pytest.fixture(scope="session")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Compile the gate as a build does; test_gate.py tries the one in Python as well."""
    folder = tmp_path_factory.mktemp("gate")
    return compile_gate(folder, Path(shutil.which("gcc") or ""), SystemRunner(), tmp=folder)


@pytest.fixture
def site(tmp_path: Path, gate: Path | None) -> Site:
    """Give an empty site."""
    return Site(tmp_path, gate)


@pytest.fixture
def governed(site: Site) -> Iterator[Governor]:
    """Run a governor with two slots."""
    with site.governor() as governor:
        yield governor


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so, for ten seconds at most."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def alive(pattern: str) -> list[int]:
    """Give the processes with a word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(pattern in word.decode("utf-8", "replace") for word in words):
                found.append(int(entry.name))
    return found


# The cache


@pytest.mark.usefixtures("governed")
def test_the_second_compile_is_a_hit_without_a_lease(site: Site) -> None:
    """A hit takes no lease and gives the same bytes."""
    shims = site.shims()
    site.write("csrc/a.cpp", CODE)
    site.compile(shims, "g++", "-O2", "-c", "csrc/a.cpp", "-o", "a.o")
    first = (site.source / "a.o").read_bytes()
    site.compile(shims, "g++", "-O2", "-c", "csrc/a.cpp", "-o", "a.o")

    miss, hit = site.records()
    assert (miss.cache, hit.cache) == ("miss", "hit")
    assert (miss.source, miss.output, miss.tool) == ("csrc/a.cpp", "a.o", "g++")
    assert miss.peak_rss_bytes > 10 << 20
    assert miss.cpu_s > 0
    assert hit.peak_rss_bytes == 0
    assert (site.source / "a.o").read_bytes() == first
    assert sorted(path.name for path in site.source.iterdir()) == ["a.o", "csrc"]


@pytest.mark.usefixtures("governed")
@pytest.mark.parametrize("again", [True, False], ids=["new-configuration", "old-configuration"])
def test_another_compiler_behind_the_shim_misses(site: Site, again: bool) -> None:  # noqa: FBT001 - a parameter
    """Whether the shims are made anew or not, an exchanged compiler never gives the old one's object."""
    compiler = site.fake("real-g++", 'set -- "$@" -DANSWER=1')
    shims = site.shims(host=replace(compiler, identity="one"))
    site.write("a.cpp", "int answer() { return ANSWER; }\n")
    site.compile(shims, "g++", "-c", "a.cpp", "-o", "a.o")
    first = (site.source / "a.o").read_bytes()

    site.fake("real-g++", 'set -- "$@" -DANSWER=2 ')
    if again:
        site.shims(host=replace(compiler, identity="two"))
    site.compile(shims, "g++", "-c", "a.cpp", "-o", "a.o")

    assert [record.cache for record in site.records()] == ["miss", "miss"]
    assert (site.source / "a.o").read_bytes() != first


@pytest.mark.usefixtures("governed")
def test_a_changed_system_header_misses(site: Site) -> None:
    """-MMD leaves headers under -isystem out, where torch's stand; the cache hears of them all the same."""
    shims = site.shims()
    header = site.write("sys/torch.h", "#define ANSWER 1\n")
    site.write("a.cpp", "#include <torch.h>\nint answer() { return ANSWER; }\n")
    line = ("g++", "-MMD", "-MF", "a.d", "-isystem", "sys", "-c", "a.cpp", "-o", "a.o")
    time.sleep(1.1)  # ccache stores nothing that was made in the second in which it looks
    site.compile(shims, *line)
    site.compile(shims, *line)
    header.write_text("#define ANSWER 2\n", "utf-8")
    site.compile(shims, *line)

    assert [record.cache for record in site.records()] == ["miss", "hit", "miss"]
    assert site.records()[0].rewrites == ("dependencies: -MMD became -MD",)
    assert "torch.h" in (site.source / "a.d").read_text("utf-8")


@pytest.mark.usefixtures("governed")
def test_shims_elsewhere_share_the_cache(site: Site) -> None:
    """Where the shims stand is no input."""
    site.write("a.cpp", CODE)
    for name in ("one", "two"):
        site.compile(site.shims(name), "g++", "-c", "a.cpp", "-o", "a.o")

    assert [record.cache for record in site.records()] == ["miss", "hit"]


@pytest.mark.usefixtures("governed")
def test_a_users_ccache_settings_have_no_say(site: Site) -> None:
    """Neither the environment nor a ccache.conf turns the cache off or loosens it."""
    shims = site.shims()
    site.write("a.cpp", CODE)
    settings = {"CCACHE_DISABLE": "1", "CCACHE_SLOPPINESS": "time_macros"}
    (site.root / ".config/ccache").mkdir(parents=True)
    (site.root / ".config/ccache/ccache.conf").write_text("disable = true\n", "utf-8")
    (site.root / "cache").mkdir()
    (site.root / "cache/ccache.conf").write_text("disable = true\n", "utf-8")
    for _ in range(2):
        site.compile(shims, "g++", "-c", "a.cpp", "-o", "a.o", env=settings)

    assert [record.cache for record in site.records()] == ["miss", "hit"]


@pytest.mark.usefixtures("governed")
def test_without_a_cache_each_compile_takes_a_lease(site: Site) -> None:
    """A run that must not use old objects says "off"."""
    shims = site.shims(cache=None)
    site.write("a.cpp", CODE)
    for _ in range(2):
        site.compile(shims, "g++", "-c", "a.cpp", "-o", "a.o")

    assert [record.cache for record in site.records()] == ["off", "off"]


# The gate


def test_no_more_run_than_there_are_slots(site: Site) -> None:
    """Eight at once with two slots: never more than two run, and all come through."""
    shims = site.shims(host=site.fake("slow-g++", "sleep 0.3"), cache=None)
    site.write("a.cpp", CODE)
    with site.governor(jobs=2) as governor:
        builds = [site.start(shims, "g++", "-c", "a.cpp", "-o", f"{number}.o") for number in range(8)]
        assert [build.wait(60) for build in builds] == [0] * 8
        summary = governor.summary()

    records = site.records()
    edges = sorted(
        edge for record in records for edge in ((record.started_s, 1), (record.started_s + record.wall_s - 0.002, -1))
    )
    running, most = 0, 0
    for _, change in sorted(edges):
        running += change
        most = max(most, running)
    assert most == 2
    assert (summary.compiles, summary.failures, summary.units) == (8, 0, 1)
    assert max(record.waited_s for record in records) > 0.5


def test_a_lease_lasts_while_its_compiler_holds_memory(site: Site) -> None:
    """The lease outlives gate and launcher that were killed, until their compiler has ended."""
    go, at_work, path = site.root / "go", site.root / "at-work", site.write("a.cpp", CODE)
    waits = f"touch {at_work}; while [ ! -e {go} ]; do sleep 0.02; done"
    shims = site.shims(host=site.fake("held-g++", waits))
    with site.governor(jobs=1) as governor:
        first = site.start(shims, "g++", "-c", path.name, "-o", "first.o")
        wait_for(lambda: governor.state().running == 1)
        wait_for(at_work.exists)  # its name alone stands in the command lines of launcher, ccache and gate, too
        second = site.start(shims, "g++", "-c", path.name, "-DSECOND", "-o", "second.o")
        compiler = os.path.realpath("/bin/sh")
        ours = [pid for pid in alive("first.o") if os.path.realpath(f"/proc/{pid}/exe") != compiler]
        for pid in ours:  # all stopped before one is killed, as each ends what the next leaves behind
            os.kill(pid, signal.SIGSTOP)
        for pid in ours:
            os.kill(pid, signal.SIGKILL)
        assert first.wait(10) != 0
        assert governor.state().running == 1
        go.touch()
        assert second.wait(30) == 0

    killed, done = site.records()
    assert (killed.cache, killed.exit != 0) == ("miss", True)
    assert (done.cache, done.exit) == ("miss", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_ends_the_compiler(site: Site, number: signal.Signals) -> None:
    """SIGTERM and SIGINT go down to the compiler, also when the launcher alone gets them."""
    shims = site.shims(host=site.fake("sleepy-g++", "exec sleep 77.25"), cache=None)
    site.write("a.cpp", CODE)
    with site.governor() as governor:
        build = site.start(shims, "g++", "-c", "a.cpp", "-o", "a.o")
        wait_for(lambda: bool(alive("77.25")))
        build.send_signal(number)
        assert build.wait(10) == 128 + number
        wait_for(lambda: governor.state().running == 0)
        assert alive("77.25") == []


def test_a_killed_compiler_is_told_as_a_shell_would(site: Site) -> None:
    """Signal 9 becomes 137, through ccache as without."""
    site.write("a.cpp", CODE)
    killed = site.fake("dying-g++", "kill -9 $$")
    with site.governor():
        bare = site.run(site.shims("bare", host=killed, cache=None), "g++", "-c", "a.cpp", "-o", "a.o")
        cached = site.run(site.shims("cached", host=killed), "g++", "-c", "a.cpp", "-o", "a.o")

    assert (bare.returncode, cached.returncode) == (137, 137)
    assert [record.exit for record in site.records()] == [137, 137]


@pytest.mark.usefixtures("governed")
def test_a_compilers_error_comes_through(site: Site) -> None:
    """What the compiler says and its status arrive unchanged."""
    site.write("a.cpp", "int f() { return x; }\n")
    done = site.run(site.shims(), "g++", "-c", "a.cpp", "-o", "a.o")

    assert done.returncode == 1
    assert "'x' was not declared" in done.stderr.replace("\u2018", "'").replace("\u2019", "'")
    [record] = site.records()
    assert (record.exit, record.cache) == (1, "miss")


def test_nothing_compiles_without_a_governor(site: Site) -> None:
    """A compile fails in one line and is logged; questions pass."""
    shims = site.shims()
    site.write("a.cpp", CODE)
    done = site.run(shims, "g++", "-c", "a.cpp", "-o", "a.o")

    line = (
        f"wheelmill: not compiled: the governor at {site.socket} does not answer (No such file or directory); "
        "start the build again with `wheelmill build`\n"
    )
    assert (done.returncode, done.stderr) == (1, line)
    assert (site.root / "refusals").read_text("utf-8") == line
    assert not (site.source / "a.o").exists()
    assert site.run(shims, "gcc", "-dumpmachine").stdout.strip() == site.spec.host.triplet
    assert site.run(shims, "c++", "--version").returncode == 0
    assert site.run(shims, "g++", "-E", "a.cpp").stdout


@contextmanager
def scripted(path: Path, *answers: bytes) -> Iterator[list[bytes]]:
    """Play a governor that gives the answers in turn, to whichever side asks; yield what was said."""
    said: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as file:
            for line in file:
                said.append(line)
                file.write(answers[len(said) - 1] + b"\n")
                file.flush()

    def accept(listener: socket.socket) -> None:
        threads = []
        for _ in range(2):
            connection, _ = listener.accept()
            threads.append(threading.Thread(target=serve, args=(connection,)))
            threads[-1].start()
        for thread in threads:
            thread.join(30)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(30)
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        yield said
        thread.join(30)


def test_the_governor_may_have_a_compile_run_again(site: Site) -> None:
    """A compile that was killed for memory is retried inside the gate: the build system sees no failure."""
    count = site.root / "count"
    fails_once = f"echo x >> {count}; test $(wc -l < {count}) -gt 1 || kill -9 $$"
    shims = site.shims(host=site.fake("killed-g++", fails_once))
    site.write("a.cpp", CODE)
    go, leave = b'{"op":"go"}', b'{"op":"exit"}'
    with scripted(site.socket, b'{"id":7}', go, go, leave, leave) as said:
        site.compile(shims, "g++", "-c", "a.cpp", "-o", "a.o")

    _, want, killed, done, end = map(json.loads, said)
    assert want == {"op": "want", "id": 7}
    assert (killed["op"], killed["exit"], killed["signal"]) == ("done", 137, 9)
    assert (done["op"], done["exit"], done["signal"]) == ("done", 0, 0)
    assert end == {"op": "end", "id": 7, "exit": 0}
    assert (site.source / "a.o").exists()


def test_a_refused_compile_says_why(site: Site) -> None:
    """What cannot be admitted fails with the governor's own words."""
    site.write("a.cpp", CODE)
    refuse = b'{"op":"refuse","message":"a.cpp needs 9 GiB, the limit is 8"}'
    with scripted(site.socket, b'{"id":7}', refuse, b'{"op":"exit"}'):
        done = site.run(site.shims(), "g++", "-c", "a.cpp", "-o", "a.o")

    assert done.returncode == 1
    assert "wheelmill: not compiled: a.cpp needs 9 GiB, the limit is 8" in done.stderr


# Links


@pytest.mark.usefixtures("governed")
def test_a_link_is_stripped_and_its_run_paths_cleaned(site: Site) -> None:
    """A link is recorded and never cached; its file needs no change afterwards."""
    shims = site.shims()
    site.write("a.cpp", CODE)
    site.compile(shims, "g++", "-fPIC", "-c", "a.cpp", "-o", "a.o")
    (site.source / "objects").write_text("a.o -Wl,-rpath,/opt/lib:$ORIGIN/lib", "utf-8")
    for _ in range(2):
        site.compile(shims, "g++", "-shared", "@objects", "-o", "a.so")

    _, link, again = site.records()
    assert (link.cache, again.cache) == ("link", "link")
    assert link.rewrites == ("run path: dropped /opt/lib", "stripped")
    dump = site.run(shims, "readelf", "-dS", "a.so").stdout
    assert "[$ORIGIN/lib]" in dump
    assert ".symtab" not in dump


# nvcc


@pytest.fixture(scope="session")
def view(toolkit_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a toolkit view: links to everything, but for bin/nvcc."""
    root = tmp_path_factory.mktemp("view")
    (root / "bin").mkdir()
    for path in toolkit_root.iterdir():
        if path.name != "bin":
            (root / path.name).symlink_to(path)
    for path in (toolkit_root / "bin").iterdir():
        if path.name != "nvcc":
            (root / "bin" / path.name).symlink_to(path)
    # nvcc 13.0.88 dies of a segmentation fault when its own name is no file; in a build it is the shim.
    (root / "bin/nvcc").write_text("#!/bin/sh\nexit 1\n", "utf-8")
    (root / "bin/nvcc").chmod(0o755)
    return root


@pytest.fixture
def device(site: Site, toolkit_root: Path, view: Path) -> Site:
    """Give a site with nvcc, held to one architecture."""
    nvcc = Nvcc(real=toolkit_root / "bin/nvcc", view=view / "bin/nvcc", identity="cuda-13.0.2")
    site.spec = replace(site.spec, nvcc=nvcc, archs=("10.0",))
    site.write("t.cu", KERNEL)
    return site


def device_code(path: Path) -> set[str]:
    """Give the architectures in an object."""
    with path.open("rb") as stream:
        census = read_elf(stream, path.name).device_code
    return {*census.sass, *census.ptx}


@pytest.mark.network
@pytest.mark.usefixtures("governed")
def test_nine_architectures_become_the_one_requested(device: Site) -> None:
    """The object holds sm_100 alone, and two runs in one place are the same bytes, cache or not."""
    objects = []
    for name, changes in (("off", {"cache": None}), ("again", {"cache": None}), ("miss", {}), ("hit", {})):
        device.compile(device.shims(name, **changes), "nvcc", *NINE, "-c", "t.cu", "-o", "t.o")
        objects.append((device.source / "t.o").read_bytes())

    assert device_code(device.source / "t.o") == {"sm_100"}
    assert len(set(objects)) == 1
    assert [record.cache for record in device.records()] == ["off", "off", "miss", "hit"]
    record = device.records()[0]
    assert len(record.archs_asked) == 9
    assert record.archs_used == ("sm_100",)
    assert record.rewrites == ("archs: removed sm_75, sm_80, sm_86, sm_87, sm_89, sm_90, sm_103, sm_120",)


@pytest.mark.network
@pytest.mark.usefixtures("governed")
def test_hidden_flags_of_nvcc_are_dropped(device: Site) -> None:
    """NVCC_APPEND_FLAGS would change the object behind the cache's back."""
    shims = device.shims()
    device.compile(shims, "nvcc", "-c", "t.cu", "-o", "t.o")
    first = (device.source / "t.o").read_bytes()
    device.compile(shims, "nvcc", "-c", "t.cu", "-o", "t.o", env={"NVCC_APPEND_FLAGS": "-DX -arch=sm_90"})

    _, second = device.records()
    assert second.cache == "hit"
    assert "environment: dropped NVCC_APPEND_FLAGS" in second.rewrites
    assert (device.source / "t.o").read_bytes() == first


@pytest.mark.network
@pytest.mark.usefixtures("governed")
def test_another_directory_misses(device: Site) -> None:
    """The source's real path is in nvcc's bytes, so an object never serves another directory."""
    shims = device.shims()
    device.write("one/t.cu", KERNEL)
    device.write("two/t.cu", KERNEL)
    for name in ("one", "two"):
        done = device.run(shims, "nvcc", "-c", "t.cu", "-o", "t.o", cwd=device.source / name)
        assert done.returncode == 0, done.stderr

    assert [record.cache for record in device.records()] == ["miss", "miss"]


TEMPLATES = """\
namespace { __device__ int hidden = 3; }
static __device__ int other = 4;
template <typename T> __global__ void raise(T *p) { p[0] += hidden + other; }
template __global__ void raise<float>(float *);
"""
"""A unit without a strong external symbol: cudafe++ takes its process id for one."""


@pytest.mark.network
@pytest.mark.usefixtures("governed")
@pytest.mark.parametrize("way", ["seed", "preload", "neither"])
def test_no_process_id_in_a_unit_of_templates(device: Site, way: str) -> None:
    """A seed where nvcc knows it, else a library that gives cudafe++ a fixed one; without both, bytes differ."""
    (device.root / "pid.c").write_text(PID_SOURCE)
    library = device.root / "pid.so"
    subprocess.run(["gcc", "-shared", "-fPIC", device.root / "pid.c", "-o", library], check=True)
    shims = device.shims(cache=None, seeded=way == "seed", preload=library if way == "preload" else None)
    device.write("a.cu", TEMPLATES)
    objects = []
    for _ in range(2):
        device.compile(shims, "nvcc", "-c", "a.cu", "-o", "a.o")
        objects.append((device.source / "a.o").read_bytes())
    assert (objects[0] == objects[1]) is (way != "neither")


@pytest.mark.network
def test_nvcc_takes_the_view_for_its_root(device: Site, view: Path) -> None:
    """The real nvcc runs under the view's name, finds its profile by a link, and says so without a governor."""
    shims = device.shims()
    (view / "bin/nvcc").unlink()
    (view / "bin/nvcc").symlink_to(shims.tools["nvcc"])
    said = device.run(shims, str(view / "bin/nvcc"), "--dryrun", "-c", "t.cu", "-o", "t.o").stderr

    assert f"#$ TOP={view}/bin/.." in said
    assert f"-I{view}/bin/..//include" in said
    assert str(shims.bin) not in said


@pytest.mark.network
@pytest.mark.usefixtures("governed")
def test_nvccs_own_gcc_calls_pass(device: Site) -> None:
    """With the only slot taken by nvcc, its inner gcc does not wait for it; one record is left."""
    with Governor(
        device.root / "one",
        device.root / "one.jsonl",
        Terms(jobs=1),
        Means(backend=cgroups.probe(), limits=partial(read_now, find_places())),
    ):
        shims = device.shims(socket=device.root / "one", cache=None)
        inner = str(shims.bin / "g++")
        device.compile(shims, "nvcc", "-ccbin", inner, "-c", "t.cu", "-o", "t.o")
        device.compile(shims, "nvcc", "-shared", "t.o", "-o", "t.so", "-cudart", "none")

    compiled, linked = read_records(device.root / "one.jsonl")
    assert (compiled.tool, compiled.cache) == ("nvcc", "off")
    assert (linked.cache, linked.rewrites) == ("link", ("stripped",))
    assert ".symtab" not in device.run(shims, "readelf", "-S", "t.so").stdout


# What it costs


@pytest.mark.usefixtures("governed")
def test_a_compile_costs_little_more(site: Site) -> None:
    """Launcher and gate together add at most 100 ms, on a busy machine too (see benchmarks/launcher.py: 12)."""
    shims = site.shims(cache=None, host=site.fake("quick-g++", "exec true"))
    site.write("a.cpp", CODE)

    def best(*argv: str) -> float:
        times = []
        for _ in range(5):
            started = time.perf_counter()
            site.run(shims, *argv)
            times.append(time.perf_counter() - started)
        return min(times)

    bare = best(str(site.root / "quick-g++"), "-c", "a.cpp", "-o", "a.o")
    assert best("g++", "-c", "a.cpp", "-o", "a.o") - bare < 0.1
