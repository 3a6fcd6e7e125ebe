"""Relations between versions: ancestry, and differences of two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from autopilot.registry.atomic_files import RegistryError
from autopilot.registry.manifest import Manifest
from autopilot.registry.store import Registry

MAX_ANCESTORS = 1000


def lineage(registry: Registry, manifest: Manifest) -> tuple[list[Manifest], str]:
    """A version and its ancestors, newest first, and the reason for the end of the list ("" at a first version)."""
    found = [manifest]
    while found[-1].parent and len(found) < MAX_ANCESTORS:
        try:
            found.append(registry.manifest(manifest.kind, found[-1].parent))
        except RegistryError as error:
            return found, str(error)
    return found, ""


def difference(one: Manifest, other: Manifest) -> list[tuple[str, Any, Any]]:
    """(field, value in one, value in other) of every difference of two versions; None: missing."""
    left, right = (_flat("", asdict(each)) for each in (one, other))
    names = [*left, *(name for name in right if name not in left)]
    return [(name, left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)]


def _flat(prefix: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        flat: dict[str, Any] = {}
        for name, each in value.items():
            flat |= _flat(f"{prefix}.{name}" if prefix else str(name), each)
        return flat
    return {prefix: list(value) if isinstance(value, tuple) else value}
