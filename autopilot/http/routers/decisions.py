"""Recent decisions, and one decision with its evidence and all verdicts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query

from autopilot.app.decisions.decision_rows import case_document, row_document
from autopilot.core.placement.fragmentation.measure import fragmentation_of
from autopilot.explain.fragmentation import fragmentation_lines
from autopilot.explain.notes import gap_lines
from autopilot.explain.proposals import explain_decision
from autopilot.explain.view import explain_proposal
from autopilot.http.answers import DecisionCase, DecisionRows, stated
from autopilot.http.auth import Viewer
from autopilot.http.desk import Asked
from autopilot.http.view_answers import TickStory

router = APIRouter(prefix="/api/v1", tags=["decisions"])


@router.get("/decisions", responses=stated(DecisionRows))
def decisions(
    desk: Asked, _caller: Viewer, limit: Annotated[int, Query(ge=1, le=1000)] = 100, answer: str | None = None
) -> dict[str, Any]:
    """The latest decisions, newest first; one that repeats at the next tick is listed once."""
    desk.latest()
    rows = [row for row in desk.publisher.recent() if answer is None or row.answer.value == answer]
    return {"decisions": [row_document(row, desk.when) for row in rows[:limit]]}


@router.get("/tick", responses=stated(TickStory))
def tick(desk: Asked, _caller: Viewer) -> dict[str, Any]:
    """What the last tick decided, in words."""
    latest = desk.latest()
    found = fragmentation_lines(fragmentation_of(latest.observation), latest.policy.modes)
    lines = [*found, *gap_lines(latest.observation.gaps)]
    told = [*explain_decision(latest.decision), *(f"  {each}" for each in lines)]
    return {"tick": latest.decision.tick, "now_s": latest.observation.now_s, "lines": told}


@router.get("/decisions/{proposal_id:path}", responses=stated(DecisionCase))
def decision(desk: Asked, _caller: Viewer, proposal_id: str) -> dict[str, Any]:
    """One recent decision, or the latest of a recommendation, with evidence, placement, verdicts and explanation."""
    latest = desk.latest()
    now = (latest.view(each) for each in latest.decision.plan.proposals)  # as it is shown, not as it was first
    for view in (*now, *desk.publisher.recent()):
        if proposal_id in {view.proposal.id, view.proposal.recommendation}:
            return case_document(view, desk.when) | {"lines": explain_proposal(view)}
    raise HTTPException(
        404, f"{proposal_id}: not among the recent decisions; `autopilot explain {proposal_id}` reads the journal"
    )
