"""Wheels that others built: put right, and entered into the wheelhouse beside our own."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .environment import COMPLETE, BuildEnvironment, create, environment_key
from .errors import CommandFailedError, EnvironmentUnfitError, MalformedWheelError, UsageError
from .index import write_index
from .pipeline import Tools
from .repair import RepairPolicy, StampedWheel, applies, distributions, repair, repair_policy
from .stack import Stack
from .store import digest_of
from .verify import Beside
from .wheel_file import WheelFile, scan
from .wheelhouse import Entry, Wheelhouse

WHERE = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
EPOCH = 1_577_836_800
"""2020-01-01: what a wheel of others was dated says nothing, and equal wheels shall give equal bytes."""


def site_packages(stack: Stack, tools: Tools) -> Path:
    """Find where the stack's locked wheels are installed: in the environment given, else in the build environment.

    Raises EnvironmentUnfitError where the interpreter does not answer, and what `create` raises.
    """
    if tools.python is None:
        interpreter = tools.interpreter(stack.python)
        lock = tools.catalog.build_lock(stack)
        return create(lock, interpreter, directories=tools.runtime.directories, uv=tools.uv()).site_packages
    python = tools.runtime.cwd / tools.python
    try:
        said = tools.runner.run([str(python), "-I", "-c", WHERE], env={"PATH": "/usr/bin:/bin"}).stdout
    except (CommandFailedError, EnvironmentUnfitError) as error:
        raise EnvironmentUnfitError(
            f"{python} does not answer: {error}",
            advice="Give the interpreter of an environment with the stack: `--python ENV/bin/python`.",
        ) from error
    return Path(said.strip())


def beside(wheel: WheelFile, stack: Stack, tools: Tools) -> Beside | None:
    """Give the environment that a wheel is compared with: the one given, else the build environment if it is there."""
    if tools.python is None:
        lock = tools.catalog.build_lock(stack)
        if not tools.runtime.directories.environments.is_dir():
            return None
        try:
            root = tools.runtime.directories.environments / environment_key(lock, tools.interpreter(stack.python))
        except EnvironmentUnfitError:
            return None
        if not (root / COMPLETE).is_file():
            return None
        site = BuildEnvironment.at(root, stack.python).site_packages
    else:
        site = site_packages(stack, tools)
    return Beside(site_packages=site, policy=policy_for(wheel, site))


def owners_of(wheel: WheelFile, site: Path) -> tuple[str, ...]:
    """Give the projects that a wheel requires and that are installed: what they bring stays out of it."""
    installed = distributions(site)
    required = (Requirement(line) for line in wheel.requires)
    names = {str(canonicalize_name(each.name)) for each in required if applies(each, "")}
    return tuple(sorted(names & installed.keys()))


def policy_for(wheel: WheelFile, site: Path) -> RepairPolicy:
    """Work out what a wheel may leave to others."""
    return repair_policy(site, owners=owners_of(wheel, site))


def index_label(stack: Stack) -> str:
    """Name the index of wheels that were put right for a stack."""
    return f"{stack.cuda_label}-torch{stack.torch.version.partition('+')[0]}-published"


def repair_published(paths: Sequence[Path], stack: Stack, tools: Tools, house: Wheelhouse) -> tuple[Entry, ...]:
    """Put wheels right, enter them into the wheelhouse, and write their index.

    Nothing is left in the wheelhouse of one that cannot be put right; raises what `repair` raises.
    """
    site = site_packages(stack, tools)
    entries = []
    for path in paths:
        tools.report.step(f"repair {path.name}")
        entry = repair_one(path, site, stack, tools, house)
        tools.report.note(f"{entry.wheel.name}  sha256 {entry.sha256}")
        entries.append(entry)
    label = index_label(stack)
    folder = write_index(house.root, label, [each.wheel for each in house.entries() if each.index == label])
    for entry in entries:
        project, version, *_ = entry.wheel.name.split("-")
        tools.report.note(
            f'pip install --no-deps --only-binary :all: --index-url {folder.as_uri()} "{project}=={version}"'
        )
    return tuple(entries)


def repair_one(path: Path, site: Path, stack: Stack, tools: Tools, house: Wheelhouse) -> Entry:
    """Put one wheel right and enter it."""
    wheel, problems = scan(path)
    if wheel is None:
        raise MalformedWheelError(path, problems)
    if path.resolve().parent == house.root.resolve():
        raise UsageError(f"{path} is in the wheelhouse already", advice="Name a wheel that lies elsewhere.")
    house.root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".repairing-", dir=house.root) as folder:
        scratch = Path(folder)
        bin_folder = tools.runtime.python.parent
        env = {"PATH": f"{bin_folder}:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": folder, "TMPDIR": folder}
        done = repair(
            path,
            policy=policy_for(wheel, site),
            destination=scratch,
            epoch=EPOCH,
            runner=tools.runner,
            env=env,
            floor=f"{stack.platform}_x86_64",
        )
        log = scratch / "repair.log"
        log.write_text("".join(f"{line}\n" for line in account(path, wheel, done)), "utf-8")
        return house.enter(done.path, build_record=record(path, stack, done), log=log)


def account(path: Path, wheel: WheelFile, done: StampedWheel) -> list[str]:
    """Say what was done."""
    return [
        f"repaired {path.name}",
        f"file name said {' '.join(wheel.tags)}, WHEEL said {' '.join(wheel.wheel_tags)}",
        f"platform {done.platform_tag}",
        *(f"left to others: {soname} ({owner})" for soname, owner in sorted(done.external.items())),
    ]


def record(path: Path, stack: Stack, done: StampedWheel) -> dict[str, object]:
    """Describe it for the wheelhouse: what it was made of stands for a derivation."""
    source = digest_of(path)
    return {
        "schema": 1,
        "drv": f"repaired-{source}",
        "index": index_label(stack),
        "repaired_from": {"name": path.name, "sha256": source},
        "platform": done.platform_tag,
        "external": dict(done.external),
        "sha256": done.sha256,
    }
