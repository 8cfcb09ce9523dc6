"""Builds shut in for real: the same bytes from anywhere, and nothing gets out."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from wheelmill._process import SystemRunner, descendants
from wheelmill.fetch import tree_digest
from wheelmill.sandbox import Rung, Sandbox, Share, attempts, probe, read_layout, system

ROOT = Path(__file__).parents[2]
PYTHON = Path(sys.executable)
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    """Leave these tests out where the kernel bars namespaces; builds there say so."""
    rung = probe(SystemRunner(), PYTHON)
    if rung.name != "namespaces":
        pytest.skip(f"no namespaces here: {rung.reason}")


def shut(folder: Path, *shares: Share) -> Sandbox:
    """Give a sandbox with a writable folder /wheelmill/tmp."""
    own = Share(outside=folder / "tmp", inside="/wheelmill/tmp", writable=True)
    own.outside.mkdir(exist_ok=True)
    (folder / "box").mkdir(exist_ok=True)
    return Sandbox(
        rung=Rung(name="namespaces"),
        python=PYTHON,
        folder=folder / "box",
        system=system(read_layout()),
        shares=(own, *shares),
    )


def said(box: Sandbox, script: str) -> "subprocess.CompletedProcess[str]":
    """Run a shell script inside."""
    argv = box.enclose(["/bin/sh", "-c", script], cwd=box.shares[0].outside)
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


# the launcher ----------------------------------------------------------------------------------------


def test_inside_everybody_is_one_user_without_power(tmp_path: Path) -> None:
    """Root too: no capability, no way to get one, a host name and process ids that are the same everywhere."""
    done = said(shut(tmp_path), "id -u; hostname; echo $$; umask; grep -E 'CapBnd|NoNewPrivs' /proc/self/status; pwd")
    assert done.stderr == ""
    words = done.stdout.split()
    assert words == ["1000", "wheelmill", "2", "0022", "CapBnd:", "0" * 16, "NoNewPrivs:", "1", "/wheelmill/tmp"]


def test_what_is_made_inside_is_the_users_own_outside(tmp_path: Path) -> None:
    """Files keep their owner and the fixed umask."""
    old = os.umask(0o077)
    said(shut(tmp_path), "mkdir d; touch d/f")
    os.umask(old)
    status = (tmp_path / "tmp/d/f").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (os.geteuid(), os.getegid(), 0o644)


@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)])
def test_the_status_is_passed_on(tmp_path: Path, script: str, status: int) -> None:
    """As a shell would say it."""
    assert said(shut(tmp_path), script).returncode == status


def test_the_machines_own_files_are_not_there(tmp_path: Path) -> None:
    """No home, no /sys, nothing in /usr/local; the root has what is declared."""
    done = said(shut(tmp_path), "ls / /usr/local /wheelmill; cat /etc/passwd | wc -l")
    top = {"bin", "dev", "etc", "lib", "proc", "tmp", "usr", "var", "wheelmill"}
    assert top <= set(done.stdout.split())
    assert not {"root", "home", "sys", "work", "opt"} & set(done.stdout.split())
    assert "/usr/local:\n\n" in done.stdout


def test_a_question_for_a_name_is_written_down(tmp_path: Path) -> None:
    """Who asked, and for what; the answer is that there is no such name."""
    box = shut(tmp_path)
    done = said(box, "getent hosts files.example.org; getent hosts localhost")
    assert done.stdout.split()[1:] == ["localhost", "wheelmill"]
    [attempt] = attempts(box.journal)
    assert (attempt.kind, attempt.program, attempt.subject) == (
        "name",
        "getent hosts files.example.org",
        "files.example.org",
    )


def test_who_stays_behind_is_ended_and_written_down(tmp_path: Path) -> None:
    """A daemon does not outlive the command."""
    box = shut(tmp_path)
    done = said(box, "setsid sleep 4321 >/dev/null 2>&1 & echo $!")
    assert done.returncode == 0
    [attempt] = attempts(box.journal)
    assert (attempt.kind, attempt.program) == ("left", "sleep 4321")
    assert not running("sleep\x004321")


def test_a_sandbox_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    """One line, status 125."""
    box = shut(tmp_path, Share(outside=tmp_path / "missing", inside="/wheelmill/missing"))
    done = said(box, "true")
    assert done.returncode == 125
    assert done.stderr.startswith("wheelmill sandbox: mount /old")
    assert done.stderr.endswith("No such file or directory (errno 2)\n")


def running(text: str) -> list[int]:
    """Every living process with this in its command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if entry.name.isdigit() and int(entry.name) != os.getpid() and text in line:
            found.append(int(entry.name))
    return found


def test_nothing_survives_a_kill_of_whoever_started_it(tmp_path: Path) -> None:
    """SIGKILL of our own process ends the whole tree, new sessions and daemons included."""
    box = shut(tmp_path)
    argv = box.enclose(["/bin/sh", "-c", "setsid sleep 6543 & (setsid sleep 6543 &); sleep 6543"], cwd=tmp_path / "tmp")
    code = (
        "import subprocess, sys; subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, start_new_session=True).wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code, *argv]) as starter:
        wait_until(lambda: len(running("sleep\x006543")) == 3)
        starter.kill()
    wait_until(lambda: not running("sleep\x006543"), seconds=2)


def wait_until(true: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# whole builds ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Bench:
    cache: Path
    house: Path
    recipes: Path = ROOT / "tests" / "recipes"

    def argv(self, *words: str) -> list[str]:
        common = ["--cache", str(self.cache), "--wheelhouse", str(self.house), "--recipes", str(self.recipes)]
        return [sys.executable, "-m", "wheelmill", *words, "--stack", "cu130", *common]

    def run(self, *words: str, umask: int = 0o022, **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.argv(*words),
            cwd=ROOT,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
            umask=umask,
        )


def built(bench: Bench, *words: str, umask: int = 0o022, **env: str) -> dict[str, object]:
    """Build the extension and give what `--json` says."""
    done = bench.run("build", "torch-cuda-ext", "--json", *words, umask=umask, **env)
    assert done.returncode == 0, done.stderr
    [entry] = json.loads(done.stdout)["builds"]
    assert entry["status"] == "built"
    assert isinstance(entry, dict)
    return entry


@pytest.mark.network
def test_the_same_bytes_from_anywhere(test_cache: Path, tmp_path: Path) -> None:
    """Another cache in another folder, other jobs, umask, locale and zone, objects cached or not: one sha256."""
    shutil.rmtree(test_cache / "line" / "objects", ignore_errors=True)
    first = built(Bench(cache=test_cache / "line", house=tmp_path / "a"))
    elsewhere = Bench(cache=tmp_path / "quite" / "another_place", house=tmp_path / "b")
    second = built(elsewhere, "--max-jobs", "1", umask=0o077, TZ="Asia/Tokyo", LC_ALL="C", HOME=str(tmp_path))
    warm = built(Bench(cache=elsewhere.cache, house=tmp_path / "c"))
    assert (second["cache_hits"], warm["cache_hits"]) == (0, 3)
    assert first["sha256"] == second["sha256"] == warm["sha256"]
    assert first["realisation"] == second["realisation"]
    record = json.loads(next((tmp_path / "a").glob("*.build.json")).read_text())
    assert record["found"]["sandbox"] == "namespaces"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Listen on this machine's loopback, where a build must not get."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server


def hostile(tmp_path: Path, values: dict[str, str]) -> Path:
    """Copy the hostile project with the paths that it is to try."""
    project = tmp_path / "projects" / "hostile"
    shutil.copytree(ROOT / "tests" / "projects" / "hostile", project)
    before = tree_digest(project)
    text = (project / "setup.py").read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    (project / "setup.py").write_text(text)
    recipe = (ROOT / "tests" / "recipes" / "hostile.toml").read_text()
    assert before in recipe
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "hostile.toml").write_text(recipe.replace(before, tree_digest(project)))
    return tmp_path / "recipes"


@pytest.mark.network
def test_nothing_gets_out(test_cache: Path, tmp_path: Path, listener: socket.socket) -> None:
    """A setup.py that tries all it can gets nowhere, and the report names what it asked the network for."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    token = f"hostile-{os.getpid()}"
    values = {"OUTSIDE": str(outside), "PORT": str(listener.getsockname()[1]), "TOKEN": token}
    bench = Bench(cache=test_cache / "line", house=tmp_path / "house", recipes=hostile(tmp_path, values))
    done = bench.run("build", "hostile", "--json")
    assert done.returncode == 1, done.stderr
    [entry] = json.loads(done.stdout)["builds"]
    assert entry["error"]["kind"] == "network-at-build"
    message = entry["error"]["message"]
    assert message.startswith("the build asked the network for files.example.org, and the network is cut\n")
    assert "the build tried to reach an address by number; the network is cut, so it got nowhere" in message
    assert f"the build left a process behind (python -c import time; time.sleep(600) {token})" in message
    log = Path(next(line.split(": ", 1)[1] for line in message.splitlines() if line.startswith("  log: ")))
    tried = dict(re.findall(r"^ATTEMPT ([^:]+): (.*)$", log.read_text(), re.MULTILINE))
    assert tried.pop("ids") == "1000 1000 True"
    assert not {"HOSTNAME", "USER", "PWD", "PYTHONPATH"} & set(tried.pop("environment").split())
    assert len(tried) == 24
    assert {name: said for name, said in tried.items() if not said.startswith("failed with ")} == {}
    assert [path.name for path in outside.iterdir()] == ["secret"]
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert not running(token)
    assert not list(bench.house.glob("*"))


@pytest.mark.network
def test_a_killed_build_leaves_nothing_and_goes_on(test_cache: Path, tmp_path: Path) -> None:
    """SIGKILL of wheelmill itself: no compiler is left, and the next start builds the same wheel."""
    bench = Bench(cache=test_cache / "line", house=tmp_path / "house")
    shutil.rmtree(bench.cache / "objects", ignore_errors=True)
    with subprocess.Popen(
        bench.argv("build", "torch-cuda-ext"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as build:
        wait_until(lambda: any(name_of(pid) == "cc1plus" for pid in descendants(build.pid)), seconds=120)
        family = descendants(build.pid)
        build.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in family), seconds=3)
    assert built(bench)["sha256"]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_an_address_by_number_is_told(tmp_path: Path) -> None:
    """No resolver sees it and no packet leaves: the kernel's counter says that it happened."""
    script = """if True:
        import socket
        for number in (1, 2):
            try:
                socket.create_connection((f"192.0.2.{number}", 443), 2)
            except OSError as error:
                print(error.errno)
    """
    prefix = PYTHON.resolve().parent.parent
    box = shut(tmp_path, Share(outside=prefix, inside=str(prefix)))
    argv = box.enclose([str(PYTHON.resolve()), "-c", script], cwd=box.shares[0].outside)
    done = subprocess.run(argv, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["101", "101"]
    assert [(each.kind, each.subject) for each in attempts(box.journal)] == [("address", "addresses, 2 times")]
