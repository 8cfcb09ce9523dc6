"""Provenance: what a wheel says of its own making, and the record that lies beside it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from . import __version__
from .derivation import Derivation, canonical
from .interpreter import Interpreter
from .packing import CHUNK, LEVEL, zlib_found
from .records import CompileRecord, CompileSummary
from .resources import ideal
from .shims import HostCompiler
from .toolkit import Toolkit


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What the machine added to the derivation: recorded, because it can change bytes."""

    host_compiler: str
    libc: str
    nvcc: str
    toolkit_provider: str
    toolkit_digest: str
    toolkit_pinned: bool
    python: str
    python_flags: str
    """Digest of the compiler flags that this interpreter gives to every extension."""
    zlib: str
    compile_backend: str
    sandbox: str
    """`namespaces`, or `none`: then paths are the machine's and the network was not cut."""

    def to_json(self) -> dict[str, object]:
        """Give the facts by name."""
        return {name: getattr(self, name) for name in self.__slots__}


def gather(
    host: HostCompiler, toolkit: Toolkit, interpreter: Interpreter, *, libc: str, ccache: bool, sandbox: str
) -> Found:
    """Collect what was found on this machine."""
    return Found(
        host_compiler=host.identity,
        libc=libc,
        nvcc=toolkit.nvcc_version,
        toolkit_provider=toolkit.provider,
        toolkit_digest=toolkit.digest,
        toolkit_pinned=toolkit.pinned,
        python=interpreter.version,
        python_flags=interpreter.flags,
        zlib=zlib_found(),
        compile_backend="ccache" if ccache else "direct",
        sandbox=sandbox,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The checkout that the recipes came from; empty where they are in none, as when they were installed."""

    commit: str = ""
    dirty: bool = False
    """Whether recipes or patches were changed since that commit."""

    def to_json(self) -> dict[str, object]:
        """Give it as the build record has it."""
        return {"commit": self.commit or None, "dirty": self.dirty}


def marks(found: Mapping[str, object], origin: Origin | None = None) -> tuple[str, ...]:
    """Say what lowers the claim of a wheel, each in a few words; nothing for a wheel that promises everything.

    Another machine can make the same bytes only where it has the same of what is marked here.
    """
    sandbox = found.get("sandbox")
    told = []
    if found.get("toolkit_pinned") is False:
        told.append("host toolkit, not pinned")
    if sandbox == "none":
        told.append("no sandbox: paths and network were the machine's")
    elif sandbox != "namespaces":
        told.append(f"sandbox of rung {sandbox}: fixed paths, but the network was not cut")
    if str(found.get("zlib", "")).endswith("not the reference"):
        told.append("packed by another zlib than the reference")
    if origin is not None and origin.dirty:
        told.append("recipes with uncommitted changes")
    return tuple(told)


def realisation(derivation: Derivation, found: Found) -> str:
    """Hash the derivation and what was found: bytes are promised per realisation."""
    return hashlib.sha256(canonical({"drv": derivation.drv, "found": found.to_json()})).hexdigest()


def embedded(derivation: Derivation, found: Found) -> bytes:
    """Give the file that travels in dist-info: deterministic facts only, no time, user, host or path."""
    document = {
        "schema": 1,
        "drv": derivation.drv,
        "realisation": realisation(derivation, found),
        "stack": derivation.stack.name,
        "index": derivation.index_label,
        "inputs": derivation.inputs,
        "found": found.to_json(),
        "writer": {"chunk_bytes": CHUNK, "level": LEVEL},
    }
    return (json.dumps(document, sort_keys=True, indent=1) + "\n").encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRecord:
    """How one build went; lies beside the wheel as `<wheel>.build.json`, so it may know times."""

    derivation: Derivation
    found: Found
    wheel: str
    sha256: str
    size: int
    content_digest: str
    jobs: int
    """How many compiles at once were granted."""
    seconds: float
    compiles: CompileSummary
    units: tuple[CompileRecord, ...]
    external: Mapping[str, str]
    """Each library that the wheel leaves to others, and who brings it."""
    findings: tuple[Mapping[str, object], ...]
    origin: Origin = Origin()

    @property
    def ideal_seconds(self) -> float:
        """What no schedule of these compiles on the jobs granted can beat."""
        longest = max((unit.wall_s for unit in self.units), default=0.0)
        return round(ideal(longest=longest, cpu_seconds=self.compiles.cpu_seconds, jobs=self.jobs), 1)

    def to_json(self) -> dict[str, object]:
        """Give the document of `<wheel>.build.json`."""
        return {
            "schema": 1,
            "name": self.derivation.name,
            "version": self.derivation.full_version,
            "stack": self.derivation.stack.name,
            "index": self.derivation.index_label,
            "drv": self.derivation.drv,
            "realisation": realisation(self.derivation, self.found),
            "wheel": self.wheel,
            "sha256": self.sha256,
            "size": self.size,
            "content_digest": self.content_digest,
            "seconds": round(self.seconds, 1),
            "cpu_seconds": round(self.compiles.cpu_seconds, 1),
            "peak_memory_bytes": self.compiles.peak_rss_bytes,
            "compiles": self.compiles.compiles - self.compiles.links,
            "cache_hits": self.compiles.cache_hits,
            "retries": self.compiles.retries,
            "external": dict(self.external),
            "findings": [dict(finding) for finding in self.findings],
            "inputs": self.derivation.inputs,
            "found": self.found.to_json(),
            "recipes": self.origin.to_json(),
            "marks": list(marks(self.found.to_json(), self.origin)),
            "wheelmill": __version__,
            "units": [unit_json(unit) for unit in self.units],
        }


def unit_json(unit: CompileRecord) -> dict[str, object]:
    """Give what one compile took, without its argv (that stays in `compile.jsonl` of a build that failed)."""
    return {
        "tool": unit.tool,
        "source": unit.source or unit.output,
        "archs_asked": list(unit.archs_asked),
        "archs_used": list(unit.archs_used),
        "rewrites": list(unit.rewrites),
        "cache": unit.cache,
        "wall_s": round(unit.wall_s, 2),
        "cpu_s": round(unit.cpu_s, 2),
        "peak_rss_bytes": unit.peak_rss_bytes,
        "peak_bytes": unit.peak_bytes,
        "reserved_bytes": unit.reserved_bytes,
        "attempt": unit.attempt,
    }
