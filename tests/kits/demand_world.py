"""Demand for tests: a forecaster without a model, and forecasts by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autopilot.core.model.forecast import ExpectedMix, Forecast, Forecasts, MixKind
from autopilot.core.model.memory.replicas import ServiceRecord
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import ClusterSnapshot, ServiceTable, make

HORIZONS_S = (120.0, 600.0)
LEVELS = (0.5, 0.9, 0.99)


def forecast(peaks_rps: Mapping[str, float | Sequence[float]], made_s: float = 0.0, **more: Any) -> Forecast:
    """Peaks by service: one number (certain), or one for each of LEVELS; equal at every horizon, and well proven."""
    count, shape = len(peaks_rps), (len(peaks_rps), len(HORIZONS_S), len(LEVELS))
    values = np.array([np.broadcast_to(peak, shape[1:]) for peak in peaks_rps.values()], float)
    columns: dict[str, Any] = {
        "values": values.reshape(shape),
        "history": np.full(count, 1000, np.int32),
        "coverage": np.full(shape, 0.995),
        "outcomes": np.full(shape[:2], 1000, np.int32),
        "drifting": np.zeros(count, np.bool_),
    }
    return Forecast("test", made_s, tuple(peaks_rps), HORIZONS_S, LEVELS, **(columns | more))


LEARNED = {"chat": ServiceRecord(ready=2, minute_s=0.0, at_target_rps=(2.0,) * 8)}
"""Of the service that `serving` adds: two requests/s a replica."""


def serving(observation: Observation, *demand: Forecast, **columns: Any) -> Observation:
    """The observation with one service, whose load needs two replicas, and these forecasts of it."""
    usual: dict[str, Any] = {
        "id": ["chat"],
        "uid": ["chat"],
        "objective_s": [10.0],
        "age_s": [0.0],
        "ready_replicas": [2],
        "replicas": [2],
        "min_replicas": [1],
        "max_replicas": [20],
        "needed_replicas": [2],
        "recent_rps": [np.nan],
        "generation": [7],
    }
    table: ServiceTable = make(ServiceTable, **(usual | columns))
    snap = replace(observation.snapshot, services=table)
    return replace(observation, snapshot=snap, forecasts=replace(observation.forecasts, demand=demand))


def expecting(observation: Observation, *profiles: str, per_h: float = 20.0, **more: Any) -> Observation:
    """The observation with a demand mix of single instances of these profiles: so many arrivals an hour of each."""
    kinds = tuple(MixKind((), 1, profile=profile) for profile in profiles)
    mean = np.full((len(kinds), 1), per_h)
    counts = np.repeat(mean[:, :, None], len(LEVELS), axis=2)
    usual: dict[str, Any] = {"expected": mean, "counts": counts, "watched_h": 48.0}
    mix = ExpectedMix("test", observation.now_s, kinds, (3600.0,), LEVELS, **(usual | more))
    return replace(observation, forecasts=replace(observation.forecasts, mix=mix))


class Growing:
    """Expects at most `factor` times the load of the last minute, anew each minute."""

    name = "growing"

    def __init__(self, factor: float = 1.5) -> None:
        self.factor = factor
        self._minute, self._made = -1, Forecasts()

    def update(self, now_s: float, snapshot: ClusterSnapshot) -> None:
        """Look at the load once a minute."""
        services, minute = snapshot.services, int(now_s // 60)
        if minute == self._minute or not len(services.id):
            return
        self._minute = minute
        peaks = {
            name: float(rps) * self.factor
            for name, rps in zip(services.id.tolist(), services.recent_rps.tolist(), strict=True)
        }
        self._made = Forecasts(demand=(forecast(peaks, now_s),))

    def forecast(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """The same until the next minute."""
        return self._made
