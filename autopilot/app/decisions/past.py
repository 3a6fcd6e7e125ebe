"""The history of one workload in a journal: proposals, instructions, advice and refusals, with their outcomes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from autopilot.app.decisions.life import Life
from autopilot.app.when import When
from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.model.records import About, Instruction, Note, OutcomeKind, Proposal
from autopilot.explain.notes import note_words
from autopilot.explain.proposals import (
    answer_of,
    answer_words,
    by_node,
    how_words,
    loss_words,
    proposal_words,
    taken_words,
    where,
)
from autopilot.records.journal import DecisionRecord

RECENT = 8
"""Number of last decisions on a workload to search for the last one with it in the cluster."""

SHOWN_EVENTS = 60
"""Lines of a workload's history; a longer one shows its first and last."""

ADVICE = frozenset(case.code for action in ACTIONS for case in action.notes)
"""Notes of an action for a person."""


@dataclass(slots=True)
class Event:
    """One event in the history of a workload; consecutive equal refusals are one event."""

    at_s: float
    words: str
    key: object = None
    count: int = 1
    until_s: float = 0.0


@dataclass(slots=True)
class Past:
    """Collects the history of one workload: proposals, instructions and failures."""

    workload: str
    events: list[Event] = field(default_factory=list)
    recent: deque[DecisionRecord] = field(default_factory=lambda: deque(maxlen=RECENT))  # decisions about it
    stops: Counter[str] = field(default_factory=Counter)  # number of its displacements, by kind
    _proposals: dict[str, Proposal] = field(default_factory=dict)
    _instructed: dict[str, Instruction] = field(default_factory=dict)

    def take_in(self, record: DecisionRecord) -> None:
        """Take in the next decision of the record."""
        before, concerns = len(self.events), False
        for proposal in record.decision.plan.proposals:
            own = proposal.subject.name == self.workload
            if own or any(victim.workload == self.workload for victim in proposal.victims):
                concerns = True
                known = self._proposals.get(proposal.id)
                self._proposals[proposal.id] = proposal
                if own and (known is None or not proposal.accepted):
                    self._open_proposal(record, proposal)
        taken = [
            Event(
                record.now_s, f"the start of {each.subject.name} takes {taken_words(effect)}: {each.id} ({each.action})"
            )
            for each in record.decision.plan.proposals
            for effect in each.change.side_effects
            if each.accepted and effect.workload == self.workload
        ]
        self.events += taken
        self.events += [
            Event(record.now_s, f"{loss_words(loss)}: {loss.proposal_id}")
            for loss in record.decision.losses
            if loss.workload == self.workload
        ]
        for note in record.decision.notes:
            if note.about == About.WORKLOAD and note.subject == self.workload and note.code in ADVICE:
                self._advise(record.now_s, note)
        if self.workload in record.decision.plan.released:
            self.events.append(Event(record.now_s, "its reservation slipped too far and was released"))
        for effect in record.instructions:
            if effect.subject.name == self.workload:
                self.events.append(Event(record.now_s, self._effect(effect)))
                self._instructed[effect.id] = effect
        for outcome in record.outcomes:
            if outcome.instruction_id in self._instructed and outcome.kind in {
                OutcomeKind.FAILED,
                OutcomeKind.CONFLICT,
                OutcomeKind.DECLINED,
            }:
                effect = self._instructed[outcome.instruction_id]
                again = ", will be retried" if outcome.retryable else ""
                self.events.append(Event(outcome.at_s, f"that {outcome.kind} ({effect.kind}): {outcome.reason}{again}"))
        if concerns or len(self.events) > before:
            self.recent.append(record)

    def _open_proposal(self, record: DecisionRecord, proposal: Proposal) -> None:
        """A proposal for it without an instruction yet: refused, a mark, a reservation, or a pipelined start."""
        if proposal.accepted and not proposal.change.unsent:
            return
        codes = tuple(verdict.code for verdict in proposal.verdicts if not verdict.allowed)
        key = (proposal.action, proposal.kind, codes)
        latest = self.events[-1] if self.events else None
        if latest is not None and codes and latest.key == key:
            latest.count, latest.until_s = latest.count + 1, record.now_s
            return
        answer = answer_words(answer_of(proposal, record.decision.halted))
        words = f"{proposal_words(proposal)}: {proposal.id} ({proposal.action}, {answer})"
        self.events.append(Event(record.now_s, words, key))

    def _advise(self, now_s: float, note: Note) -> None:
        """Advice to a person. The same advice again is one event, with the newest words."""
        known = next((each for each in reversed(self.events) if each.key == note.code), None)
        if known is None:
            self.events.append(Event(now_s, f"advice: {note_words(note)}", note.code))
        else:
            known.words, known.count, known.until_s = f"advice: {note_words(note)}", known.count + 1, now_s

    def _effect(self, effect: Instruction) -> str:
        """The instruction to it, the proposal behind it and its beneficiary."""
        again = "again: " if effect.id in self._instructed else ""
        proposal = self._proposals.get(effect.proposal_id)
        action = f"{proposal.action}, accepted" if proposal is not None else effect.operation.takes or "accepted"
        by = f"{effect.proposal_id} ({action})"
        own = proposal is not None and proposal.subject.name == self.workload
        slots = effect.operation.slots
        place = f"{where(slots)} ({by_node(slots, 4)})" if slots else ""
        told = f"{again}{effect.operation.told(place)}: {by}"
        if effect.operation.starts_now:
            if proposal is None or own:
                return told
            return f"{again}start again on {place}, moved for {proposal.subject.name}: {by}"
        victim = next((each for each in proposal.victims if each.workload == self.workload), None) if proposal else None
        if victim is not None and proposal is not None:
            self.stops[victim.how] += not again
            beneficiary = "" if own else f", for {proposal.subject.name}"
            return f"{again}{how_words(victim)}{beneficiary}: {by}"
        return told

    def add_life(self, life: Life) -> None:
        """Add the events between decisions, from the ticks; without any decision on the workload there is no history
        yet.
        """
        if not self.events and not life.ended:
            return
        lived = [Event(at_s, words) for at_s, words in life.events()]
        self.events = sorted([*lived, *self.events], key=lambda each: each.at_s)

    def lines(self, until_s: float | None, when: When) -> list[str]:
        """All events; those after `until_s` under a separate heading."""
        if not self.events:
            return ["no proposal or instruction for it up to the end of this journal"]
        now = [each for each in self.events if until_s is None or each.at_s <= until_s]
        later = self.events[len(now) :]
        return [
            *(["history:"] if now else []),
            *_event_lines(now, when),
            *(["later:"] if later else []),
            *_event_lines(later, when),
        ]


def _event_lines(events: list[Event], when: When) -> Iterator[str]:
    """One line per event; a long history omits its middle."""
    left_out = len(events) - SHOWN_EVENTS
    for place, event in enumerate(events):
        if left_out > 0 and place == SHOWN_EVENTS // 2:
            yield f"  ... {left_out} more ..."
        if left_out > 0 and SHOWN_EVENTS // 2 <= place < SHOWN_EVENTS // 2 + left_out:
            continue
        often = f" ({event.count} times until {when.words(event.until_s)})" if event.count > 1 else ""
        yield f"  {when.words(event.at_s)}: {event.words}{often}"
