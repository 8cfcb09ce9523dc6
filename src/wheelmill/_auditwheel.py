"""Ask auditwheel for its verdict on one wheel: a program of its own that imports nothing of ours.

auditwheel's API is private (hence the exact pin), it changes the working directory and remembers by path, so every
question gets a fresh process. The current folder has the wheel's ELF files (sparse: without their device code, which
auditwheel does not look at and would take long to unpack). Arguments: the wheel, then one pattern per excluded soname.
Prints JSON.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from auditwheel import wheel_abi
from auditwheel.error import AuditwheelError
from auditwheel.wheel_abi import WheelAbIInfo, analyze_wheel_abi


class Unpacked:
    """What auditwheel makes of a wheel when it opens one; it goes to the wheel's root, where we are."""

    path = Path.cwd()

    def __enter__(self) -> Self:
        """Be there."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stay: this process has nothing else to do."""

    def iter_files(self) -> Iterator[Path]:
        """Give the ELF files; auditwheel would pass over the others."""
        return (path.relative_to(self.path) for path in sorted(self.path.rglob("*")) if path.is_file())


def main(arguments: list[str]) -> None:
    """Print the verdict, or the reason why there is none."""
    wheel, *excluded = arguments
    wheel_abi.InGenericPkgCtx = lambda *_: Unpacked()
    try:
        # `args_ldpaths=""`: no library is looked for on this machine, so that neither its folders nor its libc have
        # a say, and nothing could be grafted.
        found = analyze_wheel_abi(
            None,
            None,
            Path(wheel),
            frozenset(excluded),
            disable_isa_ext_check=False,
            allow_graft=False,
            args_ldpaths="",
        )
    except (AuditwheelError, RuntimeError) as error:
        verdict: dict[str, object] = {"refusal": str(error)}
    else:
        verdict = describe(found)
    sys.stdout.write(json.dumps(verdict, sort_keys=True) + "\n")


def describe(found: WheelAbIInfo) -> dict[str, object]:
    """Give what the repair asks for: the policy, what holds it down, and what the newest policy does not allow."""
    return {
        "policy": found.overall_policy.name,
        "linux": found.policies.linux.name,
        "limits": {
            "symbols": found.sym_policy.name,
            "instructions": found.machine_policy.name,
            "forbidden symbols": found.blacklist_policy.name,
            "unicode": found.ucs_policy.name,
            "floating point": found.pyfpe_policy.name,
        },
        "foreign": sorted(found.external_refs[found.policies.lowest.name].libs),
        "grafts": sorted(found.external_refs[found.overall_policy.name].libs),
        "versions": sorted({version for group in found.versioned_symbols.values() for version in group}),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
