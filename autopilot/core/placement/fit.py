"""Where a gang could go: shapes, feasibility, the placement score and its terms.

Pure search over the books of a `WhatIf`; nothing is placed here. A gang's shape is reduced to a
`Shape`; gangs of equal shape fit or fail together, which is what makes a queue of thousands cheap.
`room` is the whole free GPUs that a gang may use on each node: the free ones, less what is held for
reservations that it would outlive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.policy_bounds import PlacementWeights
from autopilot.core.model.records import Code, Evidence
from autopilot.core.model.snapshot import F64, GPU_MILLI, I32, Bools, ClusterSnapshot, NodeTable, Topology
from autopilot.core.placement.whatif import Layout, WhatIf


@dataclass(frozen=True, slots=True)
class Shape:
    """What one gang asks for. Equal shapes are interchangeable for fitting.

    `members` of `per_member` GPUs and, when the width does not divide, one of `tail` GPUs. With
    `milli` > 0 each member is a share of one GPU, with `profile` >= 0 one MIG instance. `models` is a
    bit set over Names.gpu_models (0: any).
    """

    members: int
    per_member: int
    tail: int
    milli: int
    profile: int
    models: int
    memory_mib: int
    cpu_milli: int
    host_memory_mib: int
    topology: int
    preferred: int = 0
    selector: int = 0

    @property
    def gpus(self) -> int:
        """Whole GPUs, shares or instances over all members."""
        return self.members * self.per_member + self.tail

    @property
    def asks_hosts(self) -> bool:
        """Does a member need CPU or memory of its node?"""
        return self.cpu_milli > 0 or self.host_memory_mib > 0


@dataclass(frozen=True, slots=True)
class Fit:
    """A place that a gang can take now: its layout, nodes in order of members, score and its terms."""

    layout: Layout
    nodes: I32
    score: float
    terms: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a shape cannot be placed: the code, what is there and what it would take (GPUs)."""

    code: Code
    value: float
    threshold: float


def shape_of(snapshot: ClusterSnapshot, row: int, gpus: int | None = None) -> Shape:
    """The shape of workload `row`, at its full width or at `gpus` GPUs (elastic gangs)."""
    work = snapshot.workloads
    per_member = max(int(work.gpus_per_member[row]), 1)
    width = int(work.gpus[row]) if gpus is None else gpus
    return Shape(
        members=width // per_member,
        per_member=per_member,
        tail=width % per_member,
        milli=int(work.gpu_milli[row]),
        profile=int(work.mig_profile[row]),
        models=int(work.gpu_models[row]),
        memory_mib=int(work.gpu_memory_mib[row]),
        cpu_milli=int(work.cpu_milli[row]),
        host_memory_mib=int(work.memory_mib[row]),
        topology=int(work.topology[row]),
        preferred=int(work.preferred[row]),
        selector=int(work.selector[row]),
    )


def shape_classes(snapshot: ClusterSnapshot, rows: I32, differ: Collection[int] = ()) -> I32:
    """A code for each of `rows` such that equal shapes (and equal elastic minima) share one. Shape [rows].

    Gangs whose members `differ` (rows) have a code each.
    """
    work = snapshot.workloads
    columns = (
        work.gpus,
        work.gpus_per_member,
        work.min_gpus,
        work.gpu_milli,
        work.mig_profile,
        work.gpu_models,
        work.gpu_memory_mib,
        work.cpu_milli,
        work.memory_mib,
        work.topology,
        work.preferred,
        work.selector,
    )
    key = np.zeros(len(rows), np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            key = (key ^ column[rows].astype(np.int64).view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(29)
    _, codes = np.unique(key, return_inverse=True)
    alone = np.isin(rows, np.fromiter(differ, np.int32, len(differ)))
    codes[alone] = len(rows) + np.arange(int(alone.sum()))
    return codes.astype(np.int32)


def suitable_nodes(
    whatif: WhatIf, shape: Shape, memory_mib_of_model: F64, *, empty: bool = False, rows: I32 | None = None
) -> Bools:
    """Nodes whose GPU model, GPU memory and host capacity suit one member now, or once `empty`. Shape [nodes].

    With `rows`, these nodes alone are looked at. Shape [rows].
    """
    nodes, at = whatif.snapshot.nodes, slice(None) if rows is None else rows
    if empty:
        cpu = np.where(nodes.cpu_milli < 0, np.iinfo(np.int64).max, nodes.cpu_milli)
        memory = np.where(nodes.memory_mib < 0, np.iinfo(np.int64).max, nodes.memory_mib)
    else:
        cpu, memory = whatif.node_cpu, whatif.node_memory
    mask = whatif.node_ok[at]
    if shape.models:
        mask = mask & (((shape.models >> nodes.gpu_model[at].astype(np.int64)) & 1) == 1)
    if shape.selector:
        mask = mask & ((nodes.labels[at] & shape.selector) == shape.selector)
    if shape.memory_mib:
        mask = mask & (memory_mib_of_model[nodes.gpu_model[at]] >= shape.memory_mib)
    if shape.cpu_milli:
        mask = mask & (cpu[at] >= shape.cpu_milli)
    if shape.host_memory_mib:
        mask = mask & (memory[at] >= shape.host_memory_mib)
    return mask


def find_fit(
    whatif: WhatIf,
    shape: Shape,
    room: I32,
    weights: PlacementWeights,
    memory_mib_of_model: F64,
    node_end_s: F64 | None = None,
    end_s: float = np.nan,
) -> Fit | Miss:
    """The best place for a gang now, or why there is none.

    `room` [nodes]: whole GPUs it may use. `node_end_s` [nodes] and `end_s` (predicted ends) feed the
    drain term. Ties go to the lowest node row, so the answer is deterministic.
    """
    if shape.gpus <= 0:
        return Miss(Code.CAPACITY, 0.0, 0.0)  # work without GPUs is not ours to place
    if shape.profile >= 0:
        return _find_instances(whatif, shape, suitable_nodes(whatif, shape, memory_mib_of_model))
    if shape.milli:
        return _find_shares(whatif, shape, suitable_nodes(whatif, shape, memory_mib_of_model), room)
    # the columns below have a row for each node with room: on a cluster in use these are few
    rows = np.flatnonzero(room > 0).astype(np.int32)
    rows = rows[suitable_nodes(whatif, shape, memory_mib_of_model, rows=rows)]
    free = room[rows]
    total = int(free.sum())
    if total < shape.gpus:
        return Miss(Code.CAPACITY, float(total), float(shape.gpus))
    capacity, host = members_on(shape, free), None
    if shape.asks_hosts:
        host = host_members(shape, whatif.node_cpu[rows], whatif.node_memory[rows])
        capacity = np.minimum(capacity, host)

    def scores() -> F64:
        ends_s = None if node_end_s is None else node_end_s[rows]
        return _node_scores(whatif.snapshot.nodes.gpus[rows], shape, free, weights, ends_s, end_s)

    if shape.members + (shape.tail > 0) == 1:
        return _single(whatif, shape, rows, free, capacity, scores, weights)
    return _several(whatif, shape, rows, free, capacity, host, scores, weights)


def members_on(shape: Shape, free: I32) -> I32:
    """Members that `free` GPUs on each node can take; one at most when the gang is to be spread. Shape [nodes]."""
    members = free // shape.per_member
    return np.minimum(members, 1) if shape.topology == Topology.SPREAD else members


def host_members(shape: Shape, cpu_milli: NDArray[np.int64], memory_mib: NDArray[np.int64]) -> I32:
    """Members that the free CPU and memory of each node can host. Shape [nodes]."""
    members = np.full(len(cpu_milli), np.iinfo(np.int32).max, np.int64)
    if shape.cpu_milli:
        members = np.minimum(members, cpu_milli // shape.cpu_milli)
    if shape.host_memory_mib:
        members = np.minimum(members, memory_mib // shape.host_memory_mib)
    return np.maximum(members, 0).astype(np.int32)  # a node may be promised beyond what it has


def _node_scores(
    gpus: I32, shape: Shape, free: I32, weights: PlacementWeights, node_end_s: F64 | None, end_s: float
) -> F64:
    """Score of one member on each node of `gpus` GPUs: fill (0..1) and, when asked for, drain (0..1). Shape [rows]."""
    total = np.maximum(gpus, 1)
    step = max(shape.per_member if shape.members else shape.tail, 1)
    score = weights.fill * (1.0 - (free - step) / total)
    if weights.drain and node_end_s is not None and not np.isnan(end_s):
        apart = np.abs(node_end_s - end_s)
        score = score + weights.drain / (1.0 + apart / 3600.0)
    return np.asarray(score)


def _single(
    whatif: WhatIf,
    shape: Shape,
    rows: I32,
    free: I32,
    capacity: I32,
    scores: Callable[[], F64],
    weights: PlacementWeights,
) -> Fit | Miss:
    """A gang of one member: the best-scored node that has room."""
    need = shape.gpus
    fits = free >= need if shape.tail else capacity >= 1
    if not fits.any():
        return _miss(free, need)
    score = scores()
    best = int(np.argmax(np.where(fits, score, -np.inf)))
    return spot_on(
        whatif,
        rows[best : best + 1],
        np.array([need]),
        float(score[best]),
        (
            Evidence(
                "fill", round(float(score[best]), 4), f"weight {weights.fill:g} x share of the node in use afterwards"
            ),
            Evidence("left_on_node", int(free[best]) - need, "GPUs"),
        ),
    )


def _several(
    whatif: WhatIf,
    shape: Shape,
    rows: I32,
    free: I32,
    capacity: I32,
    host: I32 | None,
    scores: Callable[[], F64],
    weights: PlacementWeights,
) -> Fit | Miss:
    """A gang of several members: the smallest domain that holds it, then its best nodes."""
    domain, level = _choose_domain(
        whatif.snapshot.nodes, shape, rows, capacity, _tail_room(shape, free, capacity, host), free, weights
    )
    if domain is None:
        return (
            Miss(Code.TOPOLOGY, float(capacity.max(initial=0) * shape.per_member), float(shape.gpus))
            if level
            else _miss(free, shape.gpus)
        )
    score, inside = scores(), domain & (capacity > 0)
    order = np.argsort(np.where(inside, -score, np.inf), kind="stable")[: int(inside.sum())]
    taken = np.minimum(
        capacity[order], np.maximum(shape.members - np.concatenate([[0], np.cumsum(capacity[order])[:-1]]), 0)
    )
    used = taken > 0
    chosen, counts = order[used].astype(np.int32), taken[used] * shape.per_member
    if shape.tail:
        rest = np.where(domain, free, 0)
        rest[chosen] -= counts.astype(rest.dtype)
        fits = rest >= shape.tail
        if host is not None:
            left = host.copy()
            left[chosen] -= (counts // shape.per_member).astype(left.dtype)
            fits &= left > 0
        last = int(np.argmin(np.where(fits, rest, np.iinfo(np.int32).max)))
        chosen, counts = _add(chosen, counts, last, shape.tail)
    nodes, fill = rows[chosen], float(score[chosen].mean())
    table = whatif.snapshot.nodes
    islands, leaves = len(set(table.island[nodes].tolist())), len(set(table.leaf[nodes].tolist()))
    terms = (
        Evidence(
            "fill",
            round(fill, 4),
            f"weight {weights.fill:g} x mean share of the nodes in use",
        ),
        Evidence(
            "island",
            round(weights.island / islands, 4),
            f"weight {weights.island:g} / {islands} NVLink islands",
        ),
        Evidence("leaf", round(weights.leaf / leaves, 4), f"weight {weights.leaf:g} / {leaves} leaf switches"),
    )
    total = fill + weights.island / islands + weights.leaf / leaves
    return spot_on(whatif, nodes, counts, total, terms)


def _add(nodes: I32, counts: I32, node: int, gpus: int) -> tuple[I32, I32]:
    """`gpus` more on `node`, which may already be in the list."""
    at = np.flatnonzero(nodes == node)
    if len(at):
        counts = counts.copy()
        counts[at[0]] += gpus
        return nodes, counts
    return np.append(nodes, np.int32(node)), np.append(counts, gpus)


def _tail_room(shape: Shape, free: I32, capacity: I32, host: I32 | None) -> Bools:
    """Nodes that take the tail beside as many members as they have room for. Shape [nodes]."""
    room = free - capacity * shape.per_member >= max(shape.tail, 1)
    return np.asarray(room if host is None else room & (host > capacity))


def _choose_domain(
    nodes: NodeTable, shape: Shape, rows: I32, capacity: I32, tail_room: Bools, free: I32, weights: PlacementWeights
) -> tuple[Bools | None, int]:
    """Nodes to choose among, and whether a required domain was the obstacle.

    A required level must hold the gang in one domain; among those that do, the one left with the
    least (best fit). Without one, a single leaf is preferred when some leaf holds it and the weight
    is not zero; else the whole cluster.
    """
    required, preferred = level_of(nodes, shape.topology, rows), level_of(nodes, shape.preferred, rows)
    enough_anywhere = bool(_holds(capacity.sum(), np.asarray(tail_room.any()), shape))
    spread = weights.fill < 0
    if required is not None:
        mask = _best_domain(required, shape, free, capacity, tail_room, spread=spread)
        if mask is not None and preferred is not None:
            inside = _best_domain(
                preferred, shape, np.where(mask, free, 0), np.where(mask, capacity, 0), tail_room & mask, spread=spread
            )
            mask = mask if inside is None else inside
        return mask, int(mask is None and enough_anywhere)
    if not enough_anywhere:
        return None, 0
    moves_tried = () if preferred is None else (shape.preferred,)
    by_weight = [(Topology.ISLAND, weights.island), (Topology.LEAF, weights.leaf)]
    for topology in (*moves_tried, *(topology for topology, weight in by_weight if weight > 0)):
        everywhere, level = level_of(nodes, topology), level_of(nodes, topology, rows)
        if everywhere is not None and level is not None and everywhere[0] != everywhere[-1]:
            mask = _best_domain(level, shape, free, capacity, tail_room, spread=spread)
            if mask is not None:
                return mask, 0
    return np.ones(len(free), np.bool_), 0


def level_of(nodes: NodeTable, topology: int, rows: I32 | None = None) -> I32 | None:
    """Domain of each node (of these, with `rows`) at a level of topology; None where the level is no domain. Shape
    [nodes].
    """
    level = {
        Topology.ISLAND: nodes.island,
        Topology.LEAF: nodes.leaf,
        Topology.BLOCK: nodes.block,
        Topology.ZONE: nodes.zone,
    }.get(Topology(topology))
    return level if level is None or rows is None else level[rows]


def _holds(members: np.ndarray, tail_room: np.ndarray, shape: Shape) -> np.ndarray:
    """True where there is room for all members, and for the tail beside them or in place of one more."""
    if not shape.tail:
        return np.asarray(members >= shape.members)
    return np.asarray((members > shape.members) | ((members >= shape.members) & tail_room))


def _best_domain(
    level: I32, shape: Shape, free: I32, capacity: I32, tail_room: Bools, *, spread: bool = False
) -> Bools | None:
    """The domain that holds the gang and has the fewest free GPUs (the most, to spread); None when there is none."""
    members = np.bincount(level, capacity)
    gpus = np.bincount(level, free)
    fits = _holds(members, np.bincount(level, tail_room) > 0, shape)
    if not fits.any():
        return None
    best = int(np.argmin(np.where(fits, -gpus if spread else gpus, np.inf)))
    return np.asarray(level == best)


def _miss(free: I32, need: int) -> Miss:
    """Too little is free, or enough is free in the wrong shape."""
    total = int(free.sum())
    return Miss(Code.CAPACITY if total < need else Code.FRAGMENTED, float(total), float(need))


def spot_on(whatif: WhatIf, nodes: I32, counts: I32, score: float, terms: tuple[Evidence, ...]) -> Fit:
    """Lowest-numbered free GPUs on each node."""
    table = whatif.snapshot.nodes
    rows = []
    for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
        first = int(table.first_gpu[node])
        block = slice(first, first + int(table.gpus[node]))
        idle = np.flatnonzero((whatif.gpu_used[block] == 0) & whatif.gpu_usable[block])[:count]
        rows.append(idle + first)
    gpu = np.concatenate(rows).astype(np.int32)
    layout = Layout(gpu, np.full(len(gpu), -1, np.int32), np.full(len(gpu), GPU_MILLI, np.int32))
    return Fit(layout, nodes, score, terms)


def _find_shares(whatif: WhatIf, shape: Shape, suits: Bools, room: I32) -> Fit | Miss:
    """Shares of GPUs, one a member: the fullest GPU that has the share, an empty one last."""
    gpus = whatif.snapshot.gpus
    usable = whatif.gpu_usable & suits[gpus.node]
    opens = usable & (whatif.gpu_used == 0)
    # number of each empty GPU on its node: as many as there is room for may be opened
    opened = np.cumsum(opens)
    first = np.concatenate([[0], opened])[whatif.snapshot.nodes.first_gpu][gpus.node]
    may_use = usable & (~opens | (opened - first <= room[gpus.node]))
    shares = np.where(may_use, (GPU_MILLI - whatif.gpu_used) // shape.milli, 0)
    fullest = np.argsort(np.where(shares > 0, -whatif.gpu_used, GPU_MILLI + 1), kind="stable")
    order = np.repeat(fullest, shares[fullest])[: shape.gpus]
    if len(order) < shape.gpus:
        left = float((GPU_MILLI - whatif.gpu_used[usable]).sum() / GPU_MILLI)
        need = shape.gpus * shape.milli / GPU_MILLI
        return Miss(Code.CAPACITY if left < need else Code.FRAGMENTED, left, need)
    gpu = order.astype(np.int32)
    layout = Layout(gpu, np.full(len(gpu), -1, np.int32), np.full(len(gpu), shape.milli, np.int32))
    used = float(whatif.gpu_used[gpu].mean() / GPU_MILLI)
    return Fit(
        layout,
        gpus.node[gpu],
        used,
        (Evidence("share_packing", round(used, 4), "share of the GPU already in use"),),
    )


def _find_instances(whatif: WhatIf, shape: Shape, suits: Bools) -> Fit | Miss:
    """Free MIG instances of the profile, one a member, on the GPU with most of its cuts in use."""
    gpus = whatif.snapshot.gpus
    healthy = whatif.gpu_ok & suits[gpus.node]
    free = (
        whatif.instance_alive
        & (whatif.instance_used == 0)
        & (whatif.instance_profile == shape.profile)
        & healthy[whatif.instance_gpu]
    )
    found = np.flatnonzero(free)
    if len(found) < shape.gpus:
        return Miss(Code.MIG_GEOMETRY, float(len(found)), float(shape.gpus))
    if shape.per_member > 1:  # the instances of one member lie on one node
        here = np.bincount(gpus.node[whatif.instance_gpu[found]], minlength=len(suits))
        members = here // shape.per_member
        if int(members.sum()) < -(-shape.gpus // shape.per_member):
            return Miss(Code.MIG_GEOMETRY, float(members.sum() * shape.per_member), float(shape.gpus))
        found = found[np.argsort(-members[gpus.node[whatif.instance_gpu[found]]], kind="stable")]
        node = gpus.node[whatif.instance_gpu[found]]
        starts = np.concatenate([[0], np.flatnonzero(np.diff(node)) + 1])
        number = np.arange(len(found)) - np.repeat(starts, np.diff(np.append(starts, len(found))))
        found = found[number < members[node] * shape.per_member]
        order = found[: shape.gpus].astype(np.int32)
        return instances_spot(whatif, order)
    busy = np.bincount(
        whatif.instance_gpu, (whatif.instance_used > 0) & whatif.instance_alive, minlength=len(gpus.uuid)
    )
    order = found[np.argsort(-busy[whatif.instance_gpu[found]], kind="stable")][: shape.gpus].astype(np.int32)
    return instances_spot(whatif, order)


def instances_spot(whatif: WhatIf, order: I32) -> Fit:
    """These free instances as a place."""
    gpu = whatif.instance_gpu[order]
    in_use = (whatif.instance_used > 0) & whatif.instance_alive
    busy = float(np.bincount(whatif.instance_gpu, in_use, minlength=len(whatif.gpu_used))[gpu].mean())
    layout = Layout(gpu, order, np.zeros(len(order), np.int32))
    evidence = Evidence("instances_in_use_on_gpu", busy, "instances")
    return Fit(layout, whatif.snapshot.gpus.node[gpu], busy, (evidence,))
