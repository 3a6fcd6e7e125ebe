"""Alerts come in here; their handling and their runbooks are read here.

A delivery is answered once it is on disk. The work on it follows the next tick (`autopilot/oncall/follow.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from threading import BoundedSemaphore
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool

from autopilot.core.model.errors import InputError, nearest
from autopilot.core.model.units import format_duration, format_gpu_s, number
from autopilot.http.alert_answers import AlertRows, DeliveryTaken, RunbookCase, RunbookRows
from autopilot.http.answers import stated
from autopilot.http.auth import Deliverer, Viewer, origin_of
from autopilot.http.desk import Asked, Desk
from autopilot.oncall.book import AlertRecord, Answer
from autopilot.oncall.follow import Follower, Round
from autopilot.oncall.payload import Delivered, parse_payload
from autopilot.oncall.rendered import parts_of
from autopilot.oncall.runbook import SUBJECTS, Runbook
from autopilot.records.audit.log import AuditError

MOST_NAMED = 20
"""Unreadable alerts named by the answer."""
ASKS = BoundedSemaphore(4)
"""Most waits of people for Prometheus at once: a slow one must leave threads for commands."""
router = APIRouter(prefix="/api/v1", tags=["alerts"])
deliveries = APIRouter(prefix="/api/v1", tags=["alerts"])
log: Any = structlog.get_logger("alerts")


@deliveries.post("/alerts", responses=stated(DeliveryTaken))
async def deliver(desk: Asked, caller: Deliverer, request: Request) -> dict[str, Any]:
    """Receive alerts of Alertmanager (webhook, version 4) or Grafana. A repeated delivery changes nothing."""
    follower = _follower(desk)
    if waits := desk.waiting():  # the sender tries again, and the leader follows alerts
        raise HTTPException(503, waits, {"Retry-After": "5"})
    body = await request.body()
    try:
        alerts, truncated, refused = await run_in_threadpool(parse_payload, body)
    except InputError as error:
        log.warning("delivery refused", sender=caller.name, error=str(error))
        raise HTTPException(400, str(error)) from error

    now_s = desk.clock_s()
    if refused:
        log.warning("alerts of a delivery cannot be read", sender=caller.name, alerts=len(refused), first=refused[0])
    if truncated:  # set before the alerts are stored, so the follower reads the others with them
        log.warning("delivery was truncated by its sender", missing=truncated, fix="raise max_alerts of the receiver")
        follower.missed()

    def record(changed: Sequence[Delivered]) -> None:
        steps = [each.step(now_s) for each in changed]
        desk.record.alerts(steps, caller.name, caller.role.value, origin_of(request))

    try:
        changed = await run_in_threadpool(follower.book.receive, alerts, now_s, record, caller.name)
    except (InputError, AuditError) as error:
        raise HTTPException(503, str(error), {"Retry-After": "30"}) from error
    if changed or truncated:
        follower.wake()
    return {"received": len(alerts), "changed": changed, "truncated": truncated, "refused": list(refused[:MOST_NAMED])}


@router.get("/alerts", responses=stated(AlertRows))
def alerts(desk: Asked, _caller: Viewer, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> dict[str, Any]:
    """The latest alerts, open ones first, with their stage, evidence and proposals."""
    book = _follower(desk).book
    try:
        left, every = book.counts()
        return {"open": left, "in_total": every, "alerts": [_document(each, desk) for each in book.recent(limit)]}
    except InputError as error:
        raise HTTPException(503, str(error)) from error


@router.get("/runbooks", responses=stated(RunbookRows))
def runbooks(desk: Asked, _caller: Viewer) -> dict[str, Any]:
    """The runbooks, each with its actions."""
    books = _follower(desk).runbooks.values()
    return {
        "runbooks": [
            {
                "alert": book.alert,
                "subject": book.front.subject,
                "actions": [each.action for each in book.front.actions],
            }
            for book in books
        ]
    }


@router.get("/runbooks/{alert}", responses=stated(RunbookCase))
def runbook(desk: Asked, _caller: Viewer, alert: str, request: Request) -> dict[str, Any]:
    """One runbook with live answers to its queries. Labels of the alert are query parameters, such as `?pool=a100`."""
    follower = _follower(desk)
    book = follower.runbooks.get(alert)
    if book is None:
        raise HTTPException(404, f"{alert}: no such runbook; {nearest(alert, follower.runbooks)}".rstrip("; "))
    labels = {name: value for name, value in request.query_params.items() if name in SUBJECTS}
    latest = desk.latest()
    if not ASKS.acquire(blocking=False):
        raise HTTPException(503, "other answers of Prometheus are waited for; ask again", {"Retry-After": "5"})
    try:
        evidence = Round(latest, follower.runbooks, follower.ask).evidence(book, labels)
    finally:
        ASKS.release()
    return _book_document(book) | {"labels": labels, "evidence": [_answer_document(each) for each in evidence]}


def _follower(desk: Desk) -> Follower:
    if desk.follower is None:
        raise HTTPException(503, "alerts are not followed in this service")
    return desk.follower


def _document(alert: AlertRecord, desk: Desk) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "fingerprint": alert.fingerprint,
        "started": alert.started,
        "firing": alert.firing,
        "received_s": alert.received_s,
        "about": {name: value for name, value in alert.labels.items() if name in SUBJECTS},
        "labels": alert.labels,
        "summary": alert.summary,
        "stage": alert.stage.value,
        "reason": alert.reason,
        "proposals": list(alert.proposals),
        "acted": list(alert.acted),
        "deliveries": alert.deliveries,
        "evidence": [_answer_document(each) for each in alert.evidence],
        "history": [
            {"at_s": each.at_s, "at": desk.when.stamp(each.at_s), "stage": each.stage.value, "reason": each.reason}
            for each in alert.history
        ],
    }


def _answer_document(answer: Answer) -> dict[str, Any]:
    series = [
        {"labels": labels, "value": value if isfinite(value) else None, "text": in_words(value, answer.unit)}
        for labels, value in answer.series
    ]
    return {
        "title": answer.title,
        "query": answer.query,
        "unit": answer.unit,
        "at_s": answer.at_s,
        "series": series,
        "problem": answer.problem or None,
    }


def in_words(value: float, unit: str) -> str:
    """A value with its unit, as every other face writes it."""
    if not isfinite(value):
        return "-"
    if unit == "s":
        return format_duration(value)
    if unit in {"GPU-s", "GPU-h"}:
        return format_gpu_s(value if unit == "GPU-s" else 3600.0 * value)
    return f"{number(value)} {unit}".rstrip()


def _book_document(book: Runbook) -> dict[str, Any]:
    front = book.front
    return {
        "alert": book.alert,
        "subject": front.subject,
        "actions": [each.model_dump() for each in front.actions],
        "undo": front.undo,
        "text": book.text,
        "parts": parts_of(book.text),
    }
