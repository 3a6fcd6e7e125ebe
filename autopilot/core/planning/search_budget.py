"""How far one action searches in one tick, and in which order it gets round to those who wait.

Whom to take or to move is a search, and its cost grows with the cluster and with the queue. Its work is counted in
steps, not timed, so that a decision is the same on every machine. Half of the steps go to those whose turn comes
first. With the other half the rest is looked at from a place that is another one in every review period: whoever
waits is looked at in time, and nothing changes inside a period.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autopilot.core.planning.context import Context

STRIDE = 0.618034
"""Part of the line between the places at which two review periods begin: the golden ratio leaves no gap for long."""

LOOK = 20
"""Steps of looking at a gang that is answered without a search."""


def within_steps(ctx: Context, order: Sequence[int], times: int = 1) -> Iterator[int]:
    """The gangs of `order` that one action gets round to in this tick, with what the caller adds to `ctx.plan.steps`.

    The bound is `times` that of the policy.
    """
    bound = times * ctx.policy.limits.search_steps
    half, limit = ctx.plan.steps + bound // 2, ctx.plan.steps + bound
    for place, at in enumerate(order):
        if ctx.plan.steps >= half:
            behind = order[place:]
            break
        ctx.plan.spend(LOOK)
        yield at
    else:
        return
    review = round(ctx.review_now_s / ctx.policy.review.batch_s)
    first = int(review * STRIDE * len(behind)) % len(behind)
    for at in (*behind[first:], *behind[:first]):
        if ctx.plan.steps >= limit:
            return
        ctx.plan.spend(LOOK)
        yield at
