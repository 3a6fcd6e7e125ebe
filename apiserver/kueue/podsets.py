"""Additions of an admission to a pod template (labels, annotations, node selector, tolerations, gates); removal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from apiserver.kueue import workloads
from apiserver.kueue.elastic import is_elastic, slice_name
from apiserver.kueue.names import (
    CLUSTER_QUEUE_LABEL,
    LOCAL_QUEUE_LABEL,
    POD_SET_LABEL,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
    SLICE_NAME,
    TOPOLOGY_GATE,
    UNCONSTRAINED_TOPOLOGY,
    WORKLOAD_ANNOTATION,
    pod_sets_of,
    spec_of,
)

Obj = dict[str, Any]
LABEL_LENGTH = 63


class Conflict(Exception):  # noqa: N818 - a conflict of two placements, which ends the workload
    """An update contradicts the flavor or the template. The workload cannot be started, ever."""


@dataclass(slots=True)
class Addition:
    """The additions to one pod set."""

    name: str = ""
    count: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: list[Obj] = field(default_factory=list)
    gates: list[Obj] = field(default_factory=list)

    def merge(self, other: Addition) -> None:
        """Add another one. Raises Conflict for a differing value."""
        for name, mine, more in (
            ("annotations", self.annotations, other.annotations),
            ("labels", self.labels, other.labels),
            ("nodeSelector", self.node_selector, other.node_selector),
        ):
            for key in sorted(mine.keys() & more.keys()):
                if mine[key] != more[key]:
                    raise Conflict(
                        f"invalid admission check PodSetUpdate: conflict for {name}: conflict for key={key}, "
                        f"value1={mine[key]}, value2={more[key]}"
                    )
        self.annotations |= other.annotations
        self.labels |= other.labels
        self.node_selector |= other.node_selector
        self.tolerations += [each for each in other.tolerations if each not in self.tolerations]
        self.gates += [each for each in other.gates if each not in self.gates]


def additions(workload: Obj, flavors: dict[str, Obj]) -> list[Addition]:
    """Additions of the admission of a workload and its checks to each pod set. Raises Conflict."""
    status = workloads.status_of(workload)
    specs = {each["name"]: each for each in pod_sets_of(workload)}
    found = []
    for assigned in (status.get("admission") or {}).get("podSetAssignments") or []:
        each = _of_flavors(assigned, specs.get(assigned["name"], {}), flavors)
        each.annotations[WORKLOAD_ANNOTATION] = workload["metadata"]["name"]
        if is_elastic(workload):
            each.annotations[SLICE_NAME] = slice_name(workload)
        each.labels[POD_SET_LABEL] = assigned["name"]
        each.labels[LOCAL_QUEUE_LABEL] = spec_of(workload).get("queueName", "")
        if len(status["admission"]["clusterQueue"]) <= LABEL_LENGTH:
            each.labels[CLUSTER_QUEUE_LABEL] = status["admission"]["clusterQueue"]
        for check in status.get("admissionChecks") or []:
            _take_updates(each, check)
        found.append(each)
    return found


def _of_flavors(assigned: Obj, pod_set: Obj, flavors: dict[str, Obj]) -> Addition:
    each = Addition(assigned["name"], int(assigned.get("count") or pod_set.get("count", 1)))
    if assigned.get("topologyAssignment"):
        asked = pod_set.get("topologyRequest") or {}
        if not any(asked.get(key) for key in ("preferred", "required", "unconstrained")):
            each.annotations[UNCONSTRAINED_TOPOLOGY] = "true"
        each.gates.append({"name": TOPOLOGY_GATE})
    for name in dict.fromkeys(assigned.get("flavors", {}).values()):
        spec = flavors.get(name, {}).get("spec") or {}
        each.node_selector |= spec.get("nodeLabels") or {}
        each.tolerations += spec.get("tolerations") or []
    return each


def _take_updates(each: Addition, check: Obj) -> None:
    for update in check.get("podSetUpdates") or []:
        if update["name"] != each.name:
            continue
        more = Addition(
            labels=update.get("labels") or {},
            annotations=update.get("annotations") or {},
            node_selector=update.get("nodeSelector") or {},
            tolerations=update.get("tolerations") or [],
        )
        try:
            each.merge(more)
        except Conflict as error:
            raise Conflict(f'in admission check "{check["name"]}": {error}') from None
        return


def merged(metadata: Obj, spec: Obj, addition: Addition) -> Addition:
    """The template with an addition. Raises Conflict."""
    base = Addition(
        labels=dict(metadata.get("labels") or {}),
        annotations=dict(metadata.get("annotations") or {}),
        node_selector=dict(spec.get("nodeSelector") or {}),
        tolerations=list(spec.get("tolerations") or []),
        gates=list(spec.get("schedulingGates") or []),
    )
    if SLICE_NAME in addition.annotations:  # it replaces those of an earlier slice
        base.annotations = {
            key: value for key, value in base.annotations.items() if key not in {SLICE_NAME, WORKLOAD_ANNOTATION}
        }
    base.merge(addition)
    return base


def template_patch(metadata: Obj, spec: Obj, wanted: Addition) -> Obj:
    """The merge patch from a template to the wanted one; {} if they agree already."""
    patch: Obj = {}
    for name, old, new in (
        ("labels", metadata.get("labels") or {}, wanted.labels),
        ("annotations", metadata.get("annotations") or {}, wanted.annotations),
    ):
        change = map_patch(old, new)
        if change:
            patch.setdefault("metadata", {})[name] = change if new else None
    change = map_patch(spec.get("nodeSelector") or {}, wanted.node_selector)
    if change:
        patch.setdefault("spec", {})["nodeSelector"] = change if wanted.node_selector else None
    for name, wanted_list in (("tolerations", wanted.tolerations), ("schedulingGates", wanted.gates)):
        if (spec.get(name) or []) != wanted_list:
            patch.setdefault("spec", {})[name] = wanted_list or None
    return patch


def map_patch(old: dict[str, str], new: dict[str, str]) -> Obj:
    """The merge patch from one map to another."""
    patch: Obj = {key: value for key, value in new.items() if old.get(key) != value}
    return patch | dict.fromkeys(old.keys() - new.keys())


def as_created(pod_set: Obj, keep_labels: dict[str, str]) -> Addition:
    """The template of a pod set as it was before admission; `keep_labels` are those managed by the API server."""
    metadata, spec = pod_set["template"].get("metadata") or {}, pod_set["template"]["spec"]
    return Addition(
        name=pod_set["name"],
        count=int(pod_set.get("count", 1)),
        labels=(metadata.get("labels") or {}) | keep_labels,
        annotations=dict(metadata.get("annotations") or {}),
        node_selector=dict(spec.get("nodeSelector") or {}),
        tolerations=list(spec.get("tolerations") or []),
        gates=list(spec.get("schedulingGates") or []),
    )


def topology_request(annotations: dict[str, str], index_label: str) -> Obj:
    """The topologyRequest of a pod set, from the annotations of its template."""
    request: Obj = {"podIndexLabel": index_label}
    if annotations.get(REQUIRED_TOPOLOGY):
        request["required"] = annotations[REQUIRED_TOPOLOGY]
    elif annotations.get(PREFERRED_TOPOLOGY):
        request["preferred"] = annotations[PREFERRED_TOPOLOGY]
    elif annotations.get(UNCONSTRAINED_TOPOLOGY) == "true":
        request["unconstrained"] = True
    return request


def same(first: list[Obj], second: list[Obj], *, tolerations: bool) -> bool:
    """True if pod sets request the same: counts and containers, and tolerations if `tolerations`."""
    return len(first) == len(second) and all(
        mine.get("count", 1) == other.get("count", 1)
        and mine.get("minCount") == other.get("minCount")
        and all(
            (mine["template"]["spec"].get(name) or []) == (other["template"]["spec"].get(name) or [])
            for name in ("containers", "initContainers", *(("tolerations",) if tolerations else ()))
        )
        for mine, other in zip(first, second, strict=True)
    )
