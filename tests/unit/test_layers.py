"""The architecture is one ordered line."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "wheelmill"
ORDER = """
errors options _validate arch recipe toolkit_recipe stack lock catalog derivation knobs limits resources peaks admission simulation plan
records excerpt rulebook remedies diagnosis device_code elf skim _process _console runtime roster tenancy watch store places wire fetch _uv source carry packing archive wheel_file splice inspection interpreter nvml toolkit redist cgroups account charge governor shims sandbox environment
preflight doctor surroundings lint configuration build resume following repair platforms symbols provenance sbom attest verify compare wheelhouse explain gc index install genuine installed resolve pipeline again rebuild published measure cli __main__
""".split()  # noqa: SIM905 - one line of text reads better than forty lines of list
ALONE = {"_launcher", "_sandbox", "_guard", "_auditwheel", "_numerics"}
MODULES = sorted(path for path in PACKAGE.glob("*.py") if path.stem != "__init__")


def test_every_module_has_its_place() -> None:
    """The order names every module, and no other."""
    assert {path.stem for path in MODULES} == set(ORDER) | ALONE


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_imports_point_down(path: Path) -> None:
    """A module imports only modules that stand before it in ORDER."""
    earlier = set(ORDER[: ORDER.index(path.stem)]) if path.stem in ORDER else set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ImportFrom(level=1, module=None, names=names):
                assert {alias.name for alias in names} <= earlier | {"__version__"}
            case ast.ImportFrom(level=1, module=str(module)):
                assert module in earlier


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_one_module_runs_programs_and_one_reads_the_environment(path: Path) -> None:
    """Only _process (and the launcher, a program of its own) imports subprocess; only runtime reads os.environ."""
    text = path.read_text(encoding="utf-8")
    if path.stem not in {"_process", "_launcher", "_sandbox", "_guard"}:
        assert "import subprocess" not in text
    if path.stem not in {"runtime", "_launcher", "_sandbox", "_guard"}:
        assert "os.environ" not in text
        assert "os.getenv" not in text
