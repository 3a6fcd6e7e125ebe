"""Demand in the form for models: rows on one regular step, forecast requests, and outcomes.

Values are [series, steps], requests or tokens per second (or any non-negative amount); NaN is unknown. An
*origin* is the column of a forecast, made from this column and those before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autopilot.core.model.errors import invariant
from autopilot.core.model.snapshot import F64

DAY_S = 86_400.0

LEVELS = (0.5, 0.9, 0.99)
"""Quantile levels of every forecast of demand."""

LARGEST = 1e15
"""A value above this is an invalid reading: no fleet serves as much, and its square still fits a float."""

BLOCK_CELLS = 1_000_000
"""Values of a history that are processed at once (8 MB): intermediate results of all of it would take gigabytes."""

CARRIED_STEPS = 3
"""Steps for which the last known value replaces a missing one; after that a forecast has expired."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A forecast request: at `steps` ahead the value, or the highest in between (`peak`)."""

    step_s: float
    steps: tuple[int, ...]
    peak: bool = False
    levels: tuple[float, ...] = LEVELS

    def __post_init__(self) -> None:
        invariant(self.step_s > 0.0, "a step lasts")
        invariant(bool(self.steps) and min(self.steps) >= 1, "a horizon is one step or more")

    @property
    def day(self) -> int:
        """Steps of a day, at least one."""
        return max(1, round(DAY_S / self.step_s))

    @property
    def longest(self) -> int:
        """Steps of the longest horizon."""
        return max(self.steps)


class DemandModel(Protocol):
    """A forecasting model of demand."""

    name: str

    def fit(self, values: F64, until: int, ask: Ask) -> None:
        """Learn from the columns before `until`."""
        ...

    def predict(self, values: F64, first: int, ask: Ask) -> F64:
        """Quantiles [series, origins, horizons, levels] for the origins `first`, `first` + 1, ... to the last column.

        An origin's row uses columns up to it. NaN if the model abstains. A model without a spread of its own gives
        every level the same value: the conformal layer makes the levels.
        """
        ...


def tidy(values: ArrayLike) -> F64:
    """`values` with impossible demands made unknown: negative, infinite, or absurdly large."""
    found = np.array(values, float)
    with np.errstate(invalid="ignore"):
        found[~((found >= 0.0) & (found <= LARGEST))] = np.nan
    return found


def carried(values: F64, most: int = CARRIED_STEPS) -> F64:
    """Each unknown value replaced by the last known one of its row, if it is at most `most` steps old."""
    known = ~np.isnan(values)
    if known.all():
        return values
    steps = np.arange(values.shape[1])
    last = np.maximum.accumulate(np.where(known, steps, -1), axis=1)
    held = np.take_along_axis(values, np.maximum(last, 0), axis=1)
    return np.asarray(np.where((last >= 0) & (steps - last <= most), held, np.nan))


def outcomes(values: F64, steps: int, *, peak: bool) -> F64:
    """Outcomes for a forecast made at each column: the value `steps` later, or the highest in between.

    NaN if it is not known yet, or (in between) was not fully measured. Shape of `values`.
    """
    came = np.full(values.shape, np.nan)
    if steps < values.shape[1]:
        came[:, :-steps] = _highest(values[:, 1:], steps) if peak else values[:, steps:]
    return came


def _highest(values: F64, width: int) -> F64:
    """The highest of each `width` values in a row, NaN if one is unknown. Shape [series, steps - width + 1].

    By doubling: the highest of 2w values is the higher of two of w.
    """
    found, covered = values, 1
    while covered < width:
        more = min(covered, width - covered)
        found = np.maximum(found[:, :-more], found[:, more:])
        covered += more
    return found


def blocks(series: int, steps: int) -> Iterator[slice]:
    """Rows of a history [series, steps] in blocks of at most `BLOCK_CELLS` values, one row at least."""
    rows = max(1, BLOCK_CELLS // max(steps, 1))
    for begin in range(0, series, rows):
        yield slice(begin, min(begin + rows, series))


def evenly_spread(series: int, most: int) -> NDArray[np.int64]:
    """Rows of at most `most` of the series, evenly spaced, rising."""
    return np.unique(np.linspace(0, series - 1, min(series, most)).astype(np.int64))


def came_after(values: F64, first: int, ask: Ask) -> F64:
    """Outcomes for the origins from `first` on. Shape [series, origins, horizons]."""
    return np.stack([outcomes(values[:, first:], ahead, peak=ask.peak) for ahead in ask.steps], axis=2)


def usual(values: F64) -> F64:
    """Mean of the known values of each row, above zero; 1 for a row without any. Shape [series]."""
    count, mean = np.zeros(len(values), np.int64), np.zeros(len(values))
    for rows in blocks(*values.shape):
        known = ~np.isnan(values[rows])
        count[rows] = known.sum(axis=1)
        mean[rows] = np.where(known, values[rows], 0.0).sum(axis=1) / np.maximum(count[rows], 1)
    return np.where((count > 0) & (mean > 0.0), np.maximum(mean, 1e-9), 1.0)


def points(values: F64, ask: Ask) -> F64:
    """Values [series, origins] or [series, origins, horizons] repeated for every horizon and level of `ask`."""
    wide = values if values.ndim == 3 else np.repeat(values[:, :, None], len(ask.steps), axis=2)
    return np.repeat(wide[:, :, :, None], len(ask.levels), axis=3)


def rising(quantiles: F64) -> F64:
    """Quantiles made finite or NaN, never negative, and never falling with the level (the last axis)."""
    with np.errstate(invalid="ignore"):
        kept = np.where(np.isfinite(quantiles), np.clip(quantiles, 0.0, LARGEST), np.nan)
    whole = ~np.isnan(kept).any(axis=-1, keepdims=True)
    return np.where(whole, np.maximum.accumulate(np.where(whole, kept, 0.0), axis=-1), np.nan)
