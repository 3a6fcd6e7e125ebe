"""Drift detection: two charts for each series, and the responses.

An exponentially weighted chart of the standardized residuals (Roberts 1959) detects a shift of the level; a binomial
test on the last outcomes detects coverage below nominal. The responses form a ladder: margins widen automatically (the
conformal layer); then the floor serves the series; then a new model is fitted in the shadow, and has to pass the gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc

from autopilot.core.model.snapshot import F64, I32, Bools

RATE = 0.1
"""Weight of the newest residual in the chart: sees a shift of one standard deviation after about 17 residuals."""

LIMIT = 4.0
"""Standard deviations of the chart beyond which a series has drifted: about one false alarm in 30,000 residuals."""

WARM = 50
"""Residuals that establish a series' usual mean and spread before any test."""

SPREAD_RATE = 0.005
"""Weight of the newest residual in the usual mean and spread: they follow over days, not over a burst."""

OUTLIER = 4.0
"""Standardized residuals are clipped here: one reading a hundred times too large is no drift."""

LAST = 200
"""Number of outcomes in the coverage test."""

BREACH = 1e-4
"""Coverage is below nominal where this number of misses or more had at most this probability."""

DWELL = 25
"""Outcomes that a series stays on a rung before a lasting alarm takes it to the next: each response gets its chance."""

SETTLED = 100
"""Outcomes without an alarm after which a series steps down the ladder again."""


class Rung(IntEnum):
    """The response for a series."""

    STEADY = 0
    WIDEN = 1
    FLOOR = 2
    RETRAIN = 3


class Drift:
    """Charts and rungs of `series` series; `miss_rate` is that allowed by the watched promise."""

    def __init__(self, series: int, miss_rate: float = 0.1, overlap: int = 1) -> None:
        self._miss_rate, self._overlap = miss_rate, overlap
        self._count = np.zeros(series, np.int64)
        self._mean, self._square, self._chart = np.zeros(series), np.ones(series), np.zeros(series)
        self._missed = np.zeros((series, LAST), np.bool_)
        self._outcomes = np.zeros(series, np.int64)
        self._calm = np.zeros(series, np.int64)
        self._stood = np.zeros(series, np.int64)  # outcomes since the rung last changed
        self._rung = np.zeros(series, np.int32)

    @property
    def rung(self) -> I32:
        """The rung of each series on the ladder (`Rung`). Shape [series]."""
        return self._rung.copy()

    @property
    def drifting(self) -> Bools:
        """True if the model no longer serves the series."""
        return np.asarray(self._rung >= Rung.FLOOR)

    @property
    def retrain(self) -> bool:
        """True if a series in ten, at least one, is at the top: fit a new model in the shadow."""
        judged = self._count >= WARM
        return bool(judged.any() and (self._rung[judged] >= Rung.RETRAIN).mean() >= 0.1)

    def grow(self, series: int) -> None:
        """Add series without history."""
        more = Drift(series, self._miss_rate, self._overlap)
        for name in (
            "_count",
            "_mean",
            "_square",
            "_chart",
            "_missed",
            "_outcomes",
            "_calm",
            "_stood",
            "_rung",
        ):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(more, name)]))

    def forget(self, rows: NDArray[np.int64] | Sequence[int]) -> None:
        """Reset series: another name, or another model."""
        for name in ("_count", "_mean", "_chart", "_missed", "_outcomes", "_calm", "_stood", "_rung"):
            getattr(self, name)[rows] = 0
        self._square[rows] = 1.0

    def learn(self, rows: NDArray[np.int64], residuals: F64, missed: Bools) -> None:
        """One outcome of each of `rows` (each once): outcome minus median, and True for a missed bound.

        A NaN residual is ignored.
        """
        known = np.isfinite(residuals)
        rows, residuals, missed = rows[known], residuals[known], missed[known]
        if not len(rows):
            return
        alarm = self._shifted(rows, residuals) | self._broken(rows, missed)
        self._calm[rows] = np.where(alarm, 0, self._calm[rows] + 1)
        self._stood[rows] += 1
        up = alarm & ((self._rung[rows] == Rung.STEADY) | (self._stood[rows] >= DWELL))
        down = ~alarm & (self._calm[rows] >= SETTLED) & (self._rung[rows] > Rung.STEADY)
        self._rung[rows] = np.clip(self._rung[rows] + up - down, Rung.STEADY, Rung.RETRAIN)
        self._stood[rows] = np.where(up | down, 0, self._stood[rows])
        self._calm[rows] = np.where(down, 0, self._calm[rows])

    def _shifted(self, rows: NDArray[np.int64], residuals: F64) -> Bools:
        """True if the chart is beyond its limit. It starts at zero once the usual mean and spread are known."""
        count = self._count[rows]
        spread = np.sqrt(np.maximum(self._square[rows], 1e-24))
        standard = np.clip((residuals - self._mean[rows]) / spread, -OUTLIER, OUTLIER)
        warm = count >= WARM
        chart = np.where(warm, (1.0 - RATE) * self._chart[rows] + RATE * standard, 0.0)
        rate = np.maximum(1.0 / (count + 1.0), SPREAD_RATE)
        held = np.where(warm, self._mean[rows] + standard * spread, residuals)
        deviation = held - self._mean[rows]
        self._mean[rows] += rate * deviation
        first = count == 0
        square = self._square[rows] + rate * (deviation**2 - self._square[rows])
        self._square[rows] = np.where(first, np.maximum(residuals**2, 1e-24), square)
        self._chart[rows] = chart
        self._count[rows] += 1
        # residuals of overlapping forecasts are correlated: their chart is as wide as with fewer
        sigma = np.sqrt(min(1.0, RATE / (2.0 - RATE) * self._overlap))
        return np.asarray(np.abs(chart) > LIMIT * sigma)

    def _broken(self, rows: NDArray[np.int64], missed: Bools) -> Bools:
        """True if the last outcomes include more misses than chance explains. Overlaps count once."""
        self._missed[rows, self._outcomes[rows] % LAST] = missed
        self._outcomes[rows] += 1
        seen = np.minimum(self._outcomes[rows], LAST) // self._overlap
        misses = self._missed[rows].sum(axis=1) // self._overlap
        beyond = np.where(misses > 0, bdtrc(np.maximum(misses - 1, 0), np.maximum(seen, 1), self._miss_rate), 1.0)
        return np.asarray((seen >= 20) & (misses > 0) & (beyond < BREACH))
