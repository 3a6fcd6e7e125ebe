"""From the schema of a custom resource to the types by which server-side apply keeps the owners of fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apiserver.schemas import ANY, SCALARS, Schema
from apiserver.schemas import schema as built_in

NAMES = {"string": "string", "integer": "int", "boolean": "bool", "number": "number"}


def root_type(schema: Mapping[str, Any]) -> Schema:
    """The type of whole objects: their metadata is that of every object."""
    found = typed(schema)
    found.fields["metadata"] = built_in("ObjectMeta")
    return found


def typed(schema: Mapping[str, Any]) -> Schema:
    """The type that an OpenAPI schema describes; free-form objects are ANY."""
    shape = schema.get("type")
    if shape == "array":
        of = schema.get("x-kubernetes-list-type")
        keys = tuple(schema.get("x-kubernetes-list-map-keys", ())) if of == "map" else ()
        return Schema("list", items=typed(schema.get("items") or {}), keys=keys, unique=of == "set")
    if shape == "object" and "properties" in schema:
        fields = {name: typed(each) for name, each in schema["properties"].items()}
        return Schema("object", fields=fields, open=bool(schema.get("x-kubernetes-preserve-unknown-fields")))
    if shape == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return Schema("map", items=typed(schema["additionalProperties"]))
    if shape in NAMES:
        return SCALARS[NAMES[shape]]
    return SCALARS["int-or-string"] if schema.get("x-kubernetes-int-or-string") else ANY
