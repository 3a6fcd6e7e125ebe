"""A Recommendation as it should be: its spec from the proposal, its status from the latest tick."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from autopilot.app.decisions.decision_rows import gpus_of
from autopilot.core.model.codes import APPROVAL_ENDED
from autopilot.core.model.records import Code, Proposal
from autopilot.core.model.units import format_duration, format_gpu_s
from autopilot.crds.definitions import LONG_TEXT, MOST_EVIDENCE, MOST_VICTIMS, TEXT
from autopilot.explain.proposals import (
    Answer,
    answer_of,
    code_words,
    evidence_words,
    proposal_words,
    refusing_codes,
    verdict_words,
    where,
)
from autopilot.service.changes import what_changed
from autopilot.service.published import FailedEffect, Published

Obj = dict[str, Any]
CONFIDENCE = "confidence"
"""The guard that judges the forecast behind a proposal."""


@dataclass(frozen=True, slots=True)
class State:
    """What a recommendation waits for, or what became of it."""

    name: str
    message: str = ""
    news: bool = False  # the message is worth a write of its own

    @property
    def open(self) -> bool:
        """True while a person may decide."""
        return self.name in {"NeedsApproval", "Recommended"}


def with_failure(state: State, failed: FailedEffect | None) -> State:
    """The state, with why the last attempt at an effect of the proposal did not come about."""
    if failed is None or state.name == "Rejected":
        return state
    before = f"{state.message}; " if state.message else ""
    return State(state.name, f"{before}last attempt: {failed.words}", news=True)


def state_of(proposal: Proposal, latest: Published) -> State:
    """The state of a proposal that the latest tick made."""
    codes, answer = refusing_codes(proposal), answer_of(proposal)
    held = "; ".join(
        code_words(each.code, each.value, each.threshold) for each in proposal.verdicts if not each.allowed
    )
    if Code.REJECTED in codes:
        rejection = latest.memory.rejections.get(proposal.id)
        left = f" for {format_duration(rejection.until_s - latest.observation.now_s)}" if rejection is not None else ""
        return State("Rejected", f"a person rejected it; it is not carried out in this state{left}")
    if answer == Answer.NEEDS_APPROVAL:
        return State("NeedsApproval", held if APPROVAL_ENDED & set(codes) else "")
    if answer == Answer.RECOMMENDED:
        return State("Recommended", held)
    if answer == Answer.ACCEPTED:
        return State("UnderWay", "its effects were sent")
    if proposal.id in latest.memory.approvals:
        return State("Approved", f"it is held: {held}" if held else "it was approved")
    return State("Ended", f"it cannot be carried out now: {held}" if held else "it is not proposed now")


def state_without(proposal_id: str, shown: Proposal | None, latest: Published) -> State:
    """The state of a proposal that the latest tick did not make; `shown` as it was made last, if that is known."""
    sent = {entry.instruction.proposal_id for entry in latest.memory.in_flight.values()}
    sent |= {each.proposal_id for each in latest.memory.pipelined_starts}
    if proposal_id in sent:
        return State("UnderWay", "its effects are under way")
    if shown is None:
        return State("Ended", "it is not proposed any more")
    return State("Ended", "; ".join(what_changed(shown, latest)))


def spec_of(proposal: Proposal) -> Obj:
    """What is recommended; equal for equal ids."""
    victims = [
        {"workload": cut(each.workload), "how": each.how, "gpus": each.gpus} for each in proposal.victims[:MOST_VICTIMS]
    ]
    found: Obj = {
        "id": cut(proposal.id, 600),
        "digest": proposal.state_digest,
        "action": proposal.action,
        "kind": proposal.kind,
        "workload": cut(proposal.subject.name, 600),
        "tenant": cut(proposal.tenant),
        "queue": cut(proposal.queue),
        "gpus": gpus_of(proposal),
    }
    if proposal.slots:
        found["place"] = where(proposal.slots)
    if victims:
        found["victims"] = victims
    return found


def status_of(proposal: Proposal, state: State) -> Obj:
    """What a reader sees of it now. Nothing in it differs while nothing changed."""
    evidence = [evidence_words(each).partition(": ") for each in proposal.evidence[:MOST_EVIDENCE]]
    found: Obj = {
        "state": state.name,
        "message": cut(state.message, LONG_TEXT),
        "why": cut(proposal_words(replace(proposal, verdicts=())), LONG_TEXT),
        "gain": format_gpu_s(proposal.benefit_gpu_s),
        "cost": format_gpu_s(proposal.cost_gpu_s),
        "evidence": [{"name": cut(name), "value": cut(value)} for name, _, value in evidence],
        "guards": [
            {"guard": each.guard, "verdict": cut(verdict_words(each), LONG_TEXT)}
            for each in proposal.verdicts[:MOST_EVIDENCE]
        ],
        "confidence": _confidence(proposal),
    }
    for name, value in (("gainGPUSeconds", proposal.benefit_gpu_s), ("costGPUSeconds", proposal.cost_gpu_s)):
        if isfinite(value):
            found[name] = round(value, 3)
    return found


def _confidence(proposal: Proposal) -> str:
    """What the guard says about the forecast behind it."""
    found = next((each for each in proposal.verdicts if each.guard == CONFIDENCE), None)
    if found is None or (found.allowed and not found.threshold):
        return "it rests on no forecast"
    return cut(verdict_words(found).partition(": ")[2], LONG_TEXT)


def stamp(at_s: float) -> str:
    """A time as the API server writes it."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def cut(text: str, most: int = TEXT) -> str:
    """A text of at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
