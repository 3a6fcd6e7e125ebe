"""Single requests to the API server of the cluster: settings, reviews, the Lease. Lists and watches are elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from autopilot.contract.documents import parsed
from autopilot.kube.access import Connections
from autopilot.kube.client import JSON, Client, Failure

CONNECT_S = 3.0
TICK_S = 3.0
"""Longest time of a request awaited by a tick: policy, kill switch, mark, fence and memory, one after the other."""
MOST_BYTES = 16 << 20
TOO_LARGE, UNAVAILABLE = 413, 503
MERGE, PATCH = "application/merge-patch+json", "application/json-patch+json"
_STATUS = {Failure.TOO_LONG: TOO_LARGE, Failure.STARTS: UNAVAILABLE}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of the API server to one request. Status 0: no answer, with the reason in `text`."""

    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        """The body as an object; empty for any other body."""
        try:
            content = parsed(self.text.encode())
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    @property
    def reason(self) -> str:
        """The message of a refusal, or the first words of another body."""
        return str(self.document.get("message") or self.text[:200] or f"HTTP {self.status}")


class ClusterApi:
    """Requests with failures as an `Answer` with status 0. Safe for use from several threads."""

    def __init__(self, access: Connections, timeout_s: float = 10.0) -> None:
        self._access = access
        self._client = Client(access, answer_s=timeout_s, connect_s=CONNECT_S, most_bytes=MOST_BYTES)

    def within(self, timeout_s: float) -> ClusterApi:
        """The same with another limit for each request."""
        return ClusterApi(self._access, timeout_s)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """Read `path`."""
        return self._ask("GET", f"{path}?{urlencode(query)}" if query else path, None)

    def post(self, path: str, body: Mapping[str, Any], query: Mapping[str, str] | None = None) -> Answer:
        """Send a review, or create an object."""
        return self.send("POST", f"{path}?{urlencode(query)}" if query else path, body, JSON)

    def send(self, method: str, path: str, body: Any, media: str = MERGE) -> Answer:
        """Change the object at `path`: POST, PATCH or DELETE."""
        return self._ask(method, path, json.dumps(body).encode(), media=media)

    def put(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Replace an object."""
        return self.send("PUT", path, body, JSON)

    def patch(self, path: str, body: Any, media: str = MERGE) -> Answer:
        """Change an object."""
        return self.send("PATCH", path, body, media)

    def delete(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Delete an object; `body` are options, with the preconditions."""
        return self.send("DELETE", path, body, JSON)

    def _ask(self, method: str, target: str, body: bytes | None, *, media: str = JSON) -> Answer:
        reply = self._client.ask(method, target, body, media)
        if reply.failure is not None:
            return Answer(_STATUS.get(reply.failure, 0), reply.reason)
        return Answer(reply.status, reply.content.decode("utf-8", "replace"), dict(reply.headers))
