"""The end of the HTTP server."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from fastapi import FastAPI

from apiserver.http.serve import Stopping


class Accepted:
    """A connection that was accepted while the server stopped: it does not end by itself."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def shutdown(self) -> None:
        """Nothing."""


def test_a_connection_that_is_left_is_closed() -> None:
    """Else its socket stays open until it is collected."""

    async def stop() -> bytes:
        ours, theirs = socket.socketpair()
        with theirs:
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
            config = uvicorn.Config(FastAPI(openapi_url=None), lifespan="off", timeout_graceful_shutdown=0)
            config.load()
            server = Stopping(config)
            server.servers, server.lifespan = [], config.lifespan_class(config)
            left: Any = Accepted(transport)
            server.server_state.connections.add(left)
            await server.shutdown()
            theirs.settimeout(5.0)
            return theirs.recv(1)

    assert asyncio.run(stop()) == b""
