"""A service that misses its objective loses no replica, for any reason."""

from __future__ import annotations

from simulator.checkers.base import Checker
from simulator.world.facts import Evicting


class Slo(Checker):
    """Checks the service's p99, as its users see it, at the moment of the eviction."""

    name = "slo"

    def on_evicting(self, fact: Evicting) -> None:
        """Its service must keep its objective, have none, or not be known to miss it."""
        service, ask = self.jobs.service[fact.job], self.world.services
        if service < 0 or ask is None:
            return
        self.checked += 1
        table = ask(fact.at_s)
        p99_s, objective_s = float(table.p99_s[service]), float(table.objective_s[service])
        if p99_s > objective_s:
            self.violate(
                fact.at_s,
                self.job(fact.job),
                f"was evicted while its service needs {p99_s:g} s for 99 of 100 requests (objective {objective_s:g} s)",
            )
