"""Missing and incomplete lists: the view of a controller on a cluster with a struggling API server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np

from autopilot.core.model.ports import Collector
from autopilot.core.model.records import Batch, Gap, Listing, Work
from autopilot.core.model.snapshot import PlacementTable, State, take
from simulator.running.cluster_collector import ClusterCollector
from simulator.running.faults import ViewFate
from simulator.signals.signal_faults import SignalFaults


class PatchyCollector:
    """A simulated cluster's collector with such faults; `fate` returns the state of the lists at a time."""

    def __init__(self, whole: ClusterCollector, fate: Callable[[float], ViewFate]) -> None:
        self.name = whole.name
        self._whole, self._fate = whole, fate

    def collect(self, now_s: float) -> Batch:
        """The cluster as it is now, as far as its lists show it."""
        return self._seen(now_s, self._whole.collect)

    def peek(self, now_s: float) -> Batch:
        """The same without marking anything as reported."""
        return self._seen(now_s, self._whole.peek)

    def _seen(self, now_s: float, whole: Callable[[float], Batch]) -> Batch:
        fate = self._fate(now_s)
        if fate is ViewFate.LOST:
            return Batch(self.name, now_s, gaps=(Gap(self.name, "", "", "the lists are missing"),))
        if fate is ViewFate.WHOLE:
            return whole(now_s)
        batch = self._whole.peek(now_s)
        half = Listing(complete=False, reason="every other page is missing")
        return replace(batch, work=None if batch.work is None else _half(batch.work), work_list=half)


class FaultyCollector:
    """A collector with a fault of signals in its batches."""

    def __init__(self, whole: Collector, faults: SignalFaults) -> None:
        self.name = whole.name
        self._whole, self._faults = whole, faults

    def collect(self, now_s: float) -> Batch:
        """The batch, with the fault."""
        return self._faults.batch(self._whole.collect(now_s))


def _half(work: Work) -> Work:
    """Every other unfinished workload and all ended ones, with their placements."""
    rows = np.flatnonzero((np.arange(len(work.workloads.id)) % 2 == 0) | (work.workloads.state >= State.SUCCEEDED))
    moved = np.full(len(work.workloads.id), -1, np.int32)
    moved[rows] = np.arange(len(rows), dtype=np.int32)
    held = work.placements
    stays = moved[held.workload] >= 0
    columns = {each.name: getattr(held, each.name)[stays] for each in fields(held)}
    columns["workload"] = moved[columns["workload"]]
    return replace(work, workloads=take(work.workloads, rows), placements=PlacementTable(**columns))
