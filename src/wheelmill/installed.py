"""verify-stack: is what is installed here the pinned stack, and does it import; thin, and no GPU is asked yet."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ._process import Runner
from .errors import CommandFailedError, EnvironmentUnfitError, VerifyError
from .install import Installation, import_modules
from .lock import Lock
from .preflight import Finding
from .stack import Stack

PROBE = """
import importlib.metadata as metadata, json
found = {}
for each in metadata.distributions():
    if each.metadata and each.metadata["Name"] and each.metadata["Version"]:
        found.setdefault(each.metadata["Name"], each.metadata["Version"])
print(json.dumps(found))
"""
"""The first on sys.path counts, as for imports; what pip left of an interrupted removal (`~orch`) has no metadata."""


def verify_stack(
    stack: Stack, lock: Lock, *, python: Path, modules: Mapping[str, tuple[str, ...]], runner: Runner
) -> tuple[Finding, ...]:
    """Compare an environment with the stack; `modules` names what each of its packages must import.

    Raises EnvironmentUnfitError where the interpreter does not answer.
    """
    installed = ask(python, runner)
    present = {name: modules[name] for name in stack.packages if name in installed and name in modules}
    return (
        *locked(stack, lock, installed),
        *packages(stack, installed),
        imports(python, lock, present, runner),
        Finding(id="gpu", status="skip", subject="GPU", message="device code and driver are not compared here yet"),
    )


def ask(python: Path, runner: Runner) -> dict[str, str]:
    """List the distributions of an environment, from inside."""
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    try:
        done = runner.run([str(python), "-I", "-c", PROBE], env=env)
        found = json.loads(done.stdout)
    except (CommandFailedError, EnvironmentUnfitError, ValueError) as error:
        raise EnvironmentUnfitError(
            f"{python} does not answer: {error}",
            advice="Give the environment's interpreter: `--python ENV/bin/python`.",
        ) from error
    return {canonicalize_name(name): version for name, version in found.items()}


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


def imports(python: Path, lock: Lock, present: Mapping[str, tuple[str, ...]], runner: Runner) -> Finding:
    """Torch and the packages' modules import in a fresh process."""
    names = tuple(name for listed in present.values() for name in listed)
    installation = Installation(interpreter=python, venv=python.parent.parent, lock=lock, wheels=(), modules=names)
    try:
        modules, _ = import_modules(installation, runner)
    except VerifyError as error:
        return Finding(id="import", status="error", subject="imports", message=str(error), advice=error.advice)
    if not modules:
        return Finding(id="import", status="skip", subject="imports", message="nothing of the stack is there to import")
    return Finding(id="import", status="ok", subject="imports", message=f"{', '.join(modules)} imported")
