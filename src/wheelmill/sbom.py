"""The bill of materials inside a wheel: CycloneDX 1.7, at `.dist-info/sboms/` (PEP 770).

Spelled here and not by a library, whose next release would spell it otherwise: it is part of the wheel's bytes. The
tests hold it against the published schema.
"""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from .carry import FOLDER, patch_names
from .derivation import Derivation
from .provenance import Found, realisation
from .recipe import IndexSource, Vendored

FILE = "sboms/wheelmill.cdx.json"
"""Below dist-info."""
SCHEMA_URL = "http://cyclonedx.org/schema/bom-1.7.schema.json"
NAMESPACE = uuid.UUID("6f9c2d0e-6c1b-5d7a-9b57-0d1f3a1c8a52")
"""Of serial numbers that follow from the realisation."""

Json = dict[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Linked:
    """What the compiled code of a wheel is linked with.

    `external`: each library that it leaves to others, with its owner. `static_runtime`: the files that have the CUDA
    runtime inside.
    """

    external: Mapping[str, str]
    static_runtime: tuple[str, ...] = ()


def bill(derivation: Derivation, found: Found, linked: Linked) -> bytes:
    """Give the document; it says nothing that the realisation does not decide."""
    parts = [
        *(vendored(entry) for entry in sorted(derivation.release.vendored, key=lambda entry: entry.path)),
        *static_runtime(derivation, found, linked.static_runtime),
        *external(derivation, linked.external),
    ]
    main = product(derivation)
    document = {
        "$schema": SCHEMA_URL,
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, realisation(derivation, found))}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(derivation.source_date_epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "tools": {"components": [{"type": "application", "name": "wheelmill"}]},
            "component": main,
            "properties": [
                {"name": "wheelmill:drv", "value": derivation.drv},
                {"name": "wheelmill:realisation", "value": realisation(derivation, found)},
            ],
        },
        "components": parts,
        "dependencies": [
            {"ref": main["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]},
            *({"ref": part["bom-ref"]} for part in parts),
        ],
    }
    return (json.dumps(document, indent=1, ensure_ascii=True) + "\n").encode()


def product(derivation: Derivation) -> Json:
    """Describe the wheel itself: what it was made of, and with which patches."""
    purl = pypi_url(derivation.name, derivation.full_version)
    component: Json = {
        "type": "library",
        "bom-ref": purl,
        "name": derivation.name,
        "version": derivation.full_version,
        "purl": purl,
    }
    inside = tuple(f"{entry.path}/" for entry in derivation.release.vendored)
    own = sorted({each.spdx for each in derivation.release.licenses if not each.path.startswith(inside)})
    if own:
        component["licenses"] = [{"expression": " AND ".join(own)}]
    folder = f"{FOLDER}/patches/{derivation.name}/{derivation.version}"
    component["pedigree"] = {
        "ancestors": [upstream(derivation)],
        "patches": [
            {"type": "unofficial", "diff": {"url": f"{folder}/{quote(name)}"}} for name in patch_names(derivation)
        ],
    }
    return component


def upstream(derivation: Derivation) -> Json:
    """Describe the source that the wheel was made of."""
    source = derivation.release.source
    component: Json = {"type": "library", "name": derivation.name, "version": derivation.version}
    if isinstance(source, IndexSource):
        purl = f"{pypi_url(source.project, derivation.version)}?file_name={quote(source.file)}"
        component |= {"purl": purl, "hashes": [{"alg": "SHA-256", "content": source.sha256}]}
    else:
        component["properties"] = [{"name": "wheelmill:tree-sha256", "value": source.sha256}]
    return component


def vendored(entry: Vendored) -> Json:
    """Describe somebody else's code that is compiled in."""
    return {
        "type": "library",
        "bom-ref": f"vendored:{entry.path}",
        "name": entry.name,
        "version": entry.version,
        "licenses": [{"expression": entry.spdx}],
        "externalReferences": [{"type": "vcs", "url": entry.home}],
        "properties": [{"name": "wheelmill:vendored-at", "value": entry.path}],
    }


def static_runtime(derivation: Derivation, found: Found, files: Sequence[str]) -> Iterable[Json]:
    """Describe the CUDA runtime where it is linked in: nvcc does so unless it is told otherwise."""
    if files:
        yield {
            "type": "library",
            "bom-ref": "static:cudart",
            "name": "cudart_static",
            "version": found.nvcc,
            "description": f"CUDA {derivation.toolkit.cuda} runtime, linked statically by nvcc {found.nvcc}",
            "licenses": [{"license": {"name": "NVIDIA CUDA Toolkit End User License Agreement"}}],
            "properties": [{"name": "wheelmill:file", "value": file} for file in sorted(files)],
        }


def external(derivation: Derivation, libraries: Mapping[str, str]) -> Iterable[Json]:
    """Describe what the wheel needs and does not hold, by who brings it."""
    for owner in sorted(set(libraries.values())):
        pin = derivation.build_lock.pins.get(owner)
        component: Json = {"type": "library" if pin else "device-driver", "bom-ref": f"external:{owner}", "name": owner}
        if pin:
            component |= {"version": pin.version, "purl": pypi_url(owner, pin.version)}
        yield component | {
            "isExternal": True,
            "properties": [
                {"name": "wheelmill:library", "value": soname}
                for soname, brings in sorted(libraries.items())
                if brings == owner
            ],
        }


def pypi_url(name: str, version: str) -> str:
    """Spell a package URL of the Python package index."""
    return f"pkg:pypi/{name}@{quote(version, safe='')}"
