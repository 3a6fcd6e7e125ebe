"""Objects of Kueue (v1beta2), reduced to the fields in use."""

from __future__ import annotations

from typing import Any

import msgspec

from autopilot.contract.annotations import CHECK, REPAIR, STOPPED, lost_quota, may_return
from autopilot.contract.written import ACTIVE, only_ours
from collectors.kubernetes.job_wire import WrittenMeta
from collectors.kubernetes.wire import Condition, Count, Int32, Object, PodTemplate, Struct

GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"


class PodSetAssignment(Struct):
    """Assignment of one set of pods."""

    name: str
    count: Count | None = None
    flavors: dict[str, str] | None = None
    resource_usage: dict[str, Any] | None = None


class Admission(Struct):
    """The reservation of a workload."""

    cluster_queue: str
    pod_set_assignments: list[PodSetAssignment] | None = None


class CheckState(Struct):
    """The state of one admission check of a workload."""

    name: str
    state: str
    message: str = ""


class Eviction(Struct):
    """Number of evictions of a workload for one reason."""

    reason: str = ""
    count: Count = 0


class SchedulingStats(Struct):
    """Kueue's counts for a workload."""

    evictions: list[Eviction] | None = None


class TopologyRequest(Struct):
    """The topology requested by a set of pods, by the label of a level."""

    required: str | None = None
    preferred: str | None = None


class PodSet(Struct):
    """Equal pods."""

    name: str
    count: Count
    template: PodTemplate
    min_count: Count | None = None
    topology_request: TopologyRequest | None = None


class WorkloadSpec(Struct):
    """The request of a workload."""

    active: bool = True
    pod_sets: list[PodSet] | None = None
    priority: Int32 | None = None
    queue_name: str = ""
    maximum_execution_time_seconds: Int32 | None = None


class ReclaimablePods(Struct):
    """Pods of a set with quota free again after their end."""

    name: str
    count: Count


class WorkloadStatus(Struct):
    """The state of a workload."""

    admission: Admission | None = None
    conditions: list[Condition] | None = None
    admission_checks: list[CheckState] | None = None
    scheduling_stats: SchedulingStats | None = None
    cluster_name: str | None = None  # of MultiKueue
    reclaimable_pods: list[ReclaimablePods] | None = None


class Workload(Object):
    """A Workload."""

    metadata: WrittenMeta
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)
    kept: bool = False  # not of the server: somebody else has deactivated it, or its stop was not to end by itself
    taken: bool = False  # not of the server: we have deactivated it to give its quota to other work
    repairs: bool = False  # not of the server: our check states a Retry taken back

    def shrink(self) -> None:
        """Also read the author of its deactivation, and the message of our check, now."""
        for check in self.status.admission_checks or ():
            self.repairs = self.repairs or (check.name == CHECK and f": {REPAIR}: " in check.message)
            check.message = ""
        if not self.spec.active:
            meta = self.metadata
            mine = only_ours(meta.written()["managedFields"], ACTIVE)
            self.kept = not (mine and may_return(meta.note(STOPPED), meta.uid))
            self.taken = not self.kept and lost_quota(meta.note(STOPPED), meta.uid)
        self.metadata.shrink()


class FlavorResource(Struct):
    """Quota of one resource of one flavor; an absent limit is no limit."""

    name: str
    nominal_quota: Any = 0
    borrowing_limit: Any = None
    lending_limit: Any = None


class FlavorQuotas(Struct):
    """Quotas of one flavor."""

    name: str
    resources: list[FlavorResource] | None = None


class ResourceGroup(Struct):
    """Flavors in their order of trial."""

    flavors: list[FlavorQuotas] | None = None


class BorrowWithin(Struct):
    """Preemption while borrowing."""

    policy: str = "Never"
    max_priority_threshold: Int32 | None = None


class QueuePreemption(Struct):
    """Work that a queue may preempt."""

    within_cluster_queue: str = "Never"
    reclaim_within_cohort: str = "Never"
    borrow_within_cohort: BorrowWithin | None = None


class FairSharing(Struct):
    """The weight of a queue or cohort."""

    weight: Any = None


class CheckRule(Struct):
    """A check of a queue, for some flavors or for all."""

    name: str
    on_flavors: list[str] | None = None


class ChecksStrategy(Struct):
    """The checks of a queue."""

    admission_checks: list[CheckRule] | None = None


class ClusterQueueSpec(Struct):
    """The quotas of a queue."""

    resource_groups: list[ResourceGroup] | None = None
    cohort_name: str = ""
    queueing_strategy: str = "BestEffortFIFO"
    preemption: QueuePreemption = msgspec.field(default_factory=QueuePreemption)
    fair_sharing: FairSharing | None = None
    stop_policy: str | None = None
    admission_checks_strategy: ChecksStrategy | None = None


class Shared(Struct):
    """The state of fair sharing. Its figures change with each admission; only its presence counts."""


class QueueStatus(Struct):
    """State of a queue's admission. Kueue writes `fair_sharing` only while its manager shares fairly."""

    conditions: list[Condition] | None = None
    fair_sharing: Shared | None = None


class CohortStatus(Struct):
    """The state of a cohort."""

    fair_sharing: Shared | None = None


class ClusterQueue(Object):
    """A ClusterQueue."""

    spec: ClusterQueueSpec = msgspec.field(default_factory=ClusterQueueSpec)
    status: QueueStatus = msgspec.field(default_factory=QueueStatus)


class CohortSpec(Struct):
    """The quotas added by a cohort to those of its queues."""

    parent_name: str = ""
    resource_groups: list[ResourceGroup] | None = None
    fair_sharing: FairSharing | None = None


class Cohort(Object):
    """A Cohort."""

    spec: CohortSpec = msgspec.field(default_factory=CohortSpec)
    status: CohortStatus = msgspec.field(default_factory=CohortStatus)


class LocalQueueSpec(Struct):
    """The queue behind a name in a namespace."""

    cluster_queue: str = ""
    stop_policy: str | None = None


class LocalQueue(Object):
    """A LocalQueue."""

    spec: LocalQueueSpec = msgspec.field(default_factory=LocalQueueSpec)


class FlavorSpec(Struct):
    """The nodes of a flavor."""

    node_labels: dict[str, str] | None = None
    topology_name: str | None = None


class ResourceFlavor(Object):
    """A ResourceFlavor."""

    spec: FlavorSpec = msgspec.field(default_factory=FlavorSpec)


class TopologyLevel(Struct):
    """One level: a label of nodes."""

    node_label: str


class TopologySpec(Struct):
    """Levels, the widest first."""

    levels: list[TopologyLevel] | None = None


class Topology(Object):
    """A Topology."""

    spec: TopologySpec = msgspec.field(default_factory=TopologySpec)


class CheckSpec(Struct):
    """The controller of a check."""

    controller_name: str = ""


class AdmissionCheck(Object):
    """An AdmissionCheck."""

    spec: CheckSpec = msgspec.field(default_factory=CheckSpec)
    status: QueueStatus = msgspec.field(default_factory=QueueStatus)
