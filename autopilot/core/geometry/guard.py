"""Bounds on changes of MIG geometry: legality, dwell, rate, no quick return, and no loss of an instance in use."""

from __future__ import annotations

from math import inf

import numpy as np

from autopilot.core.effects.draft import Cutting, Draft
from autopilot.core.geometry.cuttable import node_rows
from autopilot.core.geometry.follow import changes_in_hour, geometry_in_use, turned_mode_s
from autopilot.core.guards.base import allow, deny
from autopilot.core.hardware import mig
from autopilot.core.model.memory.geometry import RecutRecord
from autopilot.core.model.objects import PlannedCut
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context

NAME = "regeometry"
UNIT = "changes of the pool in the hour"


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Other proposals pass."""
    rules = ctx.policy.regeometry
    snapshot = ctx.observation.snapshot
    cutting = draft.cutting(snapshot)
    if cutting is None:
        return allow(NAME, 0.0, UNIT, float(rules.per_pool_hour))
    node = snapshot.gpus.node[cutting.rows[0]]
    model = mig.find_gpu_model(snapshot.names.gpu_models[int(snapshot.nodes.gpu_model[node])])
    if model is None or any(mig.why_illegal(model, cut.after or ()) is not None for cut in cutting.cuts):
        return deny(NAME, Code.RECUT_ILLEGAL, 1.0, "illegal geometries", 0.0)
    if not cutting.drains and (held := _in_use(cutting, ctx)):
        return deny(NAME, Code.RECUT_IN_USE, float(held), "instances in use that would go", 0.0)
    planned = {cut.gpu: cut for cut in cutting.cuts}
    for uuid in sorted(set(snapshot.gpus.uuid[list(cutting.rows)].tolist()) & set(ctx.memory.geometry.recuts)):
        refusal = _too_soon(ctx.memory.geometry.recuts[uuid], planned.get(uuid), ctx)
        if refusal is not None:
            return refusal
    return _worth_it(draft, cutting, ctx)


def _in_use(cutting: Cutting, ctx: Context) -> int:
    """Instances in use that would go; at a wider scope, all work there, since everything stops meanwhile."""
    snapshot, (gpu,), (cut,) = ctx.observation.snapshot, cutting.rows, cutting.cuts
    if cutting.scope != "instance":  # all that runs there would stop
        stops = node_rows(ctx, gpu) if cutting.scope == "node" else np.array([gpu], np.int32)
        return int(np.isin(snapshot.placements.gpu, stops).sum())
    if cut.before is None:
        return int(ctx.whatif.gpu_used[gpu] > 0)
    return sum(cut.after is None or each not in cut.after for each in geometry_in_use(snapshot, gpu))


def _worth_it(draft: Draft, cutting: Cutting, ctx: Context) -> Verdict:
    """The limit of changes in an hour, and the margin."""
    rules = ctx.policy.regeometry
    begun = changes_in_hour(ctx.memory, cutting.pool, ctx.now_s) + ctx.plan.recuts.count(cutting.pool)
    begun += len(cutting.cuts)
    if begun > rules.per_pool_hour:
        return deny(NAME, Code.RECUT_RATE, float(begun), UNIT, float(rules.per_pool_hour))
    least = draft.cost_gpu_s * (1.0 + rules.margin_ratio)
    if not least < draft.benefit_gpu_s < inf:
        return deny(NAME, Code.MARGIN, draft.benefit_gpu_s, "GPU-s of benefit", least, at_least=True)
    return allow(NAME, float(begun), UNIT, float(rules.per_pool_hour))


def _too_soon(record: RecutRecord, change: PlannedCut | None, ctx: Context) -> Verdict | None:
    """The refusal of a change too soon after earlier ones of the GPU. None: the change may happen.

    `change` is None for a GPU drained with others that keeps its geometry. A drained GPU was drained for this change,
    so its dwell is over.
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
