"""Services asleep at zero: their wake-ups, by the distribution of their idle times.

No regression predicts the next request of a service with two requests a day; its usual idle time does (Shahrad et al.,
Serverless in the Wild, ATC 2020). It gives the probability that the service wakes within a lead time, given how long it
has slept, and, with its demand when awake, the quantiles of the peak.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.snapshot import F64
from models.demand import Ask, rising

LEAST_SLEEPS = 10
"""Minimum number of completed idle times for a usable distribution."""

GRID = 100
"""Steps of the quantile function of the demand when awake."""


class IdleTimes:
    """Quantiles of the peak for series at zero now; abstains for the others, and for values at one moment."""

    name = "idle-times"

    def __init__(self) -> None:
        self._lengths: dict[int, NDArray[np.int64]] = {}  # by series: completed idle times in steps, rising
        self._awake: dict[int, F64] = {}  # by series: quantile function of the values above zero

    def fit(self, values: F64, until: int, ask: Ask) -> None:
        """Learn idle times and waking values from the columns before `until`."""
        self._lengths, self._awake = {}, {}
        for row in range(len(values)):
            past = values[row, :until]
            lengths = _idle_lengths(past)
            awake = past[past > 0.0]
            if len(lengths) >= LEAST_SLEEPS and len(awake):
                self._lengths[row] = np.sort(lengths)
                self._awake[row] = np.quantile(awake, np.linspace(0.0, 1.0, GRID + 1))

    def predict(self, values: F64, first: int, ask: Ask) -> F64:
        """See `DemandModel`."""
        found = np.full((len(values), values.shape[1] - first, len(ask.steps), len(ask.levels)), np.nan)
        if not ask.peak:
            return found
        for row, lengths in self._lengths.items():
            if row < len(values):
                slept = _slept(values[row])[first:]
                found[row, slept > 0] = self._asleep(row, lengths, slept[slept > 0], ask)
        return rising(found)

    def _asleep(self, row: int, lengths: NDArray[np.int64], slept: NDArray[np.int64], ask: Ask) -> F64:
        """Quantiles [origins, horizons, levels] for a series asleep for `slept` steps.

        With w the probability to wake in time, the peak is zero with 1 - w; level q above that is level (q - (1 - w)) /
        w of the demand when awake.
        """
        still = len(lengths) - np.searchsorted(lengths, slept, side="left")
        grid = np.linspace(0.0, 1.0, GRID + 1)
        found = np.zeros((len(slept), len(ask.steps), len(ask.levels)))
        for place, steps in enumerate(ask.steps):
            longer = len(lengths) - np.searchsorted(lengths, slept + steps, side="left")
            # one more sleep of unknown length: a sleep longer than all observed ones may end or not
            wakes = 1.0 - (longer + 0.5) / (still + 1.0)
            for at, level in enumerate(ask.levels):
                part = (level - (1.0 - wakes)) / wakes
                found[:, place, at] = np.where(part > 0.0, np.interp(part, grid, self._awake[row]), 0.0)
        return found


def _slept(row: F64) -> NDArray[np.int64]:
    """Number of steps at zero, at each step of a row; 0 if it is not at zero, or unknown."""
    steps = np.arange(1, len(row) + 1)
    other = np.maximum.accumulate(np.where(row == 0.0, 0, steps))
    return np.asarray(steps - other)


def _idle_lengths(row: F64) -> NDArray[np.int64]:
    """Lengths of the idle times of a row between two values above zero."""
    slept = _slept(row)
    ends = np.flatnonzero((slept[:-1] > 0) & (row[1:] > 0.0))
    begins = ends - slept[ends]
    whole = (begins >= 0) & (row[np.maximum(begins, 0)] > 0.0)
    return np.asarray(slept[ends[whole]], np.int64)
