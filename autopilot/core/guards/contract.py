"""Bounds the GPUs that contracts take for one beneficiary. Contracts waive the bounds on price and calm."""

from __future__ import annotations

from autopilot.core.effects.disruption import beneficiary_of, needed_gpus, taken_gpus
from autopilot.core.effects.draft import Draft
from autopilot.core.guards.base import allow, deny
from autopilot.core.model.memory.budget import CONTRACT_WINDOW_S
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context

NAME = "contract"
UNIT = "GPUs taken by contract for it within the hour"

TIMES = 2.0
"""Contracts take at most this multiple of the GPUs that a beneficiary needs."""

PASSES = allow(NAME, 0.0, UNIT, 0.0)
"""The verdict on a proposal without a contract."""


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Hold a taking beyond the bound; it passes again once earlier takings are an hour old.

    The first taking of an hour always passes. Its victims are all needed, and a victim wider than the bound leaves as
    a whole.
    """
    beneficiary = beneficiary_of(draft, ctx) if draft.contract and draft.taken else ""
    if not beneficiary:
        return PASSES
    earlier = sum(
        entry.gpus
        for entry in (*ctx.memory.budget.disrupted, *ctx.plan.accepted)
        if entry.contract
        and entry.beneficiary == beneficiary
        and entry.at_s + CONTRACT_WINDOW_S > ctx.now_s
        and not (draft.resent and entry.proposal_id == draft.resent)
    )
    total, limit = earlier + sum(taken_gpus(give, ctx) for give in draft.taken), TIMES * needed_gpus(draft, ctx)
    if earlier and total > limit:
        return deny(NAME, Code.CONTRACT_RATE, total, UNIT, limit)
    return allow(NAME, total, UNIT, limit)
