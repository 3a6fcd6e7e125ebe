"""Features as numbers of bins: the bins that scikit-learn would find, so that nothing is learned otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from autopilot.core.model.snapshot import F64
from models.bins import bounds_of, numbered


def columns(rows: int, seed: int) -> F64:
    """Features of every kind: spread out, with ties, with few values, with holes, constant, almost always zero."""
    rng = np.random.default_rng(seed)
    found = [
        rng.normal(size=rows),
        np.round(rng.normal(size=rows), 1),
        rng.integers(0, 5, rows),
        rng.gamma(0.3, 1.0, rows),
        np.full(rows, 2.0),
        np.where(rng.random(rows) < 0.97, 0.0, rng.normal(size=rows)),
    ]
    found[3][rng.random(rows) < 0.2] = np.nan
    return np.stack(found, axis=1).astype(float)


@pytest.mark.parametrize("level", [0.5, 0.99])
def test_trees_on_numbers_of_bins_are_those_on_the_features(level: float) -> None:
    """Fitted with weights; also for rows that were not among those fitted to, below, between and above them."""
    rng = np.random.default_rng(0)
    rows, others = columns(3000, 1), 2.0 * columns(500, 2)
    came = np.nan_to_num(rows[:, 0] + rows[:, 3]) * rng.gamma(1.0, 1.0, 3000)
    weight = np.exp(rng.uniform(0.0, 3.0, 3000))
    bounds = [bounds_of(column, weight, 32) for column in rows.T]
    settings = {
        "loss": "quantile",
        "quantile": level,
        "max_iter": 20,
        "max_bins": 32,
        "max_features": 0.5,
        "early_stopping": False,
        "random_state": 5,
    }
    plain = HistGradientBoostingRegressor(**settings).fit(rows, came, sample_weight=weight)

    def in_bins(given: F64) -> F64:
        return np.stack([numbered(column, each) for column, each in zip(given.T, bounds, strict=True)], axis=1)

    binned = HistGradientBoostingRegressor(**settings).fit(in_bins(rows), came, sample_weight=weight)
    assert np.ptp(plain.predict(rows)) > 0.1
    for given in (rows, others):
        assert np.array_equal(plain.predict(given), binned.predict(in_bins(given)))


def test_few_values_are_told_apart_in_the_middle() -> None:
    """As many bins as values; what is unknown has none."""
    column = np.array([4.0, 1.0, np.nan, 1.0, 2.0])
    assert bounds_of(column, np.ones(5), 3).tolist() == [1.5, 3.0]
    assert numbered(column, np.array([1.5, 3.0])).tolist() == pytest.approx([2, 0, np.nan, 0, 1], nan_ok=True)
    assert bounds_of(np.array([np.nan, 7.0, 7.0]), np.ones(3), 3).tolist() == []


def test_many_values_are_cut_where_the_weight_is() -> None:
    """Halves of the weight, not of the rows; a value at a bound is below it."""
    column, weight = np.arange(8.0), np.array([1, 1, 1, 1, 1, 1, 1, 9.0])
    assert bounds_of(column, np.ones(8), 2).tolist() == [3.5]
    assert bounds_of(column, weight, 2).tolist() == [7.0]
    assert bounds_of(column, weight, 4).tolist() == [3.5, 7.0]
    assert numbered(np.array([3.5, 3.6, 7.0, 7.1]), np.array([3.5, 7.0])).tolist() == [0, 1, 1, 2]
