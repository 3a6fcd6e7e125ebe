"""No node is turned to another way of sharing while work is on it, and none starts there meanwhile."""

from __future__ import annotations

from simulator.checkers.base import World
from simulator.checkers.shared_gpus import SharedGpus
from simulator.world.facts import Started, Turned


class TurnedNodes(SharedGpus):
    """Follows the changes under way."""

    name = "turned-nodes"

    def __init__(self, world: World) -> None:
        """None is under way."""
        super().__init__(world)
        self._turning: set[int] = set()

    def on_turned(self, fact: Turned) -> None:
        """Nothing may be on the node, at the begin and at the end."""
        super().on_turned(fact)
        self.checked += 1
        (self._turning.add if fact.begins else self._turning.discard)(fact.node)
        there = sorted({job for gpu, jobs in self.on.items() if self.node_of[gpu] == fact.node for job in jobs})
        if there:
            self.violate(fact.at_s, self.node(fact.node), f"is turned while {self.job(there[0])} is on it")

    def on_started(self, fact: Started) -> None:
        """Not on a node that is turning."""
        super().on_started(fact)
        nodes = {self.node_of[gpu] for gpu in fact.gpus}
        for node in sorted(nodes & self._turning):
            self.violate(fact.at_s, self.job(fact.job), f"starts on {self.node(node)}, which is being turned")
