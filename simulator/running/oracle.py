"""Forecasters with the true run times and the true demand, to separate the value of decisions from that of
predictions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autopilot.core.model.forecast import LEVELS, Forecast, Forecasts, RuntimeForecast
from autopilot.core.model.snapshot import F64, ClusterSnapshot
from simulator.inference.deployments import Services
from simulator.world.cluster import Cluster

MINUTE_S = 60.0
PROVEN = 1_000_000
"""Outcomes that the true demand claims: more than any policy asks for."""


class Oracle:
    """Forecaster `exact`: the duration that the simulation will give each job."""

    name = "exact"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._duration_s: dict[str, float] = {}

    def update(self, now_s: float, snapshot: ClusterSnapshot) -> None:
        """There is nothing to learn."""

    def forecast(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """One value at every level; work without an end (replicas) abstains."""
        jobs, known_s = self._cluster.jobs, self._duration_s
        if len(known_s) != len(jobs):
            known_s.update(zip(jobs.id[len(known_s) :], jobs.duration_s[len(known_s) :], strict=True))
        total = np.array([known_s[name] for name in snapshot.workloads.id.tolist()], float)
        total[np.isinf(total)] = np.nan
        total_s = np.repeat(total[:, None], len(LEVELS), axis=1)
        known = ~np.isnan(total)
        return Forecasts(RuntimeForecast(self.name, now_s, LEVELS, total_s, known, np.zeros(len(total), np.int32)))


class DemandOracle:
    """Forecaster `true demand`: the highest requests/s of any minute within each horizon, as they will come."""

    name = "true demand"

    def __init__(
        self, services: Services, horizons_s: Sequence[float], levels: tuple[float, ...] = (0.5, 0.9, 0.99)
    ) -> None:
        self._horizons_s, self._levels = tuple(horizons_s), levels
        self._rps = {
            deployment.name: _rates(source.upto(services.horizon_s).t_s)
            for deployment, source in zip(services.deployments, services.sources(), strict=True)
        }

    def update(self, now_s: float, snapshot: ClusterSnapshot) -> None:
        """There is nothing to learn."""

    def forecast(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """One value at every level, the same until the next minute."""
        names = tuple(str(each) for each in snapshot.services.id.tolist())
        if not names:
            return Forecasts()
        made_s = now_s // MINUTE_S * MINUTE_S
        peaks = np.array([[self._peak(name, made_s, ahead_s) for ahead_s in self._horizons_s] for name in names])
        shape = (*peaks.shape, len(self._levels))
        return Forecasts(
            demand=(
                Forecast(
                    self.name,
                    made_s,
                    names,
                    self._horizons_s,
                    self._levels,
                    np.broadcast_to(peaks[:, :, None], shape).copy(),
                    coverage=np.ones(shape),
                    outcomes=np.full(peaks.shape, PROVEN, np.int32),
                ),
            )
        )

    def _peak(self, name: str, made_s: float, ahead_s: float) -> float:
        rps = self._rps.get(name, np.empty(0))
        first = round(made_s / MINUTE_S)
        return float(rps[first : first + max(round(ahead_s / MINUTE_S), 1)].max(initial=0.0))


def _rates(t_s: F64) -> F64:
    """Requests/s by minute."""
    return np.bincount((t_s // MINUTE_S).astype(np.int64)) / MINUTE_S
