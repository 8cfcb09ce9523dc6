"""Time and memory of `wheelmill diagnose` on a large log like those of ninja and nvcc.

`python benchmarks/diagnose.py [MB]` writes such a log (default 200 MB, the failing unit in its middle) to a temporary
folder, diagnoses it in a process of its own, and prints what that took. Fails where it took more than 2 s or 100 MB.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

UNITS = 400
COMMAND = (
    "[{n}/400] /wheelmill/toolkit/bin/nvcc --generate-dependencies-with-compile --dependency-output /b/{n}.o.d "
    "-I/wheelmill/source/csrc/flash_attn -I/wheelmill/source/csrc/cutlass/include "
    "-I/env/lib/python3.12/site-packages/torch/include -D__CUDA_NO_HALF_OPERATORS__ --expt-relaxed-constexpr -Werror "
    "all-warnings --compiler-options '-fPIC' -c -c /src/csrc/unit{n}.cu -o /b/unit{n}.o -O3 -std=c++17 "
    "-gencode arch=compute_100,code=sm_100\n"
)
WARNING = (
    "/env/lib/python3.12/site-packages/torch/include/c10/core/Error.h({n}): warning #20012-D: __device__ annotation is "
    'ignored on a function("operator=") that is explicitly defaulted on its first declaration\n'
)
PTXAS = (
    "ptxas info    : Compiling entry function '_ZN5flash24flash_fwd_splitkv_kernelI{n}E' for 'sm_100'\n"
    "ptxas info    : Used {n} registers, used 1 barriers, 528 bytes cmem[0]\n"
    "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
)
FAILURE = (
    "FAILED: [code=255] /b/unit{n}.o \n"
    + COMMAND.partition("] ")[2]
    + "nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n"
)
LIMIT_SECONDS, LIMIT_BYTES = 2.0, 100 * 10**6


def write_log(path: Path, size: int) -> None:
    """Write a log of about `size` bytes."""
    with path.open("w", encoding="utf-8") as log:
        failed = False
        for n in range(1, UNITS + 1):
            log.write(COMMAND.format(n=n))
            until = size * n // UNITS
            while log.tell() < until:
                log.write("".join(WARNING.format(n=line) + PTXAS.format(n=line) for line in range(1000)))
            if n > UNITS // 2 and not failed:
                failed = True
                log.write(FAILURE.format(n=n))
        log.write("ninja: build stopped: subcommand failed.\n")


def main(megabytes: int) -> int:
    """Measure once."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "build.log"
        write_log(log, megabytes * 10**6)
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "wheelmill", "diagnose", str(log)], check=False, capture_output=True, text=True
        )
        seconds = time.monotonic() - started
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = used.ru_maxrss * 1024
    print(done.stdout + done.stderr)
    print(f"{megabytes} MB: {seconds:.2f} s ({used.ru_utime + used.ru_stime:.2f} s of CPU), peak {peak / 10**6:.0f} MB")
    right = done.stdout.startswith("out-of-memory: cicc was killed") and f"unit{UNITS // 2 + 1}.cu" in done.stdout
    return 0 if right and seconds < LIMIT_SECONDS and peak < LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
