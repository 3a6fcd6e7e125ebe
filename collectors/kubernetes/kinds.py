"""The listed and watched kinds: one row each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collectors.kubernetes import dra_wire, front_wire, job_wire, kai_wire, wire
from collectors.kueue import wire as kueue


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. A `required` one is served by every cluster; any other is a feature that may be absent.

    Without permission to read a `needed` one, the view is not whole; for any other, that is only a gap.
    """

    name: str  # the name in messages, and the resource in a role
    group: str  # "" for the core group
    version: str
    type: type[Any]
    namespaced: bool = True
    required: bool = False
    needed: bool = False

    def path(self, namespace: str = "") -> str:
        """Path of the list, of one namespace or of all."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{root}/namespaces/{namespace}/{self.name}" if namespace else f"{root}/{self.name}"

    @property
    def title(self) -> str:
        """The resource with its group, as a role names it: `jobs.batch`."""
        return f"{self.name}.{self.group}" if self.group else self.name


NODES = Kind("nodes", "", "v1", wire.Node, namespaced=False, required=True, needed=True)
NAMESPACES = Kind("namespaces", "", "v1", wire.Object, namespaced=False)
PODS = Kind("pods", "", "v1", wire.Pod, required=True, needed=True)
JOBS = Kind("jobs", "batch", "v1", job_wire.Job, required=True, needed=True)
DEPLOYMENTS = Kind("deployments", "apps", "v1", wire.Scaled, required=True, needed=True)
STATEFULSETS = Kind("statefulsets", "apps", "v1", wire.Scaled, required=True, needed=True)
PRIORITY_CLASSES = Kind("priorityclasses", "scheduling.k8s.io", "v1", wire.PriorityClass, namespaced=False)
BUDGETS = Kind("poddisruptionbudgets", "policy", "v1", wire.Budget)
AUTOSCALERS = Kind("horizontalpodautoscalers", "autoscaling", "v2", wire.Autoscaler)
QUOTAS = Kind("resourcequotas", "", "v1", wire.ResourceQuota)
SLICES = Kind("resourceslices", "resource.k8s.io", "v1", dra_wire.ResourceSlice, namespaced=False)
CLAIMS = Kind("resourceclaims", "resource.k8s.io", "v1", dra_wire.ResourceClaim)
TEMPLATES = Kind("resourceclaimtemplates", "resource.k8s.io", "v1", dra_wire.ResourceClaimTemplate)
CLASSES = Kind("deviceclasses", "resource.k8s.io", "v1", dra_wire.DeviceClass, namespaced=False)
WORKLOADS = Kind("workloads", kueue.GROUP, kueue.VERSION, kueue.Workload, needed=True)
CLUSTER_QUEUES = Kind("clusterqueues", kueue.GROUP, kueue.VERSION, kueue.ClusterQueue, namespaced=False, needed=True)
LOCAL_QUEUES = Kind("localqueues", kueue.GROUP, kueue.VERSION, kueue.LocalQueue, needed=True)
COHORTS = Kind("cohorts", kueue.GROUP, kueue.VERSION, kueue.Cohort, namespaced=False, needed=True)
FLAVORS = Kind("resourceflavors", kueue.GROUP, kueue.VERSION, kueue.ResourceFlavor, namespaced=False, needed=True)
TOPOLOGIES = Kind("topologies", kueue.GROUP, kueue.VERSION, kueue.Topology, namespaced=False)
CHECKS = Kind("admissionchecks", kueue.GROUP, kueue.VERSION, kueue.AdmissionCheck, namespaced=False)
SERVICES = Kind("services", "", "v1", front_wire.Service)
HTTP_ROUTES = Kind("httproutes", "gateway.networking.k8s.io", "v1", front_wire.Route)
GRPC_ROUTES = Kind("grpcroutes", "gateway.networking.k8s.io", "v1", front_wire.Route)
OLD_POOLS = Kind("inferencepools", "inference.networking.x-k8s.io", "v1alpha2", front_wire.InferencePool)
POOLS = Kind("inferencepools", "inference.networking.k8s.io", "v1", front_wire.InferencePool)
KAI_QUEUES = Kind("queues", "scheduling.run.ai", "v2", kai_wire.KaiQueue, namespaced=False)

URGENT = (PODS, JOBS, WORKLOADS)
"""Kinds with changes looked at immediately."""

KINDS = (
    NODES,
    NAMESPACES,
    PODS,
    JOBS,
    DEPLOYMENTS,
    STATEFULSETS,
    PRIORITY_CLASSES,
    BUDGETS,
    AUTOSCALERS,
    QUOTAS,
    SLICES,
    CLAIMS,
    TEMPLATES,
    CLASSES,
    WORKLOADS,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    COHORTS,
    FLAVORS,
    TOPOLOGIES,
    CHECKS,
    KAI_QUEUES,
    SERVICES,
    HTTP_ROUTES,
    GRPC_ROUTES,
    OLD_POOLS,
    POOLS,
)
"""Every kind read here. `deploy/observe.yaml` grants list and watch on them and nothing else."""
