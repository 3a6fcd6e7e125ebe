"""Objects of the API as JSON, in the shapes of real servers, for the tests of the Kubernetes sources."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

EPOCH_S = 1_790_000_000.0
Json = dict[str, Any]


def stamp(at_s: float = EPOCH_S) -> str:
    """A time as the API writes it."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def meta(name: str, namespace: str = "", uid: str = "", **more: Any) -> Json:
    """Metadata; the uid is made of the name."""
    space = {"namespace": namespace} if namespace else {}
    made = uid or f"uid-{namespace}-{name}".replace("--", "-")
    return {"name": name, **space, "uid": made, "resourceVersion": "1", "creationTimestamp": stamp(), **more}


def node(
    name: str,
    gpus: int = 8,
    *,
    product: str = "NVIDIA-H100-80GB-HBM3",
    labels: Json | None = None,
    taints: list[Json] | None = None,
    capacity: Json | None = None,
    allocatable: Json | None = None,
    ready: bool = True,
    unschedulable: bool = False,
    uid: str = "",
) -> Json:
    """A node as kubelet, device plugin and GPU feature discovery describe it."""
    has = {"cpu": "192", "memory": "2113431260Ki", "pods": "110", "nvidia.com/gpu": str(gpus)} | (capacity or {})
    found = {
        "kubernetes.io/hostname": name,
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": str(gpus),
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/mig.strategy": "mixed",
    } | (labels or {})
    status = "True" if ready else "Unknown"
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": meta(name, uid=uid, labels={key: value for key, value in found.items() if value}),
        "spec": {"taints": taints or [], **({"unschedulable": True} if unschedulable else {})},
        "status": {
            "capacity": has,
            "allocatable": has | (allocatable or {}),
            "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": stamp()}],
        },
    }


def pod_spec(gpus: int = 1, **more: Any) -> Json:
    """The spec of a pod with one container that asks for GPUs (or, with `resource`, for something else)."""
    resource = more.pop("resource", "nvidia.com/gpu")
    asked = {"cpu": "4", "memory": "16Gi", **({resource: str(gpus)} if gpus else {})}
    return {"containers": [{"name": "main", "resources": {"requests": asked, "limits": asked}}], **more}


def pod(
    name: str,
    gpus: int = 1,
    *,
    namespace: str = "team",
    node: str = "",
    phase: str = "",
    owner: Json | None = None,
    labels: Json | None = None,
    annotations: Json | None = None,
    uid: str = "",
    deleting: bool = False,
    at_s: float = EPOCH_S,
    **spec: Any,
) -> Json:
    """A pod, running where a node is given."""
    phase = phase or ("Running" if node else "Pending")
    running = phase == "Running"
    conditions = [{"type": "Ready", "status": str(running), "lastTransitionTime": stamp(at_s)}]
    if node:
        conditions.append({"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(at_s)})
    data = meta(name, namespace, uid, labels=labels or {}, annotations=annotations or {})
    data |= {"ownerReferences": [owner]} if owner else {}
    data |= {"deletionTimestamp": stamp(at_s)} if deleting else {}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": data,
        "spec": {"nodeName": node, "priority": 0, **pod_spec(gpus, **spec)},
        "status": {"phase": phase, "startTime": stamp(at_s), "conditions": conditions},
    }


def owner(kind: str, name: str, uid: str) -> Json:
    """The reference to a controller."""
    return {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "controller": True, "blockOwnerDeletion": True}


def job(
    name: str, gpus: int = 1, *, namespace: str = "team", width: int = 1, suspend: bool = False, **more: Any
) -> Json:
    """A Job."""
    annotations, conditions = more.pop("annotations", {}), more.pop("conditions", [])
    return {
        "kind": "Job",
        "apiVersion": "batch/v1",
        "metadata": meta(name, namespace, annotations=annotations),
        "spec": {
            "parallelism": width,
            "completions": width,
            "suspend": suspend,
            "template": {"metadata": {"labels": {}}, "spec": pod_spec(gpus, **more)},
        },
        "status": {"conditions": conditions},
    }


def done(kind: str, reason: str = "", at_s: float = EPOCH_S, message: str = "", *, status: str = "True") -> Json:
    """A condition."""
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": stamp(at_s)}


def workload(
    name: str,
    gpus: int = 1,
    *,
    namespace: str = "team",
    count: int = 1,
    queue: str = "local",
    owner: Json | None = None,
    admitted_to: str = "",
    conditions: list[Json] | None = None,
    priority: int = 0,
    active: bool = True,
    **more: Any,
) -> Json:
    """A Workload of Kueue; `admitted_to` is the ClusterQueue that admits it."""
    status: Json = {"conditions": conditions or []}
    if admitted_to:
        status["admission"] = {
            "clusterQueue": admitted_to,
            "podSetAssignments": [{"name": "main", "count": count, "flavors": {"nvidia.com/gpu": "h100"}}],
        }
        status["conditions"] += [done("QuotaReserved", "QuotaReserved"), done("Admitted", "Admitted")]
    status |= more.pop("status", {})
    data = meta(name, namespace)
    data |= {"ownerReferences": [owner]} if owner else {}
    pod_set = {"name": "main", "count": count, "template": {"metadata": {}, "spec": pod_spec(gpus)}} | more
    return {
        "kind": "Workload",
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "metadata": data,
        "spec": {"active": active, "priority": priority, "queueName": queue, "podSets": [pod_set]},
        "status": status,
    }


def cluster_queue(name: str, quota: int, *, cohort: str = "", flavor: str = "h100", **spec: Any) -> Json:
    """A ClusterQueue with a quota of GPUs of one flavor."""
    resource = {"name": "nvidia.com/gpu", "nominalQuota": str(quota)} | spec.pop("resource", {})
    return {
        "kind": "ClusterQueue",
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "metadata": meta(name),
        "spec": {
            "cohortName": cohort,
            "queueingStrategy": "BestEffortFIFO",
            "resourceGroups": [
                {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": flavor, "resources": [resource]}]}
            ],
            **spec,
        },
        "status": {"conditions": [done("Active", "Ready", message="Can admit new workloads")]},
    }


def local_queue(name: str, cluster_queue: str, namespace: str = "team", **spec: Any) -> Json:
    """A LocalQueue."""
    return {"kind": "LocalQueue", "metadata": meta(name, namespace), "spec": {"clusterQueue": cluster_queue, **spec}}


def flavor(name: str = "h100", labels: Json | None = None) -> Json:
    """A ResourceFlavor for H100 nodes."""
    found = labels if labels is not None else {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    return {"kind": "ResourceFlavor", "metadata": meta(name), "spec": {"nodeLabels": found}}


def kueue(*objects: Json) -> list[Json]:
    """One queue `gpus` of 16 GPUs behind the LocalQueue `local` of the namespace `team`, and more objects."""
    return [flavor(), cluster_queue("gpus", 16), local_queue("local", "gpus"), *objects]
