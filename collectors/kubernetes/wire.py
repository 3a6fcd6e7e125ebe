"""Objects of the API server, reduced to the fields in use. Unknown fields are skipped while decoding."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from math import isfinite
from typing import Annotated, Any

import msgspec

from autopilot.contract.words_to_stay import NOT_EVICTED

OBJECTIVES = tuple(f"gpu-autopilot.io/{each}objective-s" for each in ("", "ttft-", "itl-"))

KEPT_ANNOTATIONS = (
    *NOT_EVICTED,
    "gpu-autopilot.io/",
    "kueue.x-k8s.io/",
    "kai.scheduler/",
    "scheduling.k8s.io/",
    "scheduling.volcano.sh/",
    "pod-group-name",
    "deployment.kubernetes.io/revision",
    "leaderworkerset.sigs.k8s.io/size",
    "gpu-fraction",
    "gpu-memory",
    *(REGISTERS := ("hami.io/node-nvidia-register", "4pd.io/node-nvidia-register", "volcano.sh/node-vgpu-register")),
    *(ALLOCATED := ("hami.io/vgpu-devices-allocated", "4pd.io/vgpu-ids-new", "volcano.sh/vgpu-ids-new")),
    RESERVED_GPU := "run.ai/reserve_for_gpu_index",
)
"""Prefixes of annotations that are kept in memory; the others can be 256 KiB of anything. `REGISTERS`: the lists of
GPUs that device plugins of sharing layers write on their nodes. `ALLOCATED`: the GPUs that their schedulers write on
pods. `RESERVED_GPU`: the UUID of the GPU that KAI writes on the pod that holds it."""

LONGEST_ANNOTATION = 1024
"""Longest value of an annotation kept whole; no valid one is longer. A longer one is cut, and then refused."""

LONGEST_REGISTER = 16 * LONGEST_ANNOTATION
"""The same for a register, and for the GPUs of a pod: those of 72 GPUs."""

LONG = frozenset((*REGISTERS, *ALLOCATED))

NOTHING: Mapping[str, str] = {}

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""Whole numbers as the API defines them: msgspec itself reads any. `Count`: an int32 from 0 on."""


class Struct(msgspec.Struct, gc=False, rename="camel"):
    """A decoded object. Field names are those of the API in snake case."""


class Owner(Struct):
    """An owner reference."""

    kind: str
    name: str
    uid: str
    controller: bool | None = None


class Meta(Struct):
    """The metadata of an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: Int64 = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[Owner] | None = None

    @property
    def owner(self) -> Owner | None:
        """Its controller among its owners."""
        for each in self.owner_references or ():
            if each.controller:
                return each
        return None

    def label(self, key: str) -> str:
        """The value of a label; "": absent."""
        return (self.labels or NOTHING).get(key, "")

    def note(self, key: str) -> str:
        """The value of an annotation; "": absent."""
        return (self.annotations or NOTHING).get(key, "")

    @property
    def promises_latency(self) -> bool:
        """True if its annotations declare latency-critical work."""
        return self.note("gpu-autopilot.io/slo-class") == "latency-critical" or any(map(self.note, OBJECTIVES))

    def shrink(self) -> None:
        """Keep only the annotations in use, cut to `LONGEST_ANNOTATION`, and finalizers of deleted objects."""
        if self.deletion_timestamp is None:
            self.finalizers = None
        if self.annotations:
            kept = {
                name: value[: (LONGEST_REGISTER if name in LONG else LONGEST_ANNOTATION) + 1]
                for name, value in self.annotations.items()
                if _is_kept(name)
            }
            self.annotations = kept or None


@lru_cache(maxsize=4096)
def _is_kept(annotation: str) -> bool:
    """True for an annotation in use; the objects of one kind have the same ones."""
    return annotation.startswith(KEPT_ANNOTATIONS)


def seconds_of(at: datetime | None) -> float:
    """A time in seconds since 1970; 0 for None."""
    return at.timestamp() if at is not None else 0.0


def noted_s(text: str) -> float | None:
    """The time in an annotation, in seconds since 1970; None if it is no finite number."""
    try:
        at_s = float(text)
    except ValueError:
        return None
    return at_s if isfinite(at_s) else None


class Object(Struct):
    """Any object."""

    metadata: Meta

    def shrink(self) -> None:
        """Keep only the part in use."""
        self.metadata.shrink()


class Condition(Struct):
    """A condition of a status."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


def condition(found: list[Condition] | None, kind: str) -> Condition | None:
    """The condition of a type, or None."""
    for each in found or ():
        if each.type == kind:
            return each
    return None


def is_true(found: list[Condition] | None, kind: str) -> bool:
    """True if a condition of this type has the status True."""
    return bool(found) and any(each.type == kind and each.status == "True" for each in found or ())


# --- nodes ----------------------------------------------------------------------------------------


class Taint(Struct):
    """A taint of a node."""

    key: str
    effect: str
    value: str = ""
    time_added: datetime | None = None


class NodeSpec(Struct):
    """The desired state of a node."""

    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeCondition(Condition):
    """A condition of a node."""

    last_heartbeat_time: datetime | None = None


class NodeImage(Struct):
    """An image on a node, by all its names."""

    names: list[str] | None = None


class NodeInfo(Struct):
    """The present boot of a node."""

    boot_id: Any = msgspec.field(name="bootID", default=None)


class NodeStatus(Struct):
    """The report of a node."""

    capacity: dict[str, Any] | None = None
    allocatable: dict[str, Any] | None = None
    conditions: list[NodeCondition] | None = None
    images: list[NodeImage] | None = None
    node_info: NodeInfo | None = None


class Node(Object):
    """A node."""

    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


# --- pods -----------------------------------------------------------------------------------------


class Resources(Struct):
    """Requests and limits of a container."""

    requests: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None


class Container(Struct):
    """A container."""

    name: str = ""
    image: str = ""
    resources: Resources | None = None
    restart_policy: str = ""
    readiness_probe: dict[str, Any] | None = None


class Toleration(Struct):
    """A toleration. An empty key tolerates every taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Expression(Struct):
    """One requirement of a node selector."""

    key: str
    operator: str
    values: list[str] | None = None


class Term(Struct):
    """Requirements to be met together."""

    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None


class NodeSelector(Struct):
    """Alternatives: one of them is enough."""

    node_selector_terms: list[Term] | None = None


class NodeAffinity(Struct):
    """Affinity to nodes, the required part."""

    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class Affinity(Struct):
    """Affinity, the part to nodes."""

    node_affinity: NodeAffinity | None = None


class Gate(Struct):
    """A scheduling gate, an admission check of a queue: anything with a name."""

    name: str


class SchedulingGroup(Struct):
    """The PodGroup of a pod in native gang scheduling."""

    pod_group_name: str | None = None


class ClaimReference(Struct):
    """A resource claim of a pod: a claim by its name, or one made for this pod from a template."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(Struct):
    """The request of a pod."""

    node_name: str = ""
    priority: Int32 | None = None
    priority_class_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    scheduling_gates: list[Gate] | None = None
    scheduling_group: SchedulingGroup | None = None
    active_deadline_seconds: Int64 | None = None
    termination_grace_period_seconds: Int64 | None = None
    resource_claims: list[ClaimReference] | None = None


class PodStatus(Struct):
    """The state of a pod."""

    phase: str = ""
    reason: str = ""
    start_time: datetime | None = None
    conditions: list[Condition] | None = None
    resource_claim_statuses: list[ClaimReference] | None = None


class Pod(Object):
    """A pod."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class PodTemplate(Struct):
    """The pods of a controller."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)


# --- controllers ----------------------------------------------------------------------------------


class ScaledSpec(Struct):
    """Replicas of a Deployment, ReplicaSet or StatefulSet."""

    replicas: Count | None = None
    template: PodTemplate = msgspec.field(default_factory=PodTemplate)


class ScaledStatus(Struct):
    """Ready replicas."""

    replicas: Count = 0
    ready_replicas: Count = 0
    update_revision: str = ""


class Scaled(Object):
    """A Deployment or a StatefulSet."""

    spec: ScaledSpec = msgspec.field(default_factory=ScaledSpec)
    status: ScaledStatus = msgspec.field(default_factory=ScaledStatus)


class ScaleTarget(Struct):
    """The target of an autoscaler."""

    kind: str = ""
    name: str = ""


class AutoscalerSpec(Struct):
    """Bounds and metrics of an autoscaler."""

    scale_target_ref: ScaleTarget = msgspec.field(default_factory=ScaleTarget)
    min_replicas: Count | None = None
    max_replicas: Count = 0
    metrics: list[dict[str, Any]] | None = None


class AutoscalerStatus(Struct):
    """The measurements and the result of an autoscaler."""

    current_replicas: Count = 0
    desired_replicas: Count = 0
    current_metrics: list[dict[str, Any]] | None = None


class Autoscaler(Object):
    """A HorizontalPodAutoscaler."""

    spec: AutoscalerSpec = msgspec.field(default_factory=AutoscalerSpec)
    status: AutoscalerStatus = msgspec.field(default_factory=AutoscalerStatus)


class PriorityClass(Object):
    """A priority class."""

    value: Int32 = 0
    global_default: bool = False


class LabelSelector(Struct):
    """A selector of pods by labels."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[Expression] | None = None


class BudgetSpec(Struct):
    """The pods of a budget."""

    selector: LabelSelector | None = None


class BudgetStatus(Struct):
    """Disruptions allowed by a budget now."""

    disruptions_allowed: Count = 0
    desired_healthy: Count = 0
    expected_pods: Count = 0


class Budget(Object):
    """A PodDisruptionBudget."""

    spec: BudgetSpec = msgspec.field(default_factory=BudgetSpec)
    status: BudgetStatus = msgspec.field(default_factory=BudgetStatus)


class QuotaSpec(Struct):
    """Limits of a namespace."""

    hard: dict[str, Any] | None = None


class ResourceQuota(Object):
    """A ResourceQuota."""

    spec: QuotaSpec = msgspec.field(default_factory=QuotaSpec)
