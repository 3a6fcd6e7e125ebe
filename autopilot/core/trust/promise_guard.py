"""An action that realised too little of its promises only recommends."""

from __future__ import annotations

from math import inf

from autopilot.core.effects.draft import Draft
from autopilot.core.guards.base import allow, deny, waive
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.model.units import format_gpu_s
from autopilot.core.planning.context import Context
from autopilot.core.trust.follow_promises import least_gain_gpu_s, sums_of

NAME = "promise"

PASSES = allow(NAME, 0.0, "GPU-s realised", 0.0, at_least=True)
"""The verdict on an action without a record of promises."""


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Hold the proposals of a capped action; they stand as recommendations.

    Contracts and stops of broken or hanging work continue. So do reservations, floors of services, and starts in the
    place of departed victims.
    """
    record = ctx.memory.trust.kept_promises.get(draft.action)
    if record is None:
        return PASSES
    promised_gpu_s, realised_gpu_s = sums_of(record)
    least = least_gain_gpu_s(promised_gpu_s, ctx.policy.promises)
    unit = f"GPU-s realised of {format_gpu_s(promised_gpu_s)} promised by {record.count} cases"
    begun = draft.deed.uncapped or bool(draft.resent and draft.placed is not None)
    if record.capped_s == inf or begun or draft.case.takes.for_itself:
        return allow(NAME, realised_gpu_s, unit, least, at_least=True)
    if draft.contract:
        return waive(NAME, realised_gpu_s, unit, least, at_least=True)
    return deny(NAME, Code.CAPPED, realised_gpu_s, unit, least, at_least=True)
