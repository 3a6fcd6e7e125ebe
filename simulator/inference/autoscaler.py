"""Replica control modelled on the Kubernetes HorizontalPodAutoscaler.

Rules and defaults: kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale, sections "Algorithm details" and
"Configurable scaling behavior" (autoscaling/v2). The start-up time of a new replica belongs to the physics, hence it is
an argument.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from autopilot.core.model.errors import InputError
from simulator.inference.serving_records import Counters

Metric = Literal["utilization", "queue_per_replica"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerSpec:
    """The configuration of one HorizontalPodAutoscaler."""

    target: float
    """target mean per ready replica: a ratio of busy slots in (0, 1], or waiting requests"""
    metric: Metric = "utilization"
    min_replicas: int = 1
    max_replicas: int = 10
    period_s: float = 15.0
    """sync period (--horizontal-pod-autoscaler-sync-period)"""
    tolerance_ratio: float = 0.1
    """tolerance: no change while metric / target is this close to 1"""
    down_stabilisation_s: float = 300.0
    """a decrease goes no lower than the highest recommendation in this window"""
    up_stabilisation_s: float = 0.0
    """an increase goes no higher than the lowest recommendation in this window"""
    up_replicas: int = 4
    up_ratio: float = 1.0
    """increase per 15 s: the larger of this number of replicas and this ratio of the present ones"""

    def __post_init__(self) -> None:
        """Raise `InputError` naming the field that is out of range."""
        if self.metric not in ("utilization", "queue_per_replica"):
            raise InputError(f"autoscaler metric: {self.metric!r} is not utilization or queue_per_replica")
        highest = 1.0 if self.metric == "utilization" else math.inf
        if not (0 < self.target <= highest and math.isfinite(self.target)):
            raise InputError(f"autoscaler target: {self.target!r} is not above 0 and at most {highest:g}")
        if not 0 <= self.min_replicas <= self.max_replicas:
            raise InputError(
                f"autoscaler min_replicas {self.min_replicas} and max_replicas {self.max_replicas}: "
                "write 0 <= min_replicas <= max_replicas"
            )
        for name in ("period_s", "tolerance_ratio", "down_stabilisation_s", "up_stabilisation_s", "up_ratio"):
            if not (getattr(self, name) >= 0 and math.isfinite(getattr(self, name))):
                raise InputError(f"autoscaler {name}: {getattr(self, name)!r} is not a finite number of 0 or more")


class Scaling(NamedTuple):
    """The target replica count, when added replicas are ready (NaN: none were added), and the need of the load
    alone.
    """

    replicas: int
    ready_at_s: float
    needed: int


def metric_between(before: Counters, after: Counters, queue_depth: int, ready: int, metric: Metric) -> float:
    """The metric per ready replica over an interval; NaN (unknown) without replicas."""
    if metric == "queue_per_replica":
        return queue_depth / ready if ready else math.nan
    capacity_slot_s = after.capacity_slot_s - before.capacity_slot_s
    return (after.busy_slot_s - before.busy_slot_s) / capacity_slot_s if capacity_slot_s > 0 else math.nan


class Autoscaler:
    """One autoscaler with its history of recommendations and recent increases.

    Without a ready replica it changes nothing, like the original: a service at zero stays there until someone else
    starts it.
    """

    def __init__(self, spec: AutoscalerSpec) -> None:
        self.spec = spec
        self._recommendations: deque[tuple[float, int]] = deque()
        self._added: deque[tuple[float, int]] = deque()

    def decide(
        self,
        now_s: float,
        ready: int,
        starting: int,
        metric: float,
        start_delay_s: float,
        floor: int = 0,
        ceiling: int = -1,
    ) -> Scaling:
        """The target number of replicas, including `ready` and `starting` ones, from the mean metric of the ready ones
        (NaN: unknown, no change). Call it once per `spec.period_s`.

        `floor` is a temporary minReplicas: as in the original it applies after the stabilisation, so it is forgotten as
        soon as it ends, and it takes effect at once. `ceiling` is a temporary maxReplicas; -1: none.
        """
        current = ready + starting
        recommendation = min(
            max(self._recommend(ready, starting, metric), self.spec.min_replicas), self.spec.max_replicas
        )
        needed = self._limit_rise(now_s, current, self._stabilise(now_s, current, recommendation))
        needed = min(needed, ceiling) if ceiling >= 0 else needed
        wanted = max(needed, min(floor, self.spec.max_replicas))
        if wanted > current:
            self._added.append((now_s, wanted - current))
            return Scaling(wanted, now_s + start_delay_s, needed)
        return Scaling(wanted, math.nan, needed)

    def _recommend(self, ready: int, starting: int, metric: float) -> int:
        current, spec = ready + starting, self.spec
        if math.isnan(metric) or ready == 0:
            return current
        ratio = metric / spec.target
        if abs(ratio - 1) <= spec.tolerance_ratio:
            return current
        if starting and ratio > 1:
            # Replicas not yet ready count as idle for an increase, and never turn it into a decrease.
            ratio *= ready / current
            if ratio <= 1 + spec.tolerance_ratio:
                return current
            return math.ceil(ratio * current)
        recommendation = math.ceil(ratio * ready)
        return recommendation if ratio > 1 else min(recommendation, current)

    def _stabilise(self, now_s: float, current: int, recommendation: int) -> int:
        self._recommendations.append((now_s, recommendation))
        longest_s = max(self.spec.down_stabilisation_s, self.spec.up_stabilisation_s)
        while self._recommendations[0][0] < now_s - longest_s:
            self._recommendations.popleft()
        times_s = np.array([time_s for time_s, _ in self._recommendations])
        recommended = np.array([past for _, past in self._recommendations])
        lowest = int(recommended[times_s >= now_s - self.spec.up_stabilisation_s].min())
        highest = int(recommended[times_s >= now_s - self.spec.down_stabilisation_s].max())
        # As the controller does: up to the lowest recommendation if that is more, down to the highest if less.
        return min(max(current, lowest), highest)

    def _limit_rise(self, now_s: float, current: int, wanted: int) -> int:
        while self._added and self._added[0][0] <= now_s - 15.0:
            self._added.popleft()
        at_start = current - sum(count for _, count in self._added)
        most = max(at_start + self.spec.up_replicas, math.ceil(at_start * (1 + self.spec.up_ratio)))
        return min(wanted, max(most, current))
