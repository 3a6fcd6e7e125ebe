"""The listeners of the service, and that of the API server of tests."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from apiserver.http import serve
from autopilot.service import listeners
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


class Accepted:
    """A connection that was accepted while the server stopped: it does not end by itself."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def shutdown(self) -> None:
        """Nothing."""


@pytest.mark.parametrize("kind", [listeners.Stopping, serve.Stopping])
def test_a_connection_that_is_left_is_closed(kind: type[uvicorn.Server]) -> None:
    """Else its socket stays open until it is collected."""

    async def stop() -> bytes:
        ours, theirs = socket.socketpair()
        with theirs:
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
            config = uvicorn.Config(FastAPI(openapi_url=None), lifespan="off", timeout_graceful_shutdown=0)
            config.load()
            server = kind(config)
            server.servers, server.lifespan = [], config.lifespan_class(config)
            left: Any = Accepted(transport)
            server.server_state.connections.add(left)
            await server.shutdown()
            theirs.settimeout(5.0)
            return theirs.recv(1)

    assert asyncio.run(stop()) == b""
