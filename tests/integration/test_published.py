"""repair by the command line: a wheel that was renamed upstream becomes one that pip and uv install by name."""

import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import uv

from wheelmill import cli
from wheelmill.wheel_file import open_members, write_wheel

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
]

MAKERS = runpy.run_path(str(Path(__file__).with_name("test_repair.py")))
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def serving(tmp_path: Path) -> Path:
    """Make an environment with libraries of torch's names, and give its interpreter."""
    root = tmp_path / "serving"
    subprocess.run([uv.find_uv_bin(), "venv", "--quiet", "--python", sys.executable, str(root)], check=True)
    [site] = root.glob("lib/python*/site-packages")
    shop = MAKERS["Shop"](root=tmp_path / "shop")
    (tmp_path / "shop").mkdir()
    shop.library("torch", "torch/lib/libc10.so", requires=["nvidia-cuda-runtime"])
    shop.library("nvidia-cuda-runtime", "nvidia/cu13/lib/libcudart.so.13")
    shutil.copytree(shop.site, site, dirs_exist_ok=True)
    return root / "bin" / "python"


def renamed(tmp_path: Path, *libraries: str) -> Path:
    """Build a wheel that calls itself linux in WHEEL, and rename it as upstream does."""
    shop = MAKERS["Shop"](root=tmp_path / "shop")
    extension = shop.extension("_C.so", *(shop.find(name) for name in libraries))
    built: Path = shop.wheel(extension=extension)
    with zipfile.ZipFile(built) as old:
        members = {info.filename: old.read(info) for info in old.infolist()}
    wheel = tmp_path / f"tiny-1.0-{TAG}-{TAG}-manylinux_2_31_x86_64.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in members.items():
            text = data.replace(b"cp312-cp312", f"{TAG}-{TAG}".encode()) if name.endswith("WHEEL") else data
            new.writestr(name, text)
    return wheel


def sealed(wheel: Path) -> Path:
    """Write RECORD again, for WHEEL was changed."""
    sound = wheel.with_name("sound")
    sound.mkdir()
    with open_members(wheel) as members:
        return write_wheel(list(members), sound / wheel.name, epoch=1_700_000_000).path


def repair(wheel: Path, serving: Path, house: Path) -> int:
    """Run the command."""
    words = ["repair", str(wheel), "--stack", "cu130", "--python", str(serving), "--wheelhouse", str(house)]
    return cli.main([*words, "--recipes", str(ROOT / "recipes"), "--quiet"])


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_installs_by_name(tool: str, tmp_path: Path, serving: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its path on stdout; the index serves it to both installers by name and version."""
    house = tmp_path / "house"
    assert repair(sealed(renamed(tmp_path, "libc10.so", "libcudart.so.13")), serving, house) == 0
    [path] = capsys.readouterr().out.split()
    assert path == str(house / f"tiny-1.0-{TAG}-{TAG}-manylinux_2_28_x86_64.whl")
    index = (house / "simple" / "cu130-torch2.11.0-published").as_uri()
    target = tmp_path / "target"
    arguments = ["--index-url", index, "--no-deps", "--target", str(target), "tiny==1.0"]
    programs = {
        "pip": [sys.executable, "-m", "pip", "--isolated", "install", "--only-binary", ":all:", *arguments],
        "uv": [uv.find_uv_bin(), "pip", "install", "--no-config", "--python", sys.executable, *arguments],
    }
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    subprocess.run(programs[tool], check=True, capture_output=True, env=env)
    assert (target / "tiny" / "_C.so").is_file()
    assert "manylinux_2_28" in next(target.glob("*.dist-info/WHEEL")).read_text()


def test_nothing_is_left_of_one_that_cannot_be_put_right(
    tmp_path: Path, serving: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 7 with the reason; no wheel, no index, no part of one."""
    shop = MAKERS["Shop"](root=tmp_path / "shop")
    shop.library("stranger", "libstranger.so.1")
    wheel = sealed(renamed(tmp_path, "libstranger.so.1"))
    house = tmp_path / "house"
    assert repair(wheel, serving, house) == 7
    assert "tiny/_C.so needs libstranger.so.1" in capsys.readouterr().err
    assert [path for path in house.rglob("*") if path.is_file() and path.name != ".lock"] == []


def test_an_environment_that_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was given is no interpreter."""
    wheel = tmp_path / "x-1-py3-none-any.whl"
    wheel.write_bytes(b"")
    assert repair(wheel, tmp_path / "python", tmp_path / "house") == 5
    assert "does not answer" in capsys.readouterr().err
