"""The telemetry behind a proposal can be true."""

from __future__ import annotations

import numpy as np

from autopilot.core.effects.draft import Draft
from autopilot.core.guards.base import allow, deny, relied_on
from autopilot.core.intake.usage.plausibility import DOUBTS
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context

NAME = "telemetry"
UNIT = "GPUs or instances in doubt"

PASSES = allow(NAME, 0.0, UNIT, 0.0)
"""The verdict on a proposal without telemetry behind it."""


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Refuse a proposal on GPUs or MIG instances with telemetry in doubt, with the most certain reason."""
    if not draft.case.by_telemetry:
        return PASSES
    rows = relied_on(draft, ctx)
    found = ctx.doubts[rows]
    found[found == DOUBTS.index(Code.STALE_TELEMETRY)] = 0  # the guard `freshness` answers this
    if not found.any():
        return allow(NAME, 0.0, UNIT, float(len(rows)))
    return deny(NAME, DOUBTS[int(found.max())], float(np.count_nonzero(found)), UNIT, float(len(rows)))
