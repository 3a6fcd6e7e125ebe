"""No disruption of a service that already misses its latency objective."""

from __future__ import annotations

import numpy as np

from autopilot.core.guards.base import allow, deny
from autopilot.core.guards.protected import yielding
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import Draft

NAME = "slo"
UNIT = "p99 over its objective, worst service touched"


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Judged by the worst service among the victims: its p99 over its objective. Binds evictions by contract too, apart
    from replicas above the guarantee of their queue: an objective that is never met would keep GPUs from their owner.

    A service with an objective and without a recent p99 is not known to meet it, so its replicas stay. The remains of a
    broken replica are stopped regardless: they serve no request.
    """
    services, work = ctx.observation.snapshot.services, ctx.observation.snapshot.workloads
    if Code.SLO_BURNING in draft.case.exempt:
        return allow(NAME, 0.0, UNIT, 1.0)
    yields = yielding(draft, ctx)
    touched = sorted({int(work.service[row]) for row in draft.victims if work.service[row] >= 0 and row not in yields})
    known = [row for row in touched if row < len(services.id) and services.objective_s[row] > 0]
    if not known:
        return allow(NAME, 0.0, UNIT, 1.0)
    fresh = services.age_s[known] <= ctx.policy.freshness.telemetry_s
    ratios = services.p99_s[known] / services.objective_s[known]
    worst = float(np.max(np.where(np.isnan(ratios) | ~fresh, np.inf, ratios)))
    if worst > 1.0:
        return deny(NAME, Code.SLO_BURNING, worst, UNIT, 1.0)
    return allow(NAME, worst, UNIT, 1.0)
