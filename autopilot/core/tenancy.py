"""The queue tree as books: what each queue uses, what it is owed, and what its hard limit leaves.

Counted are GPU entries: a whole GPU and a MIG instance are 1 each, a share of a GPU is its part. Where the
cluster has several GPU models each of them is counted too, so that a guarantee of one model is not paid in
another. Numbers of a queue include those of the queues below it. What is being given up counts no more.

Fair share (the division that KAI uses, and dominant resource fairness when there is one resource): on each
level a queue first gets what it is guaranteed, as far as it wants it; the rest is split by weight among those
that still want more, until nothing is left or nobody wants; then the same below each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from autopilot.core.snapshot import (
    F64,
    GPU_MILLI,
    I32,
    ClusterSnapshot,
    Gate,
    QueueTable,
    State,
    holding_mask,
)

ALL = 0
"""The kind that counts GPUs of every model."""

EPSILON = 1e-9
"""Shares are sums of quotients: they are compared with this slack."""


@dataclass(slots=True)
class Books:
    """One tick's quota books: [kind][queue], as plain lists because planning reads them one at a time."""

    queues: QueueTable
    parent: list[int]
    paths: list[tuple[int, ...]]  # each queue and its ancestors, without the root
    capacity: list[float]  # [kind]
    guarantee: list[list[float]]
    limit: list[float]
    use: list[list[float]]
    sheltered: list[list[float]]  # the part of `use` by work that may not be preempted
    fair: list[list[float]]
    guarantee_binds: bool  # work that may not be preempted starts inside guarantees only
    kind_of_model: tuple[int, ...] = (ALL,)  # by GPU model code
    children: list[list[int]] = field(default_factory=list)

    def add(self, queue: int, gpus: float, kinds: Sequence[int], *, preemptible: bool) -> None:
        """Book that work of `queue` holds `gpus` more (or fewer, when negative)."""
        for kind in kinds:
            use, sheltered = self.use[kind], self.sheltered[kind]
            for each in (*self.paths[queue], 0):
                use[each] += gpus
                if not preemptible:
                    sheltered[each] += gpus

    def saved(self) -> tuple[list[list[float]], list[list[float]]]:
        """What is used as it stands, for `restore`."""
        return [list(row) for row in self.use], [list(row) for row in self.sheltered]

    def restore(self, saved: tuple[list[list[float]], list[list[float]]]) -> None:
        """Back to what `saved` gave, to the last bit."""
        self.use, self.sheltered = saved

    def limit_room(self, queue: int) -> float:
        """GPUs that `queue` may still take under its own hard limit and every ancestor's; inf without one."""
        use, limit = self.use[ALL], self.limit
        return min((limit[each] - use[each] for each in (*self.paths[queue], 0)), default=inf)

    def guarantee_room(self, queue: int, kinds: Sequence[int]) -> float:
        """GPUs that work which may not be preempted can still take inside the guarantees of the whole path."""
        return min((self.guarantee[kind][each] - self.sheltered[kind][each]
                    for kind in kinds for each in self.paths[queue]), default=inf)  # fmt: skip

    def saturation(self, queue: int, extra: float, kinds: Sequence[int]) -> float:
        """(used + extra) / fair share, of the kind where that is largest; inf above a share of nothing."""
        return max(_ratio(self.use[kind][queue] + extra, self.fair[kind][queue]) for kind in kinds)

    def within_fair(self, queue: int, extra: float, kinds: Sequence[int]) -> bool:
        """True when `queue` stays within its fair share with `extra` more, in every kind."""
        return all(self.use[kind][queue] + extra <= self.fair[kind][queue] + EPSILON for kind in kinds)

    def within_guarantee(self, queue: int, extra: float, kinds: Sequence[int]) -> bool:
        """The same for its guarantee."""
        return all(self.use[kind][queue] + extra <= self.guarantee[kind][queue] + EPSILON for kind in kinds)

    def parting(self, one: int, other: int) -> tuple[int, int]:
        """The ancestors (or selves) of two queues at the level where their paths part; equal ones when one is in the other."""
        for mine, theirs in zip(reversed(self.paths[one]), reversed(self.paths[other]), strict=False):
            if mine != theirs:
                return mine, theirs
        return one, one


def _ratio(part: float, whole: float) -> float:
    if whole > EPSILON:
        return part / whole
    return inf if part > EPSILON else 0.0


def build_books(snapshot: ClusterSnapshot, capacity_gpus: F64, weight: F64 | None = None, *,
                shelter_always: bool = False) -> Books:  # fmt: skip
    """Books of a snapshot. `capacity_gpus` [kinds]: what can be handed out; `weight` [queues] replaces the tree's.

    Work that may not be preempted is bound to guarantees where the tree states any, or with `shelter_always`.

    Demand is what is held plus what waits at its full width, as far as limits allow.
    """
    queues, work = snapshot.queues, snapshot.workloads
    count = len(queues.id)
    kind_of_model = _kinds(snapshot)
    kinds = max(kind_of_model, default=ALL) + 1
    use, sheltered = np.zeros((kinds, count)), np.zeros((kinds, count))
    held = snapshot.placements
    entry = ~held.leaving & holding_mask(work)[held.workload]
    rows, gpus = held.workload[entry], np.where(held.instance[entry] < 0, held.milli[entry] / GPU_MILLI, 1.0)
    model = np.array(kind_of_model, np.int64)[snapshot.nodes.gpu_model[held.node[entry]]]
    firm = ~work.preemptible[rows]
    np.add.at(use[ALL], work.queue[rows], gpus)
    np.add.at(sheltered[ALL], work.queue[rows], gpus * firm)
    if kinds > 1:
        np.add.at(use, (model, work.queue[rows]), gpus)
        np.add.at(sheltered, (model, work.queue[rows]), gpus * firm)
    demand = use + _waiting(snapshot, kind_of_model, use.shape)
    limit = np.where(queues.limit >= 0, queues.limit.astype(float), np.inf)
    for queue in range(count - 1, 0, -1):  # children stand behind their parents
        above = queues.parent[queue]
        use[:, above] += use[:, queue]
        sheltered[:, above] += sheltered[:, queue]
        demand[:, above] += np.minimum(demand[:, queue], limit[queue])
    guarantee = _guarantees(queues, kind_of_model, kinds)
    chosen = queues.weight if weight is None else weight
    fair = np.stack([
        fair_shares(queues.parent, guarantee[kind], chosen, limit, demand[kind], float(capacity_gpus[kind]))
        for kind in range(kinds)
    ])  # fmt: skip
    parent: list[int] = queues.parent.tolist()
    return Books(queues, parent, _paths(parent), capacity_gpus.tolist(), guarantee.tolist(), limit.tolist(),
                 use.tolist(), sheltered.tolist(), fair.tolist(), shelter_always or bool(queues.guarantee.any()), kind_of_model,
                 _children(parent))  # fmt: skip


def capacity_by_kind(snapshot: ClusterSnapshot, usable: np.ndarray) -> F64:
    """Whole GPUs that are `usable` ([gpus]) and alive MIG instances, in all and by model. Shape [kinds]."""
    kind_of_model = _kinds(snapshot)
    total = np.zeros(max(kind_of_model, default=ALL) + 1)
    nodes, cuts = snapshot.nodes, snapshot.instances
    codes = nodes.gpu_model[snapshot.gpus.node[usable]]
    alive = cuts.gpu[cuts.profile >= 0]
    open_node = (nodes.ready & ~nodes.cordoned)[snapshot.gpus.node[alive]]
    codes = np.concatenate([codes, nodes.gpu_model[snapshot.gpus.node[alive[open_node]]]])
    total[ALL] = len(codes)
    if len(total) > 1 and len(codes):
        np.add.at(total, np.array(kind_of_model)[codes], 1.0)
    return total


def fair_shares(parent: I32, guarantee: F64, weight: F64, limit: F64, demand: F64, capacity: float) -> F64:
    """Fair share of every queue; the root's is the capacity. All shapes [queues]; parents come before children."""
    fair = np.zeros(len(parent))
    if not len(parent):
        return fair
    fair[0] = capacity
    want = np.minimum(demand, limit)
    order = np.argsort(parent, kind="stable")
    edges = np.searchsorted(parent[order], np.arange(len(parent) + 1))
    for queue in range(len(parent)):
        below = order[edges[queue] : edges[queue + 1]]
        if len(below):
            fair[below] = _split(fair[queue], guarantee[below], weight[below], want[below])
    return fair


def _split(available: float, guarantee: F64, weight: F64, want: F64) -> F64:
    """Guarantees first, the rest by weight among those that want more, until nothing is left."""
    share = np.minimum(guarantee, want)
    rest = max(available - float(share.sum()), 0.0)
    while rest > EPSILON:
        hungry = (want - share > EPSILON) & (weight > 0)
        if not hungry.any():
            break
        gift = np.where(hungry, rest * weight / float(weight[hungry].sum()), 0.0)
        given = np.minimum(gift, want - share)
        share = share + given
        rest -= float(given.sum())
        if (given >= gift - EPSILON).all():
            break
    return share


def _kinds(snapshot: ClusterSnapshot) -> tuple[int, ...]:
    """Kind of each GPU model: its own where the nodes have several models."""
    codes = snapshot.names.gpu_models
    if len(np.unique(snapshot.nodes.gpu_model)) < 2:
        return (ALL,) * max(len(codes), 1)
    return tuple(range(1, len(codes) + 1))


def claim_kinds(kind_of_model: Sequence[int], models: int) -> tuple[int, ...]:
    """Kinds that a gang surely draws on: all GPUs, and its model's when it may use one model alone.

    `models` is a bit set over the model codes; 0 for any.
    """
    if models and models & (models - 1) == 0 and models.bit_length() <= len(kind_of_model):
        kind = kind_of_model[models.bit_length() - 1]
        return (ALL, kind) if kind != ALL else (ALL,)
    return (ALL,)


def _waiting(snapshot: ClusterSnapshot, kind_of_model: Sequence[int], shape: tuple[int, ...]) -> F64:
    """Width of what waits and is not switched off, by kind and queue. Shape [kinds, queues]."""
    work = snapshot.workloads
    rows = np.flatnonzero((work.state == State.PENDING) & (work.gate != Gate.REJECTED))
    width = np.where(
        work.gpu_milli[rows] > 0, work.gpus[rows] * work.gpu_milli[rows] / GPU_MILLI, work.gpus[rows]
    )
    waiting = np.zeros(shape)
    np.add.at(waiting[ALL], work.queue[rows], width)
    if shape[0] > 1:
        for models in np.unique(work.gpu_models[rows]).tolist():
            for kind in claim_kinds(kind_of_model, int(models))[1:]:
                same = work.gpu_models[rows] == models
                np.add.at(waiting[kind], work.queue[rows[same]], width[same])
    return waiting


def _guarantees(queues: QueueTable, kind_of_model: Sequence[int], kinds: int) -> F64:
    """Guaranteed GPUs by kind and queue; the root is guaranteed nothing. Shape [kinds, queues]."""
    guarantee = np.zeros((kinds, len(queues.id)))
    if queues.guarantee.size:
        guarantee[ALL] = queues.guarantee.sum(axis=1)
        if kinds > 1:
            for model, kind in enumerate(kind_of_model):
                guarantee[kind] = queues.guarantee[:, model]
    return guarantee


def _paths(parent: Sequence[int]) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for queue, above in enumerate(parent):
        paths.append(() if above < 0 else (queue, *paths[above]))
    return paths


def _children(parent: Sequence[int]) -> list[list[int]]:
    below: list[list[int]] = [[] for _ in parent]
    for queue, above in enumerate(parent):
        if above >= 0:
            below[above].append(queue)
    return below
