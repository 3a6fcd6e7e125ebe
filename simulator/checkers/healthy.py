"""Working jobs on whole hardware are not stopped, neither for their own sake nor for idleness.

The facts of the cluster decide: broken hardware, and the activity of the GPUs. The controller's view does not count.
"""

from __future__ import annotations

from autopilot.core.hardware.xid_facts import CONDEMNED, remedy_of
from simulator.checkers.base import Checker, World
from simulator.world.facts import Evicting, GpuChanged, NodeChanged, Recutting, Started, Stopped, Why


class Healthy(Checker):
    """Compares each such stop with the truth at its time."""

    name = "healthy"

    def __init__(self, world: World) -> None:
        """All hardware is whole."""
        super().__init__(world)
        self._bad_gpus: set[int] = set()
        self._bad_nodes: set[int] = set()
        self._held: dict[int, tuple[int, ...]] = {}
        self._node = world.inventory.gpus.node.tolist()

    def on_gpu(self, fact: GpuChanged) -> None:
        """A GPU is out of order, or whole again."""
        bad = not fact.healthy or remedy_of(fact.xid) >= CONDEMNED
        (self._bad_gpus.add if bad else self._bad_gpus.discard)(fact.gpu)

    def on_recutting(self, fact: Recutting) -> None:
        """Work on a GPU may have to leave while its geometry changes."""
        (self._bad_gpus.add if fact.begins else self._bad_gpus.discard)(fact.gpu)

    def on_node(self, fact: NodeChanged) -> None:
        """A node is down, or the cloud calls it back."""
        bad = not fact.ready or fact.reclaim_at_s < float("inf")
        (self._bad_nodes.add if bad else self._bad_nodes.discard)(fact.node)

    def on_started(self, fact: Started) -> None:
        """Its GPUs."""
        self._held[fact.job] = fact.gpus

    def on_stopped(self, fact: Stopped) -> None:
        """It holds nothing any more."""
        if fact.why != Why.RESIZE:
            self._held.pop(fact.job, None)

    def on_evicting(self, fact: Evicting) -> None:
        """Something must be wrong with it, or its GPUs must have done nothing."""
        gpus = self._held.get(fact.job, ())
        if fact.why == Why.RECOVER:
            self.checked += 1
            bad = any(gpu in self._bad_gpus or self._node[gpu] in self._bad_nodes for gpu in gpus)
            if not bad and not (self.world.ill is not None and self.world.ill(fact.job)):
                self.violate(fact.at_s, self.job(fact.job), "was stopped for its own sake, and nothing was wrong")
        elif fact.why == Why.PARK and self.world.works is not None:
            self.checked += 1
            if self.world.works(fact.job, fact.at_s):
                self.violate(fact.at_s, self.job(fact.job), "was suspended for doing nothing, and its GPUs worked")
