"""The store of forecasting models: content-addressed, with lineage, promoted and rolled back in one step.

A registry is a folder (in a cluster, a volume). Artifacts lie under the SHA-256 of their bytes and never
change; what serves is one small file that is replaced whole. Whoever writes holds a lock; whoever reads
needs none, and verifies what it reads before it opens it.
"""

from __future__ import annotations

from autopilot.registry.artifact import ArtifactError, pack, unpack
from autopilot.registry.atomic_files import RegistryError
from autopilot.registry.book import VerdictBook, run_name
from autopilot.registry.manifest import Manifest, library_versions
from autopilot.registry.store import KINDS, Entry, Registry, Served
from autopilot.registry.trees import difference, lineage

__all__ = [
    "KINDS",
    "ArtifactError",
    "Entry",
    "Manifest",
    "Registry",
    "RegistryError",
    "Served",
    "VerdictBook",
    "difference",
    "library_versions",
    "lineage",
    "pack",
    "run_name",
    "unpack",
]
