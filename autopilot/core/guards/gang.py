"""All or nothing: a gang starts with at least its minimum at once, and leaves as a whole or shrinks to its minimum."""

from __future__ import annotations

from autopilot.core.effects.draft import Draft, Eviction
from autopilot.core.guards.base import allow, deny
from autopilot.core.model.records import Code, Proposal, Verdict, Victim
from autopilot.core.model.snapshot import WorkloadTable
from autopilot.core.planning.context import Context

NAME = "gang"


def check(proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Refuse a start below the gang's minimum, and an eviction that leaves a gang below its minimum."""
    work = ctx.observation.snapshot.workloads
    for victim, give in zip(proposal.victims, draft.taken, strict=True):
        verdict = _partial(victim, give, ctx)
        if verdict is not None:
            return verdict
    row = draft.workload_row
    if draft.placed is None or row is None:
        return allow(
            NAME, float(len(proposal.victims)), "gangs taken whole", float(len(proposal.victims)), at_least=True
        )
    got, need, wide = len(proposal.slots), int(work.min_gpus[row]), int(work.gpus[row])
    distinct = len({(slot.gpu, slot.instance) for slot in proposal.slots})
    if not need <= got <= wide or distinct < _distinct(got, work, row):
        return deny(NAME, Code.PARTIAL_GANG, float(got), "GPUs at once", float(need), at_least=True)
    if draft.widens and not set(_names(row, ctx)) <= {(s.gpu, s.instance) for s in proposal.slots}:
        return deny(
            NAME,
            Code.PARTIAL_EVICTION,
            float(got),
            "GPUs, not all of those that it has among them",
            float(need),
            at_least=True,
        )
    return allow(NAME, float(got), "GPUs at once", float(need), at_least=True)


def _partial(victim: Victim, give: Eviction, ctx: Context) -> Verdict | None:
    """The refusal of a useless rest: a victim below its minimum, on GPUs of others, or half evicted. None: no fault."""
    work, held = ctx.observation.snapshot.workloads, ctx.observation.snapshot.placements
    mine = held.workload == give.row
    holds, stays = int(mine.sum()), int((mine & ~held.leaving).sum())
    keeps, unit = len(victim.keeps), "GPUs that a gang keeps"
    if victim.how == "shrink":
        least = int(work.min_gpus[give.row])
        own = {(slot.gpu, slot.instance) for slot in victim.keeps} <= set(_names(give.row, ctx))
        if not (max(least, 1) <= keeps < stays and own):
            return deny(NAME, Code.PARTIAL_EVICTION, float(keeps), unit, float(least), at_least=True)
    elif victim.how == "move" and keeps != stays:  # an elastic gang may go on with fewer members elsewhere
        least = int(work.min_gpus[give.row])
        if not max(least, 1) <= keeps < stays:
            return deny(NAME, Code.PARTIAL_EVICTION, float(keeps), unit, float(min(least, stays)), at_least=True)
    elif victim.how == "evict" and not stays <= victim.gpus <= holds:
        return deny(
            NAME, Code.PARTIAL_EVICTION, float(victim.gpus), "GPUs of a gang taken", float(holds), at_least=True
        )
    return None


def _names(row: int, ctx: Context) -> list[tuple[str, str]]:
    """GPUs and instances of a gang, by the names of slots."""
    layout = ctx.whatif.layout_of(row)
    cuts = [ctx.whatif.instance_id(cut) for cut in layout.instance.tolist()]
    return list(zip(ctx.observation.snapshot.gpus.uuid[layout.gpu].tolist(), cuts, strict=True))


def _distinct(got: int, work: WorkloadTable, row: int) -> int:
    """The least number of different GPUs or instances in the slots; shares may be on one GPU."""
    return min(got, 1) if work.gpu_milli[row] else got
