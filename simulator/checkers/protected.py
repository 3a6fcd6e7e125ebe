"""Protected work is never a victim: sheltered classes, non-preemptible work, opted-out work."""

from __future__ import annotations

from simulator.checkers.base import Checker, World
from simulator.checkers.declared import Declarations
from simulator.checkers.owners import MILLI, Owners
from simulator.world.facts import Declared, Evicting, Started, Stopped, Why


class Protected(Checker):
    """A contract makes no difference for sheltered work; it does for merely non-preemptible work.

    A contract may take protected work above the guarantee of its queue: it is lent. It may also take late work while a
    queue on its path holds more than its guarantee: work declared protected while it ran, or started beyond the
    guarantee by another controller. Any work on failed or failing hardware may be stopped: for its own sake, and by
    contract.
    """

    name = "protected"

    def __init__(self, world: World) -> None:
        """No work yet."""
        super().__init__(world)
        self._owners = Owners(world.rules.queues, world.inventory.names.gpu_models, world.jobs)
        self._model = world.inventory.nodes.gpu_model[world.inventory.gpus.node].tolist()
        self._declared, self._held = Declarations(world, self._owners), dict[int, Started]()

    def on_started(self, fact: Started) -> None:
        """It holds GPUs."""
        self._held[fact.job] = fact
        self._declared.started(fact, self._held)
        self._book(fact, 1)

    def on_stopped(self, fact: Stopped) -> None:
        """It holds none; resized work goes on."""
        held = self._held.pop(fact.job, None)
        if held is not None:
            self._book(held, -1)
        if fact.why != Why.RESIZE:
            self._declared.stopped(fact.job)

    def on_declared(self, fact: Declared) -> None:
        """Its owner declares something else."""
        self._declared.declared(fact, holds=fact.job in self._held)

    def on_evicting(self, fact: Evicting) -> None:
        """Evicted work must be allowed to be evicted."""
        self.checked += 1
        job = fact.job
        if fact.contract and (fact.why == Why.RECOVER or self._yields(job)):
            return
        if self.jobs.slo_class[job] in self.world.rules.sheltered_classes:
            self.violate(fact.at_s, self.job(job), "was evicted although its class is sheltered")
        elif self._declared.out(job):
            self.violate(fact.at_s, self.job(job), "was evicted although it opted out")
        elif not self.jobs.preemptible[job] and not fact.contract:
            self.violate(fact.at_s, self.job(job), "was evicted although it is not preemptible")

    def _book(self, fact: Started, sign: int) -> None:
        each = self.jobs.shape_of(fact.job).milli or MILLI
        for gpu in fact.gpus:
            self._owners.book(self._owners.queue(fact.job), self._model[gpu], sign * each)

    def _yields(self, job: int) -> bool:
        """True if its protection fails against the owner of its GPUs."""
        if job not in self._held:
            return False
        owners = self._owners
        above = any(min(owners.left(queue)) < 0 for queue in owners.paths[owners.queue(job)])
        return job in self._declared.lent(self._held) or (self._declared.late(job) and above)
