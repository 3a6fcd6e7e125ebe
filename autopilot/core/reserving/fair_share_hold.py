"""The fair-share hold: room for a gang of a queue below its fair share, for a while.

Turns alone do not help a gang of several GPUs beside a flood of narrow work. Its turn comes first, but GPUs come free
one by one, and each goes to a gang of one GPU behind it. Preemption does not help while that narrow work is younger
than its guaranteed run time. So room is held, tentatively, for the first such gang of each queue, if its start is near:
work is predicted to end, or will be old enough to be preempted.

Queues that share time start work by index, so their share alone holds no room. Beside an overused queue, room is held
for a gang waiting for the part of its queue (planning/lending.py): pieces of ten minutes end before their guaranteed
run time does, and the next pieces would take their place.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.policy import Effect
from autopilot.core.model.snapshot import F64, Bools
from autopilot.core.model.work import running_since
from autopilot.core.planning.context import Context
from autopilot.core.planning.restraint import is_capped
from autopilot.core.planning.start_plan import plan_start
from autopilot.core.quota.ledger import ALL, EPSILON
from autopilot.core.reserving.hold import hold

_RECLAIM = Effect.RECLAIM, "reclaim_borrowed"
_PAUSE = Effect.PREEMPT, "preempt"

MOST = 8
"""Starts to plan in one tick, in the order of service; each looks at the whole cluster."""

TWICE = 2.0
"""Room is held for one gang at most this many times `reservation.share_hold_s`: the prediction was wrong."""


def hold_fair_share(ctx: Context, at: int, held_for: dict[int, bool]) -> bool:
    """Hold room for the gang at `at`, without any at its turn; True if it does.

    `held_for` has an entry for each queue with a considered first waiting gang; True: a start was planned for it.
    """
    limit_s = ctx.policy.reservation.share_hold_s
    if limit_s <= 0:
        return False
    row, queue = int(ctx.pending[at]), ctx.pending_table.queue[at]
    held_for[queue] = False
    entitled = row in ctx.lending.entitled
    if ctx.lending.sharing(queue) and not entitled:  # the index decides what starts, not the share
        return False
    if not ctx.is_uniform(row) or not (entitled or _below_share(ctx, at)):
        return False
    since_s = ctx.since_s(ConditionKind.BELOW_SHARE, row, lasting=True)
    if ctx.now_s - since_s > TWICE * limit_s:
        return False
    if sum(held_for.values()) >= MOST:
        return False
    held_for[queue] = True
    over = _overused_work(ctx) if entitled else _above_share(ctx, queue)[ctx.observation.snapshot.workloads.queue]
    if not over.any():  # no queue has what it lacks
        return False
    shape = ctx.shape(row, ctx.pending_table.least_gpus[at])
    taking = _PAUSE if entitled else _RECLAIM
    plan = plan_start(ctx, at, shape, _free_or_taken_at(ctx, over, *taking))
    if plan is None or plan.start_s > ctx.review_now_s + limit_s:
        return False
    ctx.plan.wake_at(since_s + TWICE * limit_s)
    ctx.plan.hold(hold(ctx, row, shape, plan, ctx.standing.get(row), firm=False))
    return True


def _below_share(ctx: Context, at: int) -> bool:
    """True if its queue, and each queue above, stays within its fair share with the gang."""
    ledger, row = ctx.quota.ledger, int(ctx.pending[at])
    claim = ctx.quota.claim(row, ctx.pending_table.least_gpus[at])
    path = ledger.paths[claim.queue]
    return bool(path) and all(ledger.within_fair(queue, claim.gpus, claim.kinds) for queue in path)


def _above_share(ctx: Context, queue: int) -> Bools:
    """Queues above their fair share, at the point where their path parts from that of `queue`. Shape [queues]."""
    ledger = ctx.quota.ledger
    over = np.zeros(len(ledger.paths), np.bool_)
    for other in range(len(over)):
        mine, theirs = ledger.parting(queue, other)
        over[other] = mine != theirs and ledger.use[ALL][theirs] > ledger.fair[ALL][theirs] + EPSILON
    return over


def _overused_work(ctx: Context) -> Bools:
    """Running work of overused queues that pauses for gangs waiting for their part. Shape [workloads]."""
    over = np.zeros(len(ctx.observation.snapshot.workloads.id), np.bool_)
    over[list(ctx.lending.behind)] = True
    return over


def _free_or_taken_at(ctx: Context, over: Bools, effect: Effect, action: str) -> F64:
    """Predicted free time of each GPU, or the time at which this action may take it from work in `over`. [gpus].

    `over` [workloads].
    """
    work, held = ctx.observation.snapshot.workloads, ctx.observation.snapshot.placements
    settles_s = np.where(
        work.preemptible & over & ~ctx.unsaved & ~ctx.stops.often,
        running_since(work) + ctx.stops.guaranteed_s,
        np.inf,
    )
    free_at_s = ctx.plan.gpu_free_at_s.copy()
    if not ctx.policy.modes.auto(effect) or is_capped(ctx.memory, action):
        return free_at_s
    usable = ctx.whatif.gpu_whole[held.gpu]
    np.minimum.at(free_at_s, held.gpu[usable], np.fmin(settles_s[held.workload[usable]], np.inf))
    return free_at_s
