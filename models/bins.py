"""Features as bin numbers: many fits on the same rows then sort them once.

A boosted tree sees a feature in bins only, with bounds at quantiles. Scikit-learn computes them again for each model of
the same rows, at a higher cost than the trees. A feature given as bin numbers has few values, and
scikit-learn makes each value a bin: the trees are those of the feature itself (tests/unit/models/test_bins.py).
"""

from __future__ import annotations

import numpy as np

from autopilot.core.model.snapshot import F64


def bounds_of(column: F64, weight: F64, most: int) -> F64:
    """Upper bounds, ascending, of at most `most` bins of the known values of `column` [rows]; the last bin has none.

    Few distinct values are separated in the middle between two of them. More are divided at quantiles of `weight`
    [rows], the mean of two values where one ends exactly there (averaged inverted CDF, definition 2 of Hyndman and Fan
    1996), as in scikit-learn's binning.
    """
    known = ~np.isnan(column)
    order = np.argsort(column[known], kind="stable")
    values, below = column[known][order], np.cumsum(weight[known][order])
    distinct = values[np.diff(values, prepend=-np.inf) > 0.0]
    if len(distinct) <= most:
        return np.asarray((distinct[1:] + distinct[:-1]) / 2.0)
    wanted = np.arange(1, most) / most * below[-1]
    place = np.minimum(np.searchsorted(below, wanted), len(values) - 1)
    ends_there = below[place] - wanted <= np.finfo(float).eps
    after = np.minimum(place + 1, len(values) - 1)
    return np.unique(np.where(ends_there, (values[place] + values[after]) / 2.0, values[place]))


def numbered(column: F64, bounds: F64) -> F64:
    """Number of the bin of each value, as floats; NaN stays. A value at a bound belongs to the bin below it."""
    return np.where(np.isnan(column), np.nan, np.searchsorted(bounds, column).astype(float))
