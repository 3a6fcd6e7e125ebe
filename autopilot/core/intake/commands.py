"""Commands of people: their order, their effect on memory, and why one is refused.

The inbox numbers each command on receipt and never uses a number twice, so the numbers give the order. A known number
is a repeat and is ignored. Where the order is in doubt, KILL wins: a KILL counts regardless of its number, unless it
repeats the last KILL, and only a RESUME that was certainly received after it ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TypeVar

from autopilot.core.model.codes import APPROVAL_ENDED
from autopilot.core.model.memory import Approval, ControllerMemory, OpenProposal, Rejection
from autopilot.core.model.policy import Policy
from autopilot.core.model.promises import PromiseRecord
from autopilot.core.model.records import About, Code, Command, CommandKind, Evidence, Note, NoteCode, Proposal

Entry = TypeVar("Entry")

UNNUMBERED = -1
"""The sequence of a command without a number."""

_CAUTION = (
    CommandKind.RESUME,
    CommandKind.LIFT,
    CommandKind.CONFIRM,
    CommandKind.RELEASE,
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
    seen, newest = memory.last_sequence, max(memory.last_sequence, *(each.sequence for each in commands))
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
    return Obeyed(replace(memory, last_sequence=newest), tuple(notes), resumed)


def _kill(memory: ControllerMemory, command: Command, newest: int) -> ControllerMemory:
    """Killed until a RESUME with a higher number. A KILL out of order may be newer than all received commands."""
    last = memory.last_kill
    if last is not None and (command.sequence, command.who, command.at_s) == (
        last.sequence,
        last.who,
        last.at_s,
    ):
        return memory
    late = command.sequence == UNNUMBERED or command.sequence <= memory.last_sequence
    number = newest if late else command.sequence
    return replace(memory, killed=True, last_kill=command, kill_sequence=max(number, memory.kill_sequence))


def _obey_one(
    memory: ControllerMemory, command: Command, now_s: float, policy: Policy
) -> tuple[ControllerMemory, Note | None]:
    """Memory after one command other than KILL, and a note if it is refused."""
    given_s = min(command.at_s, now_s)
    if command.kind == CommandKind.APPROVE:
        return _approve(memory, command, given_s)
    if command.kind == CommandKind.REJECT:
        rejection = Rejection(command.state_digest, given_s + policy.approval.rejected_s, command.who)
        return replace(
            memory,
            approvals=_without(memory.approvals, command.subject),
            rejections={**memory.rejections, command.subject: rejection},
        ), None
    if command.kind == CommandKind.CONFIRM:
        return _confirm(memory, command)
    if command.kind == CommandKind.RELEASE:
        return _release(memory, command)
    if command.kind == CommandKind.LIFT:
        return _lift(memory, command)
    if command.kind == CommandKind.PAUSE:
        return replace(
            memory,
            paused_reason=f"paused by {command.who}",
            paused_since_s=given_s,
            paused_by=command.who or "a person",
        ), None
    if command.kind != CommandKind.RESUME:
        return memory, None
    if memory.killed and command.sequence <= memory.kill_sequence:
        return memory, _refused(NoteCode.RESUME_REFUSED, About.CONTROLLER, command)
    return replace(memory, killed=False, paused_reason="", paused_by="", paused_since_s=float("nan"), failed=()), None


def _refused(code: NoteCode, about: About, command: Command) -> Note:
    return Note(code, about, command.subject, facts=(Evidence("who", command.who),))


def _approve(memory: ControllerMemory, command: Command, given_s: float) -> tuple[ControllerMemory, Note | None]:
    """Bind the approval to the benefit and cost that the person saw, else to those that the last decision showed."""
    benefit_gpu_s, cost_gpu_s = command.benefit_gpu_s, command.cost_gpu_s
    if not (isfinite(benefit_gpu_s) and isfinite(cost_gpu_s)):
        shown = memory.open_proposals.get(command.subject)
        if shown is None or shown.state_digest != command.state_digest:
            return memory, _refused(NoteCode.APPROVAL_REFUSED, About.PROPOSAL, command)
        benefit_gpu_s, cost_gpu_s = shown.benefit_gpu_s, shown.cost_gpu_s
    approval = Approval(command.state_digest, given_s, benefit_gpu_s, cost_gpu_s, command.who)
    return replace(
        memory,
        approvals={**memory.approvals, command.subject: approval},
        rejections=_without(memory.rejections, command.subject),
    ), None


def _confirm(memory: ControllerMemory, command: Command) -> tuple[ControllerMemory, Note | None]:
    """Confirm the loss of a suspected source: its next list that shows the same loss is trusted (sight.py)."""
    views = {
        key: replace(record, confirmed=True) if record.lists and key.partition("/")[2] == command.subject else record
        for key, record in memory.views.items()
    }
    if views == dict(memory.views):
        return memory, _refused(NoteCode.CONFIRM_REFUSED, About.SOURCE, command)
    return replace(memory, views=views), None


def _release(memory: ControllerMemory, command: Command) -> tuple[ControllerMemory, Note | None]:
    """End the quarantine of a GPU."""
    record = memory.recuts.get(command.subject)
    if record is None or record.state != "quarantined":
        return memory, _refused(NoteCode.RELEASE_REFUSED, About.GPU, command)
    released = replace(record, state="settled", reason=f"released by {command.who or 'a person'}")
    return replace(memory, recuts={**memory.recuts, command.subject: released}), None


def _lift(memory: ControllerMemory, command: Command) -> tuple[ControllerMemory, Note | None]:
    """End the cap of an action. It is judged again by the cases that finish from now on."""
    record = memory.kept_promises.get(command.subject)
    if record is None or record.capped_s == inf:
        return memory, _refused(NoteCode.LIFT_REFUSED, About.ACTION, command)
    return replace(memory, kept_promises={**memory.kept_promises, command.subject: PromiseRecord()}), None


def _without(entries: Mapping[str, Entry], key: str) -> dict[str, Entry]:
    return {name: entry for name, entry in entries.items() if name != key}


def approval_ended(
    approval: Approval, proposal: Proposal, now_s: float, policy: Policy
) -> tuple[Code, float, str, float, bool] | None:
    """Why an approval of this state has ended, as `deny` takes it: code, value, unit, threshold, whether that is the
    least that is asked for. None while it holds.
    """
    rules = policy.approval
    dearest, least = approval.cost_gpu_s * rules.cost_ratio, approval.benefit_gpu_s * rules.gain_ratio
    found = {
        Code.APPROVAL_EXPIRED: (now_s - approval.given_s, "s since it was approved", rules.valid_s, False),
        Code.APPROVAL_COST_ROSE: (proposal.cost_gpu_s, "GPU-s of cost", dearest, False),
        Code.APPROVAL_GAIN_FELL: (proposal.benefit_gpu_s, "GPU-s of benefit", least, True),
    }
    if approval.ended:
        return Code(approval.ended), *found[Code(approval.ended)]
    if now_s >= approval.given_s + rules.valid_s:  # the same sum as in `command_timers_s`
        return Code.APPROVAL_EXPIRED, *found[Code.APPROVAL_EXPIRED]
    if proposal.cost_gpu_s > dearest:
        return Code.APPROVAL_COST_ROSE, *found[Code.APPROVAL_COST_ROSE]
    if proposal.benefit_gpu_s < least:
        return Code.APPROVAL_GAIN_FELL, *found[Code.APPROVAL_GAIN_FELL]
    return None


def remember_open_proposals(
    memory: ControllerMemory, proposals: Sequence[Proposal], *, whole: bool
) -> ControllerMemory:
    """Memory after a decision: the proposals that it offers for approval, and the approvals that it ended.

    An approval ends with the state for which it was given. A decision that is not `whole` (it reached its limit on
    proposals) does not show which proposals are gone, so it removes no approval.
    """
    open_proposals: dict[str, OpenProposal] = {}
    approvals = dict(memory.approvals)
    made = {entry.instruction.proposal_id for entry in memory.in_flight.values()}  # these may be retried
    made |= {pipelined.proposal_id for pipelined in memory.pipelined_starts}
    for proposal in proposals:
        made.add(proposal.id)
        for verdict in proposal.verdicts:
            if verdict.code in APPROVAL_ENDED and proposal.id in approvals:
                approvals[proposal.id] = replace(approvals[proposal.id], ended=verdict.code)
            if verdict.code in APPROVAL_ENDED or verdict.code == Code.NEEDS_APPROVAL:
                open_proposals[proposal.id] = OpenProposal(
                    proposal.state_digest, proposal.benefit_gpu_s, proposal.cost_gpu_s
                )
    if whole:
        approvals = {key: approval for key, approval in approvals.items() if key in made}
    if open_proposals == memory.open_proposals and approvals == memory.approvals:
        return memory
    return replace(memory, open_proposals=open_proposals, approvals=approvals)


def command_timers_s(memory: ControllerMemory, policy: Policy) -> list[float]:
    """When approvals, rejections and a pause of the autopilot itself expire."""
    timers = [approval.given_s + policy.approval.valid_s for approval in memory.approvals.values()]
    timers += [rejection.until_s for rejection in memory.rejections.values()]
    if memory.paused_reason and not memory.paused_by:
        timers.append(memory.paused_since_s + policy.pause.length_s)
    return timers
