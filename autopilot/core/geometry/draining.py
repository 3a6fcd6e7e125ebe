"""Draining of GPUs for a change as a whole: their work ends by itself soon, or it moves.

Work may be moved by the rules of `defragment`: it is settled, preemptible, can save in time, and finds another place,
free now and not held for others. Nothing is evicted without another place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autopilot.core.effects.draft import Eviction
from autopilot.core.model.snapshot import I32, State
from autopilot.core.placement.fit import find_fit
from autopilot.core.placement.shapes import Fit, shape_of
from autopilot.core.planning.context import Context
from autopilot.core.planning.held_instances import barred_instances
from autopilot.core.planning.places import within_limits
from autopilot.core.search.scenario import STEPS_A_PLACE


@dataclass(frozen=True, slots=True)
class Drain:
    """The fate of the work on drained GPUs."""

    moves: tuple[Eviction, ...]
    ends: tuple[int, ...]  # rows of work that ends by itself
    ready_s: float  # when the last of these is predicted to end
    cost_gpu_s: float  # of the moves


def drain_of(ctx: Context, gpus: I32, within_s: float) -> Drain | None:
    """A drain of these GPUs (rows); None if work there neither ends within `within_s` nor can move.

    The what-if is left as it was.
    """
    rows = holders_of(ctx, gpus)
    if rows is None:
        return None
    until_s = ctx.review_now_s + within_s
    ends = [row for row in rows if row in ctx.plan.leaving or float(ctx.end_s[row]) <= until_s]
    moving = [row for row in rows if row not in ends]
    if moving and not set(moving) <= _movable(ctx):
        return None
    moves = _moves(ctx, gpus, moving)
    if moves is None:
        return None
    ready_s = max((float(ctx.end_s[row]) for row in ends if row not in ctx.plan.leaving), default=ctx.now_s)
    return Drain(
        moves,
        tuple(ends),
        max(ready_s, ctx.now_s),
        sum(move.price_gpu_s * ctx.priced_gpus(ctx.whatif.layout_of(move.row)) / max(move.gpus, 1) for move in moves),
    )


def holders_of(ctx: Context, gpus: I32) -> list[int] | None:
    """Rows of the work on these GPUs; None if a start there is planned or under way."""
    held = ctx.observation.snapshot.placements
    there = set(held.workload[np.isin(held.gpu, gpus)].tolist())
    planned = {row for row, layout in ctx.whatif.layouts.items() if np.isin(layout.gpu, gpus).any()}
    return None if planned - there else sorted(there)


def _movable(ctx: Context) -> set[int]:
    """Rows that `defragment` may move too."""
    work = ctx.observation.snapshot.workloads
    return {
        claim.row
        for claim in ctx.settled()
        if claim.preemptible
        and work.state[claim.row] == State.RUNNING
        and claim.row not in ctx.members
        and claim.row not in ctx.quota.leaving
    }


def _moves(ctx: Context, gpus: I32, rows: list[int]) -> tuple[Eviction, ...] | None:
    """Another place for each of these; None if one finds none."""
    whatif, snapshot = ctx.whatif, ctx.observation.snapshot
    held = {row: whatif.layout_of(row) for row in rows}
    mark, ledger = whatif.checkpoint(), ctx.quota.ledger.saved()
    ctx.plan.spend((len(rows) + 1) * (STEPS_A_PLACE + len(whatif.node_free) // 50))
    for row, layout in held.items():
        whatif.evict(row)
        ctx.quota.book(row, layout, -1)
    whatif.set_aside(gpus)
    found: list[Eviction] = []
    for row in sorted(rows, key=lambda each: (-len(held[each]), each)):
        width = len(held[row])
        own = within_limits(ctx, row, shape_of(snapshot, row, width))
        barred = barred_instances(ctx, np.inf) if own.profile >= 0 else None
        place = find_fit(whatif, own, ctx.room(np.inf), ctx.policy.placement, ctx.gpu_memory_mib, barred=barred)
        if not isinstance(place, Fit) or ctx.quota.may_start(row, width) is not None:
            break
        whatif.place(row, place.layout)
        ctx.quota.book(row, place.layout)
        found.append(Eviction(row, "move", place.layout, width, float(ctx.lost_gpu_s[row])))
    ctx.quota.ledger.restore(ledger)
    whatif.rollback(mark)
    return tuple(found) if len(found) == len(rows) else None
