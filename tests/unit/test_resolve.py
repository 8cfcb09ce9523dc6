"""Locks: what is asked for, one file per requirement, and offline the word whether they are current."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from wheelmill._process import Completed
from wheelmill._uv import Uv, uv_binary
from wheelmill.catalog import Catalog, load_catalog
from wheelmill.errors import CommandFailedError, FetchError, RecipeError
from wheelmill.lock import parse_lock
from wheelmill.places import IndexSettings
from wheelmill.resolve import ResolvedFile, check, lock, lock_inputs, lock_text, merged, resolved_files
from wheelmill.stack import Stack

TORCH = "a" * 64
STACK = f"""
name = "demo"
summary = "a stack"
python = "3.12"
cuda = "12.8"
toolkit = "cuda-12.8"
archs = ["10.0"]
platform = "manylinux_2_28"
cut-off = "2026-02-06T00:00:00Z"
build-lock = "demo.build.txt"
run-lock = "demo.run.txt"
build-requires = ["setuptools<81"]
run-requires = ["einops"]
[packages]
thing = "1.0"
[prebuilt.torch]
version = "2.9.1"
file = "torch-2.9.1-cp312-cp312-manylinux_2_28_x86_64.whl"
sha256 = "{TORCH}"
"""
RECIPE = f"""
name = "thing"
summary = "a thing"
home = "https://thing.test"
[version."1.0"]
source = {{ project = "thing", file = "thing-1.0.tar.gz", sha256 = "{"b" * 64}" }}
source-date-epoch = 1700000000
build-requires = ["torch", "Setuptools>=77", "ninja"]
arch = {{ via = "torch" }}
checks = {{ imports = ["thing"] }}
"""
PYLOCK = """
lock-version = "1.0"
[[packages]]
name = "torch"
version = "2.9.1"
wheels = [{ url = "https://host.test/x/torch-2.9.1-cp312-cp312-manylinux_2_28_x86_64.whl", hashes = { sha256 = "TORCH" } }]
[[packages]]
name = "einops"
version = "0.8.2"
wheels = [{ name = "einops-0.8.2-py3-none-any.whl", url = "https://host.test/e", hashes = { sha256 = "EINOPS" } }]
[[packages]]
name = "setuptools"
version = "80.0"
wheels = [{ url = "https://host.test/setuptools-80.0-py3-none-any.whl", hashes = { sha256 = "EINOPS" } }]
[[packages]]
name = "ninja"
version = "1.13.0"
wheels = [{ url = "https://host.test/ninja-1.13.0%2Bx-py3-none-any.whl", hashes = { sha256 = "EINOPS" } }]
""".replace("EINOPS", "e" * 64)


class FakeUv:
    """A runner whose uv resolves everything to one text, or fails."""

    def __init__(self, pylock: str | None = None) -> None:
        self.pylock = pylock
        self.calls: list[tuple[str, ...]] = []
        self.asked: list[str] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],  # noqa: ARG002 - the protocol's
        cwd: Path | None = None,
        check: bool = True,  # noqa: ARG002 - the protocol's
    ) -> Completed:
        """Write the answer where uv would."""
        self.calls.append(tuple(argv))
        assert cwd is not None
        self.asked.append((cwd / "requirements.in").read_text())
        if self.pylock is None:
            raise CommandFailedError(argv, 1, tail=["error: No solution found"])
        (cwd / "pylock.toml").write_text(self.pylock)
        return Completed(argv=tuple(argv), returncode=0, stdout="", stderr="", seconds=0.0)

    def stream(self, *args: object, **kwargs: object) -> Completed:
        """Not used here."""
        raise NotImplementedError


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "demo.toml").write_text(STACK)
    (tmp_path / "thing.toml").write_text(RECIPE)
    return load_catalog((tmp_path,))


@pytest.fixture
def stack(catalog: Catalog) -> Stack:
    return catalog.stack("demo")


def uv(runner: FakeUv) -> Uv:
    return Uv(runner=runner, env={}, index=IndexSettings(urls=()))


def test_requirements_of_one_project_are_joined() -> None:
    """Names are normalised, ranges joined, the order fixed."""
    assert merged(["b", "A_x>=2", "a-x<3", "a.x"]) == ("a-x<3,>=2", "b")
    assert merged(["a-x<3", "a.x", "b", "A_x>=2"]) == merged(["b", "A_x>=2", "a-x<3", "a.x"])


def test_recipes_and_stack_together_say_what_is_needed(catalog: Catalog, stack: Stack) -> None:
    """The build lock holds torch and all that recipes and stack ask for; the run lock torch and what wheels need."""
    build, run = lock_inputs(catalog, stack)

    assert build.requirements == ("ninja", "setuptools<81,>=77", "torch==2.9.1")
    assert run.requirements == ("einops", "torch==2.9.1")
    assert build.digest != run.digest


def test_both_locks_are_made_and_made_again_without_change(catalog: Catalog, stack: Stack, tmp_path: Path) -> None:
    """One platform, one day: uv is asked for wheels alone; the second time nothing is written."""
    runner = FakeUv(PYLOCK.replace("TORCH", TORCH))
    build, run = tmp_path / "stacks" / "demo.build.txt", tmp_path / "stacks" / "demo.run.txt"

    assert lock(catalog, stack, uv=uv(runner), python=Path("/py")) == (build, run)
    assert lock(catalog, stack, uv=uv(runner), python=Path("/py")) == ()

    assert runner.asked[:2] == ["ninja\nsetuptools<81,>=77\ntorch==2.9.1\n", "einops\ntorch==2.9.1\n"]
    assert " ".join(runner.calls[0]) == (
        f"{uv_binary()} pip compile requirements.in --quiet --format pylock.toml --output-file pylock.toml --python /py "
        "--python-version 3.12 --python-platform x86_64-manylinux_2_28 --exclude-newer 2026-02-06T00:00:00Z "
        "--only-binary :all:"
    )
    assert check(catalog, stack) == ()


def test_a_lock_names_no_host_path_or_time(catalog: Catalog, stack: Stack) -> None:
    """The lock's text, whole."""
    inputs = lock_inputs(catalog, stack)[1]
    files = [ResolvedFile(project="einops", version="0.8.2", file="einops-0.8.2-py3-none-any.whl", sha256="e" * 64)]

    assert lock_text(inputs, files) == (
        f"# inputs: sha256:{inputs.digest}\n"
        "# Made by `wheelmill lock demo`; change demo.toml, not this file.\n"
        "#   einops-0.8.2-py3-none-any.whl\n"
        "einops==0.8.2 \\\n"
        f"    --hash=sha256:{'e' * 64}\n"
    )
    assert parse_lock(lock_text(inputs, files), file="x").pins["einops"].hashes == ("e" * 64,)


def test_another_torch_is_refused_and_nothing_is_written(catalog: Catalog, stack: Stack, tmp_path: Path) -> None:
    """A mirror that serves another file as torch does not get into a lock."""
    with pytest.raises(RecipeError) as caught:
        lock(catalog, stack, uv=uv(FakeUv(PYLOCK.replace("TORCH", "f" * 64))), python=Path("/py"))

    assert str(caught.value) == (
        f"{tmp_path}/stacks/demo.toml: prebuilt.torch: the index gives "
        f"torch-2.9.1-cp312-cp312-manylinux_2_28_x86_64.whl ({'f' * 64}), "
        "the stack pins torch-2.9.1-cp312-cp312-manylinux_2_28_x86_64.whl"
    )
    assert sorted(path.name for path in (tmp_path / "stacks").iterdir()) == ["demo.toml"]


def test_what_uv_cannot_solve_is_passed_on(catalog: Catalog, stack: Stack) -> None:
    """The resolver's own words, and where to change what."""
    with pytest.raises(FetchError) as caught:
        lock(catalog, stack, uv=uv(FakeUv()), python=Path("/py"))

    assert str(caught.value) == "cannot lock demo.build.txt of stack demo:\n  error: No solution found"
    assert caught.value.advice.startswith("Change `build-requires`, `run-requires` or `cut-off` in ")


def test_a_package_without_a_single_wheel_is_refused() -> None:
    """Neither none nor a choice: one file per requirement."""
    with pytest.raises(FetchError, match=r"^x 1\.0 has 0 wheels for this platform$"):
        resolved_files({"packages": [{"name": "x", "version": "1.0"}]})


def test_check_says_all_that_is_stale(catalog: Catalog, stack: Stack, tmp_path: Path) -> None:
    """Offline: absent locks, other inputs, missing requirements, another torch."""
    assert check(catalog, stack) == ("demo.build.txt does not exist", "demo.run.txt does not exist")

    lock(catalog, stack, uv=uv(FakeUv(PYLOCK.replace("TORCH", TORCH))), python=Path("/py"))
    changed = STACK.replace('["einops"]', '["einops>=0.9", "regex"]').replace(TORCH, "c" * 64)
    (tmp_path / "stacks" / "demo.toml").write_text(changed)
    catalog = load_catalog((tmp_path,))

    assert check(catalog, catalog.stack("demo")) == (
        "demo.build.txt was made from other inputs than demo.toml and the recipes now give",
        "demo.build.txt pins another torch file than demo.toml",
        "demo.run.txt lacks einops>=0.9 (the lock holds 0.8.2)",
        "demo.run.txt lacks regex (not in the lock)",
        "demo.run.txt was made from other inputs than demo.toml and the recipes now give",
        "demo.run.txt pins another torch file than demo.toml",
    )


RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("name", sorted(path.stem for path in (RECIPES / "stacks").glob("*.toml")))
def test_the_shipped_locks_are_current(name: str) -> None:
    """No recipe or stack is changed without its locks."""
    catalog = load_catalog((RECIPES,))

    assert check(catalog, catalog.stack(name)) == ()
