"""The statement beside a wheel: valid by the specification, and every input is in it by digest."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft7Validator
from test_provenance import FOUND, record

from wheelmill.attest import statement
from wheelmill.catalog import load_catalog
from wheelmill.derivation import Selection, instantiate
from wheelmill.provenance import BuildRecord, Origin

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "tests" / "data" / "slsa" / "provenance.schema.json").read_text("utf-8"))
CATALOG = load_catalog((ROOT / "tests" / "recipes", ROOT / "recipes"))


def made(name: str = "flash-attn", stack: str = "cu130", **asked: str) -> BuildRecord:
    return record(instantiate(CATALOG, Selection(name=name, stack=stack, **asked)))


@pytest.mark.parametrize("stack", sorted(CATALOG.stacks))
@pytest.mark.parametrize("name", sorted(CATALOG.recipes))
def test_it_is_valid(name: str, stack: str) -> None:
    """For every package and stack, by a schema that is stricter than the specification."""
    document = json.loads(statement(made(name, stack)))
    assert [error.message for error in Draft7Validator(SCHEMA).iter_errors(document)] == []


def test_the_schema_finds_errors() -> None:
    """A validator that lets everything pass would prove nothing."""
    Draft7Validator.check_schema(SCHEMA)
    document = json.loads(statement(made()))
    document["predicate"]["buildDefinition"]["resolvedDependencies"][0] = {"name": "without digest"}
    assert list(Draft7Validator(SCHEMA).iter_errors(document))


def test_every_input_by_digest() -> None:
    """Source, each patch, each locked file of environment and toolkit, torch; what is found is marked as not pinned."""
    built = made(variant="hdim128-bf16-inference")
    derivation = built.derivation
    inputs = json.loads(statement(built))["predicate"]["buildDefinition"]["resolvedDependencies"]
    digests = {entry["digest"].get("sha256") for entry in inputs}
    assert derivation.toolkit_lock is not None
    assert {derivation.release.source.sha256, derivation.stack.torch.sha256} <= digests
    assert {patch.sha256 for patch in derivation.patches} <= digests
    for lock in (derivation.build_lock, derivation.toolkit_lock):
        assert {digest for pin in lock.pins.values() for digest in pin.hashes} <= digests
    found = {entry["name"]: entry["annotations"] for entry in inputs if "annotations" in entry}
    assert found["host compiler and linker"] == {"pinned": False, "libc": FOUND.libc}
    assert found["CUDA toolkit in use, nvcc 13.0.88"] == {"pinned": True, "provider": "wheels"}


def test_a_toolkit_of_archives() -> None:
    """Each of NVIDIA's archives, with the address that it is pinned at."""
    built = made(stack="cu128")
    pinned = built.derivation.toolkit.redistributable
    assert pinned is not None
    inputs = json.loads(statement(built))["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {part.sha256 for part in pinned.components} <= {entry["digest"].get("sha256") for entry in inputs}


def test_subject_and_marks() -> None:
    """The wheel by name and digest; what lowers its claim; the same bytes every time."""
    built = replace(made(), origin=Origin(commit="a" * 40, dirty=True))
    document = json.loads(statement(built))
    assert document["subject"] == [{"name": built.wheel, "digest": {"sha256": built.sha256}}]
    definition = document["predicate"]["buildDefinition"]
    assert definition["internalParameters"]["marks"] == [
        "no sandbox: paths and network were the machine's",
        "recipes with uncommitted changes",
    ]
    assert definition["resolvedDependencies"][-1] == {
        "name": "recipes",
        "digest": {"gitCommit": "a" * 40},
        "annotations": {"dirty": True},
    }
    assert statement(built) == statement(built)
    assert "startedOn" not in statement(built).decode()
