"""The acting autopilot's levers: a write through the API takes effect in the world at the same virtual moment.

A write is recognised by comparison: a difference between the server's object and the engine's knowledge is a write.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import inf
from typing import Any

from actuators.kubernetes.levers.stopped import mark_of
from apiserver.store import Event
from autopilot.contract import LAST_CHECKPOINT, PREFIX
from autopilot.contract.annotations import CHECKPOINT_ACK, CHECKPOINT_REQUEST
from autopilot.contract.notes import read_record
from autopilot.core.model.snapshot import State
from autopilot.playground.beside import Beside
from autopilot.playground.gangs import JOBS, PODS, WORKLOADS
from autopilot.playground.mirror import Key
from autopilot.playground.projection import Projection
from autopilot.playground.replicas import DEPLOYMENTS
from autopilot.playground.shapes import members_of
from autopilot.playground.steps import GATED_BY
from autopilot.playground.telling import tell
from simulator.inference.services import ServiceFleet
from simulator.running.engine import Engine

Obj = dict[str, Any]
MOST_OF_GPU = 8
"""Most replicas per GPU of the cluster in a person's request: more than its instances."""
NOTICED_S = 60.0
"""Longest time until a program sees an annotation of its pod: the kubelet refreshes files about once a minute."""


class Levers:
    """Writes of Workloads, Jobs, pods and Deployments, carried into the world."""

    def __init__(
        self, engine: Engine, projection: Projection, checked: Beside, services: ServiceFleet | None = None
    ) -> None:
        self._engine, self._projection, self._checked, self._services = engine, projection, checked, services
        self._requested: dict[int, str] = {}  # id of the last request of each job

    def listen(self) -> None:
        """Follow the objects from now on."""
        store = self._projection.server.store
        store.subscribe(WORKLOADS, self._on_workload)
        store.subscribe(JOBS, self._on_job)
        store.subscribe(PODS, self._on_pod)
        if self._services is not None:
            store.subscribe(DEPLOYMENTS, self._on_deployment)

    # --- admission ------------------------------------------------------------------------------

    def _on_workload(self, event: Event) -> None:
        """A check was written, `spec.active` changed, or a gate was removed."""
        owners = event.obj["metadata"].get("ownerReferences") or [{}]
        job = self._projection.job_of_uid.get(owners[0].get("uid", ""))
        metadata = event.obj["metadata"]
        stored = self._projection.server.store.get(WORKLOADS, metadata["namespace"], metadata["name"])
        if job is None or stored is None:
            return
        entry = self._checked.entry(job)
        rows = (stored.get("status") or {}).get("admissionChecks") or []
        if rows and not _same(rows, entry.rows()):
            self._at_once(lambda now_s: self._checked.set_checks(job, rows, now_s))
        active = bool(stored["spec"].get("active", True))
        if active != entry.active:
            effect = mark.id if (mark := mark_of(stored)) is not None else ""
            self._at_once(lambda now_s: self._checked.set_active(job, now_s, active=active, effect=effect))
        gates = (stored["metadata"].get("annotations") or {}).get(GATED_BY, "")
        if gates != entry.gates:
            self._at_once(lambda now_s: self._checked.set_gates(job, gates, now_s))

    def _on_job(self, event: Event) -> None:
        """The gates of a Job are those of its Workload."""
        job = self._projection.job_of_uid.get(event.obj["metadata"]["uid"])
        if job is None or event.type == "DELETED":
            return
        if self._checked.plain(job):
            self._on_plain(job)
            return
        gates = (event.obj["metadata"].get("annotations") or {}).get(GATED_BY, "")
        if set(_names(self._checked.entry(job).gates)) - set(_names(gates)):
            self._at_once(lambda now_s: self._checked.set_gates(job, gates, now_s))
        gang = self._projection.gangs.get(job)
        if gang is not None and gang.elastic and event.type == "MODIFIED":
            self._at_once(lambda now_s: self._widen(job, now_s))

    def _on_plain(self, job: int) -> None:
        """A Job in no queue was suspended or resumed."""
        gang = self._projection.gangs.get(job)
        stored = self._projection.server.store.get(*gang.job_key) if gang is not None else None
        if stored is None:
            return
        suspended = bool(stored["spec"].get("suspend"))
        mark = mark_of(stored)
        moving, effect = (mark.moves, mark.id) if mark is not None else (False, "")
        if suspended == self._checked.entry(job).admitted:
            self._at_once(
                lambda now_s: self._checked.suspend(job, now_s, suspended=suspended, moving=moving, effect=effect)
            )

    def _widen(self, job: int, now_s: float) -> None:
        """The Job of an elastic gang asks for another number of pods; evicted ones leave."""
        gang, store = self._projection.gangs.get(job), self._projection.server.store
        stored = store.get(*gang.job_key) if gang is not None else None
        if gang is None or stored is None or gang.leaving:
            return
        cluster = self._engine.cluster
        shape = cluster.jobs.shape_of(job)
        gpus = min(int(stored["spec"].get("parallelism", 1)) * max(shape.per_member, 1), shape.gpus)
        gives: set[int] = set()
        for key, member in zip(gang.shown, members_of(cluster, job), strict=False):
            pod = store.get(*key)
            if pod is None or pod["metadata"].get("deletionTimestamp"):
                gives |= set(member.parts)
        if gpus >= shape.min_gpus:
            self._checked.set_width(job, gpus, gives, now_s)

    # --- checkpoints ----------------------------------------------------------------------------

    def _on_pod(self, event: Event) -> None:
        """A checkpoint is requested of running work."""
        metadata = event.obj["metadata"]
        identity = _request_of(event.obj)
        if not identity or event.type == "DELETED":
            return
        job = self._projection.holder_of((PODS, metadata["namespace"], metadata["name"]), metadata["uid"])
        if job is None or self._requested.get(job) == identity:
            return
        self._requested[job] = identity
        number = self._engine.cluster.incarnation[job]
        self._engine.at(self._engine.now_s + NOTICED_S, lambda now_s: self._save(job, number, identity, now_s))

    def _save(self, job: int, number: int, identity: str, now_s: float) -> None:
        """The program sees the request, and writes while it works on."""
        cluster, gang = self._engine.cluster, self._projection.gangs.get(job)
        if gang is None or cluster.incarnation[job] != number or not self._asking(job, identity):
            return
        deadline_s = max((self._deadline_s(key) for key in gang.shown), default=inf)
        works = cluster.state[job] == State.RUNNING and job not in cluster.leaving and job not in cluster.stale
        gain_s = cluster.progress_s(job, now_s) - cluster.served_s[job] if works else 0.0
        within_s = max(deadline_s - self._projection.real_s(now_s), 0.0)
        done_s = cluster.checkpoints.save(job, number, gain_s, now_s, within_s)
        if done_s < inf:
            self._engine.at(done_s, lambda _: self._acknowledge(job, number, identity, now_s))

    def _acknowledge(self, job: int, number: int, identity: str, saved_s: float) -> None:
        """Every asked pod reports the checkpoint as complete. `saved_s`: its saved progress."""
        cluster, gang = self._engine.cluster, self._projection.gangs.get(job)
        if gang is None or cluster.incarnation[job] != number or cluster.held[job] is None:
            return
        real_s = self._projection.real_s
        step = int(cluster.progress_s(job, saved_s))
        told = {"id": identity, "step": step, "path": f"playground://{gang.namespace}/{gang.name}/{step}"}
        notes = {
            CHECKPOINT_ACK: json.dumps(told | {"at": round(real_s(self._engine.now_s), 3)}),
            PREFIX + LAST_CHECKPOINT: f"{real_s(saved_s):.3f}",
        }
        for key in self._asking(job, identity):
            self._projection.pods.report(gang, notes, key)

    def _asking(self, job: int, identity: str) -> list[Key]:
        """The pods of a job with an open request."""
        store, gang = self._projection.server.store, self._projection.gangs[job]
        return [key for key in gang.shown if _request_of(store.get(*key) or {"metadata": {}}) == identity]

    def _deadline_s(self, key: Key) -> float:
        stored = self._projection.server.store.get(*key) or {"metadata": {}}
        deadline = _request(stored).get("deadline")
        return float(deadline) if isinstance(deadline, int | float) else inf

    # --- services -------------------------------------------------------------------------------

    def _on_deployment(self, event: Event) -> None:
        """Somebody scaled a service."""
        metadata = event.obj["metadata"]
        stored = self._projection.server.store.get(DEPLOYMENTS, metadata["namespace"], metadata["name"])
        service = self._projection.replicas.service_of(metadata["namespace"], metadata["name"])
        services = self._services
        if stored is None or service is None or services is None:
            return
        asked, most = int(stored["spec"].get("replicas", 1)), MOST_OF_GPU * len(self._engine.cluster.hardware.holder)
        if asked > most:
            about = {"apiVersion": "apps/v1", "kind": "Deployment", "name": metadata["name"], "uid": metadata["uid"]}
            why = f"{asked:,} replicas are more than this cluster can hold; {most:,} are simulated"
            tell(self._projection.client, about, metadata["namespace"], "NotSimulated", why)
        replicas = min(asked, most)
        if replicas != self._projection.replicas.replicas_of(service):
            name = service.deployment.name
            self._at_once(
                lambda now_s: self._checked.manager.stop(
                    now_s, lambda then_s: services.set_replicas(name, replicas, then_s)
                )
            )

    def _at_once(self, action: Callable[[float], None]) -> None:
        self._engine.at(self._engine.now_s, action)


def _names(gates: str) -> list[str]:
    return [each.strip() for each in gates.split(",") if each.strip()]


def _same(rows: list[Obj], known: tuple[Obj, ...]) -> bool:
    """True if the checks equal the known ones."""
    return {each["name"]: each for each in rows} == {each["name"]: each for each in known}


def _request(pod: Obj) -> Obj:
    """The request for a checkpoint on a pod; {} for no readable one."""
    return read_record((pod["metadata"].get("annotations") or {}).get(CHECKPOINT_REQUEST, ""))


def _request_of(pod: Obj) -> str:
    """Its id."""
    return str(_request(pod).get("id", ""))
