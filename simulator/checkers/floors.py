"""Floors of services are released, and are never below the need of the load."""

from __future__ import annotations

from math import isfinite

from autopilot.core.model.units import counted
from simulator.checkers.base import World
from simulator.checkers.replicas import Replicas
from simulator.world.facts import Floored, Scaled


class Floors(Replicas):
    """Follows every floor, and compares it with each autoscaler's target."""

    name = "floors"

    def __init__(self, world: World) -> None:
        """No floors yet."""
        super().__init__(world)
        self._raised_s: dict[int, float] = {}

    def on_floored(self, fact: Floored) -> None:
        """A floor expires within the lease; it is not lowered within the dwell of its latest increase, unless a need is
        not met.
        """
        self.checked += 1
        rules, subject = self.world.rules, f"service {fact.service}"
        stood = self._standing(fact.service, fact.at_s)
        if fact.replicas and not isfinite(fact.until_s):
            self.violate(fact.at_s, subject, f"has a floor of {counted(fact.replicas, 'replica')} that never ends")
        elif fact.replicas and rules.floor_lease_s is not None and fact.until_s > fact.at_s + rules.floor_lease_s:
            lasts_s = fact.until_s - fact.at_s
            self.violate(fact.at_s, subject, f"has a floor for {lasts_s:g} s (lease {rules.floor_lease_s:g} s)")
        risen_s = self._raised_s.get(fact.service)
        if fact.replicas > stood:
            self._raised_s[fact.service] = fact.at_s
        elif fact.replicas < stood and risen_s is not None and rules.floor_dwell_s is not None:
            since_s = fact.at_s - risen_s
            if since_s < rules.floor_dwell_s and not self._any_lacks():
                self.violate(
                    fact.at_s,
                    subject,
                    f"has its floor lowered {since_s:g} s after it rose (dwell {rules.floor_dwell_s:g} s)",
                )
        self._floor[fact.service] = fact

    def on_scaled(self, fact: Scaled) -> None:
        """An autoscaler's target is the need of the load or the floor in force, whichever is larger."""
        self.checked += 1
        super().on_scaled(fact)
        subject, stands = f"service {fact.service}", self._standing(fact.service, fact.at_s)
        if fact.floor != stands:
            self.violate(
                fact.at_s,
                subject,
                f"is kept at {counted(fact.floor, 'replica')} or more, the floor in force is {stands}",
            )
        if fact.wanted < fact.needed:
            self.violate(
                fact.at_s,
                subject,
                f"is scaled to {counted(fact.wanted, 'replica')}, its load needs {fact.needed}",
            )
        if fact.wanted > max(fact.needed, stands):
            self.violate(
                fact.at_s,
                subject,
                f"is scaled to {counted(fact.wanted, 'replica')}, while its load needs {fact.needed} "
                f"and its floor is {stands}",
            )
