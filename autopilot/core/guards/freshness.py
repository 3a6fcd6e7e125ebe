"""Whether the data behind a proposal is fresh, and its nodes are still fit."""

from __future__ import annotations

from autopilot.core.guards.base import allow, deny, relied_on
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import Draft

NAME = "freshness"


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Refuse on stale inventory, stale work, unfit nodes or, for drafts that rest on telemetry, stale telemetry."""
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
        age_s = _oldest_s(draft, ctx)
        if not age_s <= limits.telemetry_s:
            return deny(NAME, Code.STALE_TELEMETRY, age_s, "s", limits.telemetry_s)
    return allow(NAME, max(snapshot.inventory_age_s, snapshot.work_age_s), "s", limits.work_s)


def _oldest_s(draft: Draft, ctx: Context) -> float:
    """Age of the oldest signal that the proposal relies on; inf where there is none."""
    rows, ages = relied_on(draft, ctx), ctx.observation.snapshot.telemetry.age_s
    return float(ages[rows].max()) if len(rows) and rows.max() < len(ages) else float("inf")
