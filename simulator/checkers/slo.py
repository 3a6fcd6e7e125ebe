"""A service that misses its objective loses no replica, for any reason."""

from __future__ import annotations

import numpy as np

from autopilot.core.model.objectives import OBJECTIVES, over_objective
from simulator.checkers.base import Checker
from simulator.world.facts import Evicting


class Slo(Checker):
    """Checks each p99 that the service promises, as its users see it, at the moment of the eviction."""

    name = "slo"

    def on_evicting(self, fact: Evicting) -> None:
        """Its service must keep its objective, have none, or not be known to miss it."""
        service, ask = self.jobs.service[fact.job], self.world.services
        if service < 0 or ask is None:
            return
        self.checked += 1
        table = ask(fact.at_s)
        for kind in np.flatnonzero(over_objective(table)[:, service] > 1.0).tolist():
            each = OBJECTIVES[kind]
            p99_s, objective_s = (float(getattr(table, name)[service]) for name in (each.p99, each.objective))
            self.violate(
                fact.at_s,
                self.job(fact.job),
                f"was evicted while the {each.words} of its service needs {p99_s:g} s for 99 of 100 "
                f"(objective {objective_s:g} s)",
            )
