"""A small catalog on disk, for tests: one package, one stack, one toolkit, with locks and a patch."""

from pathlib import Path

RECIPE = """
name = "demo"
summary = "A demo"
home = "https://example.invalid/demo"

[version."1.0"]
source = { project = "demo", file = "demo-1.0.tar.gz", sha256 = "@" }
source-date-epoch = 1700000000
build-requires = ["torch", "ninja>=1.11"]
patches = ["0001-why.patch"]
local-version-variable = "DEMO_LOCAL"
environment = { DEMO_FORCE_BUILD = "TRUE" }
arch = { via = "variable", variable = "DEMO_ARCHS", supports = ["9.0", "10.0", "12.0"] }
resources = { memory-per-compile = "4 GiB", units = 5, cpu-seconds = 400 }
checks = { imports = ["demo"] }
advisories = ["backward is slow"]

[version."1.0".variant.small-one]
summary = "Less of it"
resources = { units = 2 }
""".replace("@", "a" * 64)

STACK = """
name = "cu130"
summary = "A stack"
python = "3.12"
cuda = "13.0"
toolkit = "cuda-13.0"
archs = ["10.0"]
platform = "manylinux_2_28"
cut-off = "2026-11-24T00:00:00Z"
build-lock = "cu130.build.txt"
run-lock = "cu130.run.txt"
packages = { demo = "1.0" }

[prebuilt.torch]
version = "2.11.0"
file = "torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl"
sha256 = "@"
""".replace("@", "b" * 64)

TOOLKIT = """
name = "cuda-13.0"
cuda = "13.0"
accepts = ["13.0"]
headers = ["cusparse.h"]
libraries = ["libcudart.so"]
gcc-below = 16

[wheels]
requirements = "cuda-13.0.txt"
root = "nvidia/cu13"
"""

LOCK = """
torch==2.11.0 \\
    --hash=sha256:{b}
ninja==1.13.0 \\
    --hash=sha256:{c} \\
    --hash=sha256:{d}
""".format(b="b" * 64, c="c" * 64, d="d" * 64)


def write_catalog(root: Path) -> Path:
    """Write the sample below `root` and give its recipes folder."""
    recipes = root / "recipes"
    for folder in (recipes / "stacks", recipes / "toolkits", root / "patches" / "demo" / "1.0"):
        folder.mkdir(parents=True)
    (recipes / "demo.toml").write_text(RECIPE)
    (recipes / "stacks" / "cu130.toml").write_text(STACK)
    (recipes / "stacks" / "cu130.build.txt").write_text(LOCK)
    (recipes / "stacks" / "cu130.run.txt").write_text(LOCK)
    (recipes / "toolkits" / "cuda-13.0.toml").write_text(TOOLKIT)
    (recipes / "toolkits" / "cuda-13.0.txt").write_text(f"nvidia-cuda-nvcc==13.0.88 --hash=sha256:{'e' * 64}\n")
    (root / "patches" / "demo" / "1.0" / "0001-why.patch").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    return recipes
