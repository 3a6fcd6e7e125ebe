"""Documents for the page: each is computed once a tick, for all callers, and sent as the same bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import Response

from autopilot.service.published import Published

JSON = "application/json"


def encode(content: Any) -> bytes:
    """JSON; NaN becomes null, and a number of a column is a number."""
    return msgspec.json.encode(content, enc_hook=_plain)


def _plain(value: Any) -> Any:
    return value.item()


class Documents:
    """The encoded documents of the latest tick, by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: Published | None = None
        self._bodies: dict[str, bytes] = {}

    def body(self, name: str, latest: Published, build: Callable[[Published], Any]) -> bytes:
        """The document of this tick; one thread builds it, others wait. NaN becomes null."""
        with self._lock:
            if self._of is not latest:
                self._of, self._bodies = latest, {}
            if name not in self._bodies:
                self._bodies[name] = encode(build(latest))
            return self._bodies[name]


def json_answer(content: Any) -> Response:
    """An answer with the document as JSON; NaN becomes null."""
    return Response(content if isinstance(content, bytes) else encode(content), media_type=JSON)
