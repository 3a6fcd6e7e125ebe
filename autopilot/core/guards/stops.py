"""Bounds the number of stops and moves of one workload for other work."""

from __future__ import annotations

from autopilot.core.effects.draft import Draft
from autopilot.core.guards.base import allow, deny, waive
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context

NAME = "stops"
UNIT = "earlier stops of one victim"

PASSES = allow(NAME, 0.0, "victims", 0.0)
"""The verdict on a proposal without a victim for other work."""


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Judge by the victim with the most earlier stops. Idle work, and work stopped for its own sake, has no bound."""
    if not draft.victims or not (draft.contract or draft.case.takes.for_others):
        return PASSES
    stops, most = float(ctx.stops.count[list(draft.victims)].max()), float(ctx.policy.protection.most_stops)
    if draft.contract:
        return waive(NAME, stops, UNIT, most)
    if stops >= most:
        return deny(NAME, Code.STOPPED_OFTEN, stops, UNIT, most)
    return allow(NAME, stops, UNIT, most)
