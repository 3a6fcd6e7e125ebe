"""Health: open to everybody, and without any content of the cluster."""

from __future__ import annotations

from fastapi import APIRouter, Response

from autopilot.http.desk import Asked

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz(desk: Asked, response: Response) -> dict[str, str]:
    """The process answers, and its loop ticks; 503 with the reason where the loop hangs."""
    hangs = desk.hangs()
    if hangs:
        response.status_code = 503
    return {"status": hangs or "ok"}


@router.get("/readyz")
async def readyz(desk: Asked, response: Response) -> dict[str, str]:
    """The controller decides and its last tick is recent, or it stands by."""
    if hangs := desk.hangs():
        response.status_code = 503
        return {"status": hangs}
    latest, waits = desk.publisher.latest, desk.waiting()
    if waits:
        return {"status": "stands by: another controller leads"}
    if latest is None:
        response.status_code = 503
        return {"status": "no tick yet"}
    silent_s = desk.publisher.known.ages().tick_s
    if silent_s is not None and silent_s > desk.silent_s:
        response.status_code = 503
        return {"status": f"no tick for {silent_s:.0f} s"}
    return {"status": "ok" if latest.leads else "stands by: another controller leads"}
