"""The schedulers of a simulation, ticking a controller: in charge of the cluster, or beside the engine in charge."""

from __future__ import annotations

from math import ceil, inf
from typing import Any, Protocol

from simulator.running.cluster_actuator import ClusterActuator
from simulator.running.engine import Scheduler
from simulator.world.cluster import Cluster

MAX_TICKS_AT_ONCE = 16
"""Ticks at one instant before the engine continues: an eviction that ends at once requires another tick."""


class Ticking(Protocol):
    """The part of a controller needed by a scheduler."""

    wake_at_s: float

    def tick(self, now_s: float) -> Any:
        """Decide once."""
        ...


class ControllerScheduler:
    """Puts a controller in charge of the engine's cluster."""

    def __init__(self, name: str, controller: Ticking, actuator: ClusterActuator) -> None:
        self.name, self._controller, self._actuator = name, controller, actuator
        self._event = True

    def attach(self, cluster: Cluster) -> None:
        """Nothing to do: collector and actuator have the cluster."""

    def on_submit(self, job: int, now_s: float) -> None:
        """An event."""
        self._event = True

    def on_end(self, job: int, now_s: float) -> None:
        """An event."""
        self._event = True

    def on_requeue(self, job: int, now_s: float) -> None:
        """An event."""
        self._event = True

    def on_withdraw(self, job: int, now_s: float) -> None:
        """An event: pending work was withdrawn."""
        self._event = True

    def on_change(self, now_s: float) -> None:
        """An event."""
        self._event = True

    def decide(self, now_s: float) -> float | None:
        """Tick; repeat at once while evictions free GPUs at this instant."""
        if not self._event and now_s < self._controller.wake_at_s:
            return self._controller.wake_at_s
        self._event = False
        for _ in range(MAX_TICKS_AT_ONCE):
            self._actuator.changed = False
            self._controller.tick(now_s)
            if not self._actuator.changed:
                break
        self._event = False
        wake_s = self._controller.wake_at_s
        return wake_s if wake_s < float("inf") else None


QUIET_S = 3600.0
"""Beside an engine, a controller is not called again when nothing has happened for this long: a run in which no job can
start any more would not end.
"""


class AdvisedScheduler:
    """An engine in charge of the cluster, and a controller deciding at every multiple of `interval_s`.

    The controller sees each moment after the engine is done with it. The engine is called exactly as without one.
    """

    def __init__(self, engine: Scheduler, controller: Ticking, interval_s: float) -> None:
        self.name = engine.name
        self._engine, self._controller, self._interval_s = engine, controller, interval_s
        self._event = False
        self._due_s = self._wake_s = self._changed_s = inf

    def attach(self, cluster: Cluster) -> None:
        """The engine takes charge."""
        self._engine.attach(cluster)

    def on_submit(self, job: int, now_s: float) -> None:
        """An event of the engine."""
        self._event = True
        self._engine.on_submit(job, now_s)

    def on_end(self, job: int, now_s: float) -> None:
        """An event of the engine."""
        self._event = True
        self._engine.on_end(job, now_s)

    def on_requeue(self, job: int, now_s: float) -> None:
        """An event of the engine."""
        self._event = True
        self._engine.on_requeue(job, now_s)

    def on_change(self, now_s: float) -> None:
        """An event of the engine."""
        self._event = True
        self._engine.on_change(now_s)

    def decide(self, now_s: float) -> float | None:
        """Let the engine act if something happened or it is due, then the controller decide if it is due."""
        if self._event or now_s >= self._wake_s or now_s < self._due_s:  # otherwise it is only the controller's time
            wake_s = self._engine.decide(now_s)
            self._wake_s = inf if wake_s is None else wake_s
        if self._event:
            self._event, self._changed_s = False, now_s
            self._due_s = min(self._due_s, ceil(now_s / self._interval_s) * self._interval_s)
        if now_s >= self._due_s:
            self._controller.tick(now_s)
            self._due_s = (now_s // self._interval_s + 1) * self._interval_s
            if self._due_s > self._changed_s + QUIET_S:
                self._due_s = inf
        again_s = min(self._wake_s, self._due_s)
        return again_s if again_s < inf else None
