"""No queue exceeds its hard limits, of all GPUs together and of single GPU models, at any start.

Evicted work does not count: the limit holds once it has left. Shrinking work may still be above.
"""

from __future__ import annotations

from autopilot.core.model.units import counted
from simulator.checkers.base import Checker, World
from simulator.checkers.owners import MILLI, Owners
from simulator.world.facts import Evicting, Started, Stopped, Why


class Limits(Checker):
    """Tracks the GPUs of each queue, and checks every start of work below it."""

    name = "limits"

    def __init__(self, world: World) -> None:
        """No work yet."""
        super().__init__(world)
        self._models = world.inventory.names.gpu_models
        self._owners = Owners(world.rules.queues, self._models, world.jobs)
        self._limits: dict[int, dict[int, int]] = {}  # queue -> model, or -1 for all -> thousandths
        for row, spec in enumerate(world.rules.queues):
            stated = {self._models.index(model): gpus for model, gpus in spec.limit_by_model.items()}
            stated |= {} if spec.limit is None else {-1: spec.limit}
            if stated:
                self._limits[row] = {model: MILLI * gpus for model, gpus in stated.items()}
        self._held: dict[int, Started] = {}
        self._narrowing: dict[int, int] = {}  # jobs that continue at this instant, and what they held

    def on_started(self, fact: Started) -> None:
        """It holds; each of its queues keeps its limits."""
        if not self._limits:
            return
        self._held[fact.job] = fact
        self._book(fact, 1)
        if self._narrowing.pop(fact.job, 0) > len(fact.gpus):
            return
        queue = self._owners.queue(fact.job)
        for each in self._owners.paths[queue]:
            for model, most in self._limits.get(each, {}).items():
                self.checked += 1
                used = self._owners.use[each][model]
                if used > most:
                    what = "GPU|GPUs" if model < 0 else f"GPU of {self._models[model]}|GPUs of {self._models[model]}"
                    self.violate(
                        fact.at_s,
                        f"queue {self._owners.name[each]}",
                        f"holds {counted(used / MILLI, what)}, its limit is {most / MILLI:g}",
                    )

    def on_evicting(self, fact: Evicting) -> None:
        """Its GPUs no longer count."""
        held = self._held.pop(fact.job, None)
        if held is not None:
            self._book(held, -1)

    def on_stopped(self, fact: Stopped) -> None:
        """It holds nothing now, or continues at the same instant."""
        held = self._held.pop(fact.job, None) if fact.why != Why.CUT else None
        if held is not None:
            self._book(held, -1)
            if fact.why == Why.RESIZE:
                self._narrowing[fact.job] = len(held.gpus)

    def _book(self, fact: Started, sign: int) -> None:
        queue, each = self._owners.queue(fact.job), self.jobs.shape_of(fact.job).milli or MILLI
        nodes, gpus = self.world.inventory.nodes, self.world.inventory.gpus
        for gpu in fact.gpus:
            self._owners.book(queue, int(nodes.gpu_model[gpus.node[gpu]]), sign * each)
