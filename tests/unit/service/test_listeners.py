"""The listeners of the service."""

from __future__ import annotations

from fastapi import FastAPI

from autopilot.service.listeners import Listener
from tests.kits.answers import fastest_s


def test_a_body_does_not_wait_behind_its_head() -> None:
    """On a connection that is kept, as a scraper's, an answer comes at once."""
    app = FastAPI(openapi_url=None)
    app.get("/")(lambda: {"answer": "yes"})
    listener = Listener(app, "127.0.0.1:0", "http.listen")
    listener.start()
    try:
        assert fastest_s(listener.url) < 0.03
    finally:
        listener.close()
