"""A Workload as the scheduler sees it: the requests of each pod set, its priority, and its placement."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from apiserver.kueue import workloads
from apiserver.kueue.amounts import FlavorResource, amount, exact
from apiserver.kueue.names import key_of, pod_sets_of
from apiserver.pod_requests import pod_requests

Obj = dict[str, Any]
Key = tuple[str, str]


@dataclass(slots=True)
class PodSet:
    """Requests of one pod set: for all its pods together."""

    name: str
    count: int
    requests: dict[str, int]
    flavors: dict[str, str] = field(default_factory=dict)

    def scaled(self, count: int) -> PodSet:
        """The same pod set with another number of pods."""
        if count == self.count or not self.count:
            return self
        requests = {name: value // self.count * count for name, value in self.requests.items()}
        return PodSet(self.name, count, requests, dict(self.flavors))


@dataclass(slots=True)
class Info:
    """A Workload with the values computed from it once."""

    obj: Obj
    pod_sets: list[PodSet]
    priority: int
    queued_at: datetime
    cluster_queue: str = ""
    tried: list[dict[str, int]] | None = None  # for each pod set and resource: the last flavor tried, of several
    tried_shape: str = ""
    evaluated_generation: int = 0
    _shape: str = ""

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return key_of(self.obj)

    @property
    def uid(self) -> str:
        """Of the Workload."""
        return str(self.obj["metadata"]["uid"])

    def shape(self) -> str:
        """Equal for workloads alike to the scheduler: if one does not fit, none does."""
        if not self._shape:
            sets = [
                (
                    each["name"],
                    asked.count,
                    asked.requests,
                    each.get("minCount"),
                    each.get("topologyRequest"),
                    {
                        name: each["template"]["spec"].get(name)
                        for name in ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints")
                    },
                )
                for each, asked in zip(pod_sets_of(self.obj), self.pod_sets, strict=True)
            ]
            self._shape = json.dumps([self.priority, sets], sort_keys=True)
        return self._shape

    def usage(self) -> dict[FlavorResource, int]:
        """Quota held by the workload, by flavor and resource."""
        found: dict[FlavorResource, int] = {}
        for each in self.pod_sets:
            for resource, value in each.requests.items():
                flavor = each.flavors.get(resource)
                if flavor is not None:
                    found[flavor, resource] = found.get((flavor, resource), 0) + value
        return found

    def can_shrink(self) -> bool:
        """It may be admitted with fewer pods."""
        return any(each.get("minCount") for each in pod_sets_of(self.obj))


def info_of(workload: Obj, *, boosts: bool = False) -> Info:
    """The facts of a Workload; `boosts` lets the priority-boost count."""
    admission = workloads.status_of(workload).get("admission")
    pod_sets = _admitted(workload, admission) if admission else _asked(workload)
    priority = workloads.priority(workload) + (workloads.boost(workload) if boosts else 0)
    queue = admission["clusterQueue"] if admission else ""
    return Info(workload, pod_sets, priority, workloads.queued_at(workload), queue)


def _asked(workload: Obj) -> list[PodSet]:
    reclaimed = _reclaimed(workload)
    found = []
    for each in pod_sets_of(workload):
        count = max(0, int(each.get("count", 1)) - reclaimed.get(each["name"], 0))
        found.append(PodSet(each["name"], count, single_pod(each, count)))
    return found


def single_pod(pod_set: Obj, count: int = 1) -> dict[str, int]:
    """Requests of `count` pods of a pod set."""
    spec = pod_set["template"]["spec"]
    return {resource: exact(resource, value) * count for resource, value in pod_requests(spec).items()}


def _admitted(workload: Obj, admission: Obj) -> list[PodSet]:
    reclaimed = _reclaimed(workload)
    counts = {each["name"]: int(each.get("count", 1)) for each in pod_sets_of(workload)}
    found = []
    for each in admission["podSetAssignments"]:
        count = int(each.get("count", counts.get(each["name"], 1)))
        requests = {name: amount(name, text) for name, text in (each.get("resourceUsage") or {}).items()}
        whole = PodSet(each["name"], count, requests, dict(each.get("flavors") or {}))
        left = max(0, counts.get(each["name"], count) - reclaimed.get(each["name"], 0))
        found.append(whole.scaled(min(count, left)))
    return found


def _reclaimed(workload: Obj) -> dict[str, int]:
    return {each["name"]: each["count"] for each in workloads.status_of(workload).get("reclaimablePods") or []}
