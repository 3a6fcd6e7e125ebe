"""The role of a pod in a group: a hash over the fields of its spec relevant to admission."""

from __future__ import annotations

import hashlib
import json
from typing import Any

Obj = dict[str, Any]

# The hash is taken over JSON as Go writes it: maps by key, structures in the order of their fields.
TOLERATION = ("key", "operator", "value", "effect", "tolerationSeconds")
PORT = ("name", "hostPort", "containerPort", "protocol", "hostIP")


def role_hash(spec: Obj) -> str:
    """8 hex digits; the name of the pod set in the Workload of a group."""
    shape: Obj = {
        "affinity": spec.get("affinity"),
        "containers": _containers(spec.get("containers")),
        "initContainers": _containers(spec.get("initContainers")),
        "nodeSelector": _by_key(spec.get("nodeSelector")),
        "overhead": _by_key(spec.get("overhead")),
        "priority": spec.get("priority"),
        "resourceClaims": spec.get("resourceClaims"),
    }
    if spec.get("resources"):
        shape["resources"] = _by_key(spec["resources"].get("requests"))
    shape["runtimeClassName"] = spec.get("runtimeClassName")
    shape["tolerations"] = _structs(spec.get("tolerations"), TOLERATION)
    shape["topologySpreadConstraints"] = spec.get("topologySpreadConstraints")
    text = json.dumps({"spec": shape}, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _containers(containers: list[Obj] | None) -> list[Obj] | None:
    return [
        {
            "ports": _structs(each.get("ports"), PORT),
            "resources": {"requests": _by_key((each.get("resources") or {}).get("requests"))},
        }
        for each in containers or []
    ] or None


def _by_key(found: Obj | None) -> Obj | None:
    return None if found is None else {key: found[key] for key in sorted(found)}


def _structs(found: list[Obj] | None, order: tuple[str, ...]) -> list[Obj] | None:
    if not found:
        return None
    return [{name: each[name] for name in order if name in each} for each in found]
