"""The scale subresource: the number of replicas of an object as an autoscaling/v1 Scale."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from apiserver.errors import FieldError, invalid_value
from apiserver.kinds.base import Kind, Subresource

if TYPE_CHECKING:
    from apiserver.server import Server

Obj = dict[str, Any]
PATHS = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".spec.selector",
}
"""Of Deployments, ReplicaSets and StatefulSets; a definition of custom resources states its own."""


def scale(paths: Mapping[str, str] = PATHS) -> Subresource:
    """The subresource of objects that keep their replicas at these paths."""
    return Subresource(
        "scale",
        kind=("autoscaling", "v1", "Scale"),
        get=partial(_shown, paths),
        put=partial(_written, paths),
        prepare=_as_given,
        validate=partial(_problems, paths),
    )


def _as_given(_obj: Obj, _old: Obj) -> None:
    """Only the replicas differ from what is stored."""


def _problems(paths: Mapping[str, str], obj: Obj, _old: Obj) -> list[FieldError]:
    replicas = _at(obj, paths["specReplicasPath"]) or 0
    if replicas < 0:
        return [invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")]
    return []


def _shown(paths: Mapping[str, str], _server: Server, _kind: Kind, obj: Obj) -> Obj:
    metadata = obj["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    found: Obj = {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in names if name in metadata},
        "spec": {"replicas": _at(obj, paths["specReplicasPath"]) or 0},
        "status": {"replicas": _at(obj, paths["statusReplicasPath"]) or 0},
    }
    if paths.get("labelSelectorPath"):
        found["status"]["selector"] = _selector(_at(obj, paths["labelSelectorPath"]))
    return found


def _selector(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value or "")
    return ",".join(f"{key}={text}" for key, text in sorted((value.get("matchLabels") or {}).items()))


def _written(paths: Mapping[str, str], _server: Server, _kind: Kind, obj: Obj, shown: Obj) -> Obj:
    changed = copy.deepcopy(obj)
    *holders, last = paths["specReplicasPath"].strip(".").split(".")
    value = changed
    for part in holders:
        value = value.setdefault(part, {})
    value[last] = (shown.get("spec") or {}).get("replicas", 0)
    return changed


def _at(obj: Obj, path: str) -> Any:
    value: Any = obj
    for part in path.strip(".").split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
