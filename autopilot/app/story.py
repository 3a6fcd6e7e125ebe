"""Answers of `autopilot explain`, read from a journal."""

from __future__ import annotations

from pathlib import Path

from autopilot.core.errors import InputError
from autopilot.core.explain import explain_decision, explain_proposal, explain_wait
from autopilot.core.units import format_duration
from autopilot.journal import DecisionRecord, JournalReader


def explain_from(path: Path, decision: str | None, workload: str | None, at_s: float | None) -> list[str]:
    """Lines for a proposal id, a tick number, a workload (at `at_s`), or else the last tick (up to `at_s`).

    Raises `InputError` when the journal does not know what is asked for.
    """
    with JournalReader(path) as reader:
        bounds = reader.tick_bounds()
        if bounds is None:
            raise InputError(f"{path}: the journal holds no decision yet")
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
    ids = {each.id for each in record.instructions if each.proposal_id == proposal_id}
    lines += [
        f"  outcome {each.kind}" + (f": {each.reason}" if each.reason else "")
        for each in record.outcomes
        if each.instruction_id in ids
    ]
    if len(numbers) > 1:
        lines.append(f"  the same proposal stands in {len(numbers)} places of this journal")
    return lines


def _workload(reader: JournalReader, workload: str, at_s: float | None) -> list[str]:
    """All that was proposed for a workload, and why it waits at `at_s`.

    None: at the end; where it has left the cluster by then, when something was last proposed for it.
    """
    lines, proposed = [], None
    for number, proposal_id in reader.find_workload(workload):
        record = reader.at(number).decided
        for proposal in record.decision.plan.proposals:
            if proposal.id == proposal_id:
                state = "taken" if proposal.accepted else "refused"
                lines.append(f"{format_duration(record.now_s)}: {proposal.id} ({proposal.action}, {state})")
                proposed = number
    tick = reader.at(_last_until(reader, at_s).number)
    gone = workload not in tick.observation.snapshot.workloads.id
    if gone and proposed is None:
        raise InputError(
            f"{reader.path}: no workload {workload!r} is known here at {format_duration(tick.decided.now_s)}; try --at"
        )
    over = ""
    if gone and at_s is None and proposed is not None:
        over = f"{workload}: over at the end of the record, {format_duration(tick.decided.now_s)}; last proposed for:"
        tick = reader.at(proposed)
    return [
        *([over] if over else []),
        f"at {format_duration(tick.decided.now_s)} (tick {tick.decided.tick}):",
        *explain_wait(workload, tick.observation, tick.decided.decision),
        *(["proposals for it:"] if lines else []),
        *lines,
    ]


def _last_until(reader: JournalReader, at_s: float | None) -> DecisionRecord:
    """The last decision up to `at_s` (None: of all), the first one where all are later."""
    chosen = None
    for record in reader.decisions():
        if at_s is not None and record.now_s > at_s and chosen is not None:
            break
        chosen = record
    if chosen is None:
        raise InputError(f"{reader.path}: the journal holds no decision yet")
    return chosen
