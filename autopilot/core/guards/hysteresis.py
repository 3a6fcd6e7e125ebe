"""Calm: a disruptive wish must pay by a margin, last a while, and leave its victims alone after."""

from __future__ import annotations

from autopilot.core.context import Context
from autopilot.core.draft import Draft
from autopilot.core.guards.base import allow, deny, waive
from autopilot.core.records import Code, Proposal, Verdict

NAME = "hysteresis"


def check(proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Undisruptive proposals pass at once; contractual evictions are recorded as waived."""
    rules = ctx.policy.hysteresis
    if not draft.victims:
        return allow(NAME, 0.0, "victims", 0.0)
    wish = wish_key(proposal)
    since_s = ctx.memory.wished_since_s.get(wish, ctx.now_s)
    lasted_s = ctx.now_s - since_s
    if draft.contract:
        return waive(NAME, lasted_s, "s since first wished", rules.dwell_s)
    least = proposal.cost_gpu_s * (1.0 + rules.margin_ratio)
    if proposal.benefit_gpu_s <= least:
        return deny(NAME, Code.MARGIN, proposal.benefit_gpu_s, "GPU-s of benefit", least)
    cooled_s = max(
        ctx.memory.cooled_until_s.get(victim.workload, float("-inf")) for victim in proposal.victims
    )
    if cooled_s > ctx.now_s:
        return deny(NAME, Code.COOL_DOWN, cooled_s - ctx.now_s, "s of cool-down left", 0.0)
    if ctx.now_s < since_s + rules.dwell_s:  # the sum that the timer waits for
        return deny(NAME, Code.DWELL, lasted_s, "s since first wished", rules.dwell_s)
    return allow(NAME, lasted_s, "s since first wished", rules.dwell_s)


def wish_key(proposal: Proposal) -> str:
    """What makes two wishes of different ticks the same one: who gains by which action."""
    return f"{proposal.action}/{proposal.kind}/{proposal.workload}"
