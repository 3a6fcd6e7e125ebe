"""Answers of `autopilot explain`, read from a journal."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autopilot.app.options import past_end
from autopilot.core.errors import InputError
from autopilot.core.explain import (
    answer_of,
    answer_words,
    by_node,
    explain_decision,
    explain_proposal,
    how_words,
    proposal_words,
    where,
)
from autopilot.core.memory import ControllerMemory
from autopilot.core.reconciler import reconcile
from autopilot.core.records import Instruction, OutcomeKind, Proposal
from autopilot.core.story import Watch, tell
from autopilot.core.units import format_duration
from autopilot.journal import DecisionRecord, JournalReader, TickRecord
from autopilot.replay.again import first_difference, remembered

EMPTY = "the journal holds no decision yet"

RECENT = 8
"""Decisions on a workload of which the last is looked for at which it was still there."""

SHOWN_EVENTS = 60
"""Lines of what happened to a workload; of more, the first and the last."""


def explain_from(path: Path, decision: str | None, workload: str | None, at_s: float | None) -> list[str]:
    """Lines for a proposal id, a tick number, a workload (at `at_s`), or else the last tick (up to `at_s`).

    Raises `InputError` when the journal does not know what is asked for.
    """
    with JournalReader(path) as reader:
        bounds = reader.tick_bounds()
        if bounds is None:
            raise InputError(f"{path}: {EMPTY}")
        if at_s is not None:
            _check_moment(reader, bounds[1], at_s)
        if workload is not None:
            return _workload(reader, workload, at_s)
        if decision is None:
            return _tick(reader, bounds[1] if at_s is None else _last_until(reader, at_s).tick)
        if decision.isdigit():
            return _tick(reader, int(decision))
        return _proposal(reader, decision)


def _tick(reader: JournalReader, tick: int) -> list[str]:
    number = reader.find_tick(tick)
    if number is None:
        first, last = reader.tick_bounds() or (0, 0)
        raise InputError(f"{reader.path}: there is no tick {tick}; it holds {first} to {last}")
    return explain_decision(reader.at(number).decided.decision)


def _check_moment(reader: JournalReader, last_tick: int, at_s: float) -> None:
    for last in reader.decisions(reader.find_tick(last_tick)):
        if at_s > last.now_s:
            raise InputError(past_end(at_s, last.now_s))


def _last_until(reader: JournalReader, at_s: float) -> DecisionRecord:
    """The last decision up to `at_s`, the first one where all are later."""
    chosen = None
    for record in reader.decisions():
        if record.now_s > at_s and chosen is not None:
            break
        chosen = record
    if chosen is None:
        raise InputError(f"{reader.path}: {EMPTY}")
    return chosen


def _proposal(reader: JournalReader, proposal_id: str) -> list[str]:
    """The case of one proposal; a workload's id is understood too."""
    numbers = reader.find_proposal(proposal_id)
    if not numbers:
        if reader.find_workload(proposal_id):
            return _workload(reader, proposal_id, None)
        raise InputError(
            f"{reader.path}: no proposal or workload {proposal_id!r} is recorded here; give an id as the page or "
            "`autopilot explain TICK` shows it, a tick number, or --workload ID"
        )
    record = reader.at(numbers[0]).decided
    found = [each for each in record.decision.plan.proposals if each.id == proposal_id]
    lines = explain_proposal(found[0], record.decision)
    effects = {each.id: each for each in record.instructions if each.proposal_id == proposal_id}
    for each in record.outcomes:
        if each.instruction_id in effects:
            effect = effects[each.instruction_id]
            lines.append(
                f"  outcome {each.kind} ({effect.kind} {effect.workload})"
                + (f": {each.reason}" if each.reason else "")
            )
    if len(numbers) > 1:
        lines.append(f"  the same proposal stands in {len(numbers)} places of this journal")
    return lines


# --- one workload -----------------------------------------------------------------------------------


def _workload(reader: JournalReader, workload: str, at_s: float | None) -> list[str]:
    """A workload's story at `at_s`, and all that happened to it.

    None: at the end; where it has left the cluster by then, when something last concerned it.
    """
    past = _Past(workload)
    shown: DecisionRecord | None = None
    for record in reader.decisions():
        past.take_in(record)
        if shown is None or at_s is None or record.now_s <= at_s:
            shown = record
    if shown is None:
        raise InputError(f"{reader.path}: {EMPTY}")
    gone = not _is_there(reader, workload, shown)
    if gone and not past.recent:
        raise InputError(
            f"{reader.path}: no workload {workload!r} is known here at {format_duration(shown.now_s)}; try --at"
        )
    lines = []
    if gone and at_s is None:
        lines.append(
            f"{workload}: over at the end of the record, {format_duration(shown.now_s)}; last decided on:"
        )
        shown = next((each for each in reversed(past.recent) if _is_there(reader, workload, each)), shown)
    lines.append(f"at {format_duration(shown.now_s)} (tick {shown.tick}):")
    lines += _told(reader, workload, shown.number)
    return lines + past.lines(shown.now_s if at_s is not None else None)


def _is_there(reader: JournalReader, workload: str, record: DecisionRecord) -> bool:
    """Is the workload in the cluster at this tick?"""
    return workload in reader.at(record.number).observation.snapshot.workloads.id


def _told(reader: JournalReader, workload: str, number: int) -> list[str]:
    """The story at one tick: it is decided again, from the keyframe before it, with an onlooker.

    Where that does not give what the record has (another version wrote it), the record's own reasons are told.
    """
    memory: ControllerMemory | None = None
    tick: TickRecord | None = None
    watch = Watch()
    for tick in reader.up_to(number):
        decided = tick.decided
        memory, difference = remembered(memory, tick)
        if difference is None:
            last = decided.number == number
            step = (
                reconcile(memory, tick.observation, decided.policy, actions=watch.actions)
                if last
                else reconcile(memory, tick.observation, decided.policy)
            )
            memory = step.memory
            difference = first_difference(tick, step.decision, step.instructions)
        if difference is not None:
            at = reader.at(number)
            note = (f"(this version decides tick {difference.tick} differently at {difference.field}: "
                    "told is what the record itself says)")  # fmt: skip
            return [*tell(workload, at.observation, at.decided.decision), f"  {note}"]
    if tick is None:
        raise InputError(f"{reader.path}: {EMPTY}")
    return tell(workload, tick.observation, tick.decided.decision, watch)


@dataclass(slots=True)
class _Event:
    """Something that happened to a workload; equal refusals in a row are one event."""

    at_s: float
    words: str
    key: object = None
    count: int = 1
    until_s: float = 0.0


@dataclass(slots=True)
class _Past:
    """Gathers what happened to one workload: what was proposed, told, and went wrong."""

    workload: str
    events: list[_Event] = field(default_factory=list)
    recent: deque[DecisionRecord] = field(default_factory=lambda: deque(maxlen=RECENT))  # that concerned it
    _proposals: dict[str, Proposal] = field(default_factory=dict)
    _told: dict[str, Instruction] = field(default_factory=dict)

    def take_in(self, record: DecisionRecord) -> None:
        """The next decision of the record."""
        before, concerns = len(self.events), False
        for proposal in record.decision.plan.proposals:
            own = proposal.workload == self.workload
            if own or any(victim.workload == self.workload for victim in proposal.victims):
                concerns = True
                known = self._proposals.get(proposal.id)
                self._proposals[proposal.id] = proposal
                if own and (known is None or not proposal.accepted):
                    self._wish(record, proposal)
        if self.workload in record.decision.plan.released:
            self.events.append(_Event(record.now_s, "its promise slipped too far and was released"))
        for effect in record.instructions:
            if effect.workload == self.workload:
                self.events.append(_Event(record.now_s, self._effect(effect)))
                self._told[effect.id] = effect
        for outcome in record.outcomes:
            if outcome.instruction_id in self._told and outcome.kind in {
                OutcomeKind.FAILED,
                OutcomeKind.CONFLICT,
                OutcomeKind.DECLINED,
            }:
                effect = self._told[outcome.instruction_id]
                again = ", it is tried again" if outcome.retryable else ""
                self.events.append(
                    _Event(outcome.at_s, f"that {outcome.kind} ({effect.kind}): {outcome.reason}{again}")
                )
        if concerns or len(self.events) > before:
            self.recent.append(record)

    def _wish(self, record: DecisionRecord, proposal: Proposal) -> None:
        """A proposal for it that is no instruction yet: refused, a promise, or a start that waits for others."""
        if proposal.accepted and proposal.kind not in {"reserve", "land"}:
            return
        codes = tuple(verdict.code for verdict in proposal.verdicts if not verdict.allowed)
        key = (proposal.action, proposal.kind, codes)
        latest = self.events[-1] if self.events else None
        if latest is not None and codes and latest.key == key:
            latest.count, latest.until_s = latest.count + 1, record.now_s
            return
        answer = answer_words(answer_of(proposal, record.decision.halted))
        words = f"{proposal_words(proposal)}: {proposal.id} ({proposal.action}, {answer})"
        self.events.append(_Event(record.now_s, words, key))

    def _effect(self, effect: Instruction) -> str:
        """What it was told, by which proposal and for whom."""
        again = "again: " if effect.id in self._told else ""
        proposal = self._proposals.get(effect.proposal_id)
        action = f"{proposal.action}, accepted" if proposal is not None else effect.reason or "accepted"
        by = f"{effect.proposal_id} ({action})"
        own = proposal is not None and proposal.workload == self.workload
        if effect.kind == "admit":
            place = f"{where(effect.slots)} ({by_node(effect.slots, 4)})"
            if proposal is None or own:
                return f"{again}start on {place}{_after(proposal)}: {by}"
            return f"{again}start again on {place}, moved for {proposal.workload}: {by}"
        victim = (
            next((each for each in proposal.victims if each.workload == self.workload), None)
            if proposal
            else None
        )
        if victim is not None and proposal is not None:
            for_whom = "" if own else f", for {proposal.workload}"
            return f"{again}{how_words(victim)}{for_whom}: {by}"
        if effect.kind == "resize":
            return f"{again}go on with {where(effect.slots)} ({by_node(effect.slots, 4)}): {by}"
        return f"{again}stopped ({effect.reason or 'told to leave'}): {by}"

    def lines(self, until_s: float | None) -> list[str]:
        """All events; those after `until_s` under a heading of their own."""
        if not self.events:
            return ["nothing was proposed for it or done to it so far as this journal goes"]
        now = [each for each in self.events if until_s is None or each.at_s <= until_s]
        later = self.events[len(now) :]
        return [*(["what happened to it:"] if now else []), *_event_lines(now),
                *(["later:"] if later else []), *_event_lines(later)]  # fmt: skip


def _after(proposal: Proposal | None) -> str:
    waited = (
        [each.value for each in proposal.evidence if each.name == "waited"] if proposal is not None else []
    )
    return f" after {format_duration(float(waited[0]))}" if waited else ""


def _event_lines(events: list[_Event]) -> Iterator[str]:
    """One line an event; of very many the middle is left out."""
    left_out = len(events) - SHOWN_EVENTS
    for place, event in enumerate(events):
        if left_out > 0 and place == SHOWN_EVENTS // 2:
            yield f"  ... {left_out} more ..."
        if left_out > 0 and SHOWN_EVENTS // 2 <= place < SHOWN_EVENTS // 2 + left_out:
            continue
        often = f" ({event.count} times until {format_duration(event.until_s)})" if event.count > 1 else ""
        yield f"  {format_duration(event.at_s)}: {event.words}{often}"
