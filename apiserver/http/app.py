"""The server over HTTP: an ASGI application, a clock that follows real time, and faults on request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from email.utils import format_datetime

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.responses import StreamingResponse
from starlette.routing import Route

from apiserver.http.clock import LiveClock
from apiserver.http.faults import Fault, Faults
from apiserver.requests import Request, Response, WatchStream
from apiserver.server import Server

PIECE_BYTES = 256 * 1024  # lists are sent in pieces of about this size
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


class DroppedError(ConnectionError):
    """Ends a connection in the middle of a response: a planned fault."""


@dataclass(frozen=True)
class Shell:
    """What a request needs: the server, its clock, and the faults."""

    server: Server
    clock: LiveClock
    faults: Faults

    @property
    def lock(self) -> threading.RLock:
        """One for the server and its timeline."""
        return self.clock.lock

    def handle(self, request: Request) -> Response | WatchStream:
        """Answer at the present moment of the clock, and let actors see the write."""
        with self.clock.exchange():
            answer = self.server.handle(request)
            answer.headers.setdefault("date", format_datetime(self.clock.timeline.now, usegmt=True))
        self.clock.wake()
        return answer

    async def endpoint(self, http: HttpRequest) -> HttpResponse:
        """Any request."""
        asked = http.query_params
        watch, dry = asked.get("watch") in {"1", "true"}, "dryRun" in asked
        fault = self.faults.draw(http.method, http.url.path, watch=watch, dry=dry)
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        if fault.answer is not None and not fault.carried_out:
            return _plain(fault.answer)
        headers: dict[str, str] = {}
        for name, value in http.headers.items():  # a name may come twice: Impersonate-Group
            headers[name.lower()] = f"{headers[name.lower()]}, {value}" if name.lower() in headers else value
        body = await http.body()
        request = Request(http.method, http.url.path, dict(http.query_params), headers, body or None)
        answer = self.handle(request)
        if answer.status == 0:
            raise DroppedError("the server is down")
        if isinstance(answer, WatchStream):
            return self._stream(answer, fault)
        if answer.delay_s:
            await asyncio.sleep(answer.delay_s / self.clock.speed)
        if fault.answer is not None:
            return _plain(fault.answer)
        if fault.drop:
            return StreamingResponse(_cut(answer.chunks()), answer.status, answer.headers)
        if http.method == "HEAD":
            return HttpResponse(None, answer.status, answer.headers)
        return _plain(answer)

    def _stream(self, stream: WatchStream, fault: Fault) -> StreamingResponse:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(ready.set)

        with self.lock:
            stream.wake = wake
        headers = dict(stream.headers)
        return StreamingResponse(self._events(stream, ready, fault), stream.status, headers)

    async def _events(self, stream: WatchStream, ready: asyncio.Event, fault: Fault) -> AsyncIterator[bytes]:
        sent = 0
        try:
            while True:
                ready.clear()
                with self.lock:
                    events, closed = stream.take(), stream.closed
                lines = [event.line() for event in self.faults.stirred(events)]
                if cut := fault.drop_after is not None and sent + len(lines) >= fault.drop_after:
                    lines = lines[: (fault.drop_after or 0) - sent]
                sent += len(lines)
                for piece in _pieces(lines):
                    yield piece
                    await asyncio.sleep(0)  # a client that is gone is noticed before the next piece
                if cut:
                    raise DroppedError("a planned fault ends this watch")
                if closed:
                    return
                await ready.wait()
        finally:
            with self.lock:
                stream.close()


def application(shell: Shell) -> Starlette:
    """The ASGI application."""
    return Starlette(routes=[Route("/{path:path}", shell.endpoint, methods=METHODS)])


def _plain(answer: Response) -> HttpResponse:
    pieces = list(_pieces(answer.chunks()))
    if len(pieces) > 1:
        return StreamingResponse(_sent(pieces), answer.status, answer.headers)
    return HttpResponse(pieces[0] if pieces else b"", answer.status, answer.headers)


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Small chunks joined to larger pieces."""
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= PIECE_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


async def _sent(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _cut(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Half of a body, then a broken connection."""
    body = b"".join(chunks)
    yield body[: len(body) // 2]
    raise DroppedError("a planned fault ends this response")
