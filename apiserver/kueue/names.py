"""Names given and read by Kueue: labels, annotations, finalizers, gates, reasons, and the names of workloads."""

from __future__ import annotations

import hashlib
from typing import Any

Obj = dict[str, Any]

GROUP = "kueue.x-k8s.io"
VERSION = "v1beta2"
API_VERSION = f"{GROUP}/{VERSION}"
WORKLOADS = f"workloads.{GROUP}"
CLUSTER_QUEUES = f"clusterqueues.{GROUP}"
LOCAL_QUEUES = f"localqueues.{GROUP}"
FLAVORS = f"resourceflavors.{GROUP}"
CHECKS = f"admissionchecks.{GROUP}"
COHORTS = f"cohorts.{GROUP}"
TOPOLOGIES = f"topologies.{GROUP}"
PRIORITY_CLASSES = f"workloadpriorityclasses.{GROUP}"
JOBS = "jobs.batch"
PODS = "pods"
NODES = "nodes"
DEPLOYMENTS = "deployments.apps"
STATEFUL_SETS = "statefulsets.apps"

IN_USE = f"{GROUP}/resource-in-use"  # finalizer of workloads, flavors, queues and checks
MANAGED = f"{GROUP}/managed"  # label and finalizer of pods

QUEUE_LABEL = f"{GROUP}/queue-name"
PRIORITY_LABEL = f"{GROUP}/priority-class"
JOB_UID_LABEL = f"{GROUP}/job-uid"
MAX_EXEC_LABEL = f"{GROUP}/max-exec-time-seconds"
PREBUILT_LABEL = f"{GROUP}/prebuilt-workload-name"
POD_SET_LABEL = f"{GROUP}/podset"
LOCAL_QUEUE_LABEL = f"{GROUP}/local-queue-name"
CLUSTER_QUEUE_LABEL = f"{GROUP}/cluster-queue-name"
GROUP_NAME_LABEL = f"{GROUP}/pod-group-name"
GROUP_INDEX_LABEL = f"{GROUP}/pod-group-pod-index"

GATED_BY = f"{GROUP}/admission-gated-by"
STOPPING = f"{GROUP}/stopping"
WORKLOAD_ANNOTATION = f"{GROUP}/workload"
MIN_PARALLELISM = f"{GROUP}/job-min-parallelism"
COMPLETIONS_EQUAL = f"{GROUP}/job-completions-equal-parallelism"
PRIORITY_BOOST = f"{GROUP}/priority-boost"
ELASTIC_JOB = f"{GROUP}/elastic-job"  # annotation of Jobs and Workloads, and gate of their pods
SLICE_NAME = f"{GROUP}/workload-slice-name"
REPLACES = f"{GROUP}/workload-slice-replacement-for"
ROLE_HASH = f"{GROUP}/role-hash"
GROUP_TOTAL = f"{GROUP}/pod-group-total-count"
GROUP_FAST = f"{GROUP}/pod-group-fast-admission"
GROUP_SERVING = f"{GROUP}/pod-group-serving"
GROUP_INDEX_ANNOTATION = f"{GROUP}/pod-group-pod-index-label"
RETRIABLE = f"{GROUP}/retriable-in-group"
IS_GROUP = f"{GROUP}/is-group-workload"
SUSPENDED_BY = f"{GROUP}/pod-suspending-parent"
OWNER_GVK = f"{GROUP}/job-owner-gvk"
OWNER_NAME = f"{GROUP}/job-owner-name"
REQUIRED_TOPOLOGY = f"{GROUP}/podset-required-topology"
PREFERRED_TOPOLOGY = f"{GROUP}/podset-preferred-topology"
UNCONSTRAINED_TOPOLOGY = f"{GROUP}/podset-unconstrained-topology"

ADMISSION_GATE = f"{GROUP}/admission"
TOPOLOGY_GATE = f"{GROUP}/topology"
MAIN_POD_SET = "main"
DEFAULT_QUEUE = "default"

MANAGER = "kueue"  # field manager of plain writes
ADMISSION_MANAGER = "kueue-admission"
HASH_LENGTH = 5
NAME_LENGTH = 63  # names of workloads are used as label values


def workload_name(kind: str, group: str, owner: str, uid: str, extra: str = "") -> str:
    """Name of the Workload of an owner: `job-<name>-<hash>`, the part before the hash shortened to fit."""
    text = "\n".join([kind, group, owner, uid, *([extra] if extra else [])])
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    prefix = f"{kind.lower()}-{owner}"[: NAME_LENGTH - HASH_LENGTH - 1]
    return f"{prefix}-{digest[:HASH_LENGTH]}"


def labels_of(obj: Obj) -> dict[str, str]:
    """Labels; not to be changed."""
    return obj["metadata"].get("labels") or {}


def annotations_of(obj: Obj) -> dict[str, str]:
    """Annotations; not to be changed."""
    return obj["metadata"].get("annotations") or {}


def spec_of(obj: Obj) -> Obj:
    """The spec, not to be changed: nothing obliges a client to write one."""
    return obj.get("spec") or {}


def target_of(local_queue: Obj) -> str:
    """The ClusterQueue of a LocalQueue; "" for none."""
    return str(spec_of(local_queue).get("clusterQueue", ""))


def pod_sets_of(workload: Obj) -> list[Obj]:
    """The pod sets of a Workload."""
    return spec_of(workload).get("podSets") or []


def queue_name(obj: Obj) -> str:
    """The LocalQueue named by an object; "" for none."""
    return labels_of(obj).get(QUEUE_LABEL, "")


def group_name(pod: Obj) -> str:
    """The group of a pod; "" for a pod of its own."""
    return annotations_of(pod).get(GROUP_NAME_LABEL) or labels_of(pod).get(GROUP_NAME_LABEL, "")


def key_of(obj: Obj) -> tuple[str, str]:
    """Namespace and name."""
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def controller_of(obj: Obj) -> Obj | None:
    """The owner reference of the controller."""
    return next((ref for ref in obj["metadata"].get("ownerReferences") or [] if ref.get("controller")), None)


def owner_reference(obj: Obj, *, controller: bool) -> Obj:
    """A reference to an owner; a controller's also blocks its deletion."""
    found = {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": obj["metadata"]["name"],
        "uid": obj["metadata"]["uid"],
    }
    return found | {"blockOwnerDeletion": True, "controller": True} if controller else found
