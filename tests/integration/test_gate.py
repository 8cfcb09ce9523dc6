"""The gate against a scripted governor: gate.c and the launcher's own in Python pass the same cases."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from wheelmill._process import SystemRunner
from wheelmill.shims import HostCompiler, ObjectCache, Shims, ShimSpec, compile_gate, make_shims

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc"),
]

CCACHE = Path(sys.executable).with_name("ccache")
PYTHON = Path(os.path.realpath(sys.executable))
GO, EXIT, BEGUN = b'{"op":"go"}', b'{"op":"exit"}', b'{"id":7}'
SILENCE = b""
"""An answer that never comes; the connection stays."""


class Script:
    """A governor that gives its answers in turn, to whichever side asks, and notes what was said.

    Its end closes every connection, as a killed governor's does.
    """

    def __init__(self, path: Path, *answers: bytes) -> None:
        self.answers, self.said = list(answers), list[dict[str, object]]()
        self.connections: list[socket.socket] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection.makefile("rb") as lines:  # another thread closes it
            for line in lines:
                self.said.append(json.loads(line))
                answer = self.answers[len(self.said) - 1] if len(self.said) <= len(self.answers) else SILENCE
                if answer != SILENCE:
                    connection.sendall(answer + b"\n")

    def close(self) -> None:
        if self.listener.fileno() >= 0:
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
        for connection in self.connections:
            with suppress(OSError):  # the other side may have gone before
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self.connections.clear()

    @property
    def operations(self) -> list[object]:
        return [message["op"] for message in self.said]


class Bench:
    """A folder with a source, a compiler of our own, shims in front of it and a scripted governor."""

    def __init__(self, root: Path, gate: Path | None) -> None:
        self.root, self.socket, self.refusals = root, root / "s", root / "refusals"
        self.compiler = root / "real-gcc"
        self.env = {"PATH": os.environ["PATH"], "HOME": str(root), "TMPDIR": str(root)}
        self.cache = ObjectCache(ccache=CCACHE, directory=root / "cache")
        self.spec = ShimSpec(
            python=PYTHON,
            socket=self.socket,
            host=HostCompiler(
                cc=self.compiler, cxx=self.compiler, version="gcc", identity="id", triplet="x86_64-linux-gnu"
            ),
            cache=self.cache,
            refusals=self.refusals,
            gate=gate,
        )
        self.behave('exec gcc "$@"')
        source = root / "a.c"
        source.write_text("int f(void) { return 1; }\n", "utf-8")
        os.utime(source, (1_700_000_000, 1_700_000_000))

    def behave(self, script: str) -> None:
        """Say what the compiler does."""
        self.compiler.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        self.compiler.chmod(0o755)

    def shims(self, name: str = "shims", **changes: object) -> Shims:
        return make_shims(self.root / name, replace(self.spec, **changes))  # type: ignore[arg-type]

    def start(self, *more: str, **changes: object) -> "subprocess.Popen[str]":
        env = {**self.env, "PATH": f"{self.shims(**changes).bin}:{self.env['PATH']}"}
        line = ["gcc", "-c", "a.c", "-o", "a.o", *more]
        return subprocess.Popen(line, env=env, cwd=self.root, stderr=subprocess.PIPE, text=True)

    def compile(self, *more: str, **changes: object) -> tuple[int, str]:
        """Compile to the end; give the status and what was said on stderr."""
        process = self.start(*more, **changes)
        _, said = process.communicate(timeout=60)
        return process.returncode, said

    @contextmanager
    def governed(self, *answers: bytes) -> Iterator[Script]:
        self.socket.unlink(missing_ok=True)
        script = Script(self.socket, *answers)
        try:
            yield script
        finally:
            script.close()


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile gate.c as a build does."""
    folder = tmp_path_factory.mktemp("gate")
    gate = compile_gate(folder, Path(shutil.which("gcc") or ""), SystemRunner(), tmp=folder)
    assert gate is not None
    return gate


@pytest.fixture(params=["compiled", "python"])
def bench(tmp_path: Path, program: Path, request: pytest.FixtureRequest) -> Bench:
    """Give a bench for either gate."""
    return Bench(tmp_path, program if request.param == "compiled" else None)


@pytest.fixture(params=["cached", "bare"])
def ways(bench: Bench, request: pytest.FixtureRequest) -> Bench:
    """Give a bench with and without a cache."""
    bench.spec = replace(bench.spec, cache=bench.cache if request.param == "cached" else None)
    return bench


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so, for ten seconds at most."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def processes(word: str) -> dict[int, list[str]]:
    """Give the processes with a word in their command line, by their commands."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            except OSError:
                continue
            if any(word in each for each in words):
                found[int(entry.name)] = words
    return found


# A compile


def test_a_compile_is_told_from_its_beginning_to_its_end(ways: Bench) -> None:
    """Each side says what the protocol has, once and in turn; only the object is left."""
    with ways.governed(BEGUN, GO, EXIT, EXIT) as script:
        assert ways.compile() == (0, "")

    begin, want, done, end = script.said
    assert (begin["op"], begin["tool"], begin["kind"]) == ("begin", "gcc", "compile")
    assert want == {"op": "want", "id": 7}
    assert done.keys() == {"op", "id", "exit", "signal", "wall", "cpu", "peak_rss_bytes"}
    assert (done["op"], done["id"], done["exit"], done["signal"]) == ("done", 7, 0, 0)
    assert isinstance(done["peak_rss_bytes"], int)
    assert done["peak_rss_bytes"] > 1 << 20
    assert end == {"op": "end", "id": 7, "exit": 0}
    assert sorted(path.name for path in ways.root.iterdir() if path.name.startswith("a.")) == ["a.c", "a.o"]


def test_a_hit_wants_nothing(bench: Bench) -> None:
    """The second compile comes from the cache and never reaches the gate."""
    with bench.governed(BEGUN, GO, EXIT, EXIT):
        bench.compile()
    with bench.governed(BEGUN, EXIT) as script:
        assert bench.compile() == (0, "")

    assert script.operations == ["begin", "end"]


@pytest.mark.parametrize("first", ["compiled", "python"])
def test_either_gate_hits_the_others_objects(tmp_path: Path, program: Path, first: str) -> None:
    """The cache's key has nothing of the gate, so objects made before gate.c are still worth something."""
    bench = Bench(tmp_path, program if first == "compiled" else None)
    with bench.governed(BEGUN, GO, EXIT, EXIT):
        bench.compile()
    with bench.governed(BEGUN, EXIT) as script:
        bench.compile(gate=None if first == "compiled" else program)

    assert script.operations == ["begin", "end"]


PYTHONS_OWN = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
"""What Python ignores, and a compiler must not."""


def masks(status: str) -> int:
    """Give the ordinary signals that a process blocks or ignores, by its /proc/PID/status."""
    said = [line.split("\t")[1] for line in status.splitlines() if line.startswith(("SigBlk", "SigIgn"))]
    return (int(said[0], 16) | int(said[1], 16)) & 0x7FFFFFFF


def test_a_compiler_starts_as_if_it_were_called_by_hand(ways: Bench) -> None:
    """No signal is ignored or blocked, no variable or connection of the launcher's is left, the group is the caller's."""
    ways.behave(
        "grep -E 'Sig(Blk|Ign)' /proc/self/status > status; env | sort > env; cut -d' ' -f5 /proc/$$/stat > group\n"
        'for fd in /proc/$$/fd/*; do readlink "$fd" >> open; done; echo "$0" > name; exec gcc "$@"'
    )
    with ways.governed(BEGUN, GO, EXIT, EXIT):
        process = ways.start()
        group = os.getpgid(process.pid)
        process.communicate(timeout=60)

    assert process.returncode == 0
    # glibc's posix_spawn leaves its own two, 32 and 33, ignored; nohup, where it started us, SIGHUP.
    assert masks((ways.root / "status").read_text()) == masks(Path("/proc/self/status").read_text()) & ~PYTHONS_OWN
    env = (ways.root / "env").read_text()
    assert "WHEELMILL_LAUNCHED=1\n" in env
    assert "CCACHE_" not in env
    assert env.count("WHEELMILL_") == 1
    assert (ways.root / "group").read_text() == f"{group}\n"
    assert (ways.root / "open").read_text().count("socket:") == 1  # the lease


def test_the_kernel_takes_the_compiler_first(ways: Bench) -> None:
    """Where memory runs out: the compiler and what it starts, and neither its gate nor ccache."""
    ways.behave(
        'cat /proc/self/oom_score_adj > score; up=$PPID; while [ "$up" -gt 1 ]; do\n'
        "  echo $(cat /proc/$up/comm) $(cat /proc/$up/oom_score_adj) >> scores\n"
        "  up=$(sed 's/.*) //' /proc/$up/stat | cut -d' ' -f2); done\n"
        'sleep 0.1; cat /proc/self/oom_score_adj > score; exec gcc "$@"'
    )
    own = Path("/proc/self/oom_score_adj").read_text()
    with ways.governed(BEGUN, GO, EXIT, EXIT):
        assert ways.compile()[0] == 0

    assert (ways.root / "score").read_text() == "900\n"
    above = [line.rsplit(" ", 1)[1] for line in (ways.root / "scores").read_text().splitlines()]
    assert len(above) > 2
    assert set(above) <= {own.strip(), "0"}


def test_no_interpreter_waits(tmp_path: Path, program: Path) -> None:
    """While a compile waits for its lease, gate.c stands in the launcher's place."""
    bench = Bench(tmp_path, program)
    with bench.governed(BEGUN, SILENCE, EXIT) as script:
        process = bench.start()
        wait_for(lambda: len(script.said) == 2)
        waiting = [str(Path(f"/proc/{pid}/exe").readlink()) for pid in processes(str(bench.root))]
        process.terminate()
        assert process.communicate(timeout=10)[0] is None

    gate, ccache = str(bench.root / "shims/gate"), str(CCACHE)
    assert sorted(waiting) == sorted([gate, gate, os.path.realpath(ccache)])
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(("script", "status", "number"), [("exit 3", 3, 0), ("kill -9 $$", 137, 9)])
def test_how_a_compiler_ends_is_told(ways: Bench, script: str, status: int, number: int) -> None:
    """Status and signal come through to the governor and to the build system."""
    ways.behave(script)
    with ways.governed(BEGUN, GO, EXIT, EXIT) as governor:
        assert ways.compile()[0] == status

    _, _, done, end = governor.said
    assert (done["exit"], done["signal"]) == (status, number)
    assert end["exit"] == status


# What the governor may answer


def test_a_killed_attempt_leaves_no_word_with_the_object(bench: Bench) -> None:
    """The governor has it run once more: neither the build system nor the cache hears of the first attempt."""
    bench.behave('echo warned >&2; test -e tried || { touch tried; echo died >&2; kill -9 $$; }; exec gcc "$@"')
    with bench.governed(BEGUN, GO, GO, EXIT, EXIT) as script:
        assert bench.compile() == (0, "warned\n")
    with bench.governed(BEGUN, EXIT):
        assert bench.compile() == (0, "warned\n")

    assert script.operations == ["begin", "want", "done", "done", "end"]
    assert [message.get("signal") for message in script.said] == [None, None, 9, 0, None]


def test_a_log_of_the_builds_own_is_never_emptied(bench: Bench) -> None:
    """Without a cache stderr may be any file; what stands there stays."""
    bench.behave('test -e tried || { touch tried; kill -9 $$; }; exec gcc "$@"')
    log = bench.root / "log"
    env = {**bench.env, "PATH": f"{bench.shims(cache=None).bin}:{bench.env['PATH']}"}
    with log.open("w") as file, bench.governed(BEGUN, GO, GO, EXIT, EXIT):
        file.write("before\n")
        file.flush()
        subprocess.run(["gcc", "-c", "a.c", "-o", "a.o"], env=env, cwd=bench.root, stderr=file, check=True)

    assert log.read_text() == "before\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('{"op":"refuse","message":"a.c needs 9 GiB, the limit is 8"}', "a.c needs 9 GiB, the limit is 8"),
        ('{"op":"refuse","message":"\\"x\\\\y\\" \u2264 8 GiB","more":1}', '"x\\y" \u2264 8 GiB'),
        ('{"op":"refuse"}', '{"op":"refuse"}'),
        ("what?", "what?"),
    ],
)
@pytest.mark.parametrize("answers", [[], [GO]], ids=["at-once", "after-an-attempt"])
def test_a_refusal_says_why(ways: Bench, answer: str, said: str, answers: list[bytes]) -> None:
    """The governor's own words come out on stderr and in the log of refusals."""
    ways.behave("kill -9 $$")
    with ways.governed(BEGUN, *answers, answer.encode(), EXIT):
        status, stderr = ways.compile()

    line = f"wheelmill: not compiled: {said}; start the build again with `wheelmill build`\n"
    assert (status, stderr) == (1, line)
    assert ways.refusals.read_text("utf-8") == line


def test_a_long_refusal_loses_its_end_only(ways: Bench) -> None:
    """Whatever comes, the compile fails in one line that begins as the governor said."""
    with ways.governed(BEGUN, b'{"op":"refuse","message":"' + b"x" * 20000 + b'"}', EXIT):
        status, stderr = ways.compile()

    assert status == 1
    assert stderr.startswith("wheelmill: not compiled: " + "x" * 4000)


@pytest.mark.parametrize(
    ("words", "rule"),
    [([], None), (["-MD", "-MF", "a.d"], "a.o:\n"), (["-MD", "-MF", "a.d", "-MT", "b/x.o"], "b/x.o:\n")],
)
def test_a_unit_may_be_skipped(ways: Bench, words: list[str], rule: str | None) -> None:
    """What the governor does not want compiled leaves an empty object and valid, empty dependencies."""
    with ways.governed(b'{"op":"skip"}') as script:
        assert ways.compile(*words) == (0, "")

    assert script.operations == ["begin"]
    assert (ways.root / "a.o").read_bytes() == b""
    listing = ways.root / "a.d"
    assert (listing.read_text() if listing.exists() else None) == rule


# Ends


def test_no_compiler_outlives_the_governor(ways: Bench) -> None:
    """When the governor has gone, everything below ends, what was left without a parent or a session included."""
    ways.behave("(sleep 81.5 & setsid sleep 81.5 &) ; touch at-work; sleep 81.5; sleep 81.5")
    with ways.governed(BEGUN, GO) as script:
        process = ways.start()
        wait_for((ways.root / "at-work").exists)
        wait_for(lambda: len(processes("81.5")) >= 3)
        script.close()
        _, said = process.communicate(timeout=10)

    assert process.returncode == 1
    assert f"wheelmill: not compiled: the governor at {ways.socket} has gone" in said
    wait_for(lambda: not processes("81.5"))
    assert processes(str(ways.root)) == {}


def test_what_waits_for_a_lease_ends_with_the_governor(ways: Bench) -> None:
    """Nothing waits for a governor that is no more."""
    with ways.governed(BEGUN, SILENCE) as script:
        process = ways.start()
        wait_for(lambda: len(script.said) == 2)
        script.close()
        _, said = process.communicate(timeout=10)

    assert process.returncode == 1
    assert f"wheelmill: not compiled: the governor at {ways.socket} has gone" in said
    assert processes(str(ways.root)) == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_compiler_and_what_it_began(ways: Bench, number: signal.Signals) -> None:
    """SIGTERM and SIGINT to the launcher alone reach the compiler; its orphans end with it."""
    if ways.spec.cache is not None and number == signal.SIGINT:
        pytest.skip("ccache leaves SIGINT to a terminal, which sends it to all; so does ninja")
    ways.behave("sleep 82.5 & touch at-work; exec sleep 82.5")
    with ways.governed(BEGUN, GO, EXIT, EXIT) as script:
        process = ways.start()
        wait_for((ways.root / "at-work").exists)
        wait_for(lambda: len(processes("82.5")) >= 2)
        process.send_signal(number)
        assert process.wait(10) == 128 + number
        wait_for(lambda: not processes("82.5"))

    assert process.stderr is not None
    process.stderr.close()
    assert script.said[-1] == {"op": "end", "id": 7, "exit": 128 + number}


def test_a_killed_gate_takes_its_compiler_along(bench: Bench) -> None:
    """What the gate leaves behind is ended by what stands in the launcher's place."""
    bench.behave("touch at-work; exec sleep 83.5")
    with bench.governed(BEGUN, GO, EXIT) as script:
        process = bench.start()
        wait_for((bench.root / "at-work").exists)
        wait_for(lambda: bool(processes("83.5")))
        [compiler] = processes("83.5")
        gate = int(Path(f"/proc/{compiler}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(gate, signal.SIGKILL)
        _, said = process.communicate(timeout=10)

    assert process.returncode != 0, said
    assert processes("83.5") == {}
    assert script.operations == ["begin", "want", "end"]


def test_a_missing_compiler_is_named(ways: Bench) -> None:
    """Where the real compiler cannot be run, the line says which and why."""
    ways.compiler.unlink()
    if ways.spec.cache is not None:  # ccache looks for it first, and says so itself
        pytest.skip("the gate is not reached")
    with ways.governed(BEGUN, GO, EXIT, EXIT):
        status, said = ways.compile()

    assert status == 1
    assert said == (
        f"wheelmill: not compiled: cannot run {ways.compiler} (No such file or directory); "
        "start the build again with `wheelmill build`\n"
    )


def test_a_governor_that_does_not_answer(ways: Bench) -> None:
    """Nothing is compiled without one."""
    status, said = ways.compile()

    assert status == 1
    assert said == (
        f"wheelmill: not compiled: the governor at {ways.socket} does not answer (No such file or directory); "
        "start the build again with `wheelmill build`\n"
    )


# Compiling it


def test_by_hand_it_does_nothing(program: Path) -> None:
    """Outside of a build it ends at once, which is how a build tries it."""
    assert subprocess.run([program], env={}, check=False).returncode == 2


@pytest.mark.parametrize("script", ["exit 1", 'while [ "$1" != -o ]; do shift; done; echo x > "$2"; chmod +x "$2"'])
def test_a_compiler_that_cannot_make_it(tmp_path: Path, script: str) -> None:
    """Where gate.c cannot be compiled, or what comes of it does not run, there is none."""
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    compiler.chmod(0o755)

    assert compile_gate(tmp_path, compiler, SystemRunner(), tmp=tmp_path) is None


def test_the_same_program_twice(tmp_path: Path, program: Path) -> None:
    """Its bytes depend on the compiler alone, and a compiler without static libraries will do."""
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\ncase "$*" in *-static*) exit 1;; esac\nexec gcc "$@"\n', "utf-8")
    compiler.chmod(0o755)
    again = compile_gate(tmp_path, Path("/usr/bin/gcc"), SystemRunner(), tmp=tmp_path)
    assert again is not None
    assert again.read_bytes() == program.read_bytes()
    dynamic = compile_gate(tmp_path, compiler, SystemRunner(), tmp=tmp_path)
    assert dynamic is not None
    assert dynamic.read_bytes() != program.read_bytes()
