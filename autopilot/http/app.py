"""The application: the table of routers, and errors without internals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from autopilot.http.auth import Caller
from autopilot.http.bodies import Bodies
from autopilot.http.desk import Desk
from autopilot.http.documents import JSON
from autopilot.http.edge import ALERTS, Edge
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
    records,
    schema,
    session,
    state,
    tenants,
    workloads,
)
from autopilot.service.settings import Role

ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    state.router,
    recommendations.router,
    decisions.router,
    commands.router,
    promises.router,
    records.router,
    alerts.deliveries,
    alerts.router,
    session.router,
    events.router,
    fleet.router,
    tenants.router,
    queue.router,
    workloads.router,
    nodes.router,
    forecasts.router,
    schema.router,
    page.router,
)
"""All routers. A router checks the role of its callers itself (`autopilot/http/auth.py`)."""


PROBLEM = {
    "title": "Problem",
    "description": "Why a request was refused, and what to do.",
    "type": "object",
    "properties": {"detail": {"type": "string", "title": "Detail"}},
    "required": ["detail"],
}
REFUSALS = {
    "400": "the content cannot be used",
    "401": "no token, or an unknown one",
    "403": "the role does not allow it, or our page did not send it",
    "404": "there is no such object",
    "409": "the state has changed, or takes no such command",
    "413": "too long",
    "429": "too many requests; see Retry-After",
    "503": "not now; see Retry-After, or the status of /readyz",
}
"""Possible answers of every route, for the schema."""

log: Any = structlog.get_logger("http")


def service_app(desk: Desk) -> FastAPI:
    """The API and the page of one service."""
    return _app(desk, ROUTERS)


def delivery_app(desk: Desk) -> FastAPI:
    """Takes alerts, from senders with a certificate verified by the listener, and nothing else."""
    sender = Caller("client certificate", Role.ALERTS)
    return _app(replace(desk, certified=sender), (alerts.deliveries,))


class _Api(FastAPI):
    """Its schema has the stated answers alone, without the outline from the return types of the functions."""

    def openapi(self) -> dict[str, Any]:
        """The schema, made once."""
        made = super().openapi()
        made["components"]["schemas"]["Problem"] = PROBLEM
        for route in made["paths"].values():
            for operation in route.values():
                operation["responses"] = _refusals() | operation["responses"]
                content = operation["responses"].get("200", {}).get("content", {}).get(JSON)
                if content and "$ref" in content["schema"]:
                    content["schema"] = {"$ref": content["schema"]["$ref"]}
        return made


def _refusals() -> dict[str, Any]:
    content = {JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    said: dict[str, Any] = {status: {"description": text, "content": content} for status, text in REFUSALS.items()}
    del said["503"]["content"]  # /readyz answers with it too, in words of its own
    return said


def _app(desk: Desk, routers: Iterable[APIRouter]) -> FastAPI:
    app = _Api(title="gpu-autopilot", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.desk = desk
    for router in routers:
        app.router.routes.extend(router.routes)  # `include_router` builds each of them again
    app.add_middleware(Bodies, most=lambda path: desk.alerts_bytes if path == ALERTS else desk.body_bytes)
    app.add_middleware(Edge, desk=desk)  # the outer one: it adds headers to every answer

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        """Without the input itself: it may be a token, or no text."""
        return JSONResponse(
            {"detail": [{key: each[key] for key in ("type", "loc", "msg")} for each in error.errors()]}, 422
        )

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        log.error("request failed", path=request.url.path, error=f"{type(error).__name__}: {error}")
        return JSONResponse({"detail": "an internal error; the log of the service has it"}, 500)

    return app
