"""The parts of objects read by the levers and the watchdog, as types: an object is checked before it is read.

The API server checks the types of stored objects, but not of every version of every kind. An object that does not fit
is left alone, and one message names the object, the field and the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from autopilot.contract.documents import misfit

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Seconds = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Amounts = dict[str, str | int] | None
"""Quantities by resource."""
Texts = dict[str, str] | None


class Part(msgspec.Struct, rename="camel"):
    """A part of an object. The code that reads a nullable field takes null as absent."""


class Named(Part):
    """An entry of a list, known by its name."""

    name: str


class Owner(Part):
    """An owner reference."""

    kind: str
    name: str
    uid: str
    controller: bool | None = None


class Managed(Part):
    """The fields of one writer."""

    manager: str | None = None
    time: str | None = None
    subresource: str | None = None
    fields: dict[str, Any] | None = msgspec.field(name="fieldsV1", default=None)


class Meta(Part):
    """Metadata."""

    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    labels: Texts = None
    annotations: Texts = None
    owner_references: list[Owner] | None = None
    managed_fields: list[Managed] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class Object(Part):
    """Every object."""

    metadata: Meta


class Condition(Part):
    """A condition of a status."""

    type: str
    status: str | None = None
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class _Conditions(Part):
    conditions: list[Condition] | None = None


# --- pods -----------------------------------------------------------------------------------------


class _Resources(Part):
    requests: Amounts = None
    limits: Amounts = None


class Container(Part):
    """A container."""

    resources: _Resources | None = None


class PodSpec(Part):
    """Request and node of a pod."""

    containers: list[Container]
    init_containers: list[Container] | None = None
    node_name: str | None = None
    node_selector: Texts = None
    scheduling_gates: list[Named] | None = None
    resource_claims: list[Any] | None = None
    host_network: bool | None = None
    termination_grace_period_seconds: Seconds = 30


class _TemplateMeta(Part):
    labels: Texts = None
    annotations: Texts = None


class Template(Part):
    """A pod template."""

    spec: PodSpec
    metadata: _TemplateMeta | None = None


class _PodStatus(Part):
    phase: str | None = None
    pod_ip: str | None = msgspec.field(name="podIP", default=None)


class Pod(Object):
    """A pod."""

    spec: PodSpec
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


# --- work -----------------------------------------------------------------------------------------


class _ExitCodes(Part):
    operator: str | None = None
    values: list[int] | None = None


class _PodCondition(Part):
    type: str | None = None
    status: str | None = None


class _FailureRule(Part):
    action: str | None = None
    on_exit_codes: _ExitCodes | None = None
    on_pod_conditions: list[_PodCondition] | None = None


class _FailurePolicy(Part):
    rules: list[_FailureRule] | None = None


class _JobSpec(Part):
    template: Template
    suspend: bool | None = None
    parallelism: Count = 1
    completions: Count | None = None
    completion_mode: str | None = None
    backoff_limit: Count = 6
    backoff_limit_per_index: Count | None = None
    pod_failure_policy: _FailurePolicy | None = None


class _JobStatus(_Conditions):
    failed: Count = 0


class Job(Object):
    """A Job."""

    spec: _JobSpec
    status: _JobStatus = msgspec.field(default_factory=_JobStatus)


class _PodSet(Part):
    name: str
    template: Template
    count: Count = 1


class _WorkloadSpec(Part):
    pod_sets: list[_PodSet] | None = None
    active: bool | None = None
    queue_name: str = ""


class _Update(Part):
    name: str
    node_selector: Texts = None


class _CheckState(Part):
    name: str
    state: str
    message: str = ""
    last_transition_time: str | None = None
    pod_set_updates: list[_Update] | None = None


class _Assignment(Part):
    name: str
    count: Count = 1
    flavors: Texts = None
    resource_usage: Amounts = None
    topology_assignment: dict[str, Any] | None = None


class _Admission(Part):
    cluster_queue: str | None = None
    pod_set_assignments: list[_Assignment] | None = None


class _Eviction(Part):
    count: Count = 0


class _Stats(Part):
    evictions: list[_Eviction] | None = None


class _WorkloadStatus(_Conditions):
    admission_checks: list[_CheckState] | None = None
    admission: _Admission | None = None
    scheduling_stats: _Stats | None = None


class Workload(Object):
    """A Workload of Kueue."""

    spec: _WorkloadSpec
    status: _WorkloadStatus | None = None


# --- services -------------------------------------------------------------------------------------


class _Replicas(Part):
    replicas: Count | None = None


class _Revision(Part):
    update_revision: str | None = None


class Scaled(Object):
    """A Deployment or a StatefulSet."""

    spec: _Replicas | None = None
    status: _Revision | None = None


class _Aim(Part):
    kind: str
    name: str


class _MetricName(Part):
    name: str | None = None


class _External(Part):
    metric: _MetricName | None = None


class _Metric(Part):
    external: _External | None = None


class _AutoscalerSpec(Part):
    scale_target_ref: _Aim
    max_replicas: Count
    min_replicas: Count | None = None
    metrics: list[_Metric] | None = None


class Autoscaler(Object):
    """A HorizontalPodAutoscaler."""

    spec: _AutoscalerSpec


# --- the cluster ----------------------------------------------------------------------------------


class _Taint(Part):
    key: str


class _NodeSpec(Part):
    unschedulable: bool | None = None
    taints: list[_Taint] | None = None


class _NodeStatus(Part):
    allocatable: Amounts = None
    capacity: Amounts = None


class Node(Object):
    """A node."""

    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus | None = None


class _Strategy(Part):
    admission_checks: list[Named] | None = None


class _QueueSpec(Part):
    admission_checks_strategy: _Strategy | None = None


class ClusterQueue(Object):
    """A ClusterQueue of Kueue."""

    spec: _QueueSpec


class _LocalSpec(Part):
    cluster_queue: str


class LocalQueue(Object):
    """A LocalQueue of Kueue."""

    spec: _LocalSpec


class _FlavorSpec(Part):
    node_labels: Texts = None


class Flavor(Object):
    """A ResourceFlavor of Kueue."""

    spec: _FlavorSpec = msgspec.field(default_factory=_FlavorSpec)


class _CheckSpec(Part):
    controller_name: str | None = None


class Check(Object):
    """An AdmissionCheck of Kueue."""

    spec: _CheckSpec
    status: _Conditions | None = None


class Conditioned(Object):
    """The conditions of an object, such as a ProvisioningRequest; nothing else of it is read."""

    status: _Conditions | None = None


class ConfigMap(Object):
    """A ConfigMap."""

    data: Texts = None


class _Config(Part):
    name: str | None = None


class _Component(Part):
    config: _Config | None = None


class _PolicySpec(Part):
    mig_manager: _Component | None = None
    device_plugin: _Component | None = None


class _PolicyStatus(Part):
    namespace: str | None = None


class ClusterPolicy(Object):
    """The ClusterPolicy of the GPU operator."""

    spec: _PolicySpec | None = None
    status: _PolicyStatus | None = None


TYPES: Mapping[str, type[Object]] = {
    "Node": Node,
    "Pod": Pod,
    "ConfigMap": ConfigMap,
    "Job": Job,
    "Deployment": Scaled,
    "StatefulSet": Scaled,
    "HorizontalPodAutoscaler": Autoscaler,
    "Workload": Workload,
    "ClusterQueue": ClusterQueue,
    "LocalQueue": LocalQueue,
    "ResourceFlavor": Flavor,
    "ProvisioningRequest": Conditioned,
    "AdmissionCheck": Check,
    "ClusterPolicy": ClusterPolicy,
}
"""By kind: the read part of its objects. A test finds a name read by code and absent from its type."""


def unfit(kind: str, found: Any) -> str:
    """Reason for an unreadable object of a kind: field, value and problem; "" for none."""
    return why_unfit(found, TYPES.get(kind, Object))


def why_unfit(found: Any, type_: type[Part]) -> str:
    """Reason for a document that does not fit a type; "" for none."""
    try:
        msgspec.convert(found, type_)
    except msgspec.ValidationError as error:
        return misfit(error, found)
    return ""
