"""What the policy only recommends is not done: no effect of an action that may not go by itself."""

from __future__ import annotations

from simulator.checkers.base import Checker
from simulator.facts import Evicting, Started


class Modes(Checker):
    """Tells the action behind an effect by its facts: gap fillers are marked, and so are promised evictions."""

    name = "modes"

    def on_started(self, fact: Started) -> None:
        """It must be of an action that may start work."""
        self._effect(fact.at_s, fact.job, "was started", "backfill" if fact.backfill else "admit_gang")

    def on_evicting(self, fact: Evicting) -> None:
        """A gap filler is told to leave by backfill; there is no other action that evicts."""
        self._effect(fact.at_s, fact.job, "was evicted", "backfill")

    def _effect(self, at_s: float, job: int, words: str, action: str) -> None:
        self.checked += 1
        if action in self.world.rules.held_actions:
            self.violate(at_s, self.job(job), f"{words} although {action} may not act by itself")
