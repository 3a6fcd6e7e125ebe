"""When the loop ticks: at its interval, when the controller asked for it, early on events, and not too often."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from autopilot.controller import Controller
from autopilot.core.model.errors import InputError, InvariantError
from autopilot.service.loop import Loop


class Ticker:
    """A controller that notes when it is asked."""

    def __init__(self, wake_at_s: float = float("inf"), error: Exception | None = None) -> None:
        self.wake_at_s, self.error = wake_at_s, error
        self.at_s: list[float] = []

    def tick(self, now_s: float) -> Any:
        self.at_s.append(time.monotonic())
        if self.error is not None and len(self.at_s) == 1:
            raise self.error
        return "step"


def _run(ticker: Ticker, ticks: int, **rules: Any) -> tuple[Loop, threading.Thread, threading.Event]:
    """A loop in a thread, and an event once it ticked so often."""
    reached = threading.Event()

    def after(_step: object, _took_s: float) -> None:
        if len(ticker.at_s) >= ticks:
            reached.set()

    given: dict[str, Any] = {"interval_s": 1000.0, "least_s": 0.01, "speed": 1.0, **rules}
    loop = Loop(cast("Controller", ticker), lambda: 100.0, after, **given)
    thread = threading.Thread(target=loop.run)
    thread.start()
    return loop, thread, reached


def _end(loop: Loop, thread: threading.Thread) -> None:
    loop.stop()
    thread.join(10.0)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "rules", [{"interval_s": 0.02}, {"interval_s": 2.0, "speed": 100.0}], ids=["interval", "interval of a fast clock"]
)
def test_it_ticks_at_its_interval_of_the_clusters_clock(rules: dict[str, float]) -> None:
    """At a speed of 100, two seconds of the cluster are a fiftieth of a second."""
    loop, thread, reached = _run(Ticker(), 4, **rules)
    assert reached.wait(10.0)
    _end(loop, thread)


def test_it_ticks_when_the_controller_asked_for_it() -> None:
    """Long before the interval is over."""
    loop, thread, reached = _run(Ticker(wake_at_s=100.02), 4)
    assert reached.wait(10.0)
    _end(loop, thread)


def test_an_event_wakes_it_early_and_many_do_not_wake_it_more_often() -> None:
    """At most one tick in `least_s`, however many events come."""
    ticker = Ticker()
    loop, thread, reached = _run(ticker, 3, least_s=0.1)
    end_s = time.monotonic() + 10.0
    while not reached.is_set() and time.monotonic() < end_s:
        loop.wake()
        time.sleep(0.001)
    assert reached.is_set()
    _end(loop, thread)
    assert min(after - before for before, after in zip(ticker.at_s, ticker.at_s[1:], strict=False)) >= 0.09


def test_a_defect_ends_its_tick_only() -> None:
    """The next tick is made; what failed is in the log."""
    loop, thread, reached = _run(Ticker(error=InvariantError("planted")), 3, interval_s=0.02)
    assert reached.wait(10.0)
    _end(loop, thread)


def test_a_failing_disk_ends_the_loop() -> None:
    """The process ends, and its supervisor starts it again from what is on disk."""
    loop = Loop(
        cast("Controller", Ticker(error=InputError("disk"))), lambda: 0.0, lambda *_: None, interval_s=1, least_s=1
    )
    with pytest.raises(InputError, match="disk"):
        loop.run()


def test_a_clock_that_can_stand_stands_during_a_tick() -> None:
    """The time of a tick is read after the clock stands, and it goes on when the tick has ended."""
    held: list[str] = []

    @contextmanager
    def still() -> Iterator[None]:
        held.append("stands")
        yield
        held.append("goes on")

    class Looking(Ticker):
        def tick(self, now_s: float) -> Any:
            held.append("tick")
            return super().tick(now_s)

    loop, thread, reached = _run(Looking(), 1, still=still)
    assert reached.wait(10)
    _end(loop, thread)
    assert held[:3] == ["stands", "tick", "goes on"]


def test_a_clock_that_stood_has_the_interval_to_run_after_a_tick() -> None:
    """A slow tick does not follow the one before it at once, or time would stand for good."""

    class Slow(Ticker):
        def tick(self, now_s: float) -> Any:
            step = super().tick(now_s)
            time.sleep(0.1)
            return step

    @contextmanager
    def still() -> Iterator[None]:
        yield

    ticker = Slow()
    loop, thread, reached = _run(ticker, 3, still=still, interval_s=0.1)
    assert reached.wait(10)
    _end(loop, thread)
    assert min(after - before for before, after in zip(ticker.at_s, ticker.at_s[1:], strict=False)) >= 0.19


def test_a_hurry_does_not_wait_for_the_least_time() -> None:
    """Work that promises a latency is looked at as soon as the last tick has ended."""
    ticker = Ticker()
    loop, thread, reached = _run(ticker, 2, least_s=30.0)
    end_s = time.monotonic() + 10.0
    while not reached.is_set() and time.monotonic() < end_s:
        loop.wake(hurry=bool(ticker.at_s))
        reached.wait(0.01)
    assert reached.is_set()
    _end(loop, thread)


def test_an_event_without_hurry_waits_for_the_least_time() -> None:
    """An ordinary event does not tick again within it."""
    ticker = Ticker()
    loop, thread, reached = _run(ticker, 2, least_s=30.0)
    end_s = time.monotonic() + 0.3
    while not reached.is_set() and time.monotonic() < end_s:
        loop.wake()
        reached.wait(0.01)
    assert len(ticker.at_s) == 1
    _end(loop, thread)
