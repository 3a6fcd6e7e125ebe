"""EASY backfill on the limits that users declare.

First come, first served; when the head of the queue does not fit, it gets a reservation at the earliest time
at which it would fit if all running work took its full limit. A later job may start at once if it ends
before that time by its own limit, or if the head would still fit then.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from math import inf, isnan

import numpy as np

from simulator.cluster import Cluster
from simulator.placing import find_spot
from simulator.traces.defaults import declared_limits_s
from simulator.work import Shape

_NO, _IN_TIME, _ANY = 0, 1, 2

LIMIT_SEED = 1
"""Seed of the over-estimates given to jobs without a declared limit."""


def limits_s(cluster: Cluster) -> list[float]:
    """The declared limit of each job; where none is declared, a usual one at or above 1 to 10 durations."""
    jobs = cluster.jobs
    made = declared_limits_s(np.asarray(jobs.duration_s, float), np.random.default_rng(LIMIT_SEED))
    return [own if isnan(stated) else stated for stated, own in zip(jobs.limit_s, made.tolist(), strict=True)]


class Easy:
    """One reservation, for the head of the queue."""

    name = "easy"

    def __init__(self, *, exact: bool = False) -> None:
        """`exact`: every limit is the true duration."""
        self._exact = exact

    def attach(self, cluster: Cluster) -> None:
        """Take charge of `cluster`."""
        self._cluster = cluster
        self._limit_s = list(cluster.jobs.duration_s) if self._exact else limits_s(cluster)
        self._queue: list[int] = []
        self._waiting: Counter[int] = Counter()  # by shape
        self._dirty = False

    def on_submit(self, job: int, _now_s: float) -> None:
        """Into the queue, at its place in file order."""
        while len(self._limit_s) <= job:
            self._limit_s.append(inf)  # a replica: it stays
        insort(self._queue, job)
        self._waiting[self._cluster.jobs.shape[job]] += 1
        self._dirty = True

    def on_requeue(self, job: int, now_s: float) -> None:
        """Back to its old place."""
        self.on_submit(job, now_s)

    def on_end(self, _job: int, _now_s: float) -> None:
        """Room was freed."""
        self._dirty = True

    def on_change(self, _now_s: float) -> None:
        """Anything may fit."""
        self._dirty = True

    def decide(self, now_s: float) -> None:
        """Start from the head while it fits; then reserve for the head and fill in behind."""
        if not self._dirty:
            return
        self._dirty = False
        while self._queue and self._start(self._queue[0], now_s):
            pass
        if len(self._queue) > 1 and self._room():
            self._backfill(now_s)

    def _start(self, job: int, now_s: float) -> bool:
        cluster = self._cluster
        spot = find_spot(cluster.hardware, cluster.jobs.shape_of(job))
        if spot is None or cluster.start(job, spot.gpus, now_s, instances=spot.instances) is not None:
            return False
        del self._queue[bisect_left(self._queue, job)]
        self._waiting[cluster.jobs.shape[job]] -= 1
        return True

    def _room(self) -> bool:
        hardware = self._cluster.hardware
        return any(hardware.by_free[1:]) or bool(hardware.shares or hardware.cut)

    def _backfill(self, now_s: float) -> None:
        """Each later job once, in order, as long as the head's reservation stands."""
        cluster, shape_of, limit_s = self._cluster, self._cluster.jobs.shape, self._limit_s
        head = cluster.jobs.shape_of(self._queue[0])
        start_s, free = self._reservation(head, now_s)
        chances = {shape: self._chance(shape, head, free) for shape, count in self._waiting.items() if count}
        for job in self._queue[1:]:
            chance = chances[shape_of[job]]
            late = now_s + limit_s[job] > start_s
            if chance == _NO or (chance == _IN_TIME and late) or not self._start(job, now_s):
                continue
            held = cluster.held[job]
            for node, mask in held.masks.items() if late and held is not None else ():
                free[node] -= mask.bit_count()
            chances = {shape: chance and self._chance(shape, head, free) for shape, chance in chances.items()}
            if not any(chances.values()):
                return

    def _chance(self, shape: int, head: Shape, free: list[int]) -> int:
        """Whether jobs of a shape may start now: not at all, when they end in time, or whatever they last."""
        hardware = self._cluster.hardware
        spot = find_spot(hardware, self._cluster.jobs.shapes[shape])
        if spot is None:
            return _NO
        left = free.copy()
        for gpu in spot.gpus:
            left[hardware.node_of[gpu]] -= 1
        return _ANY if _nodes_for(head, left, hardware.eligible(head)) is not None else _IN_TIME

    def _reservation(self, shape: Shape, now_s: float) -> tuple[float, list[int]]:
        """When `shape` fits if all running work takes its full limit, and the GPUs free by node then."""
        cluster, hardware = self._cluster, self._cluster.hardware
        free = [count if hardware.is_open(node) else 0 for node, count in enumerate(hardware.free)]
        eligible = hardware.eligible(shape)
        ends: dict[float, list[int]] = {}
        for job in cluster.holding:
            end_s = max(cluster.ready_s[job] + self._limit_s[job] - cluster.served_s[job], now_s)
            ends.setdefault(end_s, []).append(job)
        for end_s in sorted(ends):
            for job in ends[end_s]:
                held = cluster.held[job]
                for node, mask in held.masks.items() if held is not None else ():
                    free[node] += mask.bit_count()
            if _nodes_for(shape, free, eligible) is not None:
                return end_s, free
        return inf, free


def _nodes_for(shape: Shape, free: list[int], eligible: int) -> dict[int, int] | None:
    """GPUs by node that the placement rule takes for `shape` where `free` are left; shares count as a GPU."""
    members, rest = divmod(shape.gpus, shape.per_member) if shape.per_member else (0, 0)
    taken: dict[int, int] = {}
    for need in [shape.per_member] * members + [rest] * bool(rest):
        fitting = [
            (count, node)
            for node, count in enumerate(free)
            if count >= need and node not in taken and eligible >> node & 1
        ]
        if not fitting:
            return None
        taken[min(fitting)[1]] = need
    return taken
