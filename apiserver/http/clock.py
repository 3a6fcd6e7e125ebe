"""A timeline that follows real time, and stands still while it is held."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from apiserver.timeline import US, Timeline

LOG = logging.getLogger(__name__)
IDLE_S = 0.5  # the longest sleep between two looks at the clock


def _report(error: Exception) -> None:
    """An actor failed: the server goes on, and its log says so."""
    LOG.error("an actor of the API server failed", exc_info=error)


class LiveClock:
    """Moves a timeline with real time x `speed`, in a thread of its own. `lock` guards the server and the timeline."""

    def __init__(self, timeline: Timeline, speed: float = 1.0) -> None:
        self.timeline = timeline
        self.timeline.on_error = _report
        self.lock = threading.RLock()
        self._speed = speed
        self._holders = 0
        self._anchor_s = time.monotonic()
        self._anchor_us = timeline.now_us
        self._changed = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="apiserver-clock", daemon=True)

    @property
    def speed(self) -> float:
        """Virtual seconds in a real one."""
        return self._speed

    def start(self) -> None:
        """Time runs from now on."""
        with self.lock:
            self._set_anchor()
        self._thread.start()

    def stop(self) -> None:
        """Time stands still for good."""
        self._ended = True
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def hold(self) -> Iterator[Timeline]:
        """The clock stands still inside; the holder may move the timeline, under `lock`. The server still answers."""
        with self.lock:
            self.catch_up()
            self._holders += 1
        try:
            yield self.timeline
        finally:
            with self.lock:
                self._holders -= 1
                self._set_anchor()
            self.wake()

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """A request is answered inside, at the present moment; actors see its writes before this ends."""
        with self.lock:
            self.catch_up()
            yield
            self.catch_up()

    def next_us(self) -> int | None:
        """The moment at which something happens next; None if nothing waits."""
        return self.timeline.next_us()

    def catch_up(self) -> None:
        """Run the timeline up to the present. The caller has the lock."""
        self.timeline.run_until_us(max(self._present_us(), self.timeline.now_us))

    def wake(self) -> None:
        """Look at the timeline again: something was scheduled."""
        self._changed.set()

    def _present_us(self) -> int:
        if self._holders or not self._thread.is_alive():
            return self.timeline.now_us
        return self._anchor_us + round((time.monotonic() - self._anchor_s) * self._speed * US)

    def _set_anchor(self) -> None:
        self._anchor_s = time.monotonic()
        self._anchor_us = self.timeline.now_us

    def _run(self) -> None:
        while not self._ended:
            with self.lock:
                self.catch_up()
                next_us, present_us = self.next_us(), self.timeline.now_us
                holding = bool(self._holders)
            wait_s = IDLE_S
            if next_us is not None and not holding:
                wait_s = min(max(next_us - present_us, 0) / US / self._speed, IDLE_S)
            self._changed.wait(wait_s)
            self._changed.clear()
