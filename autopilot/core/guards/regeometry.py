"""Bounds on changes of MIG geometry: legality, dwell, rate, no way back, and nothing in use is destroyed."""

from __future__ import annotations

from math import inf

from autopilot.core.guards.base import allow, deny
from autopilot.core.hardware import mig
from autopilot.core.model.memory import RecutRecord
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import Draft, RecutDraft
from autopilot.core.tracking.recuts import changes_in_hour, geometry_in_use

NAME = "regeometry"
UNIT = "changes of the pool in the hour"


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Other proposals pass."""
    rules = ctx.policy.regeometry
    if not isinstance(draft, RecutDraft):
        return allow(NAME, 0.0, UNIT, float(rules.per_pool_hour))
    snapshot = ctx.observation.snapshot
    model = mig.find_gpu_model(snapshot.names.gpu_models[int(snapshot.nodes.gpu_model[snapshot.gpus.node[draft.gpu]])])
    if model is None or mig.why_illegal(model, draft.after or ()) is not None:
        return deny(NAME, Code.RECUT_ILLEGAL, 1.0, "illegal geometries", 0.0)
    lost = [cut for cut in geometry_in_use(snapshot, draft.gpu) if draft.after is None or cut not in draft.after]
    held = int(ctx.whatif.gpu_used[draft.gpu] > 0) if draft.before is None else len(lost)
    if held:
        return deny(NAME, Code.RECUT_IN_USE, float(held), "instances in use that would go", 0.0)
    record = ctx.memory.recuts.get(str(snapshot.gpus.uuid[draft.gpu]))
    if record is not None and (refusal := _too_soon(record, draft, ctx)) is not None:
        return refusal
    begun = changes_in_hour(ctx.memory, draft.pool, ctx.now_s) + ctx.plan.recuts.count(draft.pool) + 1
    if begun > rules.per_pool_hour:
        return deny(NAME, Code.RECUT_RATE, float(begun), UNIT, float(rules.per_pool_hour))
    least = draft.cost_gpu_s * (1.0 + rules.margin_ratio)
    if not least < draft.benefit_gpu_s < inf:
        return deny(NAME, Code.MARGIN, draft.benefit_gpu_s, "GPU-s of benefit", least)
    return allow(NAME, float(begun), UNIT, float(rules.per_pool_hour))


def _too_soon(record: RecutRecord, draft: RecutDraft, ctx: Context) -> Verdict | None:
    """Set while the last change of the GPU forbids another."""
    rules = ctx.policy.regeometry
    if record.state != "settled":
        return deny(NAME, Code.RECUT_QUARANTINE, 1.0, "changes of the GPU that did not end well", 0.0)
    if ctx.now_s < record.since_s + rules.dwell_s:  # the sum that the timer waits for
        return deny(NAME, Code.DWELL, ctx.now_s - record.since_s, "s since its last change", rules.dwell_s)
    if draft.after == record.before and ctx.now_s < record.since_s + rules.return_s:
        return deny(
            NAME, Code.RECUT_RETURN, ctx.now_s - record.since_s, "s since it left this geometry", rules.return_s
        )
    return None
