"""EASY backfill on declared limits.

First come, first served; if the head of the queue does not fit, it gets a reservation at its earliest fitting time
under the full limits of all running work. A later job may start at once if it ends before that time by its
own limit, or if the head would still fit then.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from math import inf, isnan

import numpy as np

from simulator.traces.defaults import declared_limits_s
from simulator.world.cluster import Cluster
from simulator.world.placing import find_spot
from simulator.world.work import Shape

_NO, _IN_TIME, _ANY = 0, 1, 2

LIMIT_SEED = 1
"""Seed of the over-estimates given to jobs without a declared limit."""


def limits_s(cluster: Cluster) -> list[float]:
    """The declared limit of each job; for a job without one, a common one at or above 1 to 10 durations."""
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
        """Insert it into the queue, at its place in file order."""
        while len(self._limit_s) <= job:
            self._limit_s.append(inf)  # a replica: it stays
        insort(self._queue, job)
        self._waiting[self._cluster.jobs.shape[job]] += 1
        self._dirty = True

    def on_requeue(self, job: int, now_s: float) -> None:
        """Return it to its old place."""
        self.on_submit(job, now_s)

    def on_end(self, _job: int, _now_s: float) -> None:
        """Room was freed."""
        self._dirty = True

    def on_change(self, _now_s: float) -> None:
        """Any job may fit now."""
        self._dirty = True

    def decide(self, now_s: float) -> None:
        """Start from the head while it fits; then reserve for the head and fill in behind."""
        if not self._dirty:
            return
        self._dirty = False
        pending = self._cluster.pending
        if len(self._queue) > len(pending):  # owners withdrew work
            for job in [job for job in self._queue if job not in pending]:
                self._forget(job)
        head = self._head()
        while head is not None and self._start(head, now_s):
            head = self._head()
        if head is not None and len(self._queue) > 1 and self._room():
            self._backfill(head, now_s)

    def _head(self) -> int | None:
        """The first job with room below the limit of its queue."""
        limits = self._cluster.limits
        return next((job for job in self._queue if limits is None or limits.room(job)), None)

    def _start(self, job: int, now_s: float) -> bool:
        cluster = self._cluster
        spot = find_spot(cluster.hardware, cluster.jobs.shape_of(job))
        if spot is None or cluster.start(job, spot.gpus, now_s, instances=spot.instances) is not None:
            return False
        self._forget(job)
        return True

    def _forget(self, job: int) -> None:
        del self._queue[bisect_left(self._queue, job)]
        self._waiting[self._cluster.jobs.shape[job]] -= 1

    def _room(self) -> bool:
        hardware = self._cluster.hardware
        return any(hardware.by_free[1:]) or bool(hardware.shares or hardware.cut)

    def _backfill(self, first: int, now_s: float) -> None:
        """Try each later job once, in order, while the head's reservation holds."""
        cluster, shape_of, limit_s = self._cluster, self._cluster.jobs.shape, self._limit_s
        limits = cluster.limits
        start_s, then = self._reservation(cluster.jobs.shape_of(first), now_s)
        chances = {shape: self._chance(shape, then) for shape, count in self._waiting.items() if count}
        for job in self._queue[bisect_left(self._queue, first) + 1 :]:
            if limits is not None and not limits.room(job, beside=first):
                continue
            chance = chances[shape_of[job]]
            late = now_s + limit_s[job] > start_s
            if chance == _NO or (chance == _IN_TIME and late) or not self._start(job, now_s):
                continue
            held = cluster.held[job]
            for node, mask in held.masks.items() if late and held is not None else ():
                then.add(node, -mask.bit_count())
            chances = {shape: chance and self._chance(shape, then) for shape, chance in chances.items()}
            if not any(chances.values()):
                return

    def _chance(self, shape: int, then: _Room) -> int:
        """Permission of jobs of a shape to start now: never, if they end in time, or regardless of their length."""
        hardware = self._cluster.hardware
        spot = find_spot(hardware, self._cluster.jobs.shapes[shape])
        if spot is None:
            return _NO
        for gpu in spot.gpus:
            then.add(hardware.node_of[gpu], -1)
        harmless = then.fits()
        for gpu in spot.gpus:
            then.add(hardware.node_of[gpu], 1)
        return _ANY if harmless else _IN_TIME

    def _reservation(self, shape: Shape, now_s: float) -> tuple[float, _Room]:
        """The time at which `shape` fits if all running work takes its full limit, and the room then."""
        cluster, hardware = self._cluster, self._cluster.hardware
        free = [count if hardware.is_open(node) else 0 for node, count in enumerate(hardware.free)]
        room = _Room(shape, free, hardware.eligible(shape))
        ends: dict[float, list[int]] = {}
        for job in cluster.holding:
            end_s = max(cluster.ready_s[job] + self._limit_s[job] - cluster.served_s[job], now_s)
            ends.setdefault(end_s, []).append(job)
        for end_s in sorted(ends):
            for job in ends[end_s]:
                held = cluster.held[job]
                for node, mask in held.masks.items() if held is not None else ():
                    room.add(node, mask.bit_count())
            if room.fits():
                return end_s, room
        return inf, room


class _Room:
    """Free GPUs by node at some time, and the fit of one shape there; a share counts as a GPU."""

    def __init__(self, shape: Shape, free: list[int], eligible: int) -> None:
        self._free = free
        self._eligible = [bool(eligible >> node & 1) for node in range(len(free))]
        self._member = max(shape.per_member, 1)
        self._members, self._rest = divmod(shape.gpus, self._member)
        counts = [count for count, usable in zip(free, self._eligible, strict=True) if usable]
        self._full = sum(count >= self._member for count in counts)
        self._partial = sum(count >= self._rest for count in counts)

    def add(self, node: int, gpus: int) -> None:
        """`gpus` more (or fewer) are free on `node`."""
        before = self._free[node]
        after = self._free[node] = before + gpus
        if self._eligible[node]:
            self._full += (after >= self._member) - (before >= self._member)
            self._partial += (after >= self._rest) - (before >= self._rest)

    def fits(self) -> bool:
        """Each member on a node of its own, the smaller last one on another."""
        return self._full >= self._members and (not self._rest or self._partial > self._members)
