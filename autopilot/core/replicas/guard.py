"""A proposal rests on a reliable forecast: fresh, steady, proven, calibrated."""

from __future__ import annotations

from autopilot.core.effects.draft import Draft
from autopilot.core.guards.base import allow, deny
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context
from autopilot.core.planning.foresight import judged

NAME = "confidence"
UNIT = "forecasts relied on"

PASSES = allow(NAME, 0.0, UNIT, 0.0)
"""The verdict on a proposal without a forecast."""


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Judge by the record of the forecast alone. Proposals without a forecast pass."""
    if draft.foreseen is None:
        return PASSES
    ahead = judged(draft.foreseen, ctx.now_s, ctx.policy.scale_ahead)
    if ahead.code != Code.OK:
        return deny(NAME, ahead.code, ahead.value, ahead.unit, ahead.threshold, ahead.at_least)
    return allow(NAME, ahead.value, ahead.unit, ahead.threshold, ahead.at_least)
