"""Idle work is suspended only after its owner was notified, and after the grace of the notice."""

from __future__ import annotations

from simulator.checkers.base import Checker, World
from simulator.world.facts import Evicting, Notified, Stopped, Why


class Notices(Checker):
    """Compares each suspension with the notice before it. A notice holds for one incarnation."""

    name = "notices"

    def __init__(self, world: World) -> None:
        """No notice yet."""
        super().__init__(world)
        self._due_s: dict[int, float] = {}  # when the grace of the newest notice ends

    def on_notified(self, fact: Notified) -> None:
        """The grace begins."""
        self._due_s[fact.job] = fact.at_s + fact.grace_s

    def on_stopped(self, fact: Stopped) -> None:
        """A new stay needs a new notice."""
        if fact.why != Why.RESIZE:
            self._due_s.pop(fact.job, None)

    def on_evicting(self, fact: Evicting) -> None:
        """Its owner must have had the time of the notice."""
        if fact.why != Why.PARK:
            return
        self.checked += 1
        due_s = self._due_s.get(fact.job)
        if due_s is None:
            self.violate(fact.at_s, self.job(fact.job), "was suspended for doing nothing without a notice")
        elif fact.at_s < due_s:
            left_s = due_s - fact.at_s
            self.violate(
                fact.at_s, self.job(fact.job), f"was suspended {left_s:g} s before the grace of its notice ended"
            )
