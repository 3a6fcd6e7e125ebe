"""The structural schema of a custom resource as the type for patches and field owners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apiserver.schemas import ANY, SCALARS, Schema, schema

SCALAR_NAMES = {"string": "string", "integer": "int", "number": "number", "boolean": "bool"}


def typed_resource(given: Mapping[str, Any]) -> Schema:
    """The type of a whole object: that of its schema, with the common metadata of objects."""
    found = typed(given)
    fields = {"apiVersion": SCALARS["string"], "kind": SCALARS["string"], "metadata": schema("ObjectMeta")}
    return Schema("object", fields={**found.fields, **fields}, open=found.open)


def typed(given: Mapping[str, Any]) -> Schema:
    """The type of one field."""
    if given.get("x-kubernetes-int-or-string"):
        return SCALARS["int-or-string"]
    kind = given.get("type")
    if kind == "array":
        keys = tuple(given.get("x-kubernetes-list-map-keys") or ())
        listed = given.get("x-kubernetes-list-type")
        return Schema(
            "list",
            items=typed(given.get("items") or {}),
            keys=keys if listed == "map" else (),
            unique=listed == "set",
            atomic=listed not in {"map", "set"},
        )
    if kind in SCALAR_NAMES:
        return SCALARS[SCALAR_NAMES[kind]]
    others = given.get("additionalProperties")
    atomic = given.get("x-kubernetes-map-type") == "atomic"
    if isinstance(others, Mapping):
        return Schema("map", items=typed(others), atomic=atomic)
    properties = given.get("properties") or {}
    if not properties and kind != "object":
        return ANY
    open_ = bool(given.get("x-kubernetes-preserve-unknown-fields"))
    fields = {name: typed(each) for name, each in properties.items()}
    return Schema("object", fields=fields, open=open_, atomic=atomic)
