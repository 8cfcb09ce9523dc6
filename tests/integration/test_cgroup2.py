"""cgroup v2 with the memory controller, for real: under user-mode Linux where the host has none to give."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wheelmill.cgroups import LEAF, ControlGroups, Polling, probe
from wheelmill.limits import read_limits

# ruff: noqa: T201 - the figures are for whoever asks with -s
pytestmark = pytest.mark.integration
REPOSITORY = Path(__file__).parents[2]
UML = os.environ.get("WHEELMILL_UML") or shutil.which("linux.uml")
INSIDE = os.environ.get("WHEELMILL_INSIDE_UML")
"""Which part of uml/init.sh runs us."""
MB = 1 << 20
ROOT = Path("/sys/fs/cgroup")


def inside(part: str) -> pytest.MarkDecorator:
    reason = f"runs inside the user-mode Linux that test_under_user_mode_linux boots, as {part}"
    return pytest.mark.skipif(part != INSIDE, reason=reason)


@pytest.mark.skipif(INSIDE is not None, reason="is inside already")
@pytest.mark.skipif(UML is None, reason="no user-mode Linux here: see tests/integration/uml/README.md")
def test_under_user_mode_linux() -> None:
    """The tests of cgroups pass in the root group of a v2 kernel and in a limited group, and leave nothing there."""
    assert UML is not None
    settings = {"WM_PYTHON": sys.executable, "WM_REPOSITORY": str(REPOSITORY)}
    init = Path(__file__).parent / "uml/init.sh"
    boot = ["mem=2G", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}", "quiet"]
    done = subprocess.run(
        [UML, *boot, "con=null", "con0=fd:0,fd:1", *(f"{name}={value}" for name, value in settings.items())],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=900,
        check=False,
    )
    print(done.stdout)

    assert "uml status root: 0" in done.stdout
    assert "uml status job: 0" in done.stdout
    assert "uml status container: 0" in done.stdout
    assert "uml status user: 0" in done.stdout or "uml skips user" in done.stdout
    assert "uml left: \n" in done.stdout


@inside("job")
def test_a_group_with_processes_is_vacated() -> None:
    """Ours move to a leaf, the groups of leases stand beside it, and the limit above holds for both."""
    way = probe()

    assert isinstance(way, ControlGroups)
    assert (way.base, way.home) == (ROOT / "job", ROOT / "job" / LEAF)
    assert Path("/proc/self/cgroup").read_text().strip() == f"0::/job/{LEAF}"
    limits = read_limits()
    assert limits.memory_bytes == 1000 * MB
    assert limits.sources["memory"] == "/sys/fs/cgroup/job/memory.max"


@pytest.fixture
def under_systemd() -> Iterator[Path]:
    """Give a group of ours on a machine that looks like systemd's."""
    marker, group = Path("/run/systemd/system"), ROOT / "session.scope"
    marker.mkdir(parents=True)
    group.mkdir()
    own = Path("/proc/self/cgroup").read_text().strip().removeprefix("0::/")
    (group / "cgroup.procs").write_text("0")
    yield group
    (ROOT / own / "cgroup.procs").write_text(str(os.getpid()))
    for leaf in group.glob(LEAF):
        leaf.rmdir()
    group.rmdir()
    marker.rmdir()


@inside("job")
def test_systemds_own_groups_are_left_alone(under_systemd: Path) -> None:
    """In a session's scope that was not delegated nothing is made; the reason says how to get one."""
    way = probe()

    assert isinstance(way, Polling)
    assert way.passed_over == (
        f"cgroup2: systemd keeps {under_systemd} for itself; start with "
        "`systemd-run --user --scope -p Delegate=yes wheelmill …` to use it",
        "cgroup1: no memory controller is mounted",
    )
    assert list(under_systemd.glob("wheelmill*")) == []


@inside("job")
@pytest.mark.parametrize("name", ["user.delegate", "trusted.delegate"])
def test_a_delegated_scope_is_used(under_systemd: Path, name: str) -> None:
    """Systemd marks what it has given away."""
    os.setxattr(under_systemd, name, b"1")
    way = probe()

    assert isinstance(way, ControlGroups)
    assert (way.base, way.home) == (under_systemd, under_systemd / LEAF)


@inside("container")
def test_a_container_owns_its_group() -> None:
    """The mount's root is the container's own group, whoever keeps those above it."""
    way = probe()

    assert isinstance(way, ControlGroups)
    assert (way.base, way.home) == (ROOT, ROOT / LEAF)
    assert read_limits().sources["memory"] == "/sys/fs/cgroup/memory.max"


@inside("user")
def test_a_users_own_group() -> None:
    """No more than the group's own files is needed."""
    way = probe()

    assert os.geteuid() == 1000
    assert isinstance(way, ControlGroups)
    assert (way.base, way.home) == (ROOT / "user", ROOT / "user" / LEAF)
