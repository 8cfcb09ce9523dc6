"""Static indexes with pip and uv: over HTTP on this machine and from plain files."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import uv

from wheelmill.index import write_index
from wheelmill.wheel_file import content, write_wheel

pytestmark = pytest.mark.integration

LABEL = "cu130-torch2.11.0-sm100"
OTHER = "cu130-torch2.11.0-sm120"
VERSION = "2.8.3+cu130.torch2.11.0.sm100"


def wheel(root: Path, version: str, label: str) -> Path:
    """Write an installable wheel that says which one it is; it requires what no index here has."""
    stem = f"flash_attn-{version}"
    members = [
        content("flash_attn.py", f"LABEL = {label!r}\n".encode()),
        content(
            f"{stem}.dist-info/METADATA",
            f"Metadata-Version: 2.4\nName: flash-attn\nVersion: {version}\nRequires-Python: >=3.9\n"
            "Requires-Dist: torch==2.11.0\n".encode(),
        ),
        content(f"{stem}.dist-info/WHEEL", b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
    ]
    return write_wheel(members, root / f"{stem}-1-py3-none-any.whl", epoch=1_700_000_000).path


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """Fill a wheelhouse with the same release for two archs, an index each."""
    root = tmp_path / "wheelhouse"
    root.mkdir()
    write_index(root, LABEL, [wheel(root, VERSION, LABEL)])
    write_index(root, OTHER, [wheel(root, VERSION.replace("sm100", "sm120"), OTHER)])
    return root


class Handler(SimpleHTTPRequestHandler):
    """A plain static server that remembers what it was asked for."""

    asked: list[str]

    def do_GET(self) -> None:
        """Note and serve."""
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Keep the test's output clean."""


@pytest.fixture
def server(house: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve the wheelhouse on loopback."""
    asked: list[str] = []
    handler = type("Recording", (Handler,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(house))) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


def install(tool: str, index: str, target: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Install with nothing but this index, whatever the machine's settings say."""
    shutil.rmtree(target, ignore_errors=True)
    command = {
        "pip": [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "--no-cache-dir"],
        "uv": [uv.find_uv_bin(), "--no-config", "pip", "install", "--no-cache", "--python", sys.executable],
    }[tool]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIP_", "UV_")) and "proxy" not in name.lower()
    }
    return subprocess.run(
        [*command, "--target", str(target), "--index-url", index, *arguments],
        env={**kept, "PIP_CONFIG_FILE": os.devnull},
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("place", ["http", "file"])
@pytest.mark.parametrize("tool", ["pip", "uv"])
@pytest.mark.parametrize("asked", ["flash-attn", "flash_attn==2.8.3", f"flash-attn=={VERSION}"])
def test_by_name_from_any_place(
    asked: str, tool: str, place: str, house: Path, server: tuple[str, list[str]], tmp_path: Path
) -> None:
    """A name, a release and an exact local version all give the index's own build."""
    root = server[0] if place == "http" else house.as_uri()

    done = install(tool, f"{root}/simple/{LABEL}", tmp_path / "target", "--no-deps", asked)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "target" / "flash_attn.py").read_text() == f"LABEL = {LABEL!r}\n"
    info = tmp_path / "target" / f"flash_attn-{VERSION}.dist-info"
    assert f"Version: {VERSION}\n" in (info / "METADATA").read_text()


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_another_archs_build_is_not_in_the_index(tool: str, server: tuple[str, list[str]], tmp_path: Path) -> None:
    """In one shared index the higher local version would win in silence."""
    wanted = f"flash-attn=={VERSION.replace('sm100', 'sm120')}"

    assert install(tool, f"{server[0]}/simple/{LABEL}", tmp_path / "x", "--no-deps", wanted).returncode != 0
    assert install(tool, f"{server[0]}/simple/{OTHER}", tmp_path / "x", "--no-deps", wanted).returncode == 0


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_resolving_reads_the_metadata_only(tool: str, server: tuple[str, list[str]], tmp_path: Path) -> None:
    """With dependencies asked for, the wheel itself is not fetched before the resolution has failed."""
    done = install(tool, f"{server[0]}/simple/{LABEL}", tmp_path / "x", "flash-attn")

    assert done.returncode != 0
    assert "torch" in done.stderr
    files = {path.rpartition("/")[2] for path in server[1] if ".whl" in path}
    assert files == {f"flash_attn-{VERSION.replace('+', '%2B')}-1-py3-none-any.whl.metadata"}


@pytest.mark.parametrize("place", ["http", "file"])
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_altered_wheel_is_refused(
    tool: str, place: str, house: Path, server: tuple[str, list[str]], tmp_path: Path
) -> None:
    """What a lock pins is compared with what arrives."""
    [path] = house.glob("*sm100*.whl")
    root = server[0] if place == "http" else house.as_uri()
    locked = tmp_path / "lock.txt"
    page = (house / "simple" / LABEL / "flash-attn" / "index.html").read_text()
    sha256 = page.partition("#sha256=")[2][:64]
    locked.write_text(f"flash-attn=={VERSION} --hash=sha256:{sha256}\n")
    arguments = ("--no-deps", "--require-hashes", "-r", str(locked))
    assert install(tool, f"{root}/simple/{LABEL}", tmp_path / "x", *arguments).returncode == 0

    path.unlink()
    wheel(house, VERSION, "altered")
    done = install(tool, f"{root}/simple/{LABEL}", tmp_path / "x", *arguments)

    assert done.returncode != 0
    assert "hash" in (done.stdout + done.stderr).lower()
    assert not (tmp_path / "x" / "flash_attn.py").exists()


def test_pip_compares_the_pages_digest_without_a_lock(
    house: Path, server: tuple[str, list[str]], tmp_path: Path
) -> None:
    """The digest in the link guards a plain install, too."""
    [path] = house.glob("*sm100*.whl")
    path.unlink()
    wheel(house, VERSION, "altered")

    done = install("pip", f"{server[0]}/simple/{LABEL}", tmp_path / "x", "--no-deps", "flash-attn")

    assert done.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
