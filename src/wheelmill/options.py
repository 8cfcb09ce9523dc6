"""The words of the command line: commands, options and help, without anything that runs them.

`--help`, `--version` and a mistyped option are answered from here alone: what builds takes half a second to load.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import __version__
from .errors import EXIT_STATUS

DEFAULT_STACK = "cu128"
REDIST_VARIABLE = "WHEELMILL_CUDA_REDIST"
"""Both are their modules' own, and held equal by a test: these modules take long to load."""
EPILOG = "exit status: " + ", ".join(f"{number} {text}" for number, text in EXIT_STATUS.items())
"""Shown by every --help."""


class Options(argparse.Namespace):
    """What the command line said; every command has a part of these."""

    command: str
    names: list[str]
    recipes: Path | None
    stack: str
    python: str | None
    arch: list[str]
    cuda_home: str | None
    variant: str
    wheelhouse: Path
    cache: Path | None
    offline: bool
    json: bool
    quiet: bool
    max_jobs: str | None
    memory: str | None
    cpus: str | None
    check: bool = False
    all: bool = False
    into: Path = Path("venv")
    accept_license: bool = False
    gpu: list[str] | None = None
    kernels: bool = False
    channel: str = ""
    no_detach: bool = False
    takeover: bool = False
    follow: bool = False
    rounds: str = "1"
    trust: bool = False
    vary: bool = False
    unit: list[str] | None = None
    table: Path | None = None
    root: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One command: what it does, in a line, with examples, and which options it has beyond the common ones."""

    help: str
    examples: str
    names: str = ""
    notes: str = ""
    options: tuple[str, ...] = ()


OWN_OPTIONS: dict[str, dict[str, Any]] = {
    "--check": {"action": "store_true", "help": "only look whether the locks are current, offline"},
    "--unit": {
        "action": "append",
        "metavar": "GLOB",
        "help": "only units whose source matches, by path or file name; again for more",
    },
    "--root": {
        "type": Path,
        "metavar": "DIR",
        "help": "answer for the machine whose files were copied to this folder",
    },
    "--table": {"type": Path, "metavar": "FILE", "help": "put what was measured into this table, too"},
    "--all": {
        "action": "store_true",
        "help": "gc: also environments, toolkits, object caches and fetched files; stop: every running build",
    },
    "--no-detach": {
        "action": "store_true",
        "help": "end with the terminal, or with whoever reads our words (CI); else a build goes on without them",
    },
    "--takeover": {
        "action": "store_true",
        "help": "end a running build of the same derivation, with its whole tree, and go on with its objects",
    },
    "--follow": {"action": "store_true", "help": "show what is still to come, too, until the build ends"},
    "--into": {"type": Path, "metavar": "DIR", "help": "the environment to make or use (default: ./venv)"},
    "--rounds": {"metavar": "N", "help": "build N times with empty object caches; other bytes are an error (status 9)"},
    "--trust": {"action": "store_true", "help": "run the code of a wheel that was not made from this checkout"},
    "--vary": {"action": "store_true", "help": "vary path, umask, locale, zone, cores and jobs around the build"},
    "--accept-license": {"action": "store_true", "help": "accept the licence of a toolkit that is named"},
    "--kernels": {"action": "store_true", "help": "unpack all device code and list every kernel by architecture"},
    "--channel": {"choices": ("pypi", "github"), "help": "where the wheel is to be published: its size is checked"},
    "--gpu": {
        "action": "append",
        "metavar": "NAME",
        "help": "a GPU that must be served, e.g. 'RTX PRO 6000 Blackwell'; archs that do not are refused",
    },
}
"""What one command alone understands."""

COMMANDS: dict[str, Command] = {
    "plan": Command(
        help="what would be built, from what, with how many jobs and why; starts nothing",
        examples="wheelmill plan --stack cu130\nwheelmill plan flash-attn --cpus 128 --memory 288GiB --max-jobs 128",
        options=("--gpu",),
        names="NAME",
    ),
    "doctor": Command(help="this machine, each finding with advice", examples="wheelmill doctor --stack cu130"),
    "lint": Command(
        help="recipes and the stack: what cannot have the effect that was meant",
        examples="wheelmill lint\nwheelmill lint flash-attn --stack cu130 --gpu 'RTX PRO 6000 Blackwell'",
        options=("--gpu",),
        names="NAME",
    ),
    "diagnose": Command(
        help="the root cause of a build's log, or of stdin: kind, line, unit, advice",
        examples="wheelmill diagnose build.log\npip wheel . 2>&1 | wheelmill diagnose - --json",
        names="LOG",
        notes="Exit status of its own: 0 the log tells of success, 1 of a failure, 130 somebody stopped the build.",
    ),
    "limits": Command(
        help="effective cpus, memory and processes, and where each comes from",
        examples="wheelmill limits --json\nwheelmill limits --root ./copy",
        options=("--root",),
        notes="A copy of another machine's files, made there (what cannot be read does not matter):\n"
        "  cp -r --parents /proc/self/cgroup /proc/self/mountinfo /proc/self/status /proc/meminfo /proc/loadavg \\\n"
        "    /proc/sys/kernel/pid_max /proc/sys/kernel/threads-max /sys/devices/system/cpu/online /sys/fs/cgroup copy/",
    ),
    "lock": Command(
        help="resolve and hash a stack's requirements (--check: offline, are the locks current)",
        examples="wheelmill lock cu130\nwheelmill lock cu130 --check",
        options=("--check",),
        names="STACK",
    ),
    "fetch": Command(
        help="get every pinned input, so that a build needs no network",
        examples="wheelmill fetch flash-attn --stack cu130\nwheelmill build flash-attn --stack cu130 --offline\n"
        "wheelmill fetch cuda-12.8 --accept-license",
        notes="NAME is a package or a toolkit. cuda-12.8 is made of NVIDIA's redistributable archives, pinned by\n"
        "sha256, once you accept their licence; stack cu128 then takes it before any toolkit of the machine.\n"
        f"For a mirror of the archives, or a folder with the same paths, set {REDIST_VARIABLE}=URL.",
        options=("--accept-license",),
        names="NAME",
    ),
    "build": Command(
        help="to a verified wheel in the wheelhouse; its path on stdout",
        examples="wheelmill build flash-attn --stack cu130\n"
        "wheelmill build flash-attn --stack cu130 --variant hdim128-bf16-inference\n"
        "wheelmill build causal-conv1d --stack cu130 --arch '10.0;12.0' --max-jobs 8",
        options=("--gpu", "--rounds", "--no-detach", "--takeover"),
        names="NAME",
        notes="A lost terminal lets a build go on: see it with `wheelmill ps` and `wheelmill log --follow`, end it\n"
        "with `wheelmill stop`. A second start of the same build shows the progress of the first, and ends as it does.",
    ),
    "ps": Command(
        help="the builds that run here: since when, compiles, memory, log",
        examples="wheelmill ps\nwheelmill ps --json",
    ),
    "stop": Command(
        help="end a running build with its whole tree; its finished objects stay (--all: every build)",
        examples="wheelmill stop\nwheelmill stop flash-attn\nwheelmill stop --all",
        options=("--all",),
        names="NAME",
        notes="NAME is a package, or the beginning of a derivation as `wheelmill ps` shows it.",
    ),
    "log": Command(
        help="the log of a running build, else of the last one that failed (--follow: until it ends)",
        examples="wheelmill log --follow\nwheelmill log flash-attn",
        options=("--follow",),
        names="NAME",
    ),
    "rebuild": Command(
        help="build a wheel again from what it carries, with an empty object cache, and compare",
        examples="wheelmill rebuild wheelhouse/NAME.whl\nwheelmill rebuild wheelhouse/NAME.whl --vary --json",
        names="WHEEL",
        options=("--trust", "--vary"),
        notes="Grades: identical (status 0); same-content (packed otherwise), same-code (what differs does not run),\n"
        "different: status 9, with the file, the section and the first symbol that differ.",
    ),
    "why": Command(
        help="which inputs of two builds differ, in words; with a package: why no cached wheel served",
        examples="wheelmill why wheelhouse/ONE.whl wheelhouse/OTHER.whl.build.json\n"
        "wheelmill why 4404fab15ac3 bebabf813ce6\nwheelmill why flash-attn --stack cu130",
        names="A",
    ),
    "inspect": Command(
        help="what is in a wheel or a library: device code by architecture, the GPUs it serves, what it needs",
        examples="wheelmill inspect wheelhouse/*.whl --json\nwheelmill inspect libtorch_cuda.so --kernels",
        names="WHEEL",
        options=("--kernels",),
    ),
    "repair": Command(
        help="put any wheel right: name, tags and RECORD; what does not change is not packed again",
        examples="wheelmill repair vllm-0.15.1-cp38-abi3-manylinux_2_31_x86_64.whl --stack cu128",
        names="WHEEL",
        notes="Libraries that the stack's locked wheels bring stay out; --python ENV/bin/python says where these are\n"
        "installed (default: the stack's build environment, which is made where it is not there).",
    ),
    "verify": Command(
        help="is a wheel right: archive, names, RECORD, platform, symbols, device code, contents",
        examples="wheelmill verify wheelhouse/*.whl\n"
        "wheelmill verify flash_attn-2.8.3-*.whl --stack cu130 --arch '10.0;12.0' --python ./serve/bin/python",
        names="WHEEL",
        notes="Libraries and undefined symbols are compared with the stack's locked wheels where these are installed:\n"
        "in the environment of --python, else in the stack's build environment if there is one.",
        options=("--channel",),
    ),
    "verify-stack": Command(
        help="is an installed stack the pinned one, file by file, and will it run on this machine and its GPUs",
        examples="wheelmill verify-stack --stack cu130 --python ./serve/bin/python",
    ),
    "index": Command(help="write the static indexes again", examples="wheelmill index"),
    "install": Command(
        help="the stack, or what is named, from the wheelhouse into an environment, offline, with hashes",
        examples="wheelmill install --stack cu130 --into ./serve\n"
        "wheelmill install flash-attn --stack cu130 --variant hdim128-bf16-inference --into ./serve",
        names="NAME",
        options=("--into",),
    ),
    "measure": Command(
        help="compile a package's units without a cache and tell what each takes, for the recipe's table of peaks",
        examples="wheelmill measure causal-conv1d --stack cu130 --table recipes/peaks/causal-conv1d.jsonl\n"
        "wheelmill measure flash-attn --stack cu130 --unit '*bwd_hdim256*' --max-jobs 1",
        notes="Later builds here know it without a table: what every build measures is kept in the cache.",
        names="NAME",
        options=("--unit", "--table"),
    ),
    "gc": Command(
        help="free space: the leftovers of builds that failed or were stopped (--all: the whole cache)",
        examples="wheelmill gc\nwheelmill gc --all",
        options=("--all",),
    ),
    "build-stack": Command(help="(a later release)", examples="wheelmill build NAME"),
    "release": Command(help="(a later release)", examples="wheelmill index"),
}


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="wheelmill", description="Reproducible builder of CUDA wheels for Python.", epilog=EPILOG
    )
    parser.add_argument("--version", action="version", version=f"wheelmill {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        examples = "\n".join(f"  {line}" for line in command.examples.splitlines())
        sub = commands.add_parser(
            name,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            epilog="\n\n".join(part for part in (f"examples:\n{examples}", command.notes, EPILOG) if part),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if command.names:
            sub.add_argument("names", nargs="*", metavar=command.names)
        else:
            sub.set_defaults(names=[])
        add_common(sub)
        for option in command.options:
            sub.add_argument(option, default=getattr(Options, option[2:].replace("-", "_")), **OWN_OPTIONS[option])
    return parser


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command understands."""
    add = parser.add_argument
    add("--recipes", type=Path, metavar="DIR", help="recipes over the default ones (nearest recipes/, else shipped)")
    add("--stack", default=DEFAULT_STACK, help="the pinned stack (default: %(default)s)")
    add("--python", metavar="PATH", help="the interpreter to build for (default: the stack's release, looked for)")
    add("--arch", action="append", default=[], metavar="ARCHS", help="GPU architectures: 10.0, '10.0;12.0'")
    add("--cuda-home", metavar="DIR", help="the CUDA toolkit to use; it must fit (default: CUDA_HOME, else looked for)")
    add("--variant", default="", help="a declared variant of the package")
    add("--wheelhouse", type=Path, default=Path("wheelhouse"), metavar="DIR", help="default: ./wheelhouse")
    add("--cache", type=Path, metavar="DIR", help="default: WHEELMILL_CACHE, else ~/.cache/wheelmill")
    add("--offline", action="store_true", help="reach no network; what is not fetched is an error")
    add("--max-jobs", metavar="N", help="a cap on compiles at once (default: MAX_JOBS, else cores); memory still rules")
    add("--memory", metavar="SIZE", help="use no more than this, e.g. 24GiB")
    add("--cpus", metavar="N", help="use no more than this many cores")
    add("--json", action="store_true", help="one JSON document on stdout, also on failure")
    add("--quiet", action="store_true", help="no talk on stderr, but for a failure's report")
