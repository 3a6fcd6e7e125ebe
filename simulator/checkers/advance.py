"""An advance reservation stays available to its queue, from its start until its grace period is over.

In that time no other work starts on GPUs of the model unless the reserved number is still idle, held by the queue
itself, or held by preemptible backfilled work. Work inside the guarantee of its own queue has to leave only the
guarantee of the reservation's queue.
"""

from __future__ import annotations

from autopilot.core.model.units import counted
from simulator.checkers.base import Checker, World
from simulator.checkers.floor import Floor
from simulator.checkers.owners import MILLI, Owners, held_milli
from simulator.world.facts import GpuChanged, NodeChanged, Recut, Started, Stopped, Turned, Why


class Advance(Checker):
    """Counts idle whole GPUs by model, and those held by each queue."""

    name = "advance"

    def __init__(self, world: World) -> None:
        """All GPUs are idle."""
        super().__init__(world)
        self._specs = world.rules.advance
        self._models = world.inventory.names.gpu_models
        self._owners = Owners(world.rules.queues, self._models, world.jobs)
        self._floor = Floor(world.inventory)
        self._row = {spec.name: row for row, spec in enumerate(world.rules.queues)}
        self._held: dict[int, Started] = {}

    def on_node(self, fact: NodeChanged) -> None:
        """The node became schedulable, or unschedulable."""
        self._floor.node(fact)

    def on_gpu(self, fact: GpuChanged) -> None:
        """As for a node."""
        self._floor.gpu(fact)

    def on_recut(self, fact: Recut) -> None:
        """As for a node."""
        self._floor.recut(fact)

    def on_started(self, fact: Started) -> None:
        """Check for enough left GPUs for the reservation."""
        if not self._specs:
            return
        self._release(fact.job)
        self._held[fact.job] = fact
        self._book(fact, 1)
        owed = self._inside(self._owners.queue(fact.job))
        path = self._owners.paths[self._owners.queue(fact.job)]
        used = {self._floor.model_of[self._floor.node_of[gpu]] for gpu in fact.gpus}
        for spec in self._specs:
            model, row = self._models.index(spec.gpu_model), self._row[spec.queue]
            if model not in used or row in path or not spec.start_s <= fact.at_s < spec.start_s + spec.grace_s:
                continue
            self.checked += 1
            left = self._idle(model) + self._own(row, model)
            guaranteed = min(self._owners.guarantee[each][model] for each in self._owners.paths[row]) // MILLI
            if left < (min(spec.gpus, guaranteed) if owed else spec.gpus):
                self.violate(
                    fact.at_s,
                    self.job(fact.job),
                    f"started while {counted(spec.gpus, 'GPU is|GPUs are')} reserved as {spec.name}, and left {left}",
                )

    def on_stopped(self, fact: Stopped) -> None:
        """It holds nothing now."""
        if fact.why != Why.CUT:
            self._release(fact.job)

    def on_turned(self, fact: Turned) -> None:
        """Its GPUs are given out by shares, or whole again."""
        self._floor.turned(fact)

    def _release(self, job: int) -> None:
        held = self._held.pop(job, None)
        if held is not None:
            self._book(held, -1)

    def _book(self, fact: Started, sign: int) -> None:
        queue, each = self._owners.queue(fact.job), held_milli(self.jobs.shape_of(fact.job), fact)
        for gpu in fact.gpus:
            self._owners.book(queue, self._floor.model_of[self._floor.node_of[gpu]], sign * each)

    def _inside(self, queue: int) -> bool:
        """True while a queue and all above it hold no more than their guarantees."""
        return all(min(self._owners.left(each)) >= 0 for each in self._owners.paths[queue])

    def _idle(self, model: int) -> int:
        held = [gpu for each in self._held.values() if not each.backfill for gpu in each.gpus]
        counts = self._floor.idle(held)
        return sum(count for node, count in enumerate(counts) if self._floor.model_of[node] == model)

    def _own(self, row: int, model: int) -> int:
        """GPUs of a model held by the work below a queue."""
        return sum(
            self._floor.model_of[self._floor.node_of[gpu]] == model
            for job, each in self._held.items()
            if row in self._owners.paths[self._owners.queue(job)]
            for gpu in each.gpus
        )
