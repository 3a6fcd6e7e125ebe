"""Keeps Deployments, and the pods and Workloads of replicas, as the world is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autopilot.core.model.snapshot import State
from autopilot.playground import acting, conditions, pods, replicas
from autopilot.playground.acting import Preempted
from autopilot.playground.gangs import PODS, WORKLOADS, Gang, waits_because
from autopilot.playground.mirror import Mirror, Obj
from autopilot.playground.naming import workload_name
from autopilot.playground.replicas import ReplicaObjects, Service
from autopilot.playground.steps import Checks, Step
from simulator.world.cluster import Cluster
from simulator.world.facts import Evicting, Resumed, Started, Stopped, Submitted, Why, Withdrawn

Fact = Submitted | Withdrawn | Resumed | Started | Evicting | Stopped
REASONS = {Why.PREEMPT: "Preempted", Why.FAULT: "NodeFailures", Why.RECOVER: "NodeFailures", Why.MOVE: "Preempted"}
"""Reasons for another wait of evicted work, in Kueue's names."""


@dataclass(frozen=True, slots=True)
class Books:
    """The projection's knowledge of all work; shared."""

    gangs: dict[int, Gang]
    job_of_uid: dict[str, int]
    starting: dict[int, None]
    new_checks: Callable[[int], Checks | None]
    preempted: Preempted


class ReplicaProjection:
    """The services of the world and their replicas."""

    def __init__(
        self, cluster: Cluster, mirror: Mirror, objects: ReplicaObjects, services: list[Service], books: Books
    ) -> None:
        self._cluster, self._mirror, self._objects = cluster, mirror, objects
        self._services, self._books = services, books
        self._stale: set[int] = set()
        self._sample: dict[int, int] = {}  # any replica of each service, for its shape
        self.wanted: Callable[[str], int] = lambda _name: 0  # wanted replicas of a service

    def show(self, job: int, facts: list[Fact | Step], now_s: float, real_s: float) -> None:
        """Bring the pod of one replica to the state of the world; after a stop it is another pod."""
        self._stale.add(self._cluster.jobs.service[job])
        gang = self._books.gangs.get(job)
        for fact in facts:
            if isinstance(fact, Started):
                if gang is None or not gang.uid:
                    gang = self._new(job, now_s)
                replicas.admitted(gang, now_s, real_s)
                self._books.starting[job] = None
            elif isinstance(fact, Withdrawn) and gang is not None:
                self._remove(gang)
                gang.end_s = now_s
                return
            elif isinstance(fact, Stopped) and gang is not None:
                self._remove(gang)
                if fact.why not in REASONS:
                    gang.end_s = now_s
                    return
                gang = None
            elif isinstance(fact, Step):
                gang = gang if gang is not None else self._new(job, now_s)
                if gang.checks is not None:
                    acting.take(gang, gang.checks, fact, real_s, self._books.preempted)
        if gang is None:
            gang = self._new(job, now_s)
        if acting.queued(gang, holds=self._cluster.held[job] is not None):
            conditions.waits(gang.life, waits_because(self._cluster, job), real_s)
        self.sync(job, now_s)

    def sync(self, job: int, now_s: float) -> None:
        """Pod and Workload of a replica as the world is."""
        gang = self._books.gangs[job]
        service = self._services[self._cluster.jobs.service[job]]
        self._stale.add(self._cluster.jobs.service[job])
        pod = self._objects.pod(service, gang, now_s)
        if "nodeName" in pod["spec"]:
            self._bind(gang, pod)
        stored = self._mirror.put(PODS, pod)
        if stored is None:
            return
        gang.uid = stored["metadata"]["uid"]
        self._books.job_of_uid[gang.uid] = job
        gang.shown = {self._objects.key(gang): stored}
        gang.workload = workload_name("Pod", "", gang.name, gang.uid)
        workload = self._mirror.put(WORKLOADS, self._objects.workload(gang))
        gang.workload_uid = workload["metadata"]["uid"] if workload is not None else ""

    def _bind(self, gang: Gang, pod: Obj) -> None:
        """The gates go, with the additions of the admission; then the scheduler binds it."""
        key = self._objects.key(gang)
        if gang.checks is not None and not self._mirror.bound(key):
            spec = {name: part for name, part in pod["spec"].items() if name != "nodeName"}
            self._mirror.put(PODS, pod | {"spec": spec, "status": pods.unplaced(gang.checks.since_s)})
        self._mirror.bind(key, pod["spec"]["nodeName"])

    def show_services(self) -> None:
        """Deployments and ReplicaSets of the services with changed replicas."""
        for row in sorted(self._stale):
            self._show_service(row)
        self._stale.clear()

    def service_of(self, namespace: str, name: str) -> Service | None:
        """The service of a Deployment."""
        return next((each for each in self._services if (each.namespace, each.name) == (namespace, name)), None)

    def replicas_of(self, service: Service) -> int:
        """Wanted replicas of a service."""
        return self.wanted(service.deployment.name)

    def _new(self, job: int, now_s: float) -> Gang:
        service = self._services[self._cluster.jobs.service[job]]
        if not service.uid:
            self._show_service(self._cluster.jobs.service[job], job)
        gang = self._books.gangs[job] = Gang(job, service.namespace, "", service.queue, now_s)
        gang.name = self._objects.name_of(service, gang)
        gang.checks = self._books.new_checks(job)
        return gang

    def _remove(self, gang: Gang) -> None:
        self._mirror.delete(self._objects.key(gang))
        if gang.workload:
            self._mirror.delete((WORKLOADS, gang.namespace, gang.workload))
        self._books.job_of_uid.pop(gang.uid, None)
        gang.uid, gang.shown = "", {}

    def _show_service(self, row: int, first: int | None = None) -> None:
        service, cluster = self._services[row], self._cluster
        rows = [job for job in (*cluster.pending, *cluster.holding) if cluster.jobs.service[job] == row]
        sample = rows[0] if rows else self._sample.get(row, first)
        if sample is None:
            return
        self._sample[row] = sample
        ready = sum(cluster.state[job] == State.RUNNING for job in rows)
        for resource, found in self._objects.service(service, sample, self.replicas_of(service), ready):
            stored = self._mirror.put(resource, found)
            if stored is not None and resource == replicas.DEPLOYMENTS:
                service.uid = stored["metadata"]["uid"]
            elif stored is not None:
                service.set_uid = stored["metadata"]["uid"]
