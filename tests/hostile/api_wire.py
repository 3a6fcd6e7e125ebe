"""Requests of the controller to the API server in this process, with planned faults, and what its writes changed.

Collector and actuator are those that ship: `Wire` takes the place of their sockets. So a run is one thread, and a seed
repeats it exactly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import urllib3

from apiserver.http.faults import Faults
from apiserver.requests import Request, Response, WatchStream
from apiserver.server import Server
from apiserver.users import User
from collectors.kubernetes.transport import ApiError, CutError

Obj = dict[str, Any]
HOOKED = re.compile("/(workloads|jobs)/")
NO_WEBHOOK = Response(
    500,
    {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "InternalError",
        "code": 500,
        "message": 'failed calling webhook "mworkload.kb.io": no endpoints available for service "kueue-webhook"',
    },
    {"content-type": "application/json"},
)


@dataclass(frozen=True)
class Write:
    """One request that changed something, with the object before and after it."""

    at_s: float
    method: str
    path: str
    body: Any
    before: Obj | None
    after: Obj


class Stream:
    """The lines of a watch: what there is, and a bookmark. A planned fault cuts it, repeats or reorders its events."""

    def __init__(self, lines: list[bytes], *, cut: bool) -> None:
        self._lines, self._cut = lines, cut

    def __iter__(self) -> Iterator[bytes]:
        yield from self._lines
        if self._cut:
            raise CutError("a planned fault ends this watch")

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Answered:
    """A response as urllib3 has it."""

    status: int
    content: bytes
    headers: Mapping[str, str]

    def read(self, _most: int = 0, *, decode_content: bool = True) -> bytes:
        """The body."""
        return self.content

    def release_conn(self) -> None:
        """Nothing is kept."""


@dataclass
class Wire:
    """The only way of one account to the server: `get` and `watch` of the collector, `request` of the actuator."""

    server: Server
    user: User
    faults: Faults
    judge: Callable[[Write], None]
    webhooks_down: Callable[[], bool] = lambda: False  # whether those of Kueue do not answer now
    host: str = "http://here"
    sent: list[tuple[str, str]] = field(default_factory=list)
    generation: int = 0

    # --- the collector (`collectors.kubernetes.transport.Requests`) ----------------------------

    def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """The body of an answer."""
        fault = self.faults.draw("GET", watch=False)
        if fault.delay_s or fault.drop:
            raise ApiError(0, "the answer was cut")
        answer = fault.answer or self._handle("GET", path, dict(query), None, {})
        content = b"".join(answer.chunks())
        if answer.status != 200:
            raise ApiError(answer.status, content.decode()[:300], float(answer.headers.get("retry-after", 0)))
        return content

    def watch(self, path: str, query: Mapping[str, str], _silence_s: float) -> Stream:
        """What has happened since, and that no more has."""
        fault = self.faults.draw("GET", watch=True)
        if fault.delay_s:
            raise ApiError(0, "the watch was silent for too long")
        if fault.answer is not None:
            raise ApiError(fault.answer.status, "planned", float(fault.answer.headers.get("retry-after", 0)))
        answer = self.server.handle(Request("GET", path, dict(query), {}, None, self.user))
        if isinstance(answer, Response):
            raise ApiError(answer.status, str(answer.plain())[:300])
        events = self.faults.stirred(answer.take())
        answer.close()
        lines = [each.line().rstrip(b"\n") for each in events]
        if fault.drop_after is not None:
            return Stream(lines[: fault.drop_after], cut=True)
        meta = {"metadata": {"resourceVersion": str(self.server.store.version)}}
        return Stream([*lines, json.dumps({"type": "BOOKMARK", "object": meta}).encode()], cut=False)

    # --- the actuator (`actuators.kubernetes.api.Connections`, and its pool) --------------------

    def connection(self) -> tuple[Any, dict[str, str], int]:
        """This, as a pool of connections."""
        return self, {}, self.generation

    def renew(self, _generation: int) -> None:
        """Credentials do not change."""

    def request(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, **_: Any
    ) -> Answered:
        """One request; a planned fault refuses it, loses it, or loses its answer."""
        parts = urlsplit(url)
        fault = self.faults.draw(method, watch=False, dry="dryRun" in parts.query)
        if fault.delay_s:
            raise urllib3.exceptions.ReadTimeoutError(None, url, "the request was lost")  # type: ignore[arg-type]
        given = {key.lower(): value for key, value in (headers or {}).items()}
        query = dict(parse_qsl(parts.query))
        refused = NO_WEBHOOK if method != "GET" and HOOKED.search(parts.path) and self.webhooks_down() else None
        if fault.carried_out:
            self._handle(method, parts.path, query, body, given)
        answer = fault.answer or refused or self._handle(method, parts.path, query, body, given)
        if fault.drop:
            raise urllib3.exceptions.ProtocolError("the answer was lost")
        return Answered(answer.status, b"".join(answer.chunks()), answer.headers)

    def _handle(
        self, method: str, path: str, query: dict[str, str], body: bytes | None, headers: Mapping[str, str]
    ) -> Response:
        store = self.server.store
        version, before = store.version, None
        writes = method != "GET" and "dryRun" not in query and not (body and b'"dryRun"' in body)
        if writes:
            self.sent.append((method, path))
            before = self._read(path)
        answer = self.server.handle(Request(method, path, query, dict(headers), body, self.user))
        if isinstance(answer, WatchStream):
            raise TypeError(f"{path}: a stream was not expected")
        if writes and answer.status < 300 and store.version != version:
            content = json.loads(body) if body else {}
            after = self._read(path) or {}
            self.judge(Write(self.server.timeline.now.timestamp(), method, path, content, before, after))
        return answer

    def _read(self, path: str) -> Obj | None:
        """The object of a path as it is now, without the part after its name."""
        pieces = path.strip("/").split("/")
        if pieces[-1] in {"status", "eviction", "scale"}:
            pieces = pieces[:-1]
        if pieces[-1] == "events":
            return None  # hundreds of them, and nobody judges a new one
        answer = self.server.handle(Request("GET", "/" + "/".join(pieces), {}, {}, None, self.user))
        found = answer.plain() if isinstance(answer, Response) and answer.status == 200 else None
        return found if isinstance(found, dict) and "metadata" in found else None
