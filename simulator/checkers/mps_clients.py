"""No client of an MPS server is ended by a signal beside others: the server may take them with it."""

from __future__ import annotations

from autopilot.core.model.objects import Sharing
from simulator.checkers.shared_gpus import SharedGpus
from simulator.world.facts import Evicting


class MpsClients(SharedGpus):
    """Looks at every eviction of a client."""

    name = "mps-clients"

    def on_evicting(self, fact: Evicting) -> None:
        """It must save its progress and exit on its own where others are on its GPUs."""
        mine = [gpu for gpu, jobs in self.on.items() if fact.job in jobs]
        if not any(self.kind[self.node_of[gpu]] == Sharing.MPS for gpu in mine):
            return
        self.checked += 1
        beside = sorted({job for gpu in mine for job in self.on[gpu]} - {fact.job})
        if fact.by_signal and beside:
            self.violate(fact.at_s, self.job(fact.job), f"is ended by a signal beside {self.job(beside[0])}")
