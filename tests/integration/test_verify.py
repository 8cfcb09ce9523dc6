"""The gate on wheels made with gcc and zip: forty of them, good and bad, each with the checks that must object.

The stack is a site-packages folder with libraries that bear torch's and CUDA's names and symbols.
"""

import io
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from wheelmill.arch import Arch
from wheelmill.elf import read_elf
from wheelmill.platforms import above, brought_in, explain_above, platform_called
from wheelmill.recipe import CodePolicy
from wheelmill.repair import repair_policy
from wheelmill.verify import Beside, Expectation, judge_file

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
]

TAG = "cp312-cp312-manylinux_2_28_x86_64"
VERSION = "1.0+cu130.torch2.11.0.sm100"
INFO = f"demo-{VERSION}.dist-info"
NAME = f"demo-{VERSION}-1-{TAG}.whl"
ABI_NEW = "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
ABI_OLD = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
MINOR = "_ZNK3c106SymInt6sym_neERKS0_"
ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")


def symbol_table(*names: str) -> bytes:
    """Make a cubin's symbols and their names behind a header, as far as anybody looks."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    symbols, place = bytes(24), 1
    for name in names:
        symbols += struct.pack("<IBBHQQ", place, 0x12, 0x10, 1, 0, 0)
        place += len(name) + 1
    body = strings.ljust(-(-len(strings) // 8) * 8, b"\0") + symbols + b".text.kernel".ljust(16, b"\0")
    section = struct.Struct("<IIQQQQIIQQ")
    table = section.pack(*[0] * 10)
    table += section.pack(0, 3, 0, 0, 64, len(strings), 0, 0, 1, 0)
    table += section.pack(0, 2, 0, 0, 64 + len(body) - len(symbols) - 16, len(symbols), 1, 1, 8, 24)
    return body + table


def cubin(number: int, *names: str) -> bytes:
    """Make machine code for one architecture, with these kernels."""
    body = symbol_table(*names)
    head = struct.pack(
        "<7sBB7xHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 0x41, 8, 2, 190, 1, 0, 0, 64 + len(body) - 192,
        number << 8 | 2, 64, 56, 0, 64, 3, 0,
    )  # fmt: skip
    return head + body


def fatbin(*codes: tuple[int, tuple[str, ...]], ptx: int = 0) -> bytes:
    """Make a fat binary of machine code, and of PTX where that is asked for."""
    contents = [(2, number, cubin(number, *names)) for number, names in codes]
    if ptx:
        contents.append((1, ptx, f".version 9.0\n.target sm_{ptx}\n.visible .entry k0()\n".encode().ljust(64, b"\0")))
    body = b""
    for kind, number, data in contents:
        padded = data.ljust(-(-len(data) // 8) * 8, b"\0")
        body += ENTRY.pack(kind, 0x101, 64, len(padded), 0, 0, 8, 1, number, 0, 0, 0x11, 0, 0) + padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


CODE = fatbin((100, ("k0", "k1")))


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A stack to build against, and what is built."""

    root: Path

    @property
    def site(self) -> Path:
        """Site-packages of the stack."""
        return self.root / "site"

    def gcc(self, output: Path, source: str, *arguments: str | Path) -> Path:
        """Compile and link a library."""
        output.parent.mkdir(parents=True, exist_ok=True)
        command = ["gcc", "-x", "c", "-fPIC", "-shared", "-O1", "-g0", "-s", "-w", "-", "-x", "none", "-o", str(output)]
        subprocess.run([*command, *map(str, arguments)], input=source.encode(), check=True)
        return output

    def library(self, project: str, path: str, *symbols: str, requires: str = "", more: tuple[str, ...] = ()) -> None:
        """Install a library as a project's."""
        file = self.site / path
        source = "".join(f"int {name}(void) {{ return 1; }}\n" for name in symbols)
        self.gcc(file, source, f"-Wl,-soname,{file.name}", *more)
        info = self.site / f"{project.replace('-', '_')}-1.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {project}\nVersion: 1\n{requires}")
        with (info / "RECORD").open("a") as record:
            record.write(f"{path},,\n")

    def extension(
        self,
        *wants: str,
        code: bytes = CODE,
        links: tuple[str, ...] = ("libc10.so", "libcudart.so.13"),
        flags: tuple[str, ...] = (),
        source: str = "",
    ) -> bytes:
        """Build an extension that calls these functions."""
        declared = "".join(f"int {name}(void);\n" for name in wants)
        calls = " + ".join(f"{name}()" for name in ("0", *wants)).replace("0()", "0")
        text = f"{source}\n{declared}void *PyInit_demo_cuda(void) {{ return (void *)(long)({calls}); }}\n"
        libraries = [next(self.root.rglob(name)) for name in links]
        output = self.gcc(
            self.root / "demo_cuda.so",
            text,
            "-Wl,--no-as-needed",
            *flags,
            *libraries,
            "-Wl,--unresolved-symbols=ignore-all",
        )
        if code:
            section = self.root / "code"
            section.write_bytes(code)
            add = ["objcopy", "--add-section", f".nv_fatbin={section}", "--set-section-alignment", ".nv_fatbin=8"]
            subprocess.run([*add, str(output)], check=True)
        return output.read_bytes()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Install torch and CUDA 13, and put other CUDA releases beside them."""
    bench = Bench(root=tmp_path_factory.mktemp("bench"))
    requires = "Requires-Dist: nvidia-cuda-runtime\n"
    bench.library("torch", "torch/lib/libc10.so", ABI_NEW, "c10_thing", requires=requires)
    bench.library("torch", "torch/lib/libtorch_cpu.so", "torch_thing", requires=requires)
    bench.library("nvidia-cuda-runtime", "nvidia/cu13/lib/libcudart.so.13", "cudaMalloc", "cudaLaunchKernel")
    for name in ("libcudart.so.12", "libcuda.so.1", "libmkl_rt.so.2", "libhelper.so"):
        bench.gcc(bench.root / "other" / name, "int other_thing(void) { return 1; }", f"-Wl,-soname,{name}")
    return bench


METADATA = f"Metadata-Version: 2.4\nName: demo\nVersion: {VERSION}\nRequires-Dist: torch==2.11.0\n"
WHEEL = f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: {TAG}\nBuild: 1\n"


def sha256(data: bytes) -> str:
    """Digest as RECORD does."""
    from base64 import urlsafe_b64encode
    from hashlib import sha256 as digest

    return f"sha256={urlsafe_b64encode(digest(data).digest()).rstrip(b'=').decode()}"


def wheel(
    folder: Path,
    extension: bytes,
    *,
    name: str = NAME,
    files: Mapping[str, bytes | None] | None = None,
    record: Callable[[str], str] = lambda text: text,
    finish: Callable[[bytes], bytes] = lambda data: data,
) -> Path:
    """Pack a wheel by hand: `files` are added, replaced, or left out where they are None."""
    members: dict[str, bytes | None] = {
        "demo/__init__.py": b"",
        "demo_cuda.cpython-312-x86_64-linux-gnu.so": extension,
        f"{INFO}/METADATA": METADATA.encode(),
        f"{INFO}/WHEEL": WHEEL.encode(),
        **(files or {}),
    }
    present = {name: data for name, data in members.items() if data is not None}
    lines = "".join(f"{name},{sha256(data)},{len(data)}\n" for name, data in present.items())
    present[f"{INFO}/RECORD"] = record(f"{lines}{INFO}/RECORD,,\n").encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in present.items():
            archive.writestr(member, data)
    path = folder / name
    path.write_bytes(finish(stream.getvalue()))
    return path


WANTED = Expectation(
    version=VERSION,
    archs=(Arch.parse("10.0"),),
    torch="2.11.0",
    extensions=("demo_cuda",),
    top_level=("demo", "demo_cuda"),
    absent=("hopper", "demo/cute"),
)
TWO = (Arch.parse("10.0"), Arch.parse("12.0"))
BOTH = fatbin((100, ("k0", "k1")), (120, ("k0", "k1")))
NEWER = "int pthread_kill(unsigned long, int); int newer(void) { return pthread_kill(0, 0); }"
"""glibc 2.34 moved pthread_kill into libc.so.6, under a new version."""
SINGLE = "extern char __libc_single_threaded; int newer(void) { return __libc_single_threaded; }"


def twice(data: bytes) -> bytes:
    """Put a member in a second time."""
    stream = io.BytesIO(data)
    with zipfile.ZipFile(stream, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("demo/__init__.py", b"import os")
    return stream.getvalue()


def with_member(name: str) -> Callable[[bytes], bytes]:
    """Put a member with such a name in, past RECORD."""

    def add(data: bytes) -> bytes:
        stream = io.BytesIO(data)
        with zipfile.ZipFile(stream, "a") as archive:
            archive.writestr(name, b"import os")
        return stream.getvalue()

    return add


def flipped(data: bytes) -> bytes:
    """Flip a bit of packed data."""
    made = bytearray(data)
    made[data.index(b"demo_cuda.cpython") + 200] ^= 1
    return bytes(made)


def bomb(data: bytes) -> bytes:
    """Put in a member of a hundred megabytes of nothing."""
    stream = io.BytesIO(data)
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("demo/zeros", bytes(100_000_000))
    return stream.getvalue()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One wheel: how it is built, how packed, what is asked of it, and the checks that must object with what words."""

    extension: Callable[[Bench], bytes] = lambda bench: bench.extension("c10_thing", "cudaMalloc")
    pack: Callable[[Path, bytes], Path] = wheel
    wanted: Expectation = WANTED
    objections: tuple[tuple[str, str], ...] = ()


def packed(**options: object) -> Callable[[Path, bytes], Path]:
    """Pack in this way."""
    return lambda folder, extension: wheel(folder, extension, **options)  # type: ignore[arg-type]


def files(**changes: bytes | None) -> Callable[[Path, bytes], Path]:
    """Pack with these files, named from dist-info where they begin with a capital letter."""
    return packed(files={f"{INFO}/{name}" if name[0].isupper() else name: data for name, data in changes.items()})


CASES: dict[str, Case] = {
    # right
    "as it should be": Case(),
    "pure PTX beside code": Case(
        extension=lambda bench: bench.extension(code=fatbin((100, ("k0",)), ptx=100)),
        wanted=replace(WANTED, archs=(Arch.parse("10.0+PTX"),)),
    ),
    "two architectures": Case(extension=lambda bench: bench.extension(code=BOTH), wanted=replace(WANTED, archs=TWO)),
    "the driver's functions": Case(
        extension=lambda bench: bench.extension("cuMemCreate", links=("libc10.so", "libcuda.so.1"))
    ),
    "torch in the torch library that it names": Case(
        extension=lambda bench: bench.extension("torch_thing", links=("libtorch_cpu.so",))
    ),
    "the new C++ ABI": Case(extension=lambda bench: bench.extension(ABI_NEW)),
    "the interpreter's functions": Case(extension=lambda bench: bench.extension("PyLong_FromLong", "_Py_Dealloc")),
    "a library of its own beside it": Case(
        extension=lambda bench: bench.extension("other_thing", links=("libhelper.so",), flags=("-Wl,-rpath,$ORIGIN",)),
        pack=lambda folder, extension: wheel(
            folder, extension, files={"libhelper.so": next(folder.parent.rglob("other/libhelper.so")).read_bytes()}
        ),
        wanted=replace(WANTED, top_level=(*WANTED.top_level, "libhelper")),
    ),
    "more code where the recipe lets it": Case(
        extension=lambda bench: bench.extension(code=BOTH),
        wanted=replace(WANTED, code={"demo_cuda": CodePolicy(rule="at-least")}),
    ),
    "older PTX where the recipe lets it": Case(
        extension=lambda bench: bench.extension(code=fatbin((80, ("k0",)), ptx=80)),
        wanted=replace(WANTED, code={"demo_cuda": CodePolicy(rule="ptx")}),
    ),
    "kernels of one GPU where the recipe lets it": Case(
        extension=lambda bench: bench.extension(code=fatbin((100, ("k0", "k1")), (120, ("k0",)))),
        wanted=replace(WANTED, archs=TWO, code={"demo_cuda": CodePolicy(kernels="any")}),
    ),
    "no code where none should be": Case(
        extension=lambda bench: bench.extension(code=b""),
        wanted=replace(WANTED, extensions=(), code={"demo_cuda": CodePolicy(rule="none")}),
    ),
    "small enough for its channel": Case(wanted=replace(WANTED, channel="pypi")),
    # the archive
    "a member twice": Case(pack=packed(finish=twice), objections=(("readable", "is in the archive twice"),)),
    "a name that leads out": Case(
        pack=packed(finish=with_member("../evil.py")), objections=(("readable", "is not a plain relative path"),)
    ),
    "an absolute name": Case(
        pack=packed(finish=with_member("/etc/evil.py")), objections=(("readable", "is an absolute path"),)
    ),
    "something after its end": Case(
        pack=packed(finish=lambda data: data + b"x"), objections=(("archive", "something follows it"),)
    ),
    "something before its beginning": Case(
        pack=packed(finish=lambda data: b"#!/bin/sh\n" + data), objections=(("archive", "should end at byte"),)
    ),
    "another name in a member's own header": Case(
        pack=packed(finish=lambda data: data.replace(b"demo/__init__.py", b"demo/__evil__.py", 1)),
        objections=(("archive", "has another name in its own header"), ("record", "cannot be unpacked")),
    ),
    "a bomb": Case(pack=packed(finish=bomb), objections=(("readable", "would unpack"),)),
    "a flipped bit": Case(
        pack=packed(finish=flipped),
        objections=(("record", "demo_cuda"), ("device-code", "there is no extension demo_cuda")),
    ),
    "cut off": Case(pack=packed(finish=lambda data: data[:-30]), objections=(("readable", "File is not a zip file"),)),
    "no zip at all": Case(
        pack=packed(finish=lambda _: b"<html>404</html>"), objections=(("readable", "File is not a zip file"),)
    ),
    # RECORD and names
    "another digest in RECORD": Case(
        pack=packed(record=lambda text: text.replace("__init__.py,sha256=4", "__init__.py,sha256=5")),
        objections=(("record", "is not what RECORD says"),),
    ),
    "a file that RECORD does not list": Case(
        pack=packed(finish=with_member("demo/more.py")), objections=(("readable", "demo/more.py is not in RECORD"),)
    ),
    "renamed by hand": Case(
        pack=packed(name=NAME.replace("2_28", "2_17")), objections=(("names", "the file name says cp312"),)
    ),
    "a file name that is none": Case(
        pack=packed(name="demo.whl"), objections=(("readable", "its file name is not a wheel's"),)
    ),
    "another version in METADATA": Case(
        pack=files(METADATA=METADATA.replace("+cu130", "+cu128").encode()),
        objections=(("names", "METADATA says 1.0+cu128"),),
    ),
    "another stack's local version": Case(
        wanted=replace(WANTED, version="1.0+cu128.torch2.9.1.sm100"),
        objections=(("names", "was asked for"),),
    ),
    "not repaired": Case(
        pack=packed(
            name=NAME.replace("manylinux_2_28", "linux"),
            files={f"{INFO}/WHEEL": WHEEL.replace("manylinux_2_28", "linux").encode()},
        ),
        objections=(("platform", "linux_x86_64 is no manylinux tag"),),
    ),
    # symbols and libraries
    "a symbol of a newer glibc": Case(
        extension=lambda bench: bench.extension(source=NEWER),
        objections=(("floor", "needs GLIBC_2.34, for pthread_kill"),),
    ),
    "the symbol that libstdc++ brings in": Case(
        extension=lambda bench: bench.extension(source=SINGLE),
        objections=(("floor", "needs GLIBC_2.32, for __libc_single_threaded"),),
    ),
    "instructions of newer processors": Case(
        extension=lambda bench: bench.extension(flags=("-Wl,-z,x86-64-v3",)),
        objections=(("floor", "needs a processor of level x86-64-v3"),),
    ),
    "an executable stack": Case(
        extension=lambda bench: bench.extension(flags=("-Wl,-z,execstack",)),
        objections=(("elf", "asks for an executable stack"),),
    ),
    "the old C++ ABI": Case(
        extension=lambda bench: bench.extension(ABI_OLD),
        objections=(("symbols", "torch has this function with the other C++ ABI"),),
    ),
    "another minor release of torch": Case(
        extension=lambda bench: bench.extension(MINOR),
        objections=(("symbols", f"wants {MINOR}: no function of the locked torch: another minor release"),),
    ),
    "another CUDA": Case(
        extension=lambda bench: bench.extension(links=("libc10.so", "libcudart.so.12")),
        objections=(
            ("libraries", "needs libcudart.so.12, but the locked stack has libcudart.so.13 (nvidia-cuda-runtime)"),
        ),
    ),
    "a function that this CUDA does not have": Case(
        extension=lambda bench: bench.extension("cudaGone"),
        objections=(("symbols", "wants cudaGone: no function of the locked libcudart: another CUDA"),),
    ),
    "a library that it does not name": Case(
        extension=lambda bench: bench.extension("cudaMalloc", "torch_thing"),
        objections=(("symbols", "wants torch_thing: nobody has it"),),
    ),
    "a stranger's library": Case(
        extension=lambda bench: bench.extension(links=("libmkl_rt.so.2",)),
        objections=(("libraries", "libmkl_rt.so.2, which is neither the platform's, nor in the wheel"),),
    ),
    "a run path of the machine": Case(
        extension=lambda bench: bench.extension(flags=("-Wl,-rpath,/home/me/lib",)),
        objections=(("run-path", "has run path /home/me/lib"),),
    ),
    # device code
    "code for another GPU": Case(
        extension=lambda bench: bench.extension(code=fatbin((120, ("k0",)))),
        objections=(("device-code", "holds sm_120, and sm_100 was asked for"),),
    ),
    "no code": Case(
        extension=lambda bench: bench.extension(code=b""),
        objections=(("device-code", "holds no device code"),),
    ),
    "PTX alone": Case(
        extension=lambda bench: bench.extension(code=fatbin(ptx=90)),
        objections=(("device-code", "holds compute_90, and sm_100 was asked for"),),
    ),
    "a kernel that one GPU lacks": Case(
        extension=lambda bench: bench.extension(code=fatbin((100, ("k0", "k1")), (120, ("k0",)))),
        wanted=replace(WANTED, archs=TWO),
        objections=(("kernels", "has no sm_120 of k1, which it has for other architectures"),),
    ),
    # contents
    "torch is not pinned": Case(
        pack=files(METADATA=METADATA.replace("torch==2.11.0", "torch>=2.11").encode()),
        objections=(("requires-torch", "METADATA requires torch>=2.11"),),
    ),
    "a stray package": Case(
        pack=packed(files={"hopper/__init__.py": b""}),
        objections=(("contents", "stray top-level hopper"), ("contents", "hopper is in it, and must not be")),
    ),
    "an undeclared part": Case(
        pack=packed(files={"demo/cute/__init__.py": b""}),
        objections=(("contents", "demo/cute is in it, and must not be"),),
    ),
    "leftovers of the build": Case(
        pack=packed(files={"demo/__pycache__/x.cpython-312.pyc": b"x", "demo/x.o": b"x"}),
        objections=(("contents", "demo/x.o is a leftover of the build"),),
    ),
    "a process id of nvcc": Case(
        extension=lambda bench: bench.extension(source='char trace[] = "tmpxft_0000beef_00000000-6_k.cudafe1.cpp";'),
        wanted=replace(WANTED, shut_in=True),
        objections=(("paths", "tmpxft_0000beef"),),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_verdict_is_right(case: str, bench: Bench) -> None:
    """The right wheels pass, and each wrong one is refused by the check that it is wrong in, and by no other."""
    each = CASES[case]
    folder = bench.root / "out"
    folder.mkdir(exist_ok=True)
    path = each.pack(folder, each.extension(bench))
    policy = repair_policy(bench.site)
    wanted = replace(each.wanted, surroundings=Beside(site_packages=bench.site, policy=policy))
    findings = judge_file(path, wanted)
    errors = [(finding.id, finding.message) for finding in findings if finding.status == "error"]
    for check, words in each.objections:
        assert any(found == check and words in message for found, message in errors), errors
    assert {check for check, _ in errors} <= {check for check, _ in each.objections}, errors
    assert all(finding.advice for finding in findings if finding.status == "error")


def test_there_are_forty_of_them() -> None:
    """Ten right ones at least, and thirty wrong ones."""
    right = [case for case in CASES.values() if not case.objections]
    assert len(right) >= 10
    assert len(CASES) - len(right) >= 30


def test_the_object_that_brings_a_symbol_in_is_named(tmp_path: Path) -> None:
    """Of several objects, the one that wants the symbol above the floor; what none wants comes from a library."""
    for name, source in (("old.c", "int f(void) { return 1; }"), ("sub/new.c", SINGLE)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        subprocess.run(["gcc", "-fPIC", "-c", str(path), "-o", str(path.with_suffix(".o"))], check=True)
    objects = [str(path) for path in sorted(tmp_path.rglob("*.o"))]
    subprocess.run(["gcc", "-shared", "-o", str(tmp_path / "x.so"), *objects], check=True)
    platform = platform_called("manylinux_2_28_x86_64")
    assert platform is not None
    with (tmp_path / "x.so").open("rb") as stream:
        found = above([read_elf(stream, "x.so")], platform)
    users = brought_in(found, tmp_path)
    assert users == {"__libc_single_threaded": ("sub/new.o",)}
    assert explain_above(found, users) == [
        "x.so needs GLIBC_2.32 for __libc_single_threaded, which sub/new.o brings in"
    ]
    assert explain_above(found, {}) == [
        "x.so needs GLIBC_2.32 for __libc_single_threaded, which a static library brings in"
    ]
