"""Gangs whose members differ: each member finds its own node, those of higher rank first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopilot.core.context import Context
from autopilot.core.placement import Miss, Shape, Spot, level_of, shape_of, spot_on, suitable_nodes
from autopilot.core.records import Code, Evidence
from autopilot.core.snapshot import I32, Topology


def find_members(ctx: Context, at: int) -> Spot | Miss:
    """Room for at least the minimum of members, each on one node that suits it; as many as fit.

    Fullest node first (the emptiest, where the policy spreads). Whole GPUs only.
    """
    row = int(ctx.pending[at])
    snapshot = ctx.observation.snapshot
    level = level_of(snapshot.nodes, int(snapshot.workloads.topology[row]))
    room = ctx.room(float(ctx.gap_end_s[at]))
    if level is None:
        return _inside(ctx, at, room)
    spots = [
        _inside(ctx, at, np.where(level == domain, room, 0).astype(np.int32))
        for domain in np.unique(level).tolist()
    ]
    found = [spot for spot in spots if isinstance(spot, Spot)]
    if found:
        return max(found, key=lambda spot: len(spot.layout.gpu))
    return spots[0] if spots else Miss(Code.CAPACITY, 0.0, float(snapshot.workloads.min_gpus[row]))


def _inside(ctx: Context, at: int, room: I32) -> Spot | Miss:
    """The same on the nodes where `room` leaves something."""
    row = int(ctx.pending[at])
    snapshot = ctx.observation.snapshot
    table, rows = snapshot.members, ctx.members[row]
    base, least = shape_of(snapshot, row), int(snapshot.workloads.min_gpus[row])
    order = sorted(rows, key=lambda member: (-int(table.rank[member]), member))
    needed = int(np.searchsorted(np.cumsum(table.gpus[order]), least)) + 1  # the first that make the minimum
    wide_first = [*sorted(order[:needed], key=lambda member: -int(table.gpus[member])), *order[needed:]]
    nodes, counts = _seat(ctx, at, room, base, order)
    if sum(counts) < least:  # the wide ones first leave less in the way
        nodes, counts = _seat(ctx, at, room, base, wide_first)
    if sum(counts) < least:
        return Miss(Code.CAPACITY, float(sum(counts)), float(least))
    chosen, where = np.unique(np.array(nodes, np.int32), return_inverse=True)
    total = np.bincount(where, counts).astype(np.int32)
    return spot_on(
        ctx.whatif, chosen, total, 0.0, (Evidence("members", len(nodes), f"of {len(rows)} that differ"),)
    )


def _seat(ctx: Context, at: int, room: I32, base: Shape, order: list[int]) -> tuple[list[int], list[int]]:
    """Nodes and GPUs of the members in this order, as many as fit; beyond the minimum as far as quotas go."""
    table = ctx.observation.snapshot.members
    least = int(ctx.observation.snapshot.workloads.min_gpus[ctx.pending[at]])
    free, spread = room.copy(), ctx.policy.placement.fill < 0
    cpu, memory = ctx.whatif.node_cpu.copy(), ctx.whatif.node_memory.copy()
    nodes: list[int] = []
    counts: list[int] = []
    for member in order:
        gpus = int(table.gpus[member])
        if sum(counts) >= least and ctx.may_start(at, sum(counts) + gpus) is not None:
            continue
        shape = _member_shape(base, gpus, int(table.selector[member]))
        fits = suitable_nodes(ctx.whatif, shape, ctx.gpu_memory_mib) & (free >= gpus)
        fits &= (cpu >= base.cpu_milli) & (memory >= base.host_memory_mib)
        if fits.any():
            node = int(np.argmin(np.where(fits, -free if spread else free, np.iinfo(np.int32).max)))
            free[node] = 0 if base.topology == Topology.SPREAD else free[node] - gpus
            cpu[node] -= base.cpu_milli
            memory[node] -= base.host_memory_mib
            nodes.append(node)
            counts.append(gpus)
    return nodes, counts


def _member_shape(base: Shape, gpus: int, selector: int) -> Shape:
    return replace(base, members=1, per_member=gpus, tail=0, selector=base.selector | selector)
