"""The application: the table of routers, the headers of every answer, and errors that show no internals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from autopilot.http.desk import Desk
from autopilot.http.routers import alerts, commands, decisions, health, recommendations, state

ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    state.router,
    recommendations.router,
    decisions.router,
    commands.router,
    alerts.router,
)
"""All routers. A router checks the role of its callers itself (`autopilot/http/auth.py`)."""

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every answer; a router may set a policy of its own."""

log: Any = structlog.get_logger("http")


def service_app(desk: Desk) -> FastAPI:
    """The API of one service."""
    app = FastAPI(title="gpu-autopilot", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.desk = desk
    for router in ROUTERS:
        app.include_router(router)

    @app.middleware("http")
    async def headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        answer = await call_next(request)
        for name, value in HEADERS.items():
            answer.headers.setdefault(name, value)
        return answer

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        log.error("request failed", path=request.url.path, error=f"{type(error).__name__}: {error}")
        return JSONResponse({"detail": "an internal error; the log of the service has it"}, 500)

    return app
