"""The statement beside a wheel: in-toto, with SLSA provenance v1; every input by digest, nothing of the clock.

https://in-toto.io/Statement/v1, https://slsa.dev/spec/v1.1/provenance. Unsigned: whoever publishes it signs it.
"""

import json
from collections.abc import Iterator

from . import __version__
from .derivation import Derivation
from .lock import Lock
from .provenance import BuildRecord, marks, realisation
from .recipe import IndexSource
from .sbom import pypi_url

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:wheelmill:build:v1"
BUILDER = "urn:wheelmill:builder:user"
"""A user's own machine: no platform vouches for it."""

Json = dict[str, object]


def statement(record: BuildRecord) -> bytes:
    """Give the document for one wheel."""
    derivation, found = record.derivation, record.found
    origin = record.origin
    document: Json = {
        "_type": STATEMENT,
        "subject": [{"name": record.wheel, "digest": {"sha256": record.sha256}}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": external(derivation),
                "internalParameters": {
                    "drv": derivation.drv,
                    "realisation": realisation(derivation, found),
                    "inputs": derivation.inputs,
                    "found": found.to_json(),
                    "marks": list(marks(found.to_json(), origin)),
                },
                "resolvedDependencies": list(resolved(record)),
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": {"wheelmill": __version__}},
                "metadata": {"invocationId": realisation(derivation, found)},
            },
        },
    }
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True) + "\n").encode()


def external(derivation: Derivation) -> Json:
    """Say what whoever asked for the build asked for."""
    return {
        "name": derivation.name,
        "version": derivation.version,
        "stack": derivation.stack.name,
        "archs": [str(arch) for arch in derivation.archs],
        "variant": derivation.variant.name if derivation.variant else "",
        "source_date_epoch": derivation.source_date_epoch,
    }


def resolved(record: BuildRecord) -> Iterator[Json]:
    """Give every input: source, patches, each locked file, toolkit, compiler, and the checkout of the recipes."""
    derivation, found = record.derivation, record.found
    source = derivation.release.source
    if isinstance(source, IndexSource):
        yield {
            "name": source.file,
            "uri": pypi_url(source.project, derivation.version),
            "digest": {"sha256": source.sha256},
        }
    else:
        yield {"name": f"source tree of {derivation.name}", "digest": {"wheelmillTree": source.sha256}}
    for patch in derivation.patches:
        yield {"name": f"patch {patch.name}", "digest": {"sha256": patch.sha256}}
    yield from locked(derivation.build_lock, "build environment")
    torch = derivation.stack.torch
    yield {"name": torch.file, "uri": pypi_url("torch", torch.version), "digest": {"sha256": torch.sha256}}
    if derivation.toolkit_lock is not None:
        yield from locked(derivation.toolkit_lock, "toolkit")
    if (pinned := derivation.toolkit.redistributable) is not None:
        for part in pinned.components:
            yield {"name": part.file, "uri": pinned.base_url + part.path, "digest": {"sha256": part.sha256}}
    yield {
        "name": f"CUDA toolkit in use, nvcc {found.nvcc}",
        "digest": {"wheelmillToolkit": found.toolkit_digest},
        "annotations": {"pinned": found.toolkit_pinned, "provider": found.toolkit_provider},
    }
    yield {
        "name": "host compiler and linker",
        "digest": {"wheelmillCompiler": found.host_compiler},
        "annotations": {"pinned": False, "libc": found.libc},
    }
    yield {
        "name": f"CPython {found.python}",
        "digest": {"wheelmillFlags": found.python_flags},
        "annotations": {"pinned": False},
    }
    if record.origin.commit:
        yield {
            "name": "recipes",
            "digest": {"gitCommit": record.origin.commit},
            "annotations": {"dirty": record.origin.dirty},
        }


def locked(lock: Lock, what: str) -> Iterator[Json]:
    """Give each file that a lock pins; one with several digests may be any of these files."""
    for name, pin in sorted(lock.pins.items()):
        for digest in sorted(pin.hashes):
            yield {
                "name": f"{what}: {name} {pin.version}",
                "uri": pypi_url(name, pin.version),
                "digest": {"sha256": digest},
            }
