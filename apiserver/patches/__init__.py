"""The patch types of the API: pure functions over plain JSON values."""

from __future__ import annotations

from typing import Any

from apiserver.errors import internal
from apiserver.kinds.base import Kind
from apiserver.patches.json_patch import json_patch
from apiserver.patches.merge import merge_patch

Obj = dict[str, Any]


def apply_patch(kind: Kind, how: str, obj: Obj, patch: Any) -> Obj:
    """The object after a patch: `how` is json, merge or strategic. Raises StatusError."""
    if how == "json":
        return json_patch(obj, patch)
    if how == "strategic":
        raise internal(f"strategic merge patches of {kind.resource} are not served yet")
    merged: Obj = merge_patch(obj, patch)
    return merged
