"""Time limits of a request's arrival, and of the reading of its answer. They hold before any credentials do."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

WHOLE_S = 15.0
"""Longest time from a connection, or from the first byte of a further request on it, to the end of a request."""

UNREAD_S = 60.0
"""Longest time without a read by the peer of its waiting data."""


class HastyProtocol(H11Protocol):
    """Closes a connection whose request is not whole in time, at any pace of its bytes."""

    whole_s, unread_s = WHOLE_S, UNREAD_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the peer's time for a whole request."""
        super().connection_made(transport)
        self._due: asyncio.TimerHandle | None = self.loop.call_later(self.whole_s, self._late)
        self._unread: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """More bytes do not give more time."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """The next request on the connection may have begun already."""
        super().on_response_complete()
        self._watch(begun=self.conn.trailing_data[0] != b"")
        self._give_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        super().connection_lost(exc)
        self._rest()
        self._read()

    def pause_writing(self) -> None:
        """More waits for the peer than the server keeps."""
        super().pause_writing()
        self._give_time()

    def resume_writing(self) -> None:
        """The peer has taken most of it."""
        super().resume_writing()
        self._read()

    def _give_time(self) -> None:
        if self._unread is None and self.transport.get_write_buffer_size():
            self._unread = self.loop.call_later(self.unread_s, self._cut)

    def _cut(self) -> None:
        """Abort a closing connection: it would wait for its peer to take the rest, without end."""
        self._unread = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def _read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _watch(self, *, begun: bool = True) -> None:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        waits = cycle is None or (cycle.response_complete and begun) or cycle.more_body
        if not waits:
            self._rest()
        elif self._due is None:
            self._due = self.loop.call_later(self.whole_s, self._late)

    def _rest(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _late(self) -> None:
        self._due = None
        self._give_time()
        self.transport.close()
