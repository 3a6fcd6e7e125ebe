"""The application: the table of routers, and errors that show no internals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse

from autopilot.http.auth import Caller
from autopilot.http.desk import Desk
from autopilot.http.edge import Edge
from autopilot.http.routers import (
    alerts,
    commands,
    decisions,
    events,
    fleet,
    forecasts,
    health,
    nodes,
    page,
    promises,
    queue,
    recommendations,
    schema,
    session,
    state,
    tenants,
)
from autopilot.service.settings import Role

ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    state.router,
    recommendations.router,
    decisions.router,
    commands.router,
    promises.router,
    alerts.deliveries,
    alerts.router,
    session.router,
    events.router,
    fleet.router,
    tenants.router,
    queue.router,
    nodes.router,
    forecasts.router,
    schema.router,
    page.router,
)
"""All routers. A router checks the role of its callers itself (`autopilot/http/auth.py`)."""

log: Any = structlog.get_logger("http")


def service_app(desk: Desk) -> FastAPI:
    """The API and the page of one service."""
    return _app(desk, ROUTERS)


def delivery_app(desk: Desk) -> FastAPI:
    """Takes alerts, from senders whose certificate the listener has verified, and nothing else."""
    sender = Caller("client certificate", Role.ALERTS)
    return _app(replace(desk, certified=sender), (alerts.deliveries,))


def _app(desk: Desk, routers: Iterable[APIRouter]) -> FastAPI:
    app = FastAPI(title="gpu-autopilot", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.desk = desk
    for router in routers:
        app.include_router(router)
    app.add_middleware(Edge, desk=desk)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        log.error("request failed", path=request.url.path, error=f"{type(error).__name__}: {error}")
        return JSONResponse({"detail": "an internal error; the log of the service has it"}, 500)

    return app
