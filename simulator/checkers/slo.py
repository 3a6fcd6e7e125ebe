"""A service missing one of its objectives loses no replica, for any reason."""

from __future__ import annotations

from simulator.checkers.base import Checker
from simulator.world.facts import Evicting

PROMISES = (
    ("latency", "p99_s", "objective_s"),
    ("time to the first token", "ttft_p99_s", "ttft_objective_s"),
    ("time between two tokens", "itl_p99_s", "itl_objective_s"),
)
"""Words, measurement and objective; a pool measures what its role does alone."""


class Slo(Checker):
    """Checks each p99 promised by the service, as its users see it, at the moment of the eviction."""

    name = "slo"

    def on_evicting(self, fact: Evicting) -> None:
        """Its service must keep its objectives, have none, or not be known to miss one."""
        service, ask = self.jobs.service[fact.job], self.world.services
        if service < 0 or ask is None:
            return
        self.checked += 1
        table = ask(fact.at_s)
        for words, measured, promised in PROMISES:
            p99_s, objective_s = (float(getattr(table, name)[service]) for name in (measured, promised))
            if p99_s > objective_s:
                self.violate(
                    fact.at_s,
                    self.job(fact.job),
                    f"was evicted while the {words} of its service needs {p99_s:g} s for 99 of 100 "
                    f"(objective {objective_s:g} s)",
                )
