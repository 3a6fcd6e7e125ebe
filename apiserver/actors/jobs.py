"""The Job controller of kube-controller-manager."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from apiserver.actors import job_status
from apiserver.actors.base import Actor
from apiserver.actors.job_status import Backoff, End, counts_as_failed, index_of, is_finished, is_tracked
from apiserver.actors.objects import Name, controller_of, delete, name_of, patch
from apiserver.actors.pod_status import condition, is_active, is_ready, is_terminal, is_terminating, phase_of
from apiserver.actors.queue import WorkQueue
from apiserver.actors.recorder import Recorder
from apiserver.actors.timing import JOB_BATCH_S, JOB_LAST_RETRY_S, JOB_RETRY_S, JOB_SYNC_S, JOB_WRITE_S
from apiserver.store import Event
from apiserver.timeline import parse_stamp, stamp
from apiserver.users import service_account

Obj = dict[str, Any]


@dataclass(slots=True)
class _Sync:
    """One look at a Job and its pods, and the pending writes."""

    job: Obj  # with a status of its own that is changed in place
    pods: list[Obj]
    active: list[Obj]
    newly_succeeded: list[Obj]
    newly_failed: list[Obj]
    backoff: Backoff
    ready: int = 0
    terminating: int = 0
    succeeded: int = 0
    failed: int = 0
    indexes: set[int] = field(default_factory=set)
    end: End | None = None
    changed: bool = False

    @property
    def status(self) -> Obj:
        """The status to be written."""
        found: Obj = self.job["status"]
        return found

    @property
    def uncounted(self) -> Obj:
        """Ended pods outside the counters so far."""
        found: Obj = self.status["uncountedTerminatedPods"]
        return found


class JobController(Actor):
    """Creates, counts and deletes the pods of Jobs naming no other controller, and removes Jobs after their TTL."""

    user = service_account("kube-system", "job-controller")
    manager = "kube-controller-manager"

    def start(self) -> None:
        """Follow Jobs and pods."""
        self._store = self.server.store
        self._timeline = self.clock
        self._events = Recorder(self.client, self._timeline, "job-controller")
        retries = (JOB_RETRY_S, JOB_LAST_RETRY_S)
        self._queue: WorkQueue[Name] = WorkQueue(self._timeline, self._sync, JOB_SYNC_S, *retries)
        self._orphans: WorkQueue[Name] = WorkQueue(self._timeline, self._sync_orphan, 0.0, *retries)
        self._backoffs: dict[str, Backoff] = {}
        self._pods: dict[str, dict[Name, Obj]] = {}  # by uid of their Job
        self.follow("jobs.batch", self._on_job)
        self.follow("pods", self._on_pod)

    def _on_job(self, event: Event) -> None:
        key = name_of(event.obj)
        if event.type == "DELETED":
            self._backoffs.pop(event.obj["metadata"]["uid"], None)
            for pod in self._pods.pop(event.obj["metadata"]["uid"], {}):
                self._orphans.add(pod)
        elif event.old is None or event.old.obj["metadata"].get("generation") != event.obj["metadata"].get(
            "generation"
        ):
            self._queue.add(key)
            self._at_deadline(key, event.obj)
        else:
            self._queue.add_after(key, JOB_BATCH_S)
            self._at_deadline(key, event.obj)

    def _at_deadline(self, key: Name, job: Obj) -> None:
        seconds, started = job["spec"].get("activeDeadlineSeconds"), (job.get("status") or {}).get("startTime")
        if seconds is not None and started is not None and not is_finished(job):
            self._queue.add_after(key, seconds - (self._timeline.now - parse_stamp(started)).total_seconds())

    def _on_pod(self, event: Event) -> None:
        pod = event.obj
        owner = controller_of(pod)
        if owner is None or owner["kind"] != "Job":
            if event.type != "DELETED" and is_tracked(pod):
                self._orphans.add(name_of(pod))
            if event.old is None or (owner := controller_of(event.old.obj)) is None or owner["kind"] != "Job":
                return
            self._pods.get(owner["uid"], {}).pop(name_of(pod), None)
            return
        held = self._pods.setdefault(owner["uid"], {})
        if event.type == "DELETED":
            held.pop(name_of(pod), None)
        else:
            held[name_of(pod)] = pod
        key = (pod["metadata"]["namespace"], owner["name"])
        if self._is_counted(pod):
            self._queue.add_after(key, JOB_BATCH_S)
        elif event.type != "DELETED" and is_tracked(pod):
            self._orphans.add(name_of(pod))

    def _is_counted(self, pod: Obj) -> bool:
        """True if an unfinished Job counts the pod."""
        owner = controller_of(pod)
        if owner is None or owner["kind"] != "Job":
            return False
        job = self._store.get("jobs.batch", pod["metadata"]["namespace"], owner["name"])
        return job is not None and job["metadata"]["uid"] == owner["uid"] and not is_finished(job)

    def _sync_orphan(self, key: Name) -> None:
        """Remove the finalizer of a pod counted by no Job."""
        pod = self._store.get("pods", *key)
        if pod is not None and is_tracked(pod) and not self._is_counted(pod):
            self._release([pod])

    def _sync(self, key: Name) -> Iterator[float]:
        job = self._store.get("jobs.batch", *key)
        if job is None or job["spec"].get("managedBy") not in {None, job_status.OWN_CONTROLLER}:
            return
        if is_finished(job):
            self._backoffs.pop(job["metadata"]["uid"], None)
            self._expire(job)
            return
        sync = self._look(job)
        self._decide_end(sync)
        old = job.get("status") or {}
        if sync.end is not None:
            yield from self._delete_pods(sync, sync.active, release=False)
        else:
            if not is_terminating(job):
                yield from self._manage(sync)
            self._conclude(sync)
        status = sync.status
        counts = {"active": len(sync.active), "ready": sync.ready, "terminating": sync.terminating}
        sync.changed |= any(old.get(name, 0 if name == "active" else None) != value for name, value in counts.items())
        status |= counts
        if not status["active"]:
            del status["active"]
        yield from self._track(sync)

    def _look(self, job: Obj) -> _Sync:
        """Count the pods."""
        status = dict(job.get("status") or {})
        status["uncountedTerminatedPods"] = dict(status.get("uncountedTerminatedPods") or {})
        status["conditions"] = list(status.get("conditions") or [])
        job = job | {"status": status}
        pods = sorted(
            self._pods.get(job["metadata"]["uid"], {}).values(), key=lambda pod: (index_of(pod), name_of(pod))
        )
        uncounted = {uid for each in status["uncountedTerminatedPods"].values() for uid in each}
        fresh = [pod for pod in pods if is_tracked(pod) and pod["metadata"]["uid"] not in uncounted]
        succeeded = [pod for pod in fresh if phase_of(pod) == "Succeeded"]
        failed = [pod for pod in fresh if counts_as_failed(pod, job)]
        backoff = self._backoffs.get(job["metadata"]["uid"], Backoff()).after(succeeded, failed)
        sync = _Sync(job, pods, [pod for pod in pods if is_active(pod)], succeeded, failed, backoff)
        sync.ready = sum(map(is_ready, sync.active))
        sync.terminating = sum(is_terminating(pod) and not is_terminal(pod) for pod in pods)
        held = status["uncountedTerminatedPods"]
        counted = [pod for pod in failed if job_status.policy_action(job, pod) != "Ignore"]
        sync.failed = status.get("failed", 0) + len(counted) + len(held.get("failed", ()))
        if job["spec"].get("completionMode") == "Indexed":
            sync.indexes = job_status.parse_indexes(status.get("completedIndexes", ""))
            top = job["spec"].get("completions") or 0
            sync.indexes |= {index_of(pod) for pod in succeeded if 0 <= index_of(pod) < top}
            sync.succeeded = len(sync.indexes)
        else:
            sync.succeeded = status.get("succeeded", 0) + len(succeeded) + len(held.get("succeeded", ()))
        if "startTime" not in status and not job["spec"].get("suspend"):
            status["startTime"] = stamp(self._timeline.now)
            self._at_deadline(name_of(job), job)
        return sync

    def _decide_end(self, sync: _Sync) -> None:
        """Set the end of the Job if a past event causes it."""
        job, spec = sync.job, sync.job["spec"]
        sync.end = job_status.announced_end(job) or job_status.policy_failure(job, sync.pods)
        if sync.end is not None:
            return
        if sync.failed > spec.get("backoffLimit", 6):
            sync.end = job_status.failure("BackoffLimitExceeded", job_status.LIMIT_TEXT)
        elif spec.get("activeDeadlineSeconds") is not None and not spec.get("suspend"):
            active_s = (self._timeline.now - parse_stamp(sync.status["startTime"])).total_seconds()
            if active_s >= spec["activeDeadlineSeconds"]:
                sync.end = job_status.failure("DeadlineExceeded", job_status.DEADLINE_TEXT)
            else:
                self._at_deadline(name_of(job), job)

    def _manage(self, sync: _Sync) -> Iterator[float]:
        """Create or delete pods up to the wanted number."""
        spec = sync.job["spec"]
        if spec.get("suspend"):
            yield from self._delete_pods(sync, sorted(sync.active, key=job_status.removal_order), release=True)
            return
        parallelism = spec.get("parallelism", 1)
        if spec.get("completions") is None:
            wanted = len(sync.active) if sync.succeeded else parallelism
        else:
            wanted = max(min(spec["completions"] - sync.succeeded, parallelism), 0)
        excess = len(sync.active) - wanted
        if excess > 0:
            removed = sorted(sync.active, key=job_status.removal_order)[:excess]
            yield from self._delete_pods(sync, removed, release=True)
            return
        stopping = sync.terminating if job_status.replaces_only_failed(sync.job) else 0
        missing = wanted - len(sync.active) - stopping
        if missing <= 0:
            return
        wait_s = sync.backoff.left_s(self._timeline.now)
        if wait_s > 0:
            self._queue.add_after(name_of(sync.job), wait_s)
            return
        indexes: Sequence[int | None] = [None] * missing
        if spec.get("completionMode") == "Indexed":
            taken = sync.indexes | {index_of(pod) for pod in sync.active}
            indexes = job_status.missing_indexes(sync.job, taken, missing)
        for index in indexes:
            pod = self.client.create("pods", job_status.pod_of(sync.job, index))
            sync.active.append(pod)
            self._events.normal(sync.job, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")
            yield JOB_WRITE_S

    def _delete_pods(self, sync: _Sync, pods: Sequence[Obj], *, release: bool) -> Iterator[float]:
        """Delete pods; with `release` they are not counted any more."""
        if release:
            for pod in filter(is_tracked, pods):
                self._release([pod])
                yield JOB_WRITE_S
        for pod in pods:
            if delete(self.client, "pods", pod):
                self._events.normal(sync.job, "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")
                sync.terminating += 1
                sync.ready -= is_ready(pod)
                yield JOB_WRITE_S
        gone = {pod["metadata"]["uid"] for pod in pods}
        sync.active = [pod for pod in sync.active if pod["metadata"]["uid"] not in gone]

    def _conclude(self, sync: _Sync) -> None:
        """The end by success, and the condition of suspension."""
        spec = sync.job["spec"]
        if spec.get("completions") is None:
            complete = sync.succeeded > 0 and not sync.active
        else:
            complete = sync.succeeded >= spec["completions"] and not sync.active
        if complete:
            sync.end = job_status.success()
        elif spec.get("suspend"):
            if not sync.active and self._set(sync, "Suspended", "True", "JobSuspended", "Job suspended"):
                sync.status.pop("startTime", None)
                self._events.normal(sync.job, "Suspended", "Job suspended")
        elif condition(sync.job, "Suspended") and self._set(sync, "Suspended", "False", "JobResumed", "Job resumed"):
            sync.status["startTime"] = stamp(self._timeline.now)
            self._at_deadline(name_of(sync.job), sync.job)
            self._events.normal(sync.job, "Resumed", "Job resumed")

    def _set(self, sync: _Sync, name: str, value: str, reason: str, message: str) -> bool:
        """Set a condition; False if it was so already."""
        if condition(sync.job, name).get("status") == value:
            return False
        now = stamp(self._timeline.now)
        new = {"type": name, "status": value, "lastProbeTime": now, "lastTransitionTime": now}
        new |= {"reason": reason, "message": message}
        sync.status["conditions"] = [each for each in sync.status["conditions"] if each["type"] != name] + [new]
        sync.changed = True
        return True

    def _track(self, sync: _Sync) -> Iterator[float]:
        """Note the ended pods, then release and count them: two writes, against a double count."""
        job, end = sync.job, sync.end
        over = []
        sync.changed |= self._count(sync)
        for pod in sync.pods:
            failed = counts_as_failed(pod, job)
            leaving = is_terminating(job) or end is not None or phase_of(pod) == "Succeeded"
            if is_tracked(pod) and (leaving or failed):
                over.append(pod)
                self._note(sync, pod, failed=failed)
        if job["spec"].get("completionMode") == "Indexed":
            text = job_status.indexes_text(sync.indexes)
            sync.changed |= text != sync.status.get("completedIndexes", "")
            sync.status.update({"completedIndexes": text, "succeeded": len(sync.indexes)})
            if not sync.indexes:
                del sync.status["succeeded"], sync.status["completedIndexes"]
        if end is not None:
            self._set(sync, end.target, "True", end.reason, end.message)
        if sync.changed:
            self._write(sync)
            yield JOB_WRITE_S
        self._backoffs[job["metadata"]["uid"]] = sync.backoff
        for pod in over:
            self._release([pod])
            yield JOB_WRITE_S
        released = {pod["metadata"]["uid"] for pod in over}
        again = self._count(sync, released)
        finished = self._finish(sync)
        if again or finished:
            self._write(sync)
        if finished and end is not None:
            if end.final == "Complete":
                self._events.normal(job, "Completed", "Job completed")
            else:
                self._events.warning(job, end.reason, end.message)

    def _note(self, sync: _Sync, pod: Obj, *, failed: bool) -> None:
        """Put a pod among those to be counted."""
        uid, uncounted = pod["metadata"]["uid"], sync.uncounted
        if uid in uncounted.get("failed", ()) or uid in uncounted.get("succeeded", ()):
            return
        if phase_of(pod) == "Succeeded":
            if sync.job["spec"].get("completionMode") == "Indexed":
                return  # its index says so
            uncounted["succeeded"] = [*uncounted.get("succeeded", ()), uid]
        elif failed or (sync.end is not None and sync.end.final == "Failed"):
            if sync.job["spec"].get("podFailurePolicy") and job_status.policy_action(sync.job, pod) == "Ignore":
                return
            uncounted["failed"] = [*uncounted.get("failed", ()), uid]
        else:
            return
        sync.changed = True

    def _count(self, sync: _Sync, released: frozenset[str] | set[str] = frozenset()) -> bool:
        """Move pods without a finalizer from the uncounted ones into the counters."""
        tracked = {pod["metadata"]["uid"] for pod in sync.pods if is_tracked(pod)} - released
        moved = False
        for name in ("succeeded", "failed"):
            waiting = sync.uncounted.get(name, [])
            left = [uid for uid in waiting if uid in tracked]
            if len(left) == len(waiting):
                continue
            moved = True
            sync.status[name] = sync.status.get(name, 0) + len(waiting) - len(left)
            sync.uncounted.pop(name)
            if left:
                sync.uncounted[name] = left
        return moved

    def _finish(self, sync: _Sync) -> bool:
        """State the end once all pods are counted and gone."""
        if sync.end is None or sync.uncounted or sync.terminating:
            return False
        self._set(sync, sync.end.final, "True", sync.end.reason, sync.end.message)
        if sync.end.final == "Complete":
            sync.status["completionTime"] = stamp(self._timeline.now)
        return True

    def _write(self, sync: _Sync) -> None:
        status = {name: value for name, value in sync.status.items() if value != [] or name != "conditions"}
        stored = self.client.update("jobs.batch", sync.job | {"status": status}, "status")
        sync.job = sync.job | {"metadata": stored["metadata"]}

    def _release(self, pods: Sequence[Obj]) -> None:
        """Remove the tracking finalizer of pods."""
        for pod in pods:
            left = [each for each in pod["metadata"].get("finalizers") or [] if each != job_status.TRACKING]
            patch(self.client, "pods", pod, {"metadata": {"finalizers": left or None}})

    def _expire(self, job: Obj) -> None:
        """Delete a finished Job at the end of its TTL (the TTL-after-finished controller)."""
        ttl_s = job["spec"].get("ttlSecondsAfterFinished")
        if ttl_s is None or is_terminating(job):
            return
        ends = [condition(job, name).get("lastTransitionTime") for name in ("Complete", "Failed")]
        left_s = ttl_s - (self._timeline.now - parse_stamp(max(filter(None, ends)))).total_seconds()
        if left_s > 0:
            self._queue.add_after(name_of(job), left_s)
        else:
            delete(self.client, "jobs.batch", job, propagation="Background")
