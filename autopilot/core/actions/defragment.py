"""Move running gangs so that one that waits fits: nobody loses its place, and nobody moves for protected work.

Enough GPUs are free, but not in a shape that the gang can use. The cheapest gangs whose going would make room
are taken off on paper, the gang is placed, and each of them must then find a place elsewhere; where one does
not, it is left alone and the search goes on without it.
"""

from __future__ import annotations

from autopilot.core.context import Context
from autopilot.core.displace import (
    Wish,
    landing_draft,
    least_width,
    let_leave,
    on_paper,
    search_for,
    worth_gpu_s,
)
from autopilot.core.draft import Submit
from autopilot.core.placement import Shape, shape_of
from autopilot.core.records import Code
from autopilot.core.rules.base import Offer, Take
from autopilot.core.snapshot import GPU_MILLI, State

NAME = "defragment"

TRIES = 8
"""How often the search goes on without a gang that found no other place."""

SHAPES = frozenset({Code.FRAGMENTED, Code.TOPOLOGY, Code.MIG_GEOMETRY})
"""Reasons of waiting that moves can end."""


def propose(ctx: Context, submit: Submit) -> None:
    """Moves for gangs that wait although enough is free, in the order of service."""
    for at in ctx.waiting(SHAPES):
        found = moves_only(ctx, at) if ctx.too_early(at) is None else None
        if found is not None:
            worth = worth_gpu_s(ctx, at, found)
            ctx.taken[at] = submit(landing_draft(ctx, NAME, at, found, worth, contract=False))


def moves_only(ctx: Context, at: int) -> Wish | None:
    """How the gang at `at` could start if others moved; None when it may not, or no moves make room."""
    row = int(ctx.pending[at])
    work = ctx.observation.snapshot.workloads
    gpus = least_width(ctx, at)
    if (
        not work.preemptible[row]
        or not ctx.policy.preemption.move_victims
        or ctx.may_start(at, gpus) is not None
    ):
        return None
    mark = let_leave(ctx)
    found = search_moves(ctx, at, shape_of(ctx.observation.snapshot, row, gpus))
    ctx.whatif.rollback(mark)
    return found


def search_moves(ctx: Context, at: int, shape: Shape) -> Wish | None:
    """The cheapest gangs whose moving makes room, without those that find no other place."""
    work, gpus = ctx.observation.snapshot.workloads, shape.gpus
    search = search_for(ctx, at, shape)
    whatif = ctx.whatif
    free = float((GPU_MILLI - whatif.gpu_used[whatif.gpu_usable]).sum()) / GPU_MILLI
    if shape.milli == 0 and shape.profile < 0 and free < gpus:
        return None
    movable = [claim for claim in ctx.settled(ctx.quota.running())
               if claim.preemptible and claim.gpus <= free and work.state[claim.row] == State.RUNNING]  # fmt: skip
    ranks = {priority: rank for rank, priority in enumerate(sorted({claim.priority for claim in movable}))}
    offers = sorted(
        (Offer(Take(claim.row, claim.gpus, whole=True), ranks[claim.priority], claim.price_gpu_s, claim.queue)
         for claim in movable),
        key=lambda offer: (offer.rank, offer.price_gpu_s + offer.take.gpus, offer.take.row),
    )  # fmt: skip
    for _ in range(TRIES):
        takes = search.cheapest(offers, lambda _: True) if offers else None
        if not takes:
            return None
        found = on_paper(ctx, at, shape, search, takes)
        if not isinstance(found, Wish):
            return None
        stuck = {give.row for give in found.gives if give.how != "move"}
        if not stuck:
            return found
        offers = [offer for offer in offers if offer.take.row not in stuck]
    return None
