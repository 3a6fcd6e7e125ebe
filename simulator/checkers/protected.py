"""Protected work is never a victim: sheltered classes, non-preemptible work, opted-out work."""

from __future__ import annotations

from simulator.checkers.base import Checker
from simulator.world.facts import Evicting, Why


class Protected(Checker):
    """A contract makes no difference for sheltered work; it does for work that is merely not preemptible.

    Work on failed or failing hardware may be stopped whatever it is: that is for its own sake, and by contract.
    """

    name = "protected"

    def on_evicting(self, fact: Evicting) -> None:
        """Evicted work must be allowed to be evicted."""
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
