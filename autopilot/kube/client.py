"""Requests to the API server of a cluster.

A request ends by a deadline of the wall clock, at any pace of the server. A 401 makes the credentials be read again,
once. A 403 for a missing right counts only once the server is ready (`starting`). Every request returns a `Reply`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import urllib3

from autopilot.deadline import within
from autopilot.kube.access import Connections
from autopilot.kube.starting import Starting, names_a_right

JSON = "application/json"
OK, UNAUTHORIZED = 200, 401
ERROR_BYTES = 64 << 10
"""Bytes of an error read of a stream, and looked at for the name of a right."""


class Failure(StrEnum):
    """Reason for a request without a valid answer."""

    NO_ANSWER = "no-answer"  # a write may have been carried out
    CUT = "cut"  # the same, in the middle of the body
    REFUSED = "refused"  # the credentials are not accepted, and cannot be read again
    STARTS = "starts"  # the server has just started
    TOO_LONG = "too-long"


@dataclass(frozen=True, slots=True)
class Reply:
    """Result of one request. `status` is 0 without an answer; `reason` is that of a `failure`."""

    status: int
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)  # names in any case
    failure: Failure | None = None
    reason: str = ""
    stream: Any = None  # the open response, its body unread


@dataclass(frozen=True, slots=True)
class _Asked:
    method: str
    target: str
    body: bytes | None
    media: str
    answer_s: float
    stream: bool = False


class Client:
    """Requests with the credentials of `access`. Safe for use from several threads."""

    def __init__(
        self,
        access: Connections,
        *,
        answer_s: float,
        connect_s: float,
        most_bytes: int,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access, self._starting = access, Starting(access, steady_s)
        self._answer_s, self._connect_s, self._most_bytes = answer_s, connect_s, most_bytes

    def ask(self, method: str, target: str, body: bytes | None = None, media: str = JSON) -> Reply:
        """One request and its whole answer."""
        return self._ask(_Asked(method, target, body, media, self._answer_s))

    def stream(self, target: str, silence_s: float) -> Reply:
        """An open answer with status 200, cut after `silence_s` without a byte; any other is read."""
        return self._ask(_Asked("GET", target, None, JSON, silence_s, stream=True))

    def _ask(self, asked: _Asked, *, again: bool = True) -> Reply:
        where = Failure.NO_ANSWER
        most = ERROR_BYTES if asked.stream else self._most_bytes
        try:
            pool, headers, generation = self._access.connection()
            with nullcontext() if asked.stream else within(asked.answer_s):
                response = pool.request(
                    asked.method,
                    f"{self._access.host}{asked.target}",
                    body=asked.body,
                    headers={**headers, "Accept": JSON, "Content-Type": asked.media},
                    preload_content=False,
                    redirect=False,
                    retries=False,
                    timeout=urllib3.Timeout(connect=self._connect_s, read=asked.answer_s),
                )
                reply = Reply(response.status, headers=response.headers)
                if asked.stream and response.status == OK:
                    return replace(reply, stream=response)
                where = Failure.CUT
                content = response.read(most + 1, decode_content=True)
                response.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return Reply(0, failure=Failure.CUT if isinstance(error, TimeoutError) else where, reason=reason_of(error))
        if reply.status == UNAUTHORIZED and again:
            try:
                self._access.renew(generation)
            except OSError as error:
                return replace(reply, failure=Failure.REFUSED, reason=str(error))
            return self._ask(asked, again=False)
        if again and names_a_right(reply.status, content[:ERROR_BYTES].decode("utf-8", "replace")):
            if reason := self._starting.why():
                return replace(reply, failure=Failure.STARTS, reason=reason)
            return self._ask(asked, again=False)
        if len(content) > most and not asked.stream:
            reason = f"the answer is longer than {most >> 20} MiB"
            return replace(reply, failure=Failure.TOO_LONG, reason=reason)
        return replace(reply, content=content)


def reason_of(error: BaseException) -> str:
    """The innermost cause in one line, without addresses of memory."""
    while error.args and isinstance(inner := getattr(error, "reason", None) or error.args[-1], BaseException):
        error = inner
    return f"{type(error).__name__}: {str(error).rpartition('>: ')[2]}"[:300]
