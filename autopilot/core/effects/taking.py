"""Deeds that place or take work, applied to the what-if and the quota ledger once they stand."""

from __future__ import annotations

from autopilot.core.effects.draft import Draft, Eviction, moves_of
from autopilot.core.effects.named import victim_of
from autopilot.core.model.objects import Taken, Victim
from autopilot.core.model.records import Proposal
from autopilot.core.placement.vacate import vacate
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context


def start_on(ctx: Context, row: int, layout: Layout, proposal: Proposal) -> None:
    """A gang takes its place on the what-if and in the quota ledger, and reserved quota of others."""
    ctx.plan.take_quota(each.uid for each in proposal.change.side_effects if each.what == Taken.QUOTA)
    run_s = float(ctx.run_low_s[ctx.position_of(row)])
    ctx.plan.drop_hold(row)  # it needs its reservation no more
    ctx.whatif.place(row, layout)
    ctx.occupy(row, layout, ctx.now_s + run_s)


def make_room(draft: Draft, ctx: Context, starts: tuple[Layout, ...] = ()) -> tuple[Victim, ...]:
    """Victims leave the what-if and the quota ledger, or take their new place. Returns others that leave for it.

    `starts`: the place of the gang that starts there.
    """
    whatif, quota = ctx.whatif, ctx.quota
    for give in draft.taken:
        quota.book(give.row, whatif.layout_of(give.row), -1)
        quota.leaving.add(give.row)
        if give.keeps is not None:
            quota.book(give.row, give.keeps)
    moves = moves_of(draft.taken)
    for row, target in moves.items():
        ctx.foresee(target, float(ctx.end_s[row]), row)
    gone = vacate(whatif, [*draft.victims, *ctx.plan.leaving], [*starts, *moves.values()], moves)
    others = sorted(gone.difference(draft.victims))
    waits = tuple(victim_of(_leaver(row, ctx.plan.leaving[row]), ctx, contract=True) for row in others)
    for give in draft.taken:
        if give.how != "move":
            ctx.plan.leave(give.row, give.keeps)
    return waits


def _leaver(row: int, keeps: Layout | None) -> Eviction:
    """A gang already leaving for another one."""
    return Eviction(row) if keeps is None else Eviction(row, "shrink", keeps)
