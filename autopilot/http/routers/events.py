"""News for the page: a summary of each tick as server-sent events. Views ask for the rest."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from autopilot.explain.proposals import Answer, answer_of
from autopilot.http.answers import Summary, stated
from autopilot.http.auth import Viewer
from autopilot.http.desk import Asked, Desk
from autopilot.http.known import stale
from autopilot.http.sessions import COOKIE
from autopilot.service.published import Published

router = APIRouter(prefix="/api/v1", tags=["events"])

MOST_STREAMS, MOST_EACH = 200, 20
"""Most streams open at once: of everybody, and of one caller."""
LOOKS_EVERY_S = 0.2
AT_MOST_EVERY_S = 1.0
TRIES_AGAIN_MS = 2000
OPEN = (Answer.NEEDS_APPROVAL, Answer.RECOMMENDED)


@router.get("/summary", responses=stated(Summary))
def summary(desk: Asked, _caller: Viewer) -> dict[str, Any]:
    """The state of the controller in a few fields, as each event has it."""
    return summary_of(desk)


@router.get("/events", response_class=EventSourceResponse)
async def events(desk: Asked, caller: Viewer, request: Request) -> EventSourceResponse:
    """An event for each tick and each change of an alert, at most one a second, until session or service end."""
    open_now: Counter[str] = request.app.state.__dict__.setdefault("streams", Counter())
    who = f"{caller.role} {caller.name}"
    if open_now[who] >= MOST_EACH:
        raise HTTPException(429, f"{caller.name} has {MOST_EACH} pages open already; close one", {"Retry-After": "30"})
    if open_now.total() >= MOST_STREAMS:
        raise HTTPException(503, f"{MOST_STREAMS} pages are open already; close one", {"Retry-After": "30"})
    cookie = None if "Authorization" in request.headers else request.cookies.get(COOKIE)
    return _Stream(_news(desk, cookie), ping=15, counted=(open_now, who))


class _Stream(EventSourceResponse):
    """A stream, counted for its caller from the request to its end, for any cause of the end."""

    def __init__(self, news: AsyncIterator[ServerSentEvent], *, ping: int, counted: tuple[Counter[str], str]) -> None:
        super().__init__(news, ping=ping)
        self._open_now, self._who = counted
        self._open_now[self._who] += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._open_now[self._who] -= 1
            self._open_now += Counter()  # forget callers without one


async def _news(desk: Desk, cookie: str | None) -> AsyncIterator[ServerSentEvent]:
    shown: tuple[Published | None, str, int] | None = None
    while not desk.publisher.closed:
        if cookie is not None and desk.sessions.find(cookie) is None:
            yield ServerSentEvent("{}", event="signed-out")
            return
        alerts = desk.follower.revision if desk.follower is not None else 0
        reason = await run_in_threadpool(desk.kill_switch.reason)  # it may ask the API server
        now = desk.publisher.latest, reason, alerts
        if shown is not None and now[0] is shown[0] and now[1:] == shown[1:]:
            await asyncio.sleep(LOOKS_EVERY_S)
            continue
        shown = now
        body = msgspec.json.encode(await run_in_threadpool(summary_of, desk)).decode()
        yield ServerSentEvent(body, event="tick", retry=TRIES_AGAIN_MS)
        await asyncio.sleep(AT_MOST_EVERY_S)


def summary_of(desk: Desk) -> dict[str, Any]:
    """The state of the controller in a few fields. Before the first tick most are None."""
    latest, reason = desk.publisher.latest, desk.kill_switch.reason()
    shared = {"kill_switch": reason or None, "silent_s": desk.silent_s}
    if latest is None:
        return {"tick": None, **shared}
    decision, memory = latest.decision, latest.memory
    known, answers = desk.publisher.known, [answer_of(each, decision.halted) for each in decision.plan.proposals]
    ages = known.ages()
    return {
        "tick": decision.tick,
        "now_s": decision.now_s,
        "at": desk.when.stamp(decision.now_s),
        "start_s": desk.when.start_s,
        "age_s": ages.tick_s,
        "late_s": known.late_s(latest.took_s),
        "seen_age_s": ages.cluster_s,
        "telemetry_age_s": ages.telemetry_s,
        "stale": list(stale(latest, known)),
        "took_s": latest.took_s,
        "leads": latest.leads,
        "halted": decision.halted or None,
        "killed": memory.halt.killed,
        "paused": memory.halt.paused_reason or None,
        "policy": latest.policy.name,
        "policy_problem": latest.policy_problem or None,
        "policy_note": latest.policy_note or None,
        "recommendations": sum(each in OPEN for each in answers) if latest.sees else None,
        "approvable": sum(each == Answer.NEEDS_APPROVAL for each in answers) if latest.sees else None,
        "alerts": desk.follower.waiting if desk.follower is not None else 0,
        "collectors_failing": sum(bool(each.problem) for each in latest.collectors),
        **shared,
    }
