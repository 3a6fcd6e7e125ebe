"""The controller of jobs under Kueue: one Workload for each job; the job starts at its admission."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from apiserver.errors import StatusError
from apiserver.kueue import conditions, elastic, podsets, workloads
from apiserver.kueue.context import Context
from apiserver.kueue.ends import finalize_orphan, finish, remove_finalizer
from apiserver.kueue.names import (
    API_VERSION,
    GATED_BY,
    GROUP,
    IN_USE,
    JOB_UID_LABEL,
    MAX_EXEC_LABEL,
    PRIORITY_CLASSES,
    PRIORITY_LABEL,
    WORKLOADS,
    annotations_of,
    key_of,
    labels_of,
    owner_reference,
    pod_sets_of,
    queue_name,
    spec_of,
    workload_name,
)
from apiserver.kueue.podsets import Addition

Obj = dict[str, Any]
NOT_READY = ("WaitForStart", "Not all pods are ready or succeeded")
RECOVERING = ("WaitForRecovery", "At least one pod has failed, waiting for recovery")
READY = "All pods reached readiness and the workload is running"


class Busy(Exception):  # noqa: N818 - not an error: the next change of the job calls again
    """The job cannot be stopped yet."""


class Job(ABC):
    """A queued object: a batch Job, a pod, or a group of pods."""

    reporter = ""

    def __init__(self, context: Context, obj: Obj) -> None:
        self.context = context
        self.obj = obj

    @abstractmethod
    def suspended(self) -> bool:
        """It does not run."""

    @abstractmethod
    def active(self) -> bool:
        """Some of its pods hold resources."""

    @abstractmethod
    def finished(self) -> tuple[str, bool] | None:
        """Message and success, if it is over."""

    @abstractmethod
    def pods_ready(self) -> bool:
        """All its pods are ready or done."""

    @abstractmethod
    def pod_sets(self) -> list[Obj]:
        """spec.podSets of its Workload."""

    @abstractmethod
    def start(self, added: list[Addition]) -> list[Obj]:
        """Start it; the started objects. Raises podsets.Conflict."""

    @abstractmethod
    def stop(self, workload: Obj | None, reason: str, message: str) -> list[Obj]:
        """Stop it and take back the additions of the admission; the objects stopped now. Raises Busy."""

    def stopping(self) -> bool:
        """True if a stop has begun and is not complete."""
        return False

    def finalize(self) -> None:  # noqa: B027 - only pods have a finalizer of Kueue
        """Let go of it."""

    def name(self) -> str:
        """Name of its Workload."""
        group, metadata = self.obj["apiVersion"].rpartition("/")[0], self.obj["metadata"]
        extra = str(metadata["generation"]) if elastic.is_elastic(self.obj) else ""
        return workload_name(self.obj["kind"], group, metadata["name"], metadata["uid"], extra)

    def construct(self) -> Obj | None:
        """Its Workload; None while it cannot be made."""
        return new_workload(self, self.obj, self.name(), self.pod_sets())

    def matching(self) -> tuple[Obj | None, list[Obj]]:
        """Its Workload, and those not (or no longer) belonging to it."""
        match: Obj | None = None
        others = []
        for workload in self.context.owned(self.obj["metadata"]["uid"]):
            if match is None and self.equivalent(workload):
                match = workload
            else:
                others.append(workload)
        return match, others

    def equivalent(self, workload: Obj) -> bool:
        """True if a Workload states the requests of the job."""
        if spec_of(workload).get("maximumExecutionTimeSeconds") != max_execution_s(self.obj):
            return False
        mine, stated = self.pod_sets(), pod_sets_of(workload)
        tolerations = not workloads.is_admitted(workload)
        if workloads.has_reservation(workload):
            running = self._running(workload, stated)
            if running is not None:
                if podsets.same(mine, running, tolerations=tolerations):
                    return True
                return self.suspended() and podsets.same(mine, stated, tolerations=tolerations)
        return podsets.same(mine, stated, tolerations=tolerations)

    def _running(self, workload: Obj, stated: list[Obj]) -> list[Obj] | None:
        try:
            added = {each.name: each for each in podsets.additions(workload, self.context.state.flavors)}
            found = []
            for each in stated:
                template = each["template"]
                merged = podsets.merged(template.get("metadata") or {}, template["spec"], added[each["name"]])
                spec = template["spec"] | ({"tolerations": merged.tolerations} if merged.tolerations else {})
                count = added[each["name"]].count if each.get("minCount") else each.get("count", 1)
                found.append(each | {"count": count, "template": template | {"spec": spec}})
        except (podsets.Conflict, KeyError):
            return None
        return found

    def custom_conditions(self, workload: Obj) -> bool:
        """Write conditions of its own; True if any was written."""
        return False

    def reclaimable(self) -> dict[str, int]:
        """Pods done for good, by pod set."""
        return {}

    def told(self) -> list[Obj]:
        """The objects to get the events about checks."""
        return [self.obj]


def max_execution_s(obj: Obj) -> int | None:
    """The label max-exec-time-seconds."""
    text = labels_of(obj).get(MAX_EXEC_LABEL)
    return int(text) if text and text.isdigit() else None


def priority_of(context: Context, obj: Obj, pod_sets: list[Obj]) -> tuple[Obj | None, int]:
    """Reference and value of the priority: of the label, or of the PriorityClass of the pods."""
    name = labels_of(obj).get(PRIORITY_LABEL)
    if name:
        found = context.store.get(PRIORITY_CLASSES, "", name)
        reference = {"group": GROUP, "kind": "WorkloadPriorityClass", "name": name}
        return (reference, int(found["value"])) if found is not None else (None, 0)
    classes = "priorityclasses.scheduling.k8s.io"
    names = [each["template"]["spec"].get("priorityClassName") for each in pod_sets]
    chosen = next((each for each in names if each), None)
    if chosen is not None:
        found = context.store.get(classes, "", chosen)
        if found is not None:
            reference = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": chosen}
            return reference, int(found["value"])
    default = next((each for each in context.store.objects(classes) if each.get("globalDefault")), None)
    if default is None:
        return None, 0
    reference = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": default["metadata"]["name"]}
    return reference, int(default["value"])


def new_workload(job: Job, obj: Obj, name: str, pod_sets: list[Obj]) -> Obj:
    """A new Workload owned by an object."""
    metadata: Obj = {
        "finalizers": [IN_USE],
        "labels": {JOB_UID_LABEL: obj["metadata"]["uid"]},
        "name": name,
        "namespace": obj["metadata"]["namespace"],
        "ownerReferences": [owner_reference(obj, controller=True)],
    }
    gates = annotations_of(obj).get(GATED_BY)
    if gates:
        metadata["annotations"] = {GATED_BY: gates}
    reference, value = priority_of(job.context, obj, pod_sets)
    spec: Obj = {"podSets": pod_sets, "priority": value, "queueName": queue_name(obj)}
    if reference is not None:
        spec["priorityClassRef"] = reference
    limit_s = max_execution_s(obj)
    if limit_s is not None:
        spec["maximumExecutionTimeSeconds"] = limit_s
    return {"apiVersion": API_VERSION, "kind": "Workload", "metadata": metadata, "spec": spec}


class JobReconciler:
    """Reconciles one job after another."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def gone(self, workload: list[Obj]) -> None:
        """The job is deleted: so are its Workloads, in the end."""
        for each in workload:
            controlled = any(ref.get("controller") for ref in each["metadata"].get("ownerReferences") or [])
            finalize_orphan(self.context, each, may_finish=controlled)

    def reconcile(self, job: Job) -> None:
        """One step. Raises Busy if the job has to change first."""
        context = self.context
        workload, proceed = self._one_workload(job)
        if not proceed:
            return
        if workload is not None and job.custom_conditions(workload):
            return
        if workload is not None and workloads.is_finished(workload):
            job.finalize()
            text = f"Workload '{'/'.join(key_of(workload))}' is declared finished"
            self._event(job.obj, "FinishedWorkload", text, job)
            remove_finalizer(context, workload)
            return
        if workload is not None and "deletionTimestamp" in workload["metadata"]:
            self._stop(job, workload, "WorkloadDeleted", "Workload is deleted")
            remove_finalizer(context, workload)
            return
        over = job.finished()
        if over is not None:
            self._over(job, workload, *over)
            return
        if workload is None:
            self._create(job)
            return
        if self._reclaimable(job, workload):
            return
        if context.config.wait_for_pods_ready is not None and self._pods_ready(job, workload):
            return
        if workloads.is_evicted(workload):
            self._evicted(job, workload)
        elif job.suspended():
            self._waiting(job, workload)
        elif not workloads.is_admitted(workload) and not elastic.is_elastic(job.obj):
            self._stop(job, workload, "NotAdmitted", "Not admitted by cluster queue")

    def _event(self, obj: Obj, reason: str, message: str, job: Job) -> None:
        self.context.recorder.event(obj, "Normal", reason, message, job.reporter)

    def _one_workload(self, job: Job) -> tuple[Obj | None, bool]:
        """The Workload of a job; False if an earlier step was due and done."""
        context = self.context
        if elastic.is_elastic(job.obj):
            chosen, suits = elastic.slice_for(context, job.obj["metadata"]["uid"], job.pod_sets())
            if suits:
                return self._follow(job, chosen) if chosen is not None else None, True
        match, others = job.matching()
        update: Obj | None = None
        if match is None and others and job.suspended() and not workloads.has_reservation(others[0]):
            update, others = others[0], others[1:]
        if match is None and not job.suspended() and job.finished() is None:
            if len(others) == 1:
                text = "No matching Workload; restoring pod templates according to existent Workload"
            else:
                text = "Missing Workload; unable to restore pod templates"
            self._stop(job, others[0] if len(others) == 1 else None, "NoMatchingWorkload", text)
            if job.stopping():
                return None, False
        deleted = False
        for each in others:
            remove_finalizer(context, each)
            if "deletionTimestamp" in each["metadata"]:
                continue
            try:
                context.client().delete(WORKLOADS, *key_of(each))
            except StatusError:
                continue
            deleted = True
            self._event(job.obj, "DeletedWorkload", f"Deleted not matching Workload: {'/'.join(key_of(each))}", job)
        if deleted:
            return None, False
        if update is not None:
            return self._update(job, update), True
        if match is not None:
            match = self._follow(job, match)
        return match, True

    def _update(self, job: Job, workload: Obj) -> Obj | None:
        """A waiting Workload follows its job."""
        fresh = job.construct()
        if fresh is None:
            return None
        spec = fresh["spec"] | {"active": spec_of(workload).get("active", True)}
        written = self.context.update(workload | {"spec": spec})
        text = f"Updated not matching Workload for suspended job: {'/'.join(key_of(workload))}"
        self._event(job.obj, "UpdatedWorkload", text, job)
        return written

    def _follow(self, job: Job, workload: Obj) -> Obj:
        """Gates and priority of the job go to its Workload."""
        context = self.context
        mine, held = annotations_of(job.obj).get(GATED_BY, ""), annotations_of(workload).get(GATED_BY, "")
        if mine != held:
            patch = {"metadata": {"annotations": {GATED_BY: mine or None}}}
            try:
                workload = context.client().patch(WORKLOADS, *key_of(workload), patch)
            except StatusError as error:  # a gate that was taken from the Workload alone cannot come back
                raise Busy(str(error)) from error
            self._event(job.obj, "UpdatedWorkload", f'Updated workload AdmissionGatedBy to "{mine}"', job)
        name = labels_of(job.obj).get(PRIORITY_LABEL, "")
        reference = spec_of(workload).get("priorityClassRef") or {}
        if reference.get("kind") == "PriorityClass" or (not reference and workloads.has_reservation(workload)):
            return workload
        if reference.get("name", "") == name:
            return workload
        fresh, value = priority_of(context, job.obj, pod_sets_of(workload))
        spec = {key: each for key, each in spec_of(workload).items() if key != "priorityClassRef"} | {"priority": value}
        written = context.update(workload | {"spec": spec | ({"priorityClassRef": fresh} if fresh else {})})
        text = f"Updated workload priority class: {'/'.join(key_of(workload))}"
        self._event(job.obj, "UpdatedWorkload", text, job)
        return written or workload

    def _over(self, job: Job, workload: Obj | None, message: str, success: bool) -> None:
        if workload is not None and not workloads.is_finished(workload):
            finish(self.context, workload, "Succeeded" if success else "Failed", message)
            text = f"Workload '{'/'.join(key_of(workload))}' is declared finished"
            self._event(job.obj, "FinishedWorkload", text, job)
        job.finalize()

    def _create(self, job: Job) -> None:
        wider = elastic.is_elastic(job.obj)  # its pods run on beside the Workload that is to replace theirs
        workload = job.construct() if wider or not job.active() else None
        if workload is None or (wider and not elastic.annotate(self.context, job.obj["metadata"]["uid"], workload)):
            return
        try:
            self.context.client().create(WORKLOADS, workload)
        except StatusError:
            return
        self._event(job.obj, "CreatedWorkload", f"Created Workload: {'/'.join(key_of(workload))}", job)

    def _reclaimable(self, job: Job, workload: Obj) -> bool:
        """Release the quota of pods done for good; True if this was written."""
        sizes = {each["name"]: int(each.get("count", 1)) for each in pod_sets_of(workload)}
        wanted = {name: min(count, sizes.get(name, count)) for name, count in job.reclaimable().items()}
        held = workloads.status_of(workload).get("reclaimablePods") or []
        if wanted == {each["name"]: each["count"] for each in held}:
            return False
        rows = [{"name": name, "count": count} for name, count in wanted.items()]
        status = {"reclaimablePods": rows} if rows else {}
        return self.context.apply(workload, status, "kueue-reclaimable-pods") is not None

    def _pods_ready(self, job: Job, workload: Obj) -> bool:
        """Let the condition PodsReady follow the pods; True if it was written."""
        held = conditions.find(workload, workloads.PODS_READY)
        ready = workloads.is_admitted(workload) and job.pods_ready()
        if ready:
            again = held is not None and held["reason"] in {"WaitForRecovery", "Recovered"}
            reason, message = "Recovered" if again else "Started", READY
        elif not workloads.is_admitted(workload) or held is None:
            reason, message = NOT_READY
        elif held["status"] == "True" or held["reason"] == "WaitForRecovery":
            reason, message = RECOVERING
        else:
            reason, message = NOT_READY
        if held is not None and (held["status"] == "True") == ready and held["reason"] == reason:
            return False
        status: Obj = {"conditions": [dict(held)] if held is not None else []}
        generation, now = workloads.generation(workload), self.context.now
        conditions.put(status, workloads.PODS_READY, ready, reason, message, now, generation)
        return self.context.apply(workload, status, "kueue-job-controller-PodsReady") is not None

    def _evicted(self, job: Job, workload: Obj) -> None:
        evicted = conditions.find(workload, workloads.EVICTED) or {}
        self._stop(job, workload, "WorkloadEvicted", evicted["message"])
        if not workloads.has_reservation(workload) or job.active():
            return
        now, generation = self.context.now, workloads.generation(workload)
        reason, message = evicted["reason"], evicted["message"]
        again = reason in {"Preempted", "NodeFailures"} and not _single_pod(workload)

        def change(status: Obj) -> bool:
            conditions.put(status, workloads.REQUEUED, again, reason, message, now, generation)
            workloads.unset_reservation(status, "Pending", message, now, generation)
            return True

        self.context.edit(workload, change)

    def _waiting(self, job: Job, workload: Obj) -> None:
        if workloads.is_admitted(workload):
            self._start(job, workload)
            return
        if workloads.has_reservation(workload):
            told = [
                f"{check['name']}: {check['message']}"
                for check in workloads.checks(workload, "Pending")
                if check.get("message")
            ]
            for obj in job.told() if told else ():
                self._event(obj, "UpdatedAdmissionCheck", "; ".join(told), job)
        queue = queue_name(job.obj)
        if queue and spec_of(workload).get("queueName") != queue:
            self.context.update(workload | {"spec": spec_of(workload) | {"queueName": queue}})

    def _start(self, job: Job, workload: Obj) -> None:
        try:
            started = job.start(podsets.additions(workload, self.context.state.flavors))
        except podsets.Conflict as conflict:
            finish(self.context, workload, "FailedToStart", str(conflict))
            return
        queue = workloads.status_of(workload)["admission"]["clusterQueue"]
        for obj in started:
            self._event(obj, "Started", f"Admitted by clusterQueue {queue}", job)

    def _stop(self, job: Job, workload: Obj | None, reason: str, message: str) -> None:
        for obj in job.stop(workload, reason, message):
            self._event(obj, "Stopped", message, job)


def _single_pod(workload: Obj) -> bool:
    owners = workload["metadata"].get("ownerReferences") or []
    return len(owners) == 1 and owners[0]["kind"] == "Pod"
