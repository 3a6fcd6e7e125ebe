"""Sources of telemetry are read beside the tick: each in a thread of its own, with a deadline by the wall clock.

A tick begins a read of every source that is not being read, waits shortly for the answers, and takes the newest whole
answer of each. Past its deadline a read is a gap and its connections are shut; the source is asked again only after
that read has ended. A simulation and a replay have no such sources: they stay on one thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from autopilot.core.model.ports import Collector
from autopilot.core.model.records import Batch, Gap
from autopilot.deadline import Limit, within

READ_S = 30.0
"""Longest time of one read of a source: slower telemetry is too old to act on."""
WAIT_S = 1.0
"""Longest wait of one tick for its begun reads, for all sources together."""


class BesideCollector:
    """Reads `inner` in a thread of its own (ports `Collector` and `Beginning`)."""

    def __init__(
        self,
        inner: Collector,
        *,
        read_s: float = READ_S,
        wait_s: float = WAIT_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.lists = inner.name, bool(getattr(inner, "lists", True))
        self._inner, self._read_s, self._wait_s, self._monotonic_s = inner, read_s, wait_s, monotonic_s
        self._news = threading.Condition()
        self._began_s: float | None = None  # of the read under way
        self._prompt = True  # the last read ended within the wait of its tick
        self._waits = False  # this tick began the read
        self._limit: Limit | None = None  # of the read under way
        self._closed = False
        self._last: Batch | Exception = self._gap(0.0, "has not answered yet")

    def begin(self, now_s: float) -> None:
        """Read the source as of `now_s`, unless its last read has not ended."""
        with self._news:
            self._waits = self._began_s is None and self._prompt
            if self._began_s is not None or self._closed:
                return
            self._began_s = self._monotonic_s()
        threading.Thread(target=self._read, args=(now_s,), name=f"read {self.name}", daemon=True).start()

    def collect(self, now_s: float) -> Batch:
        """The newest answer of the source, or a gap. Raises the exception of a failed read."""
        with self._news:
            if self._waits and self._began_s is not None:
                rest_s = self._began_s + self._wait_s - self._monotonic_s()
                self._news.wait_for(lambda: self._began_s is None, max(rest_s, 0.0))
            self._prompt = self._began_s is None
            if self._began_s is not None and self._monotonic_s() - self._began_s >= self._read_s:
                return self._gap(now_s, f"no whole answer within {self._read_s:g} s; it is asked again after that read")
            if isinstance(self._last, Exception):
                raise self._last
            return self._last

    def close(self) -> None:
        """Shut the connections of the read under way, and begin no other."""
        with self._news:
            self._closed, limit = True, self._limit
        if limit is not None:
            limit.cut()

    def _read(self, now_s: float) -> None:
        found: Batch | Exception
        try:
            with within(self._read_s) as limit:
                with self._news:
                    self._limit = limit
                found = self._inner.collect(now_s)
        except TimeoutError as error:
            found = self._gap(now_s, str(error))
        except Exception as error:  # noqa: BLE001 - the tick raises it
            found = error
        with self._news:
            self._last, self._began_s, self._limit = found, None, None
            self._news.notify_all()

    def _gap(self, now_s: float, reason: str) -> Batch:
        return Batch(self.name, now_s, gaps=(Gap(self.name, "", "", reason),))
