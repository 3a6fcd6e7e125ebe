"""No job is disrupted repeatedly. Two weighed evictions of one job are at least the cool-down apart, and at most
`protection.most_stops` of them make room for other work.

budgets.py checks the number of disruptions in a window by cluster, tenant and node.
"""

from __future__ import annotations

from collections import Counter

from simulator.checkers.base import Checker, World, weighed
from simulator.world.facts import Evicting, Why


class PreemptionRate(Checker):
    """Remembers the last weighed eviction of each job, and counts those for other work."""

    name = "preemption-rate"

    def __init__(self, world: World) -> None:
        """No disruptions yet."""
        super().__init__(world)
        self._last_s: dict[int, float] = {}
        self._stops: Counter[int] = Counter()

    def on_evicting(self, fact: Evicting) -> None:
        """The last one must be long enough ago, and they must not be too many."""
        cool_down_s, most = self.world.rules.cool_down_s, self.world.rules.most_stops
        if cool_down_s is None or not weighed(fact):
            return
        self.checked += 1
        self._stops[fact.job] += fact.why in (Why.PREEMPT, Why.MOVE)
        if most is not None and self._stops[fact.job] > most:
            self.violate(
                fact.at_s,
                self.job(fact.job),
                f"was stopped {self._stops[fact.job]} times for other work (at most {most})",
            )
        ago_s = fact.at_s - self._last_s.get(fact.job, float("-inf"))
        if ago_s < cool_down_s:
            self.violate(
                fact.at_s,
                self.job(fact.job),
                f"was evicted again after {ago_s:g} s (cool-down {cool_down_s:g} s)",
            )
        self._last_s[fact.job] = fact.at_s
