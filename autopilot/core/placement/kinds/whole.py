"""The search for whole GPUs: the nodes that hold a gang, the best of them, or the reason for a miss.

Theory of operation. `room` states the whole GPUs for the gang on each node: the free ones, less those held for
reservations that the gang would outlive. Unsuitable nodes drop out first (GPU model, memory, labels, host capacity). A
gang of one member goes to the node with the best score. A wider gang first gets a domain: the required level of
topology, else the preferred one, else the smallest island or leaf with room for it, else the whole cluster. Inside the
domain its members take the nodes in order of score, and the tail (a smaller last member) the fullest node left.

The score of a node is `fill` (how full the node would be) times its weight, plus `drain` (how close the gang's
predicted end lies to that of the node). A layout then names the lowest-numbered free GPUs of each node. The search
reads the books of a `WhatIf` and books nothing. Reservations ask the same questions of capacity in the future.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.policy.bounds import PlacementWeights
from autopilot.core.model.records import Code, Evidence
from autopilot.core.model.snapshot import F64, I32, Bools, NodeTable, Topology
from autopilot.core.placement.kinds.base import Kind, Team, Wanted, joined_labels
from autopilot.core.placement.shapes import (
    Fit,
    Miss,
    Shape,
    host_members,
    level_of,
    members_on,
    shape_of,
    suitable_nodes,
)
from autopilot.core.placement.whatif import Layout, WhatIf


def find_whole(whatif: WhatIf, wanted: Wanted) -> Fit | Miss:
    """The best nodes for a gang of equal members, or the reason for a miss."""
    shape, room, weights = wanted.shape, wanted.room, wanted.weights
    # the columns below have a row for each node with room: on a cluster in use these are few
    rows = np.flatnonzero(room > 0).astype(np.int32)
    rows = rows[suitable_nodes(whatif, shape, wanted.memory_mib_of_model, rows=rows)]
    free = room[rows]
    total = int(free.sum())
    if total < shape.gpus:
        return Miss(Code.CAPACITY, float(total), float(shape.gpus))

    if shape.is_single:  # all of `rows` have the CPU and memory for it
        fits = free >= shape.gpus
        if not fits.any():
            return _miss(free, shape.gpus)
        rows, free = rows[fits], free[fits]

    def scores() -> tuple[F64, F64]:
        ends_s = None if wanted.node_end_s is None else wanted.node_end_s[rows]
        fill = _node_scores(whatif.snapshot.nodes.gpus[rows], shape, free, weights, ends_s, wanted.end_s)
        return fill, fill if wanted.apart is None else fill - wanted.apart[rows]

    if shape.is_single:
        return _one_member(whatif, shape, rows, free, *scores(), weights)
    capacity, host = members_on(shape, free), None
    if shape.asks_hosts:
        host = host_members(shape, whatif.node_cpu[rows], whatif.node_memory[rows])
        capacity = np.minimum(capacity, host)
    return _several(whatif, shape, rows, free, capacity, host, scores, weights)


def _node_scores(
    gpus: I32, shape: Shape, free: I32, weights: PlacementWeights, node_end_s: F64 | None, end_s: float
) -> F64:
    """Score of one member on each node of `gpus` GPUs: fill (0..1) and, on request, drain (0..1). Shape [rows]."""
    total = np.maximum(gpus, 1)
    step = max(shape.unit_gpus, 1)
    score = weights.fill * (1.0 - (free - step) / total)
    if weights.drain and node_end_s is not None and not np.isnan(end_s):
        apart = np.abs(node_end_s - end_s)
        score = score + weights.drain / (1.0 + apart / 3600.0)
    return np.asarray(score)


def _one_member(
    whatif: WhatIf, shape: Shape, rows: I32, free: I32, fill: F64, score: F64, weights: PlacementWeights
) -> Fit:
    """Place a gang of one member on the best-scored node. Every node in `rows` has room for it."""
    need = shape.gpus
    best = int(np.argmax(score))
    return on_nodes(
        whatif,
        rows[best : best + 1],
        np.array([need]),
        float(score[best]),
        (
            Evidence(
                "fill", round(float(fill[best]), 4), f"weight {weights.fill:g} x share of the node in use afterwards"
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
    scores: Callable[[], tuple[F64, F64]],
    weights: PlacementWeights,
) -> Fit | Miss:
    """A gang of several members: the smallest domain that holds it, then its best nodes."""
    domain, level = _choose_domain(
        whatif.snapshot.nodes, shape, rows, capacity, tail_room(shape, free, capacity, host), free, weights
    )
    if domain is None:
        return (
            Miss(Code.TOPOLOGY, float(capacity.max(initial=0) * shape.per_member), float(shape.gpus))
            if level
            else _miss(free, shape.gpus)
        )
    (fills, score), inside = scores(), domain & (capacity > 0)
    order = np.argsort(np.where(inside, -score, np.inf), kind="stable")[: int(inside.sum())]
    chosen, counts = seat(shape, order, np.where(domain, free, 0), capacity, host)
    nodes, fill = rows[chosen], float(fills[chosen].mean())
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
    total = float(score[chosen].mean()) + weights.island / islands + weights.leaf / leaves
    return on_nodes(whatif, nodes, counts, total, terms)


def seat(
    shape: Shape, order: NDArray[np.intp], free: I32, capacity: I32, host: I32 | None = None
) -> tuple[I32, NDArray[np.integer]]:
    """Chosen nodes and the GPUs on each: members in this order of nodes, then the tail on the fullest node left.

    `free` [nodes]: GPUs, 0 on barred nodes; `capacity`, `host` [nodes]: members by GPUs, and by CPU and memory.
    """
    before = np.cumsum(capacity[order]) - capacity[order]
    taken = np.clip(shape.members - before, 0, capacity[order])
    used = taken > 0
    chosen, counts = order[used].astype(np.int32), taken[used] * shape.per_member
    if not shape.tail:
        return chosen, counts
    rest = free.copy()
    rest[chosen] -= counts.astype(rest.dtype)
    fits = rest >= shape.tail
    if host is not None:
        left = host.copy()
        left[chosen] -= taken[used].astype(left.dtype)
        fits &= left > 0
    last = int(np.argmin(np.where(fits, rest, np.iinfo(np.int32).max)))
    at = np.flatnonzero(chosen == last)
    if len(at):
        counts[at[0]] += shape.tail
        return chosen, counts
    return np.append(chosen, np.int32(last)), np.append(counts, shape.tail)


def fits_on(nodes: NodeTable, shape: Shape, free: I32) -> bool:
    """True if a gang of whole GPUs fits on `free` [nodes] GPUs; unsuitable nodes have 0."""
    if shape.is_single:
        return bool((free >= shape.gpus).any())
    capacity = members_on(shape, free)
    level = level_of(nodes, shape.topology)
    if level is not None:
        return bool(_domains_that_hold(level, shape, capacity, tail_room(shape, free, capacity)).any())
    members = int(capacity.sum())
    if members < shape.members or not shape.tail:  # searches ask thousands of times: the tail is rarely looked at
        return members >= shape.members
    return members > shape.members or bool(tail_room(shape, free, capacity).any())


def tail_room(shape: Shape, free: I32, capacity: I32, host: I32 | None = None) -> Bools:
    """Nodes with room for the tail beside their full number of members. Shape [nodes]."""
    room = free - capacity * shape.per_member >= max(shape.tail, 1)
    return np.asarray(room if host is None else room & (host > capacity))


def _choose_domain(
    nodes: NodeTable, shape: Shape, rows: I32, capacity: I32, tail_room: Bools, free: I32, weights: PlacementWeights
) -> tuple[Bools | None, int]:
    """Nodes to choose among (None: a miss), and 1 if a required domain was the obstacle, else 0.

    A required level must hold the gang in one domain; the tightest one wins (best fit). Without a requirement the
    stated preference comes first, then an island and a leaf by their weights, then the whole cluster.
    """
    required, preferred = level_of(nodes, shape.topology, rows), level_of(nodes, shape.preferred, rows)
    enough_anywhere = bool(_holds(capacity.sum(), np.asarray(tail_room.any()), shape))
    spread = weights.fill < 0
    if required is not None:
        mask = best_domain(required, shape, free, capacity, tail_room, spread=spread)
        if mask is not None and preferred is not None:
            inside = best_domain(
                preferred, shape, np.where(mask, free, 0), np.where(mask, capacity, 0), tail_room & mask, spread=spread
            )
            mask = mask if inside is None else inside
        return mask, int(mask is None and enough_anywhere)
    if not enough_anywhere:
        return None, 0
    stated = () if preferred is None else (shape.preferred,)
    by_weight = [(Topology.ISLAND, weights.island), (Topology.LEAF, weights.leaf)]
    for topology in (*stated, *(topology for topology, weight in by_weight if weight > 0)):
        everywhere, level = level_of(nodes, topology), level_of(nodes, topology, rows)
        if everywhere is not None and level is not None and everywhere[0] != everywhere[-1]:
            mask = best_domain(level, shape, free, capacity, tail_room, spread=spread)
            if mask is not None:
                return mask, 0
    return np.ones(len(free), np.bool_), 0


def _holds(members: np.ndarray, tail_room: np.ndarray, shape: Shape) -> np.ndarray:
    """True with room for all members, and for the tail beside them or in place of one more."""
    if not shape.tail:
        return np.asarray(members >= shape.members)
    return np.asarray((members > shape.members) | ((members >= shape.members) & tail_room))


def _domains_that_hold(level: I32, shape: Shape, capacity: I32, tail_room: Bools) -> NDArray[np.bool_]:
    """Domains with room for all members and the tail. Shape [domains]."""
    return _holds(np.bincount(level, capacity), np.bincount(level, tail_room) > 0, shape)


def best_domain(
    level: I32, shape: Shape, free: I32, capacity: I32, tail_room: Bools, *, spread: bool = False
) -> Bools | None:
    """Nodes of the domain for the gang with the fewest free GPUs (the most, to spread); None: no domain holds it."""
    fits = _domains_that_hold(level, shape, capacity, tail_room)
    if not fits.any():
        return None
    gpus = np.bincount(level, free)
    best = int(np.argmin(np.where(fits, -gpus if spread else gpus, np.inf)))
    return np.asarray(level == best)


def _miss(free: I32, need: int) -> Miss:
    """A miss for lack of free GPUs, or for their shape."""
    total = int(free.sum())
    return Miss(Code.CAPACITY if total < need else Code.FRAGMENTED, float(total), float(need))


def on_nodes(whatif: WhatIf, nodes: I32, counts: NDArray[np.integer], score: float, terms: tuple[Evidence, ...]) -> Fit:
    """Lowest-numbered free GPUs on each node."""
    table = whatif.snapshot.nodes
    rows = []
    for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
        first = int(table.first_gpu[node])
        block = slice(first, first + int(table.gpus[node]))
        idle = np.flatnonzero((whatif.gpu_used[block] == 0) & whatif.gpu_whole[block])[:count]
        rows.append(idle + first)
    return Fit(Layout.whole(np.concatenate(rows).astype(np.int32)), nodes, score, terms)


def _inside(whatif: WhatIf, team: Team, room: I32) -> Fit | Miss:
    """The same on the nodes with `room`."""
    snapshot, rows = whatif.snapshot, team.members
    table = snapshot.members
    base, least = shape_of(snapshot, team.row), int(snapshot.workloads.min_gpus[team.row])
    order = sorted(rows, key=lambda member: (-int(table.rank[member]), member))
    needed = int(np.searchsorted(np.cumsum(table.gpus[order]), least)) + 1  # the first that make the minimum
    wide_first = [*sorted(order[:needed], key=lambda member: -int(table.gpus[member])), *order[needed:]]
    nodes, counts = _seat(whatif, team, room, base, order)
    if sum(counts) < least:  # the wide ones first leave less in the way
        nodes, counts = _seat(whatif, team, room, base, wide_first)
    if sum(counts) < least:
        return Miss(Code.CAPACITY, float(sum(counts)), float(least))
    chosen, where = np.unique(np.array(nodes, np.int32), return_inverse=True)
    total = np.bincount(where, counts).astype(np.int32)
    return on_nodes(whatif, chosen, total, 0.0, (Evidence("members", len(nodes), f"of {len(rows)} that differ"),))


def _seat(whatif: WhatIf, team: Team, room: I32, base: Shape, order: list[int]) -> tuple[list[int], list[int]]:
    """Nodes and GPUs of the members in this order, as many as fit; beyond the minimum as far as quotas go."""
    table, least = whatif.snapshot.members, int(whatif.snapshot.workloads.min_gpus[team.row])
    free, cpu, memory = room.copy(), whatif.node_cpu.copy(), whatif.node_memory.copy()
    nodes: list[int] = []
    counts: list[int] = []
    for member in order:
        gpus = int(table.gpus[member])
        if sum(counts) >= least and not team.may_be(sum(counts) + gpus):
            continue
        selector = joined_labels(base.selector, whatif.snapshot.names.selectors[int(table.selector[member])])
        shape = replace(base, members=1, per_member=gpus, tail=0, selector=selector)
        fits = suitable_nodes(whatif, shape, team.memory_mib_of_model) & (free >= gpus)
        fits &= (cpu >= base.cpu_milli) & (memory >= base.host_memory_mib)
        if fits.any():
            node = int(np.argmin(np.where(fits, -free if team.spread else free, np.iinfo(np.int32).max)))
            free[node] = 0 if base.topology == Topology.SPREAD else free[node] - gpus
            cpu[node] -= base.cpu_milli
            memory[node] -= base.host_memory_mib
            nodes.append(node)
            counts.append(gpus)
    return nodes, counts


def find_members(whatif: WhatIf, team: Team, room: I32) -> Fit | Miss:
    """Whole GPUs for members that differ: as many as fit, at least the minimum.

    Fullest node first (the emptiest, where the policy spreads).
    """
    work, nodes = whatif.snapshot.workloads, whatif.snapshot.nodes
    level = level_of(nodes, int(work.topology[team.row]))
    if level is None:
        return _inside(whatif, team, room)
    answers = [
        _inside(whatif, team, np.where(level == domain, room, 0).astype(np.int32))
        for domain in np.unique(level).tolist()
    ]
    found = [fit for fit in answers if isinstance(fit, Fit)]
    if found:
        return max(found, key=lambda fit: len(fit.layout))
    return answers[0] if answers else Miss(Code.CAPACITY, 0.0, float(work.min_gpus[team.row]))


KIND = Kind("whole", lambda shape: shape.whole_gpus, find_whole, find_members)
