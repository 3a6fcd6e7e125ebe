"""The base of checkers of services: the need of each by its load, the floors in force, and the replicas on GPUs."""

from __future__ import annotations

from simulator.checkers.base import Checker, World
from simulator.world.facts import Floored, Scaled, Started, Stopped, Why


class Replicas(Checker):
    """Follows the replicas, the need and the floor of each service."""

    def __init__(self, world: World) -> None:
        """No floors yet."""
        super().__init__(world)
        self._floor: dict[int, Floored] = {}
        self._needed: dict[int, int] = {}
        self._serving: dict[int, int] = {}

    def on_started(self, fact: Started) -> None:
        """Count the replicas of each service."""
        self._count(fact.job, 1)

    def on_stopped(self, fact: Stopped) -> None:
        """One replica less."""
        if fact.why != Why.CUT:
            self._count(fact.job, -1)

    def on_scaled(self, fact: Scaled) -> None:
        """Record the need by the load alone."""
        self._needed[fact.service] = fact.needed

    def _count(self, job: int, change: int) -> None:
        service = self.jobs.service[job]
        if service >= 0:
            self._serving[service] = self._serving.get(service, 0) + change

    def _lacks(self, service: int) -> bool:
        """True while a service has fewer replicas than its load needs."""
        return self._needed[service] > self._serving.get(service, 0)

    def _any_lacks(self) -> bool:
        """True while any service does: forecasts then yield at once."""
        return any(map(self._lacks, self._needed))

    def _standing(self, service: int, at_s: float) -> int:
        """The floor in force, neither released nor expired."""
        floor = self._floor.get(service)
        return floor.replicas if floor is not None and at_s < floor.until_s else 0
