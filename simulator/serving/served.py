"""A simulated cluster that runs by itself, paced by the wall clock, and answers a controller.

`ServedCluster` is a plain object: the HTTP layer (`http.py`) only carries its messages. Virtual time is wall time x
speed. It never goes back, and a process that was late catches up in steps, so that a controller sees the states in
between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import floor
from typing import Protocol

from autopilot.core.model.ports import Collector
from autopilot.core.model.records import Batch, Instruction, Inventory, Outcome, OutcomeKind
from simulator.running.cluster_actuator import ClusterActuator
from simulator.running.cluster_collector import ClusterCollector, Mark
from simulator.running.engine import Engine
from simulator.serving.wire import ClockReading, StateAnswer
from simulator.world.cluster import Cluster
from simulator.world.physics import TICKS_PER_S

STEP_WALL_S = 1.0
"""Most wall time that one step catches up."""


class Unattended:
    """The scheduler of a cluster whose decisions come from outside: it counts changes and starts nothing."""

    name = "served"

    def __init__(self) -> None:
        self.revision = 0

    def attach(self, cluster: Cluster) -> None:
        """Nothing to do."""

    def on_submit(self, job: int, now_s: float) -> None:
        """A change."""
        self.revision += 1

    def on_end(self, job: int, now_s: float) -> None:
        """A change."""
        self.revision += 1

    def on_requeue(self, job: int, now_s: float) -> None:
        """A change."""
        self.revision += 1

    def on_withdraw(self, job: int, now_s: float) -> None:
        """A change: pending work was withdrawn."""
        self.revision += 1

    def on_change(self, now_s: float) -> None:
        """A change of the hardware, or of what a service needs."""
        self.revision += 1

    def decide(self, now_s: float) -> float | None:
        """Nothing."""
        return None


class Lists(Protocol):
    """Inventory and work, seen without marking anything as reported."""

    def peek(self, now_s: float) -> Batch:
        """The lists now."""
        ...


class ServedCluster:
    """State, effects, changes and clock of one simulated cluster. Every method may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        changes: Unattended,
        whole: ClusterCollector,
        actuator: ClusterActuator,
        *,
        run: str,
        scenario: str,
        speed: float,
        wall_s: Callable[[], float],
        lists: Lists | None = None,
        telemetry: Sequence[Collector] = (),
        start_s: float | None = None,
    ) -> None:
        """`wall_s` is a monotonic clock. `lists` may show less than `whole` (injected faults)."""
        self.run, self.scenario, self.speed, self.start_s = run, scenario, speed, start_s
        self._engine, self._changes, self._whole, self._actuator = engine, changes, whole, actuator
        self._lists: Lists = lists if lists is not None else whole
        self._telemetry = tuple(telemetry)
        self._wall_s = wall_s
        self._began_s = wall_s()
        self._inventory: Inventory | None = None
        self._inventory_number = 0
        self._mark: Mark = (0, 0)
        self._fence = 0
        self._closed = False
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    # --- time -----------------------------------------------------------------------------

    def pace(self) -> bool:
        """Advance one step towards the time of the wall clock; True when it has been reached."""
        with self._lock:
            target_s = floor((self._wall_s() - self._began_s) * self.speed * TICKS_PER_S) / TICKS_PER_S
            before, now_s = self._changes.revision, self._engine.now_s
            self._engine.advance(min(target_s, now_s + STEP_WALL_S * self.speed))
            if self._changes.revision != before:
                self._changed.notify_all()
            return self._engine.now_s >= target_s

    def clock(self) -> ClockReading:
        """The time now."""
        with self._lock:
            self.pace()
            return ClockReading(self.run, self._engine.now_s, self.speed, self.scenario, self.start_s)

    def at_now(self, read: Callable[[float], bytes]) -> bytes:
        """What `read(now_s)` returns, at an instant at which nothing else happens."""
        with self._lock:
            self.pace()
            return read(self._engine.now_s)

    # --- state and changes ----------------------------------------------------------------

    def state(self, seen: Mark = (0, 0), inventory: int = -1) -> StateAnswer:
        """The cluster now. `seen`: the mark of the last answer that the caller has dealt with.

        Work that ended or was deleted is reported until its mark comes back, so a caller that dies in between loses
        nothing.
        """
        with self._lock:
            self.pace()
            self._whole.forget(seen)
            now_s = self._engine.now_s
            lists = self._lists.peek(now_s)
            if lists.work is not None and lists.work_list.complete:
                self._mark = self._whole.mark()
            if lists.inventory is not None and lists.inventory is not self._inventory:
                self._inventory, self._inventory_number = lists.inventory, self._inventory_number + 1
            if inventory == self._inventory_number:
                lists = replace(lists, inventory=None)
            batches = (lists, *(each.collect(now_s) for each in self._telemetry))
            return StateAnswer(self.run, now_s, self._changes.revision, self._mark, self._inventory_number, batches)

    def changes(self, after: int, wait_s: float) -> int:
        """The revision, as soon as it differs from `after`, at the latest after `wait_s` of wall time."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._changes.revision != after, wait_s)
            return self._changes.revision

    def close(self) -> None:
        """Answer those who wait for a change: the process is about to end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- effects --------------------------------------------------------------------------

    def apply(self, instruction: Instruction) -> Outcome:
        """Carry out one instruction, once per id. An instruction of an earlier leader is a conflict."""
        with self._lock:
            self.pace()
            now_s = self._engine.now_s
            if instruction.fence < self._fence:
                reason = f"fence {instruction.fence} is behind {self._fence}: another controller leads"
                return Outcome(instruction.id, OutcomeKind.CONFLICT, now_s, reason)
            self._fence = instruction.fence
            outcome = self._actuator.apply(instruction, now_s)
            self._changes.revision += 1
            self._changed.notify_all()
            return outcome
