"""What an approval or a rejection is bound to: a digest of what the person was shown.

The plan may change while a person reads it: a start takes GPUs that the next one would have taken. An approval of a
start without victims therefore covers the request, the number of GPUs on each node, and the pool, model and spot flag
of these nodes, but not which nodes they are. An approval of anything else covers every victim, what happens to it, and
the nodes. No approval covers single GPUs of a node, because the kubelet chooses them.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2s

from autopilot.core.effects.draft import Draft
from autopilot.core.model.objects import Slot, Subject, Taken
from autopilot.core.model.records import Change, Proposal
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.planning.context import Context


def state_digest(draft: Draft, subject: Subject, change: Change, snapshot: ClusterSnapshot) -> str:
    """Twelve hexadecimal digits. Equal as long as what a person was shown is."""
    digest = blake2s(digest_size=6)
    digest.update(f"{draft.action}|{draft.kind}|{subject.name}|{subject.uid}|{subject.revision}|".encode())
    digest.update(draft.shown(change, snapshot).encode())
    return digest.hexdigest()


def as_shown(proposal: Proposal, ctx: Context) -> Proposal:
    """The proposal with the figures that people were shown, while the plan is the same and they differ by little."""
    shown = ctx.memory.people.open_proposals.get(proposal.recommendation) if ctx.memory.people.open_proposals else None
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
