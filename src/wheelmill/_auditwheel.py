"""Ask auditwheel for its verdict on one wheel: a program of its own that imports nothing of ours.

auditwheel's API is private (hence the exact pin), it changes the working directory and remembers by path, so every
question gets a fresh process. Arguments: the wheel, then one pattern per excluded soname. Prints JSON.
"""

import json
import sys
from pathlib import Path

from auditwheel.error import AuditwheelError
from auditwheel.wheel_abi import WheelAbIInfo, analyze_wheel_abi


def main(arguments: list[str]) -> None:
    """Print the verdict, or the reason why there is none."""
    wheel, *excluded = arguments
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
