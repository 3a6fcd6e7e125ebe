"""The metrics of the controller on a listener of their own, so that a scraper needs no access to the API."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, HTTPException, Request, Response

from autopilot.http.auth import Tokens
from autopilot.service.published import Published, Publisher

Render = Callable[[Published], bytes]
"""The exposition of one tick."""

TEXT = "text/plain; version=0.0.4; charset=utf-8"


def metrics_app(publisher: Publisher, tokens: Tokens | None, render: Render | None = None) -> FastAPI:
    """`/metrics`. `tokens`: those that may read it; None: everybody."""
    app = FastAPI(title="gpu-autopilot metrics", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/metrics")
    def metrics(request: Request) -> Response:
        if tokens is not None:
            kind, _, token = request.headers.get("Authorization", "").partition(" ")
            if kind.lower() != "bearer" or tokens.caller(token.strip()) is None:
                raise HTTPException(401, "give a token of the service", {"WWW-Authenticate": "Bearer"})
        latest = publisher.latest
        body = render(latest) if render is not None and latest is not None else b""
        return Response(body, media_type=TEXT)

    return app
