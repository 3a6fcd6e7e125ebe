"""JSON patch (RFC 6902)."""

from __future__ import annotations

from typing import Any

import jsonpatch
import jsonpointer

from apiserver.errors import unprocessable_patch

Obj = dict[str, Any]


def json_patch(obj: Obj, patch: Any) -> Obj:
    """The object after the patch. Raises StatusError 422 where it cannot be applied, with one text for all causes."""
    try:
        patched: Obj = jsonpatch.apply_patch(obj, patch)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, KeyError) as error:
        raise unprocessable_patch() from error
    return patched
