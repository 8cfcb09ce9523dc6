"""Repair: who brings which library, what is refused and in which words, and what the stamp does."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from wheelmill import repair as module
from wheelmill._process import Completed
from wheelmill.device_code import Census
from wheelmill.elf import ElfFacts
from wheelmill.errors import (
    AbiMismatchError,
    EnvironmentUnfitError,
    ForeignLibraryError,
    MalformedWheelError,
    PlatformFloorError,
    RepairError,
)
from wheelmill.inspection import Inspection
from wheelmill.repair import AuditedWheel, RepairPolicy, Stamp, audit, owned_sonames, repair_policy, stamp
from wheelmill.wheel_file import check_record, content, disagreements, read_wheel, write_wheel

NAME = "flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl"
EXTENSION = "flash_attn_2_cuda.so"
POLICY = RepairPolicy(
    owned={"libc10.so": "torch", "libtorch.so": "torch", "libcudart.so.13": "nvidia-cuda-runtime"},
    strangers={"libnvvm.so.4": "nvidia-nvvm"},
)


def elf(
    path: str = EXTENSION,
    *,
    needed: Sequence[str] = ("libc10.so", "libc.so.6"),
    rpath: str | None = None,
    soname: str | None = None,
    machine: str = "x86_64",
) -> ElfFacts:
    """Describe a compiled file."""
    return ElfFacts(
        path=path,
        machine=machine,
        soname=soname,
        needed=tuple(needed),
        rpath=rpath,
        glibc_floor=None,
        glibcxx_floor=None,
        undefined=frozenset(),
        exported=frozenset(),
        stripped=True,
        device_code=Census.of([]),
    )


def verdict(**changes: object) -> dict[str, object]:
    """Give what `_auditwheel.py` prints for a good wheel."""
    return {
        "policy": "manylinux_2_34_x86_64",
        "linux": "linux_x86_64",
        "limits": {"symbols": "manylinux_2_34_x86_64", "instructions": "manylinux_2_41_x86_64"},
        "foreign": [],
        "grafts": [],
        "versions": ["GLIBC_2.4", "GLIBC_2.34", "GLIBCXX_3.4.29", "CXXABI_1.3", "GLIBC_PRIVATE"],
        **changes,
    }


class FakeRunner:
    """Answers in auditwheel's place, and remembers how it was asked."""

    def __init__(self, answer: Mapping[str, object]) -> None:
        self.answer = answer
        self.argv: Sequence[str] = ()
        self.env: Mapping[str, str] = {}

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, check: bool = True
    ) -> Completed:
        """Give the answer."""
        assert cwd is not None
        assert check
        self.argv, self.env = argv, env
        return Completed(argv=tuple(argv), returncode=0, stdout=json.dumps(self.answer), stderr="", seconds=0.0)

    def stream(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: Path | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> Completed:
        """Nothing here runs for long."""
        raise NotImplementedError


def wheel(folder: Path, *, tag: str = "cp312-cp312-linux_x86_64", files: Sequence[str] = (EXTENSION,)) -> Path:
    """Write a small wheel."""
    dist_info = "flash_attn-2.8.3.dist-info"
    members = [
        content("flash_attn/__init__.py", b""),
        *(content(name, name.encode(), executable=True) for name in files),
        content(
            f"{dist_info}/METADATA",
            b"Metadata-Version: 2.4\nName: flash_attn\nVersion: 2.8.3\nRequires-Dist: torch\n",
        ),
        content(f"{dist_info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()),
    ]
    folder.mkdir(exist_ok=True)
    return write_wheel(members, folder / f"flash_attn-2.8.3-{tag}.whl", epoch=1_700_000_000).path


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AuditedWheel]:
    """Audit a wheel of which only the compiled files' descriptions matter."""

    def judge(
        *files: ElfFacts, policy: RepairPolicy = POLICY, answer: Mapping[str, object] | None = None
    ) -> AuditedWheel:
        built = wheel(tmp_path / "built", files=[file.path for file in files])
        inspection = Inspection(name="flash-attn", version="2.8.3", tags=(), requires_torch=None, elf=files, size=1)
        monkeypatch.setattr(module, "inspect_wheel", Mock(return_value=inspection))
        return audit(built, policy=policy, runner=FakeRunner(answer or verdict()), env={})

    return judge


def test_audit_names_owners_and_floor(judge: Callable[..., AuditedWheel]) -> None:
    """One platform tag, and every library that others bring with its owner; the driver is one of them."""
    audited = judge(elf(needed=["libcuda.so.1", "libcudart.so.13", "libc10.so", "libc.so.6"]))

    assert audited.platform_tag == "manylinux_2_34_x86_64"
    assert audited.external == {
        "libc10.so": "torch",
        "libcuda.so.1": "the driver",
        "libcudart.so.13": "nvidia-cuda-runtime",
    }
    assert audited.needed == ("libc.so.6", "libc10.so", "libcuda.so.1", "libcudart.so.13")
    assert set(audited.compiled) == {EXTENSION}


def test_auditwheel_is_asked_without_this_machines_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search paths stay out of its environment, every owned soname is excluded, none as a pattern."""
    inspection = Inspection(name="x", version="1", tags=(), requires_torch=None, elf=(elf(),), size=1)
    monkeypatch.setattr(module, "inspect_wheel", Mock(return_value=inspection))
    runner = FakeRunner(verdict())
    env = {"PATH": "/bin", "LD_LIBRARY_PATH": "/opt", "AUDITWHEEL_PLAT": "x", "TMPDIR": "/var/tmp"}
    policy = RepairPolicy(owned={"lib[x].so": "torch"})

    audit(wheel(tmp_path), policy=policy, runner=runner, env=env)

    assert runner.env == {"PATH": "/bin", "TMPDIR": "/var/tmp"}
    assert list(runner.argv[-4:]) == [
        str(tmp_path / NAME),
        "lib[[]x].so",
        "libcuda.so.1",
        "libnvidia-ml.so.1",
    ]


@pytest.mark.parametrize(
    ("needed", "error", "text"),
    [
        (
            "libcudart.so.12",
            AbiMismatchError,
            "flash_attn_2_cuda.so needs libcudart.so.12, but the locked stack has libcudart.so.13 (nvidia-cuda-runtime)",
        ),
        (
            "libnvvm.so.4",
            ForeignLibraryError,
            "flash_attn_2_cuda.so needs libnvvm.so.4, which nothing that the wheel requires brings; "
            "installed candidates: nvidia-nvvm (libnvvm.so.4)",
        ),
        (
            "libmkl.so.2",
            ForeignLibraryError,
            "flash_attn_2_cuda.so needs libmkl.so.2, which is neither the platform's, nor in the wheel, "
            "nor of any project in the build environment",
        ),
        (
            "libpython3.12.so.1.0",
            RepairError,
            "flash_attn_2_cuda.so needs libpython3.12.so.1.0, which wheels must not",
        ),
        (
            "libhelper.so",
            ForeignLibraryError,
            "flash_attn_2_cuda.so needs libhelper.so; it is in the wheel, but no run path leads there",
        ),
    ],
)
def test_unresolved_libraries_are_explained(
    needed: str, error: type[RepairError], text: str, judge: Callable[..., AuditedWheel]
) -> None:
    """Each kind of unresolved library has its own sentence."""
    with pytest.raises(RepairError) as caught:
        judge(
            elf(needed=[needed]),
            elf("lib/libhelper.so", needed=[], soname="libhelper.so"),
            answer=verdict(foreign=[needed], grafts=[needed], policy="linux_x86_64"),
        )

    assert type(caught.value) is error
    assert str(caught.value) == f"{NAME} cannot be put right:\n  {text}"
    assert caught.value.advice


@pytest.mark.parametrize(
    ("rpath", "text"),
    [
        ("/root/venv/lib", "the run path '/root/venv/lib', a folder of the build machine"),
        ("$ORIGIN:/opt/x", "the run path '/opt/x', a folder of the build machine"),
        ("$ORIGINAL", "the run path '$ORIGINAL', a folder of the build machine"),
        ("lib", "the run path 'lib', a folder of the build machine"),
        ("", "the run path the empty path, whatever folder is current"),
        ("$ORIGIN/../../x", "the run path '$ORIGIN/../../x', which leaves site-packages"),
        ("/$ORIGIN", "the run path '/$ORIGIN', a folder of the build machine"),
    ],
)
def test_run_paths_of_the_build_machine_are_refused(rpath: str, text: str, judge: Callable[..., AuditedWheel]) -> None:
    """Auditwheel lets them through."""
    with pytest.raises(RepairError) as caught:
        judge(elf("pkg/x.so", rpath=rpath))

    assert str(caught.value) == f"{NAME} cannot be put right:\n  pkg/x.so has {text}"


@pytest.mark.parametrize("rpath", ["$ORIGIN", "${ORIGIN}", "$ORIGIN/../torch/lib:$ORIGIN/", None])
def test_run_paths_beside_the_file_are_fine(rpath: str | None, judge: Callable[..., AuditedWheel]) -> None:
    """Whatever stays within site-packages is the package's own affair."""
    assert judge(elf("pkg/x.so", rpath=rpath)).platform_tag


def test_copies_of_others_libraries_are_refused(judge: Callable[..., AuditedWheel]) -> None:
    """A second libc10 in the process has its own state; the driver's library fits one driver only."""
    with pytest.raises(RepairError) as caught:
        judge(elf("x.libs/libc10.so", soname="libc10.so"), elf("x.libs/libcuda.so.1"))

    assert str(caught.value) == (
        f"{NAME} cannot be put right:\n"
        "  x.libs/libc10.so is a copy of libc10.so, which torch brings\n"
        "  x.libs/libcuda.so.1 is a copy of libcuda.so.1, which the driver brings"
    )


def test_too_new_for_every_policy(judge: Callable[..., AuditedWheel]) -> None:
    """What holds the policy down is said, with the newest versions that are needed."""
    with pytest.raises(PlatformFloorError) as caught:
        judge(
            elf(),
            answer=verdict(policy="linux_x86_64", limits={"instructions": "linux_x86_64", "symbols": "linux_x86_64"}),
        )

    assert str(caught.value) == (
        f"{NAME} cannot be put right:\n  no platform policy allows its instructions and symbols "
        "(it needs CXXABI_1.3, GLIBC_2.34, GLIBCXX_3.4.29)"
    )


def test_ceiling(judge: Callable[..., AuditedWheel]) -> None:
    """A platform that the stack demands is a limit, not a label."""
    with pytest.raises(PlatformFloorError) as caught:
        judge(elf(), policy=RepairPolicy(owned=POLICY.owned, ceiling="manylinux_2_28"))

    assert str(caught.value) == (
        f"{NAME} cannot be put right:\n  it needs CXXABI_1.3, GLIBC_2.34, GLIBCXX_3.4.29, "
        "so it is manylinux_2_34_x86_64, newer than manylinux_2_28"
    )
    assert judge(elf(), policy=RepairPolicy(owned=POLICY.owned, ceiling="manylinux_2_34"))


def test_all_problems_at_once(judge: Callable[..., AuditedWheel]) -> None:
    """Three causes, one failure, each advice once."""
    with pytest.raises(RepairError) as caught:
        judge(
            elf(rpath="/a:/b", needed=["liba.so", "libb.so"]),
            elf("y.so", machine="aarch64"),
            answer=verdict(foreign=["liba.so", "libb.so"]),
        )

    assert len(str(caught.value).splitlines()) == 1 + 2 + 2 + 1
    assert caught.value.advice.count("Link it statically") == 1


def test_refusal_and_graft_are_failures(judge: Callable[..., AuditedWheel]) -> None:
    """Auditwheel's own no is passed on, and a graft can never slip through."""
    with pytest.raises(RepairError, match=r"auditwheel gives no verdict on .*: Invalid binary wheel"):
        judge(elf(), answer={"refusal": "Invalid binary wheel\n"})
    with pytest.raises(RepairError, match=r"could only be repaired by grafting: libz\.so\.1"):
        judge(elf(), answer=verdict(grafts=["libz.so.1"]))


def test_wheel_without_compiled_code(tmp_path: Path) -> None:
    """Pure wheels pass as what they are; a platform tag on one means that an extension was skipped."""
    pure = wheel(tmp_path, tag="py3-none-any", files=())
    assert audit(pure, policy=POLICY, runner=FakeRunner({}), env={}).platform_tag == "any"

    empty = wheel(tmp_path, files=())
    with pytest.raises(RepairError) as caught:
        audit(empty, policy=POLICY, runner=FakeRunner({}), env={})
    assert str(caught.value) == f"{NAME} is tagged linux_x86_64, but there is no compiled code in it"


def test_broken_wheel_is_not_judged(tmp_path: Path) -> None:
    """RECORD is checked before anything is believed."""
    path = wheel(tmp_path)
    path.write_bytes(path.read_bytes()[:-30])

    with pytest.raises(MalformedWheelError):
        audit(path, policy=POLICY, runner=FakeRunner({}), env={})


# stamping


def test_stamp_writes_one_wheel_that_agrees_with_itself(tmp_path: Path, judge: Callable[..., AuditedWheel]) -> None:
    """The name of design, one platform tag everywhere, the exact torch."""
    given = Stamp(
        version="2.8.3+cu130.torch2.11.0.sm100",
        build_tag="1",
        epoch=1_700_000_000,
        requires={"torch": "==2.11.0"},
        files={"wheelmill.json": b"{}"},
        licenses={"LICENSE": b"BSD"},
    )

    stamped = stamp(judge(elf()), stamp=given, destination=tmp_path)

    assert stamped.path.name == ("flash_attn-2.8.3+cu130.torch2.11.0.sm100-1-cp312-cp312-manylinux_2_34_x86_64.whl")
    inside = read_wheel(stamped.path)
    assert disagreements(inside) == check_record(stamped.path) == ()
    assert inside.requires == ("torch==2.11.0",)
    assert stamped.warnings == () or "zlib-ng" in stamped.warnings[0]
    assert [path.name for path in tmp_path.glob("*.whl")] == [stamped.path.name]


def test_stamp_refuses_a_renamed_wheel(tmp_path: Path) -> None:
    """Interpreter and ABI of the file name are not believed against WHEEL."""
    path = wheel(tmp_path, tag="cp312-cp312-linux_x86_64")
    renamed = path.rename(tmp_path / "flash_attn-2.8.3-cp38-abi3-linux_x86_64.whl")
    audited = AuditedWheel(
        wheel=read_wheel(renamed), platform_tag="manylinux_2_34_x86_64", external={}, needed=(), compiled={}
    )

    with pytest.raises(RepairError) as caught:
        stamp(audited, stamp=Stamp(version="2.8.3", build_tag="", epoch=1_700_000_000), destination=tmp_path)
    assert str(caught.value) == (f"the file name of {renamed.name} says cp38-abi3, its WHEEL says cp312-cp312")


def test_changed_compiled_bytes_leave_no_wheel(tmp_path: Path, judge: Callable[..., AuditedWheel]) -> None:
    """The digests of the audit are compared with what was written."""
    audited = judge(elf())
    other = AuditedWheel(
        wheel=audited.wheel,
        platform_tag=audited.platform_tag,
        external={},
        needed=(),
        compiled={EXTENSION: "sha256=other"},
    )

    with pytest.raises(RepairError, match=f"compiled files of {NAME} changed while it was written: {EXTENSION}"):
        stamp(other, stamp=Stamp(version="2.8.3", build_tag="1", epoch=1_700_000_000), destination=tmp_path)
    assert list(tmp_path.glob("*.whl")) == []


# owners


def install(site: Path, name: str, *, requires: Sequence[str] = (), files: Sequence[str] = ()) -> None:
    """Install a distribution in name only."""
    folder = site / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir(parents=True)
    lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{lines}\nbody\n")
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Install what torch 2.11 does: CUDA by way of extras, and a triton with a library of its own."""
    install(
        tmp_path,
        "torch",
        requires=[
            'cuda-toolkit[cudart,cublas]==13.0.2; platform_system == "Linux"',
            "nvidia-nccl-cu13==2",
            "triton",
            'opt-einsum; extra == "opt"',
            "not-installed",
        ],
        files=["torch/lib/libtorch.so", "torch/lib/libgomp.so.1", "torch/_C.cpython-312-x86_64-linux-gnu.so"],
    )
    install(
        tmp_path,
        "cuda-toolkit",
        requires=['nvidia-cuda-runtime; extra == "cudart"', 'nvidia-nvvm; extra == "nvvm"'],
    )
    install(
        tmp_path,
        "nvidia-cuda-runtime",
        requires=["torch"],
        files=["nvidia/cu13/lib/libcudart.so.13", "nvidia/cu13/lib/stubs/libcuda.so"],
    )
    install(tmp_path, "nvidia-nccl-cu13", files=["nvidia/nccl/lib/libnccl.so.2", "nvidia/lib/libcuda.so.1"])
    install(tmp_path, "nvidia-nvvm", files=["nvidia/cu13/lib/libnvvm.so.4"])
    install(tmp_path, "triton", files=["triton/lib/libcupti.so.12"])
    install(tmp_path, "opt-einsum", files=["libopt.so.1"])
    return tmp_path


def test_owned_sonames_follow_requirements_and_extras(site: Path) -> None:
    """Torch's own, and NVIDIA's that it requires; no stubs, no driver, nothing of triton or of extras unasked."""
    assert owned_sonames(site, ["Torch"]) == {
        "libcudart.so.13": "nvidia-cuda-runtime",
        "libgomp.so.1": "torch",
        "libnccl.so.2": "nvidia-nccl-cu13",
        "libtorch.so": "torch",
    }


def test_what_else_is_installed_is_a_candidate_only(site: Path) -> None:
    """Strangers are named in errors, never believed."""
    policy = repair_policy(site, ceiling="manylinux_2_28")

    assert policy.strangers == {
        "libcupti.so.12": "triton",
        "libnvvm.so.4": "nvidia-nvvm",
        "libopt.so.1": "opt-einsum",
    }
    assert policy.ceiling == "manylinux_2_28"


def test_missing_owner_is_an_unfit_environment(tmp_path: Path) -> None:
    """An empty list of owned libraries would make every wheel look wrong."""
    with pytest.raises(EnvironmentUnfitError) as caught:
        owned_sonames(tmp_path, ["torch"])

    assert str(caught.value) == (f"cannot tell whose libraries the wheel uses: torch is not installed in {tmp_path}")
