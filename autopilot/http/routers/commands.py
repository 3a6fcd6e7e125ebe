"""Commands about the controller: pause, resume, kill, re-arm; and a person's better knowledge: release, confirm."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Request

from autopilot.core.model.records import CommandKind, NoteCode
from autopilot.http.answers import Obeyed, stated
from autopilot.http.auth import Admin, Approver, Caller, origin_of
from autopilot.http.desk import Asked, Desk

router = APIRouter(prefix="/api/v1", tags=["commands"])
GpuName = Annotated[str, Path(max_length=200, description="UUID of the GPU")]
SourceName = Annotated[str, Path(max_length=200, description="name of the source, as the reason of the halt states it")]


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


@router.post("/release/{gpu}", responses=stated(Obeyed))
def release(desk: Asked, caller: Admin, request: Request, gpu: GpuName) -> dict[str, Any]:
    """End the quarantine of a GPU whose change of MIG geometry went wrong. It takes new work again."""
    latest = desk.latest()
    record = latest.memory.geometry.recuts.get(gpu)
    if record is None or record.state != "quarantined":
        known = gpu in latest.observation.snapshot.gpus.uuid
        raise HTTPException(409 if known else 404, f"{gpu} is not quarantined" if known else f"{gpu}: no such GPU")
    return _give(desk, CommandKind.RELEASE, caller, request, f"{gpu} takes new work again", gpu)


@router.post("/confirm/{source}", responses=stated(Obeyed))
def confirm(desk: Asked, caller: Admin, request: Request, source: SourceName) -> dict[str, Any]:
    """Confirm that the objects that a suspected source no longer lists are gone. Its next such list is trusted."""
    views = {key: each for key, each in desk.latest().memory.intake.views.items() if key.partition("/")[2] == source}
    if not views:
        raise HTTPException(404, f"{source}: no such source; GET /api/v1/state lists the collectors")
    if not any(each.lists for each in views.values()):
        raise HTTPException(409, f"{source} is not suspected")
    return _give(desk, CommandKind.CONFIRM, caller, request, f"the next list of {source} is trusted", source)


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


def _give(
    desk: Desk, kind: CommandKind, caller: Caller, request: Request, message: str, subject: str = ""
) -> dict[str, Any]:
    command = desk.command(kind, caller, origin_of(request), subject)
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
