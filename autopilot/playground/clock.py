"""One virtual clock for the server, the simulated cluster and the controller.

It stands while anybody holds it: a request under way, a tick of the controller, a check. Wall time in between
is not made up for. Virtual seconds count from the start of the simulation, on the grid of the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import floor, inf

from apiserver.http.clock import LiveClock
from apiserver.timeline import US, Timeline
from simulator.running.engine import Engine
from simulator.world.physics import TICKS_PER_S


def on_grid_below(time_s: float) -> float:
    """The last grid time not after `time_s`."""
    return floor(time_s * TICKS_PER_S) / TICKS_PER_S


class StageClock(LiveClock):
    """Moves the simulated cluster and the server's timeline together; every method may be called from any thread."""

    def __init__(self, timeline: Timeline, engine: Engine, speed: float) -> None:
        """The timeline is at virtual time 0. Time does not run by itself before `start`."""
        super().__init__(timeline, speed)
        self._engine = engine
        self._start_us = timeline.now_us
        self._virtual_s = 0.0
        self._until_s = inf

    @property
    def virtual_s(self) -> float:
        """Seconds since the start of the simulation."""
        return self._virtual_s

    def now_s(self) -> float:
        """The same in seconds since 1970, as the server and the controller count."""
        return self._start_us / US + self._virtual_s

    def run_until(self, virtual_s: float) -> None:
        """Time does not run beyond this by itself, however late the wall clock is."""
        with self.lock:
            self._until_s = virtual_s

    def run_to(self, to_s: float) -> None:
        """Carry out everything up to a virtual time, independent of the wall clock."""
        with self.lock:
            self._move(on_grid_below(to_s))
            self._set_anchor()

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Time stands inside; the changes of the request are carried out at the same moment."""
        with self.lock:
            self.catch_up()
            try:
                yield
            finally:
                self._move(self._virtual_s)
                self._set_anchor()

    def next_us(self) -> int | None:
        """The next moment of the timeline or of the simulated cluster."""
        theirs, ours_s = self.timeline.next_us(), self._engine.next_s()
        ours = self._us(ours_s) if ours_s < inf else None
        return min((each for each in (theirs, ours) if each is not None), default=None)

    def catch_up(self) -> None:
        """Carry out everything up to the present. The caller has the lock."""
        self._move(on_grid_below(min((self._present_us() - self._start_us) / US, self._until_s)))
        self._set_anchor()

    def _us(self, virtual_s: float) -> int:
        return self._start_us + round(virtual_s * US)

    def _move(self, to_s: float) -> None:
        """In order of time: the instants of the cluster, and the timeline's events before each of them."""
        engine, timeline = self._engine, self.timeline
        to_s = max(to_s, self._virtual_s)
        to_us = self._us(to_s)
        while True:
            instant_s, due_us = engine.next_s(), timeline.next_us()
            instant_us = self._us(instant_s) if instant_s < inf else None
            late = due_us is not None and due_us <= to_us
            if due_us is not None and late and (instant_us is None or due_us < instant_us or due_us <= timeline.now_us):
                self._virtual_s = max(on_grid_below((due_us - self._start_us) / US), self._virtual_s)
                engine.advance(self._virtual_s)
                timeline.run_until_us(due_us)
            elif instant_s <= to_s:
                self._virtual_s = instant_s
                engine.advance(instant_s)
                timeline.run_until_us(self._us(instant_s))
            else:
                break
        self._virtual_s = to_s
        engine.advance(to_s)
        timeline.run_until_us(to_us)
