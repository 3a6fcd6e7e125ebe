"""Trees as arrays say what scikit-learn says."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from models.forest import Forest


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_all_models_answer_as_scikit_learn_does(missing: float) -> None:
    """With and without gaps in the features, for rows seen in the fit and for wild ones."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(800, 6))
    rows[rng.random(rows.shape) < missing] = np.nan
    target = np.nan_to_num(rows[:, 0]) * 2.0 + np.nan_to_num(rows[:, 1]) ** 2 + rng.normal(size=800)
    models = [
        HistGradientBoostingRegressor(loss="quantile", quantile=level, max_iter=25, max_leaf_nodes=9).fit(rows, target)
        for level in (0.1, 0.5, 0.9)
    ]
    asked = np.vstack([rows[:40], 100.0 * rng.normal(size=(10, 6)), np.full((1, 6), np.nan), np.full((1, 6), np.inf)])
    expected = np.stack([model.predict(asked) for model in models], axis=1)
    assert np.allclose(Forest(models).predict(asked), expected, rtol=0.0, atol=1e-10)
