"""Forecasts as the decision sees them: quantiles, their origin, and where a model abstains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autopilot.core.snapshot import F64, I32, Bools

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Quantile levels of every run-time forecast."""


@dataclass(frozen=True, slots=True)
class RuntimeForecast:
    """Total run time of each workload, by quantile.

    `total_s` is [workloads, levels], non-decreasing along a row; `known` is False where the model
    abstains (then the row is NaN). `history` counts the ended jobs that a row rests on.
    """

    model: str
    made_s: float
    levels: tuple[float, ...]
    total_s: F64
    known: Bools
    history: I32


@dataclass(frozen=True, slots=True)
class Forecast:
    """Upper quantiles of one kind of demand: [series, horizons, levels]."""

    model: str
    made_s: float
    series: tuple[str, ...]
    horizons_s: tuple[float, ...]
    levels: tuple[float, ...]
    values: F64


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Everything foreseen for one tick."""

    runtimes: RuntimeForecast | None = None
    demand: tuple[Forecast, ...] = ()


def remaining_quantile_s(levels: tuple[float, ...], total_s: F64, served_s: F64, level: float) -> F64:
    """Quantile `level` of the time left, given that a job has already run `served_s`.

    `total_s` [jobs, levels] is read as a piecewise linear quantile function in log time (flat outside
    the outer levels). With F its distribution, the answer solves F(T) = F(s) + level (1 - F(s)), minus
    s. A job that outlived its whole forecast is expected to run on for a tenth of what it has run
    (the survivor's rule of thumb under a heavy tail), never less than a second. Shape [jobs]; NaN
    rows (the model abstains) stay NaN.
    """
    if level in levels and not np.any(served_s):
        return np.asarray(total_s[:, levels.index(level)])
    return remaining_quantiles_s(levels, total_s, served_s, (level,))[:, 0]


def remaining_quantiles_s(
    levels: tuple[float, ...], total_s: F64, served_s: F64, wanted: tuple[float, ...]
) -> F64:
    """Several quantiles of the time left at once. Shape [jobs, wanted]."""
    grid = np.asarray(levels)
    served = np.asarray(served_s, float)
    log_total = np.log(np.maximum(total_s, 1.0))
    passed = _probability_at(grid, log_total, np.log(np.maximum(served, 1e-9)))[:, None]
    reach = passed + np.asarray(wanted) * (1.0 - passed)
    upper = np.clip(np.searchsorted(grid, reach, side="left"), 1, len(grid) - 1)
    lower = upper - 1
    rows = np.arange(len(served))[:, None]
    part = np.clip((reach - grid[lower]) / (grid[upper] - grid[lower]), 0.0, 1.0)
    log_end = log_total[rows, lower] + part * (log_total[rows, upper] - log_total[rows, lower])
    left = np.exp(log_end) - served[:, None]
    overdue = (served >= total_s[:, -1])[:, None]
    left = np.where(overdue, np.maximum(0.1 * served, 1.0)[:, None], np.maximum(left, 0.0))
    return np.where(np.isnan(total_s[:, :1]), np.nan, left)


def _probability_at(grid: F64, log_total: F64, log_served: F64) -> F64:
    """F(s) per row of a quantile function; 0 below the lowest level's time, the top level above."""
    above = log_served[:, None] >= log_total
    index = above.sum(axis=1)
    rows = np.arange(len(log_served))
    low = np.clip(index - 1, 0, len(grid) - 1)
    high = np.clip(index, 0, len(grid) - 1)
    span = log_total[rows, high] - log_total[rows, low]
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(span > 0, (log_served - log_total[rows, low]) / span, 0.0)
    inside = grid[low] + np.clip(part, 0.0, 1.0) * (grid[high] - grid[low])
    return np.where(index == 0, 0.0, inside)
