"""Requests to the API server: whole answers and streams of lines, as bytes.

Failures are `ApiError`. A 401 makes the credentials be read again once, and the request is repeated.
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

from autopilot.deadline import within
from autopilot.starting import Starting, names_a_right

CONNECT_S = 5.0
ANSWER_S = 60.0
MOST_BYTES = 256 << 20
"""Most bytes of one answer: a page of 500 objects of the largest size that etcd keeps is smaller."""
MOST_LINE_BYTES = 8 << 20
CHUNK = 1 << 16

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, GONE, TOO_MANY, UNAVAILABLE = 401, 403, 404, 410, 429, 503
STARTS_S = 1.0
"""Time without requests of a kind while the server starts; it needs 1 to 3 s."""


class ApiError(Exception):
    """A request that failed. `status` is 0 where no answer came; `retry_after_s` is 0 where none was given."""

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after_s = status, message, retry_after_s


class CutError(ApiError):
    """A watch that ended in the middle: its connection was lost."""

    def __init__(self, message: str) -> None:
        super().__init__(0, message)


class StatusBody(msgspec.Struct):
    """The part of a Status object that is used."""

    message: str = ""
    reason: str = ""
    code: int = 0


class Lines(Protocol):
    """The lines of a watch."""

    def __iter__(self) -> Iterator[bytes]:
        """Each line, without its end. Raises `ApiError` where the stream is cut or silent for too long."""
        ...

    def close(self) -> None:
        """End the stream; may be called from another thread."""
        ...


class Requests(Protocol):
    """What a reflector needs of the API server."""

    def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """The body of a successful answer. Raises `ApiError`."""
        ...

    def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> Lines:
        """An open stream. Raises `ApiError`."""
        ...


class Connections(Protocol):
    """Connections with credentials (`access.Access`)."""

    @property
    def host(self) -> str:
        """Address of the API server."""
        ...

    def connection(self) -> tuple[Any, dict[str, str], int]:
        """A pool manager, headers, and their generation."""
        ...

    def renew(self, generation: int) -> None:
        """Read the credentials again."""
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
            raise CutError(f"the watch was cut: {_reason(error)}") from error
        if rest.strip():
            raise CutError("the watch was cut in the middle of an event")

    def close(self) -> None:
        """Shut the socket, which wakes a reader in another thread, and give it up."""
        with suppress(Exception):
            connection = self.response.connection
            if connection is not None and connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)
        with suppress(Exception):
            self.response.close()


class Transport:
    """Requests over HTTP (`Requests`). `skew_s` is how far the server's clock is ahead of ours; NaN: unknown."""

    def __init__(self, access: Connections, wall_s: Callable[[], float] = time.time) -> None:
        self._access, self._wall_s, self._starting = access, wall_s, Starting(access)
        self.skew_s = float("nan")

    def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """The body of a 200 answer within `ANSWER_S`. Raises `ApiError`."""
        try:
            with within(ANSWER_S):
                return self._whole(path, query)
        except TimeoutError as error:
            raise ApiError(0, f"the answer was cut: {error}") from error

    def _whole(self, path: str, query: Mapping[str, str]) -> bytes:
        response = self._open(path, query, ANSWER_S)
        parts, size = [], 0
        try:
            for chunk in response.stream(CHUNK * 4, decode_content=True):
                parts.append(chunk)
                size += len(chunk)
                if size > MOST_BYTES:
                    raise ApiError(0, f"the answer to {path} is longer than {MOST_BYTES >> 20} MiB")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, f"the answer was cut: {_reason(error)}") from error
        finally:
            response.release_conn()
        return b"".join(parts)

    def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> Lines:
        """An open watch, cut when no byte comes for `silence_s`. Raises `ApiError`."""
        return _Stream(self._open(path, query, silence_s))

    def _open(self, path: str, query: Mapping[str, str], read_s: float, *, again: bool = True) -> Any:
        """A response with status 200, its body unread."""
        try:
            pool, headers, generation = self._access.connection()
            url = f"{self._access.host}{path}" + (f"?{urlencode(query)}" if query else "")
            response = pool.request(
                "GET",
                url,
                headers={**headers, "Accept": "application/json"},
                preload_content=False,
                redirect=False,
                retries=False,
                timeout=urllib3.Timeout(connect=CONNECT_S, read=read_s),
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, f"the API server does not answer: {_reason(error)}") from error
        self._measure_skew(response.headers.get("date", ""))
        if response.status == UNAUTHORIZED and again:
            response.drain_conn()
            try:
                self._access.renew(generation)
            except OSError as error:
                raise ApiError(UNAUTHORIZED, f"the credentials are refused, and {error}") from error
            return self._open(path, query, read_s, again=False)
        if response.status != 200:
            failed = _error_of(response)
            if not again or not names_a_right(failed.status, failed.message):
                raise failed
            if reason := self._starting.why():
                raise ApiError(UNAVAILABLE, reason, STARTS_S)
            return self._open(path, query, read_s, again=False)
        return response

    def _measure_skew(self, date: str) -> None:
        with suppress(ValueError, TypeError):
            self.skew_s = parsedate_to_datetime(date).timestamp() - self._wall_s()


def _error_of(response: Any) -> ApiError:
    """The error of an answer that is not 200: a Status object, or text."""
    body = response.read(64 << 10, decode_content=True) or b""
    response.release_conn()
    try:
        text = msgspec.json.decode(body, type=StatusBody).message
    except msgspec.DecodeError:
        text = body.decode("utf-8", "replace").strip()
    after = response.headers.get("retry-after", "")
    return ApiError(response.status, f"{response.status} {text[:300]}", float(after) if after.isdigit() else 0.0)


def _reason(error: BaseException) -> str:
    """The innermost cause in one line, without addresses of memory."""
    while error.args and isinstance(inner := getattr(error, "reason", None) or error.args[-1], BaseException):
        error = inner
    return f"{type(error).__name__}: {str(error).rpartition('>: ')[2]}"[:300]
