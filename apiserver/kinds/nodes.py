"""Nodes: defaults and refusals."""

from __future__ import annotations

from typing import Any

from apiserver.errors import FieldError, duplicate, forbidden_field, invalid_value, required, unsupported
from apiserver.kinds.internal import compact, internal
from apiserver.kinds.pods import is_extended
from apiserver.metadata import label_errors
from apiserver.quantity import parse

Obj = dict[str, Any]
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
UNIQUE = "taints must be unique by key and effect pair"
NODE_INFO = (
    "machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion",
    "kubeProxyVersion", "operatingSystem", "architecture",
)  # fmt: skip


def default_node(node: Obj) -> None:
    """Defaults of a node."""
    spec = node.setdefault("spec", {})
    if "taints" in spec and not spec["taints"]:
        del spec["taints"]
    if spec.get("unschedulable") is False:
        del spec["unschedulable"]
    status = node.setdefault("status", {})
    if "capacity" in status:
        status.setdefault("allocatable", dict(status["capacity"]))
    for condition in status.get("conditions") or []:
        condition.setdefault("lastHeartbeatTime", None)
        condition.setdefault("lastTransitionTime", None)
    status.setdefault("daemonEndpoints", {}).setdefault("kubeletEndpoint", {}).setdefault("Port", 0)
    info = status.setdefault("nodeInfo", {})
    for name in NODE_INFO:
        info.setdefault(name, "")


def node_errors(node: Obj) -> list[FieldError]:
    """Errors of a node."""
    errors = []
    seen = set()
    for at, taint in enumerate(node["spec"].get("taints") or []):
        path = f"metadata.taints[{at}]"
        key = taint.get("key", "")
        if key:
            errors += [
                invalid_value(path, key, error.message.partition(": ")[2].partition(": ")[2])
                for error in label_errors({key: ""}, path)
            ]
        else:
            errors.append(required(f"{path}.key"))
        effect = taint.get("effect", "")
        if not effect:
            errors.append(required(f"{path}.effect"))
        elif effect not in EFFECTS:
            errors.append(unsupported(f"{path}.effect", effect, EFFECTS))
        if (key, effect) in seen:
            errors.append(duplicate(path, taint, raw=compact(internal("Taint", taint)), detail=UNIQUE))
        seen.add((key, effect))
    for name in ("capacity", "allocatable"):
        for resource, amount in sorted((node["status"].get(name) or {}).items()):
            if parse(amount) < 0:
                why = "must be greater than or equal to 0"
                errors.append(invalid_value(f"status.{name}.{resource}", amount, why))
            if is_extended(resource) and parse(amount).denominator != 1:
                errors.append(invalid_value(f"status.{name}.{resource}", amount, "must be an integer"))
    return errors


def node_update_errors(node: Obj, old: Obj) -> list[FieldError]:
    """Errors of an update of a node."""
    # a node is looked at as a new one first: what is wrong with labels and taints is a cause again
    errors = 2 * label_errors(node["metadata"].get("labels") or {}, "metadata.labels") + 2 * node_errors(node)
    held, given = old["spec"].get("providerID", ""), node["spec"].get("providerID", "")
    if held and held != given:
        why = 'node updates may not change providerID except from "" to valid'
        errors.append(forbidden_field("spec.providerID", why))
    return errors


def node_status_errors(node: Obj, _old: Obj) -> list[FieldError]:
    """Errors of a write of the status."""
    return node_errors(node)


def node_field(node: Obj, path: str) -> str:
    """A field for selectors: a schedulable node leaves spec.unschedulable out."""
    return "true" if path == "spec.unschedulable" and node["spec"].get("unschedulable") else "false"
