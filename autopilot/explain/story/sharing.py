"""The guarantee of a queue for one gang in words: its rule, its shortfall and that time, and past use."""

from __future__ import annotations

from math import isfinite

from autopilot.core.model.policy import GuaranteeRule
from autopilot.core.model.units import counted, format_duration, number
from autopilot.core.planning.context import Context
from autopilot.core.quota.ledger import ALL, EPSILON
from autopilot.core.quota.rules.base import Claim
from autopilot.explain.story.levels import cohorts, name_of


def guarantee_lines(ctx: Context, claim: Claim) -> list[str]:
    """Lines on the guarantee of its queue for a waiting gang, at its least width, and on the effect of past use."""
    return [*_too_wide(ctx, claim), *_kept(ctx, claim), *_entitled(ctx, claim), *_overused(ctx, claim)]


def _too_wide(ctx: Context, claim: Claim) -> list[str]:
    """A guarantee narrower than the gang has no effect for it."""
    guarantee = ctx.quota.ledger.guarantee[ALL][claim.queue]
    if cohorts(ctx) or not EPSILON < guarantee < claim.gpus - EPSILON:
        return []
    return [
        f"it asks for {counted(claim.gpus, 'GPU')}, more than the guarantee of {number(guarantee)} of queue "
        f"{name_of(ctx, claim.queue)}: it never counts as inside it, and nothing is taken back for it; to change that, "
        "raise the guarantee or lower its min_gpus"
    ]


def _entitled(ctx: Context, claim: Claim) -> list[str]:
    """Rights of a gang waiting for the part of its queue, against overused queues."""
    if claim.row not in ctx.lending.entitled:
        return []
    overused = ", ".join(name_of(ctx, queue) for queue in sorted(ctx.lending.overused))
    return [
        f"it waits for the part of queue {name_of(ctx, claim.queue)}: it comes before other work that shares time, and "
        f"what overused queues ({overused}) run above their fair shares may pause for it"
    ]


def _overused(ctx: Context, claim: Claim) -> list[str]:
    """Past use of its queue, if it puts the gang behind gangs waiting for the parts of other queues."""
    found = ctx.lending.overused.get(claim.queue)
    if found is None or claim.row in ctx.lending.inside:
        return []
    used, fair = (f"{100.0 * ratio:.3g} %" for ratio in (found.used_ratio, found.fair_ratio))
    name, half_life = name_of(ctx, claim.queue), format_duration(ctx.policy.tenancy.usage_half_life_s)
    whole = (
        f"; it used {100.0 * found.part_ratio:.3g} % of its part of the cluster" if isfinite(found.part_ratio) else ""
    )
    ends = "that lasts while it holds its part or more"
    if isfinite(found.left_s):
        ends = f"at the present use that ends in {format_duration(found.left_s)}"
    return [
        f"queue {name} has overused its share for {format_duration(ctx.now_s - found.since_s)}: it has {used} of the "
        f"past use of the queues that share time, and {fair} of their fair shares{whole}, so gangs that wait for the "
        "part of their own queue come before what it has waiting outside its guarantee, and what it runs above its "
        f"fair share pauses for them ({counted(len(ctx.lending.entitled), 'gang')} now); "
        f"{ends} (past use halves in {half_life})"
    ]


def _kept(ctx: Context, claim: Claim) -> list[str]:
    """The guarantee rule of a queue that shares time."""
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
        lines.append(f"queue {name} had a guarantee shortfall for too long: for {left} it takes back at once")
    elif queue in lending.owed_since_s:
        since_s = lending.owed_since_s[queue]
        left = format_duration(max(since_s + tenancy.elastic_within_s - ctx.now_s, 0.0))
        lines.append(
            f"queue {name} has had a guarantee shortfall for {format_duration(ctx.now_s - since_s)}: if work still "
            f"waits inside its guarantee in {left}, it takes back at once"
        )
    return lines
