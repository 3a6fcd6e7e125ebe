"""From a definition to the kinds that it serves."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from apiserver.crd.rules import Rules
from apiserver.crd.shape import fill_defaults, prune
from apiserver.crd.typed import typed_resource
from apiserver.crd.validation import validate
from apiserver.errors import FieldError
from apiserver.kinds.base import Kind, Subresource, keep_status, only_status
from apiserver.tables.columns import custom_printer

if TYPE_CHECKING:
    from apiserver.server import Server

Obj = dict[str, Any]
SCALE = ("autoscaling", "v1", "Scale")


@dataclass(frozen=True, slots=True)
class CustomKind:
    """What is behind a kind of custom resources: its schema, and the rules in it."""

    schema: Mapping[str, Any]
    rules: Rules


def kinds_of(crd: Obj) -> list[Kind]:
    """The kinds of the versions that are served. Objects are stored in the storage version."""
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
        subresources["status"] = Subresource("status", prepare=only_status, validate=check)
    if parts.get("scale"):
        paths = parts["scale"]
        subresources["scale"] = Subresource(
            "scale", kind=SCALE, get=partial(_scale, paths), put=partial(_scaled, paths), prepare=_as_given
        )
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


# --- the scale subresource ------------------------------------------------------------------------


def _scale(paths: Mapping[str, str], _server: Server, _kind: Kind, obj: Obj) -> Obj:
    metadata = obj["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    scale: Obj = {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in names if name in metadata},
        "spec": {"replicas": _get(obj, paths["specReplicasPath"]) or 0},
        "status": {"replicas": _get(obj, paths["statusReplicasPath"]) or 0},
    }
    if paths.get("labelSelectorPath"):
        scale["status"]["selector"] = _get(obj, paths["labelSelectorPath"]) or ""
    return scale


def _scaled(paths: Mapping[str, str], _server: Server, _kind: Kind, obj: Obj, scale: Obj) -> Obj:
    changed = copy.deepcopy(obj)
    *holders, last = paths["specReplicasPath"].strip(".").split(".")
    value = changed
    for part in holders:
        value = value.setdefault(part, {})
    value[last] = (scale.get("spec") or {}).get("replicas", 0)
    return changed


def _get(obj: Obj, path: str) -> Any:
    value: Any = obj
    for part in path.strip(".").split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
