"""Quantiles of the log run time by gradient boosting, from the statistics of the last similar jobs.

One HistGradientBoostingRegressor (scikit-learn) for each level. Uninformative columns in training (all NaN, which
scikit-learn 1.9.1 cannot fit, one value throughout, or equal to an earlier column) are left out, and the selection is
part of the model. Run times of running jobs are unknown, so short ones are over-represented among those that ended:
training rows are weighted by the inverse of the probability to have ended (models/censoring.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autopilot.core.model.errors import InputError
from autopilot.core.model.forecast import LEVELS
from autopilot.core.model.snapshot import F64, I32
from models.forest import Forest

LEAST_ROWS = 1000
"""Minimum number of rows for boosting: by reference it must not be chosen below about a thousand."""


FEW_ROWS = 20
"""Up to this number of rows the trees are evaluated here and not by scikit-learn, whose call costs as much as these."""


@dataclass(frozen=True, slots=True)
class BoostingRules:
    """Settings of a fit. `trees` are for each level; rows beyond `most_rows` are the oldest and are left out."""

    trees: int = 100
    rate: float = 0.08
    leaves: int = 15
    least_in_leaf: int = 20
    bins: int = 31
    most_rows: int = 40_000


@dataclass(frozen=True, slots=True)
class Boosted:
    """Fitted models, one per level, and their columns."""

    levels: tuple[float, ...]
    models: tuple[Any, ...]
    columns: I32
    width: int
    rows: int
    forest: Forest

    @property
    def work(self) -> int:
        """Counted work of the fit: rows x trees over all levels."""
        return self.rows * sum(int(model.n_iter_) for model in self.models)

    def predict(self, features: F64) -> F64:
        """Quantiles of the log run time of rows of features: [rows, levels], non-decreasing along a row."""
        if not len(features):
            return np.zeros((0, len(self.levels)))
        chosen = np.ascontiguousarray(features[:, self.columns])
        if len(chosen) <= FEW_ROWS:
            return np.sort(self.forest.predict(chosen), axis=1)
        return np.sort(np.stack([model.predict(chosen) for model in self.models], axis=1), axis=1)


def content_of(boosted: Boosted | None) -> dict[str, Any]:
    """The models as plain values, arrays and estimators, for the registry; empty for none."""
    if boosted is None:
        return {}
    return {
        "levels": list(boosted.levels),
        "models": list(boosted.models),
        "columns": boosted.columns,
        "width": boosted.width,
        "rows": boosted.rows,
    }


def boosted_from(content: Mapping[str, Any], width: int) -> Boosted | None:
    """The models of `content_of`, for `width` columns of features. Raises `InputError` where they use others."""
    if not content:
        return None
    if content["width"] != width:
        raise InputError(f"a model of run times uses {content['width']} columns, these jobs have {width}; fit it again")
    return Boosted(
        tuple(content["levels"]),
        tuple(content["models"]),
        np.asarray(content["columns"], np.int32),
        int(content["width"]),
        int(content["rows"]),
        Forest(content["models"]),
    )


def placed(boosted: Boosted, schema: Sequence[str], names: Sequence[str]) -> Boosted:
    """`boosted`, fitted on the columns `schema` [width], for features with the columns `names`, in any order.

    Raises `InputError` where it uses a missing column, or forecasts other levels.
    """
    if boosted.levels != LEVELS:
        raise InputError(f"a model of run times forecasts the levels {LEVELS}, this one {boosted.levels}")
    place = {name: number for number, name in enumerate(names)}
    wanted = [schema[column] for column in boosted.columns.tolist()]
    strange = [name for name in wanted if name not in place]
    if strange:
        raise InputError(f"it uses unknown attributes of jobs: {', '.join(strange[:3])}; fit it again")
    columns = np.array([place[name] for name in wanted], np.int32)
    return replace(boosted, columns=columns, width=len(names))


def stored_boosted(content: Mapping[str, Any], schema: Sequence[str], names: Sequence[str]) -> Boosted | None:
    """The model of a stored artifact's `content`, fitted on the columns `schema`, for features with the columns
    `names`.

    None where there was too little data to fit one. Raises `InputError` where it cannot be used here.
    """
    if content.get("model") != "runtimes":
        raise InputError("not a model of run times")
    boosted = boosted_from(content["boosted"], len(schema))
    return None if boosted is None else placed(boosted, schema, names)


def telling_columns(features: F64) -> I32:
    """Columns with at least two different values, without repetitions of earlier ones."""
    kept: list[int] = []
    seen: set[bytes] = set()
    for column in range(features.shape[1]):
        values = np.ascontiguousarray(features[:, column])
        known = values[~np.isnan(values)]
        content = values.tobytes()
        if not len(known) or known.min() == known.max() or content in seen:
            continue
        seen.add(content)
        kept.append(column)
    return np.array(kept, np.int32)


def fit_boosted(
    features: F64, log_s: F64, weight: F64, levels: Sequence[float], rules: BoostingRules, seed: int = 0
) -> Boosted | None:
    """Fit on rows in order of time; None where the rows are too few or uninformative."""
    known = np.flatnonzero(~np.isnan(log_s) & np.isfinite(weight))[-rules.most_rows :]
    if len(known) < LEAST_ROWS:
        return None
    rows = features[known]
    columns = telling_columns(rows)
    if not len(columns):
        return None
    chosen = np.ascontiguousarray(rows[:, columns])
    models = _one_per_level(chosen, log_s[known], weight[known], levels, rules, seed)
    return Boosted(tuple(levels), models, columns, features.shape[1], len(known), Forest(models))


def _one_per_level(
    rows: F64, log_s: F64, weight: F64, levels: Sequence[float], rules: BoostingRules, seed: int
) -> tuple[Any, ...]:
    """A model for each level. The first fit cuts the columns into bins; the others are fitted on its bins.

    scikit-learn looks for the bounds of bins in each fit, and with weights that takes most of the time. A tree on the
    numbers of bins has the same splits; its thresholds are then written as values of the columns, so each model is the
    one that a fit on `rows` would give. There is no public access to bins and trees: see models/forest.py.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    from models.quantile_fit import fit_quantile

    models: list[Any] = []
    bounds: list[F64] = []
    for level in levels:
        model = HistGradientBoostingRegressor(
            loss="quantile",
            quantile=level,
            max_iter=rules.trees,
            learning_rate=rules.rate,
            max_leaf_nodes=rules.leaves,
            min_samples_leaf=rules.least_in_leaf,
            max_bins=rules.bins,
            early_stopping=False,
            random_state=seed,
        )
        fit_quantile(model, rows, log_s, weight)
        if not models:
            bounds = model._bin_mapper.bin_thresholds_  # noqa: SLF001
            rows = np.stack([_bins(column, bound) for column, bound in zip(rows.T, bounds, strict=True)], axis=1)
        else:
            _write_thresholds(model, bounds, rows)
            model._bin_mapper = models[0]._bin_mapper  # noqa: SLF001
        models.append(model)
    return tuple(models)


def _bins(column: F64, bounds: F64) -> F64:
    """The bin of each value, counted from 0; NaN for none. Values up to and with a bound are below it."""
    return np.where(np.isnan(column), np.nan, np.searchsorted(bounds, column, side="left"))


def _write_thresholds(model: Any, bounds: Sequence[F64], rows: F64) -> None:
    """Write the thresholds of trees that were fitted on `rows`, the bins, as values of the columns.

    Bins without a value leave a choice of bounds. scikit-learn takes the lowest; the highest where it looks for splits
    from the right, which sends missing values of the column to the left.
    """
    gaps = [bool(np.isnan(column).any()) for column in rows.T]
    seen = [np.unique(column[~np.isnan(column)]).astype(np.int64) for column in rows.T]
    for (tree,) in model._predictors:  # noqa: SLF001
        nodes = tree.nodes
        for node in np.flatnonzero(nodes["is_leaf"] == 0).tolist():
            column, split = int(nodes["feature_idx"][node]), int(nodes["bin_threshold"][node])
            bins, from_right = seen[column], gaps[column] and nodes["missing_go_to_left"][node]
            bound = int(bins[split + 1]) - 1 if from_right else int(bins[split])
            nodes["num_threshold"][node] = bounds[column][bound] if bound < len(bounds[column]) else np.inf
