"""Random cases for the search for victims.

The rule set itself provides lenders and quotas, with guarantees of nothing: gangs of other queues are candidates
(`across queues`), or lower priorities of the newcomer's own queue (`within a queue`). In `tight lenders` ranks are
drawn, and lenders are not cut to what their queues may lose, so that quotas forbid most choices. No rule set makes such
offers, but the search should handle them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import (
    I32,
    ClusterSnapshot,
    GpuTable,
    InstanceTable,
    Names,
    NodeTable,
    PlacementTable,
    QueueTable,
    ServiceTable,
    State,
    WorkloadTable,
    empty,
    empty_signals,
    make,
)
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.quota_state import Quota, build_quota
from autopilot.core.preemption.search import Search
from autopilot.core.quota.ledger import ALL
from autopilot.core.rules import hierarchical
from autopilot.core.rules.base import Allowed, Claim, RankedTarget, Target

FAMILIES = ("across queues", "within a queue", "tight lenders")
GPUS_PER_NODE = 8
WIDTHS = (1, 1, 2, 2, 4, 4, 8, 8, 16, 32)
LOST_S = 600.0
"""Median of the time that a gang would lose; the width of its log-normal distribution is drawn per case."""


@dataclass(frozen=True, slots=True)
class Gang:
    """One running gang: its GPU rows, and its properties for the rules."""

    gpus: tuple[int, ...]
    member_gpus: int
    least_gpus: int
    queue: int
    priority: int
    lost_gpu_s: float


@dataclass(slots=True)
class Limits:
    """What `allowed` permits, in sums of the GPUs taken from rows.

    `spare`: all but the largest step of these rows must stay below this number of GPUs. `steps`: by row, the GPUs of a
    member that leaves by itself and of the rest of the gang; a row that is missing leaves in one step. `owed`: a choice
    that takes from the first rows must take this number of GPUs from the second.
    """

    spare: list[tuple[list[int], float]] = field(default_factory=list)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    owed: list[tuple[list[int], list[int], float]] = field(default_factory=list)
    least_gpus: float = 0.0  # in all


@dataclass(frozen=True, slots=True)
class Case:
    """One question to the search."""

    search: Search
    offers: Sequence[RankedTarget]
    allowed: Allowed
    limits: Limits


@dataclass(slots=True)
class Asked:
    """A room that records the questions of a rule set."""

    offers: Sequence[RankedTarget] = ()
    allowed: Allowed = lambda _: True

    def __call__(self, targets: Sequence[Target]) -> bool:
        """No room."""
        return False

    def cheapest(self, ranked_targets: Sequence[RankedTarget], allowed: Allowed) -> tuple[Target, ...] | None:
        """Record the question."""
        self.offers, self.allowed = ranked_targets, allowed
        return None


# --- drawing ----------------------------------------------------------------------------------------


def cases(family: str, seed: int, count: int) -> Iterator[Case]:
    """`count` cases of a family in which the newcomer may ask and does not fit yet."""
    rng = np.random.default_rng([FAMILIES.index(family), seed])
    draw: Callable[[np.random.Generator], Case | None] = {
        "across queues": _across,
        "within a queue": _within,
        "tight lenders": _tight,
    }[family]
    while count:
        case = draw(rng)
        if case is not None and case.offers and not (case.search(()) and case.allowed(())):
            count -= 1
            yield case


def _across(rng: np.random.Generator) -> Case | None:
    """Departments with queues; the newcomer is in the first queue of the first, whose gangs are its only borrowers."""
    parents, departments = [-1], int(rng.integers(1, 4))
    for department in range(departments):
        parents.append(0)
        above = len(parents) - 1
        parents += [above] * (2 if department == 0 else int(rng.integers(1, 3)))
    leaves = [queue for queue in range(1, len(parents)) if queue not in parents]
    weight = rng.uniform(0.5, 2.0, len(parents))
    weight[1], weight[2] = 3.0, 3.0
    donors = rng.choice(leaves[1:], min(len(leaves) - 1, 4), replace=False).tolist()
    gangs, nodes = _gangs(rng, donors, priorities=1 if len(donors) > 2 else 2)
    search, quota, newcomer = _world(rng, nodes, gangs, parents, weight, queue=2)
    asked, books, claim = Asked(), quota.ledger, newcomer
    hierarchical.across_queues(books, claim, quota.running(), asked)
    limits = Limits(steps={row: _steps_of(gang) for row, gang in enumerate(gangs)})
    parting = {row: books.parting(claim.queue, gang.queue) for row, gang in enumerate(gangs)}
    for theirs in sorted({theirs for _, theirs in parting.values()}):
        rows = [row for row, gang in enumerate(gangs) if theirs in books.paths[gang.queue]]
        limits.spare.append((rows, books.use[ALL][theirs] - books.fair[ALL][theirs]))
    for mine in sorted({mine for mine, _ in parting.values()}):
        outside = [row for row, (side, _) in parting.items() if side == mine]
        inside = [row for row, gang in enumerate(gangs) if mine in books.paths[gang.queue]]
        limits.owed.append((outside, inside, books.use[ALL][mine] + claim.gpus - books.fair[ALL][mine]))
    return Case(search, asked.offers, asked.allowed, limits)


def _steps_of(gang: Gang) -> tuple[float, float]:
    """GPUs of each member above the minimum (0: none), and of the rest of the gang."""
    spare = (len(gang.gpus) - gang.least_gpus) // gang.member_gpus * gang.member_gpus
    return float(gang.member_gpus if spare else 0), float(len(gang.gpus) - spare)


def _within(rng: np.random.Generator) -> Case | None:
    """One queue with up to four lower priorities; some have a nearly used limit."""
    gangs, nodes = _gangs(rng, [1], priorities=int(rng.integers(1, 5)))
    used = sum(len(gang.gpus) for gang in gangs)
    limit = used + int(rng.integers(0, 33)) if rng.random() < 0.5 else -1
    search, quota, newcomer = _world(rng, nodes, gangs, [-1, 0], np.ones(2), queue=1, priority=9, limit=limit)
    asked = Asked()
    hierarchical.within_queue(quota.ledger, newcomer, quota.running(), asked)
    least_gpus = newcomer.gpus - quota.ledger.limit_room(1) if limit >= 0 else 0.0
    return Case(search, asked.offers, asked.allowed, Limits(least_gpus=least_gpus))


def _tight(rng: np.random.Generator) -> Case | None:
    queues, ranks = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    gangs, nodes = _gangs(rng, list(range(1, queues + 1)), priorities=ranks)
    search, _, _ = _world(rng, nodes, gangs, [-1] + [0] * (queues + 1), np.ones(queues + 2), queue=queues + 1)
    rows = {queue: [row for row, gang in enumerate(gangs) if gang.queue == queue] for queue in range(1, queues + 1)}
    spare = {
        queue: float(rng.choice([0.2, 0.5, 9.0])) * sum(len(gangs[row].gpus) for row in rows[queue]) for queue in rows
    }

    def allowed(targets: Sequence[Target]) -> bool:
        taken = dict.fromkeys(spare, 0.0)
        for target in sorted(targets, key=lambda each: each.gpus):
            queue = gangs[target.row].queue
            if taken[queue] >= spare[queue]:
                return False
            taken[queue] += target.gpus
        return True

    offers: list[RankedTarget] = []
    for row, gang in enumerate(gangs):
        wide, member = len(gang.gpus), gang.member_gpus
        part = RankedTarget(
            Target(row, float(member), whole=False), gang.priority, gang.lost_gpu_s * member / wide, gang.queue
        )
        offers += [part] * ((wide - gang.least_gpus) // member)
        offers.append(RankedTarget(Target(row, float(wide), whole=True), gang.priority, gang.lost_gpu_s, gang.queue))
    offers.sort(key=lambda offer: offer.rank)
    return Case(search, offers, allowed, Limits([(rows[queue], spare[queue]) for queue in rows]))


def _gangs(rng: np.random.Generator, queues: Sequence[int], priorities: int) -> tuple[list[Gang], int]:
    """5 to 40 gangs of 1 to 32 GPUs over 1 to 4 of 4 to 40 nodes, and the number of nodes."""
    nodes = int(rng.integers(4, 41))
    free = {node: list(range(node * GPUS_PER_NODE, (node + 1) * GPUS_PER_NODE)) for node in range(nodes)}
    elastic, spread = float(rng.choice([0.0, 0.3])), float(rng.choice([0.1, 0.5]))
    sigma = float(rng.choice([0.5, 1.0, 1.5]))
    gangs: list[Gang] = []
    for _ in range(int(rng.integers(5, 41))):
        width = int(rng.choice(WIDTHS))
        over = int(rng.integers(1, 5)) if rng.random() < spread else 1
        over = min(max(over, -(-width // GPUS_PER_NODE)), width, 4)
        part = width // over
        homes = sorted((node for node in free if len(free[node]) >= part), key=lambda node: len(free[node]))
        if len(homes) < over:
            continue
        if rng.random() < 0.7:  # side by side on the fullest that take it, else anywhere
            at = int(rng.integers(len(homes) - over + 1))
            homes = homes[at : at + over]
        else:
            homes = rng.choice(homes, over, replace=False).tolist()
        member = part if over > 1 else int(rng.choice([size for size in (1, 2, 4, 8) if part % size == 0]))
        members = part * over // member
        least = member * int(rng.integers(1, members)) if rng.random() < elastic and members > 1 else part * over
        gangs.append(
            Gang(
                tuple(free[node].pop() for node in homes for _ in range(part)),
                member,
                least,
                int(rng.choice(queues)),
                int(rng.integers(priorities)),
                float(round(part * over * rng.lognormal(np.log(LOST_S), sigma))),
            )
        )
    return gangs, nodes


def _newcomer(rng: np.random.Generator) -> tuple[int, int]:
    """(GPUs, GPUs of a member): below a node, whole nodes, or several nodes by members of any size."""
    kind = int(rng.integers(3))
    if kind == 0:
        need = int(rng.integers(1, GPUS_PER_NODE))
        return need, need
    if kind == 1:
        return GPUS_PER_NODE * int(rng.integers(1, 9)), GPUS_PER_NODE
    need = int(rng.integers(2, 65))
    return need, min(need, int(rng.choice([1, 2, 3, 4, 8])))


def _world(
    rng: np.random.Generator,
    nodes: int,
    gangs: Sequence[Gang],
    parents: Sequence[int],
    weight: np.ndarray,
    queue: int,
    priority: int = 0,
    limit: int = -1,
) -> tuple[Search, Quota, Claim]:
    """The gangs on their nodes, and one that waits; of the free GPUs some are idle, the others broken."""
    need, member = _newcomer(rng)
    held = np.array([gpu for gang in gangs for gpu in gang.gpus], np.int32)
    idle = rng.random(nodes * GPUS_PER_NODE) < rng.choice([0.0, 0.3, 0.8])
    healthy = idle.copy()
    healthy[held] = True
    return question(nodes, gangs, need, member, healthy, parents, weight, queue, priority, limit)


def question(
    nodes: int,
    gangs: Sequence[Gang],
    need: int,
    member: int,
    healthy: np.ndarray,
    parents: Sequence[int],
    weight: np.ndarray,
    queue: int,
    priority: int = 0,
    limit: int = -1,
) -> tuple[Search, Quota, Claim]:
    """A search on nodes of eight GPUs for a gang of `need` GPUs that waits in `queue`; quota and claim of that gang."""
    work = _workloads(gangs, need, member, queue, priority)
    limits = [limit if n == queue else -1 for n in range(len(parents))]
    snapshot = _snapshot(nodes, gangs, healthy, work, _queues(parents, weight, limits))
    whatif = WhatIf(snapshot)
    members, tail = divmod(need, member)

    def fits_on(free: I32) -> bool:
        capacity = free // member
        total = int(capacity.sum())
        return total > members or (total == members and (not tail or bool((free - capacity * member >= tail).any())))

    lost_gpu_s = np.array([*(gang.lost_gpu_s for gang in gangs), 0.0])
    quota = build_quota(snapshot, Policy(), whatif, lost_gpu_s)
    return (
        Search(whatif, whatif.node_free.copy(), need, member, fits_on),
        quota,
        quota.claim(len(gangs), need),
    )


def _workloads(gangs: Sequence[Gang], need: int, member: int, queue: int, priority: int) -> WorkloadTable:
    """The running gangs, then one pending gang of `need` GPUs."""
    count = len(gangs) + 1
    table: WorkloadTable = make(
        WorkloadTable,
        id=[f"gang-{n}" for n in range(count)],
        gpus=[*(len(gang.gpus) for gang in gangs), need],
        preemptible=np.ones(count),
        state=[State.RUNNING] * len(gangs) + [State.PENDING],
        queue=[*(gang.queue for gang in gangs), queue],
        priority=[*(gang.priority for gang in gangs), priority],
        gpus_per_member=[*(gang.member_gpus for gang in gangs), member],
        min_gpus=[*(gang.least_gpus for gang in gangs), need],
        start_s=np.zeros(count),
    )
    return table


def _queues(parents: Sequence[int], weight: np.ndarray, limits: Sequence[int]) -> QueueTable:
    """A tree of queues without guarantees."""
    table: QueueTable = make(
        QueueTable,
        id=[f"queue-{n}" for n in range(len(parents))],
        parent=parents,
        weight=weight,
        limit=limits,
        order=np.ones(len(parents)),
        guarantee=np.zeros((len(parents), 1)),
    )
    return table


def _snapshot(
    nodes: int, gangs: Sequence[Gang], healthy: np.ndarray, work: WorkloadTable, queues: QueueTable
) -> ClusterSnapshot:
    """Nodes of eight GPUs with the gangs placed on them."""
    node, rows = np.arange(nodes), np.arange(nodes * GPUS_PER_NODE)
    node_table = make(
        NodeTable,
        id=[f"node-{n}" for n in node],
        first_gpu=node * GPUS_PER_NODE,
        gpus=np.full(nodes, GPUS_PER_NODE),
        ready=np.ones(nodes),
    )
    gpu_table = make(
        GpuTable,
        uuid=[f"GPU-{n}" for n in rows],
        node=rows // GPUS_PER_NODE,
        index=rows % GPUS_PER_NODE,
        healthy=healthy,
    )
    gpu = np.array([gpu for gang in gangs for gpu in gang.gpus], np.int32)
    holder = np.repeat(np.arange(len(gangs)), [len(gang.gpus) for gang in gangs])
    return ClusterSnapshot(
        Names(("H100-80GB",), ("main",), ("tenant",), ()),
        node_table,
        gpu_table,
        empty(InstanceTable),
        work,
        make(PlacementTable, workload=holder, node=gpu // GPUS_PER_NODE, gpu=gpu),
        empty(ServiceTable),
        queues,
        empty_signals(),
    )
