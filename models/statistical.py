"""A model fitted to one series: exponential smoothing (ETS).

The parameters come from statsmodels; the smoothing recursions are run here for all series at once, which gives the
same states in a thousandth of the time.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.snapshot import F64, Bools
from models.demand import Ask, carried, evenly_spread, points

FIT_STEPS = 600
"""Number of last steps that parameters are fitted to: more take longer and reflect the present less."""

MOST_SERIES = 300
"""Maximum number of series with fitted parameters: seven seconds."""

TRIED_SERIES = 60
"""Series fitted before it is known whether any of them is chosen, when there are more."""

LEAST_CHOSEN_RATIO = 0.1
"""Minimum fraction of the tried series that must have chosen it before others are fitted: below, most fits are
unused.
"""

LEAST_STEPS = 40
"""Minimum number of known steps for a fit."""

WARM_STEPS = 600
"""Steps before an origin from which the states are computed."""


class Ets:
    """Simple or damped-trend exponential smoothing, the one with the smaller AICc; one fit for each series.

    Of more than `most_series` series `TRIED_SERIES`, evenly spread, are fitted, and the others abstain unless
    `fit_others` finds that it is chosen: a choice between models uses all series together (models/selection.py), for
    which those few suffice.
    """

    name = "ets"

    def __init__(self, most_series: int = MOST_SERIES) -> None:
        self._most = most_series
        self._shape = np.full((0, 3), np.nan)  # by series: alpha, beta, phi
        self._tried = np.zeros(0, np.bool_)

    def fit(self, values: F64, until: int, ask: Ask) -> None:
        """Fit on the columns before `until`: all series, or of too many a few."""
        count = len(values)
        self._shape, self._tried = np.full((count, 3), np.nan), np.zeros(count, np.bool_)
        most = count if count <= self._most else min(TRIED_SERIES, self._most)
        self._fit_rows(values, until, evenly_spread(count, most))

    def fit_others(self, values: F64, until: int, chosen: Bools) -> bool:
        """Fit further series, evenly spread, `most_series` in total, if enough of those tried have `chosen` [series]
        it.

        Returns whether any was fitted.
        """
        rows = np.flatnonzero(~self._tried)
        rows = rows[evenly_spread(len(rows), self._most - int(self._tried.sum()))]
        if not len(rows) or chosen[self._tried].mean() < LEAST_CHOSEN_RATIO:
            return False
        self._fit_rows(values, until, rows)
        return True

    def _fit_rows(self, values: F64, until: int, rows: NDArray[np.int64]) -> None:
        past = carried(values[rows, max(0, until - FIT_STEPS) : until])
        for row, each in zip(rows.tolist(), past, strict=True):
            self._shape[row] = _fit_one(each[~np.isnan(each)])
        self._tried[rows] = True

    def predict(self, values: F64, first: int, ask: Ask) -> F64:
        """The expected value at each horizon, for every level; for a peak the highest on the way."""
        start = max(0, first - WARM_STEPS)
        near = values[:, start:]
        shape = self._shape if len(self._shape) == len(values) else np.full((len(values), 3), np.nan)
        level, trend = np.full(near.shape, np.nan), np.full(near.shape, np.nan)
        fitted = ~np.isnan(shape[:, 0])
        level[fitted], trend[fitted] = _smoothed(near[fitted], shape[fitted])
        phi = shape[:, 2]
        stale = np.isnan(carried(near)[:, first - start :])
        found = []
        for steps in ask.steps:
            # phi + phi^2 + ... + phi^steps: how far a damped trend goes
            reach = np.cumsum(phi[:, None] ** np.arange(1, steps + 1), axis=1)[:, [-1]]
            far = level[:, first - start :] + reach * trend[:, first - start :]
            if ask.peak:
                near_by = level[:, first - start :] + phi[:, None] * trend[:, first - start :]
                far = np.maximum(far, near_by)
            found.append(np.where(stale, np.nan, np.maximum(far, 0.0)))
        return points(np.stack(found, axis=2), ask)


def _fit_one(past: F64) -> tuple[float, float, float]:
    """alpha, beta and phi of one series; (NaN, 0, 0) for too short a one. A constant one keeps its last value."""
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    if len(past) < LEAST_STEPS:
        return np.nan, 0.0, 0.0
    scale = float(past.std())
    if scale <= 1e-9 * max(1.0, float(np.abs(past).max())):
        return 1.0, 0.0, 0.0
    best, found = np.inf, (0.3, 0.0, 0.0)
    for damped in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = ExponentialSmoothing(
                    past / scale,
                    trend="add" if damped else None,
                    damped_trend=damped,
                    initialization_method="estimated",
                )
                fitted = model.fit(optimized=True)
            except (ValueError, FloatingPointError, np.linalg.LinAlgError):
                continue
        if np.isfinite(fitted.aicc) and fitted.aicc < best:
            best, shape = float(fitted.aicc), fitted.params
            alpha = float(shape["smoothing_level"])
            # statsmodels' beta is the weight of the trend itself, not that times alpha
            found = (
                (alpha, float(shape["smoothing_trend"]), float(shape["damping_trend"])) if damped else (alpha, 0.0, 0.0)
            )
    return tuple(np.nan_to_num(found, nan=0.0).tolist())


def _smoothed(values: F64, shape: F64) -> tuple[F64, F64]:
    """Level and trend after each step, [series, steps]; unknown values are skipped."""
    level, trend = np.full(values.shape, np.nan), np.full(values.shape, np.nan)
    alpha, beta, phi = shape.T
    now, slope = np.full(len(values), np.nan), np.zeros(len(values))
    for step in range(values.shape[1]):
        value = values[:, step]
        expected = now + phi * slope
        moved = expected + alpha * (value - expected)
        bent = phi * slope + beta * (moved - now - phi * slope)
        begun, known = ~np.isnan(now), ~np.isnan(value)
        slope = np.where(begun & known, bent, phi * slope)
        now = np.where(known, np.where(begun, moved, value), expected)
        level[:, step], trend[:, step] = now, slope
    return level, trend
