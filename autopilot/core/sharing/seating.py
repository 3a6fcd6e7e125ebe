"""Move running work from whole GPUs to seats, so that a gang that waits starts on the whole GPUs.

Every moved gang goes on beside work that it trusts. The rules of `defragment` say what may move: it is preemptible, old
enough, can save in time, and was not stopped too often. The budgets and the margin bind. So idle work is shared before
it is suspended. One look in a review period does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autopilot.core.effects import pipeline
from autopilot.core.effects.draft import Case, Submit
from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import State
from autopilot.core.model.stops import StopReason
from autopilot.core.model.work import on_shares
from autopilot.core.planning.context import Context
from autopilot.core.planning.ordering.predicted_ends import review_start
from autopilot.core.planning.search_budget import within_steps
from autopilot.core.quota.ledger import QuotaLedger
from autopilot.core.quota.rules.base import Claim, RankedTarget, Refusal, Room, Takes, Target
from autopilot.core.search.scenario import Scenario, find_scenario, pipelined_draft, worth_gpu_s
from autopilot.core.sharing.seats import Seat, find_seat, seats_for
from autopilot.core.sharing.terms import Terms

NAME = "share"
MOVE = Case(
    NAME,
    pipeline.KIND,
    words="start on {where}{after}, when others go on on shares of other GPUs: {victims}",
    takes=StopReason.MOVE,
)
MOST_TRIED = 8
"""Gangs that wait for which moves are looked for in a review period, in the order of service."""


def move_to_seats(ctx: Context, terms: Terms, submit: Submit) -> None:
    """Starts of waiting gangs by moves to seats, in the order of service."""
    if review_start(ctx.memory.now_s, ctx.policy) >= ctx.review_now_s:
        return
    movers = _movers(ctx, terms)
    waiting = ctx.waiting(frozenset({Code.CAPACITY, Code.FRAGMENTED, Code.TOPOLOGY}))[:MOST_TRIED] if movers else []
    for at in within_steps(ctx, waiting):
        if ctx.too_early(at) is not None:
            continue
        found = find_scenario(ctx, at, _takes(ctx, at, movers), moves=False)
        if not isinstance(found, Scenario) or not found.evictions:
            continue
        seats = seats_for(ctx, terms, [give.row for give in found.evictions])
        if seats is None:
            continue
        moved = tuple(replace(give, how="move", keeps=seats[give.row]) for give in found.evictions)
        found = replace(found, evictions=moved)
        if ctx.plan.decide(at, submit(pipelined_draft(ctx, MOVE, at, found, worth_gpu_s(ctx, at, found)))):
            movers = _movers(ctx, terms)


def _movers(ctx: Context, terms: Terms) -> list[Claim]:
    """Running work that has a seat elsewhere, and may be moved there."""
    work, shares = ctx.observation.snapshot.workloads, on_shares(ctx.observation.snapshot)
    found = []
    for claim in ctx.settled():
        row = claim.row
        held = ctx.whatif.layout_of(row)
        may = claim.preemptible and terms.may[row] and not shares[row] and work.state[row] == State.RUNNING
        if may and len(held) and isinstance(find_seat(ctx, terms, row, ctx.shape(row, len(held))), Seat):
            found.append(claim)
    return found


def _takes(ctx: Context, at: int, movers: Sequence[Claim]) -> Takes:
    """The rule for such victims: any of them, as far as the gang may start by its quota."""

    def takes(_: QuotaLedger, claim: Claim, _running: Sequence[Claim], room: Room) -> tuple[Target, ...] | Refusal:
        refusal = ctx.quota.may_start(int(ctx.pending[at]), round(claim.gpus))
        if refusal is not None:
            return refusal
        prices = ctx.losses.price_gpu_s
        targets = [
            RankedTarget(Target(each.row, each.gpus, whole=True), 0, float(prices[each.row]), each.queue)
            for each in movers
        ]
        found = room.cheapest(targets, lambda _: True)
        return found if found is not None else Refusal(Code.CAPACITY, 0.0, claim.gpus)

    return takes
