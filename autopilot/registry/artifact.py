"""Models as bytes and back: skops archives in a canonical form, opened only if every type in them is trusted.

skops stores no code, but names of types to rebuild. Its own list of trusted types is wide (all of scikit-learn); ours
holds the parts of our models, and no type that calls a function by name. The form is canonical, so equal content has
equal bytes: skops itself writes memory addresses and the time.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from autopilot.registry.atomic_files import RegistryError, sha256

TRUSTED_TYPES = frozenset(
    {
        "builtins.dict",
        "builtins.list",
        "builtins.tuple",
        "builtins.str",
        "builtins.int",
        "builtins.float",
        "builtins.bool",
        "builtins.type",
        "numpy.ndarray",
        "numpy.dtype",
        "numpy.bool",
        "numpy.float32",
        "numpy.float64",
        "numpy.int8",
        "numpy.int32",
        "numpy.int64",
        "numpy.uint8",
        "numpy.uint32",
        "numpy.uint64",
        "numpy.str_",
        "numpy.random._generator.Generator",
        "numpy.random.mtrand.RandomState",
        "sklearn._loss.link.IdentityLink",
        "sklearn._loss.link.Interval",
        "sklearn._loss.loss.PinballLoss",
        "sklearn._loss.loss.HalfSquaredError",
        "sklearn._loss.loss.AbsoluteError",
        "sklearn._loss._loss.CyPinballLoss",
        "sklearn._loss._loss.CyHalfSquaredError",
        "sklearn._loss._loss.CyAbsoluteError",
        "sklearn.ensemble._hist_gradient_boosting.binning._BinMapper",
        "sklearn.ensemble._hist_gradient_boosting.gradient_boosting.HistGradientBoostingRegressor",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.feature_extraction.text.HashingVectorizer",
    }
)
"""Types allowed in an artifact."""

TRUSTED_LOADERS = frozenset(
    {
        "DictNode",
        "JsonNode",
        "ListNode",
        "LossNode",
        "NdArrayNode",
        "DTypeNode",
        "ObjectNode",
        "RandomGeneratorNode",
        "RandomStateNode",
        "TupleNode",
        "TypeNode",
    }
)
"""Ways of skops for rebuilding them; those of functions, methods and partial calls are excluded."""

MAX_BYTES = 256 * 1024 * 1024
"""Limit on unpacked content: a small archive can expand without bound."""

MAX_PARTS = 200_000

_SCHEMA = "schema.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_LEVEL = 6


class ArtifactError(RegistryError):
    """An artifact is refused: damaged, or with an untrusted type."""


def pack(content: Mapping[str, Any]) -> bytes:
    """A dict of plain values, arrays and estimators as bytes; equal content gives equal bytes.

    Raises `ArtifactError` for content that could not be unpacked again.
    """
    import skops.io

    try:
        raw = skops.io.dumps(dict(content))
    except Exception as error:  # skops raises what the object's own methods raise
        raise ArtifactError(f"the model cannot be stored ({_short(error)})") from error
    parts = _parts(raw)
    schema = _canonical(parts)
    _audit(schema)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        text = json.dumps(schema, separators=(",", ":"))
        for name, data in ((_SCHEMA, text.encode()), *sorted(_named(parts).items())):
            about = zipfile.ZipInfo(name, _EPOCH)
            about.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(about, data, compresslevel=_LEVEL)
    return packed.getvalue()


def unpack(data: bytes) -> dict[str, Any]:
    """The inverse of `pack`. The caller has verified the digest of `data`.

    Raises `ArtifactError` for anything `pack` would not have written; nothing is built then.
    """
    import skops.io

    parts = _parts(data)
    schema = _read_schema(parts)
    _audit(schema)
    try:
        content = skops.io.loads(data, trusted=sorted(TRUSTED_TYPES))
    except Exception as error:  # a crafted archive may fail anywhere
        raise ArtifactError(f"the artifact cannot be opened ({_short(error)})") from error
    if not isinstance(content, dict):
        raise ArtifactError("the artifact holds no dict; it was not written by this registry")
    return content


def _parts(data: bytes) -> dict[str, bytes]:
    """Name -> content of the members of an archive, within the limits."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            whole_bytes = sum(member.file_size for member in members)
            if len(members) <= MAX_PARTS and whole_bytes <= MAX_BYTES:
                return {member.filename: archive.read(member) for member in members}
    except Exception as error:  # zipfile raises several exception types for a damaged archive
        raise ArtifactError(f"the artifact is no complete archive ({_short(error)})") from error
    raise ArtifactError(
        f"the artifact has {len(members):,} parts of {whole_bytes:,} bytes; the limits are {MAX_PARTS:,} "
        f"parts and {MAX_BYTES:,} bytes: train on fewer rows or with fewer trees"
    )


def _read_schema(parts: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        schema = json.loads(parts[_SCHEMA])
    except (KeyError, ValueError, RecursionError) as error:
        raise ArtifactError("the artifact has no readable schema") from error
    if not isinstance(schema, dict):
        raise ArtifactError("the artifact has no readable schema")
    return schema


def _canonical(parts: Mapping[str, bytes]) -> dict[str, Any]:
    """The schema with parts named by their content, and nodes numbered in order."""
    schema = _read_schema(parts)
    for number, node in enumerate(_nodes(schema)):
        if isinstance(node.get("__id__"), int):  # not a key of that name in a user's dict
            node["__id__"] = number
        if node.get("__loader__") == "NdArrayNode" and node.get("type") == "numpy":
            node["file"] = f"{sha256(parts[node['file']])}.npy"
    return schema


def _named(parts: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{sha256(data)}.npy": data for name, data in parts.items() if name != _SCHEMA}


def _nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a schema, in order, without recursion."""
    waiting: list[Any] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(reversed(value.values()))
        elif isinstance(value, list):
            waiting.extend(reversed(value))


def _audit(schema: dict[str, Any]) -> None:
    """Raise `ArtifactError` naming each untrusted type and way of building."""
    foreign: set[str] = set()
    for node in _nodes(schema):
        if "__loader__" not in node and "__class__" not in node:
            continue
        name = f"{node.get('__module__')}.{node.get('__class__')}"
        if name not in TRUSTED_TYPES:
            foreign.add(name)
        if node.get("__loader__") not in TRUSTED_LOADERS:
            foreign.add(f"{node.get('__loader__')} of {name}")
    if foreign:
        raise ArtifactError(
            f"the artifact contains untrusted types: {', '.join(sorted(foreign)[:5])}; use plain values, "
            "arrays and the listed estimators only"
        )


def _short(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 200 else f"{text[:197]}..."
