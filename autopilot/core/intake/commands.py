"""Commands of people: their order, their effect on memory, and the reasons for a refusal.

The inbox numbers each command on receipt and never uses a number twice, so the numbers give the order. A known number
is a repeat and is ignored. In doubt about the order, KILL wins: a KILL counts regardless of its number, unless it
repeats the last KILL, and only a RESUME of certainly later receipt ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import TypeVar

from autopilot.core.model.approvals import approval_of, rejection_key, seen_of
from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.codes import ON_PAPER
from autopilot.core.model.identity import present_uids
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.people import Approval, OpenProposal, Rejection
from autopilot.core.model.modes import Mode
from autopilot.core.model.policy import Policy
from autopilot.core.model.promises import PromiseRecord
from autopilot.core.model.records import (
    About,
    Code,
    Command,
    CommandKind,
    Evidence,
    Note,
    NoteCode,
    Proposal,
    RejectionScope,
    Seen,
)

Entry = TypeVar("Entry")

UNNUMBERED = -1
"""The sequence of a command without a number."""

_CAUTION = (
    CommandKind.RESUME,
    CommandKind.LIFT,
    CommandKind.CONFIRM,
    CommandKind.RELEASE,
    CommandKind.REVOKE,
    CommandKind.APPROVE,
    CommandKind.REJECT,
    CommandKind.PAUSE,
    CommandKind.KILL,
)
"""Order of commands with the same number, or with none: the most cautious command comes last and wins."""


@dataclass(frozen=True, slots=True)
class Obeyed:
    """Memory after the commands of a tick, one note per refused command, and whether a RESUME was accepted."""

    memory: ControllerMemory
    notes: tuple[Note, ...] = ()
    resumed: bool = False


def obey(memory: ControllerMemory, commands: Sequence[Command], now_s: float, policy: Policy) -> Obeyed:
    """Evaluate the commands of a tick, once: they refer to what earlier ticks showed."""
    if not commands:
        return Obeyed(memory)
    seen, newest = memory.people.last_sequence, max(memory.people.last_sequence, *(each.sequence for each in commands))
    notes: list[Note] = []
    resumed = False
    for command in sorted(commands, key=lambda each: (each.sequence, _CAUTION.index(each.kind))):
        if command.kind == CommandKind.KILL:
            memory = _kill(memory, command, newest)
        elif command.sequence != UNNUMBERED and command.sequence <= seen:
            continue
        else:
            memory, refusal = _obey_one(memory, command, now_s, policy)
            notes += [refusal] if refusal is not None else []
            resumed |= command.kind == CommandKind.RESUME and refusal is None
    return Obeyed(replace(memory, people=replace(memory.people, last_sequence=newest)), tuple(notes), resumed)


def _kill(memory: ControllerMemory, command: Command, newest: int) -> ControllerMemory:
    """Killed until a RESUME with a higher number. A KILL out of order may be newer than all received commands."""
    last = memory.halt.last_kill
    if last is not None and (command.sequence, command.who, command.at_s) == (
        last.sequence,
        last.who,
        last.at_s,
    ):
        return memory
    late = command.sequence == UNNUMBERED or command.sequence <= memory.people.last_sequence
    number = newest if late else command.sequence
    return replace(
        memory,
        halt=replace(memory.halt, killed=True, last_kill=command, kill_sequence=max(number, memory.halt.kill_sequence)),
    )


def _obey_one(
    memory: ControllerMemory, command: Command, now_s: float, policy: Policy
) -> tuple[ControllerMemory, Note | None]:
    """Memory after one command other than KILL, and a note if it is refused."""
    given_s = min(command.at_s, now_s)
    if command.kind == CommandKind.APPROVE:
        return _approve(memory, command, given_s)
    if command.kind == CommandKind.REJECT:
        return _reject(memory, command, given_s, policy)
    if command.kind == CommandKind.REVOKE:
        return _revoke(memory, command)
    if command.kind == CommandKind.CONFIRM:
        return _confirm(memory, command)
    if command.kind == CommandKind.RELEASE:
        return _release(memory, command)
    if command.kind == CommandKind.LIFT:
        return _lift(memory, command)
    if command.kind == CommandKind.PAUSE:
        return replace(
            memory,
            halt=replace(
                memory.halt,
                paused_reason=f"paused by {command.who}",
                paused_since_s=given_s,
                paused_by=command.who or "a person",
            ),
        ), None
    if command.kind != CommandKind.RESUME:
        return memory, None
    if memory.halt.killed and command.sequence <= memory.halt.kill_sequence:
        return memory, _refused(NoteCode.RESUME_REFUSED, About.CONTROLLER, command)
    return replace(
        memory,
        halt=replace(memory.halt, killed=False, paused_reason="", paused_by="", paused_since_s=float("nan"), failed=()),
    ), None


def _refused(code: NoteCode, about: About, command: Command) -> Note:
    return Note(code, about, command.subject, facts=(Evidence("who", command.who),))


def _approve(memory: ControllerMemory, command: Command, given_s: float) -> tuple[ControllerMemory, Note | None]:
    """Approve the recommendation that the person saw, else the last one shown. It ends a rejection of the same."""
    seen = _seen(memory, command)
    if seen is None or isnan(seen.cost_gpu_s):
        return memory, _refused(NoteCode.APPROVAL_REFUSED, About.PROPOSAL, command)
    approval = Approval(seen, command.exactly, given_s, command.who)
    rejections = {key: each for key, each in memory.people.rejections.items() if each.about != command.subject}
    return replace(
        memory,
        people=replace(
            memory.people, approvals={**memory.people.approvals, command.subject: approval}, rejections=rejections
        ),
    ), None


def _reject(
    memory: ControllerMemory, command: Command, given_s: float, policy: Policy
) -> tuple[ControllerMemory, Note | None]:
    """Reject a plan, an action for an object, or an action for a queue. It ends the approvals of the same."""
    seen = _seen(memory, command)
    if seen is None:
        return memory, _refused(NoteCode.REJECTION_REFUSED, About.PROPOSAL, command)
    about = seen.queue if command.scope == RejectionScope.QUEUE else command.subject
    plan = seen.plan if command.scope == RejectionScope.PLAN else ""
    for_s = policy.approval.rejected_s if command.for_s is None else command.for_s
    rejection = Rejection(command.scope, seen.action, about, plan, given_s + for_s, command.who)
    rejections = {**memory.people.rejections, rejection_key(command.scope, seen.action, about): rejection}
    return replace(
        memory,
        people=replace(
            memory.people, approvals=_without(memory.people.approvals, command.subject), rejections=rejections
        ),
    ), None


def _seen(memory: ControllerMemory, command: Command) -> Seen | None:
    """The recommendation that the person saw, else the last one shown."""
    shown = memory.people.open_proposals.get(command.subject)
    return command.seen if command.seen is not None or shown is None else seen_of(shown.proposal)


def _revoke(memory: ControllerMemory, command: Command) -> tuple[ControllerMemory, Note | None]:
    """End a rejection."""
    if command.subject not in memory.people.rejections:
        return memory, _refused(NoteCode.REVOKE_REFUSED, About.PROPOSAL, command)
    return replace(
        memory, people=replace(memory.people, rejections=_without(memory.people.rejections, command.subject))
    ), None


def _confirm(memory: ControllerMemory, command: Command) -> tuple[ControllerMemory, Note | None]:
    """Confirm the loss of a suspected source: its next list with the same loss is trusted (sight.py)."""
    views = {
        key: replace(record, confirmed=True) if record.lists and key.partition("/")[2] == command.subject else record
        for key, record in memory.intake.views.items()
    }
    if views == dict(memory.intake.views):
        return memory, _refused(NoteCode.CONFIRM_REFUSED, About.SOURCE, command)
    return replace(memory, intake=replace(memory.intake, views=views)), None


def _release(memory: ControllerMemory, command: Command) -> tuple[ControllerMemory, Note | None]:
    """End the quarantine of a GPU."""
    record = memory.geometry.recuts.get(command.subject)
    if record is None or record.state != "quarantined":
        return memory, _refused(NoteCode.RELEASE_REFUSED, About.GPU, command)
    released = replace(record, state="settled", reason=f"released by {command.who or 'a person'}")
    return replace(
        memory, geometry=replace(memory.geometry, recuts={**memory.geometry.recuts, command.subject: released})
    ), None


def _lift(memory: ControllerMemory, command: Command) -> tuple[ControllerMemory, Note | None]:
    """End the cap of an action. Cases from now on judge it again."""
    record = memory.trust.kept_promises.get(command.subject)
    if record is None or record.capped_s == inf:
        return memory, _refused(NoteCode.LIFT_REFUSED, About.ACTION, command)
    return replace(
        memory,
        trust=replace(memory.trust, kept_promises={**memory.trust.kept_promises, command.subject: PromiseRecord()}),
    ), None


def _without(entries: Mapping[str, Entry], key: str) -> dict[str, Entry]:
    return {name: entry for name, entry in entries.items() if name != key}


def expire_rejections(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory without the rejections that are over."""
    kept = {key: each for key, each in memory.people.rejections.items() if each.until_s > tick.now_s}
    if len(kept) == len(memory.people.rejections):
        return memory
    return replace(memory, people=replace(memory.people, rejections=kept))


def remember_open_proposals(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory after a decision: its recommendations, and its effects under each approval.

    An approval stays until it has expired or its object is gone.
    """
    now_s, policy, proposals = planned.now_s, planned.policy, planned.plan.proposals
    there = present_uids(planned.observation.snapshot) if memory.people.approvals else frozenset()
    opened = open_after(memory.people.open_proposals, proposals, now_s)
    approvals = {
        key: each
        for key, each in memory.people.approvals.items()
        if each.seen.uid in there and now_s < each.given_s + 2 * policy.approval.valid_s
    }
    for proposal in proposals if approvals else ():
        asks = getattr(policy.modes, proposal.action) == Mode.APPROVE
        approval = approval_of(approvals, proposal) if proposal.accepted and asks else None
        if approval is not None and proposal.state_digest not in approval.sent:
            key = next(key for key, each in approvals.items() if each is approval)
            seen = seen_of(proposal)
            approvals[key] = replace(
                approval,
                sent=(*approval.sent, seen.plan),
                taken_gpus=approval.taken_gpus + seen.taken_gpus,
                spent_gpu_s=approval.spent_gpu_s + seen.cost_gpu_s,
                side_gpus=approval.side_gpus + seen.side_gpus,
            )
    if opened == memory.people.open_proposals and approvals == memory.people.approvals:
        return memory
    return replace(memory, people=replace(memory.people, open_proposals=opened, approvals=approvals))


def open_after(
    before: Mapping[str, OpenProposal], proposals: Sequence[Proposal], now_s: float
) -> dict[str, OpenProposal]:
    """The recommendations of a decision; `before`: those of the decision before it."""
    return {
        each.recommendation: _as_shown(each, before.get(each.recommendation), now_s)
        for each in proposals
        if is_open(each)
    }


def is_open(proposal: Proposal) -> bool:
    """True for a proposal that only waits for a person, or for the mode of its action."""
    codes = {verdict.code for verdict in proposal.verdicts if not verdict.allowed}
    return bool(codes) and codes <= ON_PAPER and Code.MODE_OBSERVE not in codes


def _as_shown(proposal: Proposal, before: OpenProposal | None, now_s: float) -> OpenProposal:
    """The memory of a recommendation, without its verdicts: these are new at each tick."""
    bare = replace(proposal, verdicts=())
    if before is None:
        return OpenProposal(bare, now_s, now_s)
    return before if bare == before.proposal else OpenProposal(bare, before.since_s, now_s)


def command_timers_s(memory: ControllerMemory, planned: Planned) -> Iterable[float]:
    """Ends (s) of approvals and rejections."""
    valid_s = planned.policy.approval.valid_s
    yield from (approval.given_s + valid_s for approval in memory.people.approvals.values())
    yield from (rejection.until_s for rejection in memory.people.rejections.values())
