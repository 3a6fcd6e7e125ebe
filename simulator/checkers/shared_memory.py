"""The footprints of the work on a shared GPU fit into its memory together."""

from __future__ import annotations

from simulator.checkers.shared_gpus import SharedGpus
from simulator.world.facts import Started


class SharedMemory(SharedGpus):
    """Adds up the true footprints, which no snapshot shows; unknown without the loads of the run."""

    name = "shared-memory"

    def joined(self, fact: Started, gpu: int, beside: list[int]) -> None:
        """With the newcomer."""
        loads, inventory = self.world.loads, self.world.inventory
        if loads is None or not beside:
            return
        model = inventory.names.gpu_models[int(inventory.nodes.gpu_model[self.node_of[gpu]])]
        held_mib = sum(loads.footprint_mib(job, model) for job in (fact.job, *beside))
        if held_mib > loads.memory_mib(model):
            message = f"{held_mib:,.0f} MiB are held of {loads.memory_mib(model):,.0f} with {self.job(fact.job)}"
            self.violate(fact.at_s, self.gpu(gpu), message)
