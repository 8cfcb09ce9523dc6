"""The census against NVIDIA's own tools: nvcc writes, `cuobjdump` and we both read.

The toolkit comes from the package index as wheels (nothing is installed on the machine) and is kept in
$WHEELMILL_TEST_CACHE, else in pytest's cache.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import uv

from wheelmill.device_code import Census, payload, read
from wheelmill.elf import read_elf

pytestmark = [
    pytest.mark.integration,
    pytest.mark.network,
    pytest.mark.skipif(shutil.which("g++") is None, reason="nvcc needs g++"),
]

TOOLKIT = ("cuda-toolkit[nvcc,cccl,crt,nvvm,cudart]==13.0.2", "nvidia-cuda-cuobjdump==13.5.37")
SOURCE = """
__global__ void add(float *a, const float *b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] += b[i];
}
extern "C" void run(float *a, const float *b, int n) { add<<<1, 32>>>(a, b, n); }
"""
EVERYTHING = (
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90a,code=sm_90a",
    "-gencode=arch=compute_90a,code=compute_90a",
    "-gencode=arch=compute_100,code=sm_100",
    "-gencode=arch=compute_103f,code=sm_103f",
    "-gencode=arch=compute_120,code=sm_120",
    "-gencode=arch=compute_120,code=compute_120",
)
SASS = {"sm_80": 2, "sm_90a": 2, "sm_100": 2, "sm_103f": 2, "sm_120": 2}  # one with code, one by the device link
PTX = {"sm_90a": 1, "sm_120": 1}
LISTED = re.compile(r"(?P<kind>ELF|PTX) file +\d+: .*\.(?P<arch>sm_\w+)\.(?:cubin|ptx)")


@pytest.fixture(scope="session")
def toolkit(pytestconfig: pytest.Config) -> Path:
    """Give a CUDA toolkit made of wheels, installed once."""
    given = os.environ.get("WHEELMILL_TEST_CACHE")
    assert pytestconfig.cache is not None
    cache = Path(given) if given else pytestconfig.cache.mkdir("wheelmill")
    cache.mkdir(parents=True, exist_ok=True)
    installed = cache / "cuda-13.0.2-cuobjdump-13.5.37"
    if not installed.exists():
        fresh = Path(tempfile.mkdtemp(dir=cache))
        command = [uv.find_uv_bin(), "pip", "install", "--quiet", "--target", str(fresh), *TOOLKIT]
        subprocess.run(command, check=True)
        fresh.rename(installed)
    return installed / "nvidia" / "cu13"


def compiled(toolkit: Path, folder: Path, *arguments: str) -> Path:
    """Compile and link the little kernel into a shared library."""
    source, library = folder / "k.cu", folder / "k.so"
    source.write_text(SOURCE, encoding="utf-8")
    command = [
        *(str(toolkit / "bin" / "nvcc"), "-shared", "-Xcompiler", "-fPIC", "-L", str(toolkit / "lib")),
        *(*arguments, str(source), "-o", str(library)),
    ]
    subprocess.run(command, check=True)
    return library


def cuobjdump(toolkit: Path, folder: Path, *arguments: str) -> str:
    """Run NVIDIA's reader."""
    command = [str(toolkit / "bin" / "cuobjdump"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout


def listed(toolkit: Path, library: Path, *arguments: str) -> dict[str, Counter[str]]:
    """Count what cuobjdump lists."""
    found: dict[str, Counter[str]] = {"ELF": Counter(), "PTX": Counter()}
    output = cuobjdump(toolkit, library.parent, "--list-elf", "--list-ptx", *arguments, str(library))
    for match in LISTED.finditer(output):
        found[match["kind"]][match["arch"]] += 1
    return found


def as_cuobjdump_says(counts: dict[str, int]) -> Counter[str]:
    """Drop the `f` of family-specific code, which cuobjdump 13.5 does not show."""
    return sum((Counter({name.rstrip("f"): count}) for name, count in counts.items()), Counter())


def census(path: Path) -> Census:
    """Take our own."""
    with path.open("rb") as stream:
        return read_elf(stream, path.name).device_code


@pytest.mark.parametrize(("mode", "compressed"), [("none", {""}), ("speed", {"", "lz4"}), ("size", {"zstd"})])
def test_equals_cuobjdump_in_every_compression(toolkit: Path, tmp_path: Path, mode: str, compressed: set[str]) -> None:
    """Counts are cuobjdump's, and each entry unpacks to the very bytes that it extracts."""
    library = compiled(toolkit, tmp_path, f"--compress-mode={mode}", *EVERYTHING)

    found = census(library)
    theirs = listed(toolkit, library)
    assert (found.sass, found.ptx) == (SASS, PTX)
    assert (as_cuobjdump_says(SASS), Counter(PTX)) == (theirs["ELF"], theirs["PTX"])

    section = tmp_path / "section"
    subprocess.run(["objcopy", "-O", "binary", "-j", ".nv_fatbin", str(library), str(section)], check=True)
    entries = read(section.read_bytes(), deep=True)
    assert {entry.compressed for entry in entries} == compressed
    extracted = tmp_path / "extracted"
    extracted.mkdir()
    cuobjdump(toolkit, extracted, "--extract-elf", "all", "--extract-ptx", "all", str(library))
    for kind, suffix in (("elf", "cubin"), ("ptx", "ptx")):
        ours = [payload(section.read_bytes(), entry) for entry in entries if entry.kind == kind]
        files = [path.read_bytes() for path in extracted.glob(f"*.{suffix}")]
        assert sorted(code.rstrip(b"\0") for code in ours) == sorted(code.rstrip(b"\0") for code in files)


def test_family_code_is_told_from_plain_code(toolkit: Path, tmp_path: Path) -> None:
    """We say sm_100f where cuobjdump says sm_100."""
    found = census(compiled(toolkit, tmp_path, "-gencode=arch=compute_100f,code=sm_100f"))
    assert (found.sass, found.ptx) == ({"sm_100f": 2}, {})


def test_placeholders_of_the_device_link_are_known(toolkit: Path, tmp_path: Path) -> None:
    """A link that names no arch leaves an empty cubin of nvcc's default one: marked, and no code."""
    source, made = tmp_path / "k.cu", tmp_path / "k.o"
    source.write_text(SOURCE, encoding="utf-8")
    nvcc = [str(toolkit / "bin" / "nvcc"), "-Xcompiler", "-fPIC"]
    subprocess.run([*nvcc, "-arch=sm_100", "-c", str(source), "-o", str(made)], check=True)
    library = tmp_path / "k.so"
    subprocess.run([*nvcc, "-shared", "-L", str(toolkit / "lib"), str(made), "-o", str(library)], check=True)

    found = census(library)
    assert (found.sass, found.ptx) == ({"sm_75": 1, "sm_100": 1}, {"sm_100": 1})
    assert (found.sass_placeholders, found.ptx_placeholders) == ({"sm_75": 1}, {})
    assert [str(arch) for arch in found.archs] == ["10.0", "10.0+PTX"]


def test_relocatable_code(toolkit: Path, tmp_path: Path) -> None:
    """With -rdc the linked code counts; what the device link consumed is what `cuobjdump -all` adds."""
    library = compiled(toolkit, tmp_path, "-rdc=true", *EVERYTHING)
    found = census(library)
    assert as_cuobjdump_says(dict(found.sass)) == listed(toolkit, library)["ELF"]
    assert (found.sass, found.ptx, found.sass_placeholders) == (dict.fromkeys(SASS, 1), {}, {})

    section = tmp_path / "section"
    extract = ["objcopy", "-O", "binary", "-j", "__nv_relfatbin"]
    extract += ["--set-section-flags", "__nv_relfatbin=alloc", str(library), str(section)]
    subprocess.run(extract, check=True)
    consumed = Census.of(read(section.read_bytes(), deep=True))
    everything = listed(toolkit, library, "--all-fatbin")
    assert as_cuobjdump_says({**SASS}) == everything["ELF"]
    assert (consumed.sass, Counter(consumed.ptx)) == (dict.fromkeys(SASS, 1), everything["PTX"])
