"""Disruption: the entries of an accepted draft in the ledger, and the identity of proposals across ticks."""

from __future__ import annotations

from collections.abc import Iterable

from autopilot.core.effects.draft import Draft, Eviction
from autopilot.core.model.memory.budget import Disruption
from autopilot.core.model.records import Code, Instruction, Proposal
from autopilot.core.model.snapshot import SloClass
from autopilot.core.model.work import gpu_part
from autopilot.core.planning.context import Context

CONFIRM_S = 1.0
"""The shortest time between two ticks of a live controller."""


def latest(ledger: Iterable[Disruption], proposal_id: str, uid: str) -> Disruption | None:
    """The last disruption of an object under a proposal. The same proposal may be carried out more than once."""
    found = None
    for entry in ledger:
        if (entry.proposal_id, entry.uid) == (proposal_id, uid):
            found = entry
    return found


def takes_gpus(instruction: Instruction) -> bool:
    """True for effects that take GPUs from running work: evictions, and resizes that shrink a gang."""
    return instruction.operation.takes is not None


def dwell_s(ctx: Context, draft: Draft) -> float:
    """The dwell time of a disruptive proposal (s): for latency-critical work one more tick confirms it."""
    if Code.DWELL in draft.case.exempt:
        return 0.0
    usual_s, row = ctx.policy.hysteresis.dwell_s, draft.workload_row
    if row is None or ctx.observation.snapshot.workloads.slo_class[row] != SloClass.LATENCY_CRITICAL:
        return usual_s
    return min(usual_s, CONFIRM_S)


def proposal_key(proposal: Proposal) -> str:
    """One key for proposals of different ticks by one action, of the same kind, for the same workload."""
    return f"{proposal.action}/{proposal.kind}/{proposal.subject.uid}"


def disruptions(draft: Draft, ctx: Context, proposal_id: str) -> tuple[Disruption, ...]:
    """The entries of an accepted `draft` in the ledger."""
    snapshot = ctx.observation.snapshot
    entries, taken = [], {give.row: taken_gpus(give, ctx) for give in draft.taken}
    beneficiary = beneficiary_of(draft, ctx)
    for row in draft.victims:
        nodes = sorted(set(snapshot.gpus.node[ctx.whatif.layout_of(row).gpu].tolist()))
        entries.append(
            Disruption(
                ctx.now_s,
                str(snapshot.workloads.id[row]),
                snapshot.names.tenants[int(snapshot.workloads.tenant[row])],
                tuple(str(snapshot.nodes.id[node]) for node in nodes),
                draft.contract,
                str(snapshot.workloads.uid[row]),
                proposal_id,
                taken.get(row, 0.0),
                beneficiary,
            )
        )
    return tuple(entries)


def taken_gpus(give: Eviction, ctx: Context) -> float:
    """GPUs lost by a victim; all of its GPUs for a move. Shares and instances count as their part."""
    held = ctx.gpus_of(ctx.whatif.layout_of(give.row))
    return held - ctx.gpus_of(give.keeps) if give.how == "shrink" and give.keeps is not None else held


def beneficiary_of(draft: Draft, ctx: Context) -> str:
    """The uid of the waiting work whose start stops others; "" for work stopped for its own sake."""
    row = draft.workload_row
    return "" if row is None or row in draft.victims else str(ctx.observation.snapshot.workloads.uid[row])


def needed_gpus(draft: Draft, ctx: Context) -> float:
    """GPUs that start on the taken ones; without a start yet, the GPUs requested by the gang."""
    if draft.gained_gpus is not None:
        return float(draft.gained_gpus)
    if draft.placed is not None:
        return ctx.gpus_of(draft.placed.layout)
    work, row = ctx.observation.snapshot.workloads, draft.workload_row
    return 0.0 if row is None else float(work.gpus[row]) * gpu_part(work, row)
