"""Statuses of ClusterQueues and LocalQueues, written in batches; finalizers of the objects in their references."""

from __future__ import annotations

from typing import Any

from apiserver.errors import StatusError
from apiserver.kueue import conditions, workloads
from apiserver.kueue.context import Context
from apiserver.kueue.info import Key
from apiserver.kueue.names import CHECKS, CLUSTER_QUEUES, FLAVORS, IN_USE, LOCAL_QUEUES, key_of, spec_of, target_of
from apiserver.kueue.quota import Usage
from apiserver.kueue.workqueue import WorkQueue

Obj = dict[str, Any]


class QueueStatus:
    """Keeps the statuses of queues."""

    def __init__(self, context: Context) -> None:
        self.context = context
        delay_s = context.config.delays.reconcile_s
        self.queues: WorkQueue[str] = WorkQueue(context.timeline, delay_s, self.reconcile)
        self.local: WorkQueue[Key] = WorkQueue(context.timeline, delay_s, self.reconcile_local)
        held_s = context.config.delays.held_s
        self.flavors: WorkQueue[str] = WorkQueue(context.timeline, held_s, self.reconcile_flavor)
        self.checks: WorkQueue[str] = WorkQueue(context.timeline, held_s, self.reconcile_check)

    def clear(self) -> None:
        """Stop."""
        for queue in (self.queues, self.local, self.flavors, self.checks):
            queue.clear()

    def workload_changed(self, *versions: Obj | None) -> None:
        """Counts have changed: they are written with the next batch."""
        batch_s = self.context.config.delays.status_s
        for each in versions:
            if each is None:
                continue
            queue = (each["metadata"]["namespace"], spec_of(each).get("queueName", ""))
            self.local.add(queue, batch_s)
            admission = workloads.status_of(each).get("admission")
            found = self.context.store.get(LOCAL_QUEUES, *queue)
            for name in {(admission or {}).get("clusterQueue"), target_of(found) if found else None}:
                if name:
                    self.queues.add(name, batch_s)

    def reconcile(self, name: str) -> None:
        """Finalizer and status of a ClusterQueue."""
        context = self.context
        obj = context.store.get(CLUSTER_QUEUES, "", name)
        queue = context.state.queues.get(name)
        if obj is None or queue is None:
            return
        if "deletionTimestamp" in obj["metadata"]:
            if not queue.workloads:
                self._finalizer(CLUSTER_QUEUES, obj, wanted=False)
                return
        elif self._finalizer(CLUSTER_QUEUES, obj, wanted=True):
            return
        pending = context.pending.get(name)
        active, reason, message = context.state.readiness(queue)
        status: Obj = dict(obj.get("status") or {})
        status["conditions"] = [dict(each) for each in status.get("conditions") or []]
        conditions.put(status, "Active", active, reason, message, context.now, obj["metadata"].get("generation", 0))
        status |= {
            "admittedWorkloads": queue.admitted_count,
            "flavorsReservation": context.state.usage_of(queue, queue.node.usage),
            "flavorsUsage": context.state.usage_of(queue, queue.admitted),
            "pendingWorkloads": len(pending) if pending is not None else 0,
            "reservingWorkloads": len(queue.workloads),
        }
        self._write(CLUSTER_QUEUES, obj, status)

    def reconcile_local(self, key: Key) -> None:
        """Status of a LocalQueue."""
        context = self.context
        obj = context.store.get(LOCAL_QUEUES, *key)
        if obj is None:
            return
        target = target_of(obj)
        cluster_queue = context.store.get(CLUSTER_QUEUES, "", target)
        if spec_of(obj).get("stopPolicy", "None") != "None":
            condition = (False, "Stopped", "LocalQueue is stopped")
        elif cluster_queue is None:
            condition = (False, "ClusterQueueDoesNotExist", "Can't submit new workloads to clusterQueue")
        elif conditions.is_true(cluster_queue, "Active"):
            condition = (True, "Ready", "Can submit new workloads to localQueue")
        else:
            condition = (False, "ClusterQueueIsInactive", "Can't submit new workloads to clusterQueue")
        status: Obj = dict(obj.get("status") or {})
        status["conditions"] = [dict(each) for each in status.get("conditions") or []]
        conditions.put(status, "Active", *condition, context.now, obj["metadata"].get("generation", 0))
        self._write(LOCAL_QUEUES, obj, status | self._local_counts(key, target))

    def _local_counts(self, key: Key, target: str) -> Obj:
        context = self.context
        queue = context.state.queues.get(target)
        if queue is None:
            return {"admittedWorkloads": 0, "pendingWorkloads": 0, "reservingWorkloads": 0}
        reserved: Usage = {}
        admitted: Usage = {}
        counts = {"admittedWorkloads": 0, "pendingWorkloads": 0, "reservingWorkloads": 0}
        pending = context.pending.get(target)
        for each in context.by_queue.get(key, ()):
            info = queue.workloads.get(each)
            if info is None:
                waits = pending is not None and (
                    each in pending.waiting
                    or each in pending.aside
                    or (pending.inflight is not None and pending.inflight.key == each)
                )
                counts["pendingWorkloads"] += waits
                continue
            is_admitted = workloads.is_admitted(info.obj)
            counts["reservingWorkloads"] += 1
            counts["admittedWorkloads"] += is_admitted
            for fr, value in info.usage().items():
                reserved[fr] = reserved.get(fr, 0) + value
                admitted[fr] = admitted.get(fr, 0) + (value if is_admitted else 0)
        return counts | {
            "flavorsReservation": context.state.usage_of(queue, reserved, borrowed=False),
            "flavorsUsage": context.state.usage_of(queue, admitted, borrowed=False),
        }

    def reconcile_flavor(self, name: str) -> None:
        """A flavor is held while a queue refers to it."""
        obj = self.context.store.get(FLAVORS, "", name)
        if obj is None:
            return
        deleted = "deletionTimestamp" in obj["metadata"]
        used = any(name in queue.flavor_names() for queue in self.context.state.queues.values())
        if not deleted or not used:
            self._finalizer(FLAVORS, obj, wanted=not deleted)

    def reconcile_check(self, name: str) -> None:
        """A check is held while a queue refers to it."""
        obj = self.context.store.get(CHECKS, "", name)
        if obj is None:
            return
        deleted = "deletionTimestamp" in obj["metadata"]
        used = any(name in queue.check_names() for queue in self.context.state.queues.values())
        if not deleted or not used:
            self._finalizer(CHECKS, obj, wanted=not deleted)

    def _finalizer(self, resource: str, obj: Obj, *, wanted: bool) -> bool:
        """Put or take Kueue's finalizer; True if it was written."""
        held = obj["metadata"].get("finalizers") or []
        if (IN_USE in held) == wanted:
            return False
        names = [*held, IN_USE] if wanted else [each for each in held if each != IN_USE]
        metadata = {key: value for key, value in obj["metadata"].items() if key != "finalizers"}
        try:
            self.context.client().update(
                resource, obj | {"metadata": metadata | ({"finalizers": names} if names else {})}
            )
        except StatusError:
            return False
        return True

    def _write(self, resource: str, obj: Obj, status: Obj) -> None:
        if status == obj.get("status"):
            return
        try:
            self.context.client().update(resource, obj | {"status": status}, "status")
        except StatusError:
            namespace, name = key_of(obj)
            (self.local.add((namespace, name)) if namespace else self.queues.add(name))
