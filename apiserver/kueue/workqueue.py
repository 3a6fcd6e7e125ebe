"""A queue of keys to reconcile: each once, a little later."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from apiserver.timeline import Timeline, Timer

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Calls `handle(key)` `delay_s` after a key was added; a key that waits already keeps its earlier time."""

    def __init__(self, timeline: Timeline, delay_s: float, handle: Callable[[K], None]) -> None:
        self._timeline = timeline
        self._delay_s = delay_s
        self._handle = handle
        self._waiting: dict[K, Timer] = {}

    def add(self, key: K, delay_s: float | None = None) -> None:
        """Handle a key soon, or after `delay_s` seconds."""
        wait_s = self._delay_s if delay_s is None else delay_s
        moment_us = self._timeline.now_us + round(wait_s * 1_000_000)
        waiting = self._waiting.get(key)
        if waiting is not None:
            if waiting.at_us <= moment_us:
                return
            waiting.cancel()
        self._waiting[key] = self._timeline.at_us(moment_us, lambda: self._due(key))

    def _due(self, key: K) -> None:
        self._waiting.pop(key, None)
        self._handle(key)

    def clear(self) -> None:
        """Forget what waits."""
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
