"""The metadata of a version: training data, code, scores, parent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from typing import Any

from autopilot.registry.atomic_files import RegistryError, canonical, sha256

SCHEMA = "gpu-autopilot/model/1"
LIBRARIES = ("numpy", "scikit-learn", "scipy", "skops", "statsmodels")
"""Possible dependencies of a fitted model."""

MUST_EQUAL = ("scikit-learn",)
"""Libraries without a guarantee to load estimators of another version."""

MAX_BYTES = 4 * 1024 * 1024
SHORT = 12
"""Number of shown characters of a version; enough to identify one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of a model. Its name is the digest of all fields but `created_s` and `created_by`."""

    kind: str  # bursts or runtimes
    model: str  # the model's own name and format, e.g. `boosting/1`
    artifact: str  # SHA-256 of the artifact
    artifact_bytes: int
    data: Mapping[str, Any]  # from_s, to_s, rows, digest of the training data
    feature_schema: tuple[str, ...]
    parameters: Mapping[str, Any]
    libraries: Mapping[str, str]
    code: str
    seed: int
    scores: Mapping[str, Any] = field(default_factory=dict)
    counted_work: int = 0  # rows x trees of its fits
    parent: str = ""  # the serving version at the making of this one
    created_s: float = 0.0  # since the epoch
    created_by: str = ""

    @property
    def version(self) -> str:
        """The name: a digest of the content, independent of author and time."""
        body = asdict(self)
        del body["created_s"], body["created_by"]
        try:
            return sha256(canonical(body))
        except (ValueError, TypeError) as error:
            raise RegistryError(
                f"{self.kind}: the manifest cannot be written as JSON ({error}); omit unknown values"
            ) from error

    def to_bytes(self) -> bytes:
        """The bytes on disk, with a digest of all of them."""
        body = asdict(self)
        whole = {
            "schema": SCHEMA,
            "version": self.version,
            "checksum": sha256(canonical(body)),
            "manifest": body,
        }
        return json.dumps(whole, indent=1, sort_keys=True, allow_nan=False).encode()


def read_manifest(data: bytes, name: str) -> Manifest:
    """The inverse of `to_bytes`, for the manifest called `name`.

    Raises `RegistryError` for a changed one, and for one of another name.
    """
    try:
        whole = json.loads(data)
        body = whole["manifest"]
        if whole["schema"] != SCHEMA:
            raise RegistryError(f"version {name[:SHORT]}: written as {whole['schema']}; this reads {SCHEMA}")
        if sha256(canonical(body)) != whole["checksum"]:
            raise RegistryError(f"version {name[:SHORT]}: its manifest was changed or damaged")
        known = {each.name for each in fields(Manifest)}
        if set(body) != known:
            raise RegistryError(f"version {name[:SHORT]}: its manifest has other fields than this version's")
        manifest = Manifest(**{**body, "feature_schema": tuple(body["feature_schema"])})
        if manifest.version != name:
            raise RegistryError(f"version {name[:SHORT]}: its manifest is that of another version")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RegistryError(f"version {name[:SHORT]}: its manifest cannot be read ({error})") from error
    return manifest


def library_versions() -> dict[str, str]:
    """The versions of `LIBRARIES` in this process."""
    return {name: metadata.version(name) for name in LIBRARIES}


def library_problem(manifest: Manifest, running: Mapping[str, str]) -> str:
    """Reason against a version under the installed libraries; "" without one."""
    for name in MUST_EQUAL:
        trained, here = manifest.libraries.get(name), running.get(name)
        if trained != here:
            return f"was fitted with {name} {trained}, but {here} is installed: fit it again"
    return ""
