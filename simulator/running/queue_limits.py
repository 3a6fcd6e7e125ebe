"""The hard limits of queues, for schedulers without quota: the baselines and the policies of other people.

A limit counts work on GPUs, less evicted work. Work above the limit of a queue on its path does not start; for the
orders it is not there until its queue has room.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.checkers.owners import MILLI, Owners
from simulator.specs.clusterqueues import QueueSpec
from simulator.world.cluster import Cluster
from simulator.world.facts import Evicting, Started, Stopped, Why

NO_LIMIT = 1 << 60


def hold_limits(cluster: Cluster, specs: Sequence[QueueSpec]) -> None:
    """From now on no start of `cluster` exceeds a limit of the queues of its cluster file."""
    if any(spec.limit is not None or spec.limit_by_model for spec in specs):
        cluster.limits = QueueLimits(cluster, specs)
        cluster.observe(cluster.limits)


class QueueLimits:
    """The use of each queue, and the room of a job beside it. A limit of -1 as model counts all models."""

    def __init__(self, cluster: Cluster, specs: Sequence[QueueSpec]) -> None:
        self._jobs, self._node_of, self._model_of = cluster.jobs, cluster.hardware.node_of, cluster.hardware.model_of
        models = cluster.inventory.names.gpu_models
        self._every_model = (1 << len(models)) - 1
        self.owners = Owners(specs, models, cluster.jobs)
        self.limits: dict[int, dict[int, int]] = {}  # queue -> model -> thousandths of a GPU
        for row, spec in enumerate(specs):
            stated = {models.index(model): gpus for model, gpus in spec.limit_by_model.items() if model in models}
            stated |= {} if spec.limit is None else {-1: spec.limit}
            self.limits[row] = {model: MILLI * gpus for model, gpus in stated.items()}
        self._held: dict[int, Started] = {}

    def queue(self, job: int) -> int:
        """The queue of a job, as a number."""
        return self.owners.queue(job)

    def room(self, job: int, beside: int = -1) -> bool:
        """True if its queues have room for a job, and for the job `beside` too; on one of its GPU models at least."""
        shape = self._jobs.shape_of(job)
        models = shape.models or self._every_model
        asked = self.least(job)
        near = self.owners.paths[self.queue(beside)] if beside >= 0 else ()
        for queue in self.owners.paths[self.queue(job)]:
            limits = self.limits.get(queue, {})
            more = asked + (self.least(beside) if queue in near else 0)
            if -1 in limits and self.owners.use[queue][-1] + more > limits[-1]:
                return False
            if limits and not any(
                models >> model & 1 and self.owners.use[queue][model] + more <= limits.get(model, NO_LIMIT)
                for model in range(self._every_model.bit_length())
            ):
                return False
        return True

    def allows(self, job: int, gpus: Sequence[int]) -> bool:
        """True if a job may start on exactly these GPUs."""
        each = self._jobs.shape_of(job).milli or MILLI
        models = [self._model_of[self._node_of[gpu]] for gpu in gpus if 0 <= gpu < len(self._node_of)]
        return all(
            self.owners.use[queue][model] + each * (len(models) if model < 0 else models.count(model)) <= most
            for queue in self.owners.paths[self.queue(job)]
            for model, most in self.limits.get(queue, {}).items()
        )

    def budget(self) -> Budget:
        """The limits of an order choosing all running jobs anew."""
        return Budget(self)

    def on_started(self, fact: Started) -> None:
        """It holds its GPUs."""
        self._held[fact.job] = fact
        self._book(fact, 1)

    def on_evicting(self, fact: Evicting) -> None:
        """Its GPUs no longer count."""
        self._release(fact.job)

    def on_stopped(self, fact: Stopped) -> None:
        """It holds nothing."""
        if fact.why != Why.CUT:
            self._release(fact.job)

    def least(self, job: int) -> int:
        """Thousandths of a GPU at its full width."""
        shape = self._jobs.shape_of(job)
        return shape.milli or MILLI * shape.gpus

    def _release(self, job: int) -> None:
        held = self._held.pop(job, None)
        if held is not None:
            self._book(held, -1)

    def _book(self, fact: Started, sign: int) -> None:
        queue, each = self.queue(fact.job), self._jobs.shape_of(fact.job).milli or MILLI
        for gpu in fact.gpus:
            self.owners.book(queue, self._model_of[self._node_of[gpu]], sign * each)


class Budget:
    """Limits of all GPU models together, filled job by job from nothing."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._used: dict[int, int] = {}

    def fits(self, job: int) -> bool:
        """True if its queues have room for it beside the added jobs."""
        least, stated = self._limits.least(job), self._limits.limits
        return all(
            self._used.get(queue, 0) + least <= stated.get(queue, {}).get(-1, NO_LIMIT) for queue in self._path(job)
        )

    def add(self, job: int) -> None:
        """It is to run."""
        for queue in self._path(job):
            self._used[queue] = self._used.get(queue, 0) + self._limits.least(job)

    def _path(self, job: int) -> tuple[int, ...]:
        return self._limits.owners.paths[self._limits.queue(job)]
