"""No disruption of a service that already misses one of its objectives."""

from __future__ import annotations

import numpy as np

from autopilot.core.effects.draft import Draft
from autopilot.core.guards.base import allow, deny
from autopilot.core.guards.protected import yielding
from autopilot.core.model.objectives import OBJECTIVES, counting, over_objective, with_pools
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context

NAME = "slo"
UNIT = "p99 over its objective, worst service touched"
_UNITS = (UNIT, *(f"p99 of the {each.words} over its objective, worst service touched" for each in OBJECTIVES[1:]))
"""By row of `OBJECTIVES`."""


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Judge by the worst ratio p99 / objective of the services among the victims, and of pools in their gangs.

    Evictions by contract are bound too, except of replicas above the guarantee of their queue: a missed objective
    keeps no GPU from its owner. A service with an objective but no recent p99 may miss it, so its replicas stay. The
    remains of a broken replica serve no request and are stopped.
    """
    services, work = ctx.observation.snapshot.services, ctx.observation.snapshot.workloads
    if Code.SLO_BURNING in draft.case.exempt:
        return allow(NAME, 0.0, UNIT, 1.0)
    yields = yielding(draft, ctx)
    touched = sorted({int(work.service[row]) for row in draft.victims if work.service[row] >= 0 and row not in yields})
    if not touched:  # most proposals: work without a service
        return allow(NAME, 0.0, UNIT, 1.0)
    touched = with_pools(services, [row for row in touched if row < len(services.id)])
    counts = counting(services)[:, touched]
    if not counts.any():
        return allow(NAME, 0.0, UNIT, 1.0)
    fresh = services.age_s[touched] <= ctx.policy.freshness.telemetry_s
    ratios = over_objective(services)[:, touched]
    ratios = np.where(counts, np.where(np.isnan(ratios) | ~fresh, np.inf, ratios), -np.inf)
    each, _ = np.unravel_index(np.argmax(ratios), ratios.shape)
    worst = float(ratios.max())
    if worst > 1.0:
        return deny(NAME, Code.SLO_BURNING, worst, _UNITS[int(each)], 1.0)
    return allow(NAME, worst, _UNITS[int(each)], 1.0)
