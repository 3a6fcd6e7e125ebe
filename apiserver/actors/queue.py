"""The queue of keys that a controller works on."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from apiserver.errors import StatusError
from apiserver.timeline import US, Timeline, Timer

Key = TypeVar("Key", bound=Hashable)
FIRST_RETRY_S = 0.005  # client-go's DefaultControllerRateLimiter: 5 ms, doubled up to 1000 s
LAST_RETRY_S = 1000.0


class WorkQueue(Generic[Key]):
    """Keys that wait to be synced, as in client-go: each at most once, the earliest time counts.

    `sync` is called by the timeline `latency_s` after its key became due. A StatusError is retried, later each time.
    """

    def __init__(
        self, timeline: Timeline, sync: Callable[[Key], None], latency_s: float, retry_s: float = FIRST_RETRY_S
    ) -> None:
        self._timeline = timeline
        self._sync = sync
        self._latency_s = latency_s
        self._retry_s = retry_s
        self._due: set[Key] = set()
        self._later: dict[Key, Timer] = {}
        self._failures: dict[Key, int] = {}

    def add(self, key: Key) -> None:
        """Sync a key now."""
        if key not in self._due:
            self._due.add(key)
            self._timeline.at(self._latency_s, lambda: self._run(key))

    def add_after(self, key: Key, delay_s: float) -> None:
        """Sync a key after a delay, or when it is due already earlier."""
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
        self._due.discard(key)
        try:
            self._sync(key)
        except StatusError:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            self.add_after(key, min(self._retry_s * 2 ** (failures - 1), LAST_RETRY_S))
        else:
            self._failures.pop(key, None)
