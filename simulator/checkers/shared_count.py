"""At most four pieces of development work and two of batch work share a GPU, and none of them is wider than four."""

from __future__ import annotations

from collections import Counter

from autopilot.core.model.objects import Share
from simulator.checkers.shared_gpus import SharedGpus
from simulator.world.facts import Started

MOST = {Share.DEV: 4, Share.PAIR: 2}
MOST_WIDTH = 4


class SharedCount(SharedGpus):
    """Counts the work of each class on each shared GPU; work that shares with nobody is alone."""

    name = "shared-count"

    def joined(self, fact: Started, gpu: int, beside: list[int]) -> None:
        """With the newcomer."""
        jobs = [fact.job, *beside]
        for each, count in Counter(Share(self.jobs.share[job]) for job in jobs).items():
            if count > MOST.get(each, 1):
                message = f"{count} workloads of class {each.name.lower()} share it, at most {MOST.get(each, 1)} may"
                self.violate(fact.at_s, self.gpu(gpu), message)
        if beside and any(self.jobs.gpus[job] > MOST_WIDTH for job in jobs):
            self.violate(fact.at_s, self.gpu(gpu), f"is shared by work of more than {MOST_WIDTH} GPUs")
