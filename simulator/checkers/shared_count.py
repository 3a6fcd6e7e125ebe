"""At most four pieces of development work, or two of batch work, share a GPU, and none of them is wider than four."""

from __future__ import annotations

from autopilot.core.model.objects import Share
from simulator.checkers.shared_gpus import SharedGpus
from simulator.world.facts import Started

MOST = {Share.DEV: 4, Share.PAIR: 2}
MOST_WIDTH = 4


class SharedCount(SharedGpus):
    """Counts the work on each shared GPU; the least limit of those on it binds all."""

    name = "shared-count"

    def joined(self, fact: Started, gpu: int, beside: list[int]) -> None:
        """With the newcomer."""
        jobs = [fact.job, *beside]
        most = min(MOST.get(Share(self.jobs.share[job]), 1) for job in jobs)
        if len(jobs) > most:
            self.violate(fact.at_s, self.gpu(gpu), f"{len(jobs)} workloads share it, at most {most} may")
        if beside and any(self.jobs.gpus[job] > MOST_WIDTH for job in jobs):
            self.violate(fact.at_s, self.gpu(gpu), f"is shared by work of more than {MOST_WIDTH} GPUs")
