"""StatefulSets under Kueue: one Workload for the set; its pods join it as a group."""

from __future__ import annotations

import copy
from typing import Any

from apiserver.errors import StatusError
from apiserver.kueue import podsets, workloads
from apiserver.kueue.context import Context
from apiserver.kueue.jobs import priority_of
from apiserver.kueue.names import (
    API_VERSION,
    GROUP_FAST,
    GROUP_INDEX_ANNOTATION,
    GROUP_NAME_LABEL,
    GROUP_SERVING,
    GROUP_TOTAL,
    IN_USE,
    IS_GROUP,
    JOB_UID_LABEL,
    MAIN_POD_SET,
    MANAGED,
    OWNER_GVK,
    OWNER_NAME,
    PODS,
    PREBUILT_LABEL,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    ROLE_HASH,
    STATEFUL_SETS,
    SUSPENDED_BY,
    WORKLOADS,
    annotations_of,
    controller_of,
    group_name,
    key_of,
    labels_of,
    owner_reference,
    queue_name,
    workload_name,
)
from apiserver.kueue.pod_jobs import release_pod, terminated

Obj = dict[str, Any]
POD_INDEX = "apps.kubernetes.io/pod-index"
REPORTER = "statefulset-kueue-controller"


class StatefulSets:
    """Reconciles StatefulSets and their pods."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @staticmethod
    def name_of(stateful_set: Obj) -> str:
        """Name of its Workload."""
        metadata = stateful_set["metadata"]
        return workload_name("StatefulSet", "apps", metadata["name"], metadata["uid"])

    def reconcile(self, key: tuple[str, str]) -> None:
        """One step for a set."""
        stateful_set = self.context.store.get(STATEFUL_SETS, *key)
        if stateful_set is None or not queue_name(stateful_set):
            return
        replicas = int(stateful_set["spec"].get("replicas", 1))
        workload = self.context.workload((key[0], self.name_of(stateful_set)))
        if workload is None:
            if replicas:
                self._create(stateful_set, replicas)
            return
        workload = self._adopt(stateful_set, workload, replicas)
        if not replicas and workloads.has_reservation(workload) and not workloads.is_finished(workload):
            self._hold(workload, "OnHold", "StatefulSet scaled to zero; workload on hold")
        elif replicas and workloads.is_on_hold(workload):
            self._hold(workload, "Pending", "Workload no longer on hold; waiting for quota reservation")

    def _create(self, stateful_set: Obj, replicas: int) -> None:
        metadata, template = stateful_set["metadata"], stateful_set["spec"]["template"]
        notes = (template.get("metadata") or {}).get("annotations") or {}
        pod_sets = [
            {
                "count": replicas,
                "name": MAIN_POD_SET,
                "template": {"metadata": {}, "spec": copy.deepcopy(template["spec"])},
                "topologyRequest": podsets.topology_request(notes, POD_INDEX),
            }
        ]
        reference, value = priority_of(self.context, stateful_set, pod_sets)
        spec: Obj = {"podSets": pod_sets, "priority": value, "queueName": queue_name(stateful_set)}
        if reference is not None:
            spec["priorityClassRef"] = reference
        workload = {
            "apiVersion": API_VERSION,
            "kind": "Workload",
            "metadata": {
                "annotations": self._notes(stateful_set) | {IS_GROUP: "true"},
                "finalizers": [IN_USE],
                "labels": {JOB_UID_LABEL: metadata["uid"]},
                "name": self.name_of(stateful_set),
                "namespace": metadata["namespace"],
                "ownerReferences": [owner_reference(stateful_set, controller=False)],
            },
            "spec": spec,
        }
        try:
            self.context.client().create(WORKLOADS, workload)
        except StatusError:
            return
        text = f"Created Workload: {'/'.join(key_of(workload))}"
        self.context.recorder.event(stateful_set, "Normal", "CreatedWorkload", text, REPORTER)

    @staticmethod
    def _notes(stateful_set: Obj) -> dict[str, str]:
        return {OWNER_GVK: "apps/v1, Kind=StatefulSet", OWNER_NAME: stateful_set["metadata"]["name"]}

    def _adopt(self, stateful_set: Obj, workload: Obj, replicas: int) -> Obj:
        """While it has pods the set owns the Workload and names its queue."""
        uid = stateful_set["metadata"]["uid"]
        owners = workload["metadata"].get("ownerReferences") or []
        metadata, spec = workload["metadata"], workload["spec"]
        if replicas and not any(each["uid"] == uid for each in owners):
            mine = owner_reference(stateful_set, controller=False)
            notes = annotations_of(workload) | self._notes(stateful_set)
            metadata = metadata | {"ownerReferences": [*owners, mine], "annotations": notes}
        if replicas and spec.get("queueName") != queue_name(stateful_set):
            spec = spec | {"queueName": queue_name(stateful_set)}
        if metadata is workload["metadata"] and spec is workload["spec"]:
            return workload
        return self.context.update(workload | {"metadata": metadata, "spec": spec}) or workload

    def _hold(self, workload: Obj, reason: str, message: str) -> None:
        now, generation = self.context.now, workloads.generation(workload)
        self.context.edit(
            workload, lambda status: workloads.unset_reservation(status, reason, message, now, generation)
        )

    def reconcile_pod(self, key: tuple[str, str]) -> None:
        """Let a pod of a set join the group, or let it go."""
        pod = self.context.store.get(PODS, *key)
        if pod is None or annotations_of(pod).get(SUSPENDED_BY) != "statefulset":
            return
        if terminated(pod) or "deletionTimestamp" in pod["metadata"]:
            release_pod(self.context, pod)
            return
        owner = controller_of(pod)
        if owner is None or owner["kind"] != "StatefulSet":
            return
        stateful_set = self.context.store.get(STATEFUL_SETS, key[0], owner["name"])
        if stateful_set is None or not queue_name(stateful_set):
            return
        name = self.name_of(stateful_set)
        if group_name(pod) == name:
            return
        labels = {MANAGED: "true", QUEUE_LABEL: queue_name(stateful_set), PREBUILT_LABEL: name, GROUP_NAME_LABEL: name}
        priority = labels_of(stateful_set).get(PRIORITY_LABEL)
        if priority:
            labels[PRIORITY_LABEL] = priority
        notes = {
            GROUP_TOTAL: str(stateful_set["spec"].get("replicas", 1)),
            GROUP_FAST: "true",
            GROUP_SERVING: "true",
            GROUP_INDEX_ANNOTATION: POD_INDEX,
            ROLE_HASH: MAIN_POD_SET,
        }
        try:
            self.context.client().patch(PODS, *key, {"metadata": {"labels": labels, "annotations": notes}})
        except StatusError:
            return
