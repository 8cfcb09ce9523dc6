"""Who has the symbols that an extension wants."""

from collections.abc import Mapping

import pytest

from wheelmill.device_code import Census
from wheelmill.elf import ElfFacts
from wheelmill.symbols import NOBODY, TORCH_GONE, Offer, Provider, missing, qualified, summarise

CHECK = "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


def library(
    path: str = "demo_cuda.so",
    *undefined: str,
    needed: tuple[str, ...] = ("libc10.so",),
    exported: tuple[str, ...] = (),
    versions: Mapping[str, str] | None = None,
    soname: str | None = None,
) -> ElfFacts:
    """Describe a file of a wheel."""
    return ElfFacts(
        path=path, machine="x86_64", soname=soname, needed=needed, rpath=None, glibc_floor=None, glibcxx_floor=None,
        undefined=frozenset(undefined), exported=frozenset(exported), stripped=True, device_code=Census(),
        versions=versions or {},
    )  # fmt: skip


def provider(soname: str, project: str, *exports: str, needed: tuple[str, ...] = ()) -> Provider:
    """Describe a library of a locked wheel."""
    names = frozenset(name for name in map(qualified, exports) if name)
    return Provider(soname=soname, project=project, exports=frozenset(exports), needed=needed, names=names)


KNOWN = {
    each.soname: each
    for each in (
        provider("libc10.so", "torch", CHECK, "c10_thing"),
        provider("libtorch.so", "torch", needed=("libtorch_cpu.so",)),
        provider("libtorch_cpu.so", "torch", "at_thing", "_ZN2at4_ops3add4callERKNS_6TensorE"),
        provider("libcudart.so.13", "nvidia-cuda-runtime", "cudaMalloc"),
    )
}


@pytest.mark.parametrize(
    "file",
    [
        library("a.so", CHECK, "c10_thing"),
        library("a.so", "at_thing", needed=("libtorch.so",)),
        library("a.so", "PyLong_FromLong", "_Py_Dealloc"),
        library("a.so", "memcpy", versions={"memcpy": "GLIBC_2.14"}),
        library("a.so", "cuMemCreate", needed=("libcuda.so.1",)),
        library("a.so", "dlopen"),
        library("a.so", "deflate", needed=("libz.so.1",)),
    ],
)
def test_everybody_who_may_have_a_symbol(file: ElfFacts) -> None:
    """The library named, those it takes along, the interpreter, the platform, the driver."""
    offered = Offer(symbols=frozenset({"dlopen"}), unread=frozenset({"libz.so.1"}))
    assert missing([file], KNOWN, offered=offered) == []


def test_libraries_of_the_wheel_are_found_by_file_and_soname() -> None:
    """A grafted library has a new file name and its old soname."""
    files = [
        library("demo.so", "one", "two", needed=("libone-1234.so.1", "libtwo.so")),
        library("demo.libs/libone-1234.so.1", exported=("one",), soname="libone.so.1"),
        library("demo/x.so", exported=("two",), soname="libtwo.so"),
    ]
    assert missing(files, KNOWN) == []


@pytest.mark.parametrize(
    ("symbol", "why"),
    [
        (
            "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs",
            "torch has this function with the other C++ ABI (std::string)",
        ),
        (
            "_ZN3c106detail14torchCheckFailEPKcS2_jj",
            "torch has this function with other arguments: another minor release",
        ),
        ("_ZNK3c106SymInt6sym_neERKS0_", TORCH_GONE),
        ("cudaGone", "no function of the locked libcudart: another CUDA"),
        ("at_thing", "libtorch_cpu.so has it, and the file does not name that library"),
        ("jpeg_start", NOBODY),
        ("cublasCreate_v2", NOBODY),
    ],
)
def test_what_it_means_that_nobody_has_one(symbol: str, why: str) -> None:
    """Other ABI, other torch, other CUDA and forgotten libraries are told apart."""
    [found] = missing([library("a.so", symbol)], KNOWN)
    assert found.reason == why
    assert summarise([found]) == [f"a.so wants {symbol}: {why}"]


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        (CHECK, "_ZN3c106detail14torchCheckFailE"),
        ("_ZNK3c106SymInt6sym_neERKS0_", "_ZN3c106SymInt6sym_neE"),
        ("_ZN3c105ErrorC2ENS_14SourceLocationESs", "_ZN3c105ErrorC2E"),
        ("_ZN2at6TensorIiE3fooEv", ""),
        ("_Z3addPf", ""),
        ("cudaMalloc", ""),
        ("_ZN99x", ""),
    ],
)
def test_names_of_functions(symbol: str, name: str) -> None:
    """The qualified name, without arguments; nothing where there is none or it is a template's."""
    assert qualified(symbol) == name


def test_many_are_counted() -> None:
    """A few are named, the others counted."""
    found = missing([library("a.so", *(f"jpeg_{n}" for n in range(7)))], KNOWN)
    assert summarise(found) == [f"a.so wants jpeg_0, jpeg_1, jpeg_2, jpeg_3, jpeg_4 and 2 more: {NOBODY}"]
