"""The binding of an approval or a rejection: a digest of the plan shown to the person.

The plan may change while a person reads it: a start takes GPUs that the next one would have taken. An approval of a
start without victims therefore covers the request, the number of GPUs on each node, and the pool, model and spot flag
of these nodes, but leaves the choice of nodes open. An approval of anything else covers every victim, its fate, and the
nodes. No approval covers single GPUs of a node, because the kubelet chooses them.
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
    """Twelve hexadecimal digits. Equal for equal plans as shown to a person."""
    digest = blake2s(digest_size=6)
    digest.update(f"{draft.action}|{draft.kind}|{subject.name}|{subject.uid}|{subject.revision}|".encode())
    digest.update(draft.shown(change, snapshot).encode())
    return digest.hexdigest()


def as_shown(proposal: Proposal, ctx: Context) -> Proposal:
    """The proposal with the figures shown to people, while the plan is the same and the figures differ by little."""
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
    """All GPUs named by the plan."""
    return (proposal.slots, *(each.keeps for each in proposal.victims))


def _passed(proposal: Proposal) -> list[str]:
    """Work passed by it once it is approved; equal ids already mean equal losses of other kinds."""
    return [each.uid for each in proposal.change.side_effects if each.what == Taken.TURN]
