"""The quota ledger: the use, fair share and remaining limit of each queue in the tree.

The unit is the GPU: a whole GPU and a MIG instance count 1 each, a share of a GPU counts its part (`counting` has the
exceptions). In a cluster with several GPU models, each model is also counted separately, so that a guarantee of one
model is not met with another. Numbers of a queue include the queues below it. GPUs that are leaving (being released) no
longer count.

CPUs and memory of hosts are further resources, if all nodes state them and work requests them. The saturation of a
queue is the one of its dominant resource among the requests of its next gang; resources outside this request leave the
order alone. Preemption compares GPUs only, because it takes GPUs.

Fair share follows the division of KAI: with one resource it is dominant resource fairness. On each level, a queue first
gets its guarantee, up to its demand. The rest is split by weight among the queues with unmet demand, until nothing is
left or all demand is met. The same division then applies below each queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from autopilot.core.model.snapshot import F64, GPU_MILLI, I32, Bools, ClusterSnapshot, Gate, QueueTable, State
from autopilot.core.model.work import entry_milli, holding_mask
from autopilot.core.quota.counting import Counting

ALL = 0
"""The kind that counts GPUs of every model."""

EPSILON = 1e-9
"""Tolerance of comparisons: shares are sums of quotients."""


Saved = tuple[list[list[float]], list[list[float]], list[list[float]]]
"""Saved use: of GPUs, of GPUs by protected work, of host resources."""


@dataclass(slots=True)
class QuotaLedger:
    """The quota ledger of one tick: [kind][queue], in plain lists, because planning reads single elements."""

    queues: QueueTable
    parent: list[int]
    paths: list[tuple[int, ...]]  # each queue and its ancestors, without the root
    capacity: list[float]  # [kind]
    guarantee: list[list[float]]
    limit: list[list[float]]  # ALL: for all models together; other kinds: for one GPU model; inf: none
    use: list[list[float]]
    sheltered: list[list[float]]  # the part of `use` by protected work, without what is lent (protection.py)
    fair: list[list[float]]
    guarantee_binds: bool  # protected work starts only within guarantees
    kind_of_model: tuple[int, ...] = (ALL,)  # by GPU model code
    children: list[list[int]] = field(default_factory=list)
    # [resource][queue]: CPUs, memory; empty: not counted
    host_use: list[list[float]] = field(default_factory=list)
    host_fair: list[list[float]] = field(default_factory=list)
    limits_models: bool = False  # the nodes have several GPU models and a queue has a limit for one
    entries: int = 0  # changes so far: derived values stay valid while it does not grow

    def add(self, queue: int, gpus: float, kinds: Sequence[int], *, preemptible: bool) -> None:
        """Record that work of `queue` holds `gpus` more (fewer if negative)."""
        self.entries += 1
        for kind in kinds:
            use, sheltered = self.use[kind], self.sheltered[kind]
            for each in (*self.paths[queue], 0):
                use[each] += gpus
                if not preemptible:
                    sheltered[each] += gpus

    def add_host(self, queue: int, amounts: Sequence[float]) -> None:
        """Record that work of `queue` uses `amounts` more CPU and memory (less if negative)."""
        self.entries += 1
        for use, amount in zip(self.host_use, amounts, strict=False):
            for each in (*self.paths[queue], 0):
                use[each] += amount

    def lend(self, queue: int, gpus: Mapping[int, float]) -> None:
        """Count GPUs (by kind) that protected work of `queue` holds as lent: no longer as protected."""
        self.entries += 1
        for kind, lent in gpus.items():
            for each in (*self.paths[queue], 0):
                self.sheltered[kind][each] -= lent

    def saved(self) -> Saved:
        """A copy of the present use, for `restore`."""
        return (
            [list(row) for row in self.use],
            [list(row) for row in self.sheltered],
            [list(row) for row in self.host_use],
        )

    def restore(self, saved: Saved) -> None:
        """Restore the use from `saved`, bit for bit."""
        self.entries += 1
        self.use, self.sheltered, self.host_use = saved

    def limit_room(self, queue: int, kinds: Sequence[int] = (ALL,)) -> float:
        """GPUs left to `queue` under its hard limits and those of its ancestors; inf without a limit."""
        room = inf
        for kind in kinds:
            limit, use = self.limit[kind], self.use[kind]
            for each in (*self.paths[queue], 0):  # with the root
                room = min(room, limit[each] - use[each])
        return room

    def over_limit(self, queue: int, extra: float, kinds: Sequence[int]) -> bool:
        """True if `queue` itself would exceed one of its hard limits with `extra` more."""
        return any(self.use[kind][queue] + extra > self.limit[kind][queue] + EPSILON for kind in kinds)

    def guarantee_room(self, queue: int, kinds: Sequence[int]) -> float:
        """GPUs left to protected work within the guarantees of the whole path."""
        return min(
            (self.guarantee[kind][each] - self.sheltered[kind][each] for kind in kinds for each in self.paths[queue]),
            default=inf,
        )

    def saturation(self, queue: int, extra: float, kinds: Sequence[int], host: Sequence[float] = ()) -> float:
        """(use + extra) / fair share of the dominant resource; inf for use above a share of zero.

        `host`: CPU and memory to be added; a resource with 0 to add is left out.
        """
        served = -inf
        for kind in kinds:
            served = max(served, _ratio(self.use[kind][queue] + extra, self.fair[kind][queue]))
        for use, fair, amount in zip(self.host_use, self.host_fair, host, strict=False):
            if amount > 0:
                served = max(served, _ratio(use[queue] + amount, fair[queue]))
        return served

    def within_fair(self, queue: int, extra: float, kinds: Sequence[int]) -> bool:
        """True if `queue` stays within its fair share of each kind with `extra` more."""
        return all(self.use[kind][queue] + extra <= self.fair[kind][queue] + EPSILON for kind in kinds)

    def within_guarantee(self, queue: int, extra: float, kinds: Sequence[int]) -> bool:
        """True if `queue` stays within its guarantee of each kind with `extra` more."""
        return all(self.use[kind][queue] + extra <= self.guarantee[kind][queue] + EPSILON for kind in kinds)

    def parting(self, one: int, other: int) -> tuple[int, int]:
        """The first unlike ancestors of two queues (or the queues themselves); equal if one contains the other."""
        for mine, theirs in zip(reversed(self.paths[one]), reversed(self.paths[other]), strict=False):
            if mine != theirs:
                return mine, theirs
        return one, one


def _ratio(part: float, whole: float) -> float:
    if whole > EPSILON:
        return part / whole
    return inf if part > EPSILON else 0.0


def build_ledger(
    snapshot: ClusterSnapshot,
    capacity_gpus: F64,
    weight: F64 | None = None,
    *,
    shelter_always: bool = False,
    protected: Bools | None = None,
    counted: Counting | None = None,
) -> QuotaLedger:
    """The ledger of a snapshot.

    `capacity_gpus` [kinds] are the GPUs that can be allocated. `weight` [queues] replaces the weights of the tree.
    `protected` [workloads] is bound to guarantees if the tree states any, or with `shelter_always`; None: work that is
    not preemptible. Demand is the GPUs held plus those of pending work at full width, up to the limits. `counted`: see
    `counting`.
    """
    queues, work = snapshot.queues, snapshot.workloads
    count = len(queues.id)
    kind_of_model = _kinds(snapshot)
    kinds = max(kind_of_model, default=ALL) + 1
    use, sheltered = np.zeros((kinds, count)), np.zeros((kinds, count))
    held = snapshot.placements
    entry = ~held.leaving & holding_mask(work)[held.workload]
    rows, gpus = held.workload[entry], (entry_milli(held) / GPU_MILLI if counted is None else counted.held)[entry]
    model = np.array(kind_of_model, np.int64)[snapshot.nodes.gpu_model[held.node[entry]]]
    firm = (~work.preemptible if protected is None else protected)[rows]
    np.add.at(use[ALL], work.queue[rows], gpus)
    np.add.at(sheltered[ALL], work.queue[rows], gpus * firm)
    if kinds > 1:
        np.add.at(use, (model, work.queue[rows]), gpus)
        np.add.at(sheltered, (model, work.queue[rows]), gpus * firm)
    demand = use + _waiting(snapshot, kind_of_model, use.shape, counted)
    limit = _limits(queues, kind_of_model, kinds)
    most = np.minimum(limit, limit[ALL])
    for queue in range(count - 1, 0, -1):  # children come after their parents
        above = queues.parent[queue]
        use[:, above] += use[:, queue]
        sheltered[:, above] += sheltered[:, queue]
        demand[:, above] += np.minimum(demand[:, queue], most[:, queue])
    guarantee = _guarantees(queues, kind_of_model, kinds)
    chosen = _weights(queues, queues.weight if weight is None else weight, kind_of_model, kinds)
    fair = np.stack(
        [
            fair_shares(
                queues.parent, guarantee[kind], chosen[kind], most[kind], demand[kind], float(capacity_gpus[kind])
            )
            for kind in range(kinds)
        ]
    )
    host_use, host_fair = _host_shares(snapshot, guarantee[ALL], chosen[ALL], float(capacity_gpus[ALL]))
    parent: list[int] = queues.parent.tolist()
    return QuotaLedger(
        queues,
        parent,
        _paths(parent),
        capacity_gpus.tolist(),
        guarantee.tolist(),
        limit.tolist(),
        use.tolist(),
        sheltered.tolist(),
        fair.tolist(),
        shelter_always or bool(queues.guarantee.any()),
        kind_of_model,
        _children(parent),
        host_use,
        host_fair,
        bool(np.isfinite(limit[ALL + 1 :]).any()),
    )


def _host_shares(
    snapshot: ClusterSnapshot, guarantee: F64, weight: F64, capacity_gpus: float
) -> tuple[list[list[float]], list[list[float]]]:
    """Use and fair shares of CPU (milli) and memory (MiB) by queue. Shapes [resource][queue].

    Both are empty if neither resource is stated and requested. The share is inf for a resource without a request, or
    without a statement by some node. A guarantee of GPUs guarantees the same part of the host resources.
    """
    queues, nodes = snapshot.queues, snapshot.nodes
    used, asked = host_amounts(snapshot)
    open_nodes = nodes.ready & ~nodes.cordoned
    stated = np.stack([nodes.cpu_milli, nodes.memory_mib])[:, open_nodes]
    counted = [
        bool(stated.shape[1]) and bool((stated[each] >= 0).all() and (used[each] + asked[each]).any())
        for each in range(2)
    ]
    if not any(counted):
        return [], []
    shares = np.full(used.shape, np.inf)
    demand = used + asked
    for queue in range(len(queues.id) - 1, 0, -1):  # children come after their parents
        used[:, queues.parent[queue]] += used[:, queue]
        demand[:, queues.parent[queue]] += demand[:, queue]
    for resource in np.flatnonzero(counted).tolist():
        capacity = float(stated[resource].sum())
        part = guarantee / capacity_gpus * capacity if capacity_gpus else np.zeros(len(guarantee))
        unlimited = np.full(len(part), np.inf)
        shares[resource] = fair_shares(queues.parent, part, weight, unlimited, demand[resource], capacity)
    return used.tolist(), shares.tolist()


def host_amounts(snapshot: ClusterSnapshot) -> tuple[F64, F64]:
    """CPU (milli) and memory (MiB) of each queue's own work: held, and requested by pending work. Both [2, queues]."""
    work, held = snapshot.workloads, snapshot.placements
    asks = np.stack([work.cpu_milli, work.memory_mib]) / np.maximum(work.gpus_per_member, 1)  # for each GPU
    count = len(snapshot.queues.id)
    used, asked = np.zeros((2, count)), np.zeros((2, count))
    rows = held.workload[~held.leaving & holding_mask(work)[held.workload]]
    waits = np.flatnonzero((work.state == State.PENDING) & (work.gate < Gate.REJECTED))
    for resource in range(2):
        np.add.at(used[resource], work.queue[rows], asks[resource, rows])
        np.add.at(asked[resource], work.queue[waits], asks[resource, waits] * work.gpus[waits])
    return used, asked


def capacity_by_kind(snapshot: ClusterSnapshot, usable: np.ndarray, counted: Counting | None = None) -> F64:
    """Number of `usable` [gpus] whole GPUs plus existing MIG instances, in total and by model. Shape [kinds]."""
    kind_of_model = _kinds(snapshot)
    total = np.zeros(max(kind_of_model, default=ALL) + 1)
    nodes, cuts = snapshot.nodes, snapshot.instances
    codes = nodes.gpu_model[snapshot.gpus.node[usable]]
    there = np.flatnonzero(cuts.profile >= 0)
    there = there[(nodes.ready & ~nodes.cordoned)[snapshot.gpus.node[cuts.gpu[there]]]]
    size = np.ones(len(codes) + len(there))
    if counted is not None:
        size[len(codes) :] = counted.instances[there]
    codes = np.concatenate([codes, nodes.gpu_model[snapshot.gpus.node[cuts.gpu[there]]]])
    total[ALL] = size.sum()
    if len(total) > 1 and len(codes):
        np.add.at(total, np.array(kind_of_model)[codes], size)
    return total


def fair_shares(parent: I32, guarantee: F64, weight: F64, limit: F64, demand: F64, capacity: float) -> F64:
    """Fair share of each queue; that of the root is `capacity`. Shapes [queues]; parents come before children."""
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
    """Split `available`: guarantees first, the rest by weight among unmet demand, until nothing is left."""
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
    """Kind of each GPU model: one per model if the nodes have several models, else ALL."""
    codes = snapshot.names.gpu_models
    if len(np.unique(snapshot.nodes.gpu_model)) < 2:
        return (ALL,) * max(len(codes), 1)
    return tuple(range(1, len(codes) + 1))


def claim_kinds(kind_of_model: Sequence[int], models: int) -> tuple[int, ...]:
    """Kinds in certain use by a gang: ALL, and the one of its model if it may use only one model.

    `models` is a bit set over the model codes; 0 for any.
    """
    if models and models & (models - 1) == 0 and models.bit_length() <= len(kind_of_model):
        kind = kind_of_model[models.bit_length() - 1]
        return (ALL, kind) if kind != ALL else (ALL,)
    return (ALL,)


def _waiting(
    snapshot: ClusterSnapshot, kind_of_model: Sequence[int], shape: tuple[int, ...], counted: Counting | None
) -> F64:
    """Width of pending work without a rejection by a check, by kind and queue. Shape [kinds, queues]."""
    work = snapshot.workloads
    rows = np.flatnonzero((work.state == State.PENDING) & (work.gate < Gate.REJECTED))
    width = np.where(work.gpu_milli[rows] > 0, work.gpus[rows] * work.gpu_milli[rows] / GPU_MILLI, work.gpus[rows])
    width = width if counted is None else work.gpus[rows] * counted.asked[rows]
    waiting = np.zeros(shape)
    np.add.at(waiting[ALL], work.queue[rows], width)
    if shape[0] > 1:
        for models in np.unique(work.gpu_models[rows]).tolist():
            for kind in claim_kinds(kind_of_model, int(models))[1:]:
                same = work.gpu_models[rows] == models
                np.add.at(waiting[kind], work.queue[rows[same]], width[same])
    return waiting


def _guarantees(queues: QueueTable, kind_of_model: Sequence[int], kinds: int) -> F64:
    """Guaranteed GPUs by kind and queue; the root has no guarantee. Shape [kinds, queues]."""
    guarantee = np.zeros((kinds, len(queues.id)))
    if queues.guarantee.size:
        guarantee[ALL] = queues.guarantee.sum(axis=1)
        if kinds > 1:
            for model, kind in enumerate(kind_of_model):
                guarantee[kind] = queues.guarantee[:, model]
    return guarantee


def _limits(queues: QueueTable, kind_of_model: Sequence[int], kinds: int) -> F64:
    """Hard limits by kind and queue, inf for none. Shape [kinds, queues].

    If the nodes have only one model, its limit applies to all GPUs.
    """
    limit = np.full((kinds, len(queues.id)), np.inf)
    limit[ALL] = np.where(queues.limit >= 0, queues.limit, np.inf)
    for model in range(queues.limit_by_model.shape[1]):
        kind, stated = kind_of_model[model], queues.limit_by_model[:, model]
        limit[kind] = np.minimum(limit[kind], np.where(stated >= 0, stated, np.inf))
    return limit


def _weights(queues: QueueTable, weight: F64, kind_of_model: Sequence[int], kinds: int) -> F64:
    """Weights by kind and queue. Shape [kinds, queues].

    A stated weight of a model replaces the one of the queue, with the same correction for past use.
    """
    weights = np.tile(weight, (kinds, 1))
    corrected = weight / np.where(queues.weight > 0, queues.weight, 1.0)
    for model in range(queues.weight_by_model.shape[1]):
        kind, stated = kind_of_model[model], queues.weight_by_model[:, model]
        weights[kind] = np.where(np.isnan(stated), weights[kind], stated * corrected)
    return weights


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
