"""Projects the simulated cluster into objects of the API server, after every instant of the simulation.

The world is the truth. Facts mark the changed objects; after the instant each of them is brought to the state of the
world, and the conditions of its Workload take Kueue's steps. Nothing is projected from plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from apiserver.server import Server
from apiserver.users import User
from autopilot.contract.annotations import CHECK, CONTROLLER, ELASTIC_JOB, MANAGE
from autopilot.core.model.snapshot import State
from autopilot.playground import acting, conditions, gangs
from autopilot.playground.beside import Beside
from autopilot.playground.gang_pods import GangPods
from autopilot.playground.gangs import JOBS, TTL_S, WORKLOADS, Gang, GangObjects, waits_because
from autopilot.playground.mirror import Key, Mirror, Obj
from autopilot.playground.naming import QUEUE, Slugs, slug, workload_name
from autopilot.playground.nodes import Nodes
from autopilot.playground.queues import check_object, flavors, namespace_objects, priority_class, queue_objects
from autopilot.playground.replica_projection import REASONS, Books, Fact, ReplicaProjection
from autopilot.playground.replicas import ReplicaObjects, Service
from autopilot.playground.serving import PLAYGROUND
from autopilot.playground.shapes import members_of
from autopilot.playground.steps import Checks, Step
from autopilot.playground.telling import tell
from simulator.inference.deployments import Deployment
from simulator.signals.dcgm_text import PodLabels
from simulator.specs.clusterqueues import QueueSpec
from simulator.world.cluster import Cluster
from simulator.world.facts import (
    Evicting,
    GpuChanged,
    NodeChanged,
    Recut,
    Recutting,
    Resumed,
    Started,
    Stopped,
    Submitted,
    Turned,
    Why,
    Withdrawn,
)

WRITER = User(PLAYGROUND, ("system:masters", "system:authenticated"))


class Projection:
    """Observes a cluster, and keeps the server's objects as the world is."""

    def __init__(
        self,
        cluster: Cluster,
        server: Server,
        queues: Sequence[QueueSpec],
        services: Sequence[Deployment],
        preemptor: Callable[[int], int] = lambda _job: -1,
        checked: Beside | None = None,
    ) -> None:
        """The server's clock is at virtual time 0. `preemptor(job)`: the job that gets the GPUs of an evicted one, or
        -1.

        `checked`: the engine of an acting autopilot, with our admission check on its queues.
        """
        self.cluster, self.server = cluster, server
        self.start_s = server.timeline.now_s
        self.client = server.client(WRITER, "playground")
        self._mirror, self._refused = Mirror(self.client), set[str]()
        self._queues, self._preemptor = queues, preemptor
        self.checked = checked
        if checked is not None:
            checked.tell = self._note
        self.nodes = Nodes(cluster, self.start_s)
        self._objects = GangObjects(cluster, self.start_s, self.nodes.names)
        self.pods = GangPods(cluster, server, self._mirror, self._objects)
        self._namespaces = Slugs(63)
        self._jobs: dict[str, Slugs] = {}  # by namespace
        self._tenants = 0
        self._priorities: set[int] = {0}
        self.gangs: dict[int, Gang] = {}
        self._facts: dict[int, list[Fact | Step]] = {}
        self._starting: dict[int, None] = {}
        self._stale_nodes: set[int] = set()
        self.job_of_uid: dict[str, int] = {}
        self.replicas = ReplicaProjection(
            cluster,
            self._mirror,
            ReplicaObjects(cluster, self._objects, self.nodes.names),
            [self._service(each) for each in services],
            Books(self.gangs, self.job_of_uid, self._starting, self._new_checks, self._preempted),
        )
        cluster.observe(self)

    def _service(self, deployment: Deployment) -> Service:
        namespace = self.namespace(deployment.tenant)
        return Service(deployment, namespace, self._slugs(namespace).of(deployment.name), slug(deployment.tenant))

    def namespace(self, tenant: str) -> str:
        """The namespace of a tenant."""
        return self._namespaces.of(tenant)

    def _slugs(self, namespace: str) -> Slugs:
        return self._jobs.setdefault(namespace, Slugs())

    # --- what happens -------------------------------------------------------------------------

    def on_submitted(self, fact: Submitted) -> None:
        """New work."""
        self._note(fact)

    def on_withdrawn(self, fact: Withdrawn) -> None:
        """Waiting work is gone."""
        self._note(fact)

    def on_resumed(self, fact: Resumed) -> None:
        """Parked work waits again."""
        self._note(fact)

    def on_started(self, fact: Started) -> None:
        """It holds GPUs."""
        self._note(fact)

    def on_evicting(self, fact: Evicting) -> None:
        """It has to leave."""
        self._note(fact)

    def on_stopped(self, fact: Stopped) -> None:
        """It has left."""
        if fact.why != Why.CUT:
            self._note(fact)

    def on_node(self, fact: NodeChanged) -> None:
        """A node changed."""
        self._stale_nodes.add(fact.node)

    def on_gpu(self, fact: GpuChanged) -> None:
        """A GPU changed."""
        self._stale_nodes.add(self.cluster.hardware.node_of[fact.gpu])

    def on_turned(self, fact: Turned) -> None:
        """A node begins to change how its GPUs are shared, or has changed it."""
        self._stale_nodes.add(fact.node)

    def on_recut(self, fact: Recut) -> None:
        """A GPU has another geometry."""
        self._stale_nodes.add(self.cluster.hardware.node_of[fact.gpu])

    def on_recutting(self, fact: Recutting) -> None:
        """A change of geometry begins or ends."""
        self._stale_nodes.add(self.cluster.hardware.node_of[fact.gpu])

    def _note(self, fact: Fact | Step) -> None:
        self._facts.setdefault(fact.job, []).append(fact)

    # --- the first objects ----------------------------------------------------------------

    def begin(self) -> None:
        """Create the objects from before the first job: nodes, namespaces, queues, services."""
        cluster = self.cluster
        names = cluster.inventory.names
        products: dict[str, str] = {}
        for row, code in enumerate(cluster.inventory.nodes.gpu_model.tolist()):
            node = self.nodes.node(row, 0.0)
            products.setdefault(names.gpu_models[code], node["metadata"]["labels"]["nvidia.com/gpu.product"])
            self._mirror.put("nodes", node)
            self._mirror.settle(("nodes", "", self.nodes.names[row]), {"spec": {"taints": None}})  # it is ready
            self._mirror.put("resourceslices.resource.k8s.io", self.nodes.slices(row))
        for flavor in flavors(cluster, products):
            self._mirror.put("resourceflavors.kueue.x-k8s.io", flavor)
        check = CHECK if self.checked is not None else ""
        if check:
            self._mirror.put("admissionchecks.kueue.x-k8s.io", check_object(check, CONTROLLER))
        for resource, found in queue_objects(self._queues, cluster, check):
            self._mirror.put(resource, found)
        self._open_tenants()
        self._mirror.on_refused = self._say_refused

    def _say_refused(self, resource: str, wanted: Obj, why: str) -> None:
        """An Event on the owner of the object, once: a quota or a policy of a person keeps it out."""
        metadata, told = wanted["metadata"], f"{resource} {wanted['metadata']['name']}: {why}"
        if told in self._refused:
            return
        self._refused.add(told)
        owner = next(iter(metadata.get("ownerReferences") or ()), {"kind": wanted.get("kind", ""), **metadata})
        about = {key: owner.get(key, "") for key in ("apiVersion", "kind", "name", "uid")}
        tell(self.client, about, metadata.get("namespace", ""), "FailedCreate", told)

    def _open_tenants(self) -> None:
        """Namespaces and queues of new tenants."""
        tenants = self.cluster.jobs.tenants
        while self._tenants < len(tenants):
            tenant = tenants[self._tenants]
            self._tenants += 1
            # a container of a pod with a MIG instance would get a GPU as well
            one_gpu = not any(self.cluster.hardware.mig)
            queue = self.checked is None or tenant not in self.checked.without
            for resource, found in namespace_objects(tenant, self.namespace(tenant), one_gpu=one_gpu, queue=queue):
                if resource != "namespaces" or self.server.store.get("namespaces", "", self.namespace(tenant)) is None:
                    self._mirror.put(resource, found)

    def _open_priority(self, value: int) -> None:
        if value not in self._priorities:
            self._priorities.add(value)
            self._mirror.put("workloadpriorityclasses.kueue.x-k8s.io", priority_class(value))

    # --- after an instant -----------------------------------------------------------------

    def show(self, now_s: float) -> None:
        """Bring every changed object to the state of the world. The server's clock is at `now_s`."""
        self._open_tenants()
        for node in sorted(self._stale_nodes):
            stored = self.server.store.get("nodes", "", self.nodes.names[node])
            self._mirror.put("nodes", self.nodes.node(node, now_s, stored))
        self._stale_nodes.clear()
        facts, self._facts = self._facts, {}
        # leaving work is shown before its successor
        for job in sorted(facts, key=lambda each: (self.cluster.held[each] is not None, each)):
            if self.cluster.jobs.service[job] >= 0:
                self.replicas.show(job, facts[job], now_s, self.real_s(now_s))
            else:
                self._show_gang(job, facts[job], now_s)
        for job in [each for each in self._starting if self.cluster.state[each] != State.STARTING]:
            del self._starting[job]
            if self.cluster.state[job] == State.RUNNING:
                self._ready(job, now_s)
        self.replicas.show_services()

    def _ready(self, job: int, now_s: float) -> None:
        gang = self.gangs[job]
        conditions.ready(gang.life, self.real_s(now_s))
        self._sync(job, now_s)

    def real_s(self, virtual_s: float) -> float:
        """Seconds since 1970."""
        return self.start_s + virtual_s

    def _show_gang(self, job: int, facts: list[Fact | Step], now_s: float) -> None:
        gang = self.gangs.get(job)
        if gang is None:
            if self.cluster.end_s[job] <= now_s:
                return  # a person deleted it
            gang = self.gangs[job] = self._new_gang(job, now_s)
        real_s = self.real_s(now_s)
        resized = False
        for fact in facts:
            if isinstance(fact, Started):
                if resized:
                    conditions.unready(gang.life, real_s)
                else:
                    gangs.began(gang, now_s, real_s)
                    gang.born, gang.numbers = self.cluster.incarnation[job], {}
                self._starting[job] = None
                resized = False
            elif isinstance(fact, Stopped) and fact.why == Why.RESIZE:
                resized = True
            elif isinstance(fact, Evicting):
                gang.leaving = True
                self._evicting(gang, fact, real_s)
            elif isinstance(fact, Stopped):
                self._stopped(gang, fact, now_s)
            elif isinstance(fact, Withdrawn):
                self._remove(gang)
                return
            elif isinstance(fact, Step) and gang.checks is not None:
                acting.take(gang, gang.checks, fact, real_s, self._preempted)
        if acting.queued(gang, holds=self.cluster.held[job] is not None):
            conditions.waits(gang.life, waits_because(self.cluster, job), real_s)
        self._sync(job, now_s)

    def _new_gang(self, job: int, now_s: float) -> Gang:
        jobs = self.cluster.jobs
        tenant = jobs.tenants[jobs.tenant[job]]
        namespace = self.namespace(tenant)
        plain = self._plain(job)
        labels = {MANAGE: "true"} if plain else {gangs.QUEUE_LABEL: QUEUE}
        if jobs.priority[job] and not plain:
            self._open_priority(jobs.priority[job])
            labels["kueue.x-k8s.io/priority-class"] = f"priority-{jobs.priority[job]}"
        name = self._slugs(namespace).of(jobs.id[job])
        gang = Gang(job, namespace, name, slug(tenant), now_s, labels=labels, plain=plain)
        gang.checks = self._new_checks(job)
        gang.first_gates = gang.checks.gates if gang.checks is not None else ""
        shape = jobs.shape_of(job)
        gang.elastic = gang.checks is not None and not plain and shape.whole and shape.min_gpus < shape.gpus
        conditions.job_suspended(gang.of_job, self.real_s(now_s))
        stored = self._mirror.put(JOBS, self._objects.job(gang))
        if stored is not None:
            self._owned(gang, stored["metadata"]["uid"])
        return gang

    def _plain(self, job: int) -> bool:
        """True if it is in no queue of Kueue."""
        return self.checked is not None and self.checked.plain(job)

    def _new_checks(self, job: int) -> Checks | None:
        if self.checked is None:
            return None
        entry = self.checked.entry(job)
        return Checks(gates=entry.gates, active=entry.active, rows=entry.rows())

    def adopt(self, job: int, stored: Obj, now_s: float) -> None:
        """Join a person's Job to this job."""
        metadata = stored["metadata"]
        jobs = self.cluster.jobs
        tenant = jobs.tenants[jobs.tenant[job]]
        if jobs.priority[job]:
            self._open_priority(jobs.priority[job])
        gang = Gang(job, metadata["namespace"], metadata["name"], slug(tenant), now_s, by_person=True)
        gang.plain = self._plain(job)
        gang.template = stored["spec"]["template"]
        gang.checks = self._new_checks(job)
        shape = jobs.shape_of(job)
        ours = (metadata.get("annotations") or {}).get(ELASTIC_JOB) == "true" and "completions" not in stored["spec"]
        whole = shape.whole and not gang.plain
        gang.elastic = gang.checks is not None and ours and whole and shape.min_gpus < shape.gpus
        conditions.job_suspended(gang.of_job, self.real_s(now_s))
        self._slugs(gang.namespace).take(gang.name, jobs.id[job])
        self._mirror.adopt(JOBS, {"metadata": {"name": gang.name, "namespace": gang.namespace}, "spec": {}})
        self.gangs[job] = gang
        self._owned(gang, metadata["uid"])

    def _owned(self, gang: Gang, uid: str) -> None:
        gang.uid = uid
        gang.workload = "" if gang.plain else workload_name("Job", "batch", gang.name, uid)
        self.job_of_uid[uid] = gang.job

    def _evicting(self, gang: Gang, fact: Evicting, real_s: float) -> None:
        if gang.checks is not None and not gang.checks.admitted:
            conditions.job_suspended(gang.of_job, real_s)
        if fact.why == Why.RECOVER:
            conditions.interrupted(gang.life, real_s)
        elif gang.checks is None:
            conditions.preempted(gang.life, *self._preempted(gang, self._preemptor(fact.job)), real_s)

    def _preempted(self, gang: Gang, newcomer: int) -> tuple[str, tuple[str, str]]:
        """Kueue's reason for an eviction in favour of another gang, and the uids of that one's Workload and owner."""
        by, why = ("", ""), "InCohortReclamation"
        if newcomer in self.gangs:
            other = self.gangs[newcomer]
            by = (other.workload_uid, other.uid)
            why = "InClusterQueue" if other.queue == gang.queue else why
        return why, by

    def _stopped(self, gang: Gang, fact: Stopped, now_s: float) -> None:
        real_s = self.real_s(now_s)
        if fact.why in REASONS or (fact.why == Why.PARK and gang.checks is not None):
            if fact.why == Why.FAULT:
                conditions.interrupted(gang.life, real_s)
            if gang.checks is not None:
                acting.left(gang, gang.checks, real_s)
            else:
                gangs.stopped(gang, REASONS[fact.why], real_s)
            self.pods.drop(gang)
        elif fact.why in {Why.END, Why.FAIL, Why.SUSPEND}:
            gangs.ended(gang, now_s, real_s, failed=fact.why != Why.END)
            self.pods.end(gang, fact, now_s)
            self.server.timeline.at(TTL_S, partial(self._remove, gang))
        elif fact.why == Why.RETIRE:
            self.pods.drop(gang)

    def _sync(self, job: int, now_s: float) -> None:
        """Job, Workload and pods of a gang as the world is."""
        if self.cluster.jobs.service[job] >= 0:
            self.replicas.sync(job, now_s)
            return
        gang, mirror = self.gangs[job], self._mirror
        stored = mirror.put(JOBS, self._objects.job(gang))
        if stored is None:
            return  # a person deleted it: the submissions take it out of the world
        workload = mirror.put(WORKLOADS, self._objects.workload(gang)) if not gang.plain else None
        gang.workload_uid = workload["metadata"]["uid"] if workload is not None else ""
        self._restore_template(gang)
        if gang.end_s is not None:
            return
        if not gang.has_pods(holds=self.cluster.held[job] is not None):
            self.pods.drop(gang)
            return
        self.pods.show(gang, now_s)

    def _restore_template(self, gang: Gang) -> None:
        """Restore a stopped Job's template from before its admission, once its pods are gone."""
        of = gang.checks
        pods = gang.has_pods(holds=self.cluster.held[gang.job] is not None)
        if of is not None and of.selector and not of.admitted and not pods:
            of.selector, of.tolerations = {}, ()
            self._mirror.put(JOBS, self._objects.job(gang))

    # --- the end ------------------------------------------------------------------------------

    def _remove(self, gang: Gang) -> None:
        """Delete the objects of an ended gang."""
        self.pods.drop(gang)
        if not gang.plain:
            self._mirror.delete(gang.workload_key)
        self._mirror.delete(gang.job_key)
        self.job_of_uid.pop(gang.uid, None)
        self.gangs.pop(gang.job, None)
        self._starting.pop(gang.job, None)

    def gone(self, job: int) -> None:
        """A person deleted the Job: its objects go with it."""
        gang = self.gangs.get(job)
        if gang is not None:
            self._remove(gang)

    def holder_of(self, key: Key, uid: str) -> int | None:
        """The job with GPUs in this pod; None if it is no pod of running work, or was deleted here."""
        stored = self.server.store.get(*key)
        if stored is not None and stored["metadata"]["uid"] != uid:
            return None
        for job in self.cluster.holding:
            gang = self.gangs.get(job)
            if gang is not None and key in gang.shown and not gang.leaving:
                return job
        return None

    def pod_labels(self, job: int, row: int) -> PodLabels:
        """The pod on a GPU (or an instance) of a job, for the exporters."""
        gang = self.gangs.get(job)
        if gang is None or not gang.shown:
            return PodLabels("", "")
        members = members_of(self.cluster, job)
        index = next((number for number, each in enumerate(members) if row in each.parts), 0)
        keys: list[Key] = list(gang.shown)
        return PodLabels(gang.namespace, keys[min(index, len(keys) - 1)][2])
