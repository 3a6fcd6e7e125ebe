"""The five textbook orders: one queue in a fixed order, strict or with skip-ahead.

Strict stops at the first misfit; skip-ahead tries every job. Work above the limit of its queue does not
stand in the line of the others. The fit of a job depends on its shape
alone, and within a pass room only shrinks, so one queue per shape is enough: an unfit shape is not tried again until
something is freed.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from simulator.world.cluster import Cluster
from simulator.world.placing import find_spot
from simulator.world.work import Jobs

Group = tuple[int, int]
Key = Callable[[Jobs, int], float]


def by_submit(_jobs: Jobs, job: int) -> float:
    """First come, first served: file order is submit order."""
    return float(job)


def by_duration(jobs: Jobs, job: int) -> float:
    """Shortest true duration first."""
    return jobs.duration_s[job]


def by_gpu_time(jobs: Jobs, job: int) -> float:
    """Least true GPU-time first."""
    return jobs.duration_s[job] * jobs.shape_of(job).full_milli


class Textbook:
    """A fixed order without preemption. Ties are broken by file order."""

    def __init__(self, name: str, key: Key, *, skip: bool, allowed: int = -1) -> None:
        """`key` sorts the queue, lowest first; `skip`: later jobs may pass an unfit one.

        `allowed` is the bit set of the usable nodes, -1 for all.
        """
        self.name, self._key, self._skip, self._allowed = name, key, skip, allowed
        self._queues: dict[Group, list[tuple[float, int]]] = {}
        self._open: set[Group] = set()  # groups with waiting jobs that may fit by now

    def attach(self, cluster: Cluster) -> None:
        """Take charge of `cluster`."""
        self._cluster = cluster
        self._shape_of = cluster.jobs.shape

    def on_submit(self, job: int, _now_s: float) -> None:
        """Insert it into the queue. Behind others of its shape it fits no better than they do."""
        group = self._group(job)
        queue = self._queues.get(group)
        if queue is None:
            queue = self._queues[group] = []
        entry = (self._key(self._cluster.jobs, job), job)
        heappush(queue, entry)
        if len(queue) == 1 or (not self._skip and queue[0] == entry):
            self._open.add(group)
            if not self._skip and self._cluster.limits is not None:
                self.on_change(_now_s)  # the heads of all queues stand in one line

    def _group(self, job: int) -> Group:
        """Jobs with the same answer: those of one shape, and under limits of one queue."""
        shape, limits = self._shape_of[job] if self._skip else 0, self._cluster.limits
        return (shape, limits.queue(job) if limits is not None else 0)

    def on_requeue(self, job: int, now_s: float) -> None:
        """Return it to the queue, at its old place in the order."""
        self.on_submit(job, now_s)
        self.on_change(now_s)

    def on_end(self, _job: int, now_s: float) -> None:
        """Room was freed."""
        self.on_change(now_s)

    def on_change(self, _now_s: float) -> None:
        """Any job may fit again."""
        self._open.update(group for group, queue in self._queues.items() if queue)

    def decide(self, now_s: float) -> None:
        """One pass over the queue in order."""
        if not self._open:
            return
        cluster, queues = self._cluster, self._queues
        hardware, shapes, shape_of = cluster.hardware, cluster.jobs.shapes, self._shape_of
        allowed = self._allowed
        limits = cluster.limits
        heads = [(*queues[group][0], group) for group in self._open]
        self._open.clear()
        if len(heads) > 1:
            heapify(heads)
        while heads:
            _, job, group = heads[0]
            may = limits is None or limits.room(job)
            spot = find_spot(hardware, shapes[shape_of[job]], allowed) if may else None
            if spot is not None:
                cluster.start(job, spot.gpus, now_s, instances=spot.instances)
            heappop(heads)
            if job in cluster.pending:
                if may and not self._skip:
                    break
                continue  # no job of this group fits
            # Started, or withdrawn by its owner while it waited: the next of its shape may try.
            queue = queues[group]
            heappop(queue)
            if queue:
                heappush(heads, (*queue[0], group))


def fifo() -> Textbook:
    """First come, first served; strict."""
    return Textbook("fifo", by_submit, skip=False)


def fifo_skip() -> Textbook:
    """First come, first served, with skip-ahead."""
    return Textbook("fifo-skip", by_submit, skip=True)


def sjf() -> Textbook:
    """Shortest true duration first; strict."""
    return Textbook("sjf", by_duration, skip=False)


def sjf_skip() -> Textbook:
    """Shortest true duration first, with skip-ahead."""
    return Textbook("sjf-skip", by_duration, skip=True)


def gpu_time_skip() -> Textbook:
    """Least true GPU-time first, with skip-ahead."""
    return Textbook("gpu-time-skip", by_gpu_time, skip=True)
