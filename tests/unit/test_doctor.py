"""What doctor looks at beyond preflight."""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from test_preflight import situation_at

from wheelmill import doctor
from wheelmill._process import Completed
from wheelmill.doctor import (
    cgroup_finding,
    examine,
    leftover_findings,
    namespace_findings,
    program_findings,
    survey_findings,
    torch_findings,
)
from wheelmill.errors import EnvironmentUnfitError
from wheelmill.preflight import Finding, Situation
from wheelmill.toolkit import FoundToolkit, Machine


class Answers:
    """A Runner that answers by the last word of a command; None is a program that there is not."""

    def __init__(self, **said: tuple[int, str] | None) -> None:
        self.said = said
        self.ran: list[tuple[str, ...]] = []

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, check: bool = True
    ) -> Completed:
        """Answer."""
        assert cwd is None
        assert not check
        assert env["LC_ALL"].startswith("C")
        self.ran.append(tuple(argv))
        answer = self.said.get(Path(argv[0]).name.replace(".", "_"), (0, ""))
        if answer is None:
            raise EnvironmentUnfitError("no such program")
        return Completed(argv=tuple(argv), returncode=answer[0], stdout=answer[1], stderr="", seconds=0.0)

    def stream(self, *args: object, **kwargs: object) -> Completed:
        """Fail: nothing here runs for long."""
        raise AssertionError((args, kwargs))


def machine_of(situation: Situation, runner: object, **env: str) -> Machine:
    """Give the machine another runner and more variables."""
    return replace(situation.machine, runner=runner, env={**situation.machine.env, **env})


def lines(found: "object") -> list[str]:
    """Give findings as lines."""
    assert not isinstance(found, Finding)
    return [f"{each.status} {each.message}" + (f" -> {each.advice}" if each.advice else "") for each in found]


# torch -----------------------------------------------------------------------------------------------

WANTED = "2.11.0+cu130, built with CUDA 13.0"
INSTALL = "Install the stack's: `wheelmill install --stack cu130 --into ENV`."


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            {"__version__": "2.11.0+cpu", "cuda": None, "hip": None},
            f"warn torch 2.11.0+cpu is built for the CPU alone: CUDA wheels do not run beside it -> {INSTALL}",
        ),
        (
            {"__version__": "2.11.0+rocm6.4", "cuda": None, "hip": "6.4.43482"},
            f"warn torch 2.11.0+rocm6.4 is built for ROCm 6.4.43482: CUDA wheels do not run beside it -> {INSTALL}",
        ),
        (
            {"__version__": "2.9.1+cu128", "cuda": "12.8", "hip": None},
            f"warn torch 2.9.1+cu128 (CUDA 12.8), where stack cu130 is for {WANTED} -> {INSTALL}",
        ),
        (
            {"__version__": "2.11.0+cu130", "cuda": "13.0", "hip": None},
            "ok torch 2.11.0+cu130, built with CUDA 13.0",
        ),
        (None, "skip has no torch"),
    ],
)
def test_the_torch_of_the_given_environment(tmp_path: Path, said: object, line: str) -> None:
    """CPU-only, ROCm, another release or none: read from its files, not by importing it."""
    python = tmp_path / "env/bin/python"
    python.parent.mkdir(parents=True)
    python.touch(mode=0o755)
    situation = replace(situation_at(tmp_path), python="env/bin/python")
    situation = replace(situation, machine=machine_of(situation, Answers(python=(0, json.dumps(said)))))

    assert lines(torch_findings(situation)) == [line]


@pytest.mark.parametrize("answer", [None, (1, "no"), (0, "")])
def test_an_interpreter_that_cannot_be_asked(tmp_path: Path, answer: tuple[int, str] | None) -> None:
    """It is said; that it does not fit is another finding."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3.12").touch(mode=0o755)
    situation = replace(situation_at(tmp_path), python="python3.12")
    situation = replace(situation, machine=machine_of(situation, Answers(python3_12=answer)))

    assert lines(torch_findings(situation)) == ["skip cannot be asked for its torch"]
    assert lines(torch_findings(replace(situation, python="python3.99"))) == []
    assert lines(torch_findings(replace(situation, python=None))) == []


# toolkits and programs -------------------------------------------------------------------------------


def test_every_toolkit_with_the_code_that_it_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As nvcc itself lists it; one of another minor release is taken where it is given."""
    one = FoundToolkit(
        root=Path("/usr/local/cuda-13.0"),
        origins=("CUDA_HOME", "PATH"),
        nvcc_version="13.0.88",
        archs=("sm_100", "sm_120"),
        missing_headers=(),
        missing_libraries=(),
        problems=(),
    )
    other = replace(one, root=Path("/opt/cuda-13.1"), other_minor="CUDA 13.1, where torch needs 13.0", archs=())
    broken = replace(other, root=Path("/opt/cuda-13.2"), problems=("header cuda.h missing",))
    monkeypatch.setattr(doctor, "survey", lambda _need, _machine: (one, other, broken))

    assert lines(survey_findings(situation_at(tmp_path))) == [
        "ok /usr/local/cuda-13.0 (CUDA 13.0): fits; makes sm_100, sm_120; known by CUDA_HOME, PATH",
        "warn /opt/cuda-13.1 (CUDA 13.0): CUDA 13.1, where torch needs 13.0; known by CUDA_HOME, PATH "
        "-> It is taken where it is given: `--cuda-home`.",
        "skip /opt/cuda-13.2 (CUDA 13.0): CUDA 13.1, where torch needs 13.0; header cuda.h missing; known by CUDA_HOME, PATH",
    ]


def test_programs_and_the_part_they_have(tmp_path: Path) -> None:
    """People look for them on PATH; what a build takes is said beside."""
    situation = situation_at(tmp_path)
    (tmp_path / "bin/git").touch(mode=0o755)

    said = lines(program_findings(machine_of(situation, Answers(git=(0, "git version 2.39.5")))))

    assert said[0] == f"ok {tmp_path}/bin/git: git version 2.39.5; sources come as archives, so builds do without"
    assert said[1] == "skip not on PATH; a build takes the one of its own environment"
    assert len(said) == len(doctor.PROGRAMS)


# the system ------------------------------------------------------------------------------------------


class Kernel(Answers):
    """A machine where some namespaces are barred."""

    def __init__(self, *barred: str) -> None:
        super().__init__()
        self.barred = set(barred)

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, check: bool = True
    ) -> Completed:
        """Refuse what is barred."""
        done = super().run(argv, env=env, cwd=cwd, check=check)
        kinds = {word.removeprefix("--").replace("map-root-user", "user") for word in argv}
        return replace(done, returncode=int(bool(kinds & self.barred)))


@pytest.mark.parametrize(
    ("barred", "line"),
    [
        ((), "ok all can be made: user, mount, pid, net, ipc, uts"),
        (("net",), "warn this user cannot make: net -> Allow them: "),
        (("user",), "warn this user cannot make: user, mount, pid, net, ipc, uts -> Allow them: "),
    ],
)
def test_namespaces_are_tried(tmp_path: Path, barred: tuple[str, ...], line: str) -> None:
    """By making them; what is barred is named with the ways to allow it."""
    situation = situation_at(tmp_path)
    (tmp_path / "bin/unshare").touch(mode=0o755)

    (said,) = lines(namespace_findings(machine_of(situation, Kernel(*barred))))

    assert said.startswith(line)


def test_without_unshare_nothing_is_tried(tmp_path: Path) -> None:
    """That is said; and a program that vanished counts as barred."""
    assert lines(namespace_findings(situation_at(tmp_path).machine)) == [
        "skip unshare is not on PATH, so that namespaces cannot be tried"
    ]
    assert not doctor.makes("unshare", ("user",), machine_of(situation_at(tmp_path), Answers(unshare=None)))


@pytest.mark.parametrize(
    ("mounts", "own", "said"),
    [
        (["cgroup2 /cg"], "0::/a", "ok cgroup v2 at @/cg/a; groups can be made in it"),
        (["cgroup2 /cg"], "0::/not/visible", "ok cgroup v2 at @/cg; groups can be made in it"),
        (["cgroup2 /cg", "cgroup /v1"], "0::/", "ok cgroup v2 beside v1 at @/cg; groups can be made in it"),
        (["cgroup /v1"], "4:memory:/", "ok cgroup v1 at /v1"),
        (["proc /proc"], "", "skip no cgroup is mounted here"),
    ],
)
def test_the_kind_of_control_group(tmp_path: Path, mounts: list[str], own: str, said: str) -> None:
    """Version 2, 1, both or none; and whether groups can be made."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "cg/a").mkdir(parents=True)
    text = "\n".join(f"1 0 0:1 / {place} rw - {kind} x rw" for kind, place in map(str.split, mounts))
    (tmp_path / "proc/self/mountinfo").write_text(text)
    (tmp_path / "proc/self/cgroup").write_text(own)

    found = cgroup_finding(tmp_path)

    assert f"{found.status} {found.message}".replace(str(tmp_path), "@") == said


# leftovers -------------------------------------------------------------------------------------------


def test_what_builds_left_behind(tmp_path: Path) -> None:
    """Which, how old, how large; one whose lock is held runs now, and looking leaves it alone."""
    situation = situation_at(tmp_path)
    builds = situation.machine.directories.builds
    for name in ("aaa", "bbb", ".gone"):
        (builds / name).mkdir(parents=True)
        (builds / name / "lock").touch()
    (builds / "note").touch()
    (builds / "aaa/build.log").write_text("x")
    (builds / "aaa/empty").symlink_to("nowhere")
    for file in builds.glob("aaa/*"):
        os.utime(file, (1000.0, 1000.0), follow_symlinks=False)

    with (builds / "bbb/lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = lines(leftover_findings(situation.machine, 8200.0))

    assert found == [
        f"skip {builds}/aaa was left by a build that ended 2 h 0 min ago without a wheel: 0.0 GiB "
        "-> The same build goes on from there; `wheelmill gc` removes it.",
        f"ok a build runs in {builds}/bbb; follow it: `tail -f {builds}/bbb/build.log`",
    ]


def test_no_cache_has_no_leftovers(tmp_path: Path) -> None:
    """Before the first build there is nothing; a workplace without a lock is left over."""
    situation = situation_at(tmp_path)
    assert lines(leftover_findings(situation.machine, 0.0)) == []
    (situation.machine.directories.builds / "ccc").mkdir(parents=True)

    (found,) = lines(leftover_findings(situation.machine, 0.0))

    assert found.startswith(f"skip {situation.machine.directories.builds}/ccc was left by a build that ended 0 s ago")


def test_doctor_shows_preflight_and_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every check of a build, then what only a person wants to know."""
    situation = situation_at(tmp_path)
    monkeypatch.setattr(doctor, "program_findings", lambda _machine: ())

    found = examine(situation, root=tmp_path, now=lambda: 0.0)

    assert [each.id for each in found][-2:] == ["namespaces", "cgroup"]
    assert "disk-space" in {each.id for each in found}
