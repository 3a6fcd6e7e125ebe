"""The protocol of a policy of yours, and its view of the cluster.

A policy has one method, `decide(view)`, called after all events of one instant: jobs arrived or
ended, the hardware changed, or the time came that its last call returned. It starts and evicts work by methods of the
view. docs/research.md has a tutorial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Protocol, runtime_checkable

from autopilot.core.model.snapshot import SLO_CLASS_NAMES
from simulator.world.allocation import Refusal
from simulator.world.cluster import Cluster
from simulator.world.placing import Spot, find_spot

FIRST_REFUSALS = 5
"""Number of refused requests that a run keeps in full; all are counted."""


@dataclass(frozen=True)  # without slots, whose message for an unknown field names nothing
class Job:
    """One job, as it was submitted. Times are virtual seconds from the start of the run."""

    row: int  # its place in the input; stable during a run
    id: str
    tenant: str
    user: str  # "": not stated
    gpus: int
    min_gpus: int  # the fewest that may start: below `gpus` for elastic gangs
    submit_s: float
    duration_s: float  # its true run time at full width, which no real scheduler knows; inf for a replica of a service
    limit_s: float  # the run time that its owner declared; NaN: none
    priority: int
    slo_class: str  # latency-critical, interactive or batch
    preemptible: bool  # may be evicted
    service: bool  # a replica of a service, not a job


@dataclass(frozen=True)
class Running:
    """A job on its GPUs."""

    job: Job
    gpus: tuple[int, ...]  # GPU numbers, one for each GPU (or MIG instance) that it holds
    start_s: float  # of this stay on GPUs
    progress_s: float  # of `job.duration_s`, this stay included
    leaving: bool  # evicted, and still on its GPUs


@dataclass(frozen=True)
class Node:
    """One node. `open` is False if it is down or cordoned: nothing starts there."""

    name: str
    gpu_model: str
    gpus: int
    free: tuple[int, ...]  # the numbers of its free whole GPUs
    open: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A refused request of a policy."""

    at_s: float
    request: str  # start | evict
    job_id: str
    row: int
    reason: str


@runtime_checkable
class Policy(Protocol):
    """A scheduling policy. Each run makes a new one, so the contents of its attributes are of one run.

    An attribute `decide_limit_s` states how long one call may take in real time; the default is 30 s.
    """

    def decide(self, view: View) -> float | None:
        """Start and evict work. Returns the virtual time of a call without an event before it, or None."""
        ...


class View:
    """The cluster at one moment. It shows copies: only `start` and `evict` change anything."""

    __slots__ = ("_cluster", "_jobs", "_now_s", "_refusals", "_refused")

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._now_s = 0.0
        self._jobs: dict[int, Job] = {}
        self._refused: list[Refused] = []
        self._refusals: Counter[str] = Counter()

    def at(self, now_s: float) -> None:
        """Set the moment of the view; the engine calls it."""
        self._now_s = now_s

    @property
    def now_s(self) -> float:
        """Virtual seconds since the start of the run."""
        return self._now_s

    @property
    def waiting(self) -> tuple[Job, ...]:
        """The waiting jobs, in the order of the input: new ones, and stopped ones."""
        return tuple(self._job(row) for row in sorted(self._cluster.pending))

    @property
    def running(self) -> tuple[Running, ...]:
        """The jobs on GPUs, in the order of their starts."""
        cluster = self._cluster
        return tuple(
            Running(
                job=self._job(row),
                gpus=held.gpus,
                start_s=cluster.since_s[row],
                progress_s=cluster.progress_s(row, self._now_s),
                leaving=row in cluster.leaving,
            )
            for row in cluster.holding
            if (held := cluster.held[row]) is not None
        )

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, in the order of the cluster file."""
        hardware, inventory = self._cluster.hardware, self._cluster.inventory
        return tuple(
            Node(
                name=str(name),
                gpu_model=inventory.names.gpu_models[hardware.model_of[node]],
                gpus=hardware.node_gpus[node],
                free=tuple(hardware.lowest_free(node, hardware.free[node])),
                open=hardware.is_open(node),
            )
            for node, name in enumerate(inventory.nodes.id)
        )

    @property
    def free_gpus(self) -> int:
        """Free whole GPUs on open nodes."""
        hardware = self._cluster.hardware
        return sum(free for node, free in enumerate(hardware.free) if hardware.is_open(node))

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The first refused requests of this run."""
        return tuple(self._refused)

    @property
    def refusals(self) -> dict[str, int]:
        """The number of refused requests of this run, by reason."""
        return dict(self._refusals)

    def fits(self, job: Job) -> tuple[int, ...] | None:
        """The GPUs for the job in `start(job)`: on the fullest fitting nodes. None if it does not fit now."""
        spot = self._spot(_row(job))
        return None if spot is None else tuple(spot.gpus)

    def start(self, job: Job, gpus: Sequence[int] | None = None) -> bool:
        """Start a waiting job, all of it at once; False if nothing was started.

        Without `gpus` it is placed on the fullest fitting nodes, and it is no error if it does not fit now, or if its
        queue is at its limit. With them it starts on exactly these. An impossible start is refused,
        counted, and shown after the run.
        """
        row, cluster = _row(job), self._cluster
        if row not in cluster.pending:
            return self._refuse("start", row, Refusal.NOT_PENDING)
        if gpus is None:
            spot = self._spot(row)
            if spot is None or (cluster.limits is not None and not cluster.limits.allows(row, spot.gpus)):
                return False
        else:
            spot = Spot([index(gpu) for gpu in gpus])
        refusal = cluster.start(row, spot.gpus, self._now_s, instances=spot.instances)
        return refusal is None or self._refuse("start", row, refusal)

    def evict(self, job: Job) -> bool:
        """Stop a running job; it waits again once it has saved its progress and left. False if it is refused."""
        row, cluster = _row(job), self._cluster
        if not cluster.jobs.preemptible[row] and row in cluster.holding:
            return self._refuse("evict", row, Refusal.NOT_PREEMPTIBLE)
        refusal = cluster.evict(row, self._now_s)
        return refusal is None or self._refuse("evict", row, refusal)

    def _spot(self, row: int) -> Spot | None:
        limits = self._cluster.limits
        if limits is not None and not limits.room(row):
            return None
        return find_spot(self._cluster.hardware, self._cluster.jobs.shape_of(row))

    def _refuse(self, request: str, row: int, why: Refusal) -> bool:
        self._refusals[why.value] += 1
        if len(self._refused) < FIRST_REFUSALS:
            self._refused.append(Refused(self._now_s, request, self._cluster.jobs.id[row], row, why.value))
        return False

    def _job(self, row: int) -> Job:
        """The job of a row, made once; again if its owner declared something else meanwhile."""
        jobs, found = self._cluster.jobs, self._jobs.get(row)
        slo_class = SLO_CLASS_NAMES[jobs.slo_class[row]]
        if found is None or (found.preemptible, found.slo_class) != (jobs.preemptible[row], slo_class):
            shape = jobs.shape_of(row)
            found = self._jobs[row] = Job(
                row=row,
                id=jobs.id[row],
                tenant=jobs.tenants[jobs.tenant[row]],
                user=jobs.user[row],
                gpus=shape.gpus,
                min_gpus=shape.min_gpus,
                submit_s=jobs.submit_s[row],
                duration_s=jobs.duration_s[row],
                limit_s=jobs.limit_s[row],
                priority=jobs.priority[row],
                slo_class=slo_class,
                preemptible=jobs.preemptible[row],
                service=jobs.service[row] >= 0,
            )
        return found


def _row(job: Job) -> int:
    """Its row. Raises `TypeError` for anything but a job of the view."""
    if not isinstance(job, Job):
        raise TypeError(f"a Job of view.waiting or view.running[...].job is needed, not {type(job).__name__}")
    return job.row
