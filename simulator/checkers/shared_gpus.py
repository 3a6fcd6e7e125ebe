"""Who is on which GPU of the nodes that share GPUs by software, from the facts alone; the base of their checkers."""

from __future__ import annotations

from autopilot.core.model.objects import Sharing
from simulator.checkers.base import Checker, World
from simulator.world.facts import Started, Stopped, Turned, Why


class SharedGpus(Checker):
    """Follows starts, stops and turned nodes; `joined` is called for each start on a shared GPU."""

    def __init__(self, world: World) -> None:
        """As the inventory states it."""
        super().__init__(world)
        nodes = world.inventory.nodes
        self.node_of = world.inventory.gpus.node.tolist()
        self.kind: list[int] = nodes.sharing.tolist()
        self.on: dict[int, list[int]] = {}  # GPU -> jobs on it, whole or by share
        self._held: dict[int, tuple[int, ...]] = {}

    def on_turned(self, fact: Turned) -> None:
        """A node is shared in another way from now on."""
        if not fact.begins:
            self.kind[fact.node] = fact.sharing

    def on_started(self, fact: Started) -> None:
        """Work took its GPUs."""
        if fact.instances:
            return
        self._held[fact.job] = fact.gpus
        for gpu in fact.gpus:
            beside = self.on.setdefault(gpu, [])
            if self.kind[self.node_of[gpu]] != Sharing.WHOLE:
                self.checked += 1
                self.joined(fact, gpu, beside)
            beside.append(fact.job)

    def on_stopped(self, fact: Stopped) -> None:
        """Work left its GPUs."""
        if fact.why != Why.CUT:
            for gpu in self._held.pop(fact.job, ()):
                self.on[gpu].remove(fact.job)

    def joined(self, fact: Started, gpu: int, beside: list[int]) -> None:
        """Work starts on a shared GPU beside these jobs."""
