"""Candidates for one Lease in this process, on virtual time, and what they ask the server."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from apiserver.requests import Request, Response
from apiserver.server import Server
from apiserver.users import ADMIN, User
from autopilot.kube.cluster_api import Answer
from autopilot.service.leading.elector import Elector
from autopilot.service.leading.lease import LeaseName, Terms

NAME = LeaseName("gpu-autopilot", "gpu-autopilot")
MERGE = "application/merge-patch+json"


@dataclass
class InProcess:
    """Requests to a server in this process. `fate` may lose a request or its answer."""

    server: Server
    user: User = ADMIN
    fate: Callable[[str, str], str] = lambda _method, _path: ""  # "" | "request lost" | "answer lost"
    asked: list[tuple[str, str]] = field(default_factory=list)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        return self._ask("GET", path, None, query)

    def post(self, path: str, body: Mapping[str, Any], query: Mapping[str, str] | None = None) -> Answer:
        return self._ask("POST", path, body, query)

    def put(self, path: str, body: Mapping[str, Any]) -> Answer:
        return self._ask("PUT", path, body, None)

    def patch(self, path: str, body: Any, media: str = MERGE) -> Answer:
        return self._ask("PATCH", path, body, None, media)

    def delete(self, path: str, body: Mapping[str, Any]) -> Answer:
        return self._ask("DELETE", path, body, None)

    def _ask(
        self, method: str, path: str, body: Any, query: Mapping[str, str] | None, media: str = "application/json"
    ) -> Answer:
        self.asked.append((method, path))
        fate = self.fate(method, path)
        if fate == "request lost":
            return Answer(0, "ConnectError: the connection was refused")
        content = json.loads(json.dumps(body)) if body is not None else None
        request = Request(method, path, dict(query or {}), {"content-type": media}, content, self.user)
        answer = self.server.handle(request)
        assert isinstance(answer, Response)
        if fate == "answer lost":
            return Answer(0, "ReadTimeoutError: no answer in time")
        return Answer(answer.status, json.dumps(answer.plain()))


def with_namespace(server: Server) -> Server:
    """The server, with the namespace of the Lease."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME.namespace}}
    server.client(ADMIN, "test").create("namespaces", body)
    return server


class Candidate:
    """One controller that wants to lead. Its clocks may differ from those of the server."""

    def __init__(
        self,
        server: Server,
        name: str,
        terms: Terms,
        *,
        user: User = ADMIN,
        known_fence: Callable[[], int] = lambda: 0,
        rate: float = 1.0,
        wall_off_s: float = 0.0,
        identity: Callable[[], str] | None = None,
    ) -> None:
        numbers = count()
        self.server, self.api = server, InProcess(server, user)
        self.elector = Elector(
            self.api,
            NAME,
            terms,
            known_fence=known_fence,
            identity=identity or (lambda: f"{name}_{next(numbers)}"),
            monotonic_s=lambda: server.timeline.now_s * rate,
            wall_s=lambda: server.timeline.now_s + wall_off_s,
        )

    def cut(self, rng: random.Random | None = None, fate: str = "request lost") -> None:
        """Requests of this candidate go astray from now on, all or half of them."""
        self.api.fate = lambda _method, _path: fate if rng is None or rng.random() < 0.5 else ""

    def join(self) -> None:
        """Its requests arrive again."""
        self.api.fate = lambda _method, _path: ""
