"""`wheelmill diagnose` as a person runs it, and real compilers that are made to fail."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"

pytestmark = pytest.mark.integration


def diagnose(*words: str, **options: object) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "wheelmill", "diagnose", *words]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, **options)


def test_json_and_status(tmp_path: Path) -> None:
    """One document on stdout; status 1 for a failure, 0 for a success, 130 for an interruption."""
    done = diagnose(str(CASES / "network-at-build.log"), "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["schema"], document["kind"], document["line"]) == (1, 1, "network-at-build", 5)
    assert {"evidence", "translation_unit", "advice"} <= set(document)
    success = diagnose(str(CASES / "ok-noisy.log"), "--json")
    assert (success.returncode, json.loads(success.stdout)["kind"]) == (0, None)
    assert diagnose(str(CASES / "interrupted.log")).returncode == 130


def test_stdin() -> None:
    """A dash reads what another program says."""
    done = diagnose("-", input=(CASES / "arch-unsupported.log").read_bytes())
    assert done.returncode == 1
    assert done.stdout.startswith(b"unsupported-arch: /opt/cuda-12.6/bin/nvcc cannot make compute_100")
    assert diagnose("-", input=b"").stdout.startswith(b"unknown: the log is empty")


def test_a_log_cannot_drive_the_terminal() -> None:
    """Control characters are shown, not obeyed."""
    done = diagnose("-", input=b"error: \x1b[2J bad \x07\x9b5n thing\x1b]0;owned\x07\n")
    assert not set(done.stdout) & {0x1B, 0x07, 0x9B}
    assert b"bad \\x07" in done.stdout


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: None, "cannot read {path}: No such file or directory"),
        (lambda path: path.mkdir(), "{path} is a folder, not a log"),
        (lambda path: (path.mkdir(), (path / "a.log").touch()), "`wheelmill diagnose {path}/a.log`"),
    ],
)
def test_what_is_no_log(tmp_path: Path, make: object, message: str) -> None:
    """A missing file and a folder: status 2, and what to give instead."""
    path = tmp_path / "x"
    make(path)  # type: ignore[operator]
    done = diagnose(str(path))
    assert done.returncode == 2
    assert message.format(path=path) in done.stderr.decode()


def test_one_log_at_a_time() -> None:
    """None or two are a mistake."""
    for words in ((), ("a.log", "b.log")):
        done = diagnose(*words)
        assert done.returncode == 2
        assert b"diagnose reads one log" in done.stderr


def test_a_large_log_takes_little() -> None:
    """200 MB, the failing unit in the middle: the right verdict in 2 s of CPU and 100 MB (see benchmarks)."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "diagnose.py")], check=False, capture_output=True, text=True
    )
    used = [word for word in done.stdout.splitlines()[-1].split() if word.replace(".", "").strip("(").isdigit()]
    _, _, cpu, peak = (float(word.strip("(")) for word in used)
    assert "out-of-memory: cicc was killed by signal 9" in done.stdout
    assert cpu < 2
    assert peak < 100


HEAVY = """\
template<int N> struct B { static constexpr unsigned long f(unsigned long x) { return B<N-1>::f(x+1) + B<N-1>::f(x+2); } };
template<> struct B<0> { static constexpr unsigned long f(unsigned long x) { return x; } };
constexpr unsigned long value = B<24>::f(3);
"""


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGKILL, "out-of-memory"), (signal.SIGSEGV, "compiler-crash")])
def test_a_compiler_that_is_killed(tmp_path: Path, number: int, kind: str) -> None:
    """What the real g++ says when its cc1plus ends by a signal."""
    (tmp_path / "heavy.cpp").write_text(HEAVY)
    driver = subprocess.Popen(
        ["g++", "-fconstexpr-ops-limit=99999999999", "-c", "heavy.cpp", "-o", "heavy.o"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
    )
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children")
    until = time.monotonic() + 30
    while not (child := children.read_text().split()) and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.3)  # it is cc1plus by now, not the fork of g++
    os.kill(int(child[0]), number)
    _, said = driver.communicate(timeout=60)
    done = diagnose("-", "--json", input=b"g++ -c heavy.cpp -o heavy.o\n" + said)
    document = json.loads(done.stdout)
    assert (document["kind"], document["translation_unit"]) == (kind, "heavy.cpp")
    assert ("fewer jobs" in document["advice"]) == (kind == "out-of-memory")


def test_a_compiler_without_memory(tmp_path: Path) -> None:
    """What the real g++ says when it gets no more memory."""
    (tmp_path / "heavy.cpp").write_text(HEAVY)
    said = subprocess.run(
        ["g++", "-c", "heavy.cpp", "-o", "heavy.o"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (60_000_000, 60_000_000)),
    ).stderr
    assert json.loads(diagnose("-", "--json", input=said).stdout)["kind"] == "out-of-memory"


def test_the_real_nvcc_on_archs_it_cannot_make(toolkit_root: Path, tmp_path: Path) -> None:
    """An old architecture and one that never was."""
    (tmp_path / "a.cu").write_text("__global__ void k() {}\n")
    for arch, words in (("37", "nvcc older than 12.0"), ("200", "cannot make compute_200")):
        command = [str(toolkit_root / "bin" / "nvcc"), f"-gencode=arch=compute_{arch},code=sm_{arch}", "-c", "a.cu"]
        said = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).stderr
        found = json.loads(diagnose("-", "--json", input=" ".join(command).encode() + b"\n" + said).stdout)
        assert (found["kind"], found["translation_unit"]) == ("unsupported-arch", "a.cu")
        assert words in found["cause"]


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare")
def test_git_without_a_network() -> None:
    """What the real git says where the network is cut."""
    command = ["unshare", "--user", "--map-root-user", "--net", "git", "clone", "https://github.com/nvidia/cutlass.git"]
    said = subprocess.run(command, check=False, capture_output=True, cwd="/tmp").stderr
    if b"unshare" in said:
        pytest.skip("no user namespaces")
    found = json.loads(diagnose("-", "--json", input=said).stdout)
    assert found["kind"] == "network-at-build"
    assert "VLLM_CUTLASS_SRC_DIR" in found["advice"]
