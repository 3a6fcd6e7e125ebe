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

from autopilot.core.model.units import counted
from simulator.world.cluster import Cluster
from simulator.world.facts import REQUEUED, Resumed, Stopped, Why, Withdrawn
from simulator.world.gains import END, READY, VACATE
from simulator.world.growing import ARRIVE
from simulator.world.pauses import RESUME
from simulator.world.physics import TICKS_PER_S, up_to_grid
from simulator.world.placing import never_fits
from simulator.world.recutting import RECUT
from simulator.world.sharing import TURN

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
        """A stopped job (evicted, or hit by a fault) is pending again."""
        ...

    def on_change(self, now_s: float) -> None:
        """The hardware changed."""
        ...

    def decide(self, now_s: float) -> float | None:
        """Act on the cluster; returns the time of the next decision without an event, or None."""
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
        """True if every runnable job has ended."""
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
        recuts: bool = True,
        on_progress: Callable[[float, int, int], None] | None = None,
    ) -> None:
        """`stall_s`: give up after wake-ups alone changed nothing for this long. `recuts`: somebody may cut whole GPUs.

        `ready_wakes`: call the scheduler also at the end of a start-up. `on_progress` is called with (virtual seconds,
        jobs ended, jobs in total) from time to time.
        """
        self.cluster, self.scheduler = cluster, scheduler
        self.horizon_s, self.stall_s = horizon_s, stall_s
        self.now_s = 0.0
        self.run_state = Run(scheduler.name)
        self._on_progress = on_progress
        self._ready_wakes, self._recuts = ready_wakes, recuts
        self._events: list[tuple[float, int, int, int, int]] = []
        self._actions: dict[int, Action] = {}
        self._sequence = 0
        self._essential = 0
        self._ended = 0
        self._remaining = 0
        self._stop = False
        self._begun = False
        self._arrivals: list[int] = []  # jobs of the input, by time of submission
        self._arrived = 0  # how many of them have been submitted
        self._wake_s, self._changed_s = inf, 0.0
        cluster.schedule = self._schedule
        scheduler.attach(cluster)
        cluster.observe(self)

    def _schedule(self, at_s: float, kind: int, job: int, incarnation: int) -> None:
        # Ends come first at an instant (rank 0), in file order.
        heappush(self._events, (at_s, _CLUSTER_RANK, job, kind, incarnation))

    def at(self, at_s: float, action: Action, *, essential: bool = True) -> None:
        """Call `action(now_s)` at `at_s`, between the ends and the arrivals of the instant.

        A non-`essential` action does not keep the run alive on its own (a fault generator).
        """
        key = self._sequence
        self._sequence += 1
        self._actions[key] = action
        self._essential += essential
        heappush(self._events, (max(up_to_grid(at_s), self.now_s), _ACTION_RANK, key, essential, 0))

    def submit(self, job: int, now_s: float) -> None:
        """Submit a job now (a replica of a service, for example). A baseline has no queue for jobs that never fit."""
        self.cluster.submit(job, now_s)
        if self._recuts or job not in self.run_state.never_fits:
            self.scheduler.on_submit(job, now_s)

    def run(self) -> Run:
        """Run to the end: all work done, no events left, the horizon, or Ctrl-C.

        Ctrl-C ends the run after the current instant, so that its state is consistent.
        """
        run = self.run_state
        began_s = time.perf_counter()
        self._begin()
        with _calm_interrupt(self.interrupt):
            try:
                self._loop()
            except KeyboardInterrupt:
                run.interrupted = True
        run.interrupted |= self._stop
        run.end_s = self.now_s
        self.cluster.settle(self.now_s)
        run.wall_s = time.perf_counter() - began_s
        return run

    def advance(self, to_s: float) -> None:
        """Carry out everything up to `to_s` and stay there, for a caller with a clock of its own.

        Such a run has no end: no horizon, no progress, and nothing stops at the end of all work. Between two calls the
        caller may act on the cluster at `now_s`.
        """
        if not self._begun:
            self._begin()
        while (now_s := self.next_s()) <= to_s:
            self._pass(now_s)
        self.now_s = max(self.now_s, to_s)

    def interrupt(self) -> None:
        """End the run after the current instant."""
        self._stop = True

    def _begin(self) -> None:
        """List the arrivals, and the jobs never able to start."""
        run, jobs = self.run_state, self.cluster.jobs
        arrivals = sorted(range(len(jobs)), key=jobs.submit_s.__getitem__)
        self._arrivals = [job for job in arrivals if jobs.service[job] < 0]
        run.last_submit_s = jobs.submit_s[self._arrivals[-1]] if self._arrivals else 0.0
        run.never_fits = self._impossible(self._arrivals)
        self._remaining = len(self._arrivals) - len(run.never_fits)
        self._begun = True

    def _impossible(self, arrivals: list[int]) -> dict[int, str]:
        jobs, hardware = self.cluster.jobs, self.cluster.hardware
        uncut = (
            "" if self._recuts or any(hardware.mig) else "no pool is cut into MIG instances (mig in the cluster file)"
        )
        reasons = [never_fits(hardware, shape) or (uncut if shape.profile else "") for shape in jobs.shapes]
        return {job: reasons[jobs.shape[job]] for job in arrivals if reasons[jobs.shape[job]]}

    def _loop(self) -> None:
        run, total = self.run_state, len(self._arrivals)
        while not self._stop:
            now_s = self.next_s()
            if now_s == inf or (self._remaining <= 0 and self._arrived == total and not self._essential):
                break
            if now_s > self.horizon_s:
                self.now_s, run.horizon_reached = self.horizon_s, True
                return
            over = self._arrived == total and not self._alive
            if over and (self._wake_s == inf or now_s - self._changed_s > self.stall_s):
                break
            decided = self._pass(now_s)
            if decided and self._on_progress is not None and run.passes % PROGRESS_PASSES == 0:
                self._on_progress(now_s, self._ended, total)
        if self._remaining > 0 and not self._stop:
            run.stuck = (
                f"{counted(self._remaining, 'job waits|jobs wait')}, and no event that could start them is scheduled"
            )

    def next_s(self) -> float:
        """The next instant: an arrival, an event, or a wake-up of the scheduler."""
        arrivals, at = self._arrivals, self._arrived
        arrival_s = self.cluster.jobs.submit_s[arrivals[at]] if at < len(arrivals) else inf
        return min(arrival_s, self._events[0][0] if self._events else inf, self._wake_s)

    def _pass(self, now_s: float) -> bool:
        """All events of one instant, then the scheduler if it is due; returns True if it decided."""
        run, events, arrivals = self.run_state, self._events, self._arrivals
        submit_s = self.cluster.jobs.submit_s
        self.now_s = now_s
        happened = 0
        while events and events[0][0] == now_s:
            happened += self._handle(heappop(events), now_s)
        while self._arrived < len(arrivals) and submit_s[arrivals[self._arrived]] == now_s:
            self.submit(arrivals[self._arrived], now_s)
            self._arrived += 1
            happened += 1
        run.events += happened
        if not happened and self._wake_s > now_s:
            return False
        again_s = self.scheduler.decide(now_s)
        run.passes += 1
        self._wake_s = inf if again_s is None else max(up_to_grid(again_s), now_s + 1 / TICKS_PER_S)
        if happened or events:
            self._changed_s = now_s
        return True

    @property
    def _alive(self) -> bool:
        """True if a pending event could let work start."""
        return self._essential > 0 or len(self._events) > len(self._actions)

    def _handle(self, event: tuple[float, int, int, int, int], now_s: float) -> int:
        """Carry out one event; returns the number of changes in need of a scheduler pass."""
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
        if kind == TURN:
            turned = self.cluster.sharings.end(key, now_s, incarnation)
            self.scheduler.on_change(now_s)
            return int(turned)
        if kind == RESUME:
            return int(self.cluster.pauses.over(key, now_s, incarnation))
        if kind == ARRIVE:
            self.cluster.growing.arrive(key, now_s)
            self.scheduler.on_change(now_s)
            return 1
        if kind == VACATE:
            return int(self.cluster.vacate(key, now_s, incarnation))
        return int(self.cluster.give_up(key, now_s, incarnation))

    def on_stopped(self, fact: Stopped) -> None:
        """A job left its GPUs: notify the scheduler, and count ended work."""
        job, why = fact.job, fact.why
        if why in REQUEUED:
            self.scheduler.on_requeue(job, fact.at_s)
        elif why == Why.PARK:  # its GPUs are free, and it does not wait
            self.scheduler.on_change(fact.at_s)
        elif why not in _GOES_ON:
            self._ended += self.cluster.jobs.service[job] < 0
            self._remaining -= self.cluster.jobs.service[job] < 0
            self.scheduler.on_end(job, fact.at_s)

    def on_resumed(self, fact: Resumed) -> None:
        """Its owner is back: parked work waits again."""
        self.scheduler.on_requeue(fact.job, fact.at_s)

    def on_withdrawn(self, fact: Withdrawn) -> None:
        """Its owner gave waiting work up."""
        if self.cluster.jobs.service[fact.job] < 0:
            self._ended += 1
            self._remaining -= 1
            self.scheduler.on_end(fact.job, fact.at_s)


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
