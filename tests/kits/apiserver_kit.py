"""A server in this process, and requests to it."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

from apiserver.cluster import cluster
from apiserver.requests import Request, Response, WatchStream
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN, User

START = datetime(2026, 11, 23, tzinfo=UTC)
Obj = dict[str, Any]
MERGE = "application/merge-patch+json"


def small_cluster(seed: int = 1) -> Server:
    """A cluster with nothing in it but what every cluster has."""
    return cluster(Timeline(START), random.Random(seed))


class Asker:
    """Requests of one user."""

    def __init__(self, server: Server, user: User | None = ADMIN, **headers: str) -> None:
        self.server = server
        self.user = user
        self.headers = headers

    def response(self, method: str, path: str, body: Any = None, *, media: str = "", **query: str) -> Response:
        """The answer, which is no stream."""
        headers = {"content-type": media or (MERGE if method == "PATCH" else "application/json")} | self.headers
        answer = self.server.handle(Request(method, path, query, headers, body, self.user))
        assert isinstance(answer, Response), "a stream was not expected"
        return answer

    def __call__(self, method: str, path: str, body: Any = None, *, media: str = "", **query: str) -> Any:
        """The body of an answer that is a success."""
        answer = self.response(method, path, body, media=media, **query)
        assert answer.status < 300, answer.plain()
        return answer.plain()

    def refused(self, code: int, method: str, path: str, body: Any = None, *, media: str = "", **query: str) -> str:
        """The message of a refusal with this code."""
        answer = self.response(method, path, body, media=media, **query)
        assert answer.status == code, answer.plain()
        plain = answer.plain()
        return plain if isinstance(plain, str) else str(plain["message"])

    def watch(self, path: str, **query: str) -> WatchStream:
        """An open watch."""
        answer = self.server.handle(Request("GET", path, query | {"watch": "1"}, self.headers, None, self.user))
        assert isinstance(answer, WatchStream), answer.plain()
        return answer
