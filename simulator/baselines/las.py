"""Least attained service: preemptive, without knowledge of durations.

At every event and every 300 s the jobs with the least GPU time so far are chosen, by count of GPUs, ties by file order.
Running chosen jobs stay in place; the others are placed, wide ones first, and narrower jobs blocking a wide one are
moved. Unstoppable work (not preemptible, or latency-critical) is neither evicted nor moved.

Attained service is the GPU time given to a job, lost progress included: otherwise work with a start-up longer than its
time between preemptions would stay the least served indefinitely. GPU time is compared by its
power of two in GPU-hours, as in the discretized queues of Tiresias (NSDI'19). With a comparison to the second, two
equal jobs overtake each other at every event, and if a preemption has a cost they lose more than they gain.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import merge
from math import floor, log2

from autopilot.core.model.snapshot import SloClass
from simulator.world.cluster import Cluster
from simulator.world.hardware import FREE, bits
from simulator.world.placing import find_spot

PERIOD_S = 300.0
LEVEL_GPU_S = 3600.0
"""Jobs below this are one level; each further level holds twice as much."""


def level(attained_gpu_s: float) -> int:
    """The level of a job with this much GPU time."""
    return floor(log2(1 + attained_gpu_s / LEVEL_GPU_S))


class LeastAttained:
    """Needs no estimates; pays for this with preemptions."""

    name = "las"

    def attach(self, cluster: Cluster) -> None:
        """Take charge of `cluster`."""
        self._cluster = cluster
        self._pending: list[tuple[int, int]] = []  # (level, job), in order
        self._entry: dict[int, tuple[int, int]] = {}  # the same by job
        self._attained_s: dict[int, float] = {}  # of earlier stays on its GPUs, by job
        self._since_s: dict[int, float] = {}  # start of the current stay

    def on_submit(self, job: int, now_s: float) -> None:
        """It has attained no service."""
        self._entry[job] = (self._level(job, now_s), job)
        insort(self._pending, self._entry[job])

    def on_requeue(self, job: int, now_s: float) -> None:
        """It waits with its attained service."""
        self._attained_s[job] = self._attained_s.get(job, 0.0) + now_s - self._since_s.pop(job, now_s)
        self.on_submit(job, now_s)

    def on_end(self, job: int, _now_s: float) -> None:
        """It leaves the order."""
        self._since_s.pop(job, None)

    def on_change(self, _now_s: float) -> None:
        """Nothing to record: every pass considers all jobs."""

    def decide(self, now_s: float) -> float | None:
        """Choose by attained service, then place."""
        cluster, gpus = self._cluster, self._cluster.jobs.gpus
        if len(self._pending) > len(cluster.pending):  # owners withdrew work
            for job in [job for _, job in self._pending if job not in cluster.pending]:
                self._forget(job)
        if self._pending:
            newcomers, losers = self._choose(now_s)
            for job in losers:
                cluster.evict(job, now_s)
            self._place(newcomers, now_s)
        if not self._pending or not any(gpus[job] for job in cluster.holding):
            return None
        return (floor(now_s / PERIOD_S) + 1) * PERIOD_S

    def _level(self, job: int, now_s: float) -> int:
        attained_s = self._attained_s.get(job, 0.0) + now_s - self._since_s.get(job, now_s)
        return level(attained_s * self._cluster.jobs.gpus[job])

    def _spared(self, job: int) -> bool:
        jobs = self._cluster.jobs
        return not jobs.preemptible[job] or jobs.slo_class[job] == SloClass.LATENCY_CRITICAL

    def _choose(self, now_s: float) -> tuple[list[int], list[int]]:
        """Pending jobs to start and running ones to stop."""
        cluster, gpus = self._cluster, self._cluster.jobs.gpus
        hardware = cluster.hardware
        left = sum(hardware.free[node] for mask in hardware.by_free for node in bits(mask))
        stay = {job for job in cluster.holding if self._spared(job)}
        left += sum(gpus[job] for job in cluster.holding if job not in stay)
        running = sorted((self._level(job, now_s), job) for job in cluster.holding if job not in stay)
        budget = cluster.limits.budget() if cluster.limits is not None else None
        if budget is not None:
            for job in stay:
                budget.add(job)
        newcomers = []
        for _, job in merge(running, self._pending):
            if gpus[job] <= left and (budget is None or budget.fits(job)):
                left -= gpus[job]
                if budget is not None:
                    budget.add(job)
                if job in cluster.holding:
                    stay.add(job)
                else:
                    newcomers.append(job)
            if not left:
                break
        return newcomers, [job for job in cluster.holding if job not in stay]

    def _place(self, jobs: list[int], now_s: float) -> None:
        """Start `jobs`, wide first; the displaced jobs are narrower and are placed after them."""
        cluster, gpus = self._cluster, self._cluster.jobs.gpus
        waiting = sorted((-gpus[job], order, job) for order, job in enumerate(jobs))
        position = 0
        while position < len(waiting):
            job = waiting[position][2]
            position += 1
            spot = find_spot(cluster.hardware, cluster.jobs.shape_of(job))
            if spot is None:
                for moved in self._make_room(job):
                    cluster.evict(moved, now_s, moving=True)
                    insort(waiting, (-gpus[moved], len(waiting) + len(jobs), moved), lo=position)
                spot = find_spot(cluster.hardware, cluster.jobs.shape_of(job))
            if spot is not None and cluster.start(job, spot.gpus, now_s, instances=spot.instances) is None:
                self._since_s[job] = now_s
                self._forget(job)

    def _forget(self, job: int) -> None:
        del self._pending[bisect_left(self._pending, self._entry.pop(job))]

    def _make_room(self, job: int) -> list[int]:
        """Narrower jobs to move for `job`: the least occupied nodes, their smallest jobs first."""
        cluster = self._cluster
        hardware, shape = cluster.hardware, cluster.jobs.shape_of(job)
        if not shape.whole:
            return []
        members, rest = divmod(shape.gpus, shape.per_member)
        wanted = [shape.per_member] * members + [rest] * bool(rest)
        options: list[tuple[int, int, list[int]]] = []
        allowed = hardware.eligible(shape)
        for node in bits(allowed):
            if hardware.is_open(node):
                moved, price = self._clear(node, wanted[0], shape.gpus)
                if moved is not None:
                    options.append((price, node, moved))
        options.sort()
        if len(options) < len(wanted):
            return []
        return list(dict.fromkeys(moved for _, _, jobs in options[: len(wanted)] for moved in jobs))

    def _clear(self, node: int, need: int, width: int) -> tuple[list[int] | None, int]:
        """Jobs narrower than `width` to move off a node to free `need` GPUs, and their GPUs."""
        cluster = self._cluster
        missing = need - cluster.hardware.free[node]
        moved: list[int] = []
        price = 0
        for gpus, other in sorted((cluster.jobs.gpus[job], job) for job in cluster.hardware.node_holders(node)):
            if missing <= 0:
                break
            held = cluster.held[other]
            if gpus >= width or other == FREE or self._spared(other):
                continue
            if held is not None and list(held.masks) == [node]:
                moved.append(other)
                missing -= len(held.gpus)
                price += len(held.gpus)
        return (moved, price) if missing <= 0 else (None, 0)
