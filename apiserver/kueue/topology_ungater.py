"""Pods of a placed Workload: each gets its domain as a node selector and loses the topology gate."""

from __future__ import annotations

from collections import Counter
from typing import Any

from apiserver.errors import StatusError
from apiserver.kueue import workloads
from apiserver.kueue.context import Context
from apiserver.kueue.elastic import ElasticUngater
from apiserver.kueue.names import (
    ADMISSION_GATE,
    POD_SET_LABEL,
    PODS,
    TOPOLOGY_GATE,
    WORKLOAD_ANNOTATION,
    annotations_of,
    key_of,
    labels_of,
)
from apiserver.kueue.topology import domains_of
from apiserver.kueue.workqueue import WorkQueue

Obj = dict[str, Any]


class Ungater:
    """Follows pods waiting for a place."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.elastic = ElasticUngater(context)
        self.queue: WorkQueue[tuple[str, str]] = WorkQueue(
            context.timeline, context.config.delays.reconcile_s, self.reconcile
        )

    def workload(self, workload: Obj) -> None:
        """A Workload is admitted."""
        self.elastic.look(workload)
        rows = (workloads.status_of(workload).get("admission") or {}).get("podSetAssignments") or []
        if any(row.get("topologyAssignment") for row in rows):
            self.queue.add(key_of(workload))

    def pod(self, pod: Obj) -> None:
        """A pod is there, or has changed."""
        self.elastic.look(pod)
        name = annotations_of(pod).get(WORKLOAD_ANNOTATION)
        if name and _waits(pod):
            self.queue.add((pod["metadata"]["namespace"], name))

    def reconcile(self, key: tuple[str, str]) -> None:
        """Give each waiting pod a domain with room."""
        workload = self.context.workload(key)
        if workload is None or not workloads.is_admitted(workload):
            return
        mine = [
            pod
            for pod in self.context.store.objects(PODS, key[0])
            if annotations_of(pod).get(WORKLOAD_ANNOTATION) == key[1]
        ]
        for row in workloads.status_of(workload)["admission"]["podSetAssignments"]:
            if row.get("topologyAssignment"):
                self._ungate(row, [pod for pod in mine if labels_of(pod).get(POD_SET_LABEL) == row["name"]])

    def _ungate(self, row: Obj, pods: list[Obj]) -> None:
        levels = row["topologyAssignment"]["levels"]
        placed: Counter[tuple[str, ...]] = Counter()
        for pod in pods:
            if not _waits(pod) and (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}:
                selector = pod["spec"].get("nodeSelector") or {}
                placed[tuple(selector.get(level, "") for level in levels)] += 1
        free = [
            values for values, count in domains_of(row["topologyAssignment"]) for _ in range(count - placed[values])
        ]
        for pod, values in zip([pod for pod in pods if _waits(pod)], free, strict=False):
            gates = [each for each in pod["spec"]["schedulingGates"] if each["name"] != TOPOLOGY_GATE]
            spec = {"nodeSelector": dict(zip(levels, values, strict=True)), "schedulingGates": gates or None}
            try:
                self.context.client().patch(PODS, *key_of(pod), {"spec": spec})
            except StatusError:
                continue


def _waits(pod: Obj) -> bool:
    names = {each["name"] for each in pod["spec"].get("schedulingGates") or []}
    return TOPOLOGY_GATE in names and ADMISSION_GATE not in names and "deletionTimestamp" not in pod["metadata"]
