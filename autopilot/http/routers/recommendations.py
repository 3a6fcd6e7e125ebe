"""Recommendations: proposals waiting only for a person, approvals, and rejections."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request
from pydantic import BaseModel, Field

from autopilot.app.decisions.decision_rows import case_document, note_document, row_document
from autopilot.core.model.approvals import group_of, most_cost_gpu_s, rejection_of, seen_of
from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Command, CommandKind, NoteCode, Proposal, RejectionScope
from autopilot.core.model.units import format_gpu_s
from autopilot.explain.proposals import Answer, answer_of, proposal_words, where
from autopilot.explain.view import ProposalView, figure_words, figures_of
from autopilot.http.answers import Obeyed, ObeyedRows, stated
from autopilot.http.auth import Approver, Viewer, origin_of
from autopilot.http.desk import Asked, Desk
from autopilot.http.recommendation_answers import RecommendationRows, RejectionRows
from autopilot.service.deciding import (
    Refusal,
    approval_refusal,
    became,
    digest_of,
    open_proposals,
    recommendation,
    rejection_words,
    time_of,
)
from autopilot.service.published import Published

router = APIRouter(prefix="/api/v1", tags=["recommendations"])
MOST_ADVICE = 100
Name = Annotated[str, Path(max_length=500, description="id of the recommendation")]


class Seen(BaseModel):
    """What a person decides about, as the recommendation showed it."""

    digest: str = Field("", max_length=128, description="digest of what was shown; empty: what is shown now")


class Approval(Seen):
    """An approval."""

    exactly: bool = Field(False, description="only the very plan that was shown, instead of all within its cover")


class One(Seen):
    """One of several recommendations."""

    id: str = Field(max_length=500, description="id of the recommendation")


class Group(BaseModel):
    """Recommendations that a person approves at once."""

    recommendations: list[One] = Field(min_length=1, max_length=1000)
    exactly: bool = Field(False, description="only the very plans that were shown")


class Rejection(Seen):
    """A rejection."""

    scope: RejectionScope = Field(
        RejectionScope.WORKLOAD, description="plan: what was shown; workload: this action for it; queue: for its queue"
    )
    for_: str = Field("", alias="for", max_length=40, description="a duration (1h, 1d) or forever; empty: by policy")


@router.get("/recommendations", responses=stated(RecommendationRows))
def recommendations(
    desk: Asked,
    _caller: Viewer,
    details: Annotated[bool, Query(description="with placement, evidence and all verdicts")] = True,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
) -> dict[str, Any]:
    """What the controller would do if a person agreed, with gain, cost and reason; with a limit the best ones."""
    latest = desk.latest()
    found = every = open_proposals(latest)
    if len(found) > limit:
        found = sorted(found, key=lambda each: (answer_of(each) == Answer.RECOMMENDED, -each.benefit_gpu_s))[:limit]
    document = case_document if details else row_document
    views = [latest.view(each) for each in found]
    return {
        "tick": latest.decision.tick,
        "now_s": latest.observation.now_s,
        "halted": latest.decision.halted or None,
        "in_total": len(every) if latest.sees else None,
        "recommendations": [document(view, desk.when) | _shown(view, latest, desk) for view in views]
        if latest.sees
        else None,
        "groups": _groups(found, latest) if latest.sees else None,
        "approvals": [
            {"id": name, "who": each.who, "until_s": each.given_s + latest.policy.approval.valid_s}
            | {"exactly": each.exactly, "carried_out": len(each.sent)}
            for name, each in latest.memory.people.approvals.items()
            if latest.observation.now_s < each.given_s + latest.policy.approval.valid_s
        ],
        "advice": [
            note_document(each.note) | {"at_s": each.at_s, "at": desk.when.stamp(each.at_s)}
            for each in desk.publisher.advice()[:MOST_ADVICE]
        ],
    }


def _groups(found: list[Proposal], latest: Published) -> list[dict[str, Any]]:
    """The common figures of the recommendations of each card."""
    groups: dict[str, list[Proposal]] = {}
    for each in found:
        groups.setdefault(group_of(each), []).append(each)
    rules = latest.policy.approval
    return [
        {
            "group": key,
            "count": len(some),
            "covers": format_gpu_s(sum(most_cost_gpu_s(seen_of(one), rules) for one in some)),
        }
        | figure_words(figures_of(some))
        for key, some in groups.items()
    ]


def _shown(view: ProposalView, latest: Published, desk: Desk) -> dict[str, Any]:
    """The fields of a recommendation beyond its proposal."""
    proposal = view.proposal
    return {
        "id": proposal.recommendation,
        "proposal": proposal.id,
        "group": group_of(proposal),
        "digest": digest_of(proposal),
        "since_s": view.since_s,
        "since": desk.when.stamp(view.since_s),
        "changed_s": view.changed_s,
        "changed": desk.when.stamp(view.changed_s),
        "age_s": latest.observation.now_s - view.since_s,
        "approvable": view.answer == Answer.NEEDS_APPROVAL,
        "most_cost_gpu_s": most_cost_gpu_s(seen_of(proposal), latest.policy.approval),
        "why": proposal_words(replace(proposal, verdicts=())),
        "place": where(proposal.slots) if proposal.slots else None,
        "mode": getattr(latest.policy.modes, proposal.action).value,
    }


@router.post("/recommendations/{name:path}/approve", responses=stated(Obeyed))
def approve(
    desk: Asked, caller: Approver, request: Request, name: Name, seen: Approval | None = None
) -> dict[str, Any]:
    """Approve one recommendation, and whatever stays within what it shows. 409 says what changed since."""
    wanted = seen or Approval(digest="", exactly=False)
    proposal = _current(desk, name, wanted.digest, exactly=wanted.exactly)
    refused = approval_refusal(proposal)
    if refused is not None:
        raise HTTPException(409, refused.text)
    command = desk.command(
        CommandKind.APPROVE, caller, origin_of(request), name, seen=seen_of(proposal), exactly=wanted.exactly
    )
    after = desk.obeyed(command)
    return {"sequence": command.sequence, **_became(proposal, after)}


@router.post("/recommendations/{name:path}/reject", responses=stated(Obeyed))
def reject(
    desk: Asked, caller: Approver, request: Request, name: Name, seen: Rejection | None = None
) -> dict[str, Any]:
    """Reject the plan, the action for this object, or the action for its queue, for a time."""
    wanted = seen or Rejection.model_validate({})
    try:
        for_s = time_of(wanted.for_) if wanted.for_ else None
    except InputError as error:
        raise HTTPException(409, str(error)) from error
    proposal = _current(desk, name, wanted.digest)
    command = desk.command(
        CommandKind.REJECT, caller, origin_of(request), name, seen=seen_of(proposal), scope=wanted.scope, for_s=for_s
    )
    after = desk.obeyed(command)
    if after is None:
        return {"sequence": command.sequence, "result": "stored", "message": "the next tick obeys it"}
    found = rejection_of(after.memory.people.rejections, proposal, after.observation.now_s)
    if found is None:
        raise HTTPException(409, f"{name} was not rejected: it changed meanwhile; look again")
    rejected = {"sequence": command.sequence, "result": "rejected", "rejection": found[0]}
    until_s = found[1].until_s if found[1].until_s < inf else None
    return rejected | {"message": rejection_words(found[1], after.observation.now_s), "until_s": until_s}


@router.post("/recommendations/approve", responses=stated(ObeyedRows))
def approve_all(desk: Asked, caller: Approver, request: Request, group: Group) -> dict[str, Any]:
    """Approve several recommendations at once, each as it was shown. What is refused says why; the others count."""
    given: list[tuple[str, Proposal | str, int]] = []
    last: Command | None = None
    for each in group.recommendations:
        found = recommendation(desk.publisher, desk.latest(), each.id, each.digest, exactly=group.exactly)
        refused = found if isinstance(found, Refusal) else approval_refusal(found)
        if refused is not None or isinstance(found, Refusal):
            given.append((each.id, refused.text if refused is not None else "", -1))
            continue
        last = desk.command(
            CommandKind.APPROVE, caller, origin_of(request), each.id, seen=seen_of(found), exactly=group.exactly
        )
        given.append((each.id, found, last.sequence))
    after = desk.obeyed(last) if last is not None else None
    return {"results": [_result(name, what, sequence, after) for name, what, sequence in given]}


def _result(name: str, what: Proposal | str, sequence: int, after: Published | None) -> dict[str, Any]:
    if isinstance(what, str):
        return {"id": name, "result": "refused", "message": what}
    try:
        return {"id": name, "sequence": sequence, **_became(what, after)}
    except HTTPException as error:
        return {"id": name, "sequence": sequence, "result": "refused", "message": error.detail}


@router.get("/rejections", responses=stated(RejectionRows))
def rejections(desk: Asked, _caller: Viewer) -> dict[str, Any]:
    """What people rejected, and until when."""
    latest = desk.latest()
    now_s = latest.observation.now_s
    return {
        "rejections": [
            {"id": key, "scope": each.scope.value, "action": each.action, "about": each.about, "who": each.who}
            | {"until_s": each.until_s if each.until_s < inf else None, "words": rejection_words(each, now_s)}
            for key, each in latest.memory.people.rejections.items()
            if each.until_s > now_s
        ]
    }


@router.post("/rejections/{name:path}/revoke", responses=stated(Obeyed))
def revoke(desk: Asked, caller: Approver, request: Request, name: Name) -> dict[str, Any]:
    """End a rejection."""
    if name not in desk.latest().memory.people.rejections:
        raise HTTPException(404, f"{name}: no such rejection; `autopilot rejections` lists them")
    command = desk.command(CommandKind.REVOKE, caller, origin_of(request), name)
    after = desk.obeyed(command)
    if after is None:
        return {"sequence": command.sequence, "result": "stored", "message": "the next tick obeys it"}
    if any(note.code == NoteCode.REVOKE_REFUSED and note.subject == name for note in after.decision.notes):
        raise HTTPException(409, f"{name}: the rejection has ended already")
    return {"sequence": command.sequence, "result": "revoked", "message": "it may be proposed again"}


def _current(desk: Desk, name: str, digest: str, *, exactly: bool = False) -> Proposal:
    """The recommendation seen by the person. Raises 404, or 409 with the change since."""
    found = recommendation(desk.publisher, desk.latest(), name, digest, exactly=exactly)
    if isinstance(found, Refusal):
        raise HTTPException(404 if found.unknown else 409, found.text)
    return found


def _became(proposal: Proposal, after: Published | None) -> dict[str, Any]:
    """The tick's outcome of an approval."""
    if after is None:
        return {"result": "stored", "message": "the next tick obeys it"}
    found = became(proposal, after)
    if isinstance(found, Refusal):
        raise HTTPException(409, found.text)
    codes = {"codes": [code.value for code in found.codes]} if found.codes is not None else {}
    return {"result": found.result, "message": found.message, **codes}
