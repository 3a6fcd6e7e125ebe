"""Jobs created by people enter the simulation; their changes of Jobs, pods and cordons reach it too.

A Job enters through its LocalQueue. It asks for the GPUs of its pods' requests, or for one from a LimitRange. Its run
time is its own statement: `sleep N` as its command, the annotation below, else ten minutes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from math import nan
from typing import Any

from apiserver.server import Server
from apiserver.store import Event
from autopilot.contract import Contract, parse_contract
from autopilot.core.hardware.mig_profiles import find_profile_name
from autopilot.core.model.errors import InputError
from autopilot.core.model.units import parse_duration_s
from autopilot.playground.gangs import JOBS, PODS, QUEUE_LABEL
from autopilot.playground.naming import QUEUE
from autopilot.playground.projection import WRITER, Projection
from autopilot.playground.queues import LIMIT_RANGE
from autopilot.playground.shapes import GPU, MIG
from autopilot.playground.steps import GATED_BY
from autopilot.playground.telling import tell
from simulator.running.engine import Engine
from simulator.world.physics import up_to_grid
from simulator.world.placing import never_fits
from simulator.world.work import Shape

Obj = dict[str, Any]
DURATION = "playground.gpu-autopilot.io/duration"
"""Annotation of a Job: its run time, for example 20m."""
DEFAULT_S = 600.0
LOWERED_S = 1.0
"""Time for a Job to ask for fewer pods after an eviction of one, so the others go on."""
LONGEST_S = 30 * 86_400.0
_SLEEP = re.compile(r"\bsleep\s+(\d+(?:\.\d+)?[smhd]?)\b")
_PRIORITY = re.compile(r"priority-(\d{1,9})")


class Refused(Exception):  # noqa: N818 - its message is for the person who created the Job
    """A Job that cannot enter the simulation."""


class Submissions:
    """Changes of objects by people, carried into the simulation at the same virtual moment."""

    def __init__(self, engine: Engine, projection: Projection) -> None:
        self._engine, self._projection = engine, projection
        self._server: Server = projection.server
        self._client = self._server.client(WRITER, "playground")

    def listen(self) -> None:
        """Follow Jobs, pods and nodes from now on."""
        store = self._server.store
        store.subscribe(JOBS, self._on_job)
        store.subscribe(PODS, self._on_pod)
        store.subscribe("nodes", self._on_node)

    # --- Jobs ---------------------------------------------------------------------------------

    def _on_job(self, event: Event) -> None:
        metadata = event.obj["metadata"]
        job = self._projection.job_of_uid.get(metadata["uid"])
        if event.type == "ADDED" and job is None and self._server.store.get(JOBS, *_name(event.obj)) is not None:
            self._submit(event.obj)
        elif event.type == "DELETED" and job is not None:
            self._at_once(partial(self._withdraw, job))

    def _submit(self, stored: Obj) -> None:
        """Add the Job to the world, to be submitted at this virtual moment."""
        cluster, projection = self._engine.cluster, self._projection
        namespace, name = _name(stored)
        try:
            tenant = self._tenant_of(stored)
            shape, contract = self._shape_of(stored)
            duration_s = _duration_s(stored)
        except Refused as error:
            self._event(stored, "NotSimulated", str(error))
            return
        at_s = up_to_grid(self._engine.now_s)
        priority = _PRIORITY.fullmatch(
            (stored["metadata"].get("labels") or {}).get("kueue.x-k8s.io/priority-class", "")
        )
        job = cluster.jobs.add(
            f"{namespace}/{name}",
            tenant,
            shape,
            at_s,
            up_to_grid(duration_s),
            slo_class=int(contract.service.slo_class),
            preemptible=contract.preemption.preemptible,
            priority=int(priority[1]) if priority else contract.service.priority,
            limit_s=nan if contract.limits.limit_s is None else contract.limits.limit_s,
            checkpoint_interval_s=nan if contract.checkpoint.interval_s is None else contract.checkpoint.interval_s,
            checkpoint_gib=nan if contract.checkpoint.size_gib is None else contract.checkpoint.size_gib,
            restart_s=nan if contract.checkpoint.restart_s is None else contract.checkpoint.restart_s,
            preemption_delay_s=contract.preemption.preemption_delay_s,
            saves_on_request=bool(contract.checkpoint.on_request),
        )
        cluster.grow()
        if projection.checked is not None:
            if projection.checked.plain(job):
                projection.checked.open_plain(job, suspended=bool(stored["spec"].get("suspend")))
            else:
                gates = (stored["metadata"].get("annotations") or {}).get(GATED_BY, "")
                projection.checked.open(job, gates)
        projection.adopt(job, stored, at_s)
        self._at_once(lambda now_s: self._engine.submit(job, now_s))

    def _tenant_of(self, stored: Obj) -> str:
        """The tenant of its queue, or of a namespace without queue. Raises `Refused`."""
        namespace, _ = _name(stored)
        queue = (stored["metadata"].get("labels") or {}).get(QUEUE_LABEL, "")
        plain = self._projection.checked.without if self._projection.checked is not None else frozenset()
        for tenant in plain if not queue else ():
            if self._projection.namespace(tenant) == namespace:
                return tenant
        queue = queue or QUEUE
        if self._server.store.get("localqueues.kueue.x-k8s.io", namespace, queue) is None:
            known = sorted({each["metadata"]["namespace"] for each in self._client.list("localqueues.kueue.x-k8s.io")})
            raise Refused(
                f"namespace {namespace} has no LocalQueue {queue}; create the Job in one of the namespaces "
                f"{', '.join(known)} (kubectl -n NAMESPACE create job ...)"
            )
        for tenant in self._engine.cluster.jobs.tenants:
            if self._projection.namespace(tenant) == namespace:
                return tenant
        raise Refused(f"namespace {namespace} belongs to no tenant of the scenario")

    def _shape_of(self, stored: Obj) -> tuple[Shape, Contract]:
        """The request of its pods, with its workload contract. Raises `Refused`."""
        spec = stored["spec"]
        contract = parse_contract(stored["metadata"].get("annotations") or {})
        if not isinstance(contract, Contract):
            raise Refused("its workload contract is refused: " + "; ".join(str(each) for each in contract[:3]))
        requests = _requests(spec["template"]["spec"])
        if not requests and self._server.store.get("limitranges", _name(stored)[0], LIMIT_RANGE) is None:
            raise Refused(f"its pods request no GPU; request {GPU} or an instance of the nodes ({MIG}...)")
        members = min(spec.get("parallelism", 1), spec.get("completions") or spec.get("parallelism", 1))
        if members < 1:
            raise Refused("its parallelism is 0; create it with at least one pod")
        profile = next((name.removeprefix(MIG) for name in requests if name.startswith(MIG)), "")
        units = requests.get(f"{MIG}{profile}", 0) if profile else requests.get(GPU, 1)
        if profile and (units != 1 or find_profile_name(profile) is None):
            raise Refused(
                f"a pod of the playground takes one MIG instance of a known profile, not {units} of {profile}"
            )
        found = str(find_profile_name(profile) or "")
        least = min(max(contract.gang.min_members, 1), members) if contract.gang.min_members < members else members
        models = 0
        for code, name in enumerate(self._engine.cluster.inventory.names.gpu_models):
            models |= (name in contract.shape.gpu_type) << code
        shape = Shape(units * members, units, units * least, profile=found, models=models)
        reason = never_fits(self._engine.cluster.hardware, shape)
        if reason:
            raise Refused(f"it never fits on this cluster: {reason}")
        return shape, contract

    def _withdraw(self, job: int, now_s: float) -> None:
        self._projection.gone(job)
        self._engine.cluster.retire(job, now_s)

    # --- pods and nodes -----------------------------------------------------------------------

    def _on_pod(self, event: Event) -> None:
        """A person deleted a pod of a running gang: the gang fails and waits again, as a whole."""
        deleted = event.type == "DELETED" or "deletionTimestamp" in event.obj["metadata"]
        if not deleted:
            return
        namespace, name = _name(event.obj)
        job = self._projection.holder_of((PODS, namespace, name), event.obj["metadata"]["uid"])
        if job is None:
            return
        conditions = event.obj["status"].get("conditions") or ()
        evicted = any(each["type"] == "DisruptionTarget" and each["status"] == "True" for each in conditions)
        if evicted and self._projection.gangs[job].elastic:  # its Job may ask for fewer pods next
            number = self._engine.cluster.incarnation[job]
            self._engine.at(self._engine.now_s + LOWERED_S, partial(self._evict_whole, job, number))
        elif evicted and self._projection.checked is not None:  # with its grace, in which work saves its progress
            self._at_once(lambda now_s: self._engine.cluster.evict(job, now_s) and None)
        else:
            self._at_once(partial(self._fail, job))

    def _evict_whole(self, job: int, number: int, now_s: float) -> None:
        """A pod of a gang was evicted, and the gang did not go on without it."""
        if self._engine.cluster.incarnation[job] == number:
            self._engine.cluster.evict(job, now_s)

    def _fail(self, job: int, now_s: float) -> None:
        cluster = self._engine.cluster
        if job not in cluster.leaving:
            cluster.fail(job, now_s)

    def _on_node(self, event: Event) -> None:
        """A person cordoned or uncordoned a node."""
        row = self._projection.nodes.row.get(event.obj["metadata"]["name"])
        if row is None or event.type == "DELETED":
            return
        cordoned = bool(event.obj["spec"].get("unschedulable"))
        if cordoned != self._engine.cluster.hardware.cordoned[row]:
            self._at_once(lambda now_s: self._engine.cluster.cordon(row, now_s, cordoned=cordoned))

    # --- helpers ------------------------------------------------------------------------------

    def _at_once(self, action: Any) -> None:
        self._engine.at(self._engine.now_s, action)

    def _event(self, about: Obj, reason: str, message: str) -> None:
        """An Event about an object."""
        namespace, name = _name(about)
        kind = {"apiVersion": about.get("apiVersion", "batch/v1"), "kind": about.get("kind", "Job")}
        tell(self._client, kind | {"name": name, "uid": about["metadata"]["uid"]}, namespace, reason, message)


def _name(obj: Obj) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """GPUs and instances requested by the containers of a pod together."""
    found: dict[str, int] = {}
    for each in spec.get("containers") or ():
        resources = each.get("resources") or {}
        wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, amount in wanted.items():
            if name == GPU or name.startswith(MIG):
                if not str(amount).isdecimal():
                    raise Refused(f"it requests {amount} of {name}; request a whole number")
                found[name] = found.get(name, 0) + int(amount)
    return {name: amount for name, amount in found.items() if amount}


def _duration_s(stored: Obj) -> float:
    """Its run time (s). Raises `Refused`."""
    text = (stored["metadata"].get("annotations") or {}).get(DURATION, "")
    if not text:
        containers = stored["spec"]["template"]["spec"].get("containers") or ()
        words = " ".join(
            str(word) for each in containers for word in (*(each.get("command") or ()), *(each.get("args") or ()))
        )
        asleep = _SLEEP.search(words)
        if asleep is None:
            return DEFAULT_S
        text = asleep[1]
    try:
        duration_s = parse_duration_s(text, DURATION)
    except InputError as error:
        raise Refused(str(error)) from error
    if not 1 <= duration_s <= LONGEST_S:
        raise Refused(f"{DURATION}: {text} is not allowed; write 1s to 30d")
    return duration_s
