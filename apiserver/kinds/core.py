"""The core group."""

from __future__ import annotations

from typing import Any

from apiserver.kinds.base import STATUS, Kind, Subresource, keep_status
from apiserver.kinds.events import EVENTS
from apiserver.kinds.nodes import default_node, node_errors, node_field, node_status_errors, node_update_errors
from apiserver.kinds.plain import (
    data_errors,
    data_update_errors,
    default_namespace,
    default_spec,
    end_namespace,
    keep_namespace,
    namespace_held,
)
from apiserver.kinds.pod_actions import bind, evict
from apiserver.kinds.pod_updates import pod_update_errors, prepare_pod_status, prepare_pod_update
from apiserver.kinds.pods import default_pod, pod_errors, pod_metadata_again, prepare_pod

Obj = dict[str, Any]


def _grace_s(pod: Obj) -> int:
    """The grace period of a pod (s): 0 unless it is bound to a node and not over."""
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
        return 0
    return int(pod["spec"].get("terminationGracePeriodSeconds", 30))


POD_SUBRESOURCES = {
    "status": Subresource("status", prepare=prepare_pod_status),
    "binding": Subresource("binding", ("create",), handler=bind, kind=("", "v1", "Binding")),
    "eviction": Subresource("eviction", ("create",), handler=evict, kind=("policy", "v1", "Eviction")),
}
PODS = Kind(
    "", "v1", "pods", "Pod",
    short_names=("po",), categories=("all",), subresources=POD_SUBRESOURCES, generation=True, grace=_grace_s,
    default=default_pod, prepare_create=prepare_pod, prepare_update=prepare_pod_update,
    validate=pod_errors, validate_again=pod_metadata_again, validate_update=pod_update_errors,
    fields=(
        "spec.nodeName", "status.phase", "spec.schedulerName", "spec.restartPolicy", "spec.serviceAccountName",
        "status.podIP", "status.nominatedNodeName", "spec.hostNetwork",
    ),
)  # fmt: skip
NODES = Kind(
    "", "v1", "nodes", "Node",
    namespaced=False, short_names=("no",), default=default_node, validate=node_errors,
    validate_update=node_update_errors, fields=("spec.unschedulable",), field_value=node_field,
    subresources={"status": Subresource("status", validate=node_status_errors)},
)  # fmt: skip
NAMESPACES = Kind(
    "", "v1", "namespaces", "Namespace",
    namespaced=False, short_names=("ns",), default=default_namespace, prepare_update=keep_namespace,
    held=namespace_held, prepare_delete=end_namespace, marks_grace=False,
    fields=("status.phase",),
    subresources={"status": STATUS, "finalize": Subresource("finalize", ("update",), prepare=keep_status)},
)  # fmt: skip
CORE = (
    PODS,
    NODES,
    Kind(
        "", "v1", "configmaps", "ConfigMap",
        short_names=("cm",), validate=data_errors, validate_update=data_update_errors,
    ),
    NAMESPACES,
    Kind("", "v1", "secrets", "Secret", validate=data_errors, validate_update=data_update_errors, fields=("type",)),
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
    Kind(
        "", "v1", "resourcequotas", "ResourceQuota",
        short_names=("quota",), subresources={"status": STATUS}, default=default_spec,
    ),
    Kind("", "v1", "podtemplates", "PodTemplate", generation=True),
    Kind("", "v1", "limitranges", "LimitRange", short_names=("limits",), default=default_spec),
    *EVENTS,
)  # fmt: skip
