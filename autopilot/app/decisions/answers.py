"""Answers of `autopilot explain`, read from a journal."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autopilot.app.decisions.decision_rows import case_document, clock_of, known, row_of, tick_document
from autopilot.app.decisions.life import Life, life_of
from autopilot.app.options import past_end
from autopilot.app.when import When
from autopilot.core.decision.reconciler import reconcile
from autopilot.core.fragmentation.measure import fragmentation_of
from autopilot.core.model.changes import MarkChange, PipelineChange, ReserveChange
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.operations import AdmitOperation, NotifyOperation, ProvisionOperation, ResizeOperation
from autopilot.core.model.records import Instruction, Loss, OutcomeKind, Proposal
from autopilot.core.model.units import EPOCH_FROM_S, counted, format_clock, format_duration
from autopilot.explain.fragmentation import fragmentation_document, fragmentation_lines
from autopilot.explain.notes import gap_lines
from autopilot.explain.proposals import (
    after_words,
    answer_of,
    answer_words,
    by_node,
    explain_decision,
    explain_proposal,
    how_words,
    loss_words,
    proposal_words,
    where,
)
from autopilot.explain.story import Watch, tell
from autopilot.explain.use import workload_use
from autopilot.journal import DecisionRecord, JournalReader, TickRecord
from autopilot.replay.again import first_difference, remembered

EMPTY = "the journal holds no decisions yet"

RECENT = 8
"""How many of the last decisions on a workload are searched for the last one at which it was in the cluster."""

SETTLED_S = 7200.0
"""How long after a decision the actual losses of its victims are searched for: a grace period is at most an hour."""

SHOWN_EVENTS = 60
"""Lines of a workload's history; a longer one shows its first and last."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer as text, and as plain values for JSON."""

    lines: list[str]
    document: dict[str, Any]


def explain_from(path: Path, decision: str | None, workload: str | None, at_s: float | None) -> Explanation:
    """The answer for a proposal id, a tick number, a workload (at `at_s`), or else the last tick (up to `at_s`).

    Raises `InputError` for an id, tick or workload that the journal does not contain.
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


def _tick(reader: JournalReader, tick: int) -> Explanation:
    number = reader.find_tick(tick)
    if number is None:
        first, last = reader.tick_bounds() or (0, 0)
        raise InputError(f"{reader.path}: there is no tick {tick}; it holds {first} to {last}")
    record = reader.at(number)
    decision, modes = record.decided.decision, record.decided.policy.modes
    when, _ = clock_of(reader)
    found = fragmentation_of(record.observation)
    lines = _dated(explain_decision(decision), when, decision.now_s) + [
        f"  {each}" for each in [*fragmentation_lines(found, modes), *gap_lines(record.observation.gaps)]
    ]
    gaps = [asdict(gap) for gap in record.observation.gaps]
    more = {"fragmentation": fragmentation_document(found, modes), "gaps": gaps}
    return Explanation(lines, tick_document(decision, when) | more)


def _dated(lines: list[str], when: When, at_s: float) -> list[str]:
    """Appends date and time to the first line, where the start of the run is known and the line does not have them."""
    stamp = when.stamp(at_s) if at_s < EPOCH_FROM_S else None
    return lines if stamp is None else [lines[0], f"  at {stamp}", *lines[1:]]


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


def _proposal(reader: JournalReader, proposal_id: str) -> Explanation:
    """The details of one proposal; the id of a workload is accepted too."""
    numbers = reader.find_proposal(proposal_id)
    if not numbers:
        if reader.find_workload(proposal_id):
            return _workload(reader, proposal_id, None)
        raise InputError(
            f"{reader.path}: no proposal or workload {proposal_id!r} in this journal; give an id as shown "
            "by the page or `autopilot explain TICK`, a tick number, or --workload ID"
        )
    record = reader.at(numbers[0]).decided
    found = [each for each in record.decision.plan.proposals if each.id == proposal_id]
    lines = explain_proposal(found[0], record.decision)
    effects = {each.id: each for each in record.instructions if each.proposal_id == proposal_id}
    for each in record.outcomes:
        if each.instruction_id in effects:
            effect = effects[each.instruction_id]
            lines.append(
                f"  outcome {each.kind} ({effect.kind} {effect.subject.name})"
                + (f": {each.reason}" if each.reason else "")
            )
    losses = _losses(reader, numbers[0], found[0])
    lines += [f"  {loss.workload} {loss_words(loss)}" for loss in losses]
    if len(numbers) > 1:
        lines.append(f"  this journal contains the same proposal {len(numbers)} times")
    when, _ = clock_of(reader)
    lines = _dated(lines, when, record.now_s)
    outcomes = [
        {
            "kind": each.kind.value,
            "effect": effects[each.instruction_id].kind,
            "workload": effects[each.instruction_id].subject.name,
            "at_s": each.at_s,
            "reason": each.reason,
        }
        for each in record.outcomes
        if each.instruction_id in effects
    ]
    case = case_document(row_of(found[0], record.decision), when)
    really = [{"workload": loss.workload, "lost_gpu_s": known(loss.lost_gpu_s)} for loss in losses]
    return Explanation(lines, {"decision": case | {"outcomes": outcomes, "really_lost": really}})


def _losses(reader: JournalReader, number: int, proposal: Proposal) -> list[Loss]:
    """The actual losses of a proposal's victims, where later decisions show them soon enough."""
    found: list[Loss] = []
    begun_s: float | None = None
    for record in reader.decisions(number, refusals=False):
        begun_s = record.now_s if begun_s is None else begun_s
        found += [loss for loss in record.decision.losses if loss.proposal_id == proposal.id]
        if len(found) >= len(proposal.victims) or record.now_s - begun_s > SETTLED_S:
            break
    return found


# --- one workload -----------------------------------------------------------------------------------


def _workload(reader: JournalReader, workload: str, at_s: float | None) -> Explanation:
    """The state of a workload at `at_s` (None: at the end), and its history.

    A workload that left the cluster has no state at the end of the run: its whole lifetime is summarized instead.
    """
    past = _Past(workload)
    shown: DecisionRecord | None = None
    for record in reader.decisions(refusals=False):
        past.take_in(record)
        if shown is None or at_s is None or record.now_s <= at_s:
            shown = record
    if shown is None:
        raise InputError(f"{reader.path}: {EMPTY}")
    seen = _submitted_s(reader, workload, shown.number)
    if seen is None and not past.recent:
        raise InputError(f"{reader.path}: no workload {workload!r} at {format_clock(shown.now_s)}; try --at")
    submit_s = seen
    for record in reversed(past.recent):
        submit_s = _submitted_s(reader, workload, record.number) if submit_s is None else submit_s
    life = life_of(reader, workload, 0.0 if submit_s is None else submit_s)
    past.add_life(life)
    use = None
    if seen is None and at_s is None and life.ended:
        lines = [_whole_life(life, past)]
    else:
        lines = [f"at {format_clock(shown.now_s)} (tick {shown.tick}):"]
        lines += _state_at(reader, workload, shown.number)
        use_lines, use = workload_use(workload, reader.at(shown.number).observation)
        lines += [f"  {line}" for line in use_lines]
    when, _ = clock_of(reader)
    lines += past.lines(shown.now_s if at_s is not None else None, when)
    events = [
        {"at_s": each.at_s, "at": when.stamp(each.at_s), "words": each.words, "times": each.count}
        for each in past.events
    ]
    return Explanation(lines, {"workload": workload, "use": use, "life": life.document(), "events": events})


def _whole_life(life: Life, past: _Past) -> str:
    """One line for a workload that has left the cluster."""
    stops = ", ".join(f"{_STOPS[how]} {_times(count)}" for how, count in past.stops.items())
    return (
        f"{life.workload}: {life.end_words()} at {format_clock(life.end_s)}; submitted at "
        f"{format_clock(life.submit_s)}, waited {format_duration(life.waited_s())} in total, ran "
        f"{format_duration(life.ran_s())} on {counted(life.gpus, 'GPU')}" + (f", {stops}" if stops else "")
    )


_STOPS = {"evict": "evicted", "move": "moved", "shrink": "shrunk"}


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _submitted_s(reader: JournalReader, workload: str, number: int) -> float | None:
    """The submit time of a workload at the tick of this position; None where it is not in the cluster."""
    work = reader.at(number).observation.snapshot.workloads
    found = np.flatnonzero(work.id == workload)
    return float(work.submit_s[found[0]]) if len(found) else None


def _state_at(reader: JournalReader, workload: str, number: int) -> list[str]:
    """The state at one tick: the tick is decided again, from the keyframe before it, with an observer.

    Where the result differs from the record (another version wrote it), the reasons in the record are shown.
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
            note = (
                f"(this version decides tick {difference.tick} differently at {difference.field}; the "
                "reasons shown are those of the record)"
            )
            return [*tell(workload, at.observation, at.decided.decision), f"  {note}"]
    if tick is None:
        raise InputError(f"{reader.path}: {EMPTY}")
    return tell(workload, tick.observation, tick.decided.decision, watch)


@dataclass(slots=True)
class _Event:
    """One event in the history of a workload; consecutive equal refusals are one event."""

    at_s: float
    words: str
    key: object = None
    count: int = 1
    until_s: float = 0.0


@dataclass(slots=True)
class _Past:
    """Collects the history of one workload: proposals, instructions and failures."""

    workload: str
    events: list[_Event] = field(default_factory=list)
    recent: deque[DecisionRecord] = field(default_factory=lambda: deque(maxlen=RECENT))  # decisions that concern it
    stops: Counter[str] = field(default_factory=Counter)  # how often it was displaced, by kind
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
        self.events += [
            _Event(record.now_s, f"{loss_words(loss)}: {loss.proposal_id}")
            for loss in record.decision.losses
            if loss.workload == self.workload
        ]
        if self.workload in record.decision.plan.released:
            self.events.append(_Event(record.now_s, "its reservation slipped too far and was released"))
        for effect in record.instructions:
            if effect.subject.name == self.workload:
                self.events.append(_Event(record.now_s, self._effect(effect)))
                self._instructed[effect.id] = effect
        for outcome in record.outcomes:
            if outcome.instruction_id in self._instructed and outcome.kind in {
                OutcomeKind.FAILED,
                OutcomeKind.CONFLICT,
                OutcomeKind.DECLINED,
            }:
                effect = self._instructed[outcome.instruction_id]
                again = ", will be retried" if outcome.retryable else ""
                self.events.append(
                    _Event(outcome.at_s, f"that {outcome.kind} ({effect.kind}): {outcome.reason}{again}")
                )
        if concerns or len(self.events) > before:
            self.recent.append(record)

    def _open_proposal(self, record: DecisionRecord, proposal: Proposal) -> None:
        """A proposal for it without an instruction yet: refused, a mark, a reservation, or a pipelined start."""
        if proposal.accepted and not isinstance(proposal.change, MarkChange | ReserveChange | PipelineChange):
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
        """The instruction to it, the proposal behind it and its beneficiary."""
        again = "again: " if effect.id in self._instructed else ""
        proposal = self._proposals.get(effect.proposal_id)
        action = f"{proposal.action}, accepted" if proposal is not None else effect.operation.takes or "accepted"
        by = f"{effect.proposal_id} ({action})"
        own = proposal is not None and proposal.subject.name == self.workload
        slots = effect.operation.slots
        if isinstance(effect.operation, AdmitOperation):
            place = f"{where(slots)} ({by_node(slots, 4)})"
            if proposal is None or own:
                return f"{again}start on {place}{after_words(proposal) if proposal is not None else ''}: {by}"
            return f"{again}start again on {place}, moved for {proposal.subject.name}: {by}"
        victim = next((each for each in proposal.victims if each.workload == self.workload), None) if proposal else None
        if victim is not None and proposal is not None:
            self.stops[victim.how] += not again
            beneficiary = "" if own else f", for {proposal.subject.name}"
            return f"{again}{how_words(victim)}{beneficiary}: {by}"
        if isinstance(effect.operation, NotifyOperation):
            idle, grace = format_duration(effect.operation.idle_s), format_duration(effect.operation.grace_s)
            return f"{again}notify its owner: nothing done for {idle}, grace {grace}: {by}"
        if isinstance(effect.operation, ProvisionOperation):
            nodes = counted(effect.operation.nodes, "node")
            return f"{again}ask the autoscaler for {nodes} of pool {effect.operation.pool}: {by}"
        if isinstance(effect.operation, ResizeOperation):
            return f"{again}go on with {where(slots)} ({by_node(slots, 4)}): {by}"
        return f"{again}stopped ({effect.operation.takes or 'evicted'}): {by}"

    def add_life(self, life: Life) -> None:
        """Add what the ticks show between decisions; without any decision on the workload there is no history yet."""
        if not self.events and not life.ended:
            return
        lived = [_Event(at_s, words) for at_s, words in life.events()]
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


def _event_lines(events: list[_Event], when: When) -> Iterator[str]:
    """One line per event; a long history omits its middle."""
    left_out = len(events) - SHOWN_EVENTS
    for place, event in enumerate(events):
        if left_out > 0 and place == SHOWN_EVENTS // 2:
            yield f"  ... {left_out} more ..."
        if left_out > 0 and SHOWN_EVENTS // 2 <= place < SHOWN_EVENTS // 2 + left_out:
            continue
        often = f" ({event.count} times until {when.words(event.until_s)})" if event.count > 1 else ""
        yield f"  {when.words(event.at_s)}: {event.words}{often}"
