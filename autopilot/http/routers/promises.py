"""Promised and realised gains of actions, and the end of a cap."""

from __future__ import annotations

from collections import Counter
from math import isfinite
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Request

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.modes import Modes
from autopilot.core.model.policy import Policy
from autopilot.core.model.promises import PromiseRecord
from autopilot.core.model.records import CommandKind
from autopilot.core.model.units import format_gpu_s
from autopilot.core.planning.restraint import is_capped
from autopilot.core.trust.follow_promises import least_gain_gpu_s, sums_of
from autopilot.http.answers import Obeyed, PromisesMade, stated
from autopilot.http.auth import Admin, Viewer, origin_of
from autopilot.http.desk import Asked

router = APIRouter(prefix="/api/v1", tags=["promises"])
ActionName = Annotated[str, Path(max_length=100, description="name of the action, as under `modes` in the policy")]


@router.get("/promises", responses=stated(PromisesMade))
def promises(desk: Asked, _caller: Viewer) -> dict[str, Any]:
    """By action: the finished cases by which it is judged, what they promised and realised, and its cap."""
    latest = desk.latest()
    memory, policy = latest.memory, latest.policy
    under_way = Counter(each.action for each in memory.trust.promises)
    actions = [each for each in Modes.__dataclass_fields__ if each in memory.trust.kept_promises or under_way[each]]
    return {
        "tick": latest.decision.tick,
        "now_s": latest.observation.now_s,
        "least_cases": policy.promises.least_cases,
        "least_ratio": policy.promises.least_ratio,
        "actions": [{**_row(each, memory, policy), "under_way": under_way[each]} for each in actions],
    }


def _row(action: str, memory: ControllerMemory, policy: Policy) -> dict[str, Any]:
    record = memory.trust.kept_promises.get(action, PromiseRecord())
    promised_gpu_s, realised_gpu_s = sums_of(record)
    least_gpu_s = least_gain_gpu_s(promised_gpu_s, policy.promises)
    return {
        "action": action,
        "mode": str(getattr(policy.modes, action)),
        "cases": record.count,
        "promised_gpu_s": promised_gpu_s,
        "realised_gpu_s": realised_gpu_s,
        "least_gpu_s": least_gpu_s,
        "promised_use": format_gpu_s(promised_gpu_s),
        "realised_use": format_gpu_s(realised_gpu_s),
        "least_use": format_gpu_s(least_gpu_s),
        "capped_since_s": record.capped_s if isfinite(record.capped_s) else None,
    }


@router.post("/lift/{action}", responses=stated(Obeyed))
def lift(desk: Asked, caller: Admin, request: Request, action: ActionName) -> dict[str, Any]:
    """End the cap of an action. It is judged again by the cases that finish from now on."""
    if action not in Modes.__dataclass_fields__:
        raise HTTPException(404, f"{action}: no such action; GET /api/v1/promises lists those that are judged")
    if not is_capped(desk.latest().memory, action):
        raise HTTPException(409, f"{action} is not capped")
    command = desk.command(CommandKind.LIFT, caller, origin_of(request), action)
    after = desk.obeyed(command)
    if after is None:
        return {"sequence": command.sequence, "result": "stored", "message": "the next tick obeys it"}
    mode = getattr(after.policy.modes, action)
    return {
        "sequence": command.sequence,
        "result": "obeyed",
        "message": f"the cap of {action} is lifted; its mode is {mode}",
    }
