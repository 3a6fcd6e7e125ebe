"""What a guarantee means for one gang in words: how its queue keeps it, and since when it runs short."""

from __future__ import annotations

from autopilot.core.model.policy import GuaranteeRule
from autopilot.core.model.units import counted, format_duration, number
from autopilot.core.planning.context import Context
from autopilot.core.quota.ledger import ALL, EPSILON
from autopilot.core.rules.base import Claim
from autopilot.explain.story.levels import cohorts, name_of


def guarantee_lines(ctx: Context, claim: Claim) -> list[str]:
    """How the guarantee of its queue works for a gang that waits, at its least width."""
    return [*_too_wide(ctx, claim), *_kept(ctx, claim)]


def _too_wide(ctx: Context, claim: Claim) -> list[str]:
    """A guarantee that is narrower than the gang does nothing for it."""
    guarantee = ctx.quota.ledger.guarantee[ALL][claim.queue]
    if cohorts(ctx) or not EPSILON < guarantee < claim.gpus - EPSILON:
        return []
    return [
        f"it asks for {counted(claim.gpus, 'GPU')}, more than the guarantee of {number(guarantee)} of queue "
        f"{name_of(ctx, claim.queue)}: it never counts as inside it, and nothing is taken back for it; to change that, "
        "raise the guarantee or lower its min_gpus"
    ]


def _kept(ctx: Context, claim: Claim) -> list[str]:
    """How the queue keeps its guarantee, where queues share time."""
    lending, queue, name = ctx.lending, claim.queue, name_of(ctx, claim.queue)
    if not lending.sharing(queue):
        return []
    rule, tenancy = lending.rules[queue], ctx.policy.tenancy
    words = f"queue {name} shares time by index; its guarantee is kept: {rule}"
    if rule is GuaranteeRule.STRICT:
        return [f"{words}, so work that waits inside it takes back at once"]
    if rule is GuaranteeRule.NONE:
        return [f"{words}, so nothing is taken back for it"]
    side = "inside" if claim.row in lending.inside else "outside"
    lines = [f"{words}: the index of work inside it counts {lending.factor:g} times, and this gang is {side}"]
    if queue in lending.held_until_s:
        left = format_duration(lending.held_until_s[queue] - ctx.now_s)
        lines.append(f"queue {name} was owed for too long: for {left} it takes back at once")
    elif queue in lending.owed_since_s:
        since_s = lending.owed_since_s[queue]
        left = format_duration(max(since_s + tenancy.elastic_within_s - ctx.now_s, 0.0))
        lines.append(
            f"queue {name} has been owed for {format_duration(ctx.now_s - since_s)}: if work still waits inside its "
            f"guarantee in {left}, it takes back at once"
        )
    return lines
