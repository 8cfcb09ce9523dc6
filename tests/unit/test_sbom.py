"""The bill of materials: valid by the published schema, decided by the realisation, complete."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft7Validator
from referencing import Registry, Resource
from test_provenance import FOUND

from wheelmill.catalog import load_catalog
from wheelmill.derivation import Derivation, Selection, instantiate
from wheelmill.sbom import Linked, bill

ROOT = Path(__file__).parents[2]
SCHEMAS = Path(__file__).parents[1] / "data" / "cyclonedx"
LINKED = Linked(
    external={
        "libc10.so": "torch",
        "libtorch.so": "torch",
        "libcudart.so.13": "nvidia-cuda-runtime",
        "libcuda.so.1": "the driver",
    },
    static_runtime=("flash_attn_2_cuda.so",),
)


def validator() -> Draft7Validator:
    """Read the schema with those that it refers to."""
    found = {path.name: json.loads(path.read_text("utf-8")) for path in SCHEMAS.glob("*.json")}
    base = "http://cyclonedx.org/schema/"
    resources = [(f"{base}{name}", Resource.from_contents(schema)) for name, schema in found.items()]
    return Draft7Validator(found["bom-1.7.SNAPSHOT.schema.json"], registry=Registry().with_resources(resources))


@pytest.fixture(scope="module")
def derivation() -> Derivation:
    return instantiate(load_catalog((ROOT / "recipes",)), Selection(name="flash-attn", stack="cu130"))


def test_it_is_valid(derivation: Derivation) -> None:
    """By the schema that CycloneDX publishes, formats included where jsonschema knows them."""
    errors = [error.message for error in validator().iter_errors(json.loads(bill(derivation, FOUND, LINKED)))]
    assert errors == []


@pytest.mark.parametrize("name", sorted(load_catalog((ROOT / "tests" / "recipes", ROOT / "recipes")).recipes))
def test_every_recipe_has_a_valid_one(name: str) -> None:
    """Also with a source that no index has, and with nothing linked."""
    catalog = load_catalog((ROOT / "tests" / "recipes", ROOT / "recipes"))
    made = instantiate(catalog, Selection(name=name, stack="cu130"))
    assert list(validator().iter_errors(json.loads(bill(made, FOUND, Linked(external={}))))) == []


def test_the_schema_finds_errors(derivation: Derivation) -> None:
    """A validator that lets everything pass would prove nothing."""
    document = json.loads(bill(derivation, FOUND, LINKED))
    document["components"][0]["type"] = "nonsense"
    assert list(validator().iter_errors(document))


def test_what_is_in_it(derivation: Derivation) -> None:
    """Vendored code and the static runtime are inside, libraries of others are external; source and patches too."""
    document = json.loads(bill(derivation, FOUND, LINKED))
    parts = {part["bom-ref"]: part for part in document["components"]}
    assert sorted(parts) == [
        "external:nvidia-cuda-runtime",
        "external:the driver",
        "external:torch",
        "static:cudart",
        "vendored:csrc/cutlass",
    ]
    assert (parts["vendored:csrc/cutlass"]["name"], parts["vendored:csrc/cutlass"]["version"]) == ("cutlass", "4.0.0")
    assert parts["static:cudart"]["version"] == "13.0.88"
    torch = parts["external:torch"]
    assert (torch["isExternal"], torch["version"], torch["purl"]) == (True, "2.11.0", "pkg:pypi/torch@2.11.0")
    assert [entry["value"] for entry in torch["properties"]] == ["libc10.so", "libtorch.so"]
    main = document["metadata"]["component"]
    assert main["licenses"] == [{"expression": "BSD-3-Clause"}]
    [upstream] = main["pedigree"]["ancestors"]
    assert upstream["purl"] == "pkg:pypi/flash-attn@2.8.3?file_name=flash_attn-2.8.3.tar.gz"
    assert upstream["hashes"][0]["content"] == derivation.release.source.sha256
    assert len(main["pedigree"]["patches"]) == len(derivation.patches) == 3


def test_the_realisation_decides_it(derivation: Derivation) -> None:
    """The same again, in whatever order the facts came; another realisation has another serial number."""
    turned = Linked(external=dict(reversed(LINKED.external.items())), static_runtime=LINKED.static_runtime)
    assert bill(derivation, FOUND, turned) == bill(derivation, FOUND, LINKED)
    other = json.loads(bill(derivation, replace(FOUND, libc="glibc 2.28"), LINKED))
    assert other["serialNumber"] != json.loads(bill(derivation, FOUND, LINKED))["serialNumber"]
