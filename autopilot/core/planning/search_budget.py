"""The bound on the search of one action in one tick, and its order over the waiting gangs.

A search for victims or moves costs more on a larger cluster and with a longer queue. Its work is counted in steps, not
in time, so that a decision is the same on every machine. Half of the steps go to the gangs with the first turns. The
other half starts at a place that changes with each review period: every waiting gang is reached in time, and nothing
changes inside a period.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autopilot.core.planning.context import Context

STRIDE = 0.618034
"""Part of the queue between the places where two review periods begin; the golden ratio leaves no long gap."""

LOOK = 20
"""Steps for a gang that is answered without a search."""


def within_steps(ctx: Context, order: Sequence[int], times: int = 1) -> Iterator[int]:
    """The gangs of `order` reached by one action in this tick. The caller adds its steps to `ctx.plan`.

    The bound is `times` that of the policy.
    """
    bound = times * ctx.policy.limits.search_steps
    plan = ctx.plan
    half, limit = plan.steps + bound // 2, plan.steps + bound
    for place, at in enumerate(order):
        if plan.steps >= half:
            behind = order[place:]
            break
        plan.steps += LOOK
        yield at
    else:
        return
    review = round(ctx.review_now_s / ctx.policy.review.batch_s)
    first = int(review * STRIDE * len(behind)) % len(behind)
    for at in (*behind[first:], *behind[:first]):
        if plan.steps >= limit:
            return
        plan.steps += LOOK
        yield at
