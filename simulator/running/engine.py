"""Virtual time: events in order, then one pass of the scheduler.

At one instant: ends of work, then other changes of the cluster (faults, wake-ups), then arrivals, in file order; then
the scheduler decides once. The same scheduler and cluster give the same run.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from simulator.world.cluster import END, READY, VACATE, Cluster
from simulator.world.facts import REQUEUED, Stopped, Why
from simulator.world.physics import TICKS_PER_S, up_to_grid
from simulator.world.placing import never_fits
from simulator.world.recutting import RECUT

Action = Callable[[float], None]

PROGRESS_PASSES = 512
"""Passes of the scheduler between two calls of the progress callback."""

_CLUSTER_RANK, _ACTION_RANK = 0, 1
_GOES_ON = (Why.CUT, Why.RESIZE)


class Scheduler(Protocol):
    """A policy in charge of a cluster. It starts and evicts by calling the cluster."""

    name: str

    def attach(self, cluster: Cluster) -> None:
        """Take charge of `cluster`, before anything is submitted."""
        ...

    def on_submit(self, job: int, now_s: float) -> None:
        """A job entered the queue."""
        ...

    def on_end(self, job: int, now_s: float) -> None:
        """A job left its GPUs for good."""
        ...

    def on_requeue(self, job: int, now_s: float) -> None:
        """A job that was stopped (evicted, or hit by a fault) is pending again."""
        ...

    def on_change(self, now_s: float) -> None:
        """The hardware changed."""
        ...

    def decide(self, now_s: float) -> float | None:
        """Act on the cluster; returns when to decide next without an event, or None."""
        ...


@dataclass(slots=True)
class Run:
    """The end of a run; results are in the cluster and its observers."""

    policy: str
    end_s: float = 0.0
    last_submit_s: float = 0.0
    events: int = 0
    passes: int = 0
    wall_s: float = 0.0
    interrupted: bool = False  # interrupted by the user: the results so far are consistent but incomplete
    horizon_reached: bool = False
    stuck: str = ""  # why no further event could occur although work waits; "" when all is done
    never_fits: dict[int, str] = field(default_factory=dict)  # job -> why no cluster of this size can run it

    @property
    def complete(self) -> bool:
        """True when every job that can run has ended."""
        return not (self.interrupted or self.horizon_reached or self.stuck)


class Engine:
    """Drives one scheduler on one cluster through virtual time."""

    def __init__(
        self,
        cluster: Cluster,
        scheduler: Scheduler,
        *,
        horizon_s: float = inf,
        stall_s: float = 10 * 86_400.0,
        ready_wakes: bool = False,
        on_progress: Callable[[float, int, int], None] | None = None,
    ) -> None:
        """`stall_s`: give up when wake-ups alone changed nothing for this long.

        `ready_wakes`: call the scheduler also when a start-up is over. `on_progress` is called with (virtual seconds,
        jobs ended, jobs in total) from time to time.
        """
        self.cluster, self.scheduler = cluster, scheduler
        self.horizon_s, self.stall_s = horizon_s, stall_s
        self.now_s = 0.0
        self.run_state = Run(scheduler.name)
        self._on_progress = on_progress
        self._ready_wakes = ready_wakes
        self._events: list[tuple[float, int, int, int, int]] = []
        self._actions: dict[int, Action] = {}
        self._sequence = 0
        self._essential = 0
        self._ended = 0
        self._remaining = 0
        self._stop = False
        cluster.schedule = self._schedule
        scheduler.attach(cluster)
        cluster.observe(self)

    def _schedule(self, at_s: float, kind: int, job: int, incarnation: int) -> None:
        # Ends come first at an instant (rank 0), in file order.
        heappush(self._events, (at_s, _CLUSTER_RANK, job, kind, incarnation))

    def at(self, at_s: float, action: Action, *, essential: bool = True) -> None:
        """Call `action(now_s)` at that time, between the ends and the arrivals of the instant.

        An action that is not `essential` does not keep the run alive on its own (a fault generator).
        """
        key = self._sequence
        self._sequence += 1
        self._actions[key] = action
        self._essential += essential
        heappush(self._events, (max(up_to_grid(at_s), self.now_s), _ACTION_RANK, key, essential, 0))

    def submit(self, job: int, now_s: float) -> None:
        """Submit a job now (a replica of a service, for example)."""
        self.cluster.submit(job, now_s)
        self.scheduler.on_submit(job, now_s)

    def run(self) -> Run:
        """Run to the end: all work done, no events left, the horizon, or Ctrl-C.

        Ctrl-C ends the run after the current instant, so that its state is consistent.
        """
        run, jobs = self.run_state, self.cluster.jobs
        began_s = time.perf_counter()
        arrivals = sorted(range(len(jobs)), key=jobs.submit_s.__getitem__)
        arrivals = [job for job in arrivals if jobs.service[job] < 0]
        run.last_submit_s = jobs.submit_s[arrivals[-1]] if arrivals else 0.0
        run.never_fits = self._impossible(arrivals)
        self._remaining = len(arrivals) - len(run.never_fits)
        with _calm_interrupt(self.interrupt):
            try:
                self._loop(arrivals)
            except KeyboardInterrupt:
                run.interrupted = True
        run.interrupted |= self._stop
        run.end_s = self.now_s
        self.cluster.settle(self.now_s)
        run.wall_s = time.perf_counter() - began_s
        return run

    def interrupt(self) -> None:
        """End the run after the current instant."""
        self._stop = True

    def _impossible(self, arrivals: list[int]) -> dict[int, str]:
        jobs, hardware = self.cluster.jobs, self.cluster.hardware
        reasons = [never_fits(hardware, shape) for shape in jobs.shapes]
        return {job: reasons[jobs.shape[job]] for job in arrivals if reasons[jobs.shape[job]]}

    def _loop(self, arrivals: list[int]) -> None:
        run, events = self.run_state, self._events
        submit_s = self.cluster.jobs.submit_s
        decide, submit = self.scheduler.decide, self.submit
        position, total, wake_s, changed_s = 0, len(arrivals), inf, 0.0
        while not self._stop:
            arrival_s = submit_s[arrivals[position]] if position < total else inf
            now_s = min(arrival_s, events[0][0] if events else inf, wake_s)
            if now_s == inf or (self._remaining <= 0 and position == total and not self._essential):
                break
            if now_s > self.horizon_s:
                self.now_s, run.horizon_reached = self.horizon_s, True
                return
            if position == total and not self._alive and (wake_s == inf or now_s - changed_s > self.stall_s):
                break
            self.now_s = now_s
            happened = 0
            while events and events[0][0] == now_s:
                happened += self._handle(heappop(events), now_s)
            while position < total and submit_s[arrivals[position]] == now_s:
                submit(arrivals[position], now_s)
                position += 1
                happened += 1
            run.events += happened
            if not happened and wake_s > now_s:
                continue
            again_s = decide(now_s)
            run.passes += 1
            wake_s = inf if again_s is None else max(up_to_grid(again_s), now_s + 1 / TICKS_PER_S)
            if happened or events:
                changed_s = now_s
            if self._on_progress is not None and run.passes % PROGRESS_PASSES == 0:
                self._on_progress(now_s, self._ended, total)
        if self._remaining > 0 and not self._stop:
            run.stuck = f"{self._remaining} job(s) wait, and no event that could start them is scheduled"

    @property
    def _alive(self) -> bool:
        """Whether an event is pending that could let work start."""
        return self._essential > 0 or len(self._events) > len(self._actions)

    def _handle(self, event: tuple[float, int, int, int, int], now_s: float) -> int:
        """Carry out one event; returns the number of changes that require a scheduler pass."""
        _, rank, key, kind, incarnation = event
        if rank == _ACTION_RANK:
            self._essential -= kind
            self._actions.pop(key)(now_s)
            self.scheduler.on_change(now_s)
            return 1
        if kind == END:
            return int(self.cluster.finish(key, now_s, incarnation) is None)
        if kind == READY:
            return int(self.cluster.ready(key, incarnation) and self._ready_wakes)
        if kind == RECUT:
            ended = self.cluster.recuts.end(key, now_s, incarnation)
            self.scheduler.on_change(now_s)
            return int(ended)
        if kind == VACATE:
            return int(self.cluster.vacate(key, now_s, incarnation))
        return int(self.cluster.give_up(key, now_s, incarnation))

    def on_stopped(self, fact: Stopped) -> None:
        """A job left its GPUs: notify the scheduler, and count what is done."""
        job, why = fact.job, fact.why
        if why in REQUEUED:
            self.scheduler.on_requeue(job, fact.at_s)
        elif why not in _GOES_ON:
            self._ended += self.cluster.jobs.service[job] < 0
            self._remaining -= self.cluster.jobs.service[job] < 0
            self.scheduler.on_end(job, fact.at_s)


@contextmanager
def _calm_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C calls `stop`, the second one interrupts as usual."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return

    def first(_number: int, _frame: object) -> None:
        stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
