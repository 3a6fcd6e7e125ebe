"""No disruption of a service that misses its latency objective already."""

from __future__ import annotations

import numpy as np

from autopilot.core.guards.base import allow, deny
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import Draft

NAME = "slo"
UNIT = "p99 over its objective, worst service touched"


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Judged by the worst service that a victim belongs to: its p99 over its objective. Binds contracts too.

    A service that states an objective and reports no p99, or an old one, is not known to be well: its replicas stay.
    What is left of a broken replica is stopped whatever the p99 is: it answers nobody.
    """
    services, work = ctx.observation.snapshot.services, ctx.observation.snapshot.workloads
    if Code.SLO_BURNING in draft.case.exempt:
        return allow(NAME, 0.0, UNIT, 1.0)
    touched = sorted({int(work.service[row]) for row in draft.victims if work.service[row] >= 0})
    known = [row for row in touched if row < len(services.id) and services.objective_s[row] > 0]
    if not known:
        return allow(NAME, 0.0, UNIT, 1.0)
    fresh = services.age_s[known] <= ctx.policy.freshness.telemetry_s
    ratios = services.p99_s[known] / services.objective_s[known]
    worst = float(np.max(np.where(np.isnan(ratios) | ~fresh, np.inf, ratios)))
    if worst > 1.0:
        return deny(NAME, Code.SLO_BURNING, worst, UNIT, 1.0)
    return allow(NAME, worst, UNIT, 1.0)
