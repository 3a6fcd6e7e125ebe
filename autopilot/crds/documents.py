"""A Recommendation as it should be: its spec from the proposal, its status from the latest tick."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from autopilot.core.model.approvals import rejection_of
from autopilot.core.model.codes import UNCOVERED
from autopilot.core.model.records import Code, Proposal
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
from autopilot.explain.view import ProposalView, figure_words
from autopilot.service.changes import what_changed
from autopilot.service.deciding import digest_of, is_under_way, rejection_words
from autopilot.service.published import FailedEffect, Published

Obj = dict[str, Any]
CONFIDENCE = "confidence"
"""The guard of the forecast behind a proposal."""


@dataclass(frozen=True, slots=True)
class State:
    """The awaited event of a recommendation, or its result."""

    name: str
    message: str = ""
    news: bool = False  # the message is worth a write of its own

    @property
    def open(self) -> bool:
        """True while a person may decide."""
        return self.name in {"NeedsApproval", "Recommended"}


def with_failure(state: State, failed: FailedEffect | None) -> State:
    """The state, with the reason for the failure of the last attempt at an effect of the proposal."""
    if failed is None or state.name == "Rejected":
        return state
    before = f"{state.message}; " if state.message else ""
    return State(state.name, f"{before}last attempt: {failed.words}", news=True)


def state_of(proposal: Proposal, latest: Published) -> State:
    """The state of a proposal of the latest tick."""
    codes, answer, now_s = refusing_codes(proposal), answer_of(proposal), latest.observation.now_s
    held = "; ".join(
        code_words(each.code, each.value, each.threshold) for each in proposal.verdicts if not each.allowed
    )
    if Code.REJECTED in codes:
        found = rejection_of(latest.memory.people.rejections, proposal, now_s)
        return State("Rejected", rejection_words(found[1], now_s) if found is not None else "a person rejected it")
    if answer == Answer.NEEDS_APPROVAL:
        return State("NeedsApproval", held if UNCOVERED & set(codes) else "")
    if answer == Answer.RECOMMENDED:
        return State("Recommended", held)
    if answer == Answer.ACCEPTED:
        return State("UnderWay", "its effects were sent")
    if proposal.recommendation in latest.memory.people.approvals:
        return State("Approved", f"it is held: {held}" if held else "it was approved")
    return State("Ended", f"it cannot be carried out now: {held}" if held else "it is not proposed now")


def state_without(name: str, shown: Proposal | None, latest: Published) -> State:
    """The state of a recommendation absent from the latest tick; `shown`: its last form, if known."""
    approval = latest.memory.people.approvals.get(name)
    if shown is not None and (is_under_way(shown, latest) or (approval is not None and approval.sent)):
        return State("UnderWay", "its effects are under way")
    if approval is not None and shown is not None:
        return State("Approved", f"it is not possible now: {'; '.join(what_changed(shown, latest))}")
    if shown is None:
        return State("Ended", "it is not proposed any more")
    return State("Ended", "; ".join(what_changed(shown, latest)))


def spec_of(proposal: Proposal) -> Obj:
    """The recommended action; equal for equal recommendations."""
    return {
        "id": cut(proposal.recommendation, 600),
        "action": proposal.action,
        "workload": cut(proposal.subject.name, 600),
        "tenant": cut(proposal.tenant),
        "queue": cut(proposal.queue),
    }


def status_of(view: ProposalView, state: State) -> Obj:
    """The present view of a reader. Nothing in it differs while nothing changed."""
    proposal, figures = view.proposal, view.figures
    words = figure_words(figures)
    evidence = [evidence_words(each).partition(": ") for each in proposal.evidence[:MOST_EVIDENCE]]
    found: Obj = {
        "state": state.name,
        "message": cut(state.message, LONG_TEXT),
        "digest": digest_of(proposal),
        "kind": proposal.kind,
        "gpus": figures.gpus,
        "place": cut(where(proposal.slots), LONG_TEXT) if proposal.slots else "",
        "victims": [
            {"workload": cut(each.workload), "queue": cut(each.queue), "how": each.how, "gpus": each.gpus}
            for each in proposal.victims[:MOST_VICTIMS]
        ],
        "sideEffects": [
            {"workload": cut(each.workload), "queue": cut(each.queue), "gpus": each.gpus, "what": each.what}
            for each in proposal.change.side_effects[:MOST_VICTIMS]
        ],
        "why": cut(proposal_words(replace(proposal, verdicts=())), LONG_TEXT),
        "gain": words["gain"],
        "cost": words["cost"],
        "evidence": [{"name": cut(name), "value": cut(value)} for name, _, value in evidence],
        "guards": [
            {"guard": each.guard, "verdict": cut(verdict_words(each), LONG_TEXT)}
            for each in proposal.verdicts[:MOST_EVIDENCE]
        ],
        "confidence": _confidence(proposal),
    }
    if isfinite(view.since_s):
        found |= {"since": stamp(view.since_s), "changed": stamp(view.changed_s)}
    for name, value in (
        ("gainGPUSeconds", figures.gain_gpu_s),
        ("costGPUSeconds", figures.cost_gpu_s),
        ("worstCostGPUSeconds", figures.worst_cost_gpu_s),
    ):
        if isfinite(value):
            found[name] = round(value, 3)
    return found


def _confidence(proposal: Proposal) -> str:
    """The guard's verdict on the forecast behind it."""
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
