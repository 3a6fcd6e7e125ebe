"""No victim runs for less than its guaranteed run time."""

from __future__ import annotations

from math import isnan

from autopilot.core.guards.base import allow, deny, waive
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.model.work import running_since
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import Draft

NAME = "min_runtime"

PASSES = allow(NAME, 0.0, "victims", 0.0)
"""The verdict on what the rule does not concern."""


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Judged by the youngest victim. A victim with an unknown start time counts as just started."""
    limit_s = ctx.policy.protection.min_runtime_s
    work = ctx.observation.snapshot.workloads
    if not draft.victims:
        return PASSES
    starts: list[float] = running_since(work)[list(draft.victims)].tolist()
    latest_s = max(ctx.now_s if isnan(start) else start for start in starts)
    youngest_s = ctx.now_s - latest_s
    if draft.contract:
        return waive(NAME, youngest_s, "s run by the youngest victim", limit_s, at_least=True)
    if ctx.now_s < latest_s + limit_s:  # the sum that the timer waits for
        return deny(NAME, Code.MIN_RUNTIME, youngest_s, "s run by the youngest victim", limit_s, at_least=True)
    return allow(NAME, youngest_s, "s run by the youngest victim", limit_s, at_least=True)
