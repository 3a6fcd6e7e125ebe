"""Fits of HistGradientBoostingRegressor with `loss="quantile"`, equal to those of scikit-learn, in less time.

The value of a leaf is a weighted quantile of its residuals. scikit-learn computes it by a general function (any
array library, several columns, gaps), whose checks take longer than its sort. Here it is computed from the same sums
in the same order, so a model is equal to the bit. A fitted model is the plain one: nothing of this is stored.

The loss of a fit and `_loss` of a model are not public: see models/forest.py.
"""

from __future__ import annotations

from typing import Any

from sklearn._loss.loss import PinballLoss

from autopilot.core.model.snapshot import F64


def fit_quantile(model: Any, rows: F64, target: F64, weight: F64) -> Any:
    """Fit `model`, a HistGradientBoostingRegressor with `loss="quantile"`, as its own `fit` would; returns it."""
    model.set_params(loss=QuickPinball(weight, model.quantile)).fit(rows, target, sample_weight=weight)
    model.set_params(loss="quantile")
    model._loss = model._get_loss(sample_weight=weight)  # noqa: SLF001
    return model


class QuickPinball(PinballLoss):  # type: ignore[misc] # scikit-learn ships no types
    """The quantile loss, with a quick quantile of weighted residuals."""

    def fit_intercept_only(self, y_true: F64, sample_weight: F64 | None = None) -> Any:
        """The quantile of `y_true` [rows]: the first value at which the sum of weights reaches its share."""
        if sample_weight is None:
            return super().fit_intercept_only(y_true)
        order = y_true.argsort()
        reached = sample_weight[order].cumsum()
        wanted = 100 * self.closs.quantile / 100 * reached[-1]  # rounded as scikit-learn does, by way of percent
        if not wanted > 0.0 or y_true[order[-1]] != y_true[order[-1]]:  # no weight at all, or a gap: sorted last
            return super().fit_intercept_only(y_true, sample_weight)
        return y_true[order[min(int(reached.searchsorted(wanted)), len(order) - 1)]]
