"""NVIDIA's GPU operator for MIG: its ClusterPolicy, and the ConfigMap of its MIG manager."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from autopilot.core.hardware.mig import GpuModel
from autopilot.core.model.objects import Sharing, SharingConfig

Obj = dict[str, Any]
Layout = Sequence[Sequence[str] | None]
"""The profiles of the instances of each GPU of a node; None if MIG mode is off."""
SPACE, CONFIG_MAP, SHARING_MAP = "gpu-operator", "gpu-autopilot-mig", "gpu-autopilot-sharing"
DEFINITION: Obj = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "clusterpolicies.nvidia.com"},
    "spec": {
        "group": "nvidia.com",
        "names": {"plural": "clusterpolicies", "singular": "clusterpolicy", "kind": "ClusterPolicy"},
        "scope": "Cluster",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def operator_objects(entries: Obj) -> list[tuple[str, Obj]]:
    """Namespace, ConfigMap with these entries, and ClusterPolicy, with the resource of each."""
    text = yaml.safe_dump({"version": "v1", "mig-configs": entries}, sort_keys=False, default_flow_style=None)
    meta = {"name": CONFIG_MAP, "namespace": SPACE}
    policy = {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy"},
        "spec": {"mig": {"strategy": "mixed"}, "migManager": {"config": {"name": CONFIG_MAP}}},
        "status": {"namespace": SPACE, "state": "ready"},
    }
    return [
        ("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}),
        ("configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"config.yaml": text}}),
        ("clusterpolicies.nvidia.com", policy),
    ]


def plugin_objects(configs: Iterable[SharingConfig]) -> list[tuple[str, Obj]]:
    """Namespace, ConfigMap of the device plugin with these configurations, and ClusterPolicy, with their resources."""
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
    meta, data = {"name": SHARING_MAP, "namespace": SPACE}, {each.key: _entry(each) for each in configs}
    policy = {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy"},
        "spec": {"devicePlugin": {"config": {"name": SHARING_MAP, "default": "whole"}}},
        "status": {"namespace": SPACE, "state": "ready"},
    }
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
    return [("namespaces", space), ("configmaps", config_map), ("clusterpolicies.nvidia.com", policy)]


def _entry(config: SharingConfig) -> str:
    """An entry as the device plugin reads it."""
    shared: Obj = {"renameByDefault": False, "failRequestsGreaterThanOne": config.single}
    shared["resources"] = [{"name": "nvidia.com/gpu", "replicas": config.replicas}]
    way = {Sharing.TIME_SLICING: "timeSlicing", Sharing.MPS: "mps"}.get(config.sharing)
    return yaml.safe_dump({"version": "v1"} | ({"sharing": {way: shared}} if way else {}), sort_keys=False)


def usual_entries(models: Iterable[GpuModel]) -> Obj:
    """Entries for all GPUs of a node, named as in mig-parted's own file: all-disabled, and one for each profile."""
    found: Obj = {"all-disabled": [{"devices": "all", "mig-enabled": False}]}
    for model in models:
        for profile in model.profiles:
            found[f"all-{profile.name}"] = [_part("all", {profile.name: profile.max_instances})]
    return found


def entry_for(layout: Layout, entries: Obj) -> str:
    """The name of the entry for a layout; a missing one is added."""
    counts = [_counts(each) for each in layout]
    for name, parts in entries.items():
        by_gpu = {each: part.get("mig-devices") for part in parts for each in _indexes(part, len(counts))}
        if [by_gpu.get(index) for index in range(len(counts))] == counts:
            return name
    name = f"mixed-{sum(each.startswith('mixed-') for each in entries) + 1}"
    kinds = [each for index, each in enumerate(counts) if each not in counts[:index]]
    entries[name] = [_part([gpu for gpu, own in enumerate(counts) if own == each], each) for each in kinds]
    return name


def geometry_note(layout: Layout) -> str:
    """A node's record by the lever `mig-config`: the instances by profile of each GPU."""
    return json.dumps([_counts(each) for each in layout])


def _counts(cut: Sequence[str] | None) -> dict[str, int] | None:
    return None if cut is None else dict(sorted(Counter(cut).items()))


def _part(devices: str | list[int], counts: dict[str, int] | None) -> Obj:
    if counts is None:
        return {"devices": devices, "mig-enabled": False}
    return {"devices": devices, "mig-enabled": True, "mig-devices": counts}


def _indexes(part: Obj, gpus: int) -> Iterable[int]:
    return range(gpus) if part["devices"] == "all" else part["devices"]
