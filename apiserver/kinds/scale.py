"""The scale subresource: the number of replicas of an object as an autoscaling/v1 Scale."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from apiserver.errors import FieldError, internal, invalid_value
from apiserver.kinds.base import Kind, State, Subresource
from apiserver.managed import Owner, Writer, applied, read_owners, write_owners
from apiserver.schemas import schema

Obj = dict[str, Any]
VERSION = "autoscaling/v1"
REPLICAS = ("f:spec", "f:replicas")  # in a Scale
PATHS = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".spec.selector",
}
"""Of Deployments, ReplicaSets and StatefulSets; a definition of custom resources states its own."""


def scale(paths: Mapping[str, str] = PATHS) -> Subresource:
    """The subresource of objects with their replicas at these paths."""
    return Subresource(
        "scale",
        kind=("autoscaling", "v1", "Scale"),
        get=partial(_shown, paths),
        put=partial(_written, paths),
        apply=partial(_applied, paths),
        prepare=_as_given,
    )


def _as_given(_obj: Obj, _old: Obj) -> None:
    """Nothing to prepare: only the replicas differ from the stored object."""


def scale_errors(shown: Obj) -> list[FieldError]:
    """Errors of a Scale."""
    replicas = (shown.get("spec") or {}).get("replicas") or 0
    if replicas < 0:
        return [invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")]
    return []


def _shown(paths: Mapping[str, str], _server: State, kind: Kind, obj: Obj) -> Obj:
    metadata = obj["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    replicas = _at(obj, paths["specReplicasPath"])
    if replicas is None and kind.custom:
        raise internal(f'the spec replicas field "{paths["specReplicasPath"]}" does not exist')
    found: Obj = {
        "kind": "Scale",
        "apiVersion": VERSION,
        "metadata": {name: metadata[name] for name in names if name in metadata},
        "spec": {"replicas": replicas} if replicas else {},
        "status": {"replicas": _at(obj, paths["statusReplicasPath"]) or 0},
    }
    if paths.get("labelSelectorPath"):
        found["status"]["selector"] = _selector(_at(obj, paths["labelSelectorPath"]))
    return found


def _selector(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value or "")
    return ",".join(f"{key}={text}" for key, text in sorted((value.get("matchLabels") or {}).items()))


def _written(paths: Mapping[str, str], _server: State, _kind: Kind, obj: Obj, shown: Obj) -> Obj:
    changed = copy.deepcopy(obj)
    *holders, last = paths["specReplicasPath"].strip(".").split(".")
    value = changed
    for part in holders:
        value = value.setdefault(part, {})
    value[last] = (shown.get("spec") or {}).get("replicas", 0)
    return changed


def _applied(paths: Mapping[str, str], shown: Obj, old: Obj, config: Obj, writer: Writer, force: bool) -> Obj:
    """The Scale after an apply of `config`; it states the later owners of the replicas in the object `old`."""
    place = tuple(f"f:{part}" for part in paths["specReplicasPath"].strip(".").split("."))
    owners = read_owners(old)
    theirs = [each for each in owners if place in each.fields]
    live = copy.deepcopy(shown)
    write_owners(live, [replace(each, api_version=VERSION, fields=frozenset({REPLICAS})) for each in theirs])
    result = applied(schema("Scale"), live, config, replace(writer, api_version=VERSION), force=force)
    found = {_identity(each): each for each in read_owners(result) if REPLICAS in each.fields}
    kept = []
    for each in owners:
        held = found.pop(_identity(each), None)
        fields = each.fields - {place} | ({place} if held is not None else set())
        kept.append(replace(each, fields=fields))
    kept += [replace(each, api_version=writer.api_version, fields=frozenset({place})) for each in found.values()]
    result["metadata"].pop("managedFields", None)
    write_owners(result, kept)
    return result


def _identity(owner: Owner) -> tuple[str, str, str]:
    return owner.manager, owner.operation, owner.subresource


def _at(obj: Obj, path: str) -> Any:
    value: Any = obj
    for part in path.strip(".").split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
