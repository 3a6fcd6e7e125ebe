"""From a definition to its served kinds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from apiserver.crd.rules import Rules
from apiserver.crd.shape import fill_defaults, prune
from apiserver.crd.typed import typed_resource
from apiserver.crd.validation import validate
from apiserver.errors import FieldError
from apiserver.kinds.base import Kind, Subresource, keep_status, only_custom_status
from apiserver.kinds.scale import scale
from apiserver.tables.columns import custom_printer

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CustomKind:
    """The base of a kind of custom resources: its schema, and the rules in it."""

    schema: Mapping[str, Any]
    rules: Rules


def kinds_of(crd: Obj) -> list[Kind]:
    """The kinds of the served versions. Objects are stored in the storage version."""
    spec = crd["spec"]
    stored = next(each["name"] for each in spec["versions"] if each.get("storage"))
    convert = len(spec["versions"]) > 1
    return [_kind(spec, version, stored, convert=convert) for version in spec["versions"] if version.get("served")]


def _kind(spec: Obj, version: Obj, stored: str, *, convert: bool) -> Kind:
    group, names = spec["group"], spec["names"]
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {"x-kubernetes-preserve-unknown-fields": True}
    held = CustomKind(schema, Rules(schema))
    parts = version.get("subresources") or {}
    subresources = {}
    if "status" in parts:
        check = partial(_problems, held, field="status")
        subresources["status"] = Subresource("status", prepare=only_custom_status, validate=check)
    if parts.get("scale"):
        subresources["scale"] = scale(parts["scale"])
    return Kind(
        group,
        version["name"],
        names["plural"],
        names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        singular=names.get("singular", ""),
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=subresources,
        schema=typed_resource(schema),
        default=partial(_fill, schema),
        prune=partial(_prune, schema),
        prepare_create=_drop_status if "status" in parts else _nothing,
        prepare_update=keep_status if "status" in parts else _as_given,
        validate=lambda obj: validate(obj, None, schema, held.rules),
        validate_update=partial(_problems, held, field=""),
        generation=True,
        fields=tuple(each["jsonPath"].removeprefix(".") for each in version.get("selectableFields") or ()),
        columns=custom_printer(version.get("additionalPrinterColumns")),
        to_storage=partial(_in_version, f"{group}/{stored}") if convert else None,
        from_storage=partial(_read_as, f"{group}/{version['name']}", schema) if convert else None,
        custom=True,
        extra=held,
    )


def _problems(held: CustomKind, obj: Obj, old: Obj, *, field: str) -> list[FieldError]:
    return validate(obj, old, held.schema, held.rules, field)


def _fill(schema: Mapping[str, Any], obj: Obj) -> None:
    fill_defaults(obj, schema)


def _prune(schema: Mapping[str, Any], obj: Obj) -> list[str]:
    return prune(obj, schema)


def _drop_status(obj: Obj) -> None:
    obj.pop("status", None)


def _nothing(_obj: Obj) -> None:
    """No status subresource: the status is written like the rest."""


def _as_given(_obj: Obj, _old: Obj) -> None:
    """Everything may be written."""


def _in_version(api_version: str, obj: Obj) -> Obj:
    return obj if obj["apiVersion"] == api_version else {**obj, "apiVersion": api_version}


def _read_as(api_version: str, schema: Mapping[str, Any], obj: Obj) -> Obj:
    """A stored object in another version: the same fields, as far as its schema has them, and its defaults."""
    shown = copy.deepcopy(_in_version(api_version, obj))
    prune(shown, schema)
    fill_defaults(shown, schema)
    return shown
