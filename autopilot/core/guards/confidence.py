"""Is the forecast behind a proposal known to be worth its promise: fresh, steady, proven, calibrated?"""

from __future__ import annotations

from autopilot.core.guards.base import allow, deny
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import Draft

NAME = "confidence"
UNIT = "forecasts relied on"


def check(_proposal: Proposal, draft: Draft, _ctx: Context) -> Verdict:
    """Judged by what the forecast says of itself; proposals that rest on no forecast of demand pass."""
    ahead = draft.ahead
    if ahead is None:
        return allow(NAME, 0.0, UNIT, 0.0)
    if ahead.code != Code.OK:
        return deny(NAME, ahead.code, ahead.value, ahead.unit, ahead.threshold)
    return allow(NAME, ahead.value, ahead.unit, ahead.threshold)
