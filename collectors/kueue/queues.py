"""Kueue's queues as our queue tree: cohorts and ClusterQueues with their quotas by GPU model.

The quotas of a ClusterQueue are those of flavors. A flavor is the GPU model of the nodes selected by its labels.
Instances of MIG count like GPUs, as everywhere in the quota books.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autopilot.contract.annotations import GUARANTEE_KEPT
from autopilot.contract.notes import shown
from autopilot.core.model.policy.tenancy import GUARANTEES_KEPT
from autopilot.core.model.records import Gap
from autopilot.core.model.snapshot import Displace, QueueOrder
from collectors.kubernetes import quantity
from collectors.kubernetes.asks import GPU, MIG
from collectors.kubernetes.queue_tree import MOST, ROOT, Queue, QueueTree, tree_of
from collectors.kubernetes.wire import Object, condition
from collectors.kueue.wire import (
    ClusterQueue,
    Cohort,
    FairSharing,
    FlavorResource,
    LocalQueue,
    ResourceFlavor,
    ResourceGroup,
)

COHORT = "cohort/"
"""Prefix of the names of cohorts: a cohort and a queue may have the same name."""

_POLICY = {
    "Never": Displace.NEVER,
    "LowerPriority": Displace.LOWER,
    "LowerOrNewerEqualPriority": Displace.LOWER_OR_NEWER_EQUAL,
    "Any": Displace.ANY,
}
MOST_WEIGHT = 1e9
_STOPPED = {"Hold", "HoldAndDrain"}

Models = Callable[[Mapping[str, str]], Mapping[str, int]]
"""GPUs by model of the nodes with these labels."""


@dataclass(slots=True)
class Objects:
    """The objects of Kueue behind the tree, by uid."""

    cluster_queues: dict[str, ClusterQueue] = field(default_factory=dict)
    cohorts: dict[str, Cohort] = field(default_factory=dict)
    flavors: dict[str, ResourceFlavor] = field(default_factory=dict)
    local_queues: dict[str, LocalQueue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Admission:
    """The queues behind the names in a namespace, and the queues admitting nothing now."""

    behind: Mapping[tuple[str, str], str]  # (namespace, LocalQueue) -> ClusterQueue
    stopped: Mapping[str, str]  # ClusterQueue, or namespace/LocalQueue -> its reason to admit nothing


def admission_of(objects: Objects) -> Admission:
    """The ClusterQueue behind each LocalQueue, and the stopped ones of both."""
    stopped: dict[str, str] = {}
    for queue in objects.cluster_queues.values():
        active = condition(queue.status.conditions, "Active")
        if queue.spec.stop_policy in _STOPPED:
            stopped[queue.metadata.name] = f"stopPolicy is {queue.spec.stop_policy}"
        elif active is not None and active.status == "False":
            stopped[queue.metadata.name] = active.message[:300] or active.reason
    for local in objects.local_queues.values():
        if local.spec.stop_policy in _STOPPED:
            stopped[f"{local.metadata.namespace}/{local.metadata.name}"] = f"stopPolicy is {local.spec.stop_policy}"
    behind = {
        (each.metadata.namespace, each.metadata.name): each.spec.cluster_queue for each in objects.local_queues.values()
    }
    return Admission(behind, stopped)


def fair_sharing(objects: Objects) -> str:
    """Evidence of Kueue's fair sharing: the first object with it; "" for none.

    Fair sharing is a setting of Kueue's manager. With it the manager writes a weighted share into the status of every
    ClusterQueue and Cohort; without it, none.
    """
    for kind, found in (("ClusterQueue", objects.cluster_queues), ("Cohort", objects.cohorts)):
        names = sorted(each.metadata.name for each in found.values() if each.status.fair_sharing is not None)
        if names:
            return f"{kind} {names[0]} has status.fairSharing"
    return ""


def build_tree(objects: Objects, models: Sequence[str], gpus_of: Models, source: str) -> QueueTree:
    """The tree of all cohorts and ClusterQueues."""
    gaps: list[Gap] = []
    model_of = {
        each.metadata.name: _model(each, gpus_of, source, gaps)
        for each in sorted(objects.flavors.values(), key=lambda each: each.metadata.name)
    }
    cohorts = {each.metadata.name: each for each in objects.cohorts.values()}
    parents = {each.spec.cohort_name for each in objects.cluster_queues.values() if each.spec.cohort_name}
    parents |= {each.spec.parent_name for each in cohorts.values() if each.spec.parent_name}
    queues = []
    for name in sorted({*cohorts, *parents}):
        cohort = cohorts.get(name)
        queue = Queue(COHORT + name, order=QueueOrder.SUBMISSION)
        if cohort is not None:
            queue.parent = COHORT + cohort.spec.parent_name if cohort.spec.parent_name else ROOT
            queue.weight = _weight(cohort.spec.fair_sharing)
            _quotas(queue, cohort.spec.resource_groups, model_of)
        queues.append(queue)
    for each in objects.cluster_queues.values():
        queue, stated = _queue(each, model_of), (each.metadata.annotations or {}).get(GUARANTEE_KEPT, "")
        if stated in GUARANTEES_KEPT:
            queue.guarantee_kept = GUARANTEES_KEPT.index(stated)
        else:
            known = ", ".join(GUARANTEES_KEPT[1:])
            text = f"its annotation {GUARANTEE_KEPT} is {shown(stated)}; write one of {known}"
            gaps.append(Gap(source, each.metadata.name, "queue", text))
        queues.append(queue)
        active = condition(each.status.conditions, "Active")
        if active is not None and active.status == "False":
            gaps.append(Gap(source, each.metadata.name, "queue", f"Kueue admits no work: {active.message[:300]}"))
    return tree_of("kueue", queues, models, gaps)


def check(found: Object) -> None:
    """Raise `ValueError` for an unreadable number of a ClusterQueue or a Cohort."""
    if isinstance(found, ClusterQueue | Cohort):
        groups = found.spec.resource_groups
        _weight(found.spec.fair_sharing)
        _quotas(Queue(""), groups, {flavor: flavor for flavor, _ in _gpu_resources(groups)})


def _queue(found: ClusterQueue, model_of: Mapping[str, str]) -> Queue:
    """One ClusterQueue."""
    spec = found.spec
    borrowing = spec.preemption.borrow_within_cohort
    queue = Queue(
        found.metadata.name,
        COHORT + spec.cohort_name if spec.cohort_name else ROOT,
        weight=_weight(spec.fair_sharing),
        order=QueueOrder.SUBMISSION,
        strict=spec.queueing_strategy == "StrictFIFO",
        within_queue=_POLICY.get(spec.preemption.within_cluster_queue, Displace.NEVER),
        reclaim=_POLICY.get(spec.preemption.reclaim_within_cohort, Displace.NEVER),
        while_borrowing=_POLICY.get(borrowing.policy, Displace.NEVER) if borrowing is not None else Displace.NEVER,
    )
    if borrowing is not None and borrowing.max_priority_threshold is not None:
        queue.while_borrowing_priority = borrowing.max_priority_threshold
    _quotas(queue, spec.resource_groups, model_of)
    if queue.parent == ROOT:  # a queue without a cohort shares with nobody
        queue.borrow_limit = 0
    return queue


def _quotas(queue: Queue, groups: list[ResourceGroup] | None, model_of: Mapping[str, str]) -> None:
    """Nominal quota by model, and the limits of borrowing and lending over all of them."""
    borrow, lend, limited, lends = 0, 0, True, False
    for flavor, resource in _gpu_resources(groups):
        model = model_of.get(flavor, "")
        nominal = _gpus(resource.nominal_quota, flavor)
        if not model:
            continue
        queue.guarantee[model] = min(queue.guarantee.get(model, 0) + nominal, MOST)
        if resource.borrowing_limit is None:
            limited = False
        else:
            borrow += _gpus(resource.borrowing_limit, flavor)
        if resource.lending_limit is None:
            lend += nominal
        else:
            lend, lends = lend + _gpus(resource.lending_limit, flavor), True
    if queue.guarantee:
        queue.borrow_limit = min(borrow, MOST) if limited else -1
        queue.lend_limit = min(lend, MOST) if lends else -1


def _gpus(value: object, flavor: str) -> int:
    """A quota of GPUs. Raises `ValueError` for an unreadable value: that is not a quota of zero."""
    found = quantity.parse(value)
    if found is None:
        raise ValueError(f"its quota of flavor {flavor} is {shown(value)}, which is no quantity")
    return min(int(found), MOST)


def _gpu_resources(groups: list[ResourceGroup] | None) -> Iterable[tuple[str, FlavorResource]]:
    """(flavor, resource) of every quota for GPUs or instances."""
    for group in groups or ():
        for flavor in group.flavors or ():
            for resource in flavor.resources or ():
                if resource.name == GPU or resource.name.startswith(MIG):
                    yield flavor.name, resource


def _model(flavor: ResourceFlavor, gpus_of: Models, source: str, gaps: list[Gap]) -> str:
    """The GPU model of a flavor: the one of the nodes with its labels; "" for none."""
    found = gpus_of(flavor.spec.node_labels or {})
    name = flavor.metadata.name
    if not found:
        gaps.append(Gap(source, name, "flavor", "no node with GPUs has its labels; its quota does not count"))
        return ""
    model = max(sorted(found), key=lambda each: found[each])
    if len(found) > 1:
        others = ", ".join(sorted(found))
        gaps.append(
            Gap(source, name, "flavor", f"its nodes have several GPU models ({others}); its quota counts for {model}")
        )
    return model


def _weight(sharing: FairSharing | None) -> float:
    """The weight of fair sharing; 1 if not stated."""
    if sharing is None or sharing.weight is None:
        return 1.0
    value = quantity.parse(sharing.weight)
    if value is None:
        raise ValueError(f"its weight is {shown(sharing.weight)}, which is no quantity")
    return min(value, MOST_WEIGHT)
