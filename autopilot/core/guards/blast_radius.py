"""Bounds what is taken by what is needed: no large gang is evicted for a small one."""

from __future__ import annotations

from autopilot.core.guards.base import allow, deny, waive
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.model.snapshot import GPU_MILLI
from autopilot.core.model.work import gpu_part
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import Draft, Eviction

NAME = "blast_radius"
UNIT = "GPUs taken for each that is needed"

LEAST_GPUS = 1 / GPU_MILLI
"""The smallest thing that can be asked for: a thousandth of a GPU."""


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """GPUs of all victims, including moved ones, over the GPUs that are gained. Shares and instances count as
    fractions.
    """
    limit = ctx.policy.preemption.blast_ratio
    if not draft.taken:
        return allow(NAME, 0.0, UNIT, limit)
    ratio = sum(_taken(give, ctx) for give in draft.taken) / max(_needed(draft, ctx), LEAST_GPUS)
    if draft.contract:
        return waive(NAME, ratio, UNIT, limit)
    if ratio > limit:
        return deny(NAME, Code.BLAST_RADIUS, ratio, UNIT, limit)
    return allow(NAME, ratio, UNIT, limit)


def _taken(give: Eviction, ctx: Context) -> float:
    """GPUs that a victim loses; all of its GPUs when it moves."""
    held = ctx.gpus_of(ctx.whatif.layout_of(give.row))
    return held - ctx.gpus_of(give.keeps) if give.how == "shrink" and give.keeps is not None else held


def _needed(draft: Draft, ctx: Context) -> float:
    """GPUs that start on what is taken; where no gang starts yet, the GPUs that it requests."""
    if draft.gained_gpus is not None:
        return float(draft.gained_gpus)
    if draft.placed is not None:
        return ctx.gpus_of(draft.placed.layout)
    work, row = ctx.observation.snapshot.workloads, draft.workload_row
    return 0.0 if row is None else float(work.gpus[row]) * gpu_part(work, row)
