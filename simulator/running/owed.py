"""Owed time: how long, and by how many GPUs, a queue runs below its guarantee while a gang of it waits that fits.

A gang waits inside the guarantee when its smallest start fits under what its queue, and each queue above it, does not
hold of its guarantee, on one GPU model that it may use. While one does, the queue is owed all that it does not hold of
its guarantees of such models, at most what the queues above it do not hold of theirs. The figure is computed from the
facts, for every policy, whatever it knows of guarantees. It asks about quota alone: also where no node has room, or
where work that may not be stopped is in the way, the time is owed. Work that no node of the cluster could hold is left
out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from simulator.checkers.owners import MILLI, Owners, least_milli
from simulator.specs.clusterqueues import QueueSpec
from simulator.world.cluster import Cluster
from simulator.world.facts import REQUEUED, Resumed, Started, Stopped, Submitted, Why, Withdrawn
from simulator.world.physics import TICKS_PER_S
from simulator.world.placing import never_fits

UNITS_PER_GPU_S = MILLI * TICKS_PER_S


@dataclass(slots=True)
class Debt:
    """The debt to one queue: thousandths of a GPU times ticks, and its longest spell in seconds."""

    units: int = 0
    longest_s: float = 0.0

    @property
    def gpu_s(self) -> float:
        """The same in GPU-seconds."""
        return self.units / UNITS_PER_GPU_S


class Owed:
    """Observes a cluster and adds up the debt to each queue with a guarantee."""

    def __init__(self, cluster: Cluster, specs: Sequence[QueueSpec]) -> None:
        """Nobody waits. `specs` are the queues of the cluster file."""
        self._cluster, jobs = cluster, cluster.jobs
        self._models = len(cluster.inventory.names.gpu_models)
        self._owners = Owners(specs, cluster.inventory.names.gpu_models, jobs)
        self._least: list[int] = []  # of each shape: thousandths of its smallest start; 0: no node could hold it
        self._waiting: dict[int, Counter[int]] = {}  # queue -> shapes of the gangs that wait
        self._held: dict[int, Started] = {}
        self._pending: set[int] = set()
        self._rate: dict[int, int] = {}  # queue -> thousandths that it is owed at present
        self._since_s: dict[int, float] = {}  # start of the present spell
        self._touched: set[int] = set()
        self._now_s = 0.0
        self.debts: dict[int, Debt] = {
            queue: Debt() for queue, owed in enumerate(self._owners.guarantee) if owed[-1] > 0
        }

    @property
    def by_queue(self) -> dict[str, Debt]:
        """The debts by name of the queue; empty if no queue has a guarantee."""
        return {self._owners.name[queue]: debt for queue, debt in self.debts.items()}

    # --- facts ----------------------------------------------------------------------------

    def on_submitted(self, fact: Submitted) -> None:
        """It waits."""
        self._wait(fact.job, fact.at_s)

    def on_resumed(self, fact: Resumed) -> None:
        """Parked work waits again."""
        self._wait(fact.job, fact.at_s)

    def on_withdrawn(self, fact: Withdrawn) -> None:
        """It waits no more."""
        self._go(fact.job, fact.at_s)

    def on_started(self, fact: Started) -> None:
        """It holds its GPUs."""
        if self.debts:
            self._go(fact.job, fact.at_s)
            self._held[fact.job] = fact
            self._book(fact, 1)

    def on_stopped(self, fact: Stopped) -> None:
        """It holds nothing now, and waits again unless it has ended."""
        held = self._held.pop(fact.job, None)
        if held is None or fact.why == Why.CUT:
            return
        self._advance(fact.at_s)
        self._book(held, -1)
        if fact.why in REQUEUED:
            self._wait(fact.job, fact.at_s)

    def at_end(self, end_s: float) -> None:
        """Add the debts up to the end of the run."""
        self._advance(end_s)
        for queue in list(self._since_s):
            self._close_spell(queue)

    # --- who waits and who holds ----------------------------------------------------------

    def _wait(self, job: int, at_s: float) -> None:
        if self.debts and job not in self._pending:
            self._advance(at_s)
            self._pending.add(job)
            self._count(job, 1)

    def _go(self, job: int, at_s: float) -> None:
        if self.debts:
            self._advance(at_s)
            if job in self._pending:
                self._pending.discard(job)
                self._count(job, -1)

    def _count(self, job: int, change: int) -> None:
        queue, code = self._owners.queue(job), self._cluster.jobs.shape[job]
        self._waiting.setdefault(queue, Counter())[code] += change
        self._touched.add(queue)

    def _book(self, fact: Started, sign: int) -> None:
        hardware, jobs = self._cluster.hardware, self._cluster.jobs
        queue = self._owners.queue(fact.job)
        each = jobs.shape_of(fact.job).milli or MILLI
        for gpu in fact.gpus:
            self._owners.book(queue, hardware.model_of[hardware.node_of[gpu]], sign * each)
        self._touched.update(self._touching(queue))

    def _touching(self, queue: int) -> list[int]:
        """Queues with a debt dependent on the use of this one: those sharing a queue of its path."""
        path = self._owners.paths[queue]
        if len(path) == 1:
            return [queue]
        return [other for other in self.debts if not set(path).isdisjoint(self._owners.paths[other])]

    # --- what is owed ---------------------------------------------------------------------

    def _advance(self, at_s: float) -> None:
        """Close the instant of the facts so far, and count the time up to `at_s`."""
        if at_s <= self._now_s:
            return
        for queue in self._touched & self.debts.keys():
            rate = self._owing(queue)
            if rate:
                self._rate[queue] = rate
                self._since_s.setdefault(queue, self._now_s)
            elif queue in self._rate:
                del self._rate[queue]
                self._close_spell(queue)
        self._touched.clear()
        ticks = int((at_s - self._now_s) * TICKS_PER_S)
        for queue, rate in self._rate.items():
            self.debts[queue].units += rate * ticks
        self._now_s = at_s

    def _close_spell(self, queue: int) -> None:
        debt = self.debts[queue]
        debt.longest_s = max(debt.longest_s, self._now_s - self._since_s.pop(queue))

    def _owing(self, queue: int) -> int:
        """Unused thousandths of the queue's guarantees with a fit for one of its gangs."""
        waiting = [code for code, count in self._waiting.get(queue, Counter()).items() if count > 0]
        if not waiting:
            return 0
        lefts = [self._owners.left(each) for each in self._owners.paths[queue]]
        left = [max(min(column), 0) for column in zip(*lefts, strict=True)]
        if not left[-1]:
            return 0
        fit = {
            model for code in waiting if (milli := self._smallest(code)) for model in self._fitting(code, milli, left)
        }
        total: int = min(sum(left[model] for model in fit), left[-1])
        return total

    def _fitting(self, code: int, milli: int, left: Sequence[int]) -> list[int]:
        """Codes of the GPU models suiting the shape, with at least `milli` thousandths of a GPU left."""
        allowed = self._cluster.jobs.shapes[code].models
        return [
            model
            for model in range(self._models)
            if (not allowed or allowed >> model & 1) and milli <= left[model] and milli <= left[-1]
        ]

    def _smallest(self, code: int) -> int:
        """Thousandths of the smallest start of a shape; 0 if no node of the cluster could hold it."""
        shapes, hardware = self._cluster.jobs.shapes, self._cluster.hardware
        while code >= len(self._least):
            shape = shapes[len(self._least)]
            self._least.append(0 if never_fits(hardware, shape) else least_milli(shape))
        return self._least[code]


def longest(debts: Mapping[str, Debt]) -> tuple[float, str | None]:
    """The longest spell of any queue in seconds, and its queue; (0, None) without any debt."""
    most = max(((debt.longest_s, name) for name, debt in debts.items()), default=(-inf, ""))
    return most if most[0] > 0 else (0.0, None)
