"""The life of a build: how it ends, how it does not, who follows it, what the next start goes on with."""

import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from wheelmill._process import descendants
from wheelmill.fetch import tree_digest
from wheelmill.following import living, start_of

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.integration, pytest.mark.network]

UNITS, SECONDS = 8, 3
NO_NAMESPACES = (
    "import sys; from wheelmill import pipeline; from wheelmill.sandbox import Rung; "
    "pipeline.probe = lambda *_, **__: Rung(name='none', reason='as asked by a test'); "
    "from wheelmill.__main__ import main; main()"
)
"""wheelmill where the kernel bars namespaces."""
PARENT = 'python=$1; shift; "$python" -m wheelmill "$@" & echo $! >"$PIDFILE"; wait'
"""A process between us and wheelmill, as nox is."""


def wait_until(true: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def named(token: str) -> list[int]:
    """List the living processes that have a word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and token.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@dataclass(kw_only=True)
class Front:
    """A started wheelmill, with its output in a file, a pipe or a terminal."""

    process: "subprocess.Popen[bytes]"
    master: int = -1
    pid: int = 0
    heard: bytes = b""
    family: set[tuple[int, int]] = field(default_factory=set)

    def know(self) -> None:
        """Remember every process of the build."""
        pids = [self.pid or self.process.pid, *descendants(self.pid or self.process.pid)]
        self.family = {(pid, start) for pid in pids if (start := start_of(pid)) is not None}
        assert len(self.family) > 5

    def end(self, seconds: float = 20) -> tuple[int, str]:
        """Wait for the end; give status and stderr."""
        _, said = self.process.communicate(timeout=seconds)
        return self.process.returncode, (said or b"").decode()


@dataclass(kw_only=True)
class Yard:
    """A place for builds of one slow package, with a roster of its own."""

    root: Path
    cache: Path
    token: str
    fronts: list[Front] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("NOX_")}
        return {**env, "XDG_RUNTIME_DIR": str(self.root / "run"), "PYTHONUNBUFFERED": "1"}

    def argv(self, *words: str, cache: Path | None = None, house: str = "house") -> list[str]:
        common = ["--cache", str(cache or self.cache), "--wheelhouse", str(self.root / house)]
        recipes = () if "--recipes" in words else ("--recipes", str(self.root / "recipes"))
        return [*words, "--stack", "cu130", *common, *recipes]

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-m", "wheelmill", *self.argv(*words)]
        return subprocess.run(argv, cwd=ROOT, env=self.env, capture_output=True, text=True, check=False, timeout=60)

    def start(self, *words: str, program: tuple[str, ...] = ("-m", "wheelmill"), **more: object) -> Front:
        argv = [sys.executable, *program, *self.argv(*words, **more)]
        return self.start_program(argv)

    def start_program(self, argv: list[str], **env: str) -> Front:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(argv, cwd=ROOT, env={**self.env, **env}, stdin=subprocess.DEVNULL, **pipes)
        return self.kept(Front(process=process, pid=process.pid))

    def start_in_terminal(self, argv: list[str], **env: str) -> Front:
        master, slave = pty.openpty()
        process = subprocess.Popen(
            argv,
            cwd=ROOT,
            env={**self.env, **env},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one thread
        )
        os.close(slave)
        os.set_blocking(master, False)
        return self.kept(Front(process=process, pid=process.pid, master=master))

    def kept(self, front: Front) -> Front:
        self.fronts.append(front)
        return front

    def builds(self) -> list[dict[str, object]]:
        return json.loads(self.run("ps", "--json").stdout)["builds"]

    def log(self) -> str:
        texts = [path.read_text() for path in self.cache.glob("builds/*/build.log")]
        return next((text for text in texts if self.token in text), "")

    def at_work(self, front: Front, done: int = 0) -> None:
        """Wait until compiles run, and know every process of the build."""

        def working() -> bool:
            if front.master >= 0:
                with contextlib.suppress(BlockingIOError):
                    front.heard += os.read(front.master, 1 << 16)
            assert front.process.poll() is None, front.process.communicate()
            names = {name_of(pid) for pid in descendants(front.pid)}
            return {"ninja", "sleep"} <= names and self.log().count(f"{UNITS}] g++") >= done

        wait_until(working)
        front.know()

    def nothing_is_left(self, front: Front, seconds: float = 2) -> None:
        wait_until(lambda: not living(front.family) and not named(self.token), seconds)


def reads(front: Front, name: str) -> bool:
    """Say whether a process has a file of this name open."""
    with contextlib.suppress(OSError):
        return any(Path(link.readlink()).name == name for link in Path(f"/proc/{front.pid}/fd").iterdir())
    return False


def resumed(said: str) -> int:
    """Read how many objects a start goes on with."""
    found = re.search(r"source tree: goes on with (\d+) finished objects? of an earlier start", said)
    assert found, said
    return int(found[1])


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@pytest.fixture
def yard(test_cache: Path, tmp_path: Path) -> Iterator[Yard]:
    """Make the slow package, another one for each test; at the end nothing of it runs."""
    token = f"slow-{os.getpid()}-{tmp_path.name}"
    project = tmp_path / "projects" / "slow"
    shutil.copytree(ROOT / "tests" / "projects" / "slow", project)
    setup = project / "setup.py"
    text = setup.read_text().replace("@UNITS@", str(UNITS)).replace("@SECONDS@", str(SECONDS))
    setup.write_text(text.replace("@TOKEN@", token))
    (tmp_path / "recipes").mkdir()
    recipe = (ROOT / "tests" / "recipes" / "slow.toml").read_text()
    before = tree_digest(ROOT / "tests" / "projects" / "slow")
    assert before in recipe
    (tmp_path / "recipes" / "slow.toml").write_text(recipe.replace(before, tree_digest(project)))
    (tmp_path / "run").mkdir(mode=0o700)
    made = Yard(root=tmp_path, cache=test_cache / "line", token=token)
    yield made
    for front in made.fronts:
        for pid, _ in living(front.family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        front.process.kill()
        front.process.communicate()
        if front.master >= 0:
            with contextlib.suppress(OSError):
                os.close(front.master)
    for place in made.cache.glob("builds/*"):
        if (place / "build.log").is_file() and token in (place / "build.log").read_text():
            shutil.rmtree(place)


# it ends


def test_ctrl_c_in_a_terminal(yard: Yard) -> None:
    """Status 130 within two seconds, no process is left, and the next start goes on with what was finished."""
    front = yard.start_in_terminal([sys.executable, "-m", "wheelmill", *yard.argv("build", "slow")])
    yard.at_work(front, done=3)
    started = time.monotonic()
    os.write(front.master, b"\x03")
    assert front.process.wait(timeout=60) == 130
    assert time.monotonic() - started < 3
    yard.nothing_is_left(front)
    again = yard.start("build", "slow")
    status, said = again.end(60)
    assert status == 1
    finished = resumed(said)
    assert 2 <= finished < UNITS
    assert "the slow build has ended" in said
    assert f"[{UNITS - finished}/{UNITS - finished}] g++" in yard.log()
    again_at_end = yard.start("build", "slow").end(60)[1]
    assert resumed(again_at_end) == UNITS


@pytest.mark.parametrize("program", [("-m", "wheelmill"), ("-c", NO_NAMESPACES)], ids=["namespaces", "none"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals(yard: Yard, number: signal.Signals, program: tuple[str, ...]) -> None:
    """SIGTERM is an orderly end; SIGKILL leaves nothing either, daemons in their own sessions included."""
    front = yard.start("build", "slow", program=program)
    yard.at_work(front)
    assert len(named(yard.token)) >= 3
    front.process.send_signal(number)
    status, said = front.end()
    yard.nothing_is_left(front)
    assert status == (130 if number == signal.SIGTERM else -9)
    assert ("stopped" in said or "interrupted" in said) == (number == signal.SIGTERM)
    assert yard.builds() == []
    assert not list((yard.root / "run" / "wheelmill").glob("*.lock"))


def test_no_detach_ends_with_its_reader(yard: Yard) -> None:
    """A broken pipe is the end of a build that was asked not to outlive it."""
    front = yard.start("build", "slow", "--no-detach")
    yard.at_work(front)
    front.process.stdout.close()
    front.process.stderr.close()
    assert front.process.wait(timeout=60) == 130
    yard.nothing_is_left(front)


def test_no_detach_ends_with_its_terminal(yard: Yard) -> None:
    """So is a lost terminal."""
    argv = [sys.executable, "-m", "wheelmill", *yard.argv("build", "slow", "--no-detach")]
    front = yard.start_in_terminal(argv)
    yard.at_work(front)
    os.close(front.master)
    front.master = -1
    assert front.process.wait(timeout=60) == 130
    yard.nothing_is_left(front)


# it does not end


@pytest.mark.parametrize("terminal", [True, False])
def test_without_listeners_a_build_goes_on(yard: Yard, *, terminal: bool) -> None:
    """`ps` shows it, `log --follow` ends with it, and it ends as it would have."""
    words = yard.argv("build", "slow")
    if terminal:
        front = yard.start_in_terminal([sys.executable, "-m", "wheelmill", *words])
    else:
        front = yard.start("build", "slow")
    yard.at_work(front)
    if terminal:
        os.close(front.master)
        front.master = -1
    else:
        front.process.stdout.close()
        front.process.stderr.close()
    wait_until(lambda: yard.builds()[0]["detached"], 10)
    [build] = yard.builds()
    assert (build["name"], build["pid"], build["running"]) == ("slow", front.pid, 2)
    assert "its terminal is gone" in yard.run("ps").stdout
    log = yard.run("log", "--follow")
    assert "the slow build has ended" in log.stdout
    assert front.process.wait(timeout=60) == 1
    yard.nothing_is_left(front)
    assert "the slow build has ended" in yard.run("log", "slow").stdout


@pytest.mark.parametrize("lost", [False, True])
def test_under_nox(yard: Yard, *, lost: bool) -> None:
    """A killed nox ends the build; one that went with the terminal does not."""
    pidfile = yard.root / "pid"
    argv = ["/bin/sh", "-c", PARENT, "nox", sys.executable, *yard.argv("build", "slow")]
    env = {"NOX_CURRENT_SESSION": "build", "PIDFILE": str(pidfile)}
    front = yard.start_in_terminal(argv, **env) if lost else yard.start_program(argv, **env)
    wait_until(lambda: pidfile.is_file() and pidfile.read_text().strip(), 10)
    front.pid = int(pidfile.read_text())
    yard.at_work(front)
    if lost:
        os.close(front.master)
        front.master = -1
    front.process.kill()
    front.process.wait()
    if lost:
        time.sleep(3)
        assert yard.builds()[0]["detached"]
        assert yard.run("stop").returncode == 0
    yard.nothing_is_left(front, seconds=8)


def test_stop(yard: Yard) -> None:
    """It names what it ends, waits until the tree is gone, and says 3 where nothing runs."""
    front = yard.start("build", "slow")
    yard.at_work(front)
    done = yard.run("stop", "other")
    assert (done.returncode, "no build of other runs here; running: slow 1.0.0" in done.stderr) == (3, True)
    done = yard.run("stop", "slow")
    assert done.returncode == 0, done.stderr
    assert living(front.family) == set()
    assert named(yard.token) == []
    assert "ended with" in done.stderr
    assert front.end()[0] == 130
    done = yard.run("stop")
    assert (done.returncode, "nothing is being built" in done.stderr) == (3, True)


# a second start


def test_a_second_start_follows_the_first(yard: Yard) -> None:
    """Its progress, its failure, its status; a third one leaves without harm."""
    front = yard.start("build", "slow")
    yard.at_work(front)
    second, third = yard.start("build", "slow"), yard.start("build", "slow")
    wait_until(lambda: reads(third, "told.log") and reads(second, "told.log"), 30)
    third.process.send_signal(signal.SIGINT)
    status, said = third.end()
    assert status == 130
    assert "left the build of slow: it goes on" in said
    status, first_said = front.end(60)
    assert status == 1
    status, said = second.end(10)
    assert status == 1
    assert f"is being built by process {front.pid} since" in said
    assert f"[{UNITS}/{UNITS}] g++ build/unit" in said
    assert said[said.index("error: ") :] == first_said[first_said.index("error: ") :]
    assert yard.log().count("TOKEN") == 1
    yard.nothing_is_left(front)


def test_a_followers_wheel_comes_into_its_own_wheelhouse(yard: Yard) -> None:
    """Two terminals, two wheelhouses, one build: both have the wheel, with record, log and provenance."""
    common = ("--recipes", str(ROOT / "tests" / "recipes"))
    first = yard.start("build", "torch-cuda-ext", *common, house="first")
    wait_until(yard.builds)
    second = yard.start("build", "torch-cuda-ext", *common, house="second")
    out, said = second.process.communicate(timeout=180)
    assert second.process.returncode == 0, said
    assert first.end(5)[0] == 0
    assert f"is being built by process {first.pid} since" in said.decode()
    wheel = Path(out.decode().strip())
    assert wheel.parent == yard.root / "second"
    names = [sorted(path.name for path in (yard.root / house).glob("*.whl*")) for house in ("first", "second")]
    assert names[0] == names[1]
    assert len(names[0]) >= 3
    assert (yard.root / "second" / "simple").is_dir()


@pytest.mark.parametrize("stubborn", [False, True])
def test_takeover(yard: Yard, *, stubborn: bool) -> None:
    """The first tree is gone before the second begins, which goes on with its objects; also where it hangs."""
    front = yard.start("build", "slow")
    yard.at_work(front, done=3)
    if stubborn:
        front.process.send_signal(signal.SIGSTOP)
    second = yard.start("build", "slow", "--takeover")
    wait_until(lambda: not living(front.family), 40)
    assert front.end()[0] == (-9 if stubborn else 130)
    status, said = second.end(60)
    assert status == 1
    assert f"{'killed' if stubborn else 'ended'} with" in said
    assert 2 <= resumed(said) < UNITS
    assert named(yard.token) == []


def test_another_cache_is_known(yard: Yard, tmp_path: Path) -> None:
    """Both go on, each with its own objects; the second says so."""
    front = yard.start("build", "slow")
    yard.at_work(front)
    other = tmp_path / "other"
    other.mkdir()
    for name in ("environments", "store", "toolkits"):
        (other / name).symlink_to(yard.cache / name)
    second = yard.start("build", "slow", cache=other)
    wait_until(lambda: len(yard.builds()) == 2)
    status, said = second.end(60)
    assert f"process {front.pid} builds this very derivation in another cache, {yard.cache}, since" in said
    assert (status, front.end(60)[0]) == (1, 1)


def test_after_a_reboot_the_tree_is_made_anew(yard: Yard) -> None:
    """Another boot id: what was written last may never have reached the disk."""
    assert yard.start("build", "slow").end(60)[0] == 1
    [place] = [path.parent for path in yard.cache.glob("builds/*/build.log") if yard.token in path.read_text()]
    (place / "boot-id").write_text("another\n")
    (place / "source" / "build" / "unit0.o").write_bytes(b"")
    said = yard.start("build", "slow").end(60)[1]
    assert f"its tree is made anew, and {UNITS} finished objects can come from the object cache" in said
    assert yard.log().count(f"[{UNITS}/{UNITS}] g++") == 2
