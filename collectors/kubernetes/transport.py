"""Requests to the API server: whole answers and streams of lines, as bytes.

Failures are `ApiError`. The requests are those of `autopilot.kube.client`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec
import urllib3

from autopilot.kube.access import Connections
from autopilot.kube.client import OK, Client, Failure, Reply, reason_of

CONNECT_S = 5.0
ANSWER_S = 60.0
MOST_BYTES = 256 << 20
"""Most bytes of one answer: a page of 500 objects of etcd's largest size is smaller."""
MOST_LINE_BYTES = 8 << 20
CHUNK = 1 << 16

FORBIDDEN, NOT_FOUND, GONE, TOO_MANY, UNAVAILABLE = 403, 404, 410, 429, 503
STARTS_S = 1.0
"""Time without requests of a kind while the server starts; it needs 1 to 3 s."""


class ApiError(Exception):
    """A request that failed. `status` is 0 without an answer; `retry_after_s` is 0 if none was given."""

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after_s = status, message, retry_after_s


class CutError(ApiError):
    """A watch that ended in the middle: its connection was lost."""

    def __init__(self, message: str) -> None:
        super().__init__(0, message)


class StatusBody(msgspec.Struct):
    """The used part of a Status object."""

    message: str = ""
    reason: str = ""
    code: int = 0


class Lines(Protocol):
    """The lines of a watch."""

    def __iter__(self) -> Iterator[bytes]:
        """Each line, without its end. Raises `ApiError` for a stream cut or silent for too long."""
        ...

    def close(self) -> None:
        """End the stream; may be called from another thread."""
        ...


class Requests(Protocol):
    """The API server as a reflector needs it."""

    def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """The body of a successful answer. Raises `ApiError`."""
        ...

    def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> Lines:
        """An open stream. Raises `ApiError`."""
        ...


@dataclass(slots=True)
class _Stream:
    """An open response."""

    response: Any

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        try:
            for chunk in self.response.stream(CHUNK, decode_content=True):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (line for line in lines if line)
                if len(rest) > MOST_LINE_BYTES:
                    raise ApiError(0, f"one event is longer than {MOST_LINE_BYTES >> 20} MiB")
        except urllib3.exceptions.ReadTimeoutError as error:
            raise ApiError(0, "the watch was silent for too long") from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            raise CutError(f"the watch was cut: {reason_of(error)}") from error
        if rest.strip():
            raise CutError("the watch was cut in the middle of an event")

    def close(self) -> None:
        """Shut the socket, waking a reader in another thread, and give it up."""
        with suppress(Exception):
            connection = self.response.connection
            if connection is not None and connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)
        with suppress(Exception):
            self.response.close()


class Transport:
    """Requests over HTTP (`Requests`). `skew_s`: lead of the server's clock over ours; NaN: unknown."""

    def __init__(self, access: Connections, wall_s: Callable[[], float] = time.time) -> None:
        self._client = Client(access, answer_s=ANSWER_S, connect_s=CONNECT_S, most_bytes=MOST_BYTES)
        self._wall_s = wall_s
        self.skew_s = float("nan")

    def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """The body of a 200 answer within `ANSWER_S`. Raises `ApiError`."""
        return self._checked(self._client.ask("GET", _target(path, query))).content

    def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> Lines:
        """An open watch, cut after `silence_s` without a byte. Raises `ApiError`."""
        return _Stream(self._checked(self._client.stream(_target(path, query), silence_s)).stream)

    def _checked(self, reply: Reply) -> Reply:
        """The reply, if it has status 200."""
        with suppress(ValueError, TypeError):
            self.skew_s = parsedate_to_datetime(reply.headers.get("date", "")).timestamp() - self._wall_s()
        if reply.failure is Failure.STARTS:
            raise ApiError(UNAVAILABLE, reply.reason, STARTS_S)
        if reply.failure is not None:
            status = reply.status if reply.failure is Failure.REFUSED else 0
            raise ApiError(status, f"{_WORDS[reply.failure]}{reply.reason}")
        if reply.status != OK:
            raise _error_of(reply)
        return reply


_WORDS = {
    Failure.NO_ANSWER: "the API server does not answer: ",
    Failure.CUT: "the answer was cut: ",
    Failure.REFUSED: "the credentials are refused, and ",
    Failure.TOO_LONG: "",
}


def _target(path: str, query: Mapping[str, str]) -> str:
    return path + (f"?{urlencode(query)}" if query else "")


def _error_of(reply: Reply) -> ApiError:
    """The error of any answer but 200: a Status object, or text."""
    try:
        text = msgspec.json.decode(reply.content, type=StatusBody).message
    except msgspec.DecodeError:
        text = reply.content.decode("utf-8", "replace").strip()
    after = reply.headers.get("retry-after", "")
    return ApiError(reply.status, f"{reply.status} {text[:300]}", float(after) if after.isdigit() else 0.0)
