"""Bounds the GPUs taken by the GPUs needed: no large gang is evicted for a small one."""

from __future__ import annotations

from autopilot.core.effects.disruption import needed_gpus, taken_gpus
from autopilot.core.effects.draft import Draft
from autopilot.core.guards.base import allow, deny, waive
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.model.snapshot import GPU_MILLI
from autopilot.core.planning.context import Context

NAME = "blast_radius"
UNIT = "GPUs taken for each that is needed"

LEAST_GPUS = 1 / GPU_MILLI
"""The smallest request: a thousandth of a GPU."""


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """GPUs of all victims, moved ones included, over the GPUs gained. Shares and instances count as fractions."""
    limit = ctx.policy.preemption.blast_ratio
    if not draft.taken:
        return allow(NAME, 0.0, UNIT, limit)
    ratio = sum(taken_gpus(give, ctx) for give in draft.taken) / max(needed_gpus(draft, ctx), LEAST_GPUS)
    if draft.contract:
        return waive(NAME, ratio, UNIT, limit)
    if ratio > limit:
        return deny(NAME, Code.BLAST_RADIUS, ratio, UNIT, limit)
    return allow(NAME, ratio, UNIT, limit)
