"""Work shares a GPU by software only if it states that it may, and only beside work that it trusts."""

from __future__ import annotations

from autopilot.core.model.objects import Share, Trust
from autopilot.core.model.snapshot import SloClass
from simulator.checkers.shared_gpus import SharedGpus
from simulator.world.facts import Started


class SharedTrust(SharedGpus):
    """Reads the declarations of both sides."""

    name = "shared-trust"

    def joined(self, fact: Started, gpu: int, beside: list[int]) -> None:
        """Neither side may be untrusted, latency-critical, or of another tenant without both consenting."""
        for other in beside:
            for job in (fact.job, other):
                if self.jobs.trust[job] == Trust.UNTRUSTED:
                    self.violate(fact.at_s, self.job(job), f"is untrusted and shares {self.gpu(gpu)}")
                if self.jobs.share[job] == Share.NEVER or self.jobs.slo_class[job] == SloClass.LATENCY_CRITICAL:
                    self.violate(fact.at_s, self.job(job), f"may never share and shares {self.gpu(gpu)}")
            across = min(self.jobs.trust[fact.job], self.jobs.trust[other]) == Trust.ACROSS
            if self.jobs.tenant[fact.job] != self.jobs.tenant[other] and not across:
                self.violate(
                    fact.at_s, self.job(fact.job), f"shares {self.gpu(gpu)} with {self.job(other)} of another tenant"
                )
