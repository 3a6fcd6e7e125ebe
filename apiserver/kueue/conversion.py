"""Objects of v1beta1 as they are stored (v1beta2), and back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from apiserver.errors import StatusError
from apiserver.kueue.names import API_VERSION, GROUP
from apiserver.kueue.topology import domains_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from apiserver.kinds.base import Kind

Obj = dict[str, Any]
OLD = "v1beta1"
CLASS_KINDS = {
    f"{GROUP}/workloadpriorityclass": (GROUP, "WorkloadPriorityClass"),
    "scheduling.k8s.io/priorityclass": ("scheduling.k8s.io", "PriorityClass"),
}
FUNGIBILITY = {"Preempt": "MayStopSearch", "Borrow": "MayStopSearch"}


class UnreachableError(StatusError):
    """500: the conversion webhook does not answer. Such a Status has no reason."""

    def __init__(self, kind: str) -> None:
        post = 'Post "https://WEBHOOK/convert?timeout=30s": dial tcp WEBHOOK: connect: connection refused'
        super().__init__(500, "", f"conversion webhook for {API_VERSION}, Kind={kind} failed: {post}")
        del self.body["reason"]


def to_stored(obj: Obj) -> Obj:
    """The stored form of an object sent by a client."""
    found = obj | {"apiVersion": API_VERSION}
    change = {"ClusterQueue": _queue_to_stored, "Workload": _workload_to_stored}.get(obj["kind"])
    if change is not None and obj.get("spec"):
        found["spec"] = change(obj["spec"])
    return found


def from_stored(obj: Obj) -> Obj:
    """A stored object as v1beta1 shows it."""
    found = obj | {"apiVersion": f"{GROUP}/{OLD}"}
    change = {"ClusterQueue": _queue_from_stored, "Workload": _workload_from_stored}.get(obj["kind"])
    if change is not None and obj.get("spec"):
        found["spec"] = change(obj["spec"])
    if obj["kind"] == "Workload" and (obj.get("status") or {}).get("admission"):
        found["status"] = _status_from_stored(obj["status"])
    return found


def _queue_to_stored(spec: Obj) -> Obj:
    found = {"cohortName" if name == "cohort" else name: value for name, value in spec.items()}
    names = found.pop("admissionChecks", None)
    if names:
        found["admissionChecksStrategy"] = {"admissionChecks": [{"name": name} for name in names]}
    if found.get("flavorFungibility"):
        rules = found["flavorFungibility"].items()
        found["flavorFungibility"] = {name: FUNGIBILITY.get(value, value) for name, value in rules}
    return found


def _queue_from_stored(spec: Obj) -> Obj:
    return {"cohort" if name == "cohortName" else name: value for name, value in spec.items()}


def _workload_to_stored(spec: Obj) -> Obj:
    found = dict(spec)
    source, name = found.pop("priorityClassSource", ""), found.pop("priorityClassName", "")
    if source in CLASS_KINDS:
        group, kind = CLASS_KINDS[source]
        found["priorityClassRef"] = {"group": group, "kind": kind, "name": name}
    return found


def _workload_from_stored(spec: Obj) -> Obj:
    found = dict(spec)
    given = found.pop("priorityClassRef", None)
    for source, (group, kind) in CLASS_KINDS.items():
        if given is not None and (given.get("group"), given.get("kind")) == (group, kind):
            found |= {"priorityClassName": given["name"], "priorityClassSource": source}
    return found


def _status_from_stored(status: Obj) -> Obj:
    """v1beta1 lists each domain of a topology; v1beta2 has slices of them."""
    assigned = []
    for each in status["admission"].get("podSetAssignments") or []:
        placed = each.get("topologyAssignment")
        if placed:
            domains = [{"values": list(values), "count": count} for values, count in domains_of(placed)]
            assigned.append(each | {"topologyAssignment": {"levels": placed["levels"], "domains": domains}})
        else:
            assigned.append(each)
    return status | {"admission": status["admission"] | {"podSetAssignments": assigned}}


def converted(kind: Kind, stored: Kind, is_down: Callable[[], bool]) -> Kind:
    """A kind of v1beta1 with its objects converted as above while the webhook answers."""

    def through(convert: Callable[[Obj], Obj]) -> Callable[[Obj], Obj]:
        def change(obj: Obj) -> Obj:
            if is_down():
                raise UnreachableError(kind.kind)
            return convert(obj)

        return change

    def store(obj: Obj) -> Obj:
        found = to_stored(obj)
        stored.default(found)
        return found

    return replace(kind, to_storage=through(store), from_storage=through(from_stored))
