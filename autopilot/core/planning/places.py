"""Places for gangs under the plan so far: free room, not held for others, within the limits of GPU models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopilot.core.model.records import Code, Evidence
from autopilot.core.model.snapshot import F64, I32, Topology
from autopilot.core.model.work import named
from autopilot.core.placement.fit import find_fit, find_members
from autopilot.core.placement.kinds.base import Team
from autopilot.core.placement.shapes import Fit, Miss, Shape, level_of, members_on, suited_nodes
from autopilot.core.planning.context import Context
from autopilot.core.planning.expected_room import kept_clear
from autopilot.core.planning.held_instances import barred_instances

HINT = 1e-9
"""What a hint counts: less than any difference of the other terms, so that it only decides between equal nodes."""


def place(ctx: Context, at: int, shape: Shape, *, displacing: bool = False, spared: I32 | None = None) -> Fit | Miss:
    """Room for the gang at `at` on free GPUs not held for others.

    `displacing`: tentatively held room counts too, but last where it is `spared` (`held_for_others` before victims
    left). Otherwise a gang could start on held room, and its victims would have left for nothing. Room held by others,
    but overruled by the guarantee of the gang, is used last too.
    """
    row = int(ctx.pending[at])
    if row in ctx.members:
        spread = ctx.policy.placement.fill < 0
        team = Team(row, ctx.members[row], lambda gpus: ctx.may_start(at, gpus) is None, ctx.gpu_memory_mib, spread)
        found = find_members(ctx.whatif, team, ctx.room(float(ctx.gap_end_s[at]), row))
        if isinstance(found, Fit) and np.isin(found.layout.instance, barred_for(ctx, at)).any():
            return Miss(Code.RESERVED, 0.0, float(shape.gpus))
        return found
    barred = barred_for(ctx, at) if shape.profile >= 0 else None
    given = ctx.overrules_any(row, shape.gpus)
    room = ctx.room(float(ctx.gap_end_s[at]), row, promises_only=displacing, overruling=given)
    missing = short(ctx, shape, room)
    if missing is not None:
        return missing
    drain = ctx.node_end_s() if ctx.policy.placement.drain else None
    allowed, apart, liked = within_limits(ctx, row, shape), _apart(ctx, row), _liked(ctx, row)
    kept = kept_clear(ctx).cost(shape)
    if kept is not None:
        apart = kept if apart is None else apart + kept

    def fit(room: I32, apart: F64 | None) -> Fit | Miss:
        return find_fit(
            ctx.whatif,
            allowed,
            room,
            ctx.policy.placement,
            ctx.gpu_memory_mib,
            drain,
            ctx.now_s + float(ctx.run_low_s[at]),
            apart,
            barred,
        )

    def on(room: I32) -> Fit | Miss:
        found = fit(room, apart)
        if liked is not None and isinstance(found, Fit):
            hinted = fit(room, (0.0 if apart is None else apart) - HINT * liked)
            found = _hinted(ctx, found, hinted, liked) if isinstance(hinted, Fit) else found
        if kept is None or isinstance(found, Miss):
            return found
        return replace(found, terms=(*found.terms, _kept_term(found, kept)))

    if spared is None and not displacing and given:
        spared = held_for_others(ctx, at)
    first = room if spared is None else np.minimum(ctx.whatif.node_free - spared, room)
    shown = ctx.shown_start(row)
    if shown is not None:  # where people were shown that it would start
        nodes = named(ctx.observation.snapshot.nodes.id, {slot.node for slot in shown.slots})
        again = on(np.where(nodes, first, 0).astype(np.int32))
        if isinstance(again, Fit):
            return again
    if spared is not None and spared.any():
        beside = on(first)
        if isinstance(beside, Fit):
            return beside
    found = on(room)
    if isinstance(found, Miss) and barred is not None and len(barred):
        alone = find_fit(ctx.whatif, allowed, room, ctx.policy.placement, ctx.gpu_memory_mib)
        if isinstance(alone, Fit):
            return Miss(Code.RESERVED, found.value, found.threshold)
    if isinstance(found, Miss) and allowed != shape:
        wide = find_fit(ctx.whatif, shape, room, ctx.policy.placement, ctx.gpu_memory_mib)
        if isinstance(wide, Fit):  # there is room, on GPUs of a model whose limit is reached
            return Miss(Code.LIMIT, 0.0, float(shape.gpus))
    return found


def barred_for(ctx: Context, at: int) -> I32:
    """MIG instances held for others than the gang at `at`."""
    return barred_instances(ctx, float(ctx.gap_end_s[at]), int(ctx.pending[at]))


def _apart(ctx: Context, row: int) -> F64 | None:
    """Cost of each node for replicas of the same service there or in its zone; None for other work."""
    snapshot, weight = ctx.observation.snapshot, ctx.policy.placement.replicas
    service = int(snapshot.workloads.service[row])
    if service < 0 or weight <= 0:
        return None
    on_node, nodes = np.zeros(len(snapshot.nodes.id)), snapshot.nodes
    for other in np.flatnonzero(snapshot.workloads.service == service).tolist():
        on_node[np.unique(snapshot.gpus.node[ctx.whatif.layout_of(other).gpu])] += 1.0
    in_zone = np.bincount(nodes.zone, on_node)[nodes.zone]
    return np.asarray(weight * (on_node + in_zone / 2))


def _liked(ctx: Context, row: int) -> F64 | None:
    """Number of the gang's preferred hints on each node; None without preferences, or without a node that has one."""
    prefers = int(ctx.observation.snapshot.workloads.prefers[row])
    if not prefers:
        return None
    has = np.bitwise_count(ctx.observation.snapshot.nodes.hints & prefers).astype(float)
    return has if has.any() else None


def _kept_term(found: Fit, kept: F64) -> Evidence:
    """The number of nodes left to wider gangs, with a word if this place had to use them."""
    why = "; it fits on no others" if kept[found.nodes].any() else ""
    return Evidence("kept_clear", int((kept > 0).sum()), f"nodes left to wider gangs that are expected{why}")


def _hinted(ctx: Context, found: Fit, hinted: Fit, liked: F64) -> Fit:
    """The place by hints, unless it spans more domains of some level than the place without them."""
    nodes = ctx.observation.snapshot.nodes
    for level in (nodes.island, nodes.leaf, nodes.block, nodes.zone):
        if len(np.unique(level[hinted.nodes])) > len(np.unique(level[found.nodes])):
            hinted = found
    term = Evidence("hints", float(liked[hinted.nodes].mean()), "images and NUMA policy, a mean over its nodes")
    return replace(hinted, score=found.score, terms=(*hinted.terms, term))


def held_for_others(ctx: Context, at: int) -> I32:
    """Free GPUs per node held for gangs other than the one at `at`, even if its guarantee takes precedence. [nodes]."""
    return ctx.whatif.node_free - ctx.room(float(ctx.gap_end_s[at]), int(ctx.pending[at]), overruling=False)


def short(ctx: Context, shape: Shape, room: I32) -> Miss | None:
    """Set for too few GPUs, regardless of the other needs of the gang; one count serves all gangs of equal members.

    `room` [nodes]: free GPUs not held for others, one array for one answer (`Context.room`).
    """
    if not shape.whole_gpus:
        return None
    counted = ctx.cached().counted
    key = (shape.models, shape.memory_mib, shape.selector, shape.per_member, shape.topology, shape.saves, id(room))
    if key not in counted:
        free = room[(room > 0) & suited_nodes(ctx.whatif, shape, ctx.gpu_memory_mib)]
        counted[key] = (int(free.sum()), int(members_on(shape, free).sum()), int(free.max(initial=0)))
    free_gpus, members, most = counted[key]
    if free_gpus >= shape.gpus and members >= shape.members and most >= shape.tail:
        return None
    return Miss(Code.CAPACITY if free_gpus < shape.gpus else Code.FRAGMENTED, float(free_gpus), float(shape.gpus))


def within_limits(ctx: Context, row: int, shape: Shape) -> Shape:
    """The shape without GPU models with too little left under their limits."""
    models = ctx.quota.open_models(row, shape.gpus)
    return shape if models == shape.models else replace(shape, models=models)


def room_beside(ctx: Context, row: int, room: I32) -> I32:
    """Free GPUs per node for more members of a running gang. Shape [nodes].

    They are in its domain or, if each member has a node of its own, on nodes without one.
    """
    snapshot = ctx.observation.snapshot
    topology = int(snapshot.workloads.topology[row])
    level = level_of(snapshot.nodes, topology)
    nodes = np.unique(snapshot.gpus.node[ctx.whatif.layout_of(row).gpu])
    if level is not None:
        return np.where(np.isin(level, level[nodes]), room, 0).astype(np.int32)
    if topology == Topology.SPREAD:
        room = room.copy()
        room[nodes] = 0
    return room


def elsewhere(ctx: Context, row: int, gpus: int) -> Fit | None:
    """A place for a gang taken off the what-if, at this width."""
    shape = ctx.shape(row, gpus)
    if row in ctx.members:  # members that differ are placed when they start, not here
        return None
    shape = within_limits(ctx, row, shape)
    barred = barred_instances(ctx, np.inf) if shape.profile >= 0 else None
    fit = find_fit(ctx.whatif, shape, ctx.room(np.inf), ctx.policy.placement, ctx.gpu_memory_mib, barred=barred)
    return fit if isinstance(fit, Fit) else None
