"""Strategic merge patch: a merge patch that joins lists by the keys of their items."""

from __future__ import annotations

from typing import Any

from apiserver.errors import bad_request
from apiserver.schemas import Schema

Obj = dict[str, Any]
DIRECTIVES = ("$patch", "$retainKeys")
DELETE_FROM = "$deleteFromPrimitiveList/"
ORDER = "$setElementOrder/"


def strategic_patch(schema: Schema, value: Any, patch: Any) -> Any:
    """The value after the patch; neither is changed. Raises StatusError 400 for a list entry without its key."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {name: each for name, each in patch.items() if name != "$patch"}
    merged: Obj = dict(value) if isinstance(value, dict) else {}
    if "$retainKeys" in patch:
        merged = {name: each for name, each in merged.items() if name in patch["$retainKeys"]}
    for name, change in patch.items():
        if name in DIRECTIVES or name.startswith(ORDER):
            continue
        if name.startswith(DELETE_FROM):
            listed = name.removeprefix(DELETE_FROM)
            merged[listed] = [each for each in merged.get(listed) or [] if each not in change]
        elif change is None or (isinstance(change, dict) and change.get("$patch") == "delete"):
            merged.pop(name, None)
        else:
            merged[name] = _merged(schema.child(name), merged.get(name), change, patch.get(ORDER + name))
    return merged


def _merged(schema: Schema, value: Any, change: Any, order: Any) -> Any:
    if isinstance(change, dict):
        return strategic_patch(schema, value, change)
    if not isinstance(change, list) or schema.shape != "list":
        return change
    if schema.unique:
        kept = list(value or [])
        return kept + [each for each in change if each not in kept]
    if not schema.merge_key:
        return change
    return _merged_list(schema, list(value or []), change, order)


def _merged_list(schema: Schema, value: list[Any], change: list[Any], order: Any) -> list[Any]:
    key, items = schema.merge_key, schema.items or schema
    if any(isinstance(each, dict) and each.get("$patch") == "replace" for each in change):
        return [each for each in change if each.get("$patch") != "replace"]
    merged = value
    for entry in change:
        if not isinstance(entry, dict) or (key not in entry and "$patch" not in entry):
            raise bad_request(f"map: {entry} does not contain declared merge key: {key}")
        place = next((at for at, each in enumerate(merged) if each.get(key) == entry.get(key)), None)
        if entry.get("$patch") == "delete":
            merged = [each for each in merged if each.get(key) != entry.get(key)]
        elif place is None:
            merged = [*merged, strategic_patch(items, {}, entry)]
        else:
            merged = [*merged[:place], strategic_patch(items, merged[place], entry), *merged[place + 1 :]]
    listed = [each.get(key) for each in (order or change) if each.get("$patch") != "delete"]
    return _in_order(key, merged, listed, [each.get(key) for each in value])


def _in_order(key: str, merged: list[Any], patched: list[Any], before: list[Any]) -> list[Any]:
    """What the patch names keeps the order of the patch, before what it does not name, unless that stood first."""
    places = {str(name): at for at, name in enumerate(patched)}
    left = [each for each in merged if str(each.get(key)) not in places]
    right = sorted((each for each in merged if str(each.get(key)) in places), key=lambda each: places[str(each[key])])
    found: list[Any] = []
    while left and right:
        a, b = left[0].get(key), right[0].get(key)
        stands_first = a in before and b in before and before.index(a) < before.index(b)
        found.append(left.pop(0) if stands_first else right.pop(0))
    return found + left + right
