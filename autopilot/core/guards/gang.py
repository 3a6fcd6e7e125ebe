"""All or none: a gang starts with at least its minimum at once, and leaves whole."""

from __future__ import annotations

from autopilot.core.context import Context
from autopilot.core.draft import Draft
from autopilot.core.guards.base import allow, deny
from autopilot.core.records import Code, Proposal, Verdict
from autopilot.core.snapshot import WorkloadTable

NAME = "gang"


def check(proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Refuse an admission below the gang's minimum, and an eviction of a part of a gang."""
    work, held = ctx.observation.snapshot.workloads, ctx.observation.snapshot.placements
    for victim, row in zip(proposal.victims, draft.victims, strict=True):
        holds = int((held.workload == row).sum())
        if victim.gpus != holds:
            return deny(NAME, Code.PARTIAL_EVICTION, float(victim.gpus), "GPUs of a gang taken", float(holds))
    if proposal.kind != "admit":
        return allow(NAME, float(len(proposal.victims)), "gangs taken whole", float(len(proposal.victims)))
    got = len(proposal.slots)
    need = int(work.min_gpus[draft.row])
    wide = int(work.gpus[draft.row])
    if not need <= got <= wide or len({(slot.gpu, slot.instance) for slot in proposal.slots}) < _distinct(
        got, work, draft.row
    ):
        return deny(NAME, Code.PARTIAL_GANG, float(got), "GPUs at once", float(need))
    return allow(NAME, float(got), "GPUs at once", float(need))


def _distinct(got: int, work: WorkloadTable, row: int) -> int:
    """Different GPUs or instances that the slots must name; shares may lie on one GPU together."""
    return min(got, 1) if work.gpu_milli[row] else got
