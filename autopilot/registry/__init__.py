"""The store of forecasting models: content-addressed, with lineage, promotion and rollback.

A registry is a folder (in a cluster, a volume). Artifacts are stored under the SHA-256 of their bytes and never change;
one small file, replaced atomically, names the serving version. Writers hold a lock; readers need none, and verify
content before they open it.
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
