"""Decisions of people about a recommendation, and their results: the same over HTTP and by annotation."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from autopilot.core.model.approvals import cover_digest, outside, rejection_of, seen_of
from autopilot.core.model.codes import UNCOVERED
from autopilot.core.model.memory.people import Approval, Rejection
from autopilot.core.model.records import Code, NoteCode, Proposal, RejectionScope
from autopilot.core.model.snapshot import State
from autopilot.core.model.units import format_duration, parse_duration_s
from autopilot.core.model.verb import START
from autopilot.explain.proposals import Answer, answer_of, code_words, refusing_codes
from autopilot.service.changes import what_changed
from autopilot.service.published import Published, Publisher

OPEN = (Answer.NEEDS_APPROVAL, Answer.RECOMMENDED)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason against a decision. `unknown`: there is and was no such recommendation."""

    text: str
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Became:
    """Result of an approval after a tick: stored, approved or carried out."""

    result: str
    message: str
    codes: tuple[Code, ...] | None = None


def digest_of(proposal: Proposal) -> str:
    """Digest of a recommendation as shown: its cover (GPUs, cost, queues and classes of victims), and its plan."""
    return cover_digest(proposal.recommendation, seen_of(proposal), exactly=True)


def time_of(text: str) -> float:
    """Time of a rejection (s): a duration, or `forever`. Raises `InputError`."""
    return inf if text.strip() == "forever" else parse_duration_s(text, "the time of a rejection")


def is_under_way(proposal: Proposal, latest: Published) -> bool:
    """True if effects of this very plan are under way."""
    sent = {entry.instruction.proposal_id for entry in latest.memory.effects.in_flight.values()}
    return proposal.id in sent | {each.proposal_id for each in latest.memory.starts.pipelined_starts}


def rejection_words(rejection: Rejection, now_s: float) -> str:
    """Scope and remaining time of a rejection, in words."""
    what = {
        RejectionScope.PLAN: "this plan",
        RejectionScope.WORKLOAD: f"{rejection.action} for this object",
        RejectionScope.QUEUE: f"{rejection.action} for the queue {rejection.about}",
    }[rejection.scope]
    left_s = rejection.until_s - now_s
    until = f"for {format_duration(left_s)} more" if left_s < inf else "until the rejection is revoked"
    return f"{rejection.who} rejected {what}, {until}"


def open_proposals(latest: Published) -> list[Proposal]:
    """Proposals open to a person's decision now; none while nothing acts."""
    halted = latest.decision.halted
    return [each for each in latest.decision.plan.proposals if answer_of(each, halted) in OPEN]


def recommendation(
    publisher: Publisher, latest: Published, name: str, digest: str = "", *, exactly: bool = False
) -> Proposal | Refusal:
    """The recommendation as seen by the person, if an approval of it can still be carried out; else the changes.

    `digest`: of the shown state; "": as it is shown now. A start that is not proposed for the moment may be approved as
    long as its gang waits: the approval holds until it expires.
    """
    if latest.decision.halted:
        return Refusal(f"nothing acts now: {latest.decision.halted}; resume first")
    now = next((each for each in open_proposals(latest) if each.recommendation == name), None)
    if now is not None and digest in {"", digest_of(now)}:
        return now
    seen = publisher.shown(name, digest)
    if seen is None and publisher.shown(name) is None:
        return Refusal(f"{name}: no such recommendation; `autopilot recommendations` lists them", unknown=True)
    if seen is None:
        return Refusal(f"{name} was shown differently meanwhile, or long ago; look again")
    rejection = rejection_of(latest.memory.people.rejections, seen, latest.observation.now_s)
    if rejection is not None:
        return Refusal(f"{rejection_words(rejection[1], latest.observation.now_s)}; `autopilot revoke {rejection[0]}`")
    if now is None:
        waits = digest and seen.change.wish == START and _waits(seen, latest)
        changed = "; ".join(what_changed(seen, latest))
        return seen if waits else Refusal(f"{name} is no longer what was shown: {changed}")
    approval = Approval(seen_of(seen), exactly, latest.observation.now_s, "")
    grew = outside(approval, now, latest.observation.now_s, latest.policy.approval)
    if grew is None:
        return seen
    why = "; ".join([code_words(grew[0], grew[1], grew[3]), *what_changed(seen, latest)])
    return Refusal(f"{name} is no longer what was shown: {why}")


def _waits(proposal: Proposal, latest: Published) -> bool:
    """True if the gang of a start still waits."""
    work, subject = latest.observation.snapshot.workloads, proposal.subject
    same = (work.uid == subject.uid) & (work.incarnation == subject.revision) & (work.state == State.PENDING)
    return bool(same.any())


def approval_refusal(proposal: Proposal) -> Refusal | None:
    """Reason for an open recommendation that takes no approval; None if it takes one."""
    if not {Code.CAPPED, Code.CONTRACT_RATE}.isdisjoint(refusing_codes(proposal)):
        return Refusal(
            f"{proposal.recommendation}: {proposal.action} realised too little of its promise and may only recommend; "
            f"`autopilot lift {proposal.action}` ends that"
        )
    if refusing_codes(proposal) == (Code.ON_PAPER,):
        return Refusal(
            f"{proposal.recommendation} needs no approval: it waits for GPUs or quota that another recommendation "
            "frees; approve that one"
        )
    if proposal.verdicts and answer_of(proposal) == Answer.RECOMMENDED:  # an earlier form has no verdicts
        return Refusal(
            f"{proposal.recommendation}: the mode of {proposal.action} is recommend, which takes no approvals; set "
            f"modes.{proposal.action} to approve in the policy"
        )
    return None


def became(proposal: Proposal, after: Published) -> Became | Refusal:
    """Result of an approval in the tick that read the command."""
    name = proposal.recommendation
    if any(note.code == NoteCode.APPROVAL_REFUSED and note.subject == name for note in after.decision.notes):
        return Refusal(f"{name} was not approved: {'; '.join(what_changed(proposal, after))}")
    approval = after.memory.people.approvals.get(name)
    if approval is not None and approval.sent:
        stops = f" {len(proposal.victims)} of its victims leave." if proposal.victims else ""
        return Became("carried out", f"its effects were sent.{stops}".removesuffix("."))
    now = next((each for each in after.decision.plan.proposals if each.recommendation == name), None)
    if now is None:
        changed = "; ".join(what_changed(proposal, after))
        return Became("approved", f"it is not possible now and is carried out as soon as it is: {changed}")
    uncovered = [each for each in now.verdicts if not each.allowed and each.code in UNCOVERED]
    if uncovered:
        words = "; ".join(code_words(each.code, each.value, each.threshold) for each in uncovered)
        return Refusal(f"{name} was not carried out: {words}; read it again, then approve it again")
    held = "; ".join(code_words(each.code, each.value, each.threshold) for each in now.verdicts if not each.allowed)
    return Became("approved", f"it is held: {held or after.decision.halted}", refusing_codes(now))
