"""Stability: a disruptive proposal pays by a margin and lasts for the dwell time, and its victims cool down.

Two more waits: a gang after a pipelined start was given up, and an object after the cluster refused an attempt on it.
"""

from __future__ import annotations

from autopilot.core.effects.disruption import dwell_s, proposal_key
from autopilot.core.effects.draft import Draft
from autopilot.core.guards.base import allow, deny, waive
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context

NAME = "hysteresis"

PASSES = allow(NAME, 0.0, "victims", 0.0)
"""The verdict on a proposal without victims."""


def check(proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Judge margin, cool-down and dwell in this order. Proposals without victims pass; contracts are waived."""
    rules = ctx.policy.hysteresis
    refused_s = ctx.memory.effects.refused_until_s.get(proposal.subject.uid, float("-inf"))
    if refused_s > ctx.now_s and all(victim.uid != proposal.subject.uid for victim in proposal.victims):
        return deny(NAME, Code.REFUSED, refused_s - ctx.now_s, "s until it is tried again", 0.0)
    if not draft.victims:
        return PASSES
    key = proposal_key(proposal)
    since_s = ctx.memory.plan.proposed_since_s.get(key, ctx.now_s)
    lasted_s, needs_s = ctx.now_s - since_s, dwell_s(ctx, draft)
    if draft.contract:
        return waive(NAME, lasted_s, "s since first proposed", needs_s, at_least=True)
    least = proposal.cost_gpu_s * (1.0 + rules.margin_ratio)
    if proposal.benefit_gpu_s <= least:
        return deny(NAME, Code.MARGIN, proposal.benefit_gpu_s, "GPU-s of benefit", least, at_least=True)
    if draft.resent:  # it was lasting and calm at its decision; since then the victims wait for it
        return allow(NAME, lasted_s, "s since first proposed", 0.0, at_least=True)
    cooled_s = max(ctx.memory.budget.cooled_until_s.get(victim.uid, float("-inf")) for victim in proposal.victims)
    if cooled_s > ctx.now_s:
        return deny(NAME, Code.COOL_DOWN, cooled_s - ctx.now_s, "s of cool-down left", 0.0)
    again_s = ctx.memory.starts.no_pipelined_until_s.get(proposal.subject.uid, float("-inf"))
    if again_s > ctx.now_s:
        return deny(NAME, Code.GIVEN_UP, again_s - ctx.now_s, "s of cool-down left", 0.0)
    if ctx.now_s < since_s + needs_s:  # the timer waits for the same sum
        return deny(NAME, Code.DWELL, lasted_s, "s since first proposed", needs_s, at_least=True)
    return allow(NAME, lasted_s, "s since first proposed", needs_s, at_least=True)
