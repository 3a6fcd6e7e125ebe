"""The fragmentation index of each pool over a run: means of its value at the first tick of each hour, by cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import fsum
from typing import Any

from autopilot.core.intake.signals import sees_the_cluster
from autopilot.core.model.records import Observation
from autopilot.core.placement.fragmentation.measure import CAUSES, PoolFragmentation, fragmentation_of

HOUR_S = 3600.0


@dataclass(slots=True)
class _Pool:
    """The values of one pool."""

    free_gpus: list[float] = field(default_factory=list)
    index: list[float] = field(default_factory=list)  # if the mix is known
    by_cause: list[dict[str, float]] = field(default_factory=list)

    def take_in(self, found: PoolFragmentation) -> None:
        """One more look."""
        self.free_gpus.append(found.free_gpus)
        if found.expected is not None:
            self.index.append(found.index_ratio)
            self.by_cause.append(dict(found.index_by_cause))

    def result(self) -> dict[str, Any]:
        """Means as plain values; null while the mix was unknown."""
        looks = len(self.index)
        return {
            "looks": len(self.free_gpus),
            "known": looks,
            "free_gpus": fsum(self.free_gpus) / len(self.free_gpus),
            "index_ratio": fsum(self.index) / looks if looks else None,
            "index_ratio_max": max(self.index) if looks else None,
            "index_by_cause": {cause: fsum(each.get(cause, 0.0) for each in self.by_cause) / looks for cause in CAUSES}
            if looks
            else {},
        }


class FragmentationMeans:
    """Looks once an hour."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._hour = -1

    def on_tick(self, observation: Observation) -> None:
        """Measure at an hour's first tick with a view of the cluster."""
        hour = int(observation.now_s // HOUR_S)
        if hour == self._hour or not sees_the_cluster(observation):
            return
        self._hour = hour
        for found in fragmentation_of(observation).pools:
            self._pools.setdefault(found.pool, _Pool()).take_in(found)

    def result(self) -> dict[str, dict[str, Any]]:
        """By pool."""
        return {name: pool.result() for name, pool in self._pools.items()}
