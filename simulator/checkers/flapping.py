"""No work moves from A to B and back to A within the dwell time."""

from __future__ import annotations

from simulator.checkers.base import Checker, World, weighed
from simulator.world.facts import Evicting, Started, Why

Place = tuple[tuple[int, ...], tuple[int, ...]]


class Flapping(Checker):
    """An evicted job does not return at once to the place it left, directly or through another place."""

    name = "flapping"

    def __init__(self, world: World) -> None:
        """No moves yet."""
        super().__init__(world)
        self._place: dict[int, Place] = {}
        self._left_s: dict[int, dict[Place, float]] = {}

    def on_started(self, fact: Started) -> None:
        """It must not have been evicted from here a moment ago."""
        place = (fact.gpus, fact.instances)
        self._place[fact.job] = place
        dwell_s = self.world.rules.dwell_s
        left = self._left_s.get(fact.job)
        if left is None or dwell_s is None:
            return
        self.checked += 1
        left_s = left.get(place)
        if left_s is not None and fact.at_s - left_s < dwell_s:
            ago_s = fact.at_s - left_s
            self.violate(
                fact.at_s,
                self.job(fact.job),
                f"came back {ago_s:g} s after it was evicted from there (dwell {dwell_s:g} s)",
            )

    def on_evicting(self, fact: Evicting) -> None:
        """Remember its place before the eviction; an eviction by contract or for a repair does not count."""
        if not weighed(fact) or fact.why == Why.RECOVER or self.world.rules.dwell_s is None:
            return
        place = self._place.get(fact.job)
        if place is not None:
            left = self._left_s.setdefault(fact.job, {})
            left[place] = fact.at_s
            for old in [p for p, at_s in left.items() if fact.at_s - at_s >= self.world.rules.dwell_s]:
                del left[old]
