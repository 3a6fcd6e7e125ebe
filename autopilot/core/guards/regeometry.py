"""Bounds on changes of MIG geometry: legality, dwell, rate, no quick return, and no loss of an instance in use."""

from __future__ import annotations

from math import inf

import numpy as np

from autopilot.core.guards.base import allow, deny
from autopilot.core.hardware import mig
from autopilot.core.model.memory import RecutRecord
from autopilot.core.model.objects import PlannedCut
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context
from autopilot.core.planning.cuttable import node_rows
from autopilot.core.planning.draft import Draft, DrainDraft, RecutDraft
from autopilot.core.tracking.recuts import changes_in_hour, geometry_in_use, turned_mode_s

NAME = "regeometry"
UNIT = "changes of the pool in the hour"


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Other proposals pass."""
    rules = ctx.policy.regeometry
    if isinstance(draft, DrainDraft):
        return _may_drain(draft, ctx)
    if not isinstance(draft, RecutDraft):
        return allow(NAME, 0.0, UNIT, float(rules.per_pool_hour))
    snapshot = ctx.observation.snapshot
    model = mig.find_gpu_model(snapshot.names.gpu_models[int(snapshot.nodes.gpu_model[snapshot.gpus.node[draft.gpu]])])
    if model is None or mig.why_illegal(model, draft.after or ()) is not None:
        return deny(NAME, Code.RECUT_ILLEGAL, 1.0, "illegal geometries", 0.0)
    lost = [cut for cut in geometry_in_use(snapshot, draft.gpu) if draft.after is None or cut not in draft.after]
    held = int(ctx.whatif.gpu_used[draft.gpu] > 0) if draft.before is None else len(lost)
    if draft.scope != "instance":  # all that runs there would stop
        stops = node_rows(ctx, draft.gpu) if draft.scope == "node" else np.array([draft.gpu], np.int32)
        held = int(np.isin(snapshot.placements.gpu, stops).sum())
    if held:
        return deny(NAME, Code.RECUT_IN_USE, float(held), "instances in use that would go", 0.0)
    record = ctx.memory.recuts.get(str(snapshot.gpus.uuid[draft.gpu]))
    if record is not None and (refusal := _too_soon(record, draft, ctx)) is not None:
        return refusal
    return _worth_it(draft, ctx, 1)


def _may_drain(draft: DrainDraft, ctx: Context) -> Verdict:
    """Judge a drain by the changes behind it."""
    snapshot = ctx.observation.snapshot
    model = mig.find_gpu_model(snapshot.names.gpu_models[int(snapshot.nodes.gpu_model[draft.node])])
    if model is None or any(mig.why_illegal(model, cut.after or ()) is not None for cut in draft.cuts):
        return deny(NAME, Code.RECUT_ILLEGAL, 1.0, "illegal geometries", 0.0)
    planned = {cut.gpu: cut for cut in draft.cuts}
    for uuid in sorted(draft.uuids & set(ctx.memory.recuts)):
        refusal = _too_soon(ctx.memory.recuts[uuid], planned.get(uuid), ctx)
        if refusal is not None:
            return refusal
    return _worth_it(draft, ctx, len(draft.cuts))


def _worth_it(draft: RecutDraft | DrainDraft, ctx: Context, changes: int) -> Verdict:
    """The limit of changes in an hour, and the margin."""
    rules = ctx.policy.regeometry
    begun = changes_in_hour(ctx.memory, draft.pool, ctx.now_s) + ctx.plan.recuts.count(draft.pool) + changes
    if begun > rules.per_pool_hour:
        return deny(NAME, Code.RECUT_RATE, float(begun), UNIT, float(rules.per_pool_hour))
    least = draft.cost_gpu_s * (1.0 + rules.margin_ratio)
    if not least < draft.benefit_gpu_s < inf:
        return deny(NAME, Code.MARGIN, draft.benefit_gpu_s, "GPU-s of benefit", least, at_least=True)
    return allow(NAME, float(begun), UNIT, float(rules.per_pool_hour))


def _too_soon(record: RecutRecord, change: RecutDraft | PlannedCut | None, ctx: Context) -> Verdict | None:
    """The refusal of a change too soon after earlier ones of the GPU. None: the change may happen.

    `change` is None for a GPU that is drained with others and keeps its geometry. A drained GPU was drained for this
    change, so its dwell is over.
    """
    rules = ctx.policy.regeometry
    turned_s = turned_mode_s(record)
    turns = change is not None and (change.before is None) != (change.after is None)
    if turns and ctx.now_s < turned_s + rules.return_s:  # MIG mode is on or off: every turn is one back
        return _returns(ctx.now_s - turned_s, rules.return_s)
    if record.state == "draining":
        return None
    if record.state != "settled":
        return deny(NAME, Code.RECUT_QUARANTINE, 1.0, "changes of the GPU that did not end well", 0.0)
    if ctx.now_s < record.since_s + rules.dwell_s:  # the sum that the timer waits for
        return deny(
            NAME, Code.DWELL, ctx.now_s - record.since_s, "s since its last change", rules.dwell_s, at_least=True
        )
    if change is not None and change.after == record.before and ctx.now_s < record.since_s + rules.return_s:
        return _returns(ctx.now_s - record.since_s, rules.return_s)
    return None


def _returns(left_s: float, return_s: float) -> Verdict:
    return deny(NAME, Code.RECUT_RETURN, left_s, "s since it left this geometry", return_s, at_least=True)
