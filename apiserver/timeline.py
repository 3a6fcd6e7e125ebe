"""Virtual time: the one clock of the server and its actors, with callbacks in a fixed order."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
US = 1_000_000
Callback = Callable[[], None]


class Timer:
    """A callback waiting for its time. `cancel` disables it."""

    __slots__ = ("at_us", "callback")

    def __init__(self, at_us: int, callback: Callback | None) -> None:
        self.at_us = at_us
        self.callback = callback

    def cancel(self) -> None:
        """The callback is not called; harmless after it was."""
        self.callback = None


class Clock(ABC):
    """The present moment, and callbacks at later ones."""

    @property
    @abstractmethod
    def now_us(self) -> int:
        """Microseconds since 1970."""

    @property
    def now_s(self) -> float:
        """Seconds since 1970."""
        return self.now_us / US

    @property
    def now(self) -> datetime:
        """The moment in UTC."""
        return EPOCH + timedelta(microseconds=self.now_us)

    @abstractmethod
    def at_us(self, moment_us: int, callback: Callback) -> Timer:
        """Call `callback` at a moment, or as soon as time runs if that has passed."""

    def at(self, delay_s: float, callback: Callback) -> Timer:
        """Call `callback` after `delay_s` (>= 0) seconds; 0 is as soon as time runs."""
        return self.at_us(self.now_us + round(delay_s * US), callback)


class Timeline(Clock):
    """Time in whole microseconds since 1970; it moves only in `run_until` and `run_for`.

    Callbacks of one moment run in the order of their scheduling: one scheduled for now runs after those waiting
    already.
    """

    def __init__(self, start: datetime) -> None:
        self._now_us = (start - EPOCH) // timedelta(microseconds=1)
        self._waiting: list[tuple[int, int, Timer]] = []
        self._scheduled = 0
        self._running = False
        self.retry_after_s: Callable[[Exception], float | None] = lambda _error: None
        """When a callback that failed is called again; None: never, the error goes to `on_error` or is raised."""
        self.on_error: Callable[[Exception], None] | None = None  # takes what a callback raises; None: it is raised

    @property
    def now_us(self) -> int:
        """Microseconds since 1970."""
        return self._now_us

    def at_us(self, moment_us: int, callback: Callback) -> Timer:
        """Call `callback` at a moment, or as soon as time runs if that has passed."""
        timer = Timer(max(moment_us, self._now_us), callback)
        self._scheduled += 1
        heapq.heappush(self._waiting, (timer.at_us, self._scheduled, timer))
        return timer

    def next_us(self) -> int | None:
        """The moment of the next callback; None if none waits."""
        while self._waiting and self._waiting[0][2].callback is None:
            heapq.heappop(self._waiting)
        return self._waiting[0][0] if self._waiting else None

    def _call(self, callback: Callback) -> None:
        try:
            callback()
        except Exception as error:
            delay_s = self.retry_after_s(error)
            if delay_s is not None:
                self.at(delay_s, callback)
            elif self.on_error is not None:
                self.on_error(error)  # one actor must not stop the others
            else:
                raise

    def run_until_us(self, moment_us: int) -> None:
        """Run the callbacks up to and including a moment, and leave the clock there. Not from inside a callback."""
        if self._running:
            raise RuntimeError("a callback may not run the timeline: schedule with at() instead")
        self._running = True
        try:
            while (due_us := self.next_us()) is not None and due_us <= moment_us:
                timer = heapq.heappop(self._waiting)[2]
                self._now_us = max(self._now_us, timer.at_us)
                callback, timer.callback = timer.callback, None
                if callback is not None:
                    self._call(callback)
        finally:
            self._running = False
        self._now_us = max(self._now_us, moment_us)

    def run_until(self, moment: datetime) -> None:
        """`run_until_us` for a datetime."""
        self.run_until_us((moment - EPOCH) // timedelta(microseconds=1))

    def run_for(self, delay_s: float) -> None:
        """Run the callbacks of the next `delay_s` seconds; 0 runs those due now."""
        self.run_until_us(self._now_us + round(delay_s * US))


class Process(Clock):
    """A program running on a timeline. While it is stopped, or cut off from the server, its callbacks wait."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._held: list[Timer] = []
        self.stopped = False
        self.is_cut = False

    @property
    def now_us(self) -> int:
        """Microseconds since 1970."""
        return self._timeline.now_us

    def at_us(self, moment_us: int, callback: Callback) -> Timer:
        """Call `callback` at a moment, or as soon as the program goes on after it."""
        timer = Timer(max(moment_us, self.now_us), callback)
        self._timeline.at_us(moment_us, partial(self._due, timer))
        return timer

    def _due(self, timer: Timer) -> None:
        if self.stopped or self.is_cut:
            self._held.append(timer)
        elif timer.callback is not None:
            timer.callback()

    def stop(self) -> None:
        """SIGSTOP: callbacks due from now on wait."""
        self.stopped = True

    def resume(self) -> None:
        """SIGCONT: callbacks due meanwhile are called now, in their order."""
        self.stopped = False
        self._go_on()

    def cut(self) -> None:
        """The server is down."""
        self.is_cut = True

    def reconnect(self) -> None:
        """The server is back: callbacks due meanwhile are called now, in their order."""
        self.is_cut = False
        self._go_on()

    def _go_on(self) -> None:
        held, self._held = self._held, []
        for timer in held:
            self._timeline.at(0.0, partial(self._due, timer))


def stamp(moment: datetime) -> str:
    """A time as `metav1.Time` writes it: whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_stamp(moment: datetime) -> str:
    """A time as `metav1.MicroTime` writes it: six decimals."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_stamp(text: str) -> datetime:
    """The moment of a `Time` or `MicroTime`. Raises ValueError."""
    return datetime.fromisoformat(text)
