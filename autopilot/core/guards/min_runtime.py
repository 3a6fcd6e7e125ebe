"""Every victim has had its guaranteed run time."""

from __future__ import annotations

from math import isnan

from autopilot.core.effects.draft import Draft
from autopilot.core.guards.base import allow, deny, waive
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.model.work import running_since
from autopilot.core.planning.context import Context

NAME = "min_runtime"
UNIT = "s run by a victim"

PASSES = allow(NAME, 0.0, "victims", 0.0)
"""The verdict on a proposal without victims."""


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Judge by the victim with the latest end of its guarantee. A victim with an unknown start counts as just started.

    Earlier stops make the guarantee longer (core/planning/earlier_stops.py), for stops in favour of other work only.
    """
    if not draft.victims:
        return PASSES
    rows, least_s = list(draft.victims), ctx.policy.protection.min_runtime_s
    starts = [ctx.now_s if isnan(start) else start for start in running_since(ctx.observation.snapshot.workloads)[rows]]
    lengths = ctx.stops.guaranteed_s[rows].tolist() if draft.case.takes.for_others else [least_s] * len(rows)
    # the timer waits for the same sum
    until_s, start_s, limit_s = max(
        (start + length, start, length) for start, length in zip(starts, lengths, strict=True)
    )
    run_s = float(ctx.now_s - start_s)
    if draft.contract:
        return waive(NAME, run_s, UNIT, limit_s, at_least=True)
    if Code.MIN_RUNTIME in draft.case.exempt:
        return allow(NAME, run_s, UNIT, 0.0, at_least=True)
    if ctx.now_s < until_s:
        return deny(NAME, Code.MIN_RUNTIME, run_s, UNIT, limit_s, at_least=True)
    return allow(NAME, run_s, UNIT, limit_s, at_least=True)
