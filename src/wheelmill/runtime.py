"""What this process was given: environment, folders and terminal, captured once and threaded through."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Directories:
    """Every path that wheelmill writes, named once."""

    cache: Path
    wheelhouse: Path
    fresh: Path | None = None
    """Where a build that must not meet an earlier one has its work folder and an empty object cache."""
    elsewhere: Path | None = None
    """Where such folders are made, where it shall be another place than usual."""

    @property
    def store(self) -> Path:
        """Fetched files, by sha256."""
        return self.cache / "store"

    @property
    def toolkits(self) -> Path:
        """Toolkits installed from pinned wheels, and views of toolkits, by digest."""
        return self.cache / "toolkits"

    @property
    def environments(self) -> Path:
        """Locked virtual environments, by lock digest and interpreter."""
        return self.cache / "environments"

    @property
    def objects(self) -> Path:
        """Object caches, one per recipe."""
        return (self.fresh or self.cache) / "objects"

    @property
    def peaks(self) -> Path:
        """What compiles took here: one table per package, appended to by every build."""
        return self.cache / "peaks"

    @property
    def rebuilds(self) -> Path:
        """Work folders of builds that share none, each with an object cache of its own."""
        return self.elsewhere or self.cache / "rebuilds"

    @property
    def builds(self) -> Path:
        """Work folders of builds, by derivation: source tree, log, records."""
        return (self.fresh or self.cache) / "builds"


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """The process environment as values; nothing below reads os.environ."""

    env: Mapping[str, str]
    directories: Directories
    cwd: Path
    python: Path


def capture(*, cache: Path | None = None, wheelhouse: Path | None = None) -> Runtime:
    """Read the process environment, once.

    The cache is `--cache`, else WHEELMILL_CACHE, else `wheelmill` in XDG_CACHE_HOME or ~/.cache.
    """
    env = dict(os.environ)
    cwd = Path.cwd()
    home = Path(env.get("HOME", "/"))
    default_cache = Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "wheelmill"
    chosen = cache or Path(env.get("WHEELMILL_CACHE") or default_cache)
    return Runtime(
        env=env,
        directories=Directories(
            cache=(cwd / chosen).resolve(), wheelhouse=(cwd / (wheelhouse or Path("wheelhouse"))).resolve()
        ),
        cwd=cwd,
        python=Path(sys.executable),
    )
