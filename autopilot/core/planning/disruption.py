"""Disruption: what an accepted draft enters in the ledger, and what makes two proposals of different ticks the same."""

from __future__ import annotations

from collections.abc import Iterable

from autopilot.core.model.memory import Disruption
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Instruction, Proposal
from autopilot.core.model.snapshot import SloClass
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import Draft

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
    """How long a disruptive proposal must last: for latency-critical work one more tick confirms it."""
    usual_s, row = ctx.policy.hysteresis.dwell_s, draft.workload_row
    if row is None or ctx.observation.snapshot.workloads.slo_class[row] != SloClass.LATENCY_CRITICAL:
        return usual_s
    return min(usual_s, CONFIRM_S)


def proposal_key(proposal: Proposal) -> str:
    """The same for two proposals of different ticks when one action proposes the same kind for the same workload."""
    return f"{proposal.action}/{proposal.kind}/{proposal.subject.uid}"


def disruptions(draft: Draft, ctx: Context, proposal_id: str) -> tuple[Disruption, ...]:
    """The ledger entries that accepting `draft` makes."""
    snapshot = ctx.observation.snapshot
    entries = []
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
            )
        )
    return tuple(entries)


def enter_in_ledger(
    entries: tuple[Disruption, ...], disrupted: list[Disruption], cooled: dict[str, float], now_s: float, policy: Policy
) -> None:
    """Add stops to the ledger and, unless by contract, to the cool-downs."""
    for entry in entries:
        disrupted.append(entry)
        if not entry.contract:
            cooled[entry.uid] = now_s + policy.hysteresis.cool_down_s
