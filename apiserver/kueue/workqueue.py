"""A queue of keys to reconcile: each once, a little later."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from apiserver.timeline import Clock, Timer

K = TypeVar("K", bound=Hashable)
RETRY_S, LAST_RETRY_S = 0.1, 1000.0
"""Between two tries that fail: doubled each time, as controller-runtime does."""


class WorkQueue(Generic[K]):
    """Calls `handle(key)` `delay_s` after a key was added; a waiting key keeps its earlier time."""

    def __init__(self, timeline: Clock, delay_s: float, handle: Callable[[K], None]) -> None:
        self._timeline = timeline
        self._delay_s = delay_s
        self._handle = handle
        self._waiting: dict[K, Timer] = {}
        self._resting: dict[K, int] = {}
        self._failures: dict[K, int] = {}

    def add(self, key: K, delay_s: float | None = None) -> None:
        """Handle a key soon, or after `delay_s` seconds."""
        wait_s = self._delay_s if delay_s is None else delay_s
        moment_us = max(self._timeline.now_us + round(wait_s * 1_000_000), self._resting.get(key, 0))
        waiting = self._waiting.get(key)
        if waiting is not None:
            if waiting.at_us <= moment_us:
                return
            waiting.cancel()
        self._waiting[key] = self._timeline.at_us(moment_us, lambda: self._due(key))

    def again(self, key: K) -> None:
        """Handle a failed key again, later each time in a row."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self.add(key, min(RETRY_S * 2 ** (failures - 1), LAST_RETRY_S))

    def rest(self, key: K, wait_s: float) -> None:
        """Handle a key next after `wait_s` seconds, not earlier."""
        self._resting[key] = self._timeline.now_us + round(wait_s * 1_000_000)
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.cancel()
        self.add(key, wait_s)

    def _due(self, key: K) -> None:
        self._waiting.pop(key, None)
        self._resting.pop(key, None)
        failures = self._failures.get(key, 0)
        self._handle(key)
        if self._failures.get(key, 0) == failures:
            self._failures.pop(key, None)

    def clear(self) -> None:
        """Forget the waiting keys."""
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        self._resting.clear()
        self._failures.clear()
