"""The edge of every request: the limit of its caller, and the headers of every answer."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autopilot.http.auth import origin_of
from autopilot.http.limits import CHANGING, DELIVERING, READING, UNKNOWN, Limit, network_of
from autopilot.http.sessions import COOKIE, READS

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every answer; a router may set a policy of its own."""

HEALTH = frozenset({"/healthz", "/readyz"})
ALERTS = "/api/v1/alerts"


class Edge:
    """ASGI middleware; answers of any length pass through it as they come."""

    def __init__(self, app: ASGIApp, desk: Any) -> None:
        self._app, self._desk, self._limits = app, desk, desk.limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    found.setdefault(name, value)
            await send(message)

        wait_s = 0.0 if scope["path"] in HEALTH else self._wait_s(Request(scope))
        if wait_s:
            answer = JSONResponse(
                {"detail": f"too many requests; ask again in {wait_s:.0f} s"}, 429, {"Retry-After": f"{wait_s:.0f}"}
            )
            await answer(scope, receive, with_headers)
            return
        await self._app(scope, receive, with_headers)

    def _wait_s(self, request: Request) -> float:
        address = network_of(origin_of(request))
        who = self._caller(request)
        limit: Limit = UNKNOWN
        if who:
            limit = READING if request.method in READS else CHANGING
            limit = DELIVERING if request.url.path == ALERTS else limit
        wait_s: float = self._limits.wait_s(who or address, limit)
        return wait_s

    def _caller(self, request: Request) -> str:
        """The name of the caller, "" for an unknown one."""
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            caller = self._desk.tokens.known(token.strip())  # a review would hold up every request
            return f"token {caller.name}" if caller is not None else ""
        if self._desk.certified is not None:
            return str(self._desk.certified.name)
        session = self._desk.sessions.find(request.cookies.get(COOKIE))
        return f"session {session.csrf}" if session is not None else ""
