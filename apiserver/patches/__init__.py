"""The patch types of the API: pure functions over plain JSON values."""

from __future__ import annotations

from typing import Any

from apiserver.errors import StatusError
from apiserver.kinds.base import Kind
from apiserver.patches.json_patch import json_patch
from apiserver.patches.merge import merge_patch
from apiserver.patches.strategic import strategic_patch

Obj = dict[str, Any]


def apply_patch(kind: Kind, how: str, obj: Obj, patch: Any) -> Obj:
    """The object after a patch: `how` is json, merge or strategic. Raises StatusError."""
    if how == "json":
        return json_patch(obj, patch)
    if how == "strategic" and kind.custom:
        raise StatusError(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: "
            "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
        )
    merged: Obj = strategic_patch(kind.schema, obj, patch) if how == "strategic" else merge_patch(obj, patch)
    return merged
