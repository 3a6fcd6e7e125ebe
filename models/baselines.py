"""Models without a proper fit: available from the first minute, and the floor for every better one.

Last value, exponential mean, yesterday's profile at today's level, and for services asleep at zero the distribution of
their idle times.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autopilot.core.model.snapshot import F64, Bools
from models.demand import CARRIED_STEPS, Ask, blocks, carried, outcomes, points, usual

RATES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
"""Candidate weights of the newest value in an exponential mean; `FIRST_RATE` before any data."""

FIRST_RATE = 3

WARM_STEPS = 240
"""Steps before an origin from which an exponential mean is computed: at the slowest rate the rest weighs 5e-6."""

PROFILE_DAYS = 7
"""Maximum number of days in a profile; with less than one day the model abstains."""

LEVEL_STEPS = 12
"""Steps over which today's level is compared with the level at that time of the days before."""

LEVEL_PRIOR = 0.25
"""Fraction of a step's usual demand, for each step compared, that is added to both levels to avoid division by zero."""

LEVEL_BOUNDS = (0.2, 5.0)
"""Bounds of today's level over that of the days before: beyond them yesterday is no guide."""


class LastValue:
    """The last value: the floor, and the best predictor of a random walk."""

    name = "last-value"

    def fit(self, values: F64, until: int, ask: Ask) -> None:
        """Nothing to learn."""

    def predict(self, values: F64, first: int, ask: Ask) -> F64:
        """The last known value, for every horizon and level."""
        start = max(0, first - CARRIED_STEPS)
        return points(carried(values[:, start:])[:, first - start :], ask)


class Ewma:
    """Exponential mean; each series and horizon uses the rate with the least absolute error so far."""

    name = "ewma"

    def __init__(self) -> None:
        self._rate = np.zeros((0, 0), np.int64)

    def fit(self, values: F64, until: int, ask: Ask) -> None:
        """Choose the rates on the columns before `until`."""
        past = values[:, :until]
        losses = np.full((len(RATES), len(values), len(ask.steps)), np.inf)
        for rows in blocks(*past.shape):
            means = _means_by_step(past[rows], np.array(RATES))
            for place, steps in enumerate(ask.steps):
                came = np.ascontiguousarray(outcomes(past[rows], steps, peak=ask.peak).T)
                error = np.abs(means - came[:, None, :])
                judged = ~np.isnan(error)
                size = error.sum(axis=0, where=judged)
                losses[:, rows, place] = np.where(judged.any(axis=0), size, np.inf)
        known = np.isfinite(losses).any(axis=0)
        self._rate = np.where(known, np.argmin(losses, axis=0), FIRST_RATE)

    def predict(self, values: F64, first: int, ask: Ask) -> F64:
        """The exponential mean, for every level."""
        start = max(0, first - WARM_STEPS)
        near = values[:, start:]
        means = exponential_means(near, np.array(RATES))[:, :, first - start :]
        stale = _stale(values, first)
        means = np.where(stale, np.nan, means)
        if self._rate.shape != (len(values), len(ask.steps)):
            return points(means[FIRST_RATE], ask)
        series = np.arange(len(values))
        chosen = np.stack([means[self._rate[:, place], series] for place in range(len(ask.steps))], axis=2)
        return points(chosen, ask)


def _stale(values: F64, first: int) -> Bools:
    """True if a forecast has expired by the age of the last measurement, from the origin `first` on."""
    start = max(0, first - CARRIED_STEPS)
    return np.asarray(np.isnan(carried(values[:, start:])[:, first - start :]))


def exponential_means(values: F64, rates: F64) -> F64:
    """Exponential means [rates, series, steps] skipping unknown values and starting at the first known one."""
    return np.moveaxis(_means_by_step(values, rates), 0, 2)


def _means_by_step(values: F64, rates: F64) -> F64:
    """`exponential_means` as [steps, rates, series]: contiguous in the order of computation."""
    by_step = np.ascontiguousarray(values.T)
    found = np.empty((len(by_step), len(rates), len(values)))
    weight = rates[:, None]
    mean = np.full(found.shape[1:], np.nan)
    unknown = np.isnan(by_step)
    gaps = np.logical_or.accumulate(unknown.any(axis=1))  # only one so far
    for step, value in enumerate(by_step):
        moved = mean + weight * (value - mean)
        if step == 0 or gaps[step]:
            moved = np.where(np.isnan(mean), value, moved)
            moved = np.where(unknown[step], mean, moved)
        found[step] = mean = moved
    return found


class Profile:
    """The mean of the last days at the same time of day, times today's level over theirs."""

    name = "profile"

    def fit(self, values: F64, until: int, ask: Ask) -> None:
        """Nothing to learn."""

    def predict(self, values: F64, first: int, ask: Ask) -> F64:
        """NaN before a full day of history."""
        origins = np.arange(first, values.shape[1])
        level = _running_mean(values, first, values.shape[1], LEVEL_STEPS)
        scale = usual(values[:, : first + 1])[:, None] * LEVEL_PRIOR
        before = _days_before(
            lambda begin, stop: _running_mean(values, begin, stop, LEVEL_STEPS),
            origins,
            ask.day,
            0,
            0,
            len(values),
        )
        with np.errstate(invalid="ignore"):
            ratio = np.clip((level + scale) / (before + scale), *LEVEL_BOUNDS)
        found = [ratio * self._ahead(values, origins, steps, ask) for steps in ask.steps]
        return points(np.stack(found, axis=2), ask)

    def _ahead(self, values: F64, origins: np.ndarray, steps: int, ask: Ask) -> F64:
        """Mean over days of the value at the same time, or of the highest value up to it. Shape [series, origins]."""
        if not ask.peak:
            return _days_before(
                lambda begin, stop: _running_mean(values, begin, stop, 3, centred=True),
                origins,
                ask.day,
                steps,
                steps + 1,
                len(values),
            )
        return _days_before(
            lambda begin, stop: outcomes(values[:, begin : stop + steps], steps, peak=True)[:, : stop - begin],
            origins,
            ask.day,
            0,
            steps,
            len(values),
        )


def _days_before(
    measure: Callable[[int, int], F64], origins: np.ndarray, day: int, ahead: int, reach: int, series: int
) -> F64:
    """Mean over the days before of `measure` at the origins' time of day plus `ahead`; NaN where none is known.

    `measure(begin, stop)` [series, stop - begin] is called for the required columns only. It uses values up to `reach`
    steps after that time of day; a day counts only if none of these is after the origin (a horizon may be longer than a
    day). `origins` are consecutive.
    """
    total, count = np.zeros((series, len(origins))), np.zeros((series, len(origins)))
    for back in range(1, PROFILE_DAYS + 1) if len(origins) else ():
        begin, stop = int(origins[0]) - back * day + ahead, int(origins[-1]) + 1 - back * day + ahead
        if reach > back * day or stop <= 0:
            continue
        found = measure(max(begin, 0), stop)
        known = ~np.isnan(found)
        total[:, max(-begin, 0) :] += np.where(known, found, 0.0)
        count[:, max(-begin, 0) :] += known
    return np.where(count > 0, total / np.maximum(count, 1.0), np.nan)


def _running_mean(values: F64, begin: int, stop: int, width: int, *, centred: bool = False) -> F64:
    """Mean of the known values among the last `width`, or of those around each; NaN where none is known.

    For the columns from `begin` to before `stop`. Shape [series, stop - begin].
    """
    ahead = width // 2 if centred else 0
    behind = width - 1 - ahead
    start = max(0, begin - behind)
    values = values[:, start : stop + ahead]
    known = ~np.isnan(values)

    def sums(part: F64) -> F64:
        padded = np.pad(part, ((0, 0), (behind + 1, ahead)))
        total = np.cumsum(padded, axis=1)
        return np.asarray(total[:, width:] - total[:, :-width])

    count = sums(known.astype(float))
    mean = np.where(count > 0.5, sums(np.where(known, values, 0.0)) / np.maximum(count, 1.0), np.nan)
    return mean[:, begin - start : stop - start]
