"""Namespaces, queues and quotas of the simulated cluster as objects of Kueue.

One cohort owns all GPUs outside the guarantees, as in the engine. A queue with queues below it is a Cohort.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autopilot.core.model.snapshot import Displace
from autopilot.playground.naming import MODEL, QUEUE, slug
from autopilot.playground.shapes import GPU, resource_of_profile
from simulator.baselines.kueue import cohort_specs
from simulator.specs.clusterqueues import MOST_PRIORITY, ROOT, QueueSpec
from simulator.world.cluster import Cluster

Obj = dict[str, Any]
KUEUE = "kueue.x-k8s.io/v1beta2"
LIMIT_RANGE = "one-gpu"
HOST_QUOTA = {"cpu": "1000000", "memory": "1000000Gi"}
"""Quota of host resources, not the scarce ones here."""
WORDS = {
    Displace.NEVER: "Never",
    Displace.LOWER: "LowerPriority",
    Displace.LOWER_OR_NEWER_EQUAL: "LowerOrNewerEqualPriority",
    Displace.ANY: "Any",
}


def flavor_of(model: str) -> str:
    """The ResourceFlavor of a GPU model."""
    return slug(model)


def flavors(cluster: Cluster, products: Mapping[str, str]) -> Iterable[Obj]:
    """One flavor for each GPU model, and one for host resources."""
    turns = bool(cluster.inventory.names.sharing_configs)
    for model in cluster.inventory.names.gpu_models:
        # the product of a node changes when it is turned to sharing
        labels = {MODEL: slug(model)} if turns else {"nvidia.com/gpu.product": products[model]}
        yield _obj("ResourceFlavor", flavor_of(model), {"nodeLabels": labels})
    yield _obj("ResourceFlavor", "host", {})


def check_object(name: str, controller: str) -> Obj:
    """The AdmissionCheck of a controller, active."""
    return _obj("AdmissionCheck", name, {"controllerName": controller}) | _active(
        "Active", "The admission check is active"
    )


def _active(reason: str, message: str) -> Obj:
    """The status of a Kueue object in use."""
    condition = {"type": "Active", "status": "True", "reason": reason, "message": message}
    return {"status": {"conditions": [condition | {"lastTransitionTime": "1970-01-01T00:00:00Z"}]}}


def queue_objects(specs: Sequence[QueueSpec], cluster: Cluster, check: str = "") -> list[tuple[str, Obj]]:
    """(resource, object) of every Cohort and ClusterQueue, parents first. `check`: the AdmissionCheck of the queues."""
    known = cohort_specs(specs, cluster)
    inner = {spec.parent for spec in known}
    tenants = set(cluster.jobs.tenants)
    found: list[tuple[str, Obj]] = []
    for spec in known:
        if spec.name in inner:
            groups = {"resourceGroups": _groups(spec, cluster, instances=spec.parent == ROOT)}
            parent = {"parentName": slug(spec.parent)} if spec.parent != ROOT else {}
            found.append(("cohorts.kueue.x-k8s.io", _obj("Cohort", slug(spec.name), parent | groups)))
        if spec.name not in inner or spec.name in tenants:
            queue = _cluster_queue(spec, cluster, inside=spec.name in inner)
            if check:
                queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": check}]}
            found.append(("clusterqueues.kueue.x-k8s.io", queue))
    return found


def namespace_objects(tenant: str, namespace: str, *, one_gpu: bool, queue: bool = True) -> list[tuple[str, Obj]]:
    """A tenant's namespace and its queue, if it has one. `one_gpu`: containers without a GPU request get one."""
    limits = [{"type": "Container", "default": {GPU: "1"}, "defaultRequest": {GPU: "1"}}]
    limit_range = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": LIMIT_RANGE, "namespace": namespace},
        "spec": {"limits": limits},
    }
    local_queue = {
        "apiVersion": KUEUE,
        "kind": "LocalQueue",
        "metadata": {"name": QUEUE, "namespace": namespace},
        "spec": {"clusterQueue": slug(tenant)},
    }
    return [
        ("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        *([("limitranges", limit_range)] if one_gpu else []),
        *([("localqueues.kueue.x-k8s.io", local_queue)] if queue else []),
    ]


def priority_class(value: int) -> Obj:
    """The WorkloadPriorityClass of a priority."""
    name = f"priority-{value}"
    return {"apiVersion": KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}


def _cluster_queue(spec: QueueSpec, cluster: Cluster, *, inside: bool) -> Obj:
    own = QueueSpec(spec.name, spec.name, {}, None, 1.0, 0, None) if inside else spec
    preemption: Obj = {
        "withinClusterQueue": WORDS[spec.within_queue],
        "reclaimWithinCohort": WORDS[spec.reclaim],
    }
    if spec.while_borrowing != Displace.NEVER:
        preemption["borrowWithinCohort"] = {"policy": "LowerPriority"}
        if spec.while_borrowing_priority < MOST_PRIORITY:
            preemption["borrowWithinCohort"]["maxPriorityThreshold"] = spec.while_borrowing_priority
    return _obj(
        "ClusterQueue",
        slug(spec.name),
        {
            "cohortName": slug(own.parent),
            "namespaceSelector": {},
            "queueingStrategy": "StrictFIFO" if spec.strict else "BestEffortFIFO",
            "preemption": preemption,
            "resourceGroups": _groups(own, cluster, instances=False),
        },
    ) | _active("Ready", "Can admit new workloads")


def _groups(spec: QueueSpec, cluster: Cluster, *, instances: bool) -> list[Obj]:
    """Quotas by flavor. `instances`: the MIG instances of the cluster belong to this queue."""
    names, hardware = cluster.inventory.names, cluster.hardware
    owned: dict[tuple[str, str], int] = {}
    profiles = set()
    for gpu, parts in hardware.cut.items():
        model = names.gpu_models[hardware.model_of[hardware.node_of[gpu]]]
        for part in parts:
            profile = resource_of_profile(hardware.instances[part].profile)
            profiles.add(profile)
            owned[model, profile] = owned.get((model, profile), 0) + instances
    resources = [GPU, *sorted(profiles)]
    rows = []
    for model in names.gpu_models:
        quotas = []
        for resource in resources:
            cut = sum(count for (each, _), count in owned.items() if each == model)
            nominal = spec.guarantee.get(model, 0) - cut if resource == GPU else owned.get((model, resource), 0)
            quota: Obj = {"name": resource, "nominalQuota": str(max(nominal, 0))}
            if resource == GPU:
                quota |= _bounds(spec, model)
            quotas.append(quota)
        rows.append({"name": flavor_of(model), "resources": quotas})
    host = [{"name": name, "nominalQuota": amount} for name, amount in HOST_QUOTA.items()]
    return [
        {"coveredResources": resources, "flavors": rows},
        {"coveredResources": list(HOST_QUOTA), "flavors": [{"name": "host", "resources": host}]},
    ]


def _bounds(spec: QueueSpec, model: str) -> Obj:
    """Limits of borrowing and lending; a hard limit is a limit of borrowing here."""
    found: Obj = {}
    if spec.parent == ROOT:
        return found
    nominal = spec.guarantee.get(model, 0)
    limits = [limit for limit in (spec.limit, spec.limit_by_model.get(model)) if limit is not None]
    most = [max(limit - nominal, 0) for limit in limits]
    most += [spec.borrow_limit] if spec.borrow_limit is not None else []
    if most:
        found["borrowingLimit"] = str(min(most))
    if spec.lend_limit is not None:
        found["lendingLimit"] = str(min(spec.lend_limit, nominal))
    return found


def _obj(kind: str, name: str, spec: Obj) -> Obj:
    return {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name}, "spec": spec}
