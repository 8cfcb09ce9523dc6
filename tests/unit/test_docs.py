"""README, docs, recipes and code tell the same."""

import re
from pathlib import Path

import pytest

from wheelmill import errors
from wheelmill.catalog import DEFAULT_STACK, load_catalog
from wheelmill.cli import LATER
from wheelmill.errors import EXIT_STATUS, WheelmillError
from wheelmill.options import COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
CATALOG = load_catalog((ROOT / "recipes",))
KINDS = """
out-of-memory compiler-crash unsupported-arch cuda-mismatch torch-cpu-only missing-module missing-header
missing-library missing-source network-at-build hash-mismatch abi-mismatch glibc-too-old host-compiler code-too-large
disk-full process-limit interrupted tool-missing version-mismatch patch-failed unknown
""".split()  # noqa: SIM905 - as in the design


def rows(heading: str) -> dict[str, list[str]]:
    """Read the table after a header row that begins with `| HEADING `."""
    lines = README[README.index(f"\n| {heading} ") + 1 :].splitlines()[2:]
    cells = []
    for line in lines:
        if not line.startswith("|"):
            break
        cells.append([cell.strip() for cell in line.strip("|").split("|")])
    return {row[0].split()[0].strip("`"): row for row in cells}


def test_readme_lists_the_commands() -> None:
    """Every command that works is in README with its help text; what comes later is not."""
    listed = rows("command")
    assert {name: row[1] for name, row in listed.items()} == {
        name: command.help for name, command in COMMANDS.items() if name not in LATER
    }


def test_readme_lists_the_exit_statuses() -> None:
    """The same numbers with the same words."""
    [line] = [line for line in README.splitlines() if line.startswith("Exit status: ")]
    assert line == "Exit status: " + ", ".join(f"{number} {text}" for number, text in EXIT_STATUS.items()) + "."


def test_readme_lists_the_recipes() -> None:
    """Each recipe with each version and each variant."""
    listed = rows("recipe")
    assert set(listed) == set(CATALOG.recipes)
    for name, recipe in CATALOG.recipes.items():
        assert listed[name][1] == ", ".join(recipe.releases)
        for release in recipe.releases.values():
            assert all(f"`{variant}`" in listed[name][2] for variant in release.variants)


def test_readme_lists_the_stacks() -> None:
    """Each stack with its torch, CUDA and Python; the default is marked."""
    listed = rows("stack")
    assert set(listed) == set(CATALOG.stacks)
    for name, stack in CATALOG.stacks.items():
        assert listed[name][1:4] == [stack.torch.version, stack.cuda, stack.python]
        assert ("(default)" in listed[name][0]) == (name == DEFAULT_STACK)


def subclasses(base: type[WheelmillError]) -> list[type[WheelmillError]]:
    return [each for child in base.__subclasses__() for each in (child, *subclasses(child))]


@pytest.mark.parametrize("error", subclasses(WheelmillError), ids=lambda error: error.__name__)
def test_every_error_has_a_known_status_and_kind(error: type[WheelmillError]) -> None:
    """Exit statuses and kinds come from the lists that others rely on."""
    assert error.exit_status in EXIT_STATUS
    assert error.kind in KINDS
    assert error.__doc__


def test_the_nox_doors_lead_to_commands() -> None:
    """Every door of the noxfile is a command, and `nox -l` has all that the project promises."""
    text = (ROOT / "noxfile.py").read_text("utf-8")
    doors = dict(re.findall(r'^    "([a-z-]+)": \(\s*\("([a-z-]+)"', text, re.MULTILINE))
    assert set(doors.values()) <= set(COMMANDS)
    sessions = {*doors, *re.findall(r"^def ([a-z]+)\(session", text, re.MULTILINE)} - {"python", "wheelmill"}
    assert sessions == {
        *("build", "build-flash-attn", "build-vllm", "build-stack", "plan", "doctor", "verify", "verify-stack"),
        *("lock", "release", "tests", "integration", "lint", "types", "docs"),
        *("rebuild", "why"),
        *("fetch", "inspect", "repair", "diagnose", "install", "index", "limits", "gc", "ps", "stop", "log", "measure"),
    }


@pytest.mark.parametrize("name", sorted(CATALOG.stacks))
def test_every_stack_can_be_instantiated_and_its_locks_are_current(name: str) -> None:
    """Each package of each stack has a derivation, each variant too; the locks fit the stack."""
    from wheelmill.derivation import Selection, instantiate
    from wheelmill.resolve import check

    stack = CATALOG.stacks[name]
    assert check(CATALOG, stack) == ()
    for package, version in stack.packages.items():
        for variant in ("", *CATALOG.recipes[package].releases[version].variants):
            derivation = instantiate(CATALOG, Selection(name=package, stack=name, variant=variant))
            assert derivation.full_version.startswith(f"{version}+{stack.cuda_label}.torch")


def test_no_error_class_hides_in_another_module() -> None:
    """All of them stand in errors, where status, kind and advice are seen together."""
    strangers = {each.__module__ for each in subclasses(WheelmillError)} - {errors.__name__}
    assert strangers <= {"wheelmill.wheelhouse", "wheelmill.device_code"}


def test_the_first_screen_has_the_two_commands() -> None:
    """One command that sets everything up and builds, one that does and tests; CI runs the latter."""
    build, test = re.findall(r"```sh\n(python3 -m venv .*)\n```", README)
    assert build.endswith("nox -s build-flash-attn -- --stack cu130 --variant hdim128-bf16-inference")
    assert test.endswith("nox -s tests integration")
    assert ".venv/bin/nox -s tests integration" in (ROOT / ".ci" / "run").read_text("utf-8")
