"""Deadlines of requests by the wall clock, independent of the other end: at its deadline a connection is shut.

The timeout of a socket counts from one byte to the next, so a peer with one byte a second never exceeds it. Here one
thread watches the clock and shuts the sockets of late requests; the reader of such a socket wakes at once. The
resolution of a name is not bounded: no socket is there yet.
"""

from __future__ import annotations

import heapq
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from requests import Session
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection

T = TypeVar("T")


class Limit:
    """The deadline of the requests inside one `within`, in any thread carrying it. `cut` may be called early."""

    def __init__(self, end_s: float, words: str, outer: Limit | None) -> None:
        self.end_s, self._is_cut = end_s, False
        self._words, self._outer = words, outer
        self._lock, self._held = threading.Lock(), list[socket.socket]()
        self._open = True

    def hold(self, fd: int) -> None:
        """Shut the connection of this descriptor at the deadline. Raises `TimeoutError` if that is over."""
        copy = socket.socket(fileno=os.dup(fd))  # TLS and the end of a response give their own descriptor up earlier
        with self._lock:
            late = self._is_cut or not self._open
            if not late:
                self._held.append(copy)
        if late:
            copy.close()
            raise self.late()
        if self._outer is not None:
            self._outer.hold(fd)

    @property
    def over(self) -> bool:
        """True if its connections were shut, by this limit or by the one around it."""
        return self._is_cut or (self._outer is not None and self._outer.over)

    def cut(self) -> None:
        """Shut every connection, and let none begin any more."""
        with self._lock:
            self._is_cut = self._open
            for each in self._held:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """The requests have ended: their connections are left alone."""
        with self._lock:
            self._open = False
            for each in self._held:
                each.close()
            self._held.clear()

    def late(self) -> TimeoutError:
        """The error of a cut request."""
        return TimeoutError(self._words)


class _Watch:
    """One thread for all limits, begun with the first one."""

    def __init__(self) -> None:
        self._news, self._order = threading.Condition(), itertools.count()
        self._limits: list[tuple[float, int, Limit]] = []
        self._thread: threading.Thread | None = None

    def add(self, limit: Limit) -> None:
        with self._news:
            heapq.heappush(self._limits, (limit.end_s, next(self._order), limit))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)
                self._thread.start()
            self._news.notify()

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._limits or self._limits[0][0] > time.monotonic():
                    rest_s = self._limits[0][0] - time.monotonic() if self._limits else None
                    self._news.wait(rest_s)
                limit = heapq.heappop(self._limits)[2]
            limit.cut()


_WATCH = _Watch()
_NOW: ContextVar[Limit | None] = ContextVar("limit", default=None)


@contextmanager
def within(limit_s: float) -> Iterator[Limit]:
    """Requests over watched connections end within `limit_s`, or with `TimeoutError`; an outer limit counts as well."""
    outer = _NOW.get()
    limit = Limit(time.monotonic() + limit_s, f"no whole answer within {limit_s:g} s; the connection was closed", outer)
    token = _NOW.set(limit)
    _WATCH.add(limit)
    try:
        yield limit
    except Exception as error:
        # the timeout of the socket may end a request before its connection is shut
        if (limit.over or time.monotonic() >= limit.end_s) and not isinstance(error, TimeoutError):
            raise limit.late() from error
        raise
    else:
        if limit.over:  # a body without a stated length ends with its connection
            raise limit.late()
    finally:
        _NOW.reset(token)
        limit.release()


def carried(work: Callable[..., T], *given: Any) -> Callable[[], T]:
    """`work(*given)` for another thread, under the limit of this one."""
    context = copy_context()
    return lambda: context.run(work, *given)


def watched(pools: PoolManager) -> PoolManager:
    """Let this manager make connections under the deadline of `within`."""
    pools.pool_classes_by_scheme = {"http": WatchedHTTPConnectionPool, "https": WatchedHTTPSConnectionPool}
    return pools


def watched_session(session: Session) -> Session:
    """The same for a session of `requests`, with its present adapters."""
    for adapter in session.adapters.values():
        if isinstance(adapter, HTTPAdapter):
            watched(adapter.poolmanager)
    return session


def _hold(fd: int) -> None:
    limit = _NOW.get()
    if limit is not None:
        limit.hold(fd)


class _Watched:
    """A connection that tells its socket to the limit of its request, at its creation and at each reuse."""

    sock: Any

    def _new_conn(self) -> socket.socket:
        made: socket.socket = super()._new_conn()  # type: ignore[misc]
        try:
            _hold(made.fileno())
        except TimeoutError:
            made.close()
            raise
        return made

    def request(self, *given: Any, **named: Any) -> None:
        if self.sock is not None:
            _hold(self.sock.fileno())
        super().request(*given, **named)  # type: ignore[misc]


class WatchedHTTPConnection(_Watched, HTTPConnection):
    """A connection under the deadline of `within`."""


class WatchedHTTPSConnection(_Watched, HTTPSConnection):
    """The same with TLS."""


class WatchedHTTPConnectionPool(HTTPConnectionPool):
    """The connections to one host."""

    ConnectionCls = WatchedHTTPConnection


class WatchedHTTPSConnectionPool(HTTPSConnectionPool):
    """The same with TLS."""

    ConnectionCls = WatchedHTTPSConnection
