"""What an approval or a rejection is bound to: a digest of what the person was shown.

The plan may change while a person reads it: a start takes GPUs that the next one would have taken. An approval of a
start without victims therefore covers the request, the number of GPUs on each node, and the pool, model and spot flag
of these nodes, but not which nodes they are. An approval of anything else covers every victim, what happens to it, and
the nodes. No approval covers single GPUs of a node, because the kubelet chooses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2s

import numpy as np

from autopilot.core.model.changes import Change
from autopilot.core.model.identity import shape_digest
from autopilot.core.model.objects import Geometry, Slot, Subject, Taken, Victim
from autopilot.core.model.records import Proposal
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import (
    AdmitDraft,
    CeilingDraft,
    CordonDraft,
    Draft,
    DrainDraft,
    EvictDraft,
    OfferDraft,
    ProvisionDraft,
    RecutDraft,
    ReserveDraft,
    ScaleDraft,
)


def state_digest(draft: Draft, subject: Subject, change: Change, snapshot: ClusterSnapshot) -> str:
    """Twelve hexadecimal digits. Equal as long as what a person was shown is."""
    digest = blake2s(digest_size=6)
    digest.update(f"{draft.action}|{draft.kind}|{subject.name}|{subject.uid}|{subject.revision}|".encode())
    if isinstance(draft, ScaleDraft):
        digest.update(f"{int(snapshot.services.floor[draft.service])}>{draft.replicas}".encode())
        return digest.hexdigest()
    if isinstance(draft, CeilingDraft):
        digest.update(f"{int(snapshot.services.ceiling[draft.service])}<{draft.replicas}".encode())
        return digest.hexdigest()
    if isinstance(draft, RecutDraft):
        digest.update(f"{_cut(draft.before)}>{_cut(draft.after)}".encode())
        return digest.hexdigest()
    digest.update(b"contract" if draft.contract else b"")
    for each in change.side_effects:
        if each.what != Taken.TURN:
            digest.update(f"|{each.what}:{each.uid or each.workload}:{each.gpus:g}".encode())
    if isinstance(draft, AdmitDraft):
        digest.update(f"{shape_digest(snapshot, draft.row)}|{_amount(draft.fit.layout, snapshot)}".encode())
        return digest.hexdigest()
    digest.update(f"|{_places(change.slots)}".encode())
    for taken in sorted(map(_taken, change.victims)):
        digest.update(taken.encode())
    if isinstance(draft, CordonDraft | OfferDraft):
        digest.update(b"cordon" if draft.on else b"uncordon")
    if isinstance(draft, ProvisionDraft):
        digest.update(f"|+{draft.nodes} {draft.pool}".encode())
    if isinstance(draft, DrainDraft):
        cuts = sorted(f"{each.gpu}:{_cut(each.before)}>{_cut(each.after)}" for each in draft.cuts)
        digest.update(f"{draft.scope}:{cuts}".encode())
    for node in sorted(draft.nodes) if isinstance(draft, EvictDraft | ReserveDraft) else ():
        digest.update(f"|@{node}".encode())
    return digest.hexdigest()


def as_shown(proposal: Proposal, ctx: Context) -> Proposal:
    """The proposal with the figures that people were shown, while the plan is the same and they differ by little."""
    shown = ctx.memory.open_proposals.get(proposal.recommendation) if ctx.memory.open_proposals else None
    if shown is None or shown.proposal.id != proposal.id:
        return proposal
    before, margin = shown.proposal, ctx.policy.approval.margin_ratio
    for old, new in ((before.benefit_gpu_s, proposal.benefit_gpu_s), (before.cost_gpu_s, proposal.cost_gpu_s)):
        if not abs(new - old) <= margin * max(abs(old), abs(new)):
            return proposal
    if _all_places(before) == _all_places(proposal) and _passed(before) == _passed(proposal):
        return before
    return replace(proposal, benefit_gpu_s=before.benefit_gpu_s, cost_gpu_s=before.cost_gpu_s, evidence=before.evidence)


def _all_places(proposal: Proposal) -> tuple[tuple[Slot, ...], ...]:
    """All GPUs that the plan names."""
    return (proposal.slots, *(each.keeps for each in proposal.victims))


def _passed(proposal: Proposal) -> list[str]:
    """Work that it passes once it is approved; by the id the rest of what it takes is the same."""
    return [each.uid for each in proposal.change.side_effects if each.what == Taken.TURN]


def _taken(victim: Victim) -> str:
    """What happens to a victim."""
    name = f"{victim.workload}:{victim.uid}:{victim.incarnation}"
    return f"|-{name}:{victim.how}:{victim.gpus}>{_places(victim.keeps)}"


def _cut(geometry: Geometry | None) -> list[tuple[str, int]] | None:
    """A geometry in one order."""
    return None if geometry is None else sorted(geometry)


def _amount(layout: Layout, snapshot: ClusterSnapshot) -> str:
    """What a start takes: for each node, in no order, its pool, its model, whether it is spot, and how many GPUs."""
    nodes, counts = np.unique(snapshot.gpus.node[layout.gpu], return_counts=True)
    table, names = snapshot.nodes, snapshot.names
    taken = [
        f"{names.pools[table.pool[node]]}/{names.gpu_models[table.gpu_model[node]]}/{bool(table.spot[node])}:{count}"
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True)
    ]
    return f"{sorted(taken)}{int(layout.milli.sum())}"


def _places(slots: Sequence[Slot]) -> str:
    """What is held on which node."""
    held = Counter(f"{slot.node}{'/instance' if slot.instance else ''}:{slot.milli}" for slot in slots)
    return ",".join(f"{place}x{count}" for place, count in sorted(held.items()))
