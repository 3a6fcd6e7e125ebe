"""Elastic Jobs: a chain of Workloads ("slices"). A growing Job gets a wider one, and it replaces the one before."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from apiserver.errors import FieldError, StatusError, invalid_value
from apiserver.kueue import workloads
from apiserver.kueue.ends import finish
from apiserver.kueue.names import (
    ELASTIC_JOB,
    MIN_PARALLELISM,
    POD_SET_LABEL,
    PODS,
    REPLACES,
    SLICE_NAME,
    annotations_of,
    controller_of,
    key_of,
    labels_of,
    pod_sets_of,
    spec_of,
)
from apiserver.kueue.workqueue import WorkQueue

if TYPE_CHECKING:
    from apiserver.kueue.context import Context
    from apiserver.kueue.info import Key

Obj = dict[str, Any]
OUT_OF_SYNC = ("OutOfSync", "The workload slice is out of sync with its parent job")
REPLACED = ("WorkloadSliceReplaced", "Replaced to accommodate a new workload slice")


def is_elastic(obj: Obj) -> bool:
    """True for a Job with a variable width while it runs, or a Workload of one."""
    return annotations_of(obj).get(ELASTIC_JOB) == "true"


def replaces(workload: Obj) -> Key | None:
    """The slice it is to replace; None without one in its namespace."""
    text = annotations_of(workload).get(REPLACES, "")
    namespace, _, name = text.partition("/")
    return (namespace, name) if name and namespace == workload["metadata"].get("namespace") else None


def slice_name(workload: Obj) -> str:
    """The common name of all slices of a chain and their pods: that of the first."""
    return str(annotations_of(workload).get(SLICE_NAME) or workload["metadata"]["name"])


def slices_of(context: Context, uid: str) -> list[Obj]:
    """The unfinished Workloads of a Job, the oldest first."""
    found = [each for each in context.owned(uid) if not workloads.is_finished(each)]
    return sorted(found, key=lambda each: (each["metadata"]["creationTimestamp"], each["metadata"]["uid"]))


def annotate(context: Context, uid: str, workload: Obj) -> bool:
    """Let a new slice name the one it replaces; False while there are several."""
    before = slices_of(context, uid)
    notes = workload["metadata"].setdefault("annotations", {})
    notes |= {ELASTIC_JOB: "true", SLICE_NAME: slice_name(before[0] if before else workload)}
    if before:
        notes[REPLACES] = "/".join(key_of(before[0]))
    return len(before) < 2


def counts_of(pod_sets: list[Obj]) -> dict[str, int]:
    """Pods by pod set."""
    return {each["name"]: int(each.get("count", 1)) for each in pod_sets}


def is_narrower(new: dict[str, int], old: dict[str, int]) -> bool:
    """Fewer pods in some pod set, and more in none."""
    return new != old and all(new[name] <= count for name, count in old.items() if name in new)


def slice_for(context: Context, uid: str, pod_sets: list[Obj]) -> tuple[Obj | None, bool]:
    """The slice for a Job of this width; None with True if it needs a new one, with False if none suits it."""
    found = slices_of(context, uid)
    chosen = found[0] if len(found) == 1 else _sorted_out(context, found)
    if chosen is None:
        return None, True
    asked, held = counts_of(pod_sets), counts_of(pod_sets_of(chosen))
    if asked.keys() != held.keys():
        return None, False
    if asked == held:
        return chosen, True
    if workloads.has_reservation(chosen) and not is_narrower(asked, held):
        return None, True
    rows = [each | {"count": asked[each["name"]]} for each in pod_sets_of(chosen)]
    return context.update(chosen | {"spec": spec_of(chosen) | {"podSets": rows}}) or chosen, True


def _sorted_out(context: Context, found: list[Obj]) -> Obj | None:
    """The slice of several to count. All others are finished, except the holder of the quota."""
    claims: dict[Key, Obj] = {}
    for each in found:
        key = replaces(each)
        if key is None or workloads.is_evicted(each):
            continue
        if key not in claims or (workloads.has_reservation(each) and not workloads.has_reservation(claims[key])):
            claims[key] = each
    latest: Obj | None = None
    holder: Obj | None = None
    for each in found:
        if workloads.is_evicted(each):
            continue
        latest = each
        claim = claims.get(key_of(each))
        if workloads.has_reservation(each) and not (claim is not None and workloads.has_reservation(claim)):
            holder = each
    chosen = (claims.get(key_of(holder)) or holder) if holder is not None else latest
    for each in found:
        if each is not chosen and each is not holder:
            finish(context, each, *(REPLACED if key_of(each) in claims else OUT_OF_SYNC))
    return chosen


def errors_of(job: Obj, old: Obj | None) -> list[FieldError]:
    """Kueue's refusals of the annotation elastic-job of a Job."""
    found = []
    if is_elastic(job) and MIN_PARALLELISM in annotations_of(job):
        why = "partial admission and elastic job cannot be used together"
        path = f"metadata.annotations[{MIN_PARALLELISM}]"
        found.append(invalid_value(path, annotations_of(job)[MIN_PARALLELISM], why))
    if old is not None and is_elastic(job) != is_elastic(old):
        path = f"metadata.annotations[{ELASTIC_JOB}]"
        found.append(invalid_value(path, is_elastic(job), "field is immutable"))
    return found


def gate(template: Obj) -> None:
    """Hold the pods of an elastic Job back until their slice is admitted."""
    gates = template.setdefault("spec", {}).setdefault("schedulingGates", [])
    if not any(each["name"] == ELASTIC_JOB for each in gates):
        gates.append({"name": ELASTIC_JOB})


class ElasticUngater:
    """Takes the gate from as many pods of an elastic Job as its admitted slice has."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.queue: WorkQueue[str] = WorkQueue(context.timeline, context.config.delays.reconcile_s, self.reconcile)

    def look(self, obj: Obj) -> None:
        """A Workload is admitted, or a pod is there or has changed."""
        owner = controller_of(obj)
        if owner is not None and (is_elastic(obj) or SLICE_NAME in annotations_of(obj)):
            self.queue.add(owner["uid"])

    def reconcile(self, uid: str) -> None:
        """Let go the first pods by name."""
        holding = [
            each
            for each in slices_of(self.context, uid)
            if workloads.has_reservation(each) and not workloads.is_evicted(each)
        ]
        if not holding or not workloads.is_admitted(holding[-1]):
            return
        workload = holding[-1]
        waiting: dict[str, list[Obj]] = defaultdict(list)
        running: Counter[str] = Counter()
        for pod in self.context.store.objects(PODS, workload["metadata"]["namespace"]):
            done = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
            if annotations_of(pod).get(SLICE_NAME) != slice_name(workload) or done:
                continue
            name = labels_of(pod).get(POD_SET_LABEL, "")
            if any(each["name"] == ELASTIC_JOB for each in pod["spec"].get("schedulingGates") or []):
                waiting[name].append(pod)
            else:
                running[name] += 1
        counts = counts_of(pod_sets_of(workload))
        for name, pods in waiting.items():
            room = max(0, counts.get(name, 0) - running[name])
            for pod in sorted(pods, key=lambda each: str(each["metadata"]["name"]))[:room]:
                self._let_go(pod, _selector(workload, name))

    def _let_go(self, pod: Obj, selector: dict[str, str]) -> None:
        gates = [each for each in pod["spec"]["schedulingGates"] if each["name"] != ELASTIC_JOB]
        spec = {"schedulingGates": gates or None} | ({"nodeSelector": selector} if selector else {})
        try:
            self.context.client().patch(PODS, *key_of(pod), {"spec": spec})
        except StatusError:
            self.look(pod)


def _selector(workload: Obj, pod_set: str) -> dict[str, str]:
    """The node selector added by checks to a pod set."""
    found: dict[str, str] = {}
    for check in workloads.status_of(workload).get("admissionChecks") or []:
        for update in check.get("podSetUpdates") or []:
            if update["name"] == pod_set:
                found |= update.get("nodeSelector") or {}
    return found
