"""One gang of the simulator as a Job, its Workload and its pods."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from autopilot.contract.annotations import ELASTIC_JOB
from autopilot.core.model.snapshot import State
from autopilot.playground import conditions, pods
from autopilot.playground.conditions import Conditions
from autopilot.playground.mirror import Key
from autopilot.playground.naming import QUEUE, suffix
from autopilot.playground.queues import flavor_of
from autopilot.playground.shapes import (
    Member,
    contract_of,
    member_count,
    members_of,
    report_of,
    requests_of,
    resource_of,
)
from autopilot.playground.steps import GATED_BY, Checks
from autopilot.playground.times import stamp
from simulator.world.cluster import Cluster

Obj = dict[str, Any]
JOBS, PODS, WORKLOADS = "jobs.batch", "pods", "workloads.kueue.x-k8s.io"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]
TTL_S = 3600
"""Time until a finished Job is deleted with its pods."""


@dataclass(slots=True)
class Gang:
    """The known objects of one gang. `spec` is the Job's own if a person created it."""

    job: int
    namespace: str
    name: str
    queue: str  # its ClusterQueue
    created_s: float  # virtual
    uid: str = ""
    workload: str = ""
    workload_uid: str = ""
    by_person: bool = False
    plain: bool = False  # in no queue: without a Workload, and people and the autopilot write `suspend`
    template: Obj | None = None
    labels: dict[str, str] = field(default_factory=dict)
    life: Conditions = field(default_factory=Conditions)
    of_job: Conditions = field(default_factory=Conditions)
    start_s: float | None = None
    end_s: float | None = None
    failed: bool = False
    leaving: bool = False  # its pods were told to stop
    shown: dict[Key, Obj] = field(default_factory=dict)  # its pods
    evictions: int = 0
    checks: Checks | None = None  # with the autopilot acting
    first_gates: str = ""  # of its annotation at its creation
    elastic: bool = False  # a lever may change its width
    born: int = 0  # its incarnation at the first making of its pods; a change of its width keeps them
    numbers: dict[tuple[int, ...], int] = field(default_factory=dict)  # of its pods, by their GPUs

    def wide(self, whole: int) -> int:
        """GPUs requested by its Job, of `whole`."""
        return self.checks.gpus or whole if self.checks is not None else whole

    def runs(self, *, holds: bool) -> bool:
        """True if its Job is not suspended. `holds`: it has its GPUs."""
        return self.checks.admitted if self.checks is not None else holds

    def has_pods(self, *, holds: bool) -> bool:
        """True if its pods were made. `holds`: it has its GPUs."""
        return holds or (self.checks is not None and self.checks.made)

    @property
    def job_key(self) -> Key:
        """Of its Job."""
        return (JOBS, self.namespace, self.name)

    @property
    def workload_key(self) -> Key:
        """Of its Workload."""
        return (WORKLOADS, self.namespace, self.workload)


class GangObjects:
    """Builds the objects of gangs from the world as it is."""

    def __init__(self, cluster: Cluster, start_s: float, node_names: list[str]) -> None:
        """`start_s`: seconds since 1970 at virtual time 0."""
        self._cluster, self._start_s, self._nodes = cluster, start_s, node_names

    def real_s(self, virtual_s: float) -> float:
        """Seconds since 1970."""
        return self._start_s + virtual_s

    def job(self, gang: Gang) -> Obj:
        """The Job; for a person's Job only the fields of Kueue and the Job controller."""
        cluster, row = self._cluster, gang.job
        shape = cluster.jobs.shape_of(row)
        held = cluster.held[row]
        ended = gang.end_s is not None
        members = member_count(shape, len(held.gpus) if held is not None else shape.gpus)
        spec: Obj = {"suspend": not ended and not gang.runs(holds=held is not None)}
        if gang.plain:  # as it was created
            spec = {} if gang.by_person else {"suspend": True}
        metadata: Obj = {"name": gang.name, "namespace": gang.namespace}
        if gang.by_person:
            spec |= {} if gang.plain else _placed(gang)
        else:
            metadata |= {"labels": gang.labels, "annotations": contract_of(cluster, row) | _gates(gang.first_gates)}
            if gang.elastic:
                metadata["annotations"] = {**metadata["annotations"], ELASTIC_JOB: "true"}
                width: Obj = {
                    "parallelism": member_count(shape, gang.wide(shape.gpus)),
                    "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": DISRUPTED}]},
                }
            else:
                width = {"parallelism": members, "completions": members, "completionMode": "Indexed"}
            spec |= width | {
                "backoffLimit": 0,
                "ttlSecondsAfterFinished": TTL_S,
                "template": self.template(row, None if gang.plain else gang.checks),
            }
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": spec,
            "status": self._job_status(gang, members),
        }

    def template(self, row: int, checks: Checks | None = None) -> Obj:
        """The pod template of a simulated job; `checks`: with the additions of its admission."""
        cluster = self._cluster
        shape = cluster.jobs.shape_of(row)
        requests = requests_of(shape, min(shape.per_member, shape.gpus))
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": round(cluster.physics.grace_s) or pods.GRACE_S,
            "containers": [pods.container(requests)],
        }
        if checks is not None and checks.selector:
            spec["nodeSelector"] = checks.selector
        return {"metadata": {}, "spec": spec}

    def _job_status(self, gang: Gang, members: int) -> Obj:
        state = self._cluster.state[gang.job]
        held = self._cluster.held[gang.job] is not None
        holds = gang.end_s is None and gang.has_pods(holds=held)
        ready = state == State.RUNNING and not gang.leaving
        status: Obj = {
            "conditions": gang.of_job.rows(),
            "active": members if holds and not gang.leaving else 0,
            "ready": members if holds and ready else 0,
            "terminating": members if holds and gang.leaving else 0,
            "uncountedTerminatedPods": {},
        }
        for row in status["conditions"]:
            row["lastProbeTime"] = row["lastTransitionTime"]
        runs = gang.runs(holds=held) or (gang.plain and holds)  # Kueue removes the time as it suspends a Job
        if gang.start_s is not None and ((holds and runs) or gang.end_s is not None):
            status["startTime"] = stamp(self.real_s(gang.start_s))
        if gang.end_s is not None:
            status["failed" if gang.failed else "succeeded"] = members
            if not gang.failed:
                status["completionTime"] = stamp(self.real_s(gang.end_s))
                if not gang.elastic:
                    status["completedIndexes"] = f"0-{members - 1}" if members > 1 else "0"
        return status

    def workload(self, gang: Gang) -> Obj:
        """Kueue's Workload for the Job."""
        cluster, row = self._cluster, gang.job
        shape = cluster.jobs.shape_of(row)
        template = gang.template if gang.template is not None else self.template(row)
        count = member_count(shape, gang.wide(shape.gpus))
        least = count if gang.elastic else member_count(shape, shape.min_gpus)
        if gang.template is not None:
            template = _with_defaults(template, requests_of(shape, min(shape.per_member, shape.gpus)))
        pod_set: Obj = {"name": "main", "count": count, "template": template}
        if least < count and not gang.by_person:
            pod_set["minCount"] = least
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": gang.name,
            "uid": gang.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        spec: Obj = {
            "active": gang.checks is None or gang.checks.active,
            "queueName": QUEUE,
            "podSets": [pod_set],
            "priority": cluster.jobs.priority[row],
        }
        if cluster.jobs.priority[row]:
            group = "kueue.x-k8s.io"
            name = f"priority-{cluster.jobs.priority[row]}"
            spec["priorityClassRef"] = {"group": group, "kind": "WorkloadPriorityClass", "name": name}
        status: Obj = {"conditions": gang.life.rows(observedGeneration=1)}
        held = cluster.held[row]
        if gang.checks is not None and gang.checks.rows:
            status["admissionChecks"] = list(gang.checks.rows)
        if held is not None and gang.life.true("QuotaReserved"):
            status["admission"] = self._admission(gang, len(held.gpus))
        elif gang.checks is not None and gang.checks.reserved:
            status["admission"] = self._admission(gang, gang.wide(shape.gpus))
        if gang.evictions:
            reason = gang.life.held["Evicted"]["reason"] if "Evicted" in gang.life.held else "Preempted"
            counts = [{"reason": reason, "underlyingCause": "", "count": gang.evictions}]
            status["schedulingStats"] = {"evictions": counts}
        return {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Workload",
            "metadata": {
                "name": gang.workload,
                "namespace": gang.namespace,
                "labels": {"kueue.x-k8s.io/job-uid": gang.uid},
                "annotations": _gates(gang.checks.gates if gang.checks is not None else ""),
                "ownerReferences": [owner],
            },
            "spec": spec,
            "status": status,
        }

    def _admission(self, gang: Gang, units: int) -> Obj:
        cluster = self._cluster
        shape, held = cluster.jobs.shape_of(gang.job), cluster.held[gang.job]
        members = member_count(shape, units)
        flavor = self._flavor(held.gpus[0]) if held is not None and held.gpus else "host"
        if held is None and gang.checks is not None and gang.checks.model >= 0:
            flavor = flavor_of(cluster.inventory.names.gpu_models[gang.checks.model])
        usage = {resource_of(shape): str(units)}
        found = {resource_of(shape): flavor}
        if shape.cpu_milli:
            usage["cpu"], found["cpu"] = f"{shape.cpu_milli * members}m", "host"
        if shape.memory_mib:
            usage["memory"], found["memory"] = f"{shape.memory_mib * members}Mi", "host"
        assignment = {"name": "main", "count": members, "flavors": found, "resourceUsage": usage}
        return {"clusterQueue": gang.queue, "podSetAssignments": [assignment]}

    def _flavor(self, gpu: int) -> str:
        hardware = self._cluster.hardware
        return flavor_of(self._cluster.inventory.names.gpu_models[hardware.model_of[hardware.node_of[gpu]]])

    def pods(self, gang: Gang, now_s: float) -> dict[Key, Obj]:
        """The pods of an admitted gang, by key: on their nodes, or (without GPUs) waiting for room."""
        cluster, row = self._cluster, gang.job
        found: dict[Key, Obj] = {}
        incarnation = gang.born if gang.elastic else cluster.incarnation[row]
        if cluster.held[row] is None:
            shape = cluster.jobs.shape_of(row)
            since_s = gang.checks.since_s if gang.checks is not None else self.real_s(now_s)
            wide = gang.wide(shape.gpus)
            for index in range(member_count(shape, wide)):
                name = f"{gang.name}-{index}-{suffix(f'{gang.uid}/{incarnation}/{index}')}"
                units = min(shape.per_member, wide - index * shape.per_member)
                pod = self._pod(gang, name, index, None, units)
                found[PODS, gang.namespace, name] = pod | {"status": pods.unplaced(since_s)}
            return found
        since_s, ready_s = cluster.start_s[row], cluster.ready_s[row]
        working = cluster.state[row] != State.STARTING
        for index, member in self._numbered(gang, members_of(cluster, row)):
            name = f"{gang.name}-{index}-{suffix(f'{gang.uid}/{incarnation}/{index}')}"
            bound_s = self.real_s(since_s)
            if working and isfinite(ready_s):
                status = pods.running(bound_s, bound_s, self.real_s(min(ready_s, now_s)))
            else:
                status = pods.starting(bound_s, bound_s)
            found[PODS, gang.namespace, name] = self._pod(gang, name, index, member.node, len(member.parts)) | {
                "status": status
            }
        return found

    def _numbered(self, gang: Gang, members: tuple[Member, ...]) -> list[tuple[int, Member]]:
        """The pods with their numbers: pods keep theirs through a change of width."""
        if not gang.elastic:
            return list(enumerate(members))
        last = max(gang.numbers.values(), default=-1)
        for member in members:
            if member.parts not in gang.numbers:
                last += 1
                gang.numbers[member.parts] = last
        held = {member.parts for member in members}
        for parts in gang.numbers.keys() - held:
            del gang.numbers[parts]
        return [(gang.numbers[member.parts], member) for member in members]

    def annotations(self, gang: Gang, now_s: float) -> dict[str, str]:
        """The report of a gang's first pod."""
        return report_of(self._cluster, gang.job, now_s, self._start_s)

    def _pod(self, gang: Gang, name: str, index: int, node: int | None, units: int) -> Obj:
        shape = self._cluster.jobs.shape_of(gang.job)
        template = gang.template if gang.template is not None else self.template(gang.job)
        spec = dict(template["spec"])
        if gang.template is None:
            spec["containers"] = [pods.container(requests_of(shape, units))]
        if node is not None:
            spec["nodeName"] = self._nodes[node]
        if gang.checks is not None and gang.checks.selector:
            spec["nodeSelector"] = gang.checks.selector
        if gang.checks is not None and gang.checks.tolerations:
            spec["tolerations"] = list(gang.checks.tolerations)
        labels = dict(template.get("metadata", {}).get("labels") or {}) | {
            "batch.kubernetes.io/controller-uid": gang.uid,
            "batch.kubernetes.io/job-name": gang.name,
            INDEX_LABEL: str(index),
            "job-name": gang.name,
        }
        if not gang.plain:
            labels |= {
                "kueue.x-k8s.io/cluster-queue-name": gang.queue,
                "kueue.x-k8s.io/local-queue-name": QUEUE,
                "kueue.x-k8s.io/podset": "main",
            }
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": gang.name,
            "uid": gang.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        metadata = {
            "name": name,
            "namespace": gang.namespace,
            "labels": labels,
            "annotations": {INDEX_LABEL: str(index)}
            | ({} if gang.plain else {"kueue.x-k8s.io/workload": gang.workload}),
            "ownerReferences": [owner],
        }
        return pods.pod(metadata, spec)


def _with_defaults(template: Obj, requests: dict[str, str]) -> Obj:
    """A template as counted by Kueue: the requests include the defaults of a LimitRange."""
    first, *others = template["spec"]["containers"]
    if any(set(requests) & set((each.get("resources") or {}).get("requests") or {}) for each in (first, *others)):
        return template
    resources = first.get("resources") or {}
    asked = {name: (resources.get(name) or {}) | requests for name in ("requests", "limits")}
    return template | {"spec": template["spec"] | {"containers": [first | {"resources": asked}, *others]}}


def _gates(gates: str) -> dict[str, str]:
    """The annotation with the gates of held work."""
    return {GATED_BY: gates} if gates else {}


def _placed(gang: Gang) -> Obj:
    """The node selector in the template of a person's Job: their own, or with the additions of its admission."""
    if gang.checks is None or gang.template is None:
        return {}
    selector = gang.checks.selector or gang.template["spec"].get("nodeSelector")
    return {"template": {"spec": {"nodeSelector": selector} if selector else {}}}


def waits_because(cluster: Cluster, job: int) -> str:
    """Reason for a gang's wait, in Kueue's words."""
    hardware, shape = cluster.hardware, cluster.jobs.shape_of(job)
    free = sum(hardware.free[node] for node in range(len(hardware.free)) if hardware.is_open(node))
    flavor = flavor_of(cluster.inventory.names.gpu_models[0])
    if shape.profile or shape.gpus > free:
        short = shape.gpus if shape.profile else shape.gpus - free
        return (
            f"couldn't assign flavors to pod set main: insufficient unused quota for {resource_of(shape)} in flavor "
            f"{flavor}, {short} more needed"
        )
    wanted = member_count(shape, shape.gpus)
    fitting = sum(hardware.free[node] // max(shape.per_member, 1) for node in range(len(hardware.free)))
    return (
        f'couldn\'t assign flavors to pod set main: topology "nodes" allows to fit only {min(fitting, wanted - 1)} out '
        f"of {wanted} pod(s)"
    )


def began(gang: Gang, now_s: float, real_s: float) -> None:
    """Its quota is reserved and its Job resumes; with checks this happened before."""
    gang.start_s, gang.leaving = now_s, False
    if gang.checks is not None:
        return
    conditions.admitted(gang.life, gang.queue, real_s)
    conditions.job_resumed(gang.of_job, real_s)


def stopped(gang: Gang, reason: str, real_s: float) -> None:
    """It has left its GPUs and waits again."""
    gang.start_s, gang.leaving = None, False
    gang.evictions += 1
    conditions.requeued(gang.life, reason, real_s)
    conditions.job_suspended(gang.of_job, real_s)


def ended(gang: Gang, now_s: float, real_s: float, *, failed: bool) -> None:
    """It is over."""
    gang.end_s, gang.failed = now_s, failed
    conditions.finished(gang.life, failed=failed, at_s=real_s)
    conditions.job_ended(gang.of_job, failed=failed, at_s=real_s)
