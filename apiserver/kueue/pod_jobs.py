"""Plain pods under Kueue: a pod alone, and a group of pods as one gang."""

from __future__ import annotations

import copy
from collections import Counter
from datetime import datetime
from typing import Any

from apiserver.errors import StatusError
from apiserver.kueue import conditions, podsets, workloads
from apiserver.kueue.context import Context
from apiserver.kueue.jobs import Busy, Job, new_workload
from apiserver.kueue.names import (
    ADMISSION_GATE,
    GROUP_FAST,
    GROUP_INDEX_LABEL,
    GROUP_SERVING,
    GROUP_TOTAL,
    IS_GROUP,
    MAIN_POD_SET,
    MANAGED,
    MANAGER,
    PODS,
    PREBUILT_LABEL,
    RETRIABLE,
    ROLE_HASH,
    TOPOLOGY_GATE,
    annotations_of,
    group_name,
    key_of,
    labels_of,
    owner_reference,
    pod_sets_of,
    queue_name,
    spec_of,
)
from apiserver.kueue.podsets import Addition
from apiserver.kueue.roles import role_hash
from apiserver.timeline import parse_stamp, stamp

Obj = dict[str, Any]


def gated(pod: Obj) -> bool:
    """Held by Kueue's gate."""
    return any(each["name"] == ADMISSION_GATE for each in pod["spec"].get("schedulingGates") or [])


def terminated(pod: Obj) -> bool:
    """Succeeded or failed."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def runnable(pod: Obj) -> bool:
    """Neither failed nor on the way out without a node."""
    if "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName"):
        return False
    return (pod.get("status") or {}).get("phase") != "Failed"


def role_of(pod: Obj) -> str:
    """The pod set of a pod."""
    return annotations_of(pod).get(ROLE_HASH) or role_hash(pod["spec"])


def ready(pod: Obj) -> bool:
    """The condition Ready."""
    return conditions.is_true(pod, "Ready")


def pod_set_of(pod: Obj, name: str = MAIN_POD_SET, count: int = 1) -> Obj:
    """The pod set made from a pod."""
    request = podsets.topology_request(annotations_of(pod), GROUP_INDEX_LABEL)
    spec = copy.deepcopy(pod["spec"])
    spec.pop("nodeName", None)
    template = {"metadata": {}, "spec": spec}
    return {"count": count, "name": name, "template": template, "topologyRequest": request}


class Pods(Job):
    """The common part of a pod and a group."""

    reporter = "pod-kueue-controller"

    def members(self) -> list[Obj]:
        """The pods."""
        return [self.obj]

    def suspended(self) -> bool:
        """Some pod is gated or done."""
        return any(terminated(pod) or gated(pod) for pod in self.members())

    def active(self) -> bool:
        """Some pod runs."""
        for pod in self.members():
            if (pod.get("status") or {}).get("phase") != "Running":
                continue
            metadata = pod["metadata"]
            if "deletionTimestamp" in metadata and metadata.get("deletionGracePeriodSeconds") is not None:
                grace_s = float(metadata["deletionGracePeriodSeconds"])
                if (self.context.now - parse_stamp(metadata["deletionTimestamp"])).total_seconds() > grace_s:
                    continue
            return True
        return False

    def told(self) -> list[Obj]:
        """Every pod."""
        return self.members()

    def start(self, added: list[Addition]) -> list[Obj]:
        """Take the gates away and add the additions of the admission."""
        by_name = {each.name: each for each in added}
        started = []
        for pod in self.members():
            if not gated(pod):
                continue
            addition = self._addition(pod, by_name)
            metadata, spec = pod["metadata"], pod["spec"]
            wanted = podsets.merged(metadata, spec, addition)
            keep_topology = any(each["name"] == TOPOLOGY_GATE for each in addition.gates)
            dropped = {ADMISSION_GATE} if keep_topology else {ADMISSION_GATE, TOPOLOGY_GATE}
            wanted.gates = [each for each in wanted.gates if each["name"] not in dropped]
            patch = podsets.template_patch(metadata, spec, wanted)
            try:
                started.append(self._client().patch(PODS, *key_of(pod), patch))
            except StatusError:
                continue
        return started

    def _addition(self, pod: Obj, by_name: dict[str, Addition]) -> Addition:
        return by_name.get(MAIN_POD_SET) or next(iter(by_name.values()))

    def stop(self, workload: Obj | None, reason: str, message: str) -> list[Obj]:
        """Delete the running pods: a pod cannot be suspended."""
        evicted = conditions.find(workload, workloads.EVICTED) if workload is not None else None
        if reason == "WorkloadEvicted" and evicted is not None:
            reason = f"WorkloadEvictedDueTo{evicted['reason']}"
        stopped = []
        for pod in self.members():
            held = terminated(pod) or gated(pod)
            if "deletionTimestamp" in pod["metadata"] or (reason != "WorkloadDeleted" and held):
                continue
            if delete_pod(self.context, pod, reason, message):
                stopped.append(pod)
        return stopped

    def finalize(self) -> None:
        """Let the pods go."""
        for pod in self.members():
            release_pod(self.context, pod)

    def _client(self) -> Any:
        return self.context.client()


def delete_pod(context: Context, pod: Obj, reason: str, message: str) -> bool:
    """Mark a pod as a target of termination, and delete it."""
    namespace, name = key_of(pod)
    condition = {
        "type": "TerminationTarget",
        "status": "True",
        "lastTransitionTime": stamp(context.now),
        "reason": reason,
        "message": message,
    }
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": pod["metadata"]["uid"]},
        "status": {"conditions": [condition]},
    }
    client = context.client(MANAGER)
    try:
        client.patch(PODS, namespace, name, body, "status", how="apply")
        client.delete(PODS, namespace, name)
    except StatusError:
        return False
    return True


def release_pod(context: Context, pod: Obj) -> bool:
    """Take Kueue's finalizer from a pod."""
    held = pod["metadata"].get("finalizers") or []
    if MANAGED not in held:
        return False
    kept = [each for each in held if each != MANAGED]
    try:
        context.client().patch(PODS, *key_of(pod), {"metadata": {"finalizers": kept or None}})
    except StatusError:
        return False
    return True


class SinglePod(Pods):
    """A pod of its own."""

    def finished(self) -> tuple[str, bool] | None:
        """Message and success of an ended pod; None before its end."""
        if not terminated(self.obj):
            return None
        status = self.obj["status"]
        return status.get("message", ""), status["phase"] == "Succeeded"

    def pods_ready(self) -> bool:
        """True if the pod is ready."""
        return ready(self.obj)

    def pod_sets(self) -> list[Obj]:
        """One pod."""
        return [pod_set_of(self.obj)]

    def equivalent(self, workload: Obj) -> bool:
        """The compared fields of a pod's spec never change, except tolerations added by the admission."""
        if spec_of(workload).get("maximumExecutionTimeSeconds") is None and not workloads.has_reservation(workload):
            return super().equivalent(workload)
        return podsets.same(self.pod_sets(), pod_sets_of(workload), tolerations=False)


class PodGroup(Pods):
    """The pods of a group."""

    def __init__(self, context: Context, pods: list[Obj]) -> None:
        super().__init__(context, pods[0])
        self.pods = pods
        self.absent = 0

    def members(self) -> list[Obj]:
        """The pods in the count."""
        return self.pods

    def name(self) -> str:
        """The name of the group."""
        return labels_of(self.obj).get(PREBUILT_LABEL) or group_name(self.obj)

    def _note(self, name: str) -> str:
        return annotations_of(self.obj).get(name, "")

    def _total(self) -> int:
        text = self._note(GROUP_TOTAL)
        return int(text) if text.isdigit() else 0

    def _fast(self) -> bool:
        return self._note(GROUP_FAST) == "true"

    def serving(self) -> bool:
        """It never ends."""
        return self._note(GROUP_SERVING) == "true"

    def finished(self) -> tuple[str, bool] | None:
        """All succeeded, or none is left and failed ones are not replaced."""
        if self.serving():
            return None
        succeeded = sum(1 for pod in self.pods if (pod.get("status") or {}).get("phase") == "Succeeded")
        running = any(not terminated(pod) for pod in self.pods)
        final = any(annotations_of(pod).get(RETRIABLE) == "false" for pod in self.pods)
        if succeeded == self._total() or (not running and final):
            return f"Pods succeeded: {succeeded}/{self._total()}.", True
        return None

    def pods_ready(self) -> bool:
        """All of the group are there and ready."""
        return len(self.pods) >= self._total() and all(ready(pod) for pod in self.pods)

    def reclaimable(self) -> dict[str, int]:
        """Succeeded pods, by role."""
        done = [pod for pod in self.pods if (pod.get("status") or {}).get("phase") == "Succeeded"]
        return {} if self.serving() else dict(Counter(map(role_of, done)))

    def _addition(self, pod: Obj, by_name: dict[str, Addition]) -> Addition:
        return by_name.get(role_of(pod)) or super()._addition(pod, by_name)

    def pod_sets(self) -> list[Obj]:
        """One pod set for each role."""
        if self._fast():
            first = next((pod for pod in self.pods if runnable(pod)), self.obj)
            return [pod_set_of(first, role_of(first), self._total())]
        return grouped(self.pods)

    def construct(self) -> Obj | None:
        """The Workload of a complete group."""
        running = [pod for pod in self.pods if runnable(pod)]
        for pod in self.pods:
            if not runnable(pod):
                release_pod(self.context, pod)
        total = self._total()
        if not self._fast() and len(running) < total:
            text = f"'{group_name(self.obj)}' group has fewer runnable pods than expected"
            self.context.recorder.event(self.obj, "Warning", "ErrWorkloadCompose", text, self.reporter)
            return None
        if len({queue_name(pod) for pod in running}) > 1:
            return None
        self._drop(by_age(running)[total:])
        self.pods = by_age(running)[:total]
        workload = new_workload(self, self.obj, self.name(), self.pod_sets())
        metadata = workload["metadata"]
        metadata["ownerReferences"] = [owner_reference(pod, controller=False) for pod in self.pods]
        metadata.setdefault("annotations", {})[IS_GROUP] = "true"
        del metadata["labels"]
        return workload

    def _drop(self, pods: list[Obj]) -> None:
        """Delete surplus pods."""
        for pod in pods:
            release_pod(self.context, pod)
            if "deletionTimestamp" in pod["metadata"]:
                continue
            try:
                self._client().delete(PODS, *key_of(pod))
            except StatusError:
                continue
            self.context.recorder.event(pod, "Normal", "ExcessPodDeleted", "Excess pod deleted", self.reporter)

    def matching(self) -> tuple[Obj | None, list[Obj]]:
        """The Workload of the group, with surplus and replaced pods sorted out."""
        workload = self.context.workload((self.obj["metadata"]["namespace"], self.name()))
        if workload is None:
            return None, []
        if annotations_of(workload).get(IS_GROUP) != "true":
            raise Busy("the Workload of that name belongs to something else")
        kept: list[Obj] = []
        excess: list[Obj] = []
        replaced: list[Obj] = []
        self.absent = 0
        for pod_set in pod_sets_of(workload):
            count = int(pod_set.get("count", 1))
            mine = [pod for pod in self.pods if role_of(pod) == pod_set["name"]]
            running, gone = [pod for pod in mine if runnable(pod)], [pod for pod in mine if not runnable(pod)]
            self.absent += self._missing(count, len(running))
            running = by_age(running)
            kept += running[:count]
            excess += running[count:]
            spare = min(len(gone), max(0, len(mine) - count))
            gone.sort(key=self._release_rank)
            kept += gone[: len(gone) - spare]
            replaced += gone[len(gone) - spare :]
        if not kept or not self._covers(workload, grouped(kept)):
            return None, [workload]
        self.pods = kept
        self._own(workload)
        self._drop(excess)
        for pod in replaced:
            release_pod(self.context, pod)
        return workload, []

    def _missing(self, count: int, running: int) -> int:
        if self._fast():
            return 1 if count and not running else 0
        return max(0, count - running)

    def _release_rank(self, pod: Obj) -> tuple[bool, float, str]:
        """Order of release: pods with the finalizer and the last end stay."""
        held = MANAGED in (pod["metadata"].get("finalizers") or [])
        return not held, -self._ended(pod).timestamp(), str(pod["metadata"]["creationTimestamp"])

    def _ended(self, pod: Obj) -> datetime:
        found = conditions.find(pod, "ContainersReady")
        if found is not None and found.get("reason") == "PodFailed":
            return conditions.since(found)
        return self.context.now

    @staticmethod
    def _covers(workload: Obj, mine: list[Obj]) -> bool:
        counts = {each["name"]: each.get("count", 1) for each in pod_sets_of(workload)}
        if workloads.is_finished(workload):
            return all(each["name"] in counts for each in mine)
        return all(counts.get(each["name"], 0) >= each["count"] for each in mine)

    def _own(self, workload: Obj) -> None:
        """Every pod of the group owns the Workload."""
        owners = list(workload["metadata"].get("ownerReferences") or [])
        known = {each["uid"] for each in owners}
        more = [owner_reference(pod, controller=False) for pod in self.pods if pod["metadata"]["uid"] not in known]
        if not more:
            return
        metadata = workload["metadata"] | {"ownerReferences": owners + more}
        if self.context.update(workload | {"metadata": metadata}) is not None:
            text = f"Added {len(more)} owner reference(s)"
            self.context.recorder.event(workload, "Normal", "OwnerReferencesAdded", text, self.reporter)
            raise Busy("the Workload has changed")

    def custom_conditions(self, workload: Obj) -> bool:
        """State the wait of failed pods for their replacements; not for a set scaled to zero."""
        if workloads.is_on_hold(workload):
            return False
        held = conditions.find(workload, workloads.REPLACEMENT)
        evicted = conditions.find(workload, workloads.EVICTED)
        if self.absent:
            if evicted is not None and evicted["status"] == "True":
                reason, message = evicted["reason"], evicted["message"]
            elif held is not None and held["status"] == "True":
                return False
            else:
                reason, message = "PodsFailed", "Some Failed pods need replacement"
        elif held is None or held["status"] == "False":
            return False
        else:
            reason, message = "PodsReady", "No pods need replacement"
        wanted = (str(bool(self.absent)), reason, message)
        if held is not None and (held["status"], held["reason"], held["message"]) == wanted:
            return False
        status: Obj = {"conditions": [dict(held)] if held is not None else []}
        now, generation = self.context.now, workloads.generation(workload)
        conditions.put(status, workloads.REPLACEMENT, bool(self.absent), reason, message, now, generation)
        return self.context.apply(workload, status, "kueue-pod-controller") is not None


def grouped(pods: list[Obj]) -> list[Obj]:
    """Pod sets of pods by role."""
    found: dict[str, Obj] = {}
    for pod in pods:
        if not runnable(pod):
            continue
        role = role_of(pod)
        if role in found:
            found[role]["count"] += 1
        else:
            found[role] = pod_set_of(pod, role)
    return [found[role] for role in sorted(found)]


def by_age(pods: list[Obj]) -> list[Obj]:
    """Those with the finalizer first, then the ungated ones, then the oldest."""

    def rank(pod: Obj) -> tuple[bool, bool, str, str]:
        metadata = pod["metadata"]
        return (
            MANAGED not in (metadata.get("finalizers") or []),
            gated(pod),
            metadata["creationTimestamp"],
            metadata["name"],
        )

    return sorted(pods, key=rank)
