"""Moves with room for a gang that is only expected: it has no row, no queue and no turn yet.

Work about to end by itself counts as gone. The cheapest blocking gangs are taken off the what-if, and each must find
another place, needed neither by the expected gang nor by the work about to end. A gang without one stays, and the
search continues without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.effects.draft import Eviction
from autopilot.core.model.snapshot import GPU_MILLI, I32, Bools, Topology
from autopilot.core.placement.fit import find_fit
from autopilot.core.placement.kinds.whole import fits_on
from autopilot.core.placement.shapes import Fit, Shape, level_of, shape_of, suitable_nodes
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.planning.places import within_limits
from autopilot.core.quota.rules.base import Target
from autopilot.core.search.moves import TRIES, movers
from autopilot.core.search.scenario import STEPS_A_PLACE, let_leave, most_given_up
from autopilot.core.search.victims import Search

STEPS_A_LOOK = 200
"""Steps to see when a gang fits by itself."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """Moves that make room, the widest gang first."""

    moves: tuple[Eviction, ...]
    node: int  # one of those that are cleared
    ready_s: float  # when the last work there is predicted to have ended by itself


def fits_from_s(ctx: Context, shape: Shape) -> float:
    """Time of the first fit of a gang of this shape without moves, if no other work starts before; inf for never.

    It is one of the predicted ends.
    """
    ctx.plan.spend(STEPS_A_LOOK + len(ctx.whatif.node_free) // 10)
    nodes, gpus = ctx.observation.snapshot.nodes, ctx.observation.snapshot.gpus
    suits = suitable_nodes(ctx.whatif, shape, ctx.gpu_memory_mib, empty=True)
    held = np.maximum(ctx.whatif.node_free - ctx.room(np.inf), 0)  # for others

    def fits(at_s: float) -> bool:
        free = np.bincount(gpus.node[ctx.plan.gpu_free_at_s <= at_s], minlength=len(suits)) - held
        return fits_on(nodes, shape, np.where(suits, free, 0).astype(np.int32))

    ends_s = np.unique(np.maximum(ctx.plan.gpu_free_at_s[np.isfinite(ctx.plan.gpu_free_at_s)], ctx.review_now_s))
    if fits(-np.inf):
        return ctx.review_now_s
    low, high = 0, len(ends_s)  # the first end after which it fits
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(float(ends_s[middle])) else (middle + 1, high)
    return float(ends_s[low]) if low < len(ends_s) else np.inf


def clear_for(ctx: Context, shape: Shape, may_move: Bools, soon: I32) -> Cleared | None:
    """The cheapest moves with room for this shape; None if none suffice, or none are needed.

    `may_move` [workloads]: movable gangs. `soon`: rows of work about to end by itself.
    """
    whatif = ctx.whatif
    mark = let_leave(ctx)
    held = {row: whatif.layout_of(row) for row in soon.tolist() if len(whatif.layout_of(row))}
    for row in held:
        whatif.evict(row)
    suits = suitable_nodes(whatif, shape, ctx.gpu_memory_mib, empty=True)
    room = np.where(suits, ctx.room(np.inf), 0).astype(np.int32)
    search = Search(
        whatif,
        room,
        shape.gpus,
        shape.unit_gpus,
        lambda free: fits_on(ctx.observation.snapshot.nodes, shape, np.where(suits, free, 0).astype(np.int32)),
        suits=suits,
        domain=level_of(ctx.observation.snapshot.nodes, shape.topology),
        spread=shape.topology == Topology.SPREAD,
        patience=ctx.policy.limits.search_steps,
    )
    free_gpus = float((GPU_MILLI - whatif.gpu_used[whatif.gpu_whole]).sum()) / GPU_MILLI
    offered = []
    if free_gpus >= shape.gpus:
        most_gpus = min(free_gpus, most_given_up(ctx, shape))
        offered = [each for each in movers(ctx, search, most_gpus) if each.target.whole and may_move[each.target.row]]
    found = None
    for _ in range(TRIES):
        targets = search.cheapest(offered, lambda _: True) if offered else None
        if not targets or search.steps > search.patience:
            break
        found, stuck = _on_paper(ctx, shape, targets, held, search)
        if not stuck:
            break
        offered = [each for each in offered if each.target.row not in stuck]
    whatif.rollback(mark)
    ctx.plan.spend(search.steps)
    return found


def _on_paper(
    ctx: Context, shape: Shape, targets: Sequence[Target], soon: Mapping[int, Layout], search: Search
) -> tuple[Cleared | None, set[int]]:
    """The moves of these gangs, and those without another place. The what-if is left as it was."""
    whatif, gpus = ctx.whatif, ctx.observation.snapshot.gpus
    search.steps += (len(targets) + 1) * (STEPS_A_PLACE + len(search.room) // 50)
    held = {target.row: whatif.layout_of(target.row) for target in targets}
    mark, ledger = whatif.checkpoint(), ctx.quota.ledger.saved()
    for row, layout in held.items():
        whatif.evict(row)
        ctx.quota.book(row, layout, -1)
    fit = find_fit(whatif, shape, ctx.room(np.inf), ctx.policy.placement, ctx.gpu_memory_mib)
    moves: list[Eviction] = []
    stuck: set[int] = set()
    ready_s, node = ctx.review_now_s, -1
    if isinstance(fit, Fit):
        cleared, node = fit.layout.per_node(ctx.observation.snapshot), int(fit.nodes[0])
        for row, layout in soon.items():
            whatif.place(row, layout)
            if np.isin(gpus.node[layout.gpu], fit.nodes).any():
                ready_s = max(ready_s, float(ctx.end_s[row]))
        for row in sorted(held, key=lambda each: (-len(held[each]), each)):
            width = len(held[row])
            own = within_limits(ctx, row, shape_of(ctx.observation.snapshot, row, width))
            left = np.maximum(ctx.room(np.inf) - cleared, 0).astype(np.int32)
            place = find_fit(whatif, own, left, ctx.policy.placement, ctx.gpu_memory_mib)
            if not isinstance(place, Fit) or ctx.quota.may_start(row, width) is not None:
                stuck.add(row)
                continue
            whatif.place(row, place.layout)
            ctx.quota.book(row, place.layout)
            if not place.layout.is_at(held[row]):
                moves.append(Eviction(row, "move", place.layout, width, float(ctx.lost_gpu_s[row])))
    ctx.quota.ledger.restore(ledger)
    whatif.rollback(mark)
    return (Cleared(tuple(moves), node, ready_s) if moves and not stuck else None), stuck
