"""No victim is younger than its guaranteed run time, except under a contract."""

from __future__ import annotations

from simulator.checkers.base import Checker, World, weighed
from simulator.world.facts import Evicting, Started, Stopped, Why


class MinRuntime(Checker):
    """Measures the age of every victim since it left the queue; a resize does not restart it."""

    name = "min-runtime"

    def __init__(self, world: World) -> None:
        """No work yet."""
        super().__init__(world)
        self._since_s: dict[int, float] = {}

    def on_started(self, fact: Started) -> None:
        """Its age counts from here."""
        self._since_s.setdefault(fact.job, fact.at_s)

    def on_stopped(self, fact: Stopped) -> None:
        """Its age restarts with its next start."""
        if fact.why not in (Why.RESIZE, Why.CUT):
            self._since_s.pop(fact.job, None)

    def on_evicting(self, fact: Evicting) -> None:
        """It must be old enough."""
        limit_s = self.world.rules.min_runtime_s
        if limit_s is None or not weighed(fact):
            return
        self.checked += 1
        age_s = fact.at_s - self._since_s.get(fact.job, fact.at_s)
        if age_s < limit_s:
            self.violate(fact.at_s, self.job(fact.job), f"was evicted after {age_s:g} s, before its {limit_s:g} s")
