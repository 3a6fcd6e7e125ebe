"""The work queue of a controller: keys of objects."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from apiserver.errors import StatusError
from apiserver.timeline import US, Clock, Timer

Key = TypeVar("Key", bound=Hashable)
FIRST_RETRY_S = 0.005  # client-go's DefaultControllerRateLimiter: 5 ms, doubled up to 1000 s
LAST_RETRY_S = 1000.0


class WorkQueue(Generic[Key]):
    """Keys waiting for their sync, as in client-go: each at most once, the earliest time counts.

    `sync` is called by the timeline `latency_s` after its key became due. A StatusError is retried, later each time.
    `sync` may be a generator of the seconds for each write: a key added meanwhile waits.
    """

    def __init__(
        self,
        timeline: Clock,
        sync: Callable[[Key], Iterator[float] | None],
        latency_s: float,
        retry_s: float = FIRST_RETRY_S,
        last_retry_s: float = LAST_RETRY_S,
    ) -> None:
        self._timeline = timeline
        self._sync = sync
        self._latency_s = latency_s
        self._retry_s = retry_s
        self._last_retry_s = last_retry_s
        self._due: set[Key] = set()
        self._running: set[Key] = set()
        self._later: dict[Key, Timer] = {}
        self._failures: dict[Key, int] = {}

    def add(self, key: Key) -> None:
        """Sync a key now."""
        if key not in self._due:
            self._due.add(key)
            self._timeline.at(self._latency_s, lambda: self._run(key))

    def add_after(self, key: Key, delay_s: float) -> None:
        """Sync a key after a delay, or earlier if it is due earlier already."""
        if delay_s <= 0:
            self.add(key)
            return
        at_us = self._timeline.now_us + round(delay_s * US)
        held = self._later.get(key)
        if held is not None:
            if held.at_us <= at_us:
                return
            held.cancel()
        self._later[key] = self._timeline.at_us(at_us, lambda: self._fire(key))

    def _fire(self, key: Key) -> None:
        del self._later[key]
        self.add(key)

    def _run(self, key: Key) -> None:
        if key in self._running:
            return  # it is still due: the end of the sync under way starts it
        self._due.discard(key)
        try:
            steps = self._sync(key)
        except StatusError:
            self._failed(key)
        else:
            self._running.add(key)
            self._continue(key, steps)

    def _continue(self, key: Key, steps: Iterator[float] | None) -> None:
        try:
            wait_s = next(steps, None) if steps is not None else None
        except StatusError:
            self._end(key)
            self._failed(key)
            return
        if wait_s is None:
            self._failures.pop(key, None)
            self._end(key)
        else:
            self._timeline.at(wait_s, lambda: self._continue(key, steps))

    def _end(self, key: Key) -> None:
        self._running.discard(key)
        if key in self._due:
            self._timeline.at(0.0, lambda: self._run(key))

    def _failed(self, key: Key) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self.add_after(key, min(self._retry_s * 2 ** (failures - 1), self._last_retry_s))
