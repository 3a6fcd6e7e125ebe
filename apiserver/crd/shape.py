"""Objects brought into the shape of their schema: unknown fields dropped, defaults filled in."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

Obj = dict[str, Any]
Schema = Mapping[str, Any]

OBJECT_META = frozenset(
    {"name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation", "creationTimestamp"}
    | {"deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences", "finalizers"}
    | {"managedFields"}
)
ROOT = frozenset({"apiVersion", "kind", "metadata"})


def prune(obj: Obj, schema: Schema) -> list[str]:
    """Drop the fields unknown to the schema, in place; the paths of the dropped ones, in the order met."""
    dropped: list[str] = []
    _prune_object(obj, schema, "", dropped, resource=True)
    return dropped


def _prune(value: Any, schema: Schema, path: str, dropped: list[str]) -> None:
    if isinstance(value, dict):
        _prune_object(value, schema, path, dropped, resource=bool(schema.get("x-kubernetes-embedded-resource")))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            _prune(each, schema.get("items") or {}, f"{path}[{number}]", dropped)


def _prune_object(value: Obj, schema: Schema, path: str, dropped: list[str], *, resource: bool) -> None:
    properties = schema.get("properties") or {}
    others = schema.get("additionalProperties")
    keeps = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    for name in list(value):
        at = f"{path}.{name}" if path else name
        if resource and name in ROOT:
            if name == "metadata" and isinstance(value[name], dict):
                for field in [field for field in value[name] if field not in OBJECT_META]:
                    dropped.append(f"{at}.{field}")
                    del value[name][field]
        elif name in properties:
            _prune(value[name], properties[name], at, dropped)
        elif isinstance(others, Mapping):
            _prune(value[name], others, at, dropped)
        elif not keeps and others is not True:
            dropped.append(at)
            del value[name]


def fill_defaults(value: Any, schema: Schema) -> None:
    """Set absent fields to their defaults, in place, from the outside in. A null counts as absent unless the
    schema allows it: the default replaces it, or it is removed.
    """
    if isinstance(value, list):
        for each in value:
            fill_defaults(each, schema.get("items") or {})
        return
    if not isinstance(value, dict):
        return
    properties = schema.get("properties") or {}
    others = schema.get("additionalProperties")
    for name, field in properties.items():
        if name in value and value[name] is None and not field.get("nullable"):
            del value[name]
        if "default" in field and name not in value:
            value[name] = copy.deepcopy(field["default"])
    for name, each in value.items():
        inner = properties.get(name, others if isinstance(others, Mapping) else None)
        if inner is not None:
            fill_defaults(each, inner)
