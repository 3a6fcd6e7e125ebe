"""The quick quantile of leaves: the same models, and nothing of it in what is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn._loss.loss import PinballLoss
from sklearn.ensemble import HistGradientBoostingRegressor

from autopilot.core.model.snapshot import F64
from autopilot.registry.artifact import pack
from models.quantile_fit import QuickPinball, fit_quantile


def leaf(number: int) -> tuple[F64, F64]:
    """Residuals and weights of a leaf: large and tiny ones, with ties, gaps, and weights of zero or hardly more."""
    rng = np.random.default_rng(number)
    size = int(rng.choice([1, 2, 3, 5, 20, 125, 300]))
    values, weight = rng.normal(size=size), rng.exponential(size=size)
    if number % 3 == 0:
        values = np.round(values)
    if number % 4 == 0:
        weight = np.full(size, rng.choice([0.1, 1.0]))  # sums that miss a share by a rounding
    if number % 5 == 0:
        weight[rng.random(size) < 0.7] = 0.0
    if number % 7 == 0:
        values[rng.random(size) < 0.2] = np.nan
    if number % 11 == 0:
        weight *= 5e-324
    return values, weight


def test_a_leaf_has_the_quantile_of_scikit_learn() -> None:
    """To the bit, whatever its rows are; without a weight it is NaN as there."""
    known = 0
    for number in range(500):
        values, weight = leaf(number)
        for level in (0.05, 0.056, 0.9, 0.99):  # 0.056 of 125 rows is 7, and by way of percent a little more
            ours = QuickPinball(weight, level).fit_intercept_only(values, weight)
            theirs = PinballLoss(weight, level).fit_intercept_only(values, weight)
            assert np.array_equal(ours, theirs, equal_nan=True), (number, level)
            known += not np.isnan(ours)
    assert 1700 < known < 2000


def test_without_weights_it_is_the_one_of_scikit_learn_too() -> None:
    """Which is interpolated there."""
    values = np.array([3.0, 1.0, 2.0, 5.0])
    assert QuickPinball(None, 0.9).fit_intercept_only(values) == PinballLoss(None, 0.9).fit_intercept_only(values)


@pytest.mark.parametrize("level", [0.05, 0.5, 0.99])
@pytest.mark.parametrize("least_in_leaf", [1, 20])
def test_a_fitted_model_is_stored_as_if_scikit_learn_had_fitted_it(level: float, least_in_leaf: int) -> None:
    """The same bytes in the registry, so the same trees; and a second fit by its own method is possible."""
    rng = np.random.default_rng(0)
    rows = np.round(rng.normal(size=(1500, 4)), 1)
    rows[rng.random(rows.shape) < 0.05] = np.nan
    target = np.nan_to_num(rows[:, 0]) * rng.gamma(1.0, 1.0, 1500)
    weight = rng.exponential(size=1500)
    weight[rng.random(1500) < 0.3] = 0.0

    def unfitted() -> Any:
        return HistGradientBoostingRegressor(
            loss="quantile", quantile=level, max_iter=12, min_samples_leaf=least_in_leaf, random_state=1
        )

    ours = fit_quantile(unfitted(), rows, target, weight)
    theirs = unfitted().fit(rows, target, sample_weight=weight)
    assert vars(ours).keys() == vars(theirs).keys()
    assert type(ours._loss) is PinballLoss
    assert pack({"model": ours}) == pack({"model": theirs})
    again = ours.fit(rows, target, sample_weight=weight)
    assert np.array_equal(again.predict(rows), theirs.predict(rows))


def test_a_fit_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of scikit-learn that asks the loss for no leaf fails here, instead of being slow."""
    asked: list[int] = []

    def noted(self: QuickPinball, y_true: F64, sample_weight: F64 | None = None) -> Any:
        asked.append(len(y_true))
        return PinballLoss.fit_intercept_only(self, y_true, sample_weight)

    monkeypatch.setattr(QuickPinball, "fit_intercept_only", noted)
    rows = np.random.default_rng(0).normal(size=(500, 2))
    model = HistGradientBoostingRegressor(loss="quantile", quantile=0.9, max_iter=2)
    fitted = fit_quantile(model, rows, rows[:, 0], np.ones(500))
    leaves = sum(int(tree.nodes["is_leaf"].sum()) for (tree,) in fitted._predictors)
    assert len(asked) == 1 + leaves
