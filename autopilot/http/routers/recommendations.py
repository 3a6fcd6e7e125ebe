"""Recommendations: proposals that only wait for a person. An approval holds for the state that the person saw."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request
from pydantic import BaseModel, Field

from autopilot.app.decisions.decision_rows import case_document, note_document, row_document, row_of
from autopilot.core.model.records import CommandKind, Proposal
from autopilot.explain.proposals import Answer, answer_of, proposal_words, where
from autopilot.http.answers import Obeyed, RecommendationRows, stated
from autopilot.http.auth import Approver, Viewer, origin_of
from autopilot.http.desk import Asked, Desk
from autopilot.service.deciding import Refusal, approval_refusal, became, open_proposals, recommendation
from autopilot.service.published import Published

router = APIRouter(prefix="/api/v1", tags=["recommendations"])
MOST_ADVICE = 100
ProposalId = Annotated[str, Path(max_length=500, description="id of the recommendation")]


class Seen(BaseModel):
    """The state for which a person decides, as the recommendation showed it."""

    state_digest: str = Field("", max_length=128, description="digest of the state; the id names it too")


@router.get("/recommendations", responses=stated(RecommendationRows))
def recommendations(
    desk: Asked,
    _caller: Viewer,
    details: Annotated[bool, Query(description="with placement, evidence and all verdicts")] = True,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
) -> dict[str, Any]:
    """What the controller would do if a person agreed, with gain, cost and reason; with a limit the best ones."""
    latest = desk.latest()
    found = open_proposals(latest)
    if len(found) > limit:
        found = sorted(found, key=lambda each: (answer_of(each) == Answer.RECOMMENDED, -each.benefit_gpu_s))[:limit]
    rows, document = [row_of(each, latest.decision) for each in found], case_document if details else row_document
    return {
        "tick": latest.decision.tick,
        "now_s": latest.observation.now_s,
        "halted": latest.decision.halted or None,
        "in_total": len(open_proposals(latest)),
        "recommendations": [
            document(row, desk.when)
            | {
                "state_digest": row.proposal.state_digest,
                "approvable": row.answer == Answer.NEEDS_APPROVAL,
                "why": proposal_words(replace(row.proposal, verdicts=())),
                "place": where(row.proposal.slots) if row.proposal.slots else None,
                "mode": getattr(latest.policy.modes, row.proposal.action).value,
            }
            for row in rows
        ],
        "advice": [
            note_document(each.note) | {"at_s": each.at_s, "at": desk.when.stamp(each.at_s)}
            for each in desk.publisher.advice()[:MOST_ADVICE]
        ],
    }


@router.post("/recommendations/{proposal_id:path}/approve", responses=stated(Obeyed))
def approve(
    desk: Asked, caller: Approver, request: Request, proposal_id: ProposalId, seen: Seen | None = None
) -> dict[str, Any]:
    """Approve one recommendation in the state that it shows. 409 says what changed since."""
    proposal = _current(desk, proposal_id, seen)
    refused = approval_refusal(proposal)
    if refused is not None:
        raise HTTPException(409, refused.text)
    command = desk.command(
        CommandKind.APPROVE,
        caller,
        origin_of(request),
        proposal_id,
        proposal.state_digest,
        proposal.benefit_gpu_s,
        proposal.cost_gpu_s,
    )
    after = desk.obeyed(command)
    return {"sequence": command.sequence, **_became(proposal, after)}


@router.post("/recommendations/{proposal_id:path}/reject", responses=stated(Obeyed))
def reject(
    desk: Asked, caller: Approver, request: Request, proposal_id: ProposalId, seen: Seen | None = None
) -> dict[str, Any]:
    """Reject one recommendation in the state that it shows."""
    proposal = _current(desk, proposal_id, seen)
    command = desk.command(CommandKind.REJECT, caller, origin_of(request), proposal_id, proposal.state_digest)
    after = desk.obeyed(command)
    if after is None:
        return {"sequence": command.sequence, "result": "stored", "message": "the next tick obeys it"}
    until_s = after.memory.rejections[proposal_id].until_s if proposal_id in after.memory.rejections else None
    return {
        "sequence": command.sequence,
        "result": "rejected",
        "message": "it is not proposed in this state",
        "until_s": until_s,
    }


def _current(desk: Desk, proposal_id: str, seen: Seen | None) -> Proposal:
    """The recommendation as it is now, if it is what the person saw. Raises 404, or 409 with what changed."""
    found = recommendation(desk.publisher, desk.latest(), proposal_id, seen.state_digest if seen is not None else "")
    if isinstance(found, Refusal):
        raise HTTPException(404 if found.unknown else 409, found.text)
    return found


def _became(proposal: Proposal, after: Published | None) -> dict[str, Any]:
    """What the tick made of an approval."""
    if after is None:
        return {"result": "stored", "message": "the next tick obeys it"}
    found = became(proposal, after)
    if isinstance(found, Refusal):
        raise HTTPException(409, found.text)
    codes = {"codes": [code.value for code in found.codes]} if found.codes is not None else {}
    return {"result": found.result, "message": found.message, **codes}
