"""Forecasts as the decision sees them: quantiles, their origin, and where a model abstains."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import log_ndtr, ndtri, ndtri_exp

from autopilot.core.model.snapshot import F64, I32, Bools

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Quantile levels of every run-time forecast."""

REQUESTS = "requests_per_s"
TOKENS = "tokens_per_s"
"""Kinds of demand: requests, and their input and output tokens together, per second."""


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
    """Upper quantiles of one kind of demand, one record a kind; `values` is [series, horizons, levels].

    A value is the quantile of the highest rate in (made_s, made_s + horizon]; a row is NaN where the model
    abstains, and `reasons` then says why ("" elsewhere). `series` are ids of services. Beside them stands what is
    known of the promise: `history`, the observations behind each series; `coverage` [series, horizons, levels], the
    share of the last week's outcomes that were at or below what was promised at the time (NaN: none came yet), over
    `outcomes` [series, horizons] of them; `drifting`, True where the model's errors have left their usual range.
    A column of length 0 is not stated, hence unknown.
    """

    model: str
    made_s: float
    series: tuple[str, ...]
    horizons_s: tuple[float, ...]
    levels: tuple[float, ...]
    values: F64
    kind: str = REQUESTS
    chosen: tuple[str, ...] = ()  # the model behind each series, where they differ
    history: I32 = field(default_factory=lambda: np.empty(0, np.int32))
    coverage: F64 = field(default_factory=lambda: np.empty((0, 0, 0)))
    outcomes: I32 = field(default_factory=lambda: np.empty((0, 0), np.int32))
    drifting: Bools = field(default_factory=lambda: np.empty(0, np.bool_))
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Everything foreseen for one tick."""

    runtimes: RuntimeForecast | None = None
    demand: tuple[Forecast, ...] = ()


def remaining_quantiles_s(
    levels: tuple[float, ...],
    total_s: F64,
    served_s: F64,
    wanted: tuple[float, ...],
    outlived_s: F64 | None = None,
) -> F64:
    """Several quantiles of the time left at once. Shape [jobs, wanted].

    `outlived_s` is what each job is known to outlive, where that is more than the progress that it still has: one that
    lost some has it to do again, and what it has outlived before lies behind it all the same.

    `total_s` [jobs, levels] is read as a piecewise log-normal: the standard normal quantile z of a level is linear
    in the log of the time between two levels; beyond the outer levels it goes on as steep as from the middle level
    to the outer one. With S the probability to outlive a time, the answer solves S(T) = (1 - level) S(outlived), minus
    what was served. So a job that outlived its forecast has a heavy tail before it, as log-normal run times do. A
    job that outlived a forecast without any spread is expected to run on for a tenth of what it has run, never less
    than a second. NaN rows (the model abstains) stay NaN.
    """
    served = np.maximum(np.asarray(served_s, float), 0.0)
    outlived = served if outlived_s is None else np.maximum(served, outlived_s)
    fresh = outlived <= 0.0
    left = np.empty((len(served), len(wanted)))
    asked = ~fresh if set(wanted) <= set(levels) else np.ones(len(served), np.bool_)
    again = (outlived - served)[asked, None]  # what was lost is done again
    left[asked] = _conditional(levels, total_s[asked], outlived[asked], wanted) + again
    for column, level in enumerate(wanted):  # to the last bit, not through a logarithm
        if level in levels:
            left[fresh, column] = total_s[fresh, levels.index(level)]
    return np.where(np.isnan(total_s[:, :1]), np.nan, left)


def _conditional(levels: tuple[float, ...], total_s: F64, served: F64, wanted: tuple[float, ...]) -> F64:
    """Quantiles of the time left of jobs that outlived what was served. Shape [jobs, wanted]."""
    normal = ndtri(np.asarray(levels))
    log_total, log_served = np.log(np.maximum(total_s, 1.0)), np.log(np.maximum(served, 1e-9))
    middle = len(normal) // 2
    low = (log_total[:, middle] - log_total[:, 0]) / (normal[middle] - normal[0])
    high = (log_total[:, -1] - log_total[:, middle]) / (normal[-1] - normal[middle])
    with np.errstate(invalid="ignore", divide="ignore"):
        outlived = log_ndtr(-_normal_at(normal, log_total, log_served, low, high))
        reach = -ndtri_exp(np.log1p(-np.asarray(wanted)) + outlived[:, None])
        left = np.exp(_log_time_at(normal, log_total, reach, low, high)) - served[:, None]
        overdue = (log_served >= log_total[:, -1]) & (high <= 0.0)
    return np.where(overdue[:, None], np.maximum(0.1 * served, 1.0)[:, None], np.maximum(left, 0.0))


def _normal_at(normal: F64, log_total: F64, log_served: F64, low: F64, high: F64) -> F64:
    """The standard normal quantile of the probability to be done by a time. Shape [jobs]."""
    index = (log_served[:, None] >= log_total).sum(axis=1)
    rows, upper = np.arange(len(index)), np.clip(index, 1, len(normal) - 1)
    before, after = log_total[rows, upper - 1], log_total[rows, upper]
    part = (log_served - before) / (after - before)
    inside = normal[upper - 1] + part * (normal[upper] - normal[upper - 1])
    below = normal[0] - (log_total[:, 0] - log_served) / low
    above = normal[-1] + (log_served - log_total[:, -1]) / high
    return np.asarray(np.where(index == 0, below, np.where(index == len(normal), above, inside)))


def _log_time_at(normal: F64, log_total: F64, reach: F64, low: F64, high: F64) -> F64:
    """The inverse of `_normal_at`, for several probabilities a job. Shape [jobs, wanted]."""
    rows, upper = np.arange(len(reach))[:, None], np.clip(np.searchsorted(normal, reach), 1, len(normal) - 1)
    before, after = log_total[rows, upper - 1], log_total[rows, upper]
    inside = before + (reach - normal[upper - 1]) / (normal[upper] - normal[upper - 1]) * (after - before)
    below = log_total[:, :1] - (normal[0] - reach) * low[:, None]
    above = log_total[:, -1:] + (reach - normal[-1]) * high[:, None]
    return np.where(reach < normal[0], below, np.where(reach > normal[-1], above, inside))
