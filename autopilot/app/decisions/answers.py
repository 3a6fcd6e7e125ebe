"""Answers of `autopilot explain`, read from a journal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autopilot.app.decisions.decision_rows import case_document, clock_of, known, tick_document
from autopilot.app.decisions.life import Life, life_of
from autopilot.app.decisions.past import Past
from autopilot.app.options import past_end
from autopilot.app.when import When
from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.decision.reconciler import reconcile
from autopilot.core.intake.commands import is_open, open_after
from autopilot.core.intake.signals import sees_the_cluster
from autopilot.core.model.errors import InputError, nearest
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.people import OpenProposal
from autopilot.core.model.records import Loss, Proposal
from autopilot.core.model.units import EPOCH_FROM_S, format_clock, format_duration
from autopilot.core.placement.fragmentation.measure import fragmentation_of
from autopilot.explain.fragmentation import fragmentation_document, fragmentation_lines
from autopilot.explain.notes import gap_lines
from autopilot.explain.proposals import (
    explain_decision,
    loss_words,
)
from autopilot.explain.story import Watch, tell, unlisted
from autopilot.explain.use import workload_use
from autopilot.explain.view import explain_proposal, view_of
from autopilot.records.journal import DecisionRecord, JournalReader, TickRecord
from autopilot.records.replay.again import first_difference, remembered

MOST_NAMED = 20
"""Workloads listed by a message."""
EMPTY = "the journal holds no decisions yet"

SETTLED_S = 7200.0
"""Time of the search for actual losses after a decision (s): a grace period is at most an hour."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer as text, and as plain values for JSON."""

    lines: list[str]
    document: dict[str, Any]


def explain_from(path: Path, decision: str | None, workload: str | None, at_s: float | None) -> Explanation:
    """The answer for a proposal id, a tick number, a workload (at `at_s`), or else the last tick (up to `at_s`).

    Raises `InputError` for an id, tick or workload absent from the journal.
    """
    with JournalReader(path) as reader:
        bounds = reader.tick_bounds()
        if bounds is None:
            raise InputError(f"{path}: {EMPTY}")
        if at_s is not None:
            _check_moment(reader, bounds[1], at_s)
        if workload is not None:
            return _workload(reader, full_name(reader, workload), at_s)
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
    document = tick_document(decision, when) | {"gaps": [asdict(gap) for gap in record.observation.gaps]}
    if sees_the_cluster(record.observation):
        found = fragmentation_of(record.observation)
        document["fragmentation"], shape = fragmentation_document(found, modes), fragmentation_lines(found, modes)
    else:
        document |= dict.fromkeys(("waiting", "reservations", "fragmentation"))
        shape = ["nothing of the cluster was known at this tick"]
    lines = _dated(explain_decision(decision), when, decision.now_s)
    return Explanation([*lines, *(f"  {each}" for each in [*shape, *gap_lines(record.observation.gaps)])], document)


def _dated(lines: list[str], when: When, at_s: float) -> list[str]:
    """Appends date and time to the first line, if the start of the run is known and the line lacks them."""
    stamp = when.stamp(at_s) if at_s < EPOCH_FROM_S else None
    return lines if stamp is None else [lines[0], f"  at {stamp}", *lines[1:]]


def _check_moment(reader: JournalReader, last_tick: int, at_s: float) -> None:
    for last in reader.decisions(reader.find_tick(last_tick)):
        if at_s > last.now_s:
            raise InputError(past_end(at_s, last.now_s))


def _last_until(reader: JournalReader, at_s: float) -> DecisionRecord:
    """The last decision up to `at_s`, the first one if all are later."""
    chosen = None
    for record in reader.decisions():
        if record.now_s > at_s and chosen is not None:
            break
        chosen = record
    if chosen is None:
        raise InputError(f"{reader.path}: {EMPTY}")
    return chosen


def _latest_of(reader: JournalReader, recommendation: str) -> str | None:
    """The id of the latest proposal of a recommendation (`Proposal.recommendation`), if it is one."""
    about = recommendation.rpartition("-")[0]
    for prefix in (f"{action.name.replace('_', '-')}-" for action in ACTIONS):
        made = reader.find_workload(about.removeprefix(prefix)) if about.startswith(prefix) else ()
        for number, proposal_id in reversed(made):
            proposals = reader.at(number).decided.decision.plan.proposals
            if any((each.id, each.recommendation) == (proposal_id, recommendation) for each in proposals):
                return proposal_id
    return None


def _proposal(reader: JournalReader, proposal_id: str) -> Explanation:
    """The details of one proposal, or of the latest one of a recommendation; the id of a workload is accepted too."""
    proposal_id = _latest_of(reader, proposal_id) or proposal_id
    numbers = reader.find_proposal(proposal_id)
    if not numbers:
        named = full_name(reader, proposal_id)
        if reader.find_workload(named):
            return _workload(reader, named, None)
        raise InputError(
            f"{reader.path}: no proposal or workload {proposal_id!r} in this journal; give an id as shown "
            "by the page or `autopilot explain TICK`, a tick number, or --workload ID"
        )
    record = reader.at(_shown_at(reader, proposal_id) or numbers[0]).decided
    found = [each for each in record.decision.plan.proposals if each.id == proposal_id]
    view = view_of(found[0], record.decision, _opened(reader, record.number))
    lines = explain_proposal(view)
    effects = {each.id: each for each in record.instructions if each.proposal_id == proposal_id}
    for each in record.outcomes:
        if each.instruction_id in effects:
            effect = effects[each.instruction_id]
            lines.append(
                f"  outcome {each.kind} ({effect.kind} {effect.subject.name})"
                + (f": {each.reason}" if each.reason else "")
            )
    losses = _losses(reader, record.number, found[0])
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
    case = case_document(view, when)
    really = [{"workload": loss.workload, "lost_gpu_s": known(loss.lost_gpu_s)} for loss in losses]
    return Explanation(lines, {"decision": case | {"outcomes": outcomes, "really_lost": really}})


def _shown_at(reader: JournalReader, proposal_id: str) -> int | None:
    """The position of the last tick, if it recommends this; a recommendation is explained as it is shown now."""
    bounds = reader.tick_bounds()
    last = reader.find_tick(bounds[1]) if bounds is not None else None
    for record in reader.decisions(last, refusals=False):
        if any(each.id == proposal_id and is_open(each) for each in record.decision.plan.proposals):
            return last
    return None


def _opened(reader: JournalReader, number: int) -> Mapping[str, OpenProposal]:
    """The recommendations in memory after one decision: of the keyframe before it, and of the ticks since."""
    opened: Mapping[str, OpenProposal] = {}
    for tick in reader.up_to(number):
        if tick.decided.memory is not None:
            opened = tick.decided.memory.people.open_proposals
        if sees_the_cluster(tick.observation):
            opened = open_after(opened, tick.decided.decision.plan.proposals, tick.decided.now_s)
    return opened


def _losses(reader: JournalReader, number: int, proposal: Proposal) -> list[Loss]:
    """The actual losses of a proposal's victims, if later decisions show them soon enough."""
    found: list[Loss] = []
    begun_s: float | None = None
    for record in reader.decisions(number, refusals=False):
        begun_s = record.now_s if begun_s is None else begun_s
        found += [loss for loss in record.decision.losses if loss.proposal_id == proposal.id]
        if len(found) >= len(proposal.victims) or record.now_s - begun_s > SETTLED_S:
            break
    return found


def known_names(reader: JournalReader) -> set[str]:
    """The workloads at the last tick, and the subjects of proposals."""
    bounds = reader.tick_bounds()
    number = reader.find_tick(bounds[1]) if bounds is not None else None
    here = reader.at(number).observation.snapshot.workloads.id.tolist() if number is not None else []
    return {*here, *reader.workloads()}


def full_name(reader: JournalReader, given: str) -> str:
    """The meant workload among those of the journal."""
    return meant(known_names(reader), given)


def meant(names: Collection[str], given: str) -> str:
    """The meant workload: a name alone stands for NAMESPACE/NAME. Raises `InputError` if several have it."""
    found = sorted(name for name in names if name.endswith(f"/{given}"))
    if given in names or not found:
        return given
    if len(found) > 1:
        raise InputError(f"{given!r} is the name of several workloads; write one of {', '.join(found[:MOST_NAMED])}")
    return found[0]


# --- one workload -----------------------------------------------------------------------------------


def _workload(reader: JournalReader, workload: str, at_s: float | None) -> Explanation:
    """The state of a workload at `at_s` (None: at the end), and its history.

    A workload gone from the cluster has no state at the end of the run: its whole lifetime is summarized instead.
    """
    past = Past(workload)
    shown: DecisionRecord | None = None
    for record in reader.decisions(refusals=False):
        past.take_in(record)
        if shown is None or at_s is None or record.now_s <= at_s:
            shown = record
    if shown is None:
        raise InputError(f"{reader.path}: {EMPTY}")
    seen = _submitted_s(reader, workload, shown.number)
    if seen is None and not past.recent and not _was_there(reader, workload, shown):
        near = nearest(workload, known_names(reader))
        raise InputError(
            f"{reader.path}: no workload {workload!r} at {format_clock(shown.now_s)}; {near or 'try --at'}"
        )
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


def _was_there(reader: JournalReader, workload: str, shown: DecisionRecord) -> bool:
    """True if an earlier tick shows a workload and this one leaves its absence in doubt."""
    blind = unlisted(reader.at(shown.number).observation, shown.decision)
    return bool(blind) and bool(life_of(reader, workload, 0.0).stretches)


def _whole_life(life: Life, past: Past) -> str:
    """One line for a workload gone from the cluster."""
    stops = ", ".join(f"{_STOPS[how]} {_times(count)}" for how, count in past.stops.items())
    return (
        f"{life.workload}: {life.end_words()} at {format_clock(life.end_s)}; submitted at "
        f"{format_clock(life.submit_s)}, waited {format_duration(life.waited_s())} in total, ran "
        f"{format_duration(life.ran_s())} on {life.width}" + (f", {stops}" if stops else "")
    )


_STOPS = {"evict": "evicted", "move": "moved", "shrink": "shrunk"}


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _submitted_s(reader: JournalReader, workload: str, number: int) -> float | None:
    """The submit time of a workload at the tick of this position; None if it is not in the cluster."""
    work = reader.at(number).observation.snapshot.workloads
    found = np.flatnonzero(work.id == workload)
    return float(work.submit_s[found[0]]) if len(found) else None


def _state_at(reader: JournalReader, workload: str, number: int) -> list[str]:
    """The state at one tick: the tick is decided again, from the keyframe before it, with an observer.

    If the result differs from the record (another version wrote it), the reasons in the record are shown.
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
            return [*tell(workload, at.observation, at.decided.decision, memory=memory), f"  {note}"]
    if tick is None:
        raise InputError(f"{reader.path}: {EMPTY}")
    return tell(workload, tick.observation, tick.decided.decision, watch, memory)
