"""The trees of fitted boosting models as plain arrays, to predict a few rows quickly.

`HistGradientBoostingRegressor.predict` costs 1 to 2 ms per model and call, for any number of rows. That is too
slow for a job submitted alone and in need of seven models. Here all trees of all models descend at once; the result
differs in the last digits only (tests/unit/models/test_forest.py).

scikit-learn has no public access to the fitted trees, so this module reads `_predictors` and `_baseline_prediction`,
models/runtime_boosting.py `_predictors` and `_bin_mapper`, and models/quantile_fit.py replaces the loss. pyproject.toml
therefore bounds scikit-learn from above. Before you raise the bound, run the tests of the three with the new version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autopilot.core.model.snapshot import F64


class Forest:
    """Trees of several HistGradientBoostingRegressor models with the same columns."""

    def __init__(self, models: Sequence[Any]) -> None:
        trees = [(number, step[0].nodes) for number, model in enumerate(models) for step in model._predictors]  # noqa: SLF001 - see the docstring of the module
        size = max((len(nodes) for _, nodes in trees), default=1)
        self._base = np.array([float(np.ravel(model._baseline_prediction)[0]) for model in models])  # noqa: SLF001
        self._model = np.array([number for number, _ in trees], np.int64)
        self._first = np.arange(len(trees)) * size  # trees are stored one after the other, padded to the largest
        self._feature, self._value = np.zeros(len(trees) * size, np.int64), np.zeros(len(trees) * size)
        self._threshold = np.full(len(trees) * size, np.inf)
        self._missing_left = np.ones(len(trees) * size, np.bool_)
        own = np.arange(len(trees) * size)
        self._left, self._right = own.copy(), own.copy()  # a leaf points to itself
        self._depth = 0
        for start, (_, nodes) in zip(self._first.tolist(), trees, strict=True):
            inner = np.flatnonzero(nodes["is_leaf"] == 0)
            self._value[start : start + len(nodes)] = nodes["value"]
            self._feature[start + inner] = nodes["feature_idx"][inner]
            self._threshold[start + inner] = nodes["num_threshold"][inner]
            self._missing_left[start + inner] = nodes["missing_go_to_left"][inner] != 0
            self._left[start + inner] = start + nodes["left"][inner].astype(np.int64)
            self._right[start + inner] = start + nodes["right"][inner].astype(np.int64)
            self._depth = max(self._depth, int(nodes["depth"].max()))

    def predict(self, features: F64) -> F64:
        """The prediction of each model for each row. Shape [rows, models]."""
        answer = np.tile(self._base, (len(features), 1))
        for row in range(len(features)):
            values, node = features[row], self._first
            for _ in range(self._depth):
                seen = values[self._feature[node]]
                left = (seen <= self._threshold[node]) | (np.isnan(seen) & self._missing_left[node])
                node = np.where(left, self._left[node], self._right[node])
            answer[row] += np.bincount(self._model, self._value[node], minlength=len(self._base))
        return answer
