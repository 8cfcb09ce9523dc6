"""Diagnosis: the first cause, by rules that are data; real logs and what each must and must not say."""

import random
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmill import excerpt
from wheelmill._console import REPORT_LINES
from wheelmill.diagnosis import SHOWN, Diagnosis, diagnose
from wheelmill.remedies import DERIVED, PLACEHOLDER, Surroundings
from wheelmill.rulebook import rulebook

CASES = Path(__file__).parents[1] / "cases"
EXPECTED = tomllib.loads((CASES / "expected.toml").read_text("utf-8"))
HERE = Surroundings(
    toolkits=(("/usr/local/cuda-13.0", "13.0"), ("/usr/local/cuda-12.9", "12.9"), ("/usr/local/cuda-12.8", "12.8")),
    compilers=(("/usr/bin/gcc", "15.1.0"), ("/usr/bin/gcc-12", "12.2.0"), ("/usr/bin/gcc-13", "13.3.0")),
    glibc="2.31",
    requirements={"flash-attn": ("torch", "setuptools", "wheel", "packaging", "psutil", "ninja"), "torch-scatter": ()},
)
KINDS = """
out-of-memory compiler-crash unsupported-arch cuda-mismatch torch-cpu-only missing-module missing-header
missing-library missing-source network-at-build hash-mismatch abi-mismatch glibc-too-old host-compiler code-too-large
disk-full process-limit interrupted tool-missing version-mismatch patch-failed unknown
""".split()  # noqa: SIM905 - as in the design
COMMAND = (
    "[{n}/400] /wheelmill/toolkit/bin/nvcc -I/wheelmill/source/csrc/flash_attn -Werror all-warnings "
    "-c /src/csrc/unit{n}.cu -o /b/unit{n}.o -O3 -gencode arch=compute_100,code=sm_100"
)
WARNING = 'c10/core/Error.h(137): warning #20012-D: __device__ annotation is ignored on a function("operator=")'
PTXAS = "ptxas info    : Used 139 registers, used 1 barriers, 528 bytes cmem[0]"


def ask(text: str | bytes, here: Surroundings = HERE) -> Diagnosis:
    return diagnose([text.encode() if isinstance(text, str) else text], surroundings=lambda: here)


def noise(lines: int, *, upto: int = 398) -> str:
    """Give lines of a build that goes well; its progress stops before the end."""
    made = [COMMAND.format(n=min(upto, 1 + number // 40)) if number % 40 == 0 else (WARNING, PTXAS)[number % 2]
            for number in range(lines)]  # fmt: skip
    return "".join(f"{line}\n" for line in made)


# cases -----------------------------------------------------------------------------------------------


def test_every_case_has_its_verdict() -> None:
    """Each log has an entry, each entry a log; there are the seventeen that we were given and thirty of our own."""
    logs = {path.stem for path in CASES.glob("*.log")}
    assert logs == set(EXPECTED)
    assert len(logs) >= 17 + 30


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_case(name: str) -> None:
    """Kind, unit, what the report must say and must not say; at most 25 lines."""
    expected = EXPECTED[name]
    found = ask((CASES / f"{name}.log").read_bytes())
    report = "\n".join(found.report())
    assert found.kind == (expected["kind"] or None), report
    assert (found.translation_unit or "") == expected.get("unit", ""), report
    for words in expected.get("says", []):
        assert words in report
    for words in expected.get("never", []):
        assert words not in report
    assert len(found.report()) <= REPORT_LINES
    if found.kind is not None:
        assert found.report()[0].startswith(f"{found.kind}: ")
        assert found.line is not None
    assert "{" not in found.cause + found.advice


@pytest.mark.parametrize(
    "name", sorted(name for name, each in EXPECTED.items() if each["kind"] and not each.get("end"))
)
def test_a_case_in_the_middle_of_a_large_log(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same verdict where much more than what is read whole stands before and after (small, for speed)."""
    monkeypatch.setattr(excerpt, "WHOLE", 1 << 13)
    log = (CASES / f"{name}.log").read_text("utf-8", "replace")
    alone = ask(log)
    amid = ask(noise(400) + log.rstrip("\n") + "\n" + noise(20))
    assert (amid.kind, amid.evidence, amid.line) == (alone.kind, alone.evidence, 400 + (alone.line or 0))
    if "FAILED: " in log:  # ninja tells of a failure beside it, not only at the end
        far = ask(noise(400) + log.rstrip("\n") + "\n" + noise(400))
        assert (far.kind, far.evidence, far.line) == (alone.kind, alone.evidence, amid.line)


# the order of causes ---------------------------------------------------------------------------------


def test_a_fatal_error_on_unit_5_of_73_followed_by_normal_lines() -> None:
    """What failed is shown, not what came last."""
    log = (
        "[5/73] nvcc -c a/bwd.cu -o bwd.o\nFAILED: bwd.o \nnvcc -c a/bwd.cu -o bwd.o\n"
        "a/bwd.h:3:10: fatal error: cusparse.h: No such file or directory\ncompilation terminated.\n"
    ) + "".join(f"[{n}/73] nvcc -c a/u{n}.cu -o u{n}.o\n" for n in range(6, 66))
    found = ask(log + "ninja: build stopped: subcommand failed.\n")
    assert (found.kind, found.line, found.translation_unit) == ("missing-header", 4, "a/bwd.cu")


@pytest.mark.parametrize(
    "line",
    [
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "c++: fatal error: Killed signal terminated program cc1plus",
        "c++: internal compiler error: Killed (program cc1plus)",
        "Killed",
        "/bin/sh: line 1:  4711 Killed                  nvcc -c a.cu",
        "FAILED: [code=137] a.o",
        "make: *** [Makefile:5: a.o] Killed",
        "make[2]: *** [CMakeFiles/x.dir/build.make:76: a.o] Error 137",
        "subprocess.CalledProcessError: Command '['ninja', '-v']' died with <Signals.SIGKILL: 9>.",
        "The command '/bin/sh -c pip wheel .' returned a non-zero code: 137",
        "error: command '/opt/cuda/bin/nvcc' failed with exit code 137",
        "error: command '/opt/cuda/bin/nvcc' failed with exit code -9",
        "nvcc was terminated: signal 9 [Killed]",
        "ptxas died of signal 9",
        "exit status 137",
        "Process completed with exit code 137.",
        "[123.4] Out of memory: Killed process 4711 (cicc) total-vm:9000000kB",
        "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes",
        "virtual memory exhausted: Cannot allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "LLVM ERROR: out of memory",
    ],
)
def test_every_spelling_of_signal_9_is_memory(line: str) -> None:
    """Whoever killed it, in whichever words."""
    found = ask(f"[2/9] nvcc -c csrc/a.cu -o a.o\n{line}\nerror: command 'nvcc' failed with exit code 255\n")
    assert found.kind == "out-of-memory"
    assert found.line == 2
    assert "fewer jobs" in found.advice


@pytest.mark.parametrize(
    "line",
    [
        "nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)",
        "nvcc error   : 'ptxas' died due to signal 6",
        "a.cpp:5:1: internal compiler error: Segmentation fault",
        "c++: internal compiler error: Segmentation fault signal terminated program cc1plus",
        "a.cpp:5:1: internal compiler error: in build_op, at cp/call.cc:1",
        "Segmentation fault (core dumped)",
        "FAILED: [code=139] a.o",
        "ptxas fatal   : Internal error",
        "subprocess.CalledProcessError: Command '['ninja']' died with <Signals.SIGSEGV: 11>.",
        "error: command 'nvcc' failed with exit code 139",
    ],
)
def test_a_crash_is_not_cured_by_fewer_jobs(line: str) -> None:
    """Signal 11 is the compiler's own fault."""
    found = ask(f"[2/9] nvcc -c csrc/a.cu -o a.o\n{line}\nninja: build stopped: subcommand failed.\n")
    assert (found.kind, found.translation_unit) == ("compiler-crash", "csrc/a.cu")
    assert "jobs" not in found.advice


@pytest.mark.parametrize(
    "line",
    [
        "ninja: build stopped: interrupted by user.",
        "KeyboardInterrupt",
        "Terminated",
        "make: *** [Makefile:5: a.o] Interrupt",
        "nvcc error   : 'cicc' died due to signal 2",
        "ERROR: Operation cancelled by user",
        "FAILED: [code=130] a.o",
        "Process exited with code 143",
        "rc=143",
        "exit status -15",
        "^Cninja: build stopped: interrupted by user.",
        "c++: fatal error: Terminated signal terminated program cc1plus",
    ],
)
def test_an_interruption_is_no_failure(line: str) -> None:
    """Status 130 and 143, and every spelling of SIGINT and SIGTERM; what is done is counted."""
    found = ask(f"[16/73] nvcc -c a.cu\n[17/73] nvcc -c b.cu\n{line}\n")
    assert found.kind == "interrupted"
    assert "at least 16 of 73 units are done" in found.cause
    assert found.translation_unit is None


def test_what_failed_before_somebody_stopped_it_is_the_cause() -> None:
    """Also what no rule knows; what comes after an interruption comes from it."""
    error, stop = "a.cu(3): error: no such thing\n", "ninja: build stopped: interrupted by user.\n"
    assert ask(f"FAILED: a.o\n{error}{stop}").evidence == error.strip()
    assert ask(f"Killed\n{stop}").kind == "out-of-memory"
    assert ask(f"{stop}Killed\n").kind == "interrupted"
    assert ask(f"FAILED: a.o\n{stop}").kind == "interrupted"


def test_a_decoy_does_not_hide_the_exception() -> None:
    """Warnings, a prebuilt wheel that is not there and a module that is not needed are no causes."""
    log = (
        "Failed to initialize NumPy: No module named 'numpy' (Triggered internally at tensor_numpy.cpp:84.)\n"
        "UserWarning: The detected CUDA version (12.9) has a minor version mismatch with PyTorch (12.8)\n"
        "Guessing wheel URL: https://github.com/x/releases/download/v1/x.whl\n"
        "urllib.error.HTTPError: HTTP Error 404: https://github.com/x/releases/download/v1/x.whl Not Found\n"
        "Precompiled wheel not found. Building from source...\n"
        "x.h:3:2: warning: #warning an internal compiler error: was here once [-Wcpp]\n"
        "Traceback (most recent call last):\nModuleNotFoundError: No module named 'psutil'\n"
    )
    found = ask(log)
    assert (found.kind, found.line) == ("missing-module", 8)


def test_what_a_later_run_finished_has_succeeded() -> None:
    """A log of several runs is judged by what stands after the last success."""
    failed = "FAILED: a.o\nKilled\nninja: build stopped: subcommand failed.\n"
    good = "Successfully built demo-1.0-cp312-cp312-linux_x86_64.whl\n"
    assert ask(failed + good).kind is None
    assert (
        ask(failed + good + "ImportError: /e/x.so: undefined symbol: _ZN3c104cuda9SetDeviceEab\n").kind
        == "abi-mismatch"
    )
    assert ask(good + "  ERROR: Failed building wheel for b\nFailed to build b\n").kind == "unknown"


def test_all_missing_modules_at_once() -> None:
    """What the log names, and what the recipe of the package in it needs beside."""
    found = ask(
        "ModuleNotFoundError: No module named 'numpy'\nModuleNotFoundError: No module named 'pybind11.setup_helpers'\n"
    )
    assert found.cause == "the build environment lacks numpy, pybind11"
    assert "`pip install numpy pybind11`" in found.advice
    known = ask("File /build/flash_attn/setup.py\nModuleNotFoundError: No module named 'torch'\n")
    assert "`pip install torch setuptools wheel packaging psutil ninja`" in known.advice


def test_unknown_shows_the_likeliest_lines_and_says_so() -> None:
    """Three lines, the compiler's own word first."""
    found = ask(
        "[1/2] g++ -c a.cpp -o a.o\nFAILED: a.o\na.cpp:1:2: error: 'y' was not declared\nninja: build stopped: x\n"
    )
    assert found.report() == (
        "unknown: no rule knows this failure",
        "  unit: a.cpp",
        "  the likeliest lines:",
        "  3: a.cpp:1:2: error: 'y' was not declared",
        "  2: FAILED: a.o",
        "  4: ninja: build stopped: x",
        "  next: Read the log around these lines. A new rule takes a few lines: docs/diagnosis.md.",
    )


# no false alarm --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "copying src/error.py -> build/lib/error.py",
        "g++ -Werror -Wfatal-errors -c error.cpp -o error.o",
        "0 errors, 3 warnings",
        "src/fatal_error.cpp: In function 'f':",
        "x.h:1:1: warning: 'longlong4' is deprecated [-Wdeprecated-declarations]",
        "ptxas info    : Used 137 registers",
        "-- Looking for pthread_create in pthread - not found",
        "-- Could NOT find CUDNN (missing: CUDNN_LIBRARY_PATH)",
        "adding 'demo/errors/__init__.py'",
        "DeprecationWarning: ssl.PROTOCOL_TLS is deprecated",
        "npm WARN error handling is deprecated",
    ],
)
def test_noise_is_no_failure(line: str) -> None:
    """Words like error in names, flags and warnings; with or without a word of success after them."""
    assert ask(f"{line}\n").kind is None
    assert ask(f"{line}\n[3/3] c++ -shared -o x.so\n").kind is None


def test_nothing_that_speaks_of_failure() -> None:
    """Said so, with what to do if it failed all the same."""
    found = ask("running build\n")
    assert (found.kind, found.cause) == (None, "nothing in the log speaks of a failure")
    assert found.report()[1].startswith("  If the build failed all the same, the log is cut")


def test_a_log_that_ends_in_the_middle() -> None:
    """No failure and no end: it runs, was killed whole, or was cut."""
    found = ask("[16/73] nvcc -c a.cu -o a.o\n[17/73] nvcc -c b.cu -o b.o\n")
    assert (found.kind, found.translation_unit) == ("unknown", "b.cu")
    assert found.cause.startswith("the log ends at [17/73] without a word of failure")


def test_an_empty_log() -> None:
    """Nothing can be said, and that is said."""
    for text in (b"", b"\n\n", b"\x1b[0m\r\n"):
        found = ask(text)
        assert (found.kind, found.cause, found.line) == ("unknown", "the log is empty", None)


# bytes -----------------------------------------------------------------------------------------------


def test_colours_stamps_frames_and_line_ends_do_not_matter() -> None:
    """As a terminal, CI, docker, pip or Windows wrote it."""
    plain = "x.cpp:1:10: fatal error: Python.h: No such file or directory"
    coloured = "\x1b[01m\x1b[Kx.cpp:1:10:\x1b[m\x1b[K \x1b[01;31m\x1b[Kfatal error: \x1b[m\x1b[KPython.h: No such file or directory"
    for text in (
        plain,
        coloured,
        f"{plain}\r",
        f"2026-12-01T10:00:00.1234567Z {plain}",
        f"#12 34.56 {plain}",
        f"  │ {plain}",
        f"      {plain}",
        f"\x00{plain}\x00",
        f"50%|#####     | 1/2\r{plain}",
    ):
        found = ask(text)
        assert (found.kind, found.evidence) == ("missing-header", plain)


def test_bytes_that_are_no_text() -> None:
    """Invalid UTF-8 and NUL do not stop it; what could drive a terminal is left to the console to escape."""
    found = ask(b"\xff\xfe\x00\x80 start\n\xc3(\nerror: bad \xff\x07 thing\n")
    assert (found.kind, found.evidence) == ("unknown", "error: bad \ufffd\x07 thing")


def test_one_line_of_megabytes() -> None:
    """Its ends and its first alarm are looked at, and it counts as one line."""
    log = (
        b"start\n" + b"x" * 3_000_000 + b" Killed " + b"y" * 3_000_000 + b"\nFAILED: a.o\nnvcc -c a.cu -o a.o\nKilled\n"
    )
    found = diagnose(log[at : at + 4096] for at in range(0, len(log), 4096))
    assert (found.kind, found.line, found.translation_unit) == ("out-of-memory", 5, "a.cu")
    assert len(ask(b"error: " + b"z" * 10_000_000).evidence) <= SHOWN


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=3000), st.integers(1, 700))
def test_any_bytes_in_any_blocks_give_one_verdict(data: bytes, size: int) -> None:
    """How a log is cut into blocks does not matter, and no bytes make it fail."""
    cut = diagnose(data[at : at + size] for at in range(0, len(data), size))
    assert cut == diagnose([data])
    assert cut.kind is None or cut.kind in KINDS


@pytest.mark.parametrize("seed", range(5))
def test_blocks_of_a_large_log_do_not_matter(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict of a log larger than what is read whole, cut anywhere."""
    monkeypatch.setattr(excerpt, "WHOLE", 1 << 13)
    chance = random.Random(seed)  # noqa: S311 - a test
    log = (
        noise(600)
        + "FAILED: [code=255] b.o\nnvcc -c b.cu -o b.o\nx.h:1:1: fatal error: cublas_v2.h: No such file\n"
        + noise(600)
    ).encode()
    blocks, at = [], 0
    while at < len(log):
        size = chance.randrange(1, 20_000)
        blocks.append(log[at : at + size])
        at += size
    found = diagnose(blocks)
    assert (found.kind, found.line, found.translation_unit) == ("missing-header", 603, "b.cu")


def test_alarms_without_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of nothing but errors costs no more than the budget; its first error is the cause."""
    monkeypatch.setattr(excerpt, "WHOLE", 1 << 13)
    monkeypatch.setattr(excerpt, "BUDGET", 500)
    log = noise(600) + "a.cu(1): error: first\n" + "a.cu(2): error: other\n" * 10_000 + "ninja: build stopped: x\n"
    found = ask(log)
    assert (found.kind, found.evidence) == ("unknown", "a.cu(1): error: first")


# units -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "unit"),
    [
        ("[1/2] nvcc -c -c /s/a.cu -o a.o\nFAILED: a.o\nnvcc -c -c /s/a.cu -o a.o\nKilled\n", "/s/a.cu"),
        ('a.cu(3): error: x\n1 error detected in the compilation of "a.cu".\n', "a.cu"),
        ("In file included from /t/ATen.h:3,\n                 from b.cpp:8:\n/t/C.h:1:10: fatal error: q.h: No such file\n", "b.cpp"),
        ("In file included from b.cpp:8:\n/t/C.h:1:10: fatal error: q.h: No such file\n", "b.cpp"),
        ("g++ -O2 -c c.cc -o c.o\ng++: fatal error: Killed signal terminated program cc1plus\n", "c.cc"),
        ("/t/C.h:1:10: fatal error: q.h: No such file\nFAILED: d.o\n", "d.o"),
        ("/t/C.h:1:10: fatal error: q.h: No such file\n", None),
        ("nvcc error   : 'ptxas' died due to signal 11\n1 error detected in the compilation of \"e.cu\".\n", "e.cu"),
    ],
)  # fmt: skip
def test_the_unit(log: str, unit: str | None) -> None:
    """From ninja's repeated command, nvcc's last word, the chain of includes, or the object."""
    assert ask(log).translation_unit == unit


# rules as data ---------------------------------------------------------------------------------------


def test_rules_are_sound() -> None:
    """Kinds are known, every rule can be reached by its literals, and messages use only names that there are."""
    for rule in rulebook().rules:
        assert rule.kind in KINDS
        assert rule.has
        assert all(rule.has)
        known = set(rule.match.groupindex) | set(rule.near.groupindex if rule.near else ()) | set(DERIVED)
        advice = rulebook().advice[rule.advice[1:]] if rule.advice.startswith("&") else rule.advice
        for found in PLACEHOLDER.finditer(rule.says + advice):
            for name in found[1].split("|"):
                assert " " in name or name in known, (rule.says, name)
    assert {rule.kind for rule in rulebook().rules} == set(KINDS)


def test_every_kind_has_a_case() -> None:
    """No kind is only promised."""
    assert {each["kind"] for each in EXPECTED.values()} >= set(KINDS) - {"unknown"}


def test_docs_name_the_kinds() -> None:
    """docs/diagnosis.md lists each kind once."""
    text = (Path(__file__).parents[2] / "docs" / "diagnosis.md").read_text("utf-8")
    assert sorted(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) == sorted(KINDS)


# advice from what is here ----------------------------------------------------------------------------


MISMATCH = (
    "RuntimeError:\nThe detected CUDA version (13.1) mismatches the version that was used to compile\nPyTorch ({}).\n"
)


@pytest.mark.parametrize(
    ("log", "here", "advice"),
    [
        (MISMATCH.format("12.8"), HERE, "Take the toolkit that fits torch: `--cuda-home /usr/local/cuda-12.8` (or CUDA_HOME)."),
        (MISMATCH.format("12.6"), HERE, "Take the toolkit that fits torch: `--cuda-home /usr/local/cuda-12.9` (or CUDA_HOME)."),
        (MISMATCH.format("12.8"), Surroundings(toolkits=(("/opt/cuda", "13.1"),)), "No CUDA 12.8 toolkit is on this machine (found: /opt/cuda (13.1))."),
        (MISMATCH.format("12.8"), Surroundings(), "No CUDA 12.8 toolkit is on this machine (found: none)."),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_100'\n", HERE, "Take a CUDA toolkit 12.8 or newer (--cuda-home DIR; on this machine: /usr/local/cuda-13.0 (13.0), /usr/local/cuda-12.9 (12.9)"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_60'\n", HERE, "Take a CUDA toolkit older than 13.0 (--cuda-home DIR; on this machine: /usr/local/cuda-12.9 (12.9), /usr/local/cuda-12.8 (12.8))"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_103a'\n", Surroundings(), "Take a CUDA toolkit 12.9 or newer (--cuda-home DIR; none is on this machine"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_777'\n", HERE, "No nvcc that we know of makes it"),
        ("h:1:2: error: #error -- unsupported GNU version! gcc versions later than 14 are not supported!\n", HERE, "Use gcc 14 or older: /usr/bin/gcc-13 (13.3.0) is on this machine; also /usr/bin/gcc-12. `CC=/usr/bin/gcc-13 CXX=/usr/bin/g++-13 NVCC_CCBIN=/usr/bin/g++-13`."),
        ("h:1:2: error: #error -- unsupported GNU version! gcc versions later than 11 are not supported!\n", HERE, "None on this machine fits: install gcc-11 and g++-11"),
        ("ld: cannot find -lcuda: No such file\n", HERE, "It is the driver's, never bundled."),
        ("ld: cannot find -ltorch_cuda\n", HERE, "It is torch's: import torch first"),
        ("ld: cannot find -lfoo\n", HERE, "Install the package that brings it"),
        ("x.c:1:1: fatal error: q.h: No such file\n", HERE, "Install the development package that has it"),
        ("no kernel image is available\nDevice 0: NVIDIA RTX PRO 6000 Blackwell Server Edition\n", HERE, "Build it for the card: `wheelmill build NAME --arch 12.0`."),
        ("NVIDIA GeForce RTX 5090 with CUDA capability sm_120\nno kernel image is available\n", HERE, "Build it for the card: `wheelmill build NAME --arch 12.0`."),
        ("NVIDIA Unheard Of\nno kernel image is available\n", HERE, "Build it for the card: `wheelmill build NAME --arch CAPABILITY`."),
        ("RuntimeError: FlashAttention is only supported on CUDA 11.7 and above.\n", Surroundings(), "Take a newer toolkit that fits torch: --cuda-home DIR."),
        ("AssertionError: CUDA_HOME is not set\n", HERE, "Set CUDA_HOME to a toolkit that fits torch; here are /usr/local/cuda-13.0 (13.0)"),
        ("RuntimeError: Cannot find CMake executable\n", HERE, "`pip install cmake` into"),
        ("urllib.error.HTTPError: HTTP Error 404: Not Found\n", HERE, "Is the version right?"),
        ("OSError: [Errno 28] No space left on device\n", HERE, "Free space there"),
        ("urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>\n", HERE, "Get it beforehand"),
        ("nvcc fatal : Failed to preprocess host compiler properties.\n", HERE, "Install gcc and g++ of one release"),
    ],
)  # fmt: skip
def test_advice_names_what_is_here(log: str, here: Surroundings, advice: str) -> None:
    """The toolkit, compiler or package that would do, on this machine."""
    assert ask(log, here).advice.startswith(advice)


def test_the_old_cxx_abi_and_another_torch() -> None:
    """A missing symbol tells in which way an extension and torch differ."""
    old = ask("ImportError: /e/x.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs\n")
    assert old.cause == (
        "x.so was built with the old C++ ABI (_GLIBCXX_USE_CXX11_ABI=0), the installed torch with the new one"
    )
    minor = ask("ImportError: /e/x.so: undefined symbol: _ZN3c104cuda9SetDeviceEab\n")
    assert minor.cause == "x.so was built for another minor version of torch than the installed one"
    other = ask(
        "ImportError: /e/x.so: undefined symbol: "
        "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE\n"
    )
    assert other.cause == "x.so was built for another torch: another minor version, or one with the old C++ ABI"


def test_json() -> None:
    """The fields that others rely on."""
    assert ask("ld: relocation truncated to fit: R_X86_64_PC32 against `.nv_fatbin'\n").to_json() == {
        "kind": "code-too-large",
        "line": 1,
        "evidence": "ld: relocation truncated to fit: R_X86_64_PC32 against `.nv_fatbin'",
        "translation_unit": None,
        "advice": "Build for fewer architectures: one wheel per GPU generation, e.g. `wheelmill build NAME --arch 10.0`, "
        "or a variant with fewer kernels.",
        "cause": "the code is larger than 2 GB, more than one library can hold: too many architectures (or kernels) at once",
        "likeliest": [],
    }
