"""Nobody is disrupted again and again: between two weighed evictions of one job lies the cool-down.

How many disruptions the cluster, a tenant and a node bear in a window is what budgets.py checks.
"""

from __future__ import annotations

from simulator.checkers.base import Checker, World, weighed
from simulator.world.facts import Evicting


class PreemptionRate(Checker):
    """Remembers when each job was last told to leave on balance of benefit and cost."""

    name = "preemption-rate"

    def __init__(self, world: World) -> None:
        """Nobody was disrupted."""
        super().__init__(world)
        self._last_s: dict[int, float] = {}

    def on_evicting(self, fact: Evicting) -> None:
        """The last time must lie far enough back."""
        cool_down_s = self.world.rules.cool_down_s
        if cool_down_s is None or not weighed(fact):
            return
        self.checked += 1
        ago_s = fact.at_s - self._last_s.get(fact.job, float("-inf"))
        if ago_s < cool_down_s:
            self.violate(
                fact.at_s,
                self.job(fact.job),
                f"was evicted again after {ago_s:g} s (cool-down {cool_down_s:g} s)",
            )
        self._last_s[fact.job] = fact.at_s
