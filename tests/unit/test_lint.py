"""What recipes say that cannot have the effect that was meant."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from samples import write_catalog

from wheelmill.arch import Arch, gpu_named
from wheelmill.catalog import Catalog, load_catalog
from wheelmill.errors import UsageError
from wheelmill.lint import Request, lint
from wheelmill.preflight import Finding

ROOT = Path(__file__).parents[2]
FLASH = """
name = "flash-attn"
summary = ""
home = ""
[version."2.8.3"]
source = { project = "flash-attn", file = "x.tar.gz", sha256 = "@" }
source-date-epoch = 1700000000
must-exist = ["x"]
build-requires = ["torch"]
nvcc-threads = 1
local-version-variable = "FLASH_ATTN_LOCAL_VERSION"
arch = { via = "variable", variable = "FLASH_ATTN_CUDA_ARCHS" }
resources = {}
checks = { imports = ["flash_attn"] }
licenses = { LICENSE = { spdx = "BSD-3-Clause" } }
environment = {}
""".replace("@", "a" * 64)


def catalog_of(root: Path, **recipes: str) -> Catalog:
    """Give the sample catalog with these recipes beside or over its own."""
    folder = write_catalog(root)
    for name, text in recipes.items():
        (folder / f"{name.replace('_', '-')}.toml").write_text(text)
    return load_catalog((folder,))


def said(findings: tuple[Finding, ...], *ids: str) -> list[str]:
    """Give the findings of these kinds as lines, advice behind an arrow."""
    return [
        f"{each.status}: {each.message}" + (f" -> {each.advice}" if each.advice else "")
        for each in findings
        if each.id in ids
    ]


def flash(root: Path, *changes: tuple[str, str]) -> tuple[tuple[Finding, ...], str]:
    """Lint a changed flash-attn recipe; the second value is its path."""
    text = FLASH
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    catalog = catalog_of(root, flash_attn=text)
    request = Request(catalog=catalog, stack=catalog.stack("cu130"), names=("flash-attn",))
    return lint(request), f'{root}/recipes/flash-attn.toml: version."2.8.3"'


def test_a_sound_recipe_has_nothing_to_object_to(tmp_path: Path) -> None:
    """One line says that it was looked at."""
    findings, _ = flash(tmp_path)

    assert [(each.id, each.status, each.subject) for each in findings] == [("recipe", "ok", "flash-attn 2.8.3")]


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (
            'FLASH_ATTENTION_FORCE_BUILD = "1"',
            "error: FLASH_ATTENTION_FORCE_BUILD='1' is ignored: flash-attn 2.8.3 takes TRUE alone "
            '-> Write in @.environment: FLASH_ATTENTION_FORCE_BUILD = "TRUE".',
        ),
        (
            'FLASH_ATTENTION_FORCE_BUILD = "true"',
            "error: FLASH_ATTENTION_FORCE_BUILD='true' is ignored: flash-attn 2.8.3 takes TRUE alone "
            '-> Write in @.environment: FLASH_ATTENTION_FORCE_BUILD = "TRUE".',
        ),
        ('FLASH_ATTENTION_FORCE_BUILD = "TRUE"', None),
        (
            'CAUSAL_CONV1D_FORCE_BUILD = "TRUE"',
            "error: CAUSAL_CONV1D_FORCE_BUILD has no effect: it is causal-conv1d's, flash-attn 2.8.3 does not read it "
            "-> Take it out of @.environment.",
        ),
        (
            'FLASH_ATTENTION_FORCE_BILD = "TRUE"',
            "error: flash-attn 2.8.3 does not read FLASH_ATTENTION_FORCE_BILD; did you mean "
            "'FLASH_ATTENTION_FORCE_BUILD'? -> Take it out of @.environment.",
        ),
        ('WHATEVER = "1"', "warn: flash-attn 2.8.3 does not read WHATEVER -> Take it out of @.environment."),
        ('CXXFLAGS = "-O1"', None),
        (
            'FLASH_ATTN_CUDA_ARCHS = "80;90"',
            "error: FLASH_ATTN_CUDA_ARCHS='80;90' is overwritten: the architectures set it (`--arch`, or the stack's) "
            "-> Take it out of @.environment.",
        ),
        (
            'FLASH_ATTN_LOCAL_VERSION = "mine"',
            "error: FLASH_ATTN_LOCAL_VERSION='mine' is overwritten: the local version sets it "
            "-> Take it out of @.environment.",
        ),
        (
            'VLLM_CUTLASS_SRC_DIR = "/home/me/cutlass"',
            "error: VLLM_CUTLASS_SRC_DIR='/home/me/cutlass' is a folder of one machine: nothing pins what is in it "
            "-> Take it out of @.environment; pin the source instead.",
        ),
    ],
)
def test_variables_that_do_not_count(tmp_path: Path, environment: str, line: str | None) -> None:
    """A flag that is not TRUE, another package's knob, a slip of the pen, a folder that nothing pins."""
    findings, place = flash(tmp_path, ("environment = {}", f"environment = {{ {environment} }}"))

    assert said(findings, "value", "variable", "source-path") == ([line.replace("@", place)] if line else [])


def test_a_knob_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that only another release reads says which."""
    from dataclasses import replace

    from packaging.specifiers import SpecifierSet

    from wheelmill import lint as module
    from wheelmill.knobs import knowledge

    real = knowledge()
    newer = replace(real.named("flash-attn")[0], versions=SpecifierSet(">=2.9"), reads=("FLASH_ATTN_NEW",))
    monkeypatch.setattr(module, "knowledge", lambda: replace(real, packages=(*real.packages, newer)))
    findings, place = flash(tmp_path, ("environment = {}", 'environment = { FLASH_ATTN_NEW = "1" }'))

    assert said(findings, "variable") == [
        f"error: FLASH_ATTN_NEW has no effect: flash-attn reads it in >=2.9, not in 2.8.3 -> Take it out of {place}.environment."
    ]


@pytest.mark.parametrize(
    ("arch", "line"),
    [
        (
            '{ via = "torch" }',
            "error: TORCH_CUDA_ARCH_LIST has no effect: flash-attn 2.8.3 reads FLASH_ATTN_CUDA_ARCHS "
            '-> Write in @.arch: via = "variable", variable = "FLASH_ATTN_CUDA_ARCHS", spelling = "digits", separator = ";".',
        ),
        (
            '{ via = "variable", variable = "FLASH_ATTN_CUDA_ARCHS", spelling = "dotted" }',
            "error: FLASH_ATTN_CUDA_ARCHS is spelled another way: flash-attn 2.8.3 reads '100;120' "
            '-> Write in @.arch: via = "variable", variable = "FLASH_ATTN_CUDA_ARCHS", spelling = "digits", separator = ";".',
        ),
        (
            '{ via = "launcher" }',
            "warn: the launcher holds the architectures, though flash-attn 2.8.3 reads FLASH_ATTN_CUDA_ARCHS "
            '-> Write in @.arch: via = "variable", variable = "FLASH_ATTN_CUDA_ARCHS", spelling = "digits", separator = ";".',
        ),
    ],
)
def test_architectures_asked_for_where_nobody_listens(tmp_path: Path, arch: str, line: str) -> None:
    """TORCH_CUDA_ARCH_LIST for flash-attn did nothing in the story that must not repeat."""
    findings, place = flash(tmp_path, ('{ via = "variable", variable = "FLASH_ATTN_CUDA_ARCHS" }', arch))

    assert said(findings, "arch-variable") == [line.replace("@", place)]


def test_a_package_without_a_knob_is_held_by_the_launcher(tmp_path: Path) -> None:
    """causal-conv1d hard-codes its architectures."""
    text = (ROOT / "recipes/causal-conv1d.toml").read_text().replace('via = "launcher"', 'via = "torch"')
    catalog = catalog_of(tmp_path, causal_conv1d=text)
    findings = lint(Request(catalog=catalog, stack=catalog.stack("cu130"), names=("causal-conv1d",)))

    assert said(findings, "arch-variable") == [
        "error: TORCH_CUDA_ARCH_LIST has no effect: causal-conv1d 1.7.0 reads no variable for its architectures "
        f'-> Write in {tmp_path}/recipes/causal-conv1d.toml: version."1.7.0".arch: via = "launcher".'
    ]


def test_threads_that_take_jobs_away(tmp_path: Path) -> None:
    """With vLLM, MAX_JOBS is divided by NVCC_THREADS."""
    text = (
        FLASH.replace("flash-attn", "vllm").replace("2.8.3", "0.15.1").replace("nvcc-threads = 1", "nvcc-threads = 4")
    )
    text = text.replace('{ via = "variable", variable = "FLASH_ATTN_CUDA_ARCHS" }', '{ via = "torch" }')
    catalog = catalog_of(tmp_path, vllm=text)
    findings = lint(Request(catalog=catalog, stack=catalog.stack("cu130"), names=("vllm",)))

    assert said(findings, "jobs") == [
        "warn: nvcc-threads = 4: vllm 0.15.1 divides MAX_JOBS by it, so that fewer units run at once "
        f'-> Write in {tmp_path}/recipes/vllm.toml: version."0.15.1".nvcc-threads: 1. One arch needs no more.'
    ]
    assert said(findings, "together") == [
        "error: vllm 0.15.1 needs torch ==2.9.1, stack cu130 has 2.11.0: its METADATA says so "
        "-> Take the vLLM release that is made for this torch."
    ]


def test_patches_that_are_not_named_and_that_are_not_there(tmp_path: Path) -> None:
    """A patch that nobody applies is as wrong as one that is missing."""
    catalog = catalog_of(tmp_path)
    folder = tmp_path / "patches/demo/1.0"
    (folder / "0001-why.patch").rename(folder / "0002-other.patch")
    findings = lint(Request(catalog=catalog, stack=catalog.stack("cu130")))

    place = f'{tmp_path}/recipes/demo.toml: version."1.0".patches'
    assert said(findings, "patch") == [
        f"error: {folder}/0001-why.patch does not exist, and the recipe names it -> Restore it, or take it out of {place}.",
        f"warn: {folder}/0002-other.patch is never applied: the recipe does not name it -> Name it in {place}, or delete it.",
    ]


def test_what_a_recipe_should_have(tmp_path: Path) -> None:
    """Paths that must exist, licences; and what a user should know."""
    catalog = catalog_of(tmp_path)
    findings = lint(Request(catalog=catalog, stack=catalog.stack("cu130")))

    place = f'{tmp_path}/recipes/demo.toml: version."1.0"'
    assert said(findings, "must-exist", "licenses", "advisory") == [
        "warn: must-exist is empty: an archive without submodules would be found out in the middle of a build "
        f"-> Name a file or two in {place}.must-exist.",
        "warn: no licences: the wheel may leave without the text that its licence demands "
        f"-> Name the file in {place}.licenses.",
        "warn: backward is slow",
    ]


def stack_with(root: Path, changes: Mapping[str, str], **request: object) -> tuple[Finding, ...]:
    """Lint the sample with a changed stack and toolkit."""
    folder = write_catalog(root)
    for path in (folder / "stacks/cu130.toml", folder / "toolkits/cuda-13.0.toml"):
        text = path.read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        path.write_text(text)
    catalog = load_catalog((folder,))
    return lint(Request(catalog=catalog, stack=catalog.stack("cu130"), **request))


def test_cpp20_that_the_package_does_not_ask_for(tmp_path: Path) -> None:
    """flash-attn 2.8.3 beside torch 2.14: refused, unless a patch of the recipe puts it right."""
    newer = {"2.11.0": "2.14.0", 'demo = "1.0"': '"flash-attn" = "2.8.3"'}
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    folder = write_catalog(tmp_path / "one")
    (folder / "flash-attn.toml").write_text(FLASH)
    stack = folder / "stacks/cu130.toml"
    for old, new in newer.items():
        stack.write_text(stack.read_text().replace(old, new))
    catalog = load_catalog((folder,))
    request = Request(catalog=catalog, stack=catalog.stack("cu130"), names=("flash-attn",))
    assert said(lint(request), "together") == [
        "error: flash-attn 2.8.3 needs torch <2.14, stack cu130 has 2.14.0: torch 2.14 and newer need C++20, and "
        "setup.py says -std=c++17 for g++ and for nvcc "
        "-> Patch both lines of setup.py to -std=c++20, or take torch 2.13 or older."
    ]
    patches = tmp_path / "one/patches/flash-attn/2.8.3"
    patches.mkdir(parents=True)
    (patches / "0001-cpp20.patch").write_text('+    "-std=c++20",\n')
    (folder / "flash-attn.toml").write_text(
        FLASH.replace("nvcc-threads", 'patches = ["0001-cpp20.patch"]\nnvcc-threads')
    )
    catalog = load_catalog((folder,))
    assert said(lint(Request(catalog=catalog, stack=catalog.stack("cu130"))), "together", "patch") == []


def test_an_arch_that_no_toolkit_of_the_stack_makes(tmp_path: Path) -> None:
    """An error where none of the accepted releases can; a warning where one can."""
    old = {'accepts = ["13.0"]': 'accepts = ["12.4"]'}
    both = {'accepts = ["13.0"]': 'accepts = ["12.8", "12.9"]'}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    assert said(stack_with(tmp_path / "one", old), "toolkit-arch") == [
        "error: sm_100 needs nvcc 12.8 or newer, and stack cu130 takes CUDA 12.4 -> Choose another --arch or stack."
    ]
    assert said(stack_with(tmp_path / "two", both, archs=(Arch.parse("12.1"),)), "toolkit-arch") == [
        "warn: sm_121 needs nvcc 12.9 or newer, and stack cu130 takes CUDA 12.8 or 12.9 "
        "-> Give a toolkit of CUDA 12.9: `--cuda-home DIR`."
    ]


def test_an_arch_that_the_package_drops(tmp_path: Path) -> None:
    """What the package's own logic does not know is an error before the build."""
    findings = stack_with(tmp_path, {}, archs=(Arch.parse("10.3"),))

    assert said(findings, "package-arch") == [
        "error: demo 1.0 cannot be built for 10.3: its build knows 9.0, 10.0, 12.0 and would drop anything else without "
        "a word -> Choose among --arch 9.0 10.0 12.0."
    ]


def test_a_gpu_that_the_archs_do_not_serve(tmp_path: Path) -> None:
    """sm_100 for a card that is sm_120: refused, with the architecture that serves it."""
    findings = stack_with(tmp_path, {}, gpus=(gpu_named("RTX PRO 6000 Blackwell"),))

    assert said(findings, "gpu") == [
        "error: sm_100 code does not run on RTX PRO 6000 Blackwell, which is sm_120 (compute capability 12.0): sm_100 "
        "code runs on 10.0 to 10.9 -> Build for it: `--arch 12.0`, or for both: `--arch '10.0;12.0'`."
    ]


def test_a_pin_without_a_recipe_and_a_lock_that_lacks(tmp_path: Path) -> None:
    """The stack itself is looked at."""
    findings = stack_with(tmp_path, {'demo = "1.0"': 'demo = "2.0"'})
    assert said(findings, "recipe")[0] == (
        f"error: no recipe for demo 2.0, which the stack pins -> Correct [packages] in {tmp_path}/recipes/stacks/cu130.toml."
    )


def test_a_name_that_no_recipe_has(tmp_path: Path) -> None:
    """It is a usage error, as everywhere."""
    catalog = catalog_of(tmp_path)
    with pytest.raises(UsageError, match=r"no recipe 'dmo'; did you mean 'demo'\?"):
        lint(Request(catalog=catalog, stack=catalog.stack("cu130"), names=("dmo",)))


def test_a_prebuilt_member_is_looked_at_in_its_stack(tmp_path: Path) -> None:
    """VLLM taken as published still needs its torch, its setuptools and its Python."""
    catalog = load_catalog((ROOT / "recipes",))
    findings = lint(Request(catalog=catalog, stack=catalog.stack("cu128"), names=("vllm",)))

    assert said(findings, "together") == []


@pytest.mark.parametrize("stack", sorted(load_catalog((ROOT / "recipes",)).stacks))
def test_the_shipped_recipes_pass(stack: str) -> None:
    """No recipe that we ship says something without effect."""
    catalog = load_catalog((ROOT / "recipes",))
    findings = lint(Request(catalog=catalog, stack=catalog.stack(stack)))

    assert [each.message for each in findings if each.status == "error" and not re.match("vllm", each.subject)] == []
