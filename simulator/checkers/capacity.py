"""No GPU, share or slice is allocated twice, and only existing ones are."""

from __future__ import annotations

from simulator.checkers.base import Checker, World
from simulator.world.facts import Recut, Started, Stopped, Why

WHOLE_MILLI = 1000


class Capacity(Checker):
    """Tracks the holder of every GPU, share and instance, from starts and stops alone."""

    name = "capacity"

    def __init__(self, world: World) -> None:
        """Every GPU is free."""
        super().__init__(world)
        self._used = [0] * len(world.inventory.gpus.uuid)  # thousandths held whole or by share
        self._instance_user: dict[int, int] = {}
        self._held: dict[int, Started] = {}

    def on_started(self, fact: Started) -> None:
        """Record it; each GPU must have had room."""
        self.checked += 1
        job = fact.job
        if job in self._held:
            self.violate(fact.at_s, self.job(job), "started while it already holds GPUs")
        self._held[job] = fact
        if fact.instances:
            for row in fact.instances:
                other = self._instance_user.setdefault(row, job)
                if other != job:
                    self.violate(fact.at_s, self.job(job), f"instance {row} is held by {self.job(other)}")
            return
        used = self._used
        each = self._each(fact)
        for gpu in fact.gpus:
            used[gpu] += each
            if used[gpu] > WHOLE_MILLI:
                self.violate(fact.at_s, self.gpu(gpu), f"{used[gpu]} thousandths of it are allocated")

    def on_stopped(self, fact: Stopped) -> None:
        """Remove it."""
        if fact.why == Why.CUT:
            return
        held = self._held.pop(fact.job, None)
        if held is None:
            self.violate(fact.at_s, self.job(fact.job), "stopped without having started")
            return
        for row in held.instances:
            if self._instance_user.get(row) == fact.job:
                del self._instance_user[row]
        if not held.instances:
            each, used = self._each(held), self._used
            for gpu in held.gpus:
                used[gpu] -= each

    def on_recut(self, fact: Recut) -> None:
        """A GPU is not partitioned while it is held whole, and no instance in use disappears."""
        self.checked += 1
        if self._used[fact.gpu]:
            self.violate(fact.at_s, self.gpu(fact.gpu), "was partitioned while work held it")
        rows = {row for row, _, _ in fact.instances}
        for row, job in self._instance_user.items():
            held = self._held[job]
            where = dict(zip(held.instances, held.gpus, strict=True)).get(row)
            if where == fact.gpu and row not in rows:
                self.violate(fact.at_s, self.gpu(fact.gpu), f"instance {row} was destroyed under {self.job(job)}")

    def _each(self, fact: Started) -> int:
        milli = self.jobs.shapes[self.jobs.shape[fact.job]].milli
        return milli or fact.milli // max(len(fact.gpus), 1)
