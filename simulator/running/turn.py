"""The scheduler of a simulation that ticks a controller, on events and when the controller asked to be woken."""

from __future__ import annotations

from typing import Any, Protocol

from simulator.running.cluster_actuator import ClusterActuator
from simulator.world.cluster import Cluster

MAX_TICKS_AT_ONCE = 16
"""Ticks at one instant before the engine continues: an eviction that ends at once requires another tick."""


class Ticking(Protocol):
    """The part of a controller that a scheduler needs."""

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
