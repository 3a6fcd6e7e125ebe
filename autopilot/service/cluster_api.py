"""Single requests to the API server of the cluster: settings, reviews, the Lease. Lists and watches are elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlencode

import urllib3

from autopilot.deadline import within
from autopilot.readiness.line import Answer
from autopilot.starting import Starting, names_a_right

CONNECT_S = 3.0
TICK_S = 3.0
"""Longest time of a request that a tick waits for: policy, kill switch, mark, fence and memory, one after the other."""
MOST_BYTES = 16 << 20
UNAUTHORIZED, TOO_LARGE, UNAVAILABLE = 401, 413, 503
JSON, MERGE, PATCH = "application/json", "application/merge-patch+json", "application/json-patch+json"


class Connections(Protocol):
    """The address and the credentials that are valid now (`collectors.kubernetes.access.Access`)."""

    @property
    def host(self) -> str:
        """Address of the API server."""
        ...

    def connection(self) -> tuple[Any, dict[str, str], int]:
        """A pool manager, the headers that authenticate, and the generation of both. Raises `OSError`."""
        ...

    def renew(self, generation: int) -> None:
        """Read the credentials again. Raises `OSError`."""
        ...


class ClusterApi:
    """Requests whose failure is an `Answer` with status 0. Safe for use from several threads."""

    def __init__(self, access: Connections, timeout_s: float = 10.0) -> None:
        self._access, self._timeout_s, self._starting = access, timeout_s, Starting(access)

    def within(self, timeout_s: float) -> ClusterApi:
        """The same with another limit for each request."""
        return ClusterApi(self._access, timeout_s)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """Read `path`."""
        return self._ask("GET", f"{path}?{urlencode(query)}" if query else path, None)

    def post(self, path: str, body: Mapping[str, Any], query: Mapping[str, str] | None = None) -> Answer:
        """Send a review, or create an object."""
        return self._ask("POST", f"{path}?{urlencode(query)}" if query else path, json.dumps(body).encode())

    def send(self, method: str, path: str, body: Any, media: str = MERGE) -> Answer:
        """Change what is at `path`: POST, PATCH or DELETE."""
        return self._ask(method, path, json.dumps(body).encode(), media=media)

    def put(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Replace an object."""
        return self._ask("PUT", path, json.dumps(body).encode())

    def patch(self, path: str, body: Any, media: str = MERGE) -> Answer:
        """Change an object."""
        return self._ask("PATCH", path, json.dumps(body).encode(), media=media)

    def delete(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Delete an object; `body` are options, with the preconditions."""
        return self._ask("DELETE", path, json.dumps(body).encode())

    def _ask(self, method: str, target: str, body: bytes | None, *, media: str = JSON, again: bool = True) -> Answer:
        try:
            pool, headers, generation = self._access.connection()
            with within(self._timeout_s):
                response = pool.request(
                    method,
                    f"{self._access.host}{target}",
                    body=body,
                    headers={**headers, "Accept": "application/json", "Content-Type": media},
                    preload_content=False,
                    redirect=False,
                    retries=False,
                    timeout=urllib3.Timeout(connect=CONNECT_S, read=self._timeout_s),
                )
                content = response.read(MOST_BYTES + 1, decode_content=True)
                response.release_conn()
            if response.status == UNAUTHORIZED and again:
                self._access.renew(generation)
                return self._ask(method, target, body, media=media, again=False)
            if again and names_a_right(response.status, content[:4096].decode("utf-8", "replace")):
                if reason := self._starting.why():
                    return Answer(UNAVAILABLE, reason)
                return self._ask(method, target, body, media=media, again=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return Answer(0, f"{type(error).__name__}: {error}"[:300])
        if len(content) > MOST_BYTES:
            return Answer(TOO_LARGE, f"the answer is longer than {MOST_BYTES >> 20} MiB")
        return Answer(response.status, content.decode("utf-8", "replace"), dict(response.headers))
