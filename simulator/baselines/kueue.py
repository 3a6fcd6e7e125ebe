"""Kueue: quota, borrowing, best-effort FIFO and classical preemption, without any knowledge of run times.

A cycle takes the head of every queue, orders the heads, and lets each of them start if quota and room allow it, or
preempt others; cycles repeat until no gang can start. The product's own cohort rules
(autopilot/core/quota/rules/cohort.py), with the queue settings of the cluster file, decide the gangs to start, the
victims and the first head. Missing settings follow the preemption policy recommended by Kueue for a queue in a cohort:
reclaim from any borrowing queue, preempt lower priorities in the own queue, and do not preempt while borrowing.

- A blocked gang is set aside until something is freed, and those behind it are tried (Kueue: BestEffortFIFO).
  Gangs of one queue, shape and priority get the same answer: one of them is tested.
- In a `strict` queue no gang behind a blocked one is tried (Kueue: StrictFIFO).
- A queue that may reclaim from any queue keeps no quota idle for a waiting head (`keeps` of the rules is 0); for others
  nothing is kept here.
- Room is that of a scheduler below Kueue (simulator/world/placing.py); a gang with quota and without room
  preempts others as if it lacked quota, as Kueue does with a known topology.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from math import inf, nan

import numpy as np

from autopilot.core.model.snapshot import GPU_MILLI, Displace, QueueTable, make
from autopilot.core.quota.ledger import ALL, EPSILON, QuotaLedger, claim_kinds
from autopilot.core.quota.rules import cohort
from autopilot.core.quota.rules.base import Claim, Refusal, Target
from simulator.specs.clusterqueues import ROOT, QueueSpec
from simulator.world.cluster import Cluster
from simulator.world.hardware import Hardware
from simulator.world.placing import find_spot

COHORT = 1
"""Row of the cohort that all queues share; 0 is the root of the ledger, outside of every quota."""

FIRST_COME = "submission"
"""Order of a queue of Kueue: by priority, then by the time of submission."""
COHORT_NAME = "cohort"
"""Name of that row for a controller beside the engine."""

Group = tuple[int, int, int]
"""Gangs with the same answer: queue, negative priority, shape."""


@dataclass(frozen=True, slots=True)
class _Landing:
    """A gang holding quota until its victims have left; their incarnations by job."""

    claim: Claim
    victims: dict[int, int]


class Kueue:
    """The queues of a cluster file in one cohort."""

    name = "kueue"

    def __init__(self, queues: Sequence[QueueSpec] = ()) -> None:
        """`queues`: guarantees and limits; a tenant without a queue of its name has no guarantee and may borrow."""
        self._specs = tuple(queues)

    def attach(self, cluster: Cluster) -> None:
        """Take charge of `cluster`."""
        self._cluster = cluster
        self._lowest = inf  # of the priorities seen so far
        self._running: dict[int, Claim] = {}  # holding quota, and not leaving
        self._waiting: dict[Group, list[tuple[float, int]]] = {}  # heaps of (submit time, job)
        self._open: dict[int, set[Group]] = {}  # by queue: groups whose first gang may start by now
        self._landing: dict[int, _Landing] = {}
        self._held_up: set[int] = set()  # strict queues whose first gang cannot start by now
        self._open_books()

    # --- what happens to work --------------------------------------------------------------

    def on_submit(self, job: int, _now_s: float) -> None:
        """Insert it into its queue."""
        if self._cluster.jobs.tenant[job] >= len(self._queue_of):  # a tenant that was added later
            self._open_books()
        group = self._group(job)
        self._lowest = min(self._lowest, -group[1])
        heappush(self._waiting.setdefault(group, []), (self._cluster.jobs.submit_s[job], job))
        self._open.setdefault(group[0], set()).add(group)
        self._held_up.discard(group[0])  # it may precede the one that blocks the queue

    def on_requeue(self, job: int, now_s: float) -> None:
        """Return it to its queue, at the place of its submit time."""
        self.on_end(job, now_s)
        self.on_submit(job, now_s)

    def on_end(self, job: int, now_s: float) -> None:
        """Quota and room were freed; evicted work had returned its quota before."""
        claim = self._running.pop(job, None)
        if claim is not None:
            self._book(claim, -1)
        self.on_change(now_s)

    def on_change(self, _now_s: float) -> None:
        """All gangs set aside may start again."""
        self._held_up.clear()
        for group, waiting in self._waiting.items():
            if waiting:
                self._open[group[0]].add(group)

    def decide(self, now_s: float) -> None:
        """Cycles until no gang can start."""
        if self._landing:
            self._land(now_s)
        while groups := self._first_groups():
            able = []
            for group in groups:
                claim = self._claim(self._waiting[group][0][1])
                if self._fits(claim) or self._may_displace(claim):
                    able.append((claim, group))
                else:
                    self._set_aside(group)
            if len(able) > 1:
                able.sort(key=lambda head: (cohort.head_key(self._books, head[0]), head[0].row))
            for claim, group in able:
                if not self._start(claim, now_s) and not self._displace(claim, now_s):
                    self._set_aside(group)

    def _set_aside(self, group: Group) -> None:
        """The first gang of a group cannot start now; in a strict queue it blocks the queue."""
        if self._strict[group[0]]:
            self._held_up.add(group[0])
        else:
            self._open[group[0]].discard(group)

    # --- one cycle ---------------------------------------------------------------------------

    def _first_groups(self) -> list[Group]:
        """The open group of each queue with the first gang in order. A queue with its head waiting for victims has no
        other head.
        """
        busy = {pipelined.claim.queue for pipelined in self._landing.values()}
        found = []
        for queue, groups in self._open.items():
            for group in list(groups):
                waiting = self._waiting[group]
                while waiting and not self._waits(waiting[0][1]):
                    heappop(waiting)  # it was started, or its owner withdrew it
                if not waiting:
                    groups.discard(group)
            if groups and queue not in busy and queue not in self._held_up:
                found.append(min(groups, key=lambda group: (group[1], self._waiting[group][0])))
        return found

    def _waits(self, job: int) -> bool:
        """True if a gang in a queue still waits for quota."""
        return job in self._cluster.pending

    def _fits(self, claim: Claim, targets: Sequence[Target] = ()) -> bool:
        """True if a gang has room once these have left."""
        hardware = without(self._cluster, [target.row for target in targets]) if targets else self._cluster.hardware
        return find_spot(hardware, self._cluster.jobs.shape_of(claim.row)) is not None

    def _may_displace(self, claim: Claim) -> bool:
        """True if the rules may name victims: their evaluation costs a hundred times as much as this test.

        They refuse unless its queue preempts while it borrows, runs lower priorities, or (itself, or a cohort of it
        below that of all) holds it within its own quota. The quota in use is the use in the ledger: nothing is kept
        from lending.
        """
        if self._books.queues.while_borrowing[claim.queue] != Displace.NEVER:
            return True
        if claim.priority > self._lowest and any(
            other.queue == claim.queue and other.priority < claim.priority for other in self._running.values()
        ):
            return True
        use, quota = self._books.use, self._quota
        return any(
            all(use[kind][queue] + claim.gpus <= quota[kind][queue] + EPSILON for kind in claim.kinds)
            for queue in self._books.paths[claim.queue][:-1]
        )

    def _start(self, claim: Claim, now_s: float) -> bool:
        """Start on idle quota and idle GPUs."""
        cluster, job = self._cluster, claim.row
        spot = find_spot(cluster.hardware, cluster.jobs.shape_of(job))
        if spot is None or cohort.may_start(self._books, claim) is not None:
            return False
        if cluster.start(job, spot.gpus, now_s, instances=spot.instances) is not None:
            return False
        held = claim._replace(start_s=now_s, kinds=self._kinds(claim, spot.gpus))
        self._running[job] = held
        self._book(held, 1)
        return True

    def _displace(self, claim: Claim, now_s: float) -> bool:
        """Evict the victims named by the rules, and start at once or after the last of them has left."""
        if not self._may_displace(claim):
            return False
        targets = cohort.targets(self._books, claim, list(self._running.values()), partial(self._fits, claim))
        if isinstance(targets, Refusal):
            return False
        victims = {target.row: self._cluster.incarnation[target.row] for target in targets}
        for job in victims:
            self._book(self._running.pop(job), -1)
            self._evict(job, claim.row, now_s)
        pipelined = _Landing(claim, victims)
        if self._gone(pipelined):
            return self._start(claim, now_s)
        self._landing[claim.row] = pipelined
        self._book(claim, 1)
        return True

    def _evict(self, job: int, _newcomer: int, now_s: float) -> None:
        """Stop a victim for another gang."""
        self._cluster.evict(job, now_s)

    def _gone(self, pipelined: _Landing) -> bool:
        cluster = self._cluster
        return all(
            cluster.incarnation[job] != number or cluster.held[job] is None for job, number in pipelined.victims.items()
        )

    def _land(self, now_s: float) -> None:
        """Start gangs after their victims have left; one without room keeps waiting."""
        for job, pipelined in list(self._landing.items()):
            there = self._waits(job)
            if there and not self._gone(pipelined):
                continue
            del self._landing[job]
            self._book(pipelined.claim, -1)
            if there:
                self._start(pipelined.claim, now_s)
            self.on_change(now_s)

    # --- the books -----------------------------------------------------------------------------

    def _open_books(self) -> None:
        """A ledger with a queue for every tenant, and all present bookings."""
        self._books, self._queue_of = quota_books(self._specs, self._cluster)
        self._strict: list[bool] = self._books.queues.strict.tolist()
        self._quota = [cohort.cohort_tree(self._books, kind, COHORT).quota for kind in range(len(self._books.use))]
        for claim in (*self._running.values(), *(pipelined.claim for pipelined in self._landing.values())):
            self._book(claim, 1)

    def _group(self, job: int) -> Group:
        jobs = self._cluster.jobs
        return self._queue_of[jobs.tenant[job]], -jobs.priority[job], jobs.shape[job]

    def _claim(self, job: int) -> Claim:
        """A waiting gang as the rules see it."""
        jobs, shape = self._cluster.jobs, self._cluster.jobs.shape_of(job)
        gpus = shape.gpus if shape.profile else shape.full_milli / GPU_MILLI
        return Claim(
            row=job,
            queue=self._queue_of[jobs.tenant[job]],
            gpus=gpus,
            kinds=claim_kinds(self._books.kind_of_model, shape.models),
            priority=jobs.priority[job],
            submit_s=jobs.submit_s[job],
            start_s=nan,
            preemptible=jobs.preemptible[job],
            least_gpus=gpus,
            member_gpus=gpus,
        )

    def _kinds(self, claim: Claim, gpus: Sequence[int]) -> tuple[int, ...]:
        """The quota kinds of a gang on these GPUs: its model is known then."""
        if not gpus:
            return claim.kinds
        hardware = self._cluster.hardware
        return tuple(sorted({ALL, self._books.kind_of_model[hardware.model_of[hardware.node_of[gpus[0]]]]}))

    def _book(self, claim: Claim, sign: int) -> None:
        self._books.add(claim.queue, sign * claim.gpus, claim.kinds, preemptible=claim.preemptible)


def without(cluster: Cluster, jobs: Iterable[int]) -> Hardware:
    """A copy of the hardware without the allocations of these jobs."""
    hardware = copy(cluster.hardware)
    for column in ("holder", "instance_holder", "free_mask", "free", "by_free", "cpu_free", "memory_free"):
        setattr(hardware, column, getattr(hardware, column).copy())
    hardware.shares = {gpu: holders.copy() for gpu, holders in hardware.shares.items()}
    for job in jobs:
        held = cluster.held[job]
        if held is not None:
            hardware.give(job, cluster.jobs.shape_of(job), held)
    return hardware


def quota_books(specs: Sequence[QueueSpec], cluster: Cluster) -> tuple[QuotaLedger, list[int]]:
    """An empty ledger of the queues in one cohort, and the queue of each tenant by its code.

    The cohort itself owns the capacity beyond all guarantees: it can be lent. An inner queue is a cohort with its own
    guarantee in addition to those of its children. A tenant without a queue gets one without a guarantee.
    """
    models = cluster.inventory.names.gpu_models
    named = {spec.name for spec in specs}
    queues = [*specs]  # parents first
    queues += [QueueSpec(name, ROOT, {}, None, 1.0, 0, None) for name in cluster.jobs.tenants if name not in named]
    row = {spec.name: number for number, spec in enumerate(queues, COHORT + 1)}
    parent = [-1, 0, *(COHORT if spec.parent == ROOT else row[spec.parent] for spec in queues)]
    several = len(set(cluster.hardware.model_of)) > 1
    kind_of_model = tuple(range(1, len(models) + 1)) if several else (ALL,) * max(len(models), 1)
    capacity = _capacity(cluster, kind_of_model)
    kinds = {model: {ALL, kind} for model, kind in zip(models, kind_of_model, strict=False)}
    own, limits = [], []
    for kind, whole in enumerate(capacity):
        left = [0.0, whole]
        left += [float(sum(gpus for model, gpus in spec.guarantee.items() if kind in kinds[model])) for spec in queues]
        promised = left.copy()
        for queue, above in enumerate(parent[COHORT + 1 :], COHORT + 1):
            left[above] -= promised[queue]
        own.append([max(gpus, 0.0) for gpus in left])
        limits.append(
            [
                inf,
                inf,
                *(_limit(spec, kind, dict(zip(models, kind_of_model, strict=False))) for spec in queues),
            ]
        )
    count = len(parent)
    plain = QueueSpec("", ROOT, {}, None, 1.0, 0, None)
    rows = [plain, plain, *queues]
    table: QueueTable = make(
        QueueTable,
        id=["root", "cohort", *row],
        parent=parent,
        guarantee=np.zeros((count, len(models)), np.int32),
        strict=[spec.strict for spec in rows],
        borrow_limit=[-1 if spec.borrow_limit is None else spec.borrow_limit for spec in rows],
        lend_limit=[-1 if spec.lend_limit is None else spec.lend_limit for spec in rows],
        within_queue=[spec.within_queue for spec in rows],
        reclaim=[spec.reclaim for spec in rows],
        while_borrowing=[spec.while_borrowing for spec in rows],
        while_borrowing_priority=[spec.while_borrowing_priority for spec in rows],
    )
    paths: list[tuple[int, ...]] = []
    for queue, above in enumerate(parent):
        paths.append((queue, *paths[above]) if above >= 0 else ())
    none = [[0.0] * count for _ in own]
    ledger = QuotaLedger(
        queues=table,
        parent=parent,
        paths=paths,
        capacity=capacity,
        guarantee=own,
        limit=limits,
        use=deepcopy(none),
        sheltered=deepcopy(none),
        fair=none,
        guarantee_binds=False,
        kind_of_model=kind_of_model,
        children=[[queue for queue in range(count) if parent[queue] == above] for above in range(count)],
    )
    return ledger, [row[name] for name in cluster.jobs.tenants]


def cohort_specs(specs: Sequence[QueueSpec], cluster: Cluster) -> tuple[QueueSpec, ...]:
    """The same queues for a controller beside the engine: one cohort with all capacity, and every queue below it.

    A tenant without a queue has one without a guarantee.
    """
    named = {spec.name for spec in specs}
    name = COHORT_NAME
    while name in named or name in cluster.jobs.tenants:
        name += "-"
    models = cluster.inventory.names.gpu_models
    owned = dict(zip(models, _capacity(cluster, range(1, len(models) + 1))[1:], strict=True))
    for spec in specs:
        if spec.parent == ROOT:  # guarantees above the capacity: the cohort owns nothing else
            owned = {model: gpus - spec.guarantee.get(model, 0) for model, gpus in owned.items()}
    whole = {
        model: round(max(rest, 0.0)) + sum(spec.guarantee.get(model, 0) for spec in specs if spec.parent == ROOT)
        for model, rest in owned.items()
    }
    above = QueueSpec(name, ROOT, whole, None, 1.0, 0, FIRST_COME)
    below = [replace(spec, order=FIRST_COME, parent=name if spec.parent == ROOT else spec.parent) for spec in specs]
    others = [QueueSpec(each, name, {}, None, 1.0, 0, FIRST_COME) for each in cluster.jobs.tenants if each not in named]
    return (above, *below, *others)


def _limit(spec: QueueSpec, kind: int, kind_of_model: dict[str, int]) -> float:
    """The hard limit of a queue in one kind; with a single GPU model, its limit is that of all GPUs."""
    stated = [limit for model, limit in spec.limit_by_model.items() if kind_of_model[model] == kind]
    stated += [spec.limit] if kind == ALL and spec.limit is not None else []
    return float(min(stated)) if stated else inf


def _capacity(cluster: Cluster, kind_of_model: Sequence[int]) -> list[float]:
    """Whole GPUs and MIG instances of the cluster, in total and by model."""
    hardware = cluster.hardware
    whole = [0.0] * (max(kind_of_model) + 1)
    entries = [gpu for gpu, cut in enumerate(hardware.mig) if not cut]
    entries += [gpu for gpu, rows in hardware.cut.items() for _ in rows]
    for gpu in entries:
        for kind in {ALL, kind_of_model[hardware.model_of[hardware.node_of[gpu]]]}:
            whole[kind] += 1.0
    return whole
