# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2026.10.20"]
# ///
"""Doors, not rooms: every session calls `python -m wheelmill …` (or a tool) in one shared, hash-locked environment."""

import hashlib
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2026.10.20"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.error_on_external_run = False

ENVIRONMENT = Path(".nox") / "wheelmill"
LOCK = Path("requirements.txt")


def python(session: nox.Session) -> str:
    """Give the interpreter of the shared environment; make it anew when its lock or the project file changed."""
    key = hashlib.sha256(LOCK.read_bytes() + Path("pyproject.toml").read_bytes() + sys.version.encode()).hexdigest()
    stamp = ENVIRONMENT / "lock.sha256"
    executable = str((ENVIRONMENT / "bin" / "python").absolute())
    if not stamp.exists() or stamp.read_text("utf-8") != key:
        session.run(sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT), silent=True)
        pip = (executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        session.run(*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK))
        session.run(*pip, "--no-deps", "--no-build-isolation", "--editable", ".")
        stamp.write_text(key, "utf-8")
    return executable


def wheelmill(session: nox.Session, *words: str) -> None:
    """Run wheelmill with the session's own words and then the user's; its exit status is nox's, too."""
    command = (python(session), "-m", "wheelmill", *words, *session.posargs)
    try:
        session.run(*command, interrupt_timeout=30, terminate_timeout=30)
    except nox.command.CommandFailed as failure:
        # nox would say 1 for every failure; the report above stays the last thing printed.
        raise SystemExit(failure.return_code or 1) from None


def door(name: str, *words: str) -> None:
    """Make a session that is one wheelmill command."""

    def session_function(session: nox.Session) -> None:
        wheelmill(session, *words)

    session_function.__doc__ = DOORS[name][1]
    session_function.__name__ = name.replace("-", "_")
    nox.session(name=name, python=False, default=False)(session_function)


DOORS: dict[str, tuple[tuple[str, ...], str]] = {
    "build": (("build",), "Build packages into wheelhouse/: `nox -s build -- causal-conv1d --stack cu130`."),
    "build-flash-attn": (
        ("build", "flash-attn"),
        "Build flash-attn 2.8.3 for sm_100 against the cu128 stack.",
    ),
    "build-vllm": (("build", "vllm"), "Build vLLM from source (a later release; says so)."),
    "build-stack": (("build-stack",), "Build and collect a whole stack (a later release; says so)."),
    "plan": (("plan",), "Show what would be built, from what, with how many jobs and why; starts nothing."),
    "doctor": (("doctor",), "Look at this machine: toolkits, compilers, interpreters, disk, memory."),
    "verify": (("verify",), "Check wheels: names, RECORD, device code, symbols, offline install and import."),
    "verify-stack": (
        ("verify-stack",),
        "Check an installed stack: `nox -s verify-stack -- --python ENV/bin/python`.",
    ),
    "lock": (("lock",), "Resolve and hash a stack's requirements: `nox -s lock -- cu130 [--check]`."),
    "fetch": (("fetch",), "Get every pinned input: `nox -s fetch -- flash-attn --stack cu130`."),
    "rebuild": (("rebuild",), "Build a wheel again from what it carries, and compare: `nox -s rebuild -- WHEEL`."),
    "why": (("why",), "Say which inputs of two builds differ: `nox -s why -- A B`, or `nox -s why -- NAME`."),
    "inspect": (("inspect",), "Show what is in a wheel or a library."),
    "repair": (("repair",), "Put any wheel right: `nox -s repair -- WHEEL --stack cu128`."),
    "diagnose": (("diagnose",), "Name the root cause of a build's log: `nox -s diagnose -- build.log`."),
    "install": (("install",), "Install from the wheelhouse, offline, with hashes, into an environment."),
    "index": (("index",), "Write the static indexes of the wheelhouse again."),
    "limits": (("limits",), "Show effective cores, memory and processes, and where each bound comes from."),
    "ps": (("ps",), "Show the builds that run here."),
    "stop": (("stop",), "End a running build with its whole tree: `nox -s stop -- flash-attn`."),
    "log": (("log",), "Show a build's log: `nox -s log -- --follow`."),
    "measure": (("measure",), "Compile a package's units to learn what each takes: `nox -s measure -- NAME`."),
    "gc": (("gc",), "Free space in the cache."),
    "release": (("release",), "Publish with proofs (a later release; says so)."),
}
for door_name, (door_words, _) in DOORS.items():
    door(door_name, *door_words)


@nox.session(python=False)
def tests(session: nox.Session) -> None:
    """Run the unit tests; they can neither build nor reach a network."""
    session.run(python(session), "-m", "pytest", "-n", "auto", "tests/unit", *session.posargs)


@nox.session(python=False, default=False)
def integration(session: nox.Session) -> None:
    """Run the integration tests: real nvcc, torch, ccache, pip and uv; needs a package index."""
    session.run(
        python(session), "-m", "pytest", "-n", "auto", "--dist", "loadfile", "tests/integration", *session.posargs
    )


@nox.session(python=False)
def lint(session: nox.Session) -> None:
    """Check style with ruff."""
    session.run(python(session), "-m", "ruff", "check", *(session.posargs or ["."]))
    session.run(python(session), "-m", "ruff", "format", "--check", *(session.posargs or ["."]))


@nox.session(python=False)
def types(session: nox.Session) -> None:
    """Check types with mypy, strictly."""
    session.run(python(session), "-m", "mypy", *session.posargs)


@nox.session(python=False, default=False)
def docs(session: nox.Session) -> None:
    """Hold README and docs against the code: commands, exit status, kinds, stacks."""
    session.run(python(session), "-m", "pytest", "tests/unit/test_docs.py", *session.posargs)


if __name__ == "__main__":
    nox.main()
