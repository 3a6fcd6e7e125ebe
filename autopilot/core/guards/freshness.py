"""A proposal rests on fresh data and on nodes that are still fit."""

from __future__ import annotations

import numpy as np

from autopilot.core.effects.draft import Draft
from autopilot.core.guards.base import allow, deny, relied_on
from autopilot.core.intake.sight import fresh_samples
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.model.snapshot import F32
from autopilot.core.planning.context import Context

NAME = "freshness"


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Refuse on stale inventory, stale work, unfit nodes and, for drafts by telemetry, stale telemetry. Ages in s."""
    snapshot, limits = ctx.observation.snapshot, ctx.policy.freshness
    if not snapshot.inventory_age_s <= limits.inventory_s:
        return deny(NAME, Code.STALE_INVENTORY, snapshot.inventory_age_s, "s", limits.inventory_s)
    if not snapshot.work_age_s <= limits.work_s:
        return deny(NAME, Code.STALE_WORK, snapshot.work_age_s, "s", limits.work_s)
    if draft.placed is not None:
        nodes, gpus = draft.placed.nodes, draft.placed.layout.gpu
        unfit = int((~ctx.whatif.node_ok[nodes]).sum() + (~ctx.whatif.gpu_ok[gpus]).sum())
        if unfit:
            return deny(NAME, Code.NODE_UNFIT, float(unfit), "nodes or GPUs not ready, cordoned or unhealthy", 0.0)
    if draft.case.by_telemetry:
        ages_s = _ages_s(draft, ctx)
        stale = ~fresh_samples(ages_s, limits.telemetry_s, ctx.policy.clock.max_skew_s)
        if stale.any():
            return deny(NAME, Code.STALE_TELEMETRY, float(ages_s[stale].max()), "s", limits.telemetry_s)
    return allow(NAME, max(snapshot.inventory_age_s, snapshot.work_age_s), "s", limits.work_s)


def _ages_s(draft: Draft, ctx: Context) -> F32:
    """Ages (s) of the signals behind the proposal. A proposal without signals has one age of inf."""
    rows, ages_s = relied_on(draft, ctx), ctx.observation.snapshot.telemetry.age_s
    return ages_s[rows] if len(rows) and rows.max() < len(ages_s) else np.full(1, np.inf, np.float32)
