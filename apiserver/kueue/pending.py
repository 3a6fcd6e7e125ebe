"""Waiting workloads: for each ClusterQueue those to try next, and those put aside until something changes."""

from __future__ import annotations

import heapq
from datetime import datetime
from typing import Any

from apiserver.kueue import conditions, workloads
from apiserver.kueue.info import Info, Key
from apiserver.kueue.names import PRIORITY_BOOST, annotations_of, spec_of

Obj = dict[str, Any]
STRICT = "StrictFIFO"
BEST_EFFORT = "BestEffortFIFO"
# reasons for which a workload is tried again at once
AT_ONCE = {"FailedAfterNomination", "PendingPreemption", "PreemptionFailed"}
NO_FIT = {"NoFit", "PreemptionNoCandidates"}


class PendingQueue:
    """The waiting workloads of one ClusterQueue."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.strategy = BEST_EFFORT
        self.waiting: dict[Key, Info] = {}  # to be tried
        self.aside: dict[Key, Info] = {}  # not before something changes
        self.inflight: Info | None = None
        self._heap: list[tuple[tuple[bool, int, datetime, str], int, Key, Info]] = []
        self._pushed = 0
        self._pops = 0
        self._moved_at = -1  # pop count when the ones put aside came back last
        self._hopeless: set[str] = set()  # shapes that did not fit
        self._preemptor: tuple[Key, int] | None = None

    def __len__(self) -> int:
        return len(self.waiting) + len(self.aside) + (self.inflight is not None)

    def _rank(self, info: Info) -> tuple[bool, int, datetime, str]:
        first = self._preemptor is not None and self._preemptor[0] == info.key
        return not (first and self.strategy == BEST_EFFORT), -info.priority, info.queued_at, info.uid

    def _push(self, info: Info) -> None:
        self.waiting[info.key] = info
        self._pushed += 1
        heapq.heappush(self._heap, (self._rank(info), self._pushed, info.key, info))

    def offer(self, info: Info, now: datetime) -> None:
        """A workload is there, or is changed."""
        key = info.key
        if self.inflight is not None and self.inflight.key == key:
            return
        old = self.aside.get(key)
        if old is not None:
            spec_changed = old.evaluated_generation not in {0, workloads.generation(info.obj)}
            if not spec_changed and _same(old.obj, info.obj):
                info.evaluated_generation = old.evaluated_generation
                self.aside[key] = info
                return
            del self.aside[key]
        if key not in self.waiting and (
            not backoff_over(info.obj, now) or (self.strategy == BEST_EFFORT and info.shape() in self._hopeless)
        ):
            self.aside[key] = info
            return
        self._push(info)

    def forget(self, key: Key) -> None:
        """A workload waits no longer."""
        self.waiting.pop(key, None)
        self.aside.pop(key, None)
        if self.inflight is not None and self.inflight.key == key:
            self.inflight = None
        if self._preemptor is not None and self._preemptor[0] == key:
            self._preemptor = None

    def pop(self) -> Info | None:
        """The workload to try next; it is in flight until `put_back` or `forget`."""
        self._pops += 1
        while self._heap:
            info = heapq.heappop(self._heap)[3]
            if self.waiting.get(info.key) is info:
                del self.waiting[info.key]
                info.evaluated_generation = workloads.generation(info.obj)
                self.inflight = info
                return info
        self.inflight = None
        return None

    def put_back(self, info: Info, reason: str, now: datetime) -> None:
        """A workload found no place: try it again at once, or set it aside."""
        key = info.key
        if reason == "PendingPreemption":
            self._preemptor = (key, info.evaluated_generation)
        if self.inflight is not None and self.inflight.key == key:
            self.inflight = None
        at_once = reason in AT_ONCE if self.strategy != STRICT else reason != "NamespaceMismatch"
        other_flavors = any(index != -1 for tried in info.tried or [] for index in tried.values())
        if backoff_over(info.obj, now) and (at_once or self._moved_at >= self._pops or other_flavors):
            if key not in self.waiting:
                self._push(self.aside.pop(key, info))
            return
        if key in self.aside or key in self.waiting:
            return
        self.aside[key] = info
        if reason in NO_FIT and self.strategy == BEST_EFFORT:
            shape = info.shape()
            self._hopeless.add(shape)
            for other in [each for each in self.waiting.values() if each.shape() == shape]:
                del self.waiting[other.key]
                self.aside[other.key] = other

    def retry(self, now: datetime) -> bool:
        """Something changed: try those put aside again, except those in backoff. True if there are any."""
        self._moved_at = self._pops
        self._hopeless.clear()
        ready = [info for info in self.aside.values() if backoff_over(info.obj, now)]
        for info in ready:
            del self.aside[info.key]
            if info.key not in self.waiting:
                self._push(info)
        return bool(ready)

    def ordered(self) -> list[Info]:
        """All waiting workloads, in the order of their next trials."""
        every = [*self.waiting.values(), *self.aside.values()]
        if self.inflight is not None:
            every.append(self.inflight)
        return sorted(every, key=self._rank)


def backoff_over(workload: Obj, now: datetime) -> bool:
    """It may be tried: not put off, and requeued after its eviction."""
    if conditions.is_false(workload, workloads.REQUEUED):
        return False
    moment = workloads.requeue_at(workload)
    return moment is None or now >= moment


def _same(old: Obj, new: Obj) -> bool:
    """True if no change could make a workload fit."""
    return bool(
        spec_of(old) == spec_of(new)
        and annotations_of(old).get(PRIORITY_BOOST) == annotations_of(new).get(PRIORITY_BOOST)
        and workloads.status_of(old).get("reclaimablePods") == workloads.status_of(new).get("reclaimablePods")
        and all(
            conditions.find(old, kind) == conditions.find(new, kind) for kind in (workloads.EVICTED, workloads.REQUEUED)
        )
    )
