"""Work is moved ahead of demand outside of peak hours, and not within the dwell time after a restart."""

from __future__ import annotations

from simulator.checkers.base import Checker, World
from simulator.world.facts import Decided, Evicting, Started, Stopped, Why

DAY_S = 86_400.0
FIRST_DAY = 3
"""The day of the week at time 0, a Thursday."""


class MovesAhead(Checker):
    """Compares each move ahead with the last restart of its work, and with the peak hours."""

    name = "moves-ahead"

    def __init__(self, world: World) -> None:
        """Nothing was stopped yet."""
        super().__init__(world)
        self._again_s: dict[int, float] = {}  # the last start after a stop
        self._stopped: set[int] = set()
        self._decided_s: dict[str, float] = {}  # evictions that were decided and have not happened

    def on_decided(self, fact: Decided) -> None:
        """The time of a decision counts, not the time of a late effect."""
        if fact.kind == "evict":
            self._decided_s.setdefault(fact.effect, fact.at_s)

    def on_started(self, fact: Started) -> None:
        """The dwell time begins with a restart."""
        if fact.job in self._stopped:
            self._stopped.remove(fact.job)
            self._again_s[fact.job] = fact.at_s

    def on_stopped(self, fact: Stopped) -> None:
        """Its next start is a restart."""
        if fact.why != Why.RESIZE:
            self._stopped.add(fact.job)

    def on_evicting(self, fact: Evicting) -> None:
        """A move ahead must be allowed for this work, at this time."""
        at_s = self._decided_s.pop(fact.effect, fact.at_s)
        if not fact.ahead:
            return
        self.checked += 1
        rules, again_s = self.world.rules, self._again_s.get(fact.job)
        if rules.ahead_dwell_s is not None and again_s is not None and at_s - again_s < rules.ahead_dwell_s:
            since = f"{at_s - again_s:g} s after a restart (dwell {rules.ahead_dwell_s:g} s)"
            self.violate(fact.at_s, self.job(fact.job), f"was moved ahead of demand {since}")
        hours = rules.peak_hours
        if hours is not None:
            day, local_s = divmod(at_s + hours.offset_s, DAY_S)
            if (int(day) + FIRST_DAY) % 7 in hours.days and hours.from_s <= local_s < hours.to_s:
                self.violate(fact.at_s, self.job(fact.job), "was moved ahead of demand in peak hours")
