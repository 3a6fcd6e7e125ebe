"""The core group."""

from __future__ import annotations

from typing import Any

from apiserver.kinds.base import STATUS, Kind

Obj = dict[str, Any]


def _grace_s(pod: Obj) -> int:
    """A pod that is bound to a node is given time to stop."""
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
        return 0
    return int(pod["spec"].get("terminationGracePeriodSeconds", 30))


CORE = (
    Kind(
        "",
        "v1",
        "pods",
        "Pod",
        short_names=("po",),
        categories=("all",),
        subresources={"status": STATUS},
        generation=True,
        grace=_grace_s,
        fields=("spec.nodeName", "status.phase", "spec.schedulerName", "spec.restartPolicy"),
    ),
    Kind(
        "",
        "v1",
        "nodes",
        "Node",
        namespaced=False,
        short_names=("no",),
        subresources={"status": STATUS},
        fields=("spec.unschedulable",),
    ),
    Kind("", "v1", "configmaps", "ConfigMap", short_names=("cm",)),
    Kind("", "v1", "namespaces", "Namespace", namespaced=False, short_names=("ns",), subresources={"status": STATUS}),
    Kind("", "v1", "secrets", "Secret"),
    Kind("", "v1", "services", "Service", short_names=("svc",), categories=("all",), subresources={"status": STATUS}),
    Kind("", "v1", "endpoints", "Endpoints", short_names=("ep",)),
    Kind("", "v1", "serviceaccounts", "ServiceAccount", short_names=("sa",)),
    Kind(
        "",
        "v1",
        "persistentvolumeclaims",
        "PersistentVolumeClaim",
        short_names=("pvc",),
        subresources={"status": STATUS},
    ),
    Kind("", "v1", "resourcequotas", "ResourceQuota", short_names=("quota",), subresources={"status": STATUS}),
    Kind("", "v1", "limitranges", "LimitRange", short_names=("limits",)),
)
