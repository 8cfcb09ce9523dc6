"""Repair with gcc and auditwheel: small extensions against libraries that bear torch's and CUDA's names."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from wheelmill._process import SystemRunner
from wheelmill.archive import zip_problems
from wheelmill.errors import AbiMismatchError, ForeignLibraryError, PlatformFloorError, RepairError
from wheelmill.repair import AuditedWheel, Stamp, audit, repair, repair_policy, stamp
from wheelmill.wheel_file import check_record, content, disagreements, read_wheel, write_wheel

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
]

EPOCH = 1_700_000_000
NAME = "tiny-1.0-cp312-cp312-linux_x86_64.whl"
OLD = "int getpid(void); int f(void) { return getpid(); }"
NEW = "int pthread_kill(unsigned long, int); int f(void) { return pthread_kill(0, 0); }"
"""glibc 2.34 moved pthread_kill into libc.so.6, under a new version."""

ENV = {"PATH": os.environ["PATH"]}


def gcc(*arguments: str | Path, source: str = "") -> None:
    """Compile or link from stdin."""
    subprocess.run(
        ["gcc", "-x", "c", "-fPIC", "-shared", "-O1", "-g0", "-", "-x", "none", *map(str, arguments)],
        input=source.encode(),
        check=True,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Shop:
    """A build environment with the libraries of a stack, and what is built in it."""

    root: Path

    @property
    def site(self) -> Path:
        """Site-packages of the locked environment."""
        return self.root / "site"

    def library(self, project: str, path: str, *, requires: Sequence[str] = (), soname: str = "") -> None:
        """Install a library as a project's."""
        file = self.site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        name = soname or file.name
        script = self.root / "versions.map"
        script.write_text(f"{name} {{ *; }};\n")  # libcudart numbers its symbols so
        gcc(
            "-o",
            file,
            f"-Wl,-soname,{name},--version-script={script}",
            source=f"int {symbol(name)}(void) {{ return 1; }}",
        )
        info = self.site / f"{project.replace('-', '_')}-1.dist-info"
        info.mkdir(exist_ok=True)
        lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {project}\nVersion: 1\n{lines}")
        with (info / "RECORD").open("a") as record:
            record.write(f"{path},,\n")

    def find(self, soname: str) -> Path:
        """Find an installed library."""
        return next(self.site.rglob(soname))

    def extension(self, name: str, *links: str | Path, source: str = OLD) -> Path:
        """Link an extension that uses every given library."""
        output = self.root / name
        libraries = [link for link in links if isinstance(link, Path)]
        calls = "".join(f" + {symbol(link.name)}()" for link in libraries)
        declared = "".join(f"int {symbol(link.name)}(void);" for link in libraries)
        module = name.partition(".")[0]
        text = f"{source} {declared} void *PyInit_{module}(void) {{ return (void *)(long)(f(){calls}); }}"
        gcc("-o", output, "-Wl,--no-as-needed", *links, source=text)
        return output

    def wheel(self, **files: Path) -> Path:
        """Pack files into a wheel, as a backend would."""
        metadata = b"Metadata-Version: 2.4\nName: tiny\nVersion: 1.0\nRequires-Dist: torch\n"
        texts = b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-cp312-linux_x86_64\n"
        members = [
            content("tiny-1.0.dist-info/METADATA", metadata),
            content("tiny-1.0.dist-info/WHEEL", texts),
            *(content(f"tiny/{path.name}", path.read_bytes(), executable=True) for path in files.values()),
        ]
        built = self.root / "built"
        built.mkdir(exist_ok=True)
        return write_wheel(members, built / NAME, epoch=EPOCH).path

    def audit(self, wheel: Path, *, ceiling: str = "") -> AuditedWheel:
        """Judge it by what is installed."""
        policy = repair_policy(self.site, ceiling=ceiling)
        return audit(wheel, policy=policy, runner=SystemRunner(), env=ENV)


def symbol(soname: str) -> str:
    """Name the one function of a library."""
    return "of_" + "".join(letter if letter.isalnum() else "_" for letter in soname)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Install torch, CUDA 13, and a project that torch does not require."""
    shop = Shop(root=tmp_path)
    shop.library("torch", "torch/lib/libc10.so", requires=["nvidia-cuda-runtime", "triton"])
    shop.library("torch", "torch/lib/libtorch.so", requires=["nvidia-cuda-runtime", "triton"])
    shop.library("nvidia-cuda-runtime", "nvidia/cu13/lib/libcudart.so.13")
    shop.library("triton", "triton/lib/libcudart.so.12")
    shop.library("nvidia-nvvm", "nvidia/cu13/lib/libnvvm.so.4")
    shop.library("driver", "libcuda.so.1")
    shutil.rmtree(tmp_path / "site" / "driver-1.dist-info")
    return shop


def digests(path: Path) -> dict[str, str]:
    """Digest what is compiled."""
    with zipfile.ZipFile(path) as archive:
        return {
            name: hashlib.sha256(archive.read(name)).hexdigest()
            for name in archive.namelist()
            if archive.read(name)[:4] == b"\x7fELF"
        }


def test_torch_extension_becomes_one_honest_wheel(shop: Shop, tmp_path: Path) -> None:
    """One platform tag, owners for all that is left out, not a compiled byte changed, and auditwheel agrees."""
    libraries = [shop.find(name) for name in ("libc10.so", "libtorch.so", "libcudart.so.13", "libcuda.so.1")]
    built = shop.wheel(extension=shop.extension("_C.abi3.so", *libraries))

    audited = shop.audit(built)
    given = Stamp(version="1.0+cu130", build_tag="1", epoch=EPOCH, requires={"torch": "==2.11.0"})
    stamped = stamp(audited, stamp=given, destination=tmp_path)

    assert stamped.path.name == "tiny-1.0+cu130-1-cp312-cp312-manylinux_2_5_x86_64.whl"
    assert stamped.external == {
        "libc10.so": "torch",
        "libcuda.so.1": "the driver",
        "libcudart.so.13": "nvidia-cuda-runtime",
        "libtorch.so": "torch",
    }
    assert digests(stamped.path) == digests(built)
    assert len(digests(built)) == 1
    assert check_record(stamped.path) == disagreements(read_wheel(stamped.path)) == ()
    excludes = [word for soname in stamped.external for word in ("--exclude", soname)]
    command = [sys.executable, "-m", "auditwheel", "repair", "--patcher", "none", "--only-plat", *excludes]
    target = tmp_path / "again"
    subprocess.run(
        [*command, "--plat", stamped.platform_tag, "-w", target, stamped.path], check=True, capture_output=True
    )
    assert len(list(target.iterdir())) == 1


def test_libraries_on_this_machine_have_no_say(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Auditwheel alone would graft what LD_LIBRARY_PATH finds; here the verdict stays."""
    built = shop.wheel(extension=shop.extension("_C.so", shop.find("libtorch.so")))
    policy, runner = repair_policy(shop.site), SystemRunner()
    found = ":".join(str(path) for path in (shop.site / "torch/lib", shop.site / "nvidia/cu13/lib"))

    plain = audit(built, policy=policy, runner=runner, env=ENV)
    tempted = audit(built, policy=policy, runner=runner, env={**ENV, "LD_LIBRARY_PATH": found, "AUDITWHEEL_PLAT": "x"})

    assert plain == tempted


def test_other_major_version_is_a_slip(shop: Shop) -> None:
    """Built against CUDA 12 in a CUDA 13 stack, though triton carries a libcudart.so.12 of its own."""
    built = shop.wheel(extension=shop.extension("_C.so", shop.find("libcudart.so.12")))

    with pytest.raises(AbiMismatchError) as caught:
        shop.audit(built)

    assert str(caught.value) == (
        f"{NAME} cannot be put right:\n"
        "  tiny/_C.so needs libcudart.so.12, but the locked stack has libcudart.so.13 (nvidia-cuda-runtime)"
    )


def test_unowned_library_is_named_with_its_candidate(shop: Shop) -> None:
    """Installed for the build is not required by the wheel."""
    built = shop.wheel(extension=shop.extension("_C.so", shop.find("libnvvm.so.4")))

    with pytest.raises(ForeignLibraryError, match=r"installed candidates: nvidia-nvvm \(libnvvm\.so\.4\)"):
        shop.audit(built)


def test_run_path_of_the_build_machine(shop: Shop) -> None:
    """Auditwheel leaves it in when it grafts nothing."""
    built = shop.wheel(extension=shop.extension("_C.so", "-Wl,-rpath,/opt/venv/lib", shop.find("libc10.so")))

    with pytest.raises(
        RepairError, match=r"tiny/_C.so has the run path '/opt/venv/lib', a folder of the build machine"
    ):
        shop.audit(built)


def test_library_in_the_wheel_needs_a_run_path(shop: Shop) -> None:
    """With `$ORIGIN` it is found, without it is not."""
    shop.library("tiny", "libhelper.so")
    helper = shop.find("libhelper.so")
    shutil.rmtree(shop.site / "tiny-1.dist-info")

    good = shop.wheel(extension=shop.extension("_C.so", "-Wl,-rpath,$ORIGIN", helper), helper=helper)
    assert shop.audit(good).platform_tag == "manylinux_2_5_x86_64"

    bad = shop.wheel(extension=shop.extension("_C.so", helper), helper=helper)
    with pytest.raises(
        ForeignLibraryError, match=r"tiny/_C.so needs libhelper.so; it is in the wheel, but no run path"
    ):
        shop.audit(bad)


def test_copy_of_torchs_library(shop: Shop) -> None:
    """What grafting by hand leaves."""
    library = shop.find("libc10.so")
    built = shop.wheel(extension=shop.extension("_C.so", "-Wl,-rpath,$ORIGIN", library), copy=library)

    with pytest.raises(RepairError, match=r"tiny/libc10.so is a copy of libc10.so, which torch brings"):
        shop.audit(built)


@pytest.mark.skipif(
    tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))) < (2, 34),  # type: ignore[union-attr]
    reason="this glibc has no newer symbol to use",
)
def test_floor_is_what_the_symbols_need(shop: Shop) -> None:
    """A symbol of glibc 2.34 makes it manylinux_2_34, which a lower ceiling refuses in so many words."""
    built = shop.wheel(extension=shop.extension("_C.so", source=NEW))

    assert shop.audit(built).platform_tag == "manylinux_2_34_x86_64"
    with pytest.raises(PlatformFloorError) as caught:
        shop.audit(built, ceiling="manylinux_2_28")
    assert str(caught.value) == (
        f"{NAME} cannot be put right:\n  it needs GLIBC_2.34, so it is manylinux_2_34_x86_64, newer than manylinux_2_28"
    )


def test_instructions_beyond_the_baseline(shop: Shop) -> None:
    """An extension marked for x86-64-v3 fits no policy."""
    built = shop.wheel(extension=shop.extension("_C.so", "-Wl,-z,x86-64-v3"))

    with pytest.raises(PlatformFloorError, match="no platform policy allows its instructions"):
        shop.audit(built)


def packed(path: Path) -> dict[str, tuple[int, int, int]]:
    """Give how every member outside of dist-info is packed."""
    with zipfile.ZipFile(path) as archive:
        return {
            info.filename: (info.compress_type, info.compress_size, info.CRC)
            for info in archive.infolist()
            if ".dist-info/" not in info.filename
        }


def test_repair_is_idempotent_and_packs_nothing_again(shop: Shop, tmp_path: Path) -> None:
    """A repaired wheel becomes itself; what does not change stays packed as it was, by whatever tool."""
    built = shop.wheel(extension=shop.extension("_C.so", shop.find("libc10.so")))
    policy, runner = repair_policy(shop.site), SystemRunner()

    def run(wheel: Path, folder: str) -> tuple[str, Path]:
        (tmp_path / folder).mkdir()
        done = repair(wheel, policy=policy, destination=tmp_path / folder, epoch=EPOCH, runner=runner, env=ENV)
        return done.sha256, done.path

    first, path = run(built, "a")
    again, _ = run(path, "b")
    (tmp_path / "loose").mkdir()
    loose = tmp_path / "loose" / NAME
    with zipfile.ZipFile(built) as source, zipfile.ZipFile(loose, "w", zipfile.ZIP_STORED) as target:
        for info in reversed(source.infolist()):
            data = source.read(info)
            info.date_time, info.compress_type = (1999, 9, 9, 9, 9, 8), zipfile.ZIP_STORED
            target.writestr(info, data)
    _, other = run(loose, "c")

    assert first == again
    assert packed(path) == packed(built) != packed(other) == packed(loose)
    assert digests(path) == digests(built) == digests(other)
    assert read_wheel(path).content_digest == read_wheel(other).content_digest
    assert check_record(other) == zip_problems(other) == zip_problems(path) == ()


def test_a_wheel_renamed_upstream_is_put_right(shop: Shop, tmp_path: Path) -> None:
    """As vLLM's own: the file name says manylinux, WHEEL says linux; after it both say what the symbols need."""
    built = shop.wheel(extension=shop.extension("_C.so", shop.find("libc10.so")))
    renamed = built.rename(built.with_name("tiny-1.0-cp312-cp312-manylinux_2_31_x86_64.whl"))
    policy = repair_policy(shop.site)
    (tmp_path / "out").mkdir()
    done = repair(
        renamed,
        policy=policy,
        destination=tmp_path / "out",
        epoch=EPOCH,
        runner=SystemRunner(),
        env=ENV,
        floor="manylinux_2_28_x86_64",
    )
    assert done.path.name == "tiny-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    assert disagreements(read_wheel(done.path)) == ()
    assert packed(done.path) == packed(renamed)


def test_nothing_is_left_of_a_wheel_that_cannot_be_put_right(shop: Shop, tmp_path: Path) -> None:
    """Neither the wheel nor a part of it, nor the copies that were judged."""
    built = shop.wheel(extension=shop.extension("_C.so", shop.find("libnvvm.so.4")))
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    for folder in (out, scratch):
        folder.mkdir()
    env = {**ENV, "TMPDIR": str(scratch)}
    policy = repair_policy(shop.site)
    with pytest.raises(ForeignLibraryError):
        repair(built, policy=policy, destination=out, epoch=EPOCH, runner=SystemRunner(), env=env)
    assert [*out.iterdir(), *scratch.iterdir()] == []
