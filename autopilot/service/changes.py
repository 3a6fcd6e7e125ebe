"""Changes between a proposal as seen by a person and the present state, in words."""

from __future__ import annotations

from autopilot.core.model.records import Proposal
from autopilot.core.model.snapshot import State
from autopilot.explain.proposals import LOSES, by_node, code_words, where
from autopilot.explain.view import figure_words, figures_of
from autopilot.service.published import Published


def what_changed(before: Proposal, latest: Published) -> list[str]:
    """The differences, at least one."""
    now = _same_wish(before, latest)
    if now is None:
        return [_why_gone(before, latest)]
    found = [f"it is {now.recommendation} now"] if now.recommendation != before.recommendation else []
    found += _other_place(now, before)
    lost, new = _victims(before) - _victims(now), _victims(now) - _victims(before)
    found += [f"{name} is no longer a victim" for name in sorted(lost)]
    found += [f"{name} is a victim now" for name in sorted(new)]
    kept, taken = _losers(before) - _losers(now), _losers(now) - _losers(before)
    found += [f"{name} keeps its {what}" for name, what in sorted(kept)]
    found += [f"{name} loses its {what} now" for name, what in sorted(taken)]
    shown, values = (figure_words(figures_of([each])) for each in (before, now))
    found += [
        f"its {what} is {values[what]} instead of {shown[what]}"
        for what in ("gain", "cost")
        if values[what] != shown[what]
    ]
    if now.subject.revision != before.subject.revision:
        found.append(f"{now.subject.name} was restarted or changed meanwhile")
    return found or ["its state changed: the room that it uses, or the request"]


def _other_place(now: Proposal, before: Proposal) -> list[str]:
    """The first difference of amount and nodes. A start alone is bound to its amount (core/decision/bound.py)."""
    for words in (where,) if now.change.starts_now and before.change.starts_now else (where, by_node):
        if words(now.slots) != words(before.slots):
            taken, shown = (words(each.slots) if each.slots else "" for each in (now, before))
            return [f"it takes {taken or 'no GPUs'} instead of {shown or 'none'}"]
    return []


def _same_wish(before: Proposal, latest: Published) -> Proposal | None:
    """The present proposal of the same recommendation, else one with the same result for the same object."""
    proposals = latest.decision.plan.proposals
    same = [
        each
        for each in proposals
        if each.subject.name == before.subject.name and each.change.wish == before.change.wish
    ]
    return next((each for each in same if each.recommendation == before.recommendation), same[0] if same else None)


def _victims(proposal: Proposal) -> set[str]:
    return {victim.workload for victim in proposal.victims}


def _losers(proposal: Proposal) -> set[tuple[str, str]]:
    return {(each.workload, LOSES[each.what]) for each in proposal.change.side_effects}


def _why_gone(before: Proposal, latest: Published) -> str:
    """Reason for the end of such a proposal for an object."""
    name, work = before.subject.name, latest.observation.snapshot.workloads
    if any(entry.instruction.proposal_id == before.id for entry in latest.memory.effects.in_flight.values()):
        return f"it is being carried out: the effect on {name} is under way"
    rows = [row for row, each in enumerate(work.id.tolist()) if each == name]
    if not rows:
        services = latest.observation.snapshot.services.id.tolist()
        return "it is not proposed any more" if name in services else f"{name} is gone"
    row, refusals = rows[0], latest.decision.plan.refusals
    state = State(int(work.state[row]))
    if state != State.PENDING:
        return f"{name} is {state.name.lower()} now"
    for place in (refusals.workload == row).nonzero()[0].tolist():
        code = refusals.codes[int(refusals.code[place])]
        return f"{name} waits: {code_words(code, float(refusals.value[place]), float(refusals.threshold[place]))}"
    return "it is not proposed any more"
