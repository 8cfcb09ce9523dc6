"""Verify: whatever a wheel says that is not so is found, and said in one line each."""

import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import write_catalog

from wheelmill.arch import Arch
from wheelmill.catalog import load_catalog
from wheelmill.derivation import Derivation, Selection, instantiate
from wheelmill.device_code import Census
from wheelmill.elf import ElfFacts
from wheelmill.errors import MalformedWheelError, VerifyError
from wheelmill.preflight import Finding
from wheelmill.provenance import Found, embedded
from wheelmill.recipe import CodePolicy
from wheelmill.verify import (
    FACTS,
    Expectation,
    claimed,
    device_code,
    expected,
    inspect_and_judge,
    kernels,
    require,
    run_paths,
)
from wheelmill.wheel_file import content, write_wheel

MAKERS = runpy.run_path(str(Path(__file__).with_name("test_inspection.py")))
VERSION = "1.0+cu130.torch2.11.0.sm100"
TAG = "cp312-cp312-manylinux_2_28_x86_64"
NAME = f"demo-{VERSION}-1-{TAG}.whl"
DIST_INFO = f"demo-{VERSION}.dist-info"
METADATA = f"Metadata-Version: 2.4\nName: demo\nVersion: {VERSION}\nRequires-Dist: torch==2.11.0\n"
WHEEL = f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: {TAG}\nBuild: 1\n"
EXTENSION = "demo_cuda.cpython-312-x86_64-linux-gnu.so"
FILES: dict[str, bytes] = {
    "demo/__init__.py": b"",
    EXTENSION: MAKERS["library"](100),
    f"{DIST_INFO}/METADATA": METADATA.encode(),
    f"{DIST_INFO}/WHEEL": WHEEL.encode(),
    f"{DIST_INFO}/licenses/LICENSE": b"BSD",
}
WANTED = Expectation(
    version=VERSION,
    archs=(Arch.parse("10.0"),),
    torch="2.11.0",
    extensions=("demo_cuda",),
    top_level=("demo", "demo_cuda"),
    licenses=("LICENSE",),
)
CHECKS = [
    *("archive", "names", "record", "platform", "floor", "elf", "libraries", "symbols", "requires-torch", "run-path"),
    *("device-code", "kernels", "contents", "size", "paths"),
]
ALWAYS = {"archive", "names", "record", "platform", "run-path", "contents", "paths"}
FOUND = Found(
    host_compiler="h" * 64,
    libc="glibc 2.39",
    nvcc="13.0.88",
    toolkit_provider="wheels",
    toolkit_digest="d" * 64,
    toolkit_pinned=True,
    python="3.12.1",
    python_flags="p" * 64,
    zlib="1.3",
    compile_backend="ccache",
    sandbox="none",
)


def wheel(folder: Path, files: dict[str, bytes] | None = None, *, name: str = NAME, **changes: bytes) -> Path:
    """Write the sample wheel, sound as a file, with changed members."""
    members = {**(FILES if files is None else files), **changes}
    write_wheel([content(member, data) for member, data in members.items()], folder / name, epoch=1_700_000_000)
    return folder / name


def judged(path: Path, expectation: Expectation = WANTED) -> dict[str, list[str]]:
    """Give the problems by check; the checks that found none are there, too."""
    _, findings = inspect_and_judge(path, expectation)
    found = list(dict.fromkeys(finding.id for finding in findings))
    assert found == [each for each in CHECKS if each in found]
    assert set(found) >= ALWAYS
    assert all(finding.advice for finding in findings if finding.status == "error")
    return {each: [f.message for f in findings if f.id == each and f.status == "error"] for each in CHECKS}


def changed(old: str, new: str, *, file: str) -> dict[str, bytes]:
    """Give the sample's members with one text changed."""
    member = f"{DIST_INFO}/{file}"
    assert old.encode() in FILES[member]
    return {**FILES, member: FILES[member].replace(old.encode(), new.encode())}


def test_a_wheel_as_it_should_be(tmp_path: Path) -> None:
    """One finding per check, each says what was found; nothing is refused."""
    inspection, findings = inspect_and_judge(wheel(tmp_path), WANTED)
    assert [(finding.id, finding.status, finding.message) for finding in findings] == [
        ("archive", "ok", "every zip reader finds the same members in it"),
        ("names", "ok", f"file name, WHEEL and METADATA agree on {VERSION}"),
        ("record", "ok", "RECORD is complete and every digest is right"),
        ("platform", "ok", "platform manylinux_2_28_x86_64"),
        ("floor", "ok", "manylinux_2_28_x86_64 has every symbol version it needs (glibc any)"),
        ("elf", "ok", "no executable stack and no relocation in code"),
        ("requires-torch", "ok", "METADATA requires torch==2.11.0"),
        ("run-path", "ok", "no run path of the building machine"),
        ("device-code", "ok", "every extension with device code holds exactly sm_100"),
        ("contents", "ok", "nothing stray at the top level, licences are in it"),
        ("paths", "ok", "no path and no process id of the building machine"),
    ]
    assert inspection.version == VERSION
    require(tmp_path / NAME, findings)


ALTERED: dict[str, tuple[str, dict[str, bytes], list[str]]] = {
    "another version in METADATA": (
        "names",
        changed(f"Version: {VERSION}", "Version: 1.1", file="METADATA"),
        [f"the file name says version {VERSION}, METADATA says 1.1"],
    ),
    "another project in METADATA": (
        "names",
        changed("Name: demo", "Name: other", file="METADATA"),
        ["the file name says project demo, METADATA says other"],
    ),
    "another build tag in WHEEL": (
        "names",
        changed("Build: 1", "Build: 2", file="WHEEL"),
        ["the file name says build tag 1, WHEEL says 2"],
    ),
    "another torch": (
        "requires-torch",
        changed("torch==2.11.0", "torch==2.10.0", file="METADATA"),
        ["METADATA requires torch==2.10.0, and it was compiled against torch==2.11.0"],
    ),
    "no torch": (
        "requires-torch",
        changed("Requires-Dist: torch==2.11.0\n", "", file="METADATA"),
        ["METADATA requires nothing, and it was compiled against torch==2.11.0"],
    ),
    "a range of torch": (
        "requires-torch",
        changed("torch==2.11.0", "torch>=2.11.0", file="METADATA"),
        ["METADATA requires torch>=2.11.0, and it was compiled against torch==2.11.0"],
    ),
    "a run path of the machine": (
        "run-path",
        {**FILES, EXTENSION: MAKERS["library"](100, tags=((29, "$ORIGIN/../torch/lib:/home/me/lib:relative"),))},
        [f"{EXTENSION} has run path /home/me/lib", f"{EXTENSION} has run path relative"],
    ),
    "code for another GPU": (
        "device-code",
        {**FILES, EXTENSION: MAKERS["library"](120)},
        [f"{EXTENSION} holds sm_120, and sm_100 was asked for"],
    ),
    "code for one GPU more": (
        "device-code",
        {**FILES, EXTENSION: MAKERS["library"](100, 90)},
        [f"{EXTENSION} holds sm_100, sm_90, and sm_100 was asked for"],
    ),
    "no device code": (
        "device-code",
        {**FILES, EXTENSION: MAKERS["library"]()},
        [f"{EXTENSION} holds no device code, and sm_100 was asked for"],
    ),
    "foreign code in another library": (
        "device-code",
        {**FILES, "demo/more.so": MAKERS["library"](90)},
        ["demo/more.so holds sm_90, and sm_100 was asked for"],
    ),
    "a stray module": ("contents", {**FILES, "tests/__init__.py": b""}, ["stray top-level tests"]),
    "a start-up hook": ("contents", {**FILES, "demo.pth": b"import demo"}, ["stray top-level demo.pth"]),
    "a stray file": ("contents", {**FILES, "demo_cuda.txt": b""}, ["stray top-level demo_cuda.txt"]),
    "no licence": (
        "contents",
        {name: data for name, data in FILES.items() if "LICENSE" not in name},
        ["the licence LICENSE is not in it"],
    ),
    "a licence of another": (
        "contents",
        {(f"{DIST_INFO}/licenses/NOT-LICENSE" if "LICENSE" in name else name): data for name, data in FILES.items()},
        ["the licence LICENSE is not in it"],
    ),
    "no package": (
        "contents",
        {name: data for name, data in FILES.items() if not name.startswith("demo/")},
        ["demo is missing"],
    ),
}


@pytest.mark.parametrize("case", ALTERED)
def test_one_altered_fact_is_one_finding(tmp_path: Path, case: str) -> None:
    """Exactly the check that it belongs to, in exactly these words; all other checks stay silent."""
    check, files, problems = ALTERED[case]
    assert judged(wheel(tmp_path, files)) == {each: problems if each == check else [] for each in CHECKS}


def test_an_extension_that_is_missing(tmp_path: Path) -> None:
    """Device code and contents both miss it."""
    files = {name: data for name, data in FILES.items() if name != EXTENSION}
    found = judged(wheel(tmp_path, files))
    assert found["device-code"] == ["there is no extension demo_cuda"]
    assert found["contents"] == ["demo_cuda is missing"]


def test_an_unrepaired_wheel(tmp_path: Path) -> None:
    """`linux_x86_64` is understood by the building machine alone."""
    name = NAME.replace("manylinux_2_28", "linux")
    found = judged(wheel(tmp_path, changed("manylinux_2_28", "linux", file="WHEEL"), name=name))
    assert found["platform"] == ["linux_x86_64 is no manylinux tag"]


def test_two_platforms_are_fine_in_other_peoples_wheels_only(tmp_path: Path) -> None:
    """manylinux2014 and manylinux_2_17 are one platform; a wheel of ours says it once."""
    both = changed(f"Tag: {TAG}", f"Tag: {TAG}\nTag: {TAG.replace('_2_28', '2014')}", file="WHEEL")
    name = NAME.replace("manylinux_2_28_x86_64", "manylinux2014_x86_64.manylinux_2_28_x86_64")
    path = wheel(tmp_path, both, name=name)
    assert judged(path)["platform"] == ["it has 2 platform tags: manylinux2014_x86_64, manylinux_2_28_x86_64"]
    _, findings = inspect_and_judge(path, Expectation())
    assert [finding.message for finding in findings if finding.id == "platform"] == [
        "platform manylinux2014_x86_64, manylinux_2_28_x86_64"
    ]


def test_another_version_than_asked_for(tmp_path: Path) -> None:
    """Sound in itself, and not the one."""
    wanted = replace(WANTED, version="1.0+cu128.torch2.9.1.sm100")
    assert judged(wheel(tmp_path), wanted)["names"] == [
        f"it is version {VERSION}, and 1.0+cu128.torch2.9.1.sm100 was asked for"
    ]


@given(
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
def test_no_flipped_bit_of_content_goes_unseen(tmp_path: Path, place: float, bit: int) -> None:
    """Wherever one bit of the file's members changes: refused as no wheel, or found."""
    path = wheel(tmp_path)
    whole = bytearray(path.read_bytes())
    end = whole.index(b"PK\x01\x02")
    whole[int(place * end)] ^= 1 << bit
    path.write_bytes(whole)
    try:
        found = judged(path)
    except VerifyError:
        return
    # Times and flags of the local headers are no content: zipfile reads the central directory.
    assert any(found.values()) or read_all(path) == read_all(wheel(tmp_path, name="twin.whl"))


def read_all(path: Path) -> list[bytes]:
    """Read every member's bytes."""
    import zipfile

    with zipfile.ZipFile(path) as archive:
        return [archive.read(name) for name in archive.namelist()]


# device code and run paths, by facts alone


def facts(path: str = "demo_cuda.so", **fields: object) -> ElfFacts:
    values: dict[str, object] = {
        "path": path,
        "machine": "x86_64",
        "soname": None,
        "needed": (),
        "rpath": None,
        "glibc_floor": None,
        "glibcxx_floor": None,
        "undefined": frozenset(),
        "exported": frozenset(),
        "stripped": True,
        "device_code": Census(),
    }
    return ElfFacts(**{**values, **fields})


@pytest.mark.parametrize(
    ("archs", "sass", "ptx", "problem"),
    [
        ("10.0+PTX", {"sm_100": 1}, {"sm_100": 1}, ""),
        ("10.0+PTX", {"sm_100": 1}, {}, "holds sm_100, and compute_100, sm_100 was asked for"),
        ("10.0", {"sm_100": 1}, {"sm_100": 1}, "holds compute_100, sm_100, and sm_100 was asked for"),
        ("9.0;10.0", {"sm_100": 1}, {}, "holds sm_100, and sm_100, sm_90 was asked for"),
        ("10.0", {"sm_100a": 1}, {}, "holds sm_100a, and sm_100 was asked for"),
        ("10.0", {}, {"sm_100": 1}, "holds compute_100, and sm_100 was asked for"),
    ],
)
def test_device_code_is_exactly_what_was_asked_for(
    archs: str, sass: dict[str, int], ptx: dict[str, int], problem: str
) -> None:
    """Neither less nor more, machine code and PTX apart."""
    wanted = replace(WANTED, archs=tuple(Arch.parse(text) for text in archs.split(";")))
    [finding] = device_code([facts(device_code=Census(sass=sass, ptx=ptx))], wanted)
    assert finding.message == (f"demo_cuda.so {problem}" if problem else finding.message)
    assert finding.status == ("error" if problem else "ok")


CODE: dict[str, CodePolicy] = {
    "demo_cuda": CodePolicy(rule="at-least", kernels="any"),
    "demo/_fa2": CodePolicy(rule="ptx"),
    "demo/_fa3": CodePolicy(archs=(Arch.parse("9.0a"),)),
    "demo/_host": CodePolicy(rule="none"),
}
"""As a correct vLLM mixes: generic kernels for many, PTX of old ones, one extension for Hopper alone."""


@pytest.mark.parametrize(
    ("path", "sass", "ptx", "problem"),
    [
        ("demo_cuda.so", {"sm_80": 1, "sm_100": 1, "sm_100a": 1}, {"sm_80": 1}, ""),
        ("demo_cuda.so", {"sm_80": 1}, {}, "demo_cuda.so holds sm_80, and lacks sm_100"),
        ("demo/_fa2.so", {"sm_80": 1}, {"sm_80": 1}, ""),
        ("demo/_fa2.so", {"sm_80": 1}, {}, "demo/_fa2.so holds sm_80, of which nothing runs on sm_100"),
        ("demo/_fa3.so", {"sm_90a": 1}, {}, ""),
        ("demo/_fa3.so", {"sm_90": 1}, {}, "demo/_fa3.so holds sm_90, and sm_90a was asked for"),
        ("demo/_host.so", {"sm_52": 1}, {}, "demo/_host.so holds sm_52, and none was to be in it"),
        ("demo/_host.so", {}, {}, ""),
    ],
)
def test_rules_of_single_extensions(path: str, sass: dict[str, int], ptx: dict[str, int], problem: str) -> None:
    """Each extension is held against its own rule, and one that is missing is named."""
    name = path.removesuffix(".so")
    wanted = replace(WANTED, extensions=(), code={name: CODE[name]})
    [finding] = device_code([facts(path, device_code=Census(sass=sass, ptx=ptx))], wanted)
    assert finding.message == (problem or "every extension has the device code that its rule asks for (sm_100)")
    [absent] = device_code([], wanted)
    assert absent.message == f"there is no extension {name}"


def test_a_kernel_that_one_architecture_lacks() -> None:
    """It is an error unless the recipe says that the package means it; PTX counts where the rule lets it."""
    wanted = replace(WANTED, archs=(Arch.parse("10.0"), Arch.parse("12.0")))
    census = Census(
        sass={"sm_100": 1, "sm_120": 1},
        ptx={"sm_80": 1},
        kernels={"a": ("sm_100", "sm_120"), "b": ("sm_100", "compute_80")},
    )
    [finding] = kernels([facts(device_code=census)], wanted)
    assert finding.message == "demo_cuda.so has no sm_120 of b, which it has for other architectures"
    for policy in (CodePolicy(kernels="any"), CodePolicy(rule="ptx")):
        [finding] = kernels([facts(device_code=census)], replace(wanted, code={"demo_cuda": policy}))
        assert finding.message == "all 2 kernels exist for every architecture asked for"


@pytest.mark.parametrize("rpath", [None, "", "$ORIGIN", "$ORIGIN/../torch/lib:${ORIGIN}/x"])
def test_run_paths_inside_the_environment(rpath: str | None) -> None:
    """Relative to the library itself is what may stay."""
    [finding] = run_paths([facts(rpath=rpath)])
    assert finding.status == "ok"


# what a wheel claims, and what a derivation expects


@pytest.fixture
def derivation(tmp_path: Path) -> Derivation:
    return instantiate(load_catalog((write_catalog(tmp_path),)), Selection(name="demo", stack="cu130"))


def test_a_derivation_says_what_its_wheel_shall_be(derivation: Derivation) -> None:
    """Version, archs and torch; the recipe's own checks."""
    assert expected(derivation) == Expectation(version=VERSION, archs=(Arch.parse("10.0"),), torch="2.11.0")


def test_a_wheel_of_ours_claims_the_same(derivation: Derivation, tmp_path: Path) -> None:
    """By its embedded facts, without a recipe."""
    path = wheel(tmp_path, {**FILES, f"{DIST_INFO}/{FACTS}": embedded(derivation, FOUND)})
    assert claimed(path) == expected(derivation)
    assert not any(judged(path).values())


def test_other_peoples_wheels_claim_nothing(tmp_path: Path) -> None:
    """And so nothing is demanded beyond a sound wheel."""
    assert claimed(wheel(tmp_path)) == Expectation()


def as_json(change: Callable[[dict[str, dict[str, object]]], None]) -> Callable[[bytes], bytes]:
    """Change embedded facts as JSON."""

    def changing(data: bytes) -> bytes:
        document = json.loads(data)
        change(document)
        return json.dumps(document).encode()

    return changing


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda _: b"{", "Expecting property name enclosed in double quotes"),
        (lambda _: b"\xff", "'utf-8' codec can't decode byte 0xff"),
        (lambda _: b"[]", "an object was expected, not []"),
        (lambda _: b"[" * 100_000, "maximum recursion depth exceeded"),
        (as_json(lambda facts: facts.pop("inputs")), "'inputs'"),
        (as_json(lambda facts: facts["inputs"].update(archs=["9.0"])), "its derivation is "),
        (as_json(lambda facts: facts["found"].update(nvcc="12.8")), "its realisation is "),
        (as_json(lambda facts: facts.update(drv="0" * 64)), f"its derivation is {'0' * 64}, and its inputs give "),
    ],
    ids=["cut", "no text", "no object", "deep", "no inputs", "other archs", "other nvcc", "other drv"],
)
def test_facts_that_cannot_be(
    derivation: Derivation, tmp_path: Path, change: Callable[[bytes], bytes], why: str
) -> None:
    """Each is a VerifyError that says what is off, never a traceback."""
    data = change(embedded(derivation, FOUND))
    path = wheel(tmp_path, {**FILES, f"{DIST_INFO}/{FACTS}": data})
    with pytest.raises(VerifyError) as caught:
        claimed(path)
    assert str(caught.value).startswith(f"{NAME}: its wheelmill.json cannot be read ({why}")
    assert caught.value.advice == "The wheel was altered, or made by a newer wheelmill; build or fetch it again."


def test_no_wheel_at_all(tmp_path: Path) -> None:
    """Its structure is refused before anything is judged."""
    (tmp_path / NAME).write_bytes(b"no zip")
    with pytest.raises(MalformedWheelError):
        claimed(tmp_path / NAME)
    with pytest.raises(MalformedWheelError):
        inspect_and_judge(tmp_path / NAME, WANTED)


def test_all_errors_at_once(tmp_path: Path) -> None:
    """What is required names every error, and advises on the first; warnings do not stop."""
    error, warning = (Finding(id="names", status=status, subject="", message="off") for status in ("error", "warn"))
    require(tmp_path / NAME, [warning])
    with pytest.raises(VerifyError) as caught:
        require(tmp_path / NAME, [replace(error, advice="do this"), warning, replace(error, id="record", advice="x")])
    assert str(caught.value) == (
        f"{NAME} failed 2 of its checks; it does not enter the wheelhouse\n  names: off\n  record: off"
    )
    assert caught.value.advice == "do this"


@pytest.mark.parametrize(
    ("member", "data", "trace"),
    [
        (EXTENSION, b"x\0/home/me/.cache/wheelmill/env/torch.h\0y", "/home/me/.cache/wheelmill/env/torch.h"),
        (EXTENSION, b"/home/me/src/a.cu", "/home/me/src/a.cu"),
        (EXTENSION, b"/root/a.cu", "/root/a.cu"),
        (EXTENSION, b"x" * ((1 << 20) - 5) + b"tmpxft_00001234_00000000-6_a.cudafe1.cpp\n", "tmpxft_00001234_"),
        ("demo/__init__.py", b"# made in /home/me/src", "/home/me/src"),
    ],
)
def test_traces_of_the_machine(tmp_path: Path, member: str, data: bytes, trace: str) -> None:
    """Wherever they stand, across two pieces that are read too: an error of a build that was shut in."""
    wanted = Expectation(machine_paths=("/home/me/.cache/wheelmill", "/home/me", "/root"), shut_in=True)
    content_of = FILES[EXTENSION] + data if member == EXTENSION else data
    _, findings = inspect_and_judge(wheel(tmp_path, {**FILES, member: content_of}), wanted)
    found = [finding for finding in findings if finding.id == "paths"]
    assert {finding.status for finding in found} == {"error"}
    assert found[-1].message.startswith(f"{member} holds '{trace}")
    _, findings = inspect_and_judge(tmp_path / NAME, replace(wanted, shut_in=False))
    assert {finding.status for finding in findings if finding.id == "paths"} == {"warn"}


def test_a_short_home_in_a_text_is_no_trace(tmp_path: Path) -> None:
    """Many a document speaks of /root/."""
    path = wheel(tmp_path, {**FILES, "demo/__init__.py": b"# docker run -v x:/root/.cache, /home/menagerie"})
    assert judged(path, replace(WANTED, machine_paths=("/root", "/home/me", "/", "")))["paths"] == []
