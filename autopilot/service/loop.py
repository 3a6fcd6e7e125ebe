"""Times of decisions: at a fixed interval, at the time requested by the controller, and early at an event."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import structlog

from autopilot.controller import Controller
from autopilot.core.model.errors import InvariantError
from autopilot.core.model.memory import Step

log: Any = structlog.get_logger("loop")


class Loop:
    """Ticks one controller until it is stopped. `wake` and `stop` may be called from any thread and signal handler."""

    def __init__(
        self,
        controller: Controller,
        now_s: Callable[[], float],
        after_tick: Callable[[Step | None, float], None],
        *,
        interval_s: float,
        least_s: float,
        speed: float = 1.0,
        still: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`now_s` is the cluster's clock, `interval_s` counts by it; `least_s` is wall time.

        `still` is open during each tick: a clock that can stand stands meanwhile, and has the whole interval to run
        after it. `after_tick` receives the step (None while another controller leads) and the wall time of the tick.
        """
        self._controller, self._now_s, self._after_tick = controller, now_s, after_tick
        self._interval_s, self._least_s, self._speed = interval_s, least_s, speed
        self._still = still
        self._wake, self._hurry, self._stopped = threading.Event(), threading.Event(), threading.Event()

    def wake(self, hurry: bool = False) -> None:
        """Tick early: something urgent happened. With `hurry`, do not wait for `least_s` either."""
        if hurry:
            self._hurry.set()
        self._wake.set()

    def stop(self) -> None:
        """End after the current tick."""
        self._stopped.set()
        self._hurry.set()
        self._wake.set()

    @property
    def stopped(self) -> bool:
        """True once the loop was told to end."""
        return self._stopped.is_set()

    def run(self) -> None:
        """Tick until `stop`. Our own defect ends its tick only; a failing disk ends the loop by `InputError`."""
        while not self._stopped.is_set():
            began_s = time.monotonic()
            self._wake.clear()
            self._hurry.clear()
            with self._still():
                now_s = self._now_s()
                self._tick(now_s, began_s)
            took_s = time.monotonic() - began_s
            runs_s = began_s if self._still is nullcontext else began_s + took_s  # start of the cluster's running clock
            rest_s = max(self._least_s - took_s, 0.0)
            if self._stopped.wait(min(took_s, rest_s)):  # hurrying ticks take half of a core at most
                break
            self._hurry.wait(max(self._least_s - (time.monotonic() - began_s), 0.0))
            self._wake.wait(max(self._pause_s(now_s) - (time.monotonic() - runs_s), 0.0))

    def _tick(self, now_s: float, began_s: float) -> None:
        try:
            step = self._controller.tick(now_s)
            self._after_tick(step, time.monotonic() - began_s)
        except InvariantError as error:
            log.exception("tick failed", error=str(error), fix="this is a defect; report it with the journal")

    def _pause_s(self, now_s: float) -> float:
        """Wall time from the tick of `now_s` to the next one, if nothing happens."""
        due_s = min(self._interval_s, max(self._controller.wake_at_s - now_s, 0.0))
        return max(due_s / self._speed, self._least_s)
