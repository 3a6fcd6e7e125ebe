"""Idle services are scaled down no further than their owners allow, never while they are used, and for a time only."""

from __future__ import annotations

from math import inf

from autopilot.core.model.units import counted
from simulator.checkers.base import Checker, World
from simulator.world.facts import Ceiled, Notified, Scaled, Started, Stopped, Why

LONGEST_S = 3600.0
"""A ceiling ends after this time at the latest, unless it is renewed."""


class Ceilings(Checker):
    """Follows every ceiling, and compares it with the targets of the autoscalers."""

    name = "ceilings"

    def __init__(self, world: World) -> None:
        """No ceilings yet."""
        super().__init__(world)
        self._ceiling: dict[int, Ceiled] = {}
        self._due_s: dict[int, float] = {}  # replica on GPUs -> when the grace of its notice ends

    def on_started(self, fact: Started) -> None:
        """A new replica needs a notice."""
        if self.jobs.service[fact.job] >= 0:
            self._due_s[fact.job] = inf

    def on_stopped(self, fact: Stopped) -> None:
        """Stopped replicas need no ceiling."""
        if fact.why != Why.CUT:
            self._due_s.pop(fact.job, None)

    def on_notified(self, fact: Notified) -> None:
        """Its grace begins."""
        if fact.job in self._due_s:
            self._due_s[fact.job] = fact.at_s + fact.grace_s

    def on_ceiled(self, fact: Ceiled) -> None:
        """It keeps the owner's minimum, ends by itself, and begins only while nothing asks for the service."""
        self.checked += 1
        stood = self._standing(fact.service, fact.at_s)
        self._ceiling[fact.service] = fact
        if fact.replicas < 0:
            return
        subject, lasts_s = f"service {fact.service}", fact.until_s - fact.at_s
        if fact.replicas < fact.least:
            kept = counted(fact.least, "replica")
            self.violate(fact.at_s, subject, f"is scaled down to {fact.replicas}, its owner keeps {kept}")
        if fact.replicas == 0 and not fact.wakes:
            self.violate(fact.at_s, subject, "is scaled down to zero, and no signal would wake it")
        due_s = max((at_s for job, at_s in self._due_s.items() if self.jobs.service[job] == fact.service), default=0.0)
        if stood is None and due_s > fact.at_s:
            self.violate(fact.at_s, subject, "is scaled down before the grace of the notices of its replicas ended")
        if fact.busy:
            self.violate(fact.at_s, subject, "is scaled down while it has requests")
        if not lasts_s <= LONGEST_S:
            self.violate(fact.at_s, subject, f"is scaled down for {lasts_s:g} s (at most {LONGEST_S:g} s)")

    def on_scaled(self, fact: Scaled) -> None:
        """An autoscaler keeps to the ceiling in force."""
        self.checked += 1
        ceiling = self._standing(fact.service, fact.at_s)
        if ceiling is not None and fact.wanted > max(ceiling.replicas, fact.floor):
            wanted = counted(fact.wanted, "replica")
            words = f"is scaled to {wanted}, its ceiling is {ceiling.replicas}"
            self.violate(fact.at_s, f"service {fact.service}", words)

    def _standing(self, service: int, at_s: float) -> Ceiled | None:
        """The ceiling in force, neither lifted nor expired."""
        ceiling = self._ceiling.get(service)
        return ceiling if ceiling is not None and ceiling.replicas >= 0 and at_s < ceiling.until_s else None
