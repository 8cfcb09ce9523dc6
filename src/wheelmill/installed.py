"""verify-stack: is what is installed here the pinned stack, and will it run on this machine."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ._process import Runner
from .arch import Arch, code_runs_on
from .elf import ElfFacts, read_elf
from .errors import CommandFailedError, DeviceCodeError, EnvironmentUnfitError, VerifyError
from .genuine import Difference, Installed, against_wheels, changed_files, find, some
from .install import Installation, import_modules
from .lock import Lock
from .nvml import Driver
from .platforms import oldest
from .preflight import Finding, Status
from .stack import Stack

PROBE = """
import importlib.metadata as metadata, json
found = {}
for each in metadata.distributions():
    if each.metadata and each.metadata["Name"] and each.metadata["Version"]:
        found.setdefault(each.metadata["Name"], [each.metadata["Version"], str(each.locate_file(""))])
print(json.dumps(found))
"""
"""The first on sys.path counts, as for imports; what pip left of an interrupted removal (`~orch`) has no metadata."""

NUMERICS = Path(__file__).with_name("_numerics.py")
COMPILERS = ("cc", "gcc", "clang")
"""What Triton looks for, where CC does not say."""
MAX_CODE_FILES = 400
NOT_ASKED = Driver(problem="it was not asked")


@dataclass(frozen=True, kw_only=True, slots=True)
class Here:
    """What is known of the machine that is to run the stack.

    `glibc`: of this machine; `compilers`: C compilers that were found; `wheels`: wheels at hand, to compare with, and
    `built`: the sha256 of our own among them, by file name.
    """

    driver: Driver = NOT_ASKED
    glibc: tuple[int, int] = (0, 0)
    compilers: tuple[str, ...] = ()
    wheels: tuple[Path, ...] = ()
    built: Mapping[str, str] = field(default_factory=dict)


def verify_stack(
    stack: Stack,
    lock: Lock,
    *,
    python: Path,
    modules: Mapping[str, tuple[str, ...]],
    runner: Runner,
    here: Here | None = None,
) -> tuple[Finding, ...]:
    """Compare an environment with the stack and the machine; `modules` names what each of its packages must import.

    Raises EnvironmentUnfitError where the interpreter does not answer.
    """
    here = here or Here()
    answer = ask(python, runner)
    installed = {name: version for name, (version, _) in answer.items()}
    members = [name for name in (*lock.pins, *stack.packages, *stack.prebuilt) if name in installed]
    places = find({name: answer[name] for name in dict.fromkeys(members)})
    present = {name: modules[name] for name in stack.packages if name in installed and name in modules}
    code = [name for name in (*stack.packages, *stack.prebuilt) if name in places]
    return (
        *locked(stack, lock, installed),
        *packages(stack, installed),
        *files(places, lock, here),
        *libc(places, here),
        *drivers(stack, here.driver),
        *device_code({name: places[name] for name in code}, stack, here.driver),
        *compiles(installed, here),
        *imports(python, lock, present, runner),
        *numerics(python, installed, here.driver, runner),
    )


def ask(python: Path, runner: Runner) -> dict[str, tuple[str, str]]:
    """List the distributions of an environment, from inside: version and folder of each."""
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    try:
        done = runner.run([str(python), "-I", "-c", PROBE], env=env)
        found = json.loads(done.stdout)
    except (CommandFailedError, EnvironmentUnfitError, ValueError) as error:
        raise EnvironmentUnfitError(
            f"{python} does not answer: {error}",
            advice="Give the environment's interpreter: `--python ENV/bin/python`.",
        ) from error
    return {canonicalize_name(name): (version, folder) for name, (version, folder) in found.items()}


def locked(stack: Stack, lock: Lock, installed: Mapping[str, str]) -> Iterator[Finding]:
    """Every distribution of the run lock is there in its locked version."""
    wrong = [
        f"{name} {installed.get(name, 'is missing')}, locked is {pin.version}"
        for name, pin in sorted(lock.pins.items())
        if not same(installed.get(name, ""), pin.version, labels=(stack.cuda_label,))
    ]
    advice = f"Install the stack: `wheelmill install --stack {stack.name} --into ENV`."
    for text in wrong:
        yield Finding(id="locked-version", status="error", subject=text.split()[0], message=text, advice=advice)
    if not wrong:
        message = f"all {len(lock.pins)} locked distributions are there in their versions"
        yield Finding(id="locked-version", status="ok", subject=stack.name, message=message)


def same(found: str, pinned: str, *, labels: tuple[str, ...]) -> bool:
    """Say whether a version is the locked one: `2.11.0+cu130` is torch 2.11.0 of this CUDA, `2.11.0+cpu` is not."""
    try:
        version, wanted = Version(found), Version(pinned)
    except InvalidVersion:
        return False
    return Version(version.public) == Version(wanted.public) and version.local in {None, wanted.local, *labels}


def is_build_of(found: str, version: str, label: str) -> bool:
    """Say whether a version is a build of `version` whose local label begins with these segments."""
    public, _, local = found.partition("+")
    return same(public, version, labels=()) and f"{local}.".startswith(f"{label}.")


def packages(stack: Stack, installed: Mapping[str, str]) -> Iterator[Finding]:
    """Every package of the stack is there, built for this CUDA and torch."""
    label = f"{stack.cuda_label}.torch{stack.torch.version.split('+')[0]}"
    for name, version in sorted(stack.packages.items()):
        found = installed.get(name, "")
        if not found:
            advice = f"`wheelmill build {name} --stack {stack.name}`, then `wheelmill install --stack {stack.name}`."
            yield Finding(id="package", status="warn", subject=name, message=f"{name} is not installed", advice=advice)
        elif is_build_of(found, version, label):
            yield Finding(id="package", status="ok", subject=name, message=f"{name} {found}")
        else:
            message = f"{name} {found} is not {version} built for {label}"
            advice = "It may import and fail later, or run other code than was tested; install the stack's own wheel."
            yield Finding(id="package", status="error", subject=name, message=message, advice=advice)


def files(places: Mapping[str, Installed], lock: Lock, here: Here) -> Iterator[Finding]:
    """Every installed file is what its wheel brought: by RECORD, and by the pinned wheels that are at hand."""
    if not places:
        return
    changed, count = changed_files(places.values())
    other, compared = against_wheels(places, here.wheels, lock, here.built)
    yield from (different("files", each) for each in changed)
    yield from (different("wheel-files", each) for each in other)
    if not changed:
        message = f"all {count} files of {len(places)} distributions have the digests that were written down with them"
        yield Finding(id="files", status="ok", subject="files", message=message)
    left = len(places) - len(compared)
    if compared and not other:
        message = f"{', '.join(sorted(compared))}: what was installed is the pinned wheel, file by file"
        yield Finding(id="wheel-files", status="ok", subject="files", message=message)
    if left:
        message = f"{left} distributions have no pinned wheel at hand to compare with: installers keep none"
        advice = "Put the wheels into the wheelhouse (`--wheelhouse DIR`): they are taken by their locked sha256."
        yield Finding(id="wheel-files", status="skip", subject="files", message=message, advice=advice)


def different(check: str, difference: Difference) -> Finding:
    """Say which files of a distribution are other ones."""
    return Finding(
        id=check,
        status="error",
        subject=difference.name,
        message=f"{difference.name}: {some(difference.texts)}",
        advice="Install it again from the lock: something wrote to the environment, or it came from elsewhere.",
    )


def libc(places: Mapping[str, Installed], here: Here) -> Iterator[Finding]:
    """Compare this machine's glibc with what every installed wheel says it needs."""
    if here.glibc == (0, 0):
        yield Finding(id="glibc", status="skip", subject="glibc", message="this machine's C library is not glibc")
        return
    needs = {name: found.glibc for name, each in places.items() if (found := oldest(tags_of(each))) is not None}
    spelled = ".".join(map(str, here.glibc))
    late = sorted(name for name, glibc in needs.items() if glibc > here.glibc)
    if late:
        yield Finding(
            id="glibc",
            status="error",
            subject="glibc",
            message=f"glibc {spelled} is too old for {', '.join(late)}",
            advice="Run it on a newer system, or install wheels of an older platform.",
        )
    elif needs:
        newest = ".".join(map(str, max(needs.values())))
        message = f"glibc {spelled}; the installed wheels need {newest}"
        yield Finding(id="glibc", status="ok", subject="glibc", message=message)


def tags_of(each: Installed) -> Iterable[str]:
    """Give the platforms of an installed wheel."""
    return [part for tag in each.tags for part in tag.rpartition("-")[2].split(".")]


def drivers(stack: Stack, driver: Driver) -> Iterator[Finding]:
    """Make sure that the driver runs this CUDA: its own major release or a newer one."""
    if driver.problem:
        yield Finding(
            id="driver", status="skip", subject="driver", message=f"no NVIDIA driver answers: {driver.problem}"
        )
        return
    has, wants = (tuple(map(int, text.split("."))) for text in (driver.cuda, stack.cuda))
    message = f"driver {driver.version} runs CUDA {driver.cuda}; the stack is CUDA {stack.cuda}"
    if has[0] < wants[0]:
        advice = f"Install a driver for CUDA {wants[0]} or newer."
        yield Finding(id="driver", status="error", subject="driver", message=message, advice=advice)
    elif has < wants:
        advice = "Machine code runs (minor version compatibility); PTX of the newer release is not compiled."
        yield Finding(id="driver", status="warn", subject="driver", message=message, advice=advice)
    else:
        yield Finding(id="driver", status="ok", subject="driver", message=message)


def device_code(places: Mapping[str, Installed], stack: Stack, driver: Driver) -> Iterator[Finding]:
    """Hold the device code of every installed extension against the GPUs here, else those the stack is for."""
    wanted = {gpu.name: gpu.capability for gpu in driver.gpus} or {arch.sm: arch for arch in stack.archs}
    if not driver.gpus:
        names = ", ".join(wanted)
        message = f"no GPU here; device code is held against the stack's {names}"
        yield Finding(id="gpu", status="skip", subject="GPU", message=message)
    for name, each in sorted(places.items()):
        for gpu, arch in sorted(wanted.items()):
            yield from code_for(name, extensions(each), gpu, arch)


def extensions(each: Installed) -> list[ElfFacts]:
    """Read the installed libraries that have device code."""
    found = []
    names = [name for name in each.record if ".so" in name.rpartition("/")[2]]
    for name in sorted(names)[:MAX_CODE_FILES]:
        try:
            with (each.site / name).open("rb") as stream:
                facts = read_elf(stream, name)
        except (OSError, DeviceCodeError):
            continue  # the check of files, or the import, says so
        if facts.device_code.archs:
            found.append(facts)
    return found


def code_for(name: str, found: list[ElfFacts], gpu: str, arch: Arch) -> Iterator[Finding]:
    """Say for one distribution and GPU: it runs, is compiled at the first use, or does not run."""
    if not found:
        return
    runs: list[str] = []
    compiled: list[str] = []
    dead: list[str] = []
    for file in found:
        fitting = [each for each in file.device_code.archs if code_runs_on(each, arch)]
        (runs if any(not each.ptx for each in fitting) else compiled if fitting else dead).append(file.path)
    if runs:
        message = f"{name}: {len(runs)} of {len(found)} files have machine code for {gpu}"
        yield Finding(id="device-code", status="ok", subject=name, message=message)
    if compiled:
        message = f"{name}: {', '.join(compiled)} {'is' if len(compiled) == 1 else 'are'} PTX alone for {gpu}"
        advice = "The driver compiles it at the first use, which takes minutes; build it for this GPU."
        yield Finding(id="device-code", status="warn", subject=name, message=message, advice=advice)
    if dead:
        advice = "Calls into it end with `no kernel image is available`; build it for this GPU."
        message = f"{name}: nothing in {', '.join(dead)} runs on {gpu}"
        status: Status = "warn" if runs or compiled else "error"
        yield Finding(id="device-code", status=status, subject=name, message=message, advice=advice)


def compiles(installed: Mapping[str, str], here: Here) -> Iterator[Finding]:
    """Name what would still compile when it runs."""
    if "flashinfer-python" in installed:
        cubins, wanted = installed.get("flashinfer-cubin", ""), installed["flashinfer-python"]
        if Version(cubins or "0").public != Version(wanted).public:
            message = f"flashinfer-python {wanted} without its flashinfer-cubin ({cubins or 'not installed'})"
            advice = f"It downloads or compiles kernels at the first use: install flashinfer-cubin=={wanted}."
            yield Finding(id="run-time-compile", status="warn", subject="flashinfer", message=message, advice=advice)
        else:
            message = f"flashinfer-cubin {cubins} is there"
            yield Finding(id="run-time-compile", status="ok", subject="flashinfer", message=message)
    if "triton" in installed:
        if here.compilers:
            message = f"Triton compiles its launchers with {here.compilers[0]}"
            yield Finding(id="run-time-compile", status="ok", subject="triton", message=message)
        else:
            message = "Triton finds no C compiler, which it needs for its launchers at the first use"
            advice = "Install gcc, or set CC."
            yield Finding(id="run-time-compile", status="warn", subject="triton", message=message, advice=advice)


def imports(python: Path, lock: Lock, present: Mapping[str, tuple[str, ...]], runner: Runner) -> Iterator[Finding]:
    """Torch and the packages' modules import, each package's in a fresh process."""
    groups = {"torch": (), **present} if "torch" in lock.pins else dict(present)
    done: list[str] = []
    for name, names in groups.items():
        installation = Installation(interpreter=python, venv=python.parent.parent, lock=lock, wheels=(), modules=names)
        try:
            modules, _ = import_modules(installation, runner)
        except VerifyError as error:
            yield Finding(id="import", status="error", subject=name, message=str(error), advice=error.advice)
        else:
            done += [module for module in modules if module not in done]
    if done:
        yield Finding(id="import", status="ok", subject="imports", message=f"{', '.join(done)} imported")
    elif not groups:
        message = "nothing of the stack is there to import"
        yield Finding(id="import", status="skip", subject="imports", message=message)


def numerics(python: Path, installed: Mapping[str, str], driver: Driver, runner: Runner) -> Iterator[Finding]:
    """Compute on the GPU: flash-attn against torch in float32, and a tiny vLLM engine."""
    for name in ("flash-attn", "vllm"):
        if name not in installed:
            continue
        if not driver.gpus:
            message = f"{name}: nothing is computed without a GPU ({driver.problem or 'the driver names none'})"
            yield Finding(id="compute", status="skip", subject=name, message=message)
            continue
        env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/tmp", "VLLM_NO_USAGE_STATS": "1"}  # noqa: S108
        done = runner.run([str(python), "-I", "-B", str(NUMERICS), name], env=env, check=False)
        yield from figures(name, done.stdout, done.stderr)


def figures(name: str, stdout: str, stderr: str) -> Iterator[Finding]:
    """Read what the computation said."""
    try:
        said = json.loads(stdout.strip().splitlines()[-1])["figures"]
    except (ValueError, LookupError, TypeError):
        tail = "\n".join(f"  | {line}" for line in stderr.splitlines()[-6:])
        advice = f"Run it by hand: `python -I {NUMERICS.name} {name}` with the environment's interpreter."
        message = f"{name} failed on this GPU:\n{tail}"
        yield Finding(id="compute", status="error", subject=name, message=message, advice=advice)
        return
    for each in said:
        if each["ok"] is None:
            message = f"{name} {each['what']}: {each['why']}"
            yield Finding(id="compute", status="skip", subject=name, message=message)
            continue
        message = f"{name} {each['what']}: largest error {each['error']:.3g}, allowed {each['bound']:.3g}"
        advice = "" if each["ok"] else "The GPU computes something else: build it again for this GPU, or report it."
        status: Status = "ok" if each["ok"] else "error"
        yield Finding(id="compute", status=status, subject=name, message=message, advice=advice)
