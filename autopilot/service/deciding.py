"""What a person may decide about a recommendation, and what became of it: the same over HTTP and by annotation."""

from __future__ import annotations

from dataclasses import dataclass

from autopilot.core.model.codes import APPROVAL_ENDED
from autopilot.core.model.records import Code, NoteCode, Proposal
from autopilot.explain.proposals import Answer, answer_of, code_words, refusing_codes
from autopilot.service.changes import what_changed
from autopilot.service.published import Published, Publisher

OPEN = (Answer.NEEDS_APPROVAL, Answer.RECOMMENDED)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a decision is not taken. `unknown`: there is and was no such recommendation."""

    text: str
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Became:
    """What a tick made of an approval: stored, approved or carried out."""

    result: str
    message: str
    codes: tuple[Code, ...] | None = None


def open_proposals(latest: Published) -> list[Proposal]:
    """What waits for a person now; nothing does while nothing acts."""
    halted = latest.decision.halted
    return [each for each in latest.decision.plan.proposals if answer_of(each, halted) in OPEN]


def recommendation(
    publisher: Publisher, latest: Published, proposal_id: str, state_digest: str = ""
) -> Proposal | Refusal:
    """The recommendation as it is now, if it is what the person saw; else what changed. "": any state of this id."""
    if latest.decision.halted:
        return Refusal(f"nothing acts now: {latest.decision.halted}; resume first")
    found = next((each for each in open_proposals(latest) if each.id == proposal_id), None)
    if found is not None and state_digest in {"", found.state_digest}:
        return found
    before = publisher.shown(proposal_id)
    if before is None:
        return Refusal(f"{proposal_id}: no such recommendation; `autopilot recommendations` lists them", unknown=True)
    return Refusal(f"{proposal_id} is no longer what was shown: {'; '.join(what_changed(before, latest))}")


def approval_refusal(proposal: Proposal) -> Refusal | None:
    """Why an open recommendation takes no approval; None where it takes one."""
    if not {Code.CAPPED, Code.CONTRACT_RATE}.isdisjoint(refusing_codes(proposal)):
        return Refusal(
            f"{proposal.id}: {proposal.action} realised too little of its promise and may only recommend; "
            f"`autopilot lift {proposal.action}` ends that"
        )
    if answer_of(proposal) == Answer.RECOMMENDED:
        return Refusal(
            f"{proposal.id}: the mode of {proposal.action} is recommend, which takes no approvals; set "
            f"modes.{proposal.action} to approve in the policy"
        )
    return None


def became(proposal: Proposal, after: Published) -> Became | Refusal:
    """What the tick that read the command made of an approval."""
    now = next((each for each in after.decision.plan.proposals if each.id == proposal.id), None)
    refused = [
        note for note in after.decision.notes if note.code == NoteCode.APPROVAL_REFUSED and note.subject == proposal.id
    ]
    sent = {entry.instruction.proposal_id for entry in after.memory.in_flight.values()}
    if now is None and not refused and proposal.id in sent:
        return Became("carried out", "its effects were sent")
    if now is None or refused:
        return Refusal(f"{proposal.id} was not approved: {'; '.join(what_changed(proposal, after))}")
    ended = [each for each in now.verdicts if not each.allowed and each.code in APPROVAL_ENDED]
    if ended:
        words = "; ".join(code_words(each.code, each.value, each.threshold) for each in ended)
        return Refusal(f"{proposal.id} was not carried out: {words}; read it again, then approve it again")
    if now.accepted:
        return Became("carried out", "its effects were sent")
    held = "; ".join(code_words(each.code, each.value, each.threshold) for each in now.verdicts if not each.allowed)
    return Became("approved", f"it is held: {held or after.decision.halted}", refusing_codes(now))
