"""Surroundings: toolkits and compilers that advice may name."""

import os
from collections.abc import Sequence
from pathlib import Path

from samples import write_catalog

from wheelmill._process import Completed
from wheelmill.catalog import load_catalog
from wheelmill.errors import EnvironmentUnfitError
from wheelmill.runtime import Directories
from wheelmill.surroundings import look_around, requirements_of
from wheelmill.toolkit import Machine


class Answers:
    """A Runner whose compilers answer with the version in their file; an empty file cannot be run."""

    def run(self, argv: Sequence[str], **_: object) -> Completed:
        said = Path(argv[0]).read_text()
        if not said:
            raise EnvironmentUnfitError("cannot run it")
        return Completed(argv=tuple(argv), returncode=0, stdout=said, stderr="", seconds=0.0)


def program(path: Path, says: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(says)
    path.chmod(0o755)


def test_toolkits_and_compilers(tmp_path: Path) -> None:
    """Each toolkit once, by its own note or nvcc's word; each gcc that answers."""
    for name, note in (("cuda-12.8", '{"cuda_nvcc": {"version": "12.8.93"}}'), ("cuda-13.0", "")):
        program(tmp_path / "local" / name / "bin/nvcc", "\x7fELF Cuda compilation tools, release 13.0, V13.0.88")
        (tmp_path / "local" / name / "include").mkdir()
        if note:
            (tmp_path / "local" / name / "version.json").write_text(note)
    (tmp_path / "local" / "cuda").symlink_to("cuda-12.8")
    (tmp_path / "local" / "cuda-runtime" / "bin").mkdir(parents=True)  # no nvcc in it
    program(tmp_path / "bin/gcc", "14.2.0\n")
    program(tmp_path / "bin/gcc-12", "12.2.0\n")
    program(tmp_path / "bin/gcc-13", "gcc: error\n")
    program(tmp_path / "bin/gcc-11", "")
    machine = Machine(
        env={"PATH": str(tmp_path / "bin")},
        runner=Answers(),
        directories=Directories(cache=tmp_path / "cache", wheelhouse=tmp_path / "house"),
        cwd=tmp_path,
        roots=(tmp_path / "local",),
    )
    found = look_around(machine, {"demo": ("torch",)})
    local = os.path.realpath(tmp_path / "local")
    assert found.toolkits == ((f"{local}/cuda-12.8", "12.8"), (f"{local}/cuda-13.0", "13.0"))
    assert found.compilers == ((f"{tmp_path}/bin/gcc", "14.2.0"), (f"{tmp_path}/bin/gcc-12", "12.2.0"))
    assert found.glibc.startswith("2.")
    assert found.requirements == {"demo": ("torch",)}


def test_requirements_come_from_the_recipes(tmp_path: Path) -> None:
    """What each recipe needs to build."""
    catalog = load_catalog((write_catalog(tmp_path),))
    assert "torch" in requirements_of(catalog)["demo"]
