"""The cover of an approval, and the reach of a rejection.

A person approves a wish, not one plan for it: this action for this object, at most so much lost work, from victims of
the shown classes and queues, and no more GPUs. Inside that cover the controller may plan anew until the approval
expires. `exactly` covers the very plan instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2s

from autopilot.core.model.codes import Code
from autopilot.core.model.memory.people import Approval, Rejection
from autopilot.core.model.objects import Seen, SideEffect, SubjectKind, Taken
from autopilot.core.model.policy.bounds import ApprovalRules
from autopilot.core.model.records import Proposal, RejectionScope
from autopilot.core.model.verb import START

Outside = tuple[Code, float, str, float]
"""The reason for a plan outside a cover: code, value, unit and the limit of the cover."""


def seen_of(proposal: Proposal) -> Seen:
    """The view of a proposal for a person, as far as an approval depends on it."""
    victims, subject = proposal.victims, proposal.subject
    taken, passed = _sides(proposal)
    return Seen(
        proposal.action,
        proposal.queue,
        subject.uid,
        subject.revision if subject.kind == SubjectKind.WORKLOAD else 0,
        proposal.state_digest,
        proposal.change.exact,
        proposal.change.wish == START,
        proposal.change.size,
        float(sum(each.gpus for each in victims)),
        proposal.cost_gpu_s,
        tuple(sorted({each.queue for each in victims})),
        tuple(sorted({each.slo_class for each in victims})),
        sum(each.gpus for each in taken),
        tuple(sorted({f"{each.queue}/{each.what}" for each in taken})),
        tuple(sorted({each.queue for each in passed})),
    )


def _sides(proposal: Proposal) -> tuple[list[SideEffect], list[SideEffect]]:
    """Side effects with a loss of GPUs for waiting work, and those on passed work."""
    found = proposal.change.side_effects
    return [each for each in found if each.what != Taken.TURN], [each for each in found if each.what == Taken.TURN]


def group_of(proposal: Proposal) -> str:
    """Equal for recommendations under one decision of a person: one action for one reason, of one owner, without a
    loss for others. A recommendation with a loss for others stands alone.
    """
    others = {each.uid for each in proposal.victims} - {proposal.subject.uid}
    others |= {each.uid for each in _sides(proposal)[0]}
    owner = proposal.recommendation if others else proposal.tenant or proposal.queue
    return f"{proposal.action}/{proposal.change.wish}/{proposal.reason}/{owner}"


def cover_digest(recommendation: str, seen: Seen, *, exactly: bool = False) -> str:
    """Digest of an approval: the object, the action and the cover; with `exactly` also the plan. Hexadecimal."""
    parts = [recommendation, seen.uid, str(seen.revision), f"{seen.size:g}", f"{seen.taken_gpus:g}"]
    parts += [f"{seen.cost_gpu_s:.3f}", *seen.queues, "/", *seen.classes]
    parts += [f"{seen.side_gpus:g}", *seen.sides] if seen.side_gpus else []
    parts += ["passes", *seen.passes] if seen.passes else []
    parts += [seen.plan] if exactly or seen.exact else []
    return blake2s("|".join(parts).encode(), digest_size=6).hexdigest()


def most_cost_gpu_s(seen: Seen, rules: ApprovalRules) -> float:
    """The most lost work (GPU-s) under an approval of this."""
    return max(seen.cost_gpu_s * rules.cost_ratio, seen.cost_gpu_s + rules.cost_slack_gpu_s)


def approval_of(approvals: Mapping[str, Approval], proposal: Proposal) -> Approval | None:
    """The approval for a proposal, if any. One of a start with victims also covers the start without them.

    A repeated effect belongs to the approval of its plan.
    """
    plan = seen_of(proposal)
    own = approvals.get(proposal.recommendation)
    if own is not None and _same(own.seen, plan):
        return own
    for each in approvals.values():
        starts = each.seen.starts and not each.exactly and proposal.change.starts_now
        if (starts and _same(each.seen, plan)) or plan.plan in each.sent:
            return each
    return None


def _same(one: Seen, other: Seen) -> bool:
    return (one.uid, one.revision) == (other.uid, other.revision)


def outside(approval: Approval, proposal: Proposal, now_s: float, rules: ApprovalRules) -> Outside | None:
    """The reason for a proposal outside an approval; None inside."""
    seen, plan = approval.seen, seen_of(proposal)
    if now_s >= approval.given_s + rules.valid_s:  # the same sum as in `command_timers_s`
        return Code.APPROVAL_EXPIRED, now_s - approval.given_s, "s since it was approved", rules.valid_s
    most_gpu_s = most_cost_gpu_s(seen, rules)
    side_gpus = plan.side_gpus + (approval.side_gpus if plan.plan not in approval.sent else 0.0)
    shown_gpus = seen.side_gpus if {*plan.sides} <= {*seen.sides} else 0.0
    if side_gpus > shown_gpus:
        return Code.APPROVAL_SIDE_EFFECTS, side_gpus, "GPUs of waiting work", shown_gpus
    if plan.plan in approval.sent:  # its evictions are counted already, and each effect has its own precondition
        cost_gpu_s = plan.cost_gpu_s
        return (Code.APPROVAL_COST_ROSE, cost_gpu_s, "GPU-s of cost", most_gpu_s) if cost_gpu_s > most_gpu_s else None
    if (approval.exactly or seen.exact) and plan.plan != seen.plan:
        return Code.APPROVAL_OTHER_PLAN, 1.0, "", 0.0
    cost_gpu_s = approval.spent_gpu_s + plan.cost_gpu_s
    if cost_gpu_s > most_gpu_s:
        return Code.APPROVAL_COST_ROSE, cost_gpu_s, "GPU-s of cost", most_gpu_s
    taken_gpus = approval.taken_gpus + plan.taken_gpus
    if taken_gpus > seen.taken_gpus:
        return Code.APPROVAL_GREW, taken_gpus, "GPUs from running work", seen.taken_gpus
    if plan.size > seen.size:
        return Code.APPROVAL_GREW, plan.size, "", seen.size
    others = {*plan.queues} - {*seen.queues} or {*plan.classes} - {*seen.classes}
    if others:
        return Code.APPROVAL_OTHER_WORK, float(len(others)), "", 0.0
    return None


def passes_others(approval: Approval, proposal: Proposal) -> Outside | None:
    """The reason for a start that takes the room of waiting others outside its approval; None inside."""
    gpus = sum(each.gpus for each in _sides(proposal)[1] if each.queue not in approval.seen.passes)
    return (Code.APPROVAL_SIDE_EFFECTS, gpus, "GPUs of waiting work", 0.0) if gpus else None


def rejection_key(scope: RejectionScope, action: str, about: str) -> str:
    """The name of a rejection."""
    return f"{scope}/{about}" if scope != RejectionScope.QUEUE else f"{scope}/{action}/{about}"


def rejection_of(rejections: Mapping[str, Rejection], proposal: Proposal, now_s: float) -> tuple[str, Rejection] | None:
    """The rejection against a proposal, with its name; None for none."""
    about = proposal.recommendation
    for scope, name in (
        (RejectionScope.PLAN, about),
        (RejectionScope.WORKLOAD, about),
        (RejectionScope.QUEUE, proposal.queue),
    ):
        key = rejection_key(scope, proposal.action, name)
        found = rejections.get(key)
        if found is not None and found.until_s > now_s and found.plan in {"", proposal.state_digest}:
            return key, found
    return None
