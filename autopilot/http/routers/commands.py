"""Commands about the controller itself: pause, resume, kill, re-arm."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Request

from autopilot.core.model.records import CommandKind, NoteCode
from autopilot.http.answers import Obeyed, stated
from autopilot.http.auth import Admin, Approver, Caller, origin_of
from autopilot.http.desk import Asked, Desk

router = APIRouter(prefix="/api/v1", tags=["commands"])


@router.post("/pause", responses=stated(Obeyed))
def pause(desk: Asked, caller: Approver, request: Request) -> dict[str, Any]:
    """Stop acting until a person resumes. Decisions are still made, recorded and shown."""
    return _give(desk, CommandKind.PAUSE, caller, request, "paused: nothing acts until `resume`")


@router.post("/kill", responses=stated(Obeyed))
def kill(desk: Asked, caller: Approver, request: Request) -> dict[str, Any]:
    """Stop acting at once; only an admin can resume."""
    return _give(desk, CommandKind.KILL, caller, request, "killed: nothing acts until an admin resumes")


@router.post("/resume", responses=stated(Obeyed))
def resume(desk: Asked, caller: Admin, request: Request) -> dict[str, Any]:
    """End a pause or a kill. A kill switch by file or environment stays on."""
    return _give(desk, CommandKind.RESUME, caller, request, "resumed")


@router.post("/rearm", responses=stated(Obeyed))
def rearm(desk: Asked, caller: Admin, request: Request) -> dict[str, Any]:
    """Let the modes of the policy count again after the watchdog opened the way for waiting work."""
    if desk.rearm is None:
        raise HTTPException(409, "this controller takes part in no election, so no watchdog restrains it")
    if waits := desk.waiting():
        raise HTTPException(503, waits)
    desk.record.rearmed(caller.name, caller.role.value, origin_of(request))
    problem = desk.rearm()
    if problem:
        raise HTTPException(503, f"not re-armed: {problem}")
    desk.wake()
    return {"result": "obeyed", "message": "re-armed: the modes of the policy count from the next tick on"}


def _give(desk: Desk, kind: CommandKind, caller: Caller, request: Request, message: str) -> dict[str, Any]:
    command = desk.command(kind, caller, origin_of(request))
    after = desk.obeyed(command)
    if after is None:
        return {"sequence": command.sequence, "result": "stored", "message": "the next tick obeys it"}
    if any(note.code == NoteCode.RESUME_REFUSED for note in after.decision.notes) and kind == CommandKind.RESUME:
        message = "refused: a `kill` came later; resume again"
    reason = desk.kill_switch.reason()
    if kind == CommandKind.RESUME and reason:
        message += f", but the kill switch is still on: {reason}"
    return {
        "sequence": command.sequence,
        "result": "obeyed",
        "message": message,
        "halted": after.decision.halted or None,
    }
