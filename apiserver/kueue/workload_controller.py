"""The controller of Workloads: backoff, checks, deactivation, stopped queues, time limits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from apiserver.kueue import conditions, elastic, workloads
from apiserver.kueue.admission_loop import AdmissionLoop
from apiserver.kueue.context import Context
from apiserver.kueue.ends import finalize_orphan
from apiserver.kueue.info import Key, info_of
from apiserver.kueue.names import (
    GATED_BY,
    JOB_UID_LABEL,
    annotations_of,
    key_of,
    labels_of,
    pod_sets_of,
    spec_of,
    target_of,
)
from apiserver.kueue.workqueue import WorkQueue
from apiserver.timeline import stamp

Obj = dict[str, Any]
REPORTER = "kueue-workload-controller"
MAX_EXECUTION = "MaximumExecutionTimeExceeded"


class WorkloadController:
    """Reconciles Workloads, one at a time."""

    def __init__(self, context: Context, loop: AdmissionLoop) -> None:
        self.context = context
        self.loop = loop
        self.queue: WorkQueue[Key] = WorkQueue(context.timeline, context.config.delays.reconcile_s, self.reconcile)

    def changed(self, old: Obj | None, new: Obj | None) -> None:
        """Let the queues follow a Workload; then reconcile it."""
        context = self.context
        if new is None:
            if old is not None:
                self._gone(old)
            return
        context.index(new)
        key = key_of(new)
        phase, before = workloads.phase(new), workloads.phase(old) if old is not None else "pending"
        if phase == "finished" or not workloads.is_active(new):
            self.loop.withdraw(key)
            self._released(new)
        elif phase == "pending":
            if before != "pending":
                self._released(new)
            if workloads.is_on_hold(new) or workloads.lacks_pods(new):
                self.loop.withdraw(key)
            else:
                self.loop.offer(new)
        else:
            self.loop.withdraw(key)
            context.state.count(info_of(new, boosts=context.config.priority_boost))
            if old is not None and before == phase and self._frees(old, new):
                self._retry(new)
            self.loop.counted()
        self.queue.add(key, context.config.delays.first_s if old is None else None)

    @staticmethod
    def _frees(old: Obj, new: Obj) -> bool:
        """True if others may fit now although it stays."""
        reclaimable = workloads.status_of(old).get("reclaimablePods") != workloads.status_of(new).get("reclaimablePods")
        narrower = elastic.is_narrower(*(elastic.counts_of(pod_sets_of(each)) for each in (new, old)))
        return reclaimable or narrower or workloads.priority(old) != workloads.priority(new)

    def _gone(self, old: Obj) -> None:
        key = key_of(old)
        self.loop.withdraw(key)
        self._released(old)
        self.context.unindex(key)

    def _released(self, workload: Obj) -> None:
        queue = self.context.state.forget(key_of(workload))
        if queue is not None:
            self.loop.retry_later(queue.name)
            self.loop.wake()

    def _retry(self, workload: Obj) -> None:
        name = self.context.state.where.get(key_of(workload))
        if name:
            self.loop.retry_later(name)

    def reconcile(self, key: Key) -> None:
        """One step of the life of a Workload."""
        context = self.context
        workload = context.workload(key)
        if workload is None:
            return
        if self._orphaned(workload) and self._finalize_orphan(workload):
            return
        if workloads.is_finished(workload):
            return
        later = workloads.retry_at(workload, context.now)
        if later is not None:
            context.edit(workload, lambda status: _put_off(status, stamp(later)))
            return
        stop = self._active(workload) if workloads.is_active(workload) else self._inactive(workload)
        if stop:
            return
        if self._queue_restarted(workload) or self._gates(workload) or self._checks(workload):
            return
        if not workloads.is_admitted(workload):
            workload = self._not_admitted(workload)
        if workloads.has_reservation(workload):
            self._reserved(workload)

    @staticmethod
    def _orphaned(workload: Obj) -> bool:
        metadata = workload["metadata"]
        if metadata.get("ownerReferences"):
            return False
        return "deletionTimestamp" in metadata or bool(labels_of(workload).get(JOB_UID_LABEL))

    def _finalize_orphan(self, workload: Obj) -> bool:
        """Finish or release a Workload without an owner; True if no further step is due."""
        finalize_orphan(self.context, workload, may_finish=True)
        return "deletionTimestamp" in workload["metadata"]

    def _active(self, workload: Obj) -> bool:
        context = self.context
        if conditions.is_true(workload, workloads.DEACTIVATION):
            context.update(workload | {"spec": spec_of(workload) | {"active": False}})
            return True
        moment = workloads.requeue_at(workload)
        if moment is not None:
            wait_s = (moment - context.now).total_seconds()
            if wait_s > 0:
                self.queue.add(key_of(workload), wait_s)
                return True
            if workloads.phase(workload) == "pending":
                context.edit(workload, _clear_backoff)
                fresh = context.workload(key_of(workload))
                if fresh is not None:
                    self.loop.offer(fresh)
                return True
        requeued = conditions.find(workload, workloads.REQUEUED)
        if requeued is None or requeued["status"] != "False":
            return False
        reason = requeued["reason"]
        if reason == "Deactivated":
            return self._requeue(workload, "Reactivated", "The workload was reactivated")
        if reason in {"PodsReadyTimeout", "AdmissionCheck"}:
            return self._requeue(workload, "BackoffFinished", "The workload backoff was finished")
        return False

    def _requeue(self, workload: Obj, reason: str, message: str) -> bool:
        now, generation = self.context.now, workloads.generation(workload)

        def change(status: Obj) -> bool:
            _clear_backoff(status)
            return conditions.put(status, workloads.REQUEUED, True, reason, message, now, generation)

        self.context.edit(workload, change)
        return True

    def _inactive(self, workload: Obj) -> bool:
        target = conditions.find(workload, workloads.DEACTIVATION)
        if workloads.is_evicted(workload):
            if not workloads.status_of(workload).get("requeueState"):
                return False
            status = {name: value for name, value in workloads.status_of(workload).items() if name != "requeueState"}
            self.context.update(workload | {"status": status}, "status")
            return True
        message, cause = "The workload is deactivated", ""
        if target is not None:
            message, cause = f"{message} due to {target['message']}", target["reason"]

        def prepare(status: Obj) -> None:
            conditions.drop(status, workloads.DEACTIVATION)
            status.pop("requeueState", None)

        self.evict(workload, "Deactivated", message, cause, prepare)
        return True

    def evict(self, workload: Obj, reason: str, message: str, cause: str = "", prepare: Any = None) -> None:
        """Tell a Workload to leave."""
        context, now = self.context, self.context.now
        held = "admission" in workloads.status_of(workload)

        def change(status: Obj) -> bool:
            if prepare is not None:
                prepare(status)
            workloads.evict(status, reason, message, cause, now, workloads.generation(workload))
            return True

        written = context.edit(workload, change)
        if written is not None and held:
            told = f"EvictedDueTo{reason}" + (f"DueTo{cause}" if reason == "Deactivated" and cause else "")
            context.recorder.event(written, "Normal", told, message, REPORTER)

    def _queue_restarted(self, workload: Obj) -> bool:
        requeued = conditions.find(workload, workloads.REQUEUED)
        if requeued is None or requeued["status"] != "False":
            return False
        for reason, kind, queue in (
            ("LocalQueueStopped", "LocalQueue", self.context.local_queue(workload)),
            ("ClusterQueueStopped", "ClusterQueue", self.context.cluster_queue(workload)),
        ):
            if (
                requeued["reason"] == reason
                and queue is not None
                and spec_of(queue).get("stopPolicy", "None") == "None"
            ):
                message = f"The {kind} was restarted after being stopped"
                return self._requeue(workload, f"{kind}Restarted", message)
        return False

    def _gates(self, workload: Obj) -> bool:
        """The condition follows the annotation admission-gated-by."""
        context = self.context
        found = conditions.find(workload, workloads.QUOTA_RESERVED)
        told, gated = found is not None and found["reason"] == "AdmissionGated", workloads.is_gated(workload)
        if gated == told:
            return False
        gates = annotations_of(workload).get(GATED_BY, "")
        now, generation = context.now, workloads.generation(workload)
        if gated:
            reason, message, event = "AdmissionGated", f"Admission is gated by: {gates}", "AdmissionGated"
            text = f"Workload admission is gated by: {gates}"
        else:
            reason, message = "Pending", "AdmissionGatedBy cleared, waiting for quota reservation"
            event, text = "AdmissionGateCleared", "Admission gate cleared, workload is now admissible"
        context.edit(workload, lambda status: workloads.unset_reservation(status, reason, message, now, generation))
        context.recorder.event(workload, "Normal", event, text, REPORTER)
        return True

    def _checks(self, workload: Obj) -> bool:
        """Every check of the queue has an entry, and no others."""
        context = self.context
        queue = context.cluster_queue(workload)
        found = context.state.queues.get(queue["metadata"]["name"]) if queue is not None else None
        if found is None:
            return False
        status = workloads.status_of(workload)
        wanted = found.checks_for(status.get("admission"))
        held = {each["name"]: each for each in status.get("admissionChecks") or []}
        if set(wanted) == held.keys():
            return False
        now = stamp(context.now)
        entries = [
            held.get(name) or {"lastTransitionTime": now, "message": "", "name": name, "state": "Pending"}
            for name in wanted
        ]
        rest = {name: value for name, value in status.items() if name != "admissionChecks"}
        context.update(workload | {"status": rest | ({"admissionChecks": entries} if entries else {})}, "status")
        return True

    def _blocker(self, workload: Obj) -> str:
        """The fault of its queues; "" without one."""
        local = self.context.local_queue(workload)
        name = spec_of(workload).get("queueName", "")
        if local is None:
            return f"LocalQueue {name} doesn't exist"
        if spec_of(local).get("stopPolicy", "None") != "None":
            return f"LocalQueue {name} is inactive"
        queue = target_of(local)
        if queue not in self.context.state.queues:
            return f"ClusterQueue {queue} doesn't exist"
        return "" if self.context.state.is_active(queue) else f"ClusterQueue {queue} is inactive"

    def _not_admitted(self, workload: Obj) -> Obj:
        context, now, generation = self.context, self.context.now, workloads.generation(workload)
        blocker = "" if workloads.has_reservation(workload) else self._blocker(workload)

        def change(status: Obj) -> bool:
            changed = False
            if blocker:
                kind = workloads.QUOTA_RESERVED
                changed = conditions.put(status, kind, False, "Inadmissible", blocker, now, generation)
            return workloads.sync_admitted(status, now, generation) or changed

        written = context.edit(workload, change)
        if written is None:
            return workload
        if workloads.is_admitted(written):
            reserved = conditions.find(written, workloads.QUOTA_RESERVED)
            waited = (now - conditions.since(reserved)).total_seconds() if reserved else 0.0
            queue = written["status"]["admission"]["clusterQueue"]
            text = (
                f"Admitted by ClusterQueue {queue}, wait time since reservation was {workloads.whole_seconds(waited)}s"
            )
            context.recorder.event(written, "Normal", "Admitted", text, REPORTER)
        return written

    def _reserved(self, workload: Obj) -> None:
        if self._failed_checks(workload):
            return
        for kind, queue in (
            ("LocalQueue", self.context.local_queue(workload)),
            ("ClusterQueue", self.context.cluster_queue(workload)),
        ):
            if self._stopped(workload, kind, queue):
                return
        waits = [each for each in (self._not_ready(workload), self._too_long(workload)) if each > 0]
        if waits:
            self.queue.add(key_of(workload), min(waits))

    def _failed_checks(self, workload: Obj) -> bool:
        if workloads.is_evicted(workload):
            return False
        rejected, retry = workloads.checks(workload, "Rejected"), workloads.checks(workload, "Retry")
        if rejected:
            message = workloads.checks_message(rejected, "Rejected")
            now, generation = self.context.now, workloads.generation(workload)
            kind = workloads.DEACTIVATION
            self.context.edit(
                workload, lambda status: conditions.put(status, kind, True, "AdmissionCheck", message, now, generation)
            )
            text = f"Deactivated due to {message}"
            self.context.recorder.event(workload, "Warning", "AdmissionCheckRejected", text, REPORTER)
            return True
        if retry:
            message = f"Evicted due to {workloads.checks_message(retry, 'Retry')}"
            self.evict(workload, "AdmissionCheck", message)
            return True
        return False

    def _stopped(self, workload: Obj, kind: str, queue: Obj | None) -> bool:
        policy = spec_of(queue).get("stopPolicy", "None") if queue is not None else "None"
        if workloads.is_admitted(workload):
            if policy != "HoldAndDrain" or workloads.is_evicted(workload):
                return False
            self.evict(workload, f"{kind}Stopped", f"The {kind} is stopped")
            return True
        name = spec_of(workload).get("queueName", "")
        if kind == "ClusterQueue":
            name = workloads.status_of(workload).get("admission", {}).get("clusterQueue", "")
        if queue is None or "deletionTimestamp" in queue["metadata"]:
            message = f"{kind} {name} is terminating or missing"
        elif policy != "None":
            message = f"{kind} {name} is stopped"
        else:
            return False
        now, generation = self.context.now, workloads.generation(workload)
        self.context.edit(
            workload, lambda status: workloads.unset_reservation(status, "Inadmissible", message, now, generation)
        )
        return True

    def _not_ready(self, workload: Obj) -> float:
        """Seconds until its pods are late; evicts or deactivates it if they are."""
        waits = self.context.config.wait_for_pods_ready
        if waits is None or workloads.is_evicted(workload) or not workloads.is_active(workload):
            return 0.0
        ready = conditions.find(workload, workloads.PODS_READY)
        if not workloads.is_admitted(workload) or (ready is not None and ready["status"] == "True"):
            return 0.0
        cause = ready["reason"] if ready is not None else "WaitForStart"
        since = ready if cause == "WaitForRecovery" else conditions.find(workload, workloads.ADMITTED)
        limit_s = waits.limit_s(cause)
        if since is None or not limit_s:
            return 0.0
        now = self.context.now
        left_s = limit_s - (now - conditions.since(since)).total_seconds()
        if left_s > 0:
            return left_s
        count = (workloads.status_of(workload).get("requeueState") or {}).get("count", 0)
        if waits.backoff_limit is not None and count + 1 > waits.backoff_limit:
            generation, kind = workloads.generation(workload), workloads.DEACTIVATION
            message = "exceeding the maximum number of re-queuing retries"
            self.context.edit(
                workload,
                lambda status: conditions.put(status, kind, True, "RequeuingLimitExceeded", message, now, generation),
            )
            return 0.0
        message = f"Exceeded the PodsReady timeout {'/'.join(key_of(workload))}"
        base_s, max_s = waits.backoff_base_s, waits.backoff_max_s
        self.evict(
            workload,
            "PodsReadyTimeout",
            message,
            cause,
            lambda status: workloads.count_requeue(status, now, base_s, max_s),
        )
        return 0.0

    def _too_long(self, workload: Obj) -> float:
        """Seconds until its maximum execution time is over; deactivates it if it is."""
        limit_s = spec_of(workload).get("maximumExecutionTimeSeconds")
        admitted = conditions.find(workload, workloads.ADMITTED)
        if limit_s is None or admitted is None or admitted["status"] != "True":
            return 0.0
        past_s = workloads.status_of(workload).get("accumulatedPastExecutionTimeSeconds", 0)
        over = conditions.since(admitted) + timedelta(seconds=limit_s - past_s)
        left_s = (over - self.context.now).total_seconds()
        if left_s > 0:
            return left_s
        if conditions.is_true(workload, workloads.DEACTIVATION):
            return 0.0
        now, generation, kind = self.context.now, workloads.generation(workload), workloads.DEACTIVATION

        def change(status: Obj) -> bool:
            status.pop("accumulatedPastExecutionTimeSeconds", None)
            message = "exceeding the maximum execution time"
            return conditions.put(status, kind, True, MAX_EXECUTION, message, now, generation)

        self.context.edit(workload, change)
        text = f"The maximum execution time ({limit_s}s) exceeded"
        self.context.recorder.event(workload, "Warning", MAX_EXECUTION, text, REPORTER, MAX_EXECUTION)
        return 0.0


def _put_off(status: Obj, moment: str) -> bool:
    state = status.setdefault("requeueState", {})
    if state.get("requeueAt", "") >= moment:
        return False
    state["requeueAt"] = moment
    return True


def _clear_backoff(status: Obj) -> bool:
    state = status.get("requeueState")
    if not state or "requeueAt" not in state:
        return False
    left = {name: value for name, value in state.items() if name != "requeueAt"}
    if left:
        status["requeueState"] = left
    else:
        del status["requeueState"]
    return True
