"""The metrics of the controller on a listener of their own: a scraper needs no access to the API."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException, Request, Response

from autopilot.http.auth import Tokens
from autopilot.http.bodies import Bodies
from autopilot.metrics.exposition import CONTENT_TYPE
from autopilot.service.exposed import Exposed


def metrics_app(exposed: Exposed, tokens: Tokens | None) -> FastAPI:
    """`/metrics`. `tokens`: those of its readers; None: everybody may read it."""
    app = FastAPI(title="gpu-autopilot metrics", docs_url=None, redoc_url=None, openapi_url=None)

    app.add_middleware(Bodies, most=lambda _: 0)

    @app.get("/metrics")
    def metrics(request: Request) -> Response:
        if tokens is not None:
            kind, _, token = request.headers.get("Authorization", "").partition(" ")
            if kind.lower() != "bearer" or tokens.caller(token.strip()) is None:
                raise HTTPException(401, "give a token of the service", {"WWW-Authenticate": "Bearer"})
        return Response(exposed.text(), headers={"Content-Type": CONTENT_TYPE})

    return app
