"""The longest body of a request. It holds before any credentials do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Most = Callable[[str], int]
"""The most bytes of a body, by path."""


class Bodies:
    """ASGI middleware: answers 413 to a body too long by its stated length or by the received bytes."""

    def __init__(self, app: ASGIApp, most: Most) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most, came, refused, begun = self._most(scope["path"]), 0, False, False

        async def refuse() -> None:
            nonlocal refused
            refused = True
            if not begun:
                words = f"a body has at most {most:,} bytes here"
                await JSONResponse({"detail": words}, 413, {"Connection": "close"})(scope, receive, send)

        async def counted() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came <= most or refused:
                return message
            await refuse()
            return {"type": "http.disconnect"}

        async def unless_refused(message: Message) -> None:
            nonlocal begun
            if not refused:
                begun = True
                await send(message)

        if _stated(scope) > most:
            await refuse()
            return
        try:
            await self._app(scope, counted, unless_refused)
        except ClientDisconnect:
            if not refused:
                raise


def _stated(scope: Any) -> int:
    """The stated length of a request; 0 without one. The server has already refused other text than numbers."""
    said = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(said) if said.isdigit() else 0
