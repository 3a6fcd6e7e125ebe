"""Faulty, down and cordoned hardware receives no work."""

from __future__ import annotations

from simulator.checkers.base import Checker, World
from simulator.world.facts import GpuChanged, NodeChanged, Started


class Nodes(Checker):
    """Tracks unfit nodes and GPUs, and checks every start."""

    name = "nodes"

    def __init__(self, world: World) -> None:
        """State of the inventory."""
        super().__init__(world)
        nodes, gpus = world.inventory.nodes, world.inventory.gpus
        self._node_of: list[int] = gpus.node.tolist()
        self._unfit = {n for n, (up, no) in enumerate(zip(nodes.ready, nodes.cordoned, strict=True)) if no or not up}
        self._broken = {gpu for gpu, healthy in enumerate(gpus.healthy) if not healthy}

    def on_node(self, fact: NodeChanged) -> None:
        """Record its openness to work."""
        if fact.ready and not fact.cordoned:
            self._unfit.discard(fact.node)
        else:
            self._unfit.add(fact.node)

    def on_gpu(self, fact: GpuChanged) -> None:
        """Record its openness to work."""
        if fact.healthy:
            self._broken.discard(fact.gpu)
        else:
            self._broken.add(fact.gpu)

    def on_started(self, fact: Started) -> None:
        """None of its GPUs may be unfit."""
        self.checked += 1
        if not self._unfit and not self._broken:
            return
        for gpu in fact.gpus:
            if self._node_of[gpu] in self._unfit:
                self.violate(
                    fact.at_s,
                    self.job(fact.job),
                    f"started on {self.node(self._node_of[gpu])}, which is unfit",
                )
            if gpu in self._broken:
                self.violate(fact.at_s, self.job(fact.job), f"started on {self.gpu(gpu)}, which is broken")
