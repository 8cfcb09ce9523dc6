"""NVIDIA's archives over real sockets, with a compiled stand-in for nvcc and a wheel that uv installs."""

import base64
import hashlib
import io
import json
import os
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from wheelmill import cli
from wheelmill._process import SystemRunner
from wheelmill._uv import Uv
from wheelmill.catalog import Catalog, load_catalog
from wheelmill.errors import FetchError, HashMismatchError, WheelmillError
from wheelmill.pipeline import need_of_stack
from wheelmill.places import Http, index_settings
from wheelmill.redist import VARIABLE, provide
from wheelmill.runtime import Directories
from wheelmill.toolkit import Machine, Need, Toolkit, choose, examine, make_view

pytestmark = pytest.mark.integration

RUNNER = SystemRunner()
SYSTEM = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
NVCC_SOURCE = r"""
#include <stdio.h>
#include <string.h>
int main(int n, char **words) {
    if (n > 1 && !strcmp(words[1], "--version"))
        puts("Cuda compilation tools, release 12.8, V12.8.93");
    else if (n > 1 && !strcmp(words[1], "--list-gpu-code"))
        puts("sm_90\nsm_90a\nsm_100\nsm_100a\nsm_120");
    else
        return 1;
    return 0;
}
"""
PADDING = hashlib.shake_128(b"cicc").digest(1_200_000)
"""What does not compress, so that the archive of the compiler has a middle to break off at."""


class Mirror(BaseHTTPRequestHandler):
    """A server of files that misbehaves on request."""

    protocol_version = "HTTP/1.1"
    files: ClassVar[dict[str, bytes]] = {}
    broken_off: ClassVar[dict[str, list[int]]] = {}
    statuses: ClassVar[dict[str, list[int]]] = {}
    seen: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self) -> None:
        """Send a file, its rest, a piece of it, or a status."""
        wanted = self.headers.get("Range", "")
        name = self.path.rpartition("/")[2].split("-")[0]
        self.seen.append((name, wanted))
        start = int(wanted.removeprefix("bytes=").rstrip("-") or 0)
        if self.statuses.get(name):
            self.send(self.statuses[name].pop(0), b"")
        elif self.path.removeprefix("/redist/") not in self.files:
            self.send(404, b"")
        else:
            body = self.files[self.path.removeprefix("/redist/")][start:]
            self.send(206 if wanted else 200, body, only=(self.broken_off.get(name) or [len(body)]).pop(0))

    def send(self, status: int, body: bytes, only: int | None = None) -> None:
        """Answer, perhaps with less than was announced."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:only])
        self.close_connection = only is not None and only < len(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""


def archive(name: str, version: str, files: Mapping[str, bytes]) -> tuple[str, bytes]:
    """Make an archive as NVIDIA's are: its path and content. A content that begins with `->` is a link."""
    top = f"{name}-linux-x86_64-{version}-archive"
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:xz", preset=0) as content:
        for path, body in {**files, "LICENSE": f"the licence of {name}\n".encode()}.items():
            member = tarfile.TarInfo(f"{top}/{path}")
            member.mode = 0o755 if "bin/" in path else 0o644
            if body.startswith(b"->"):
                member.type, member.linkname = tarfile.SYMTYPE, body[2:].decode()
            else:
                member.size = len(body)
            content.addfile(member, io.BytesIO(body))
    return f"{name}/linux-x86_64/{top}.tar.xz", sink.getvalue()


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Make the archives, once."""
    root = tmp_path_factory.mktemp("nvcc")
    (root / "nvcc.c").write_text(NVCC_SOURCE)
    RUNNER.run(("gcc", "-O1", "-o", str(root / "nvcc"), str(root / "nvcc.c")), env=SYSTEM)
    return dict(
        [
            archive(
                "cuda_nvcc",
                "12.8.93",
                {
                    "bin/nvcc": (root / "nvcc").read_bytes(),
                    "bin/nvcc.profile": b"TOP = $(_HERE_)/..\n",
                    "include/crt/host_config.h": b"",
                    "nvvm/bin/cicc": PADDING,
                },
            ),
            archive(
                "cuda_cudart",
                "12.8.90",
                {
                    "include/cuda.h": b"int cuInit(unsigned flags);\n",
                    "lib/libcudart.so": b"->libcudart.so.12",
                    "lib/libcudart.so.12": b"->libcudart.so.12.8.90",
                    "lib/libcudart.so.12.8.90": b"\x7fELF",
                    "lib/stubs/libcuda.so": b"\x7fELF",
                    "pkg-config/cudart-12.8.pc": b"",
                },
            ),
            archive("cuda_cccl", "12.8.90", {"include/cub/cub.cuh": b"", "lib/cmake/cub/cub-config.cmake": b""}),
        ]
    )


def wheel(folder: Path) -> str:
    """Make a wheel as NVIDIA's are, on a simple index, and give its line of a lock."""
    info, name = "nvidia_cublas_cu12-12.8.4.1.dist-info", "nvidia_cublas_cu12-12.8.4.1-py3-none-any.whl"
    files = {
        "nvidia/__init__.py": b"",
        "nvidia/cublas/__init__.py": b"",
        "nvidia/cublas/include/__init__.py": b"",
        "nvidia/cublas/include/cublas_v2.h": b"",
        "nvidia/cublas/lib/__init__.py": b"",
        "nvidia/cublas/lib/libcublas.so.12": b"\x7fELF",
        f"{info}/License.txt": b"the licence of cublas\n",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: nvidia-cublas-cu12\nVersion: 12.8.4.1\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b'=').decode()},{len(body)}\n"
        for path, body in files.items()
    ]
    project = folder / "simple/nvidia-cublas-cu12"
    project.mkdir(parents=True)
    with zipfile.ZipFile(project / name, "w") as content:
        for path, body in {**files, f"{info}/RECORD": "".join([*rows, f"{info}/RECORD,,\n"]).encode()}.items():
            content.writestr(path, body)
    digest = hashlib.sha256((project / name).read_bytes()).hexdigest()
    (project / "index.html").write_text(f'<a href="{name}#sha256={digest}">{name}</a>')
    return f"nvidia-cublas-cu12==12.8.4.1 --hash=sha256:{digest}\n"


RECIPE = """
name = "cuda-12.8"
cuda = "12.8"
accepts = ["12.8", "12.9"]
gcc-below = 15
headers = ["cuda.h", "crt/host_config.h", "cub/cub.cuh", "cublas_v2.h"]
libraries = ["cudart", "cublas"]
needs-license = "a made-up licence"

[redistributable]
base-url = "https://cuda.invalid/redist/"
release = "12.8.2"
license-url = "https://cuda.invalid/eula/"
from-build-lock = ["nvidia-cublas-cu12"]
"""


def write_catalog(root: Path, archives: Mapping[str, bytes]) -> Catalog:
    """Write the shipped catalog with the made-up archives and wheel in place of the real ones."""
    shipped = Path(__file__).parents[2] / "recipes"
    recipes = root / "recipes"
    for folder in ("stacks", "toolkits"):
        (recipes / folder).mkdir(parents=True)
    (root / "patches").symlink_to(shipped.parent / "patches")
    (recipes / "flash-attn.toml").write_text((shipped / "flash-attn.toml").read_text())
    for name in ("cu128.toml", "cu128.run.txt"):
        (recipes / "stacks" / name).write_text((shipped / "stacks" / name).read_text())
    lock = load_catalog((shipped,)).build_lock(load_catalog((shipped,)).stack("cu128"))
    pins = [pin for name, pin in lock.pins.items() if name != "nvidia-cublas-cu12"]
    lines = [f"{pin.requirement} {' '.join(f'--hash=sha256:{each}' for each in pin.hashes)}\n" for pin in pins]
    (recipes / "stacks/cu128.build.txt").write_text("".join([*lines, wheel(root)]))
    tables = [
        f'[redistributable.components.{path.partition("/")[0]}]\nversion = "{path.rsplit("-", 2)[1]}"\n'
        f'path = "{path}"\nsha256 = "{hashlib.sha256(body).hexdigest()}"\nsize = {len(body)}\n'
        for path, body in archives.items()
    ]
    (recipes / "toolkits/cuda-12.8.toml").write_text(RECIPE + "\n".join(tables))
    return load_catalog((recipes,))


class Place:
    """A machine without CUDA, a mirror, and a catalog that pins what the mirror has."""

    def __init__(self, root: Path, url: str, archives: Mapping[str, bytes]) -> None:
        self.root, self.catalog = root, write_catalog(root, archives)
        self.told: list[str] = []
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(root / "home"),
            "UV_CACHE_DIR": str(root / "uv"),
            "UV_DEFAULT_INDEX": (root / "simple").as_uri(),
            VARIABLE: url,
        }

    def step(self, text: str) -> None:
        """Hear of a stage."""
        self.told.append(text)

    note = warn = step

    @property
    def need(self) -> Need:
        """What the stack needs."""
        return need_of_stack(self.catalog.stack("cu128"), self.catalog)

    @property
    def machine(self) -> Machine:
        """The machine, with a cache of its own."""
        directories = Directories(cache=self.root / "cache", wheelhouse=self.root / "wheelhouse")
        return Machine(env=self.env, runner=RUNNER, directories=directories, cwd=self.root, roots=())

    def provide(self, *, offline: bool = False) -> Toolkit:
        """Fetch."""
        uv = Uv(runner=RUNNER, env=self.env, index=index_settings(self.env, self.root), offline=offline)
        http = Http(pause=0, timeout=5)
        return provide(self.need, self.machine, uv=uv, python=Path(sys.executable), report=self, http=http)

    def refused(self, kind: type[WheelmillError]) -> WheelmillError:
        """Fetch, and give the error that must come of it; nothing may be left that looks like a toolkit."""
        with pytest.raises(kind) as caught:
            self.provide()
        assert not list(self.root.glob("cache/toolkits/*/files"))
        assert not list(self.root.glob("cache/toolkits/*/partial-*"))
        return caught.value


@pytest.fixture
def place(archives: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(Mirror, "files", dict(archives))
    monkeypatch.setattr(Mirror, "broken_off", {})
    monkeypatch.setattr(Mirror, "statuses", {})
    monkeypatch.setattr(Mirror, "seen", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield Place(tmp_path, f"http://127.0.0.1:{server.server_port}/redist", archives)
    server.shutdown()
    server.server_close()
    thread.join()


def test_archives_and_wheels_make_a_toolkit_that_serves(place: Place) -> None:
    """The toolkit passes the check of any toolkit, is chosen before the machine's, and a view shows it whole."""
    toolkit = place.provide()

    assert examine(toolkit.root, place.need, place.machine, origins=()).problems == ()
    assert choose(place.need, place.machine, given=None) == toolkit
    assert (toolkit.provider, toolkit.pinned, toolkit.nvcc_version) == ("redistributable", True, "12.8.93")
    licenses = {path.name: path.read_text() for path in (toolkit.root.parent / "licenses").iterdir()}
    assert licenses == {
        "cuda_cccl.txt": "the licence of cuda_cccl\n",
        "cuda_cudart.txt": "the licence of cuda_cudart\n",
        "cuda_nvcc.txt": "the licence of cuda_nvcc\n",
        "nvidia-cublas-cu12.txt": "the licence of cublas\n",
    }
    assert not list(toolkit.root.rglob("__init__.py"))
    view = make_view(toolkit, place.machine.directories.toolkits / toolkit.digest / "view", gcc="gcc", runner=RUNNER)
    for name in ("include/cublas_v2.h", "lib64/libcublas.so", "lib64/stubs/libcuda.so", "nvvm/bin/cicc"):
        assert (view.root / name).is_file()
    assert "V12.8.93" in RUNNER.run((str(view.nvcc_real), "--version"), env=SYSTEM).stdout


def test_a_second_fetch_asks_nobody(place: Place) -> None:
    """Each archive is asked for once, ever; without the toolkit the store and uv's cache make it again, offline."""
    toolkit = place.provide()
    assert sorted(Mirror.seen) == [("cuda_cccl", ""), ("cuda_cudart", ""), ("cuda_nvcc", "")]
    Mirror.seen.clear()

    assert place.provide() == toolkit
    toolkit.root.rename(place.root / "away")
    assert place.provide(offline=True) == toolkit
    assert Mirror.seen == []


def test_what_broke_off_is_gone_on_with(place: Place, archives: dict[str, bytes]) -> None:
    """The rest is asked for by Range; bytes that came before a failure are kept for the next run."""
    Mirror.broken_off["cuda_nvcc"] = [100_000, 300_000, 0, 0, 0]
    error = place.refused(FetchError)
    assert "cuda_nvcc-linux-x86_64-12.8.93-archive.tar.xz: cannot be reached: IncompleteRead" in str(error)
    assert place.provide().root.is_dir()

    asked = [wanted for name, wanted in Mirror.seen if name == "cuda_nvcc"]
    assert asked[:2] == ["", "bytes=100000-"]
    assert set(asked[2:]) == {"bytes=400000-"}


def test_a_busy_mirror_is_asked_three_times(place: Place) -> None:
    """Twice is waited out, the third time ends it with the server's own word."""
    Mirror.statuses["cuda_cudart"] = [503, 429]
    Mirror.statuses["cuda_nvcc"] = [500, 500, 500]

    error = place.refused(FetchError)

    assert str(error) == (
        f"cannot get {place.env[VARIABLE]}/cuda_nvcc/linux-x86_64/cuda_nvcc-linux-x86_64-12.8.93-archive.tar.xz: "
        "answered 500 Internal Server Error"
    )
    assert place.provide().root.is_dir()


def test_a_mirror_with_other_bytes_is_refused(place: Place) -> None:
    """Nothing is unpacked before its digest is right."""
    path = next(path for path in Mirror.files if path.startswith("cuda_cudart/"))
    Mirror.files[path] += b"!"

    error = place.refused(HashMismatchError)

    assert "redistributable.components.cuda_cudart)" in str(error)


def test_two_at_once_make_one(place: Place) -> None:
    """Whoever is second takes what the first made, and each archive comes once."""
    made: list[Toolkit] = []
    workers = [threading.Thread(target=lambda: made.append(place.provide())) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert len(made) == 3
    assert len(set(made)) == 1
    assert len(Mirror.seen) == 3
    assert sorted(path.name for path in made[0].root.parent.iterdir()) == ["files", "install.log", "licenses"]


def test_the_command_fetches_and_plan_takes_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From refusal to refusal's own advice to a plan that names the provider; the licence stands between."""
    for name in ("CUDA_HOME", "CUDA_PATH", "UV_FIND_LINKS", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    common = ("--recipes", str(place.root / "recipes"), "--cache", str(place.root / "cache"), "--json")

    def run(*words: str) -> tuple[int, str, str]:
        return cli.main((*words, *common)), *capsys.readouterr()

    assert run("fetch", "cuda-12.8")[0] == 2
    status, _, err = run("fetch", "cuda-12.8", "--accept-license")
    assert status == 0
    assert "3 archives, 1.2 MB, from http://127.0.0.1:" in err
    status, out, _ = run("plan", "flash-attn")
    assert status == 0
    [planned] = json.loads(out)["derivations"]
    assert planned["toolkit"] == {"cuda": "12.8", "nvcc": "12.8.93", "provider": "redistributable"}
