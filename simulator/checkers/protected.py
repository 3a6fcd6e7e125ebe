"""Protected work is never a victim: sheltered classes, work that may not be stopped, work that opted out."""

from __future__ import annotations

from simulator.checkers.base import Checker
from simulator.world.facts import Evicting, Why


class Protected(Checker):
    """A contract makes no difference for the sheltered; it does for work that is merely not preemptible.

    What is broken, or about to be, may be stopped whatever it is: it is stopped for its own sake, and by contract.
    """

    name = "protected"

    def on_evicting(self, fact: Evicting) -> None:
        """Whoever is told to leave must be one who may be told."""
        self.checked += 1
        if fact.why == Why.RECOVER and fact.contract:
            return
        job, rules = fact.job, self.world.rules
        if self.jobs.slo_class[job] in rules.sheltered_classes:
            self.violate(fact.at_s, self.job(job), "was evicted although its class is sheltered")
        elif job in rules.excluded:
            self.violate(fact.at_s, self.job(job), "was evicted although it opted out")
        elif not self.jobs.preemptible[job] and not fact.contract:
            self.violate(fact.at_s, self.job(job), "was evicted although it is not preemptible")
