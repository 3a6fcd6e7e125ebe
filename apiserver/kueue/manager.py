"""The manager of Kueue: its controllers on one server, driven by changes; it may go down and come back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from apiserver.actors.base import Actor
from apiserver.kueue import workloads
from apiserver.kueue.admission_loop import AdmissionLoop
from apiserver.kueue.batch_jobs import BatchJob
from apiserver.kueue.config import Config
from apiserver.kueue.context import PROCESS, USER, Context
from apiserver.kueue.jobs import Busy, Job, JobReconciler
from apiserver.kueue.names import (
    CHECKS,
    CLUSTER_QUEUES,
    COHORTS,
    FLAVORS,
    IS_GROUP,
    JOBS,
    LOCAL_QUEUES,
    MANAGED,
    MANAGER,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    STATEFUL_SETS,
    SUSPENDED_BY,
    TOPOLOGIES,
    WORKLOADS,
    annotations_of,
    controller_of,
    group_name,
    key_of,
    labels_of,
    queue_name,
    spec_of,
    target_of,
)
from apiserver.kueue.pod_jobs import PodGroup, SinglePod, terminated
from apiserver.kueue.queue_status import QueueStatus
from apiserver.kueue.stateful_sets import StatefulSets
from apiserver.kueue.topology_ungater import Ungater
from apiserver.kueue.webhooks import KueueWebhooks
from apiserver.kueue.workload_controller import WorkloadController
from apiserver.kueue.workqueue import WorkQueue
from apiserver.store import Event

if TYPE_CHECKING:
    from apiserver.server import Server

Obj = dict[str, Any]
JobKey = tuple[str, str, str]  # kind (Job, Pod or Group), namespace, name
FOLLOWED = (
    WORKLOADS,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    FLAVORS,
    CHECKS,
    COHORTS,
    TOPOLOGIES,
    PRIORITY_CLASSES,
    JOBS,
    PODS,
    STATEFUL_SETS,
    NODES,
    "namespaces",
)


class Kueue(Actor):
    """All controllers of Kueue. `webhooks` is its step of admission."""

    user = USER
    manager = MANAGER
    process = PROCESS

    def __init__(self, server: Server, config: Config | None = None) -> None:
        self.config = config or Config()
        self.webhooks = KueueWebhooks(self.config)
        self.context = Context(server, self.config)
        self.loop = AdmissionLoop(self.context)
        self.controller = WorkloadController(self.context, self.loop)
        self.status = QueueStatus(self.context)
        self.reconciler = JobReconciler(self.context)
        self.stateful_sets = StatefulSets(self.context)
        self.ungater = Ungater(self.context)
        delays = self.config.delays
        timeline = self.context.timeline
        self.jobs: WorkQueue[JobKey] = WorkQueue(timeline, delays.start_s, self._reconcile_job)
        self.sets: WorkQueue[tuple[str, str]] = WorkQueue(timeline, delays.reconcile_s, self.stateful_sets.reconcile)
        self.set_pods: WorkQueue[tuple[str, str]] = WorkQueue(
            timeline, delays.reconcile_s, self.stateful_sets.reconcile_pod
        )
        self.running = True
        super().__init__(server)

    def start(self) -> None:
        """Follow the resources in `FOLLOWED`."""
        for resource in FOLLOWED:
            self.follow(resource, self._changed)

    def stop(self) -> None:
        """The manager goes down: its webhooks fail, and nothing is reconciled."""
        self.running = False
        self.webhooks.down = True
        self.loop.clear()
        self.status.clear()
        for queue in (self.controller.queue, self.jobs, self.sets, self.set_pods):
            queue.clear()
        self.context.reset()

    def restart(self) -> None:
        """The manager comes back and reads everything again."""
        self.running = True
        self.webhooks.down = False
        store = self.server.store
        for resource in (FLAVORS, CHECKS, TOPOLOGIES, COHORTS, CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS):
            for obj in store.objects(resource):
                self._dispatch(resource, None, obj)
        for resource in (JOBS, PODS, STATEFUL_SETS):
            for obj in store.objects(resource):
                self._dispatch(resource, None, obj)

    def _changed(self, event: Event) -> None:
        if not self.running:
            return
        if event.type == "DELETED":
            self._dispatch(event.resource, event.obj, None)
        else:
            self._dispatch(event.resource, event.old.obj if event.old is not None else None, event.obj)

    def _dispatch(self, resource: str, old: Obj | None, new: Obj | None) -> None:
        handlers = {
            WORKLOADS: self._workload,
            CLUSTER_QUEUES: self._cluster_queue,
            LOCAL_QUEUES: self._local_queue,
            FLAVORS: self._flavor,
            CHECKS: self._check,
            COHORTS: self._cohort,
            TOPOLOGIES: self._topology,
            PRIORITY_CLASSES: self._priority_class,
            JOBS: self._job,
            PODS: self._pod,
            STATEFUL_SETS: self._stateful_set,
            NODES: self._node,
            "namespaces": self._namespace,
        }
        handlers[resource](old, new)

    # what changes, and which objects follow

    def _workload(self, old: Obj | None, new: Obj | None) -> None:
        self.controller.changed(old, new)
        self.status.workload_changed(old, new)
        workload = new or old
        if workload is None:
            return
        namespace = workload["metadata"]["namespace"]
        delay_s = self.config.delays.created_s if old is None else None
        if annotations_of(workload).get(IS_GROUP) == "true":
            self.jobs.add(("Group", namespace, workload["metadata"]["name"]), delay_s)
        owner = controller_of(workload)
        if owner is not None and owner["kind"] in {"Job", "Pod"}:
            key = (owner["kind"], namespace, owner["name"])
            self._look_for_owner(owner, namespace)
            if old is not None and workloads.has_reservation(old) and not workloads.has_reservation(workload):
                self.jobs.rest(key, self.config.delays.released_s)
            else:
                self.jobs.add(key, delay_s)
        for each in workload["metadata"].get("ownerReferences") or []:
            if each["kind"] == "StatefulSet":
                self.sets.add((namespace, each["name"]))
        if new is not None and workloads.is_admitted(new):
            self.ungater.workload(new)

    def _cluster_queue(self, old: Obj | None, new: Obj | None) -> None:
        state = self.context.state
        if new is None:
            if old is not None:
                state.drop_queue(old["metadata"]["name"])
                self._tell_local_queues(old["metadata"]["name"])
                self._release()
            return
        name = new["metadata"]["name"]
        spec_changed = old is None or spec_of(old) != spec_of(new)
        if spec_changed:
            state.put_queue(new)
            self.loop.pending(name)
            self.loop.retry_later(name)
            self.loop.wake()
            self._recount(name)
        else:
            state.queues[name].obj = new
        self.status.queues.add(name)
        if old is None or (old.get("status") or {}).get("conditions") != (new.get("status") or {}).get("conditions"):
            self._tell_local_queues(name)
        before = spec_of(old) if old is not None else {}
        watched = ("admissionChecksStrategy", "stopPolicy")
        if old is None or any(before.get(key) != spec_of(new).get(key) for key in watched):
            self._tell_workloads(name)
        self._release()

    def _release(self) -> None:
        """Deleted flavors and checks go once no queue refers to them."""
        state = self.context.state
        for held, queue in ((state.flavors, self.status.flavors), (state.checks, self.status.checks)):
            for name in [name for name, obj in held.items() if "deletionTimestamp" in obj["metadata"]]:
                queue.add(name)

    def _recount(self, name: str) -> None:
        """Count the workloads older than their queue, or waiting for it."""
        for local in self.context.local_queues.get(name, ()):
            for key in sorted(self.context.by_queue.get(local, ())):
                workload = self.context.workload(key)
                if workload is None:
                    continue
                if workloads.has_reservation(workload) and not workloads.is_finished(workload):
                    self.controller.changed(workload, workload)
                else:
                    self.loop.offer(workload)

    def _tell_local_queues(self, name: str) -> None:
        for local in sorted(self.context.local_queues.get(name, ())):
            self.status.local.add(local)

    def _tell_workloads(self, name: str) -> None:
        for local in sorted(self.context.local_queues.get(name, ())):
            for key in sorted(self.context.by_queue.get(local, ())):
                self.controller.queue.add(key)

    def _local_queue(self, old: Obj | None, new: Obj | None) -> None:
        queue = new or old
        if queue is None:
            return
        key = key_of(queue)
        members = self.context.local_queues[target_of(queue)]
        (members.discard if new is None else members.add)(key)
        if new is not None and old is not None and spec_of(old) == spec_of(new):
            return
        self.status.local.add(key)
        for each in sorted(self.context.by_queue.get(key, ())):
            workload = self.context.workload(each)
            if workload is not None:
                (self.loop.offer(workload) if workloads.is_admissible(workload) else None)
                self.controller.queue.add(each)

    def _flavor(self, old: Obj | None, new: Obj | None) -> None:
        flavor = new or old
        if flavor is None:
            return
        name = flavor["metadata"]["name"]
        flavors = self.context.state.flavors
        if new is None:
            flavors.pop(name, None)
        else:
            flavors[name] = new
            self.status.flavors.add(name)
        if new is None or old is None or spec_of(old) != spec_of(new):
            self._tell_queues(lambda queue: name in queue.flavor_names())

    def _check(self, old: Obj | None, new: Obj | None) -> None:
        check = new or old
        if check is None:
            return
        name = check["metadata"]["name"]
        checks = self.context.state.checks
        if new is None:
            checks.pop(name, None)
        else:
            checks[name] = new
            self.status.checks.add(name)
        self._tell_queues(lambda queue: name in queue.check_names())

    def _tell_queues(self, uses: Any) -> None:
        """Queues with a changed reference may have become active, or inactive; stated in batches."""
        for queue in self.context.state.queues.values():
            if uses(queue):
                self.status.queues.add(queue.name, self.config.delays.status_s)
                self.loop.retry_later(queue.name)
                self.loop.wake()

    def _cohort(self, old: Obj | None, new: Obj | None) -> None:
        if new is None:
            if old is not None:
                self.context.state.drop_cohort(old["metadata"]["name"])
            return
        if old is None or spec_of(old) != spec_of(new):
            self.context.state.put_cohort(new)
            node = self.context.state.cohorts[new["metadata"]["name"]]
            if not node.in_cycle():
                for queue in self.context.state.in_tree(node.root()):
                    self.status.queues.add(queue.name)
                    self.loop.retry_later(queue.name)

    def _topology(self, old: Obj | None, new: Obj | None) -> None:
        topology = new or old
        if topology is None:
            return
        name = topology["metadata"]["name"]
        topologies = self.context.state.topologies
        (topologies.pop(name, None) if new is None else topologies.__setitem__(name, new))
        self._retry_topologies()

    def _retry_topologies(self) -> None:
        flavors = self.context.state.flavors
        placed = {name for name, flavor in flavors.items() if spec_of(flavor).get("topologyName")}
        if placed:
            self._tell_queues(lambda queue: placed & set(queue.flavor_names()))

    def _priority_class(self, old: Obj | None, new: Obj | None) -> None:
        """The new value of a class goes to its Workloads."""
        if old is None or new is None or old["value"] == new["value"]:
            return
        name = new["metadata"]["name"]
        for workload in self.context.store.objects(WORKLOADS):
            reference = spec_of(workload).get("priorityClassRef") or {}
            if (reference.get("kind"), reference.get("name")) == ("WorkloadPriorityClass", name):
                self.context.update(workload | {"spec": spec_of(workload) | {"priority": new["value"]}})

    def _job(self, old: Obj | None, new: Obj | None) -> None:
        job = new or old
        if job is not None:
            if new is None:
                self.reconciler_gone(job)
            edited = old is not None and new is not None and new["spec"].get("suspend") and old["spec"] != new["spec"]
            self.jobs.add(("Job", *key_of(job)), self.config.delays.edited_s if edited else None)

    def reconciler_gone(self, owner: Obj) -> None:
        """Workloads of a lost owner are finished a little later."""
        uid = owner["metadata"]["uid"]
        delay_s = self.config.delays.gone_s
        self.clock.at(delay_s, lambda: self._orphans(uid) if self.running else None)

    def _look_for_owner(self, owner: Obj, namespace: str) -> None:
        """A job made anew under the same name is not the owner."""
        found = self.server.store.get(JOBS if owner["kind"] == "Job" else PODS, namespace, owner["name"])
        uid = owner["uid"]
        if found is not None and found["metadata"]["uid"] != uid:
            self.clock.at(self.config.delays.gone_s, lambda: self._orphans(uid) if self.running else None)

    def _orphans(self, uid: str) -> None:
        orphans = self.context.owned(uid)
        if all(self._alone(each, uid) for each in orphans):
            self.reconciler.gone(orphans)

    @staticmethod
    def _alone(workload: Obj, uid: str) -> bool:
        return all(each["uid"] == uid for each in workload["metadata"].get("ownerReferences") or [])

    def _pod(self, old: Obj | None, new: Obj | None) -> None:
        pod = new or old
        if pod is None:
            return
        self.context.note_pod(pod, gone=new is None)
        if self._frees_a_place(old, new):
            self._retry_topologies()
        if annotations_of(pod).get(SUSPENDED_BY) == "statefulset":
            self.set_pods.add(key_of(pod))
        if labels_of(pod).get(MANAGED) != "true":
            if new is not None:
                self.ungater.pod(new)
            return
        if new is None:
            self.reconciler_gone(pod)
        name = group_name(pod)
        namespace = pod["metadata"]["namespace"]
        self.jobs.add(("Group", namespace, name) if name else ("Pod", namespace, pod["metadata"]["name"]))
        if new is not None:
            self.ungater.pod(new)

    @staticmethod
    def _frees_a_place(old: Obj | None, new: Obj | None) -> bool:
        held = old is not None and bool(spec_of(old).get("nodeName")) and not terminated(old)
        return held and (new is None or terminated(new))

    def _stateful_set(self, old: Obj | None, new: Obj | None) -> None:
        stateful_set = new or old
        if stateful_set is not None:
            self.sets.add(key_of(stateful_set))

    def _node(self, old: Obj | None, new: Obj | None) -> None:
        before, after = ((each or {}).get("status", {}).get("allocatable") for each in (old, new))
        if before != after or (old or {}).get("spec") != (new or {}).get("spec"):
            self._retry_topologies()

    def _namespace(self, old: Obj | None, new: Obj | None) -> None:
        """New labels may let workloads of the namespace into queues."""
        if new is None or old is None or old["metadata"].get("labels") == new["metadata"].get("labels"):
            return
        for name in self.context.state.queues:
            self.loop.retry_later(name)

    # jobs

    def _reconcile_job(self, key: JobKey) -> None:
        kind, namespace, name = key
        try:
            job = self._load(kind, namespace, name)
            if job is not None:
                self.reconciler.reconcile(job)
        except Busy:
            self.jobs.again(key)  # or at its next change

    def _load(self, kind: str, namespace: str, name: str) -> Job | None:
        store = self.server.store
        if kind == "Group":
            pods = self.context.pods_of_group(namespace, name)
            if pods:
                return PodGroup(self.context, pods)
            workload = self.context.workload((namespace, name))
            if workload is not None and not self._set_lives(workload):
                self.reconciler.gone([workload])
            return None
        obj = store.get(JOBS if kind == "Job" else PODS, namespace, name)
        if obj is None:
            self.clock.at(self.config.delays.gone_s, partial(self._orphans_of, kind, namespace, name))
            return None
        if "deletionTimestamp" in obj["metadata"]:
            job: Job = BatchJob(self.context, obj) if kind == "Job" else SinglePod(self.context, obj)
            self.reconciler.gone(self.context.owned(obj["metadata"]["uid"]))
            job.finalize()
            return None
        if kind == "Job":
            return BatchJob(self.context, obj) if queue_name(obj) and controller_of(obj) is None else None
        managed = labels_of(obj).get(MANAGED) == "true" and not group_name(obj)
        return SinglePod(self.context, obj) if managed and queue_name(obj) else None

    def _set_lives(self, workload: Obj) -> bool:
        """True if a StatefulSet owning the Workload exists: it keeps the Workload even without pods."""
        namespace = workload["metadata"]["namespace"]
        owners = [each for each in workload["metadata"].get("ownerReferences") or [] if each["kind"] == "StatefulSet"]
        sets = [(each, self.server.store.get(STATEFUL_SETS, namespace, each["name"])) for each in owners]
        return any(found is not None and found["metadata"]["uid"] == each["uid"] for each, found in sets)

    def _orphans_of(self, kind: str, namespace: str, name: str) -> None:
        """Finish the workloads still naming a lost owner."""
        if not self.running:
            return
        again = self.server.store.get(JOBS if kind == "Job" else PODS, namespace, name)
        alive = again["metadata"]["uid"] if again is not None else ""  # made anew under the same name
        for workload in self.context.store.objects(WORKLOADS, namespace) if self.context.by_owner else ():
            owner = controller_of(workload)
            if owner is not None and (owner["kind"], owner["name"]) == (kind, name) and owner["uid"] != alive:
                self.reconciler.gone([workload])
