"""One model for all services: gradient-boosted quantiles of the change from the exponential mean.

It learns from all series together patterns too rare in any alone: the course after a jump, a lull, or the hour of
yesterday's peak. Each quantile and horizon is the mean of a few models with different features, because a single
boosted extreme quantile follows single bursts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autopilot.core.model.errors import InputError
from autopilot.core.model.snapshot import F64, Bools
from autopilot.core.model.units import format_duration
from models.bins import bounds_of, numbered
from models.demand import CARRIED_STEPS, Ask, blocks, carried, outcomes, rising, usual
from models.features import Rows, ahead, at_cells, common, names_of

LEAST_ROWS = 2000
"""Minimum number of rows of all series together: with a few hundred the model adds more error than it removes."""

MOST_ROWS = 30_000
"""Rows that one fit uses, spread over all: more take longer without gain (retrain of everything in three minutes)."""

TREES = 120
LEARNING_RATE = 0.06
LEAVES = 31
LEAST_LEAF = 50
"""Minimum number of rows of a leaf: half a miss at the 0.99 quantile."""

RIDGE = 10.0
FEATURE_SHARE = 0.5

ANCHORS = ("mean", "lag 0")
"""The models averaged for each quantile and horizon, by the feature that their change is measured from: the exponential
mean suits a calm series, the last value one that has just jumped.
"""

BINS = 128

MOST_WEIGHT = 1.0
"""Bound of the log of a row's weight: a burst counts at most three times as much as a usual minute. A higher bound
leaves only the few rows of bursts to learn from.
"""


class Boosting:
    """Global quantile model; abstains (NaN) until the first fit."""

    name = "boosting"

    def __init__(self, seed: int, trees: int = TREES) -> None:
        self._seed, self._trees = seed, trees
        self._members: dict[tuple[int, float], list[Any]] = {}
        self._columns: dict[int, dict[str, F64]] = {}  # by horizon: each feature's bounds of bins
        self._step_s, self._peak = 0.0, False  # settings of the fit
        self.counted_work = 0
        self.rows = 0

    def content(self) -> dict[str, Any]:
        """The fitted model as plain values and scikit-learn estimators, for a registry."""
        return {
            "model": self.name,
            "seed": self._seed,
            "step_s": self._step_s,
            "peak": self._peak,
            "parts": [
                {
                    "steps": steps,
                    "level": level,
                    "columns": list(self._columns[steps]),
                    "bounds": list(self._columns[steps].values()),
                    "members": list(members),
                }
                for (steps, level), members in self._members.items()
            ],
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any], ask: Ask) -> Boosting:
        """The model of `content`, for `ask`. Raises `InputError` if it has another shape, or predicts something
        else.
        """
        try:
            made = cls(int(content["seed"]))
            made._step_s, made._peak = float(content["step_s"]), bool(content["peak"])
            for part in content["parts"]:
                steps = int(part["steps"])
                bounds = [np.asarray(each, float) for each in part["bounds"]]
                made._columns[steps] = dict(zip(map(str, part["columns"]), bounds, strict=True))
                made._members[steps, float(part["level"])] = list(part["members"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"not a boosting model of bursts ({error!r}); promote one that this version fitted"
            ) from error
        if (made._step_s, made._peak) != (ask.step_s, ask.peak):
            raise InputError(
                f"it forecasts {_kind(made._step_s, peak=made._peak)}, not {_kind(ask.step_s, peak=ask.peak)}"
            )
        if not set(made._columns) & set(ask.steps):
            raise InputError("it has no model for these horizons; fit one for them")
        known = names_of(ask)
        if unknown := [name for name in made.features if name not in known]:
            raise InputError(f"it uses {', '.join(unknown)}, which this version does not compute; fit it again")
        return made

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features, those of every horizon together, in the order of first use."""
        return tuple(dict.fromkeys(name for columns in self._columns.values() for name in columns))

    def fit(self, values: F64, until: int, ask: Ask) -> None:
        """Fit all quantiles and horizons on the columns before `until`."""
        past = values[:, :until]
        self._step_s, self._peak = ask.step_s, ask.peak
        self._members, self._columns, self.rows = {}, {}, 0
        scale = usual(past)
        first = min(ask.day, until // 3)
        for steps in ask.steps:
            usable = _usable(past, first, steps, ask)
            count = int(usable.sum())
            self.rows = max(self.rows, count)
            if count < LEAST_ROWS:
                continue
            series, origins = _spread_out(usable, count)
            origins += first
            columns = at_cells(past, scale, series, origins, steps, ask)
            # an error on the log scale is weighted by its size in requests: as 1 + y / scale
            weight = np.exp(np.clip(columns["mean"], 0.0, MOST_WEIGHT))
            bounds = {
                name: bounds_of(column, weight, BINS) for name, column in columns.items() if not np.isnan(column).all()
            }
            rows = _in_bins(columns, bounds)
            self._columns[steps] = bounds
            reached = np.log1p(_came(past, series, origins, steps, ask) / scale[series])
            for level in ask.levels:
                self._members[steps, level] = [
                    self._fit_one(rows, reached - _anchor(columns, name), weight, level, member)
                    for member, name in enumerate(ANCHORS)
                ]

    def _fit_one(self, rows: F64, change: F64, weight: F64, level: float, member: int) -> Any:
        from sklearn.ensemble import HistGradientBoostingRegressor

        from models.quantile_fit import fit_quantile

        self.counted_work += len(rows) * self._trees
        model = HistGradientBoostingRegressor(
            loss="quantile",
            quantile=level,
            learning_rate=LEARNING_RATE,
            max_iter=self._trees,
            max_leaf_nodes=LEAVES,
            min_samples_leaf=LEAST_LEAF,
            l2_regularization=RIDGE,
            max_features=FEATURE_SHARE,
            max_bins=BINS,
            early_stopping=False,
            random_state=self._seed + member,
        )
        return fit_quantile(model, rows, change, weight)

    def predict(self, values: F64, first: int, ask: Ask, *, judged: bool = False) -> F64:
        """See `DemandModel`. Every series is scaled by its own history up to the first origin.

        With `judged` the origins with an outcome beyond `values` are NaN: no tree is evaluated without an outcome to
        compare.
        """
        shape = (len(values), values.shape[1] - first, len(ask.steps), len(ask.levels))
        found = np.full(shape, np.nan)
        if self._members:
            for rows in blocks(len(values), values.shape[1] - first + ask.day):
                found[rows] = self._predicted(values[rows], first, ask, judged=judged)
        return found

    def _predicted(self, values: F64, first: int, ask: Ask, *, judged: bool) -> F64:
        """`predict` for a block of series."""
        origins = values.shape[1] - first
        found = np.full((len(values), origins, len(ask.steps), len(ask.levels)), np.nan)
        scale = usual(values[:, : first + 1])
        shared = common(values, scale, first, ask)
        for place, steps in enumerate(ask.steps):
            told = origins - steps if judged else origins
            if steps not in self._columns or told <= 0:
                continue
            every = shared | ahead(values, scale, shared["mean"], first, steps, ask)
            columns = {name: column[:, :told] for name, column in every.items()}
            rows = _in_bins(columns, self._columns[steps])
            for at, level in enumerate(ask.levels):
                z = _mean_of(self._members.get((steps, level), []), rows, columns)
                found[:, :told, place, at] = np.expm1(np.clip(z, 0.0, 50.0)) * scale[:, None]
        start = max(0, first - CARRIED_STEPS)
        stale = np.isnan(carried(values[:, start:])[:, first - start :])
        found[stale] = np.nan
        return rising(found)


def _kind(step_s: float, *, peak: bool) -> str:
    return f"{'peaks' if peak else 'values'} of demand in steps of {format_duration(step_s)}"


def _in_bins(columns: Mapping[str, F64], bounds: Mapping[str, F64]) -> F64:
    """The features named in `bounds`, as the numbers of their bins. Shape [cells, features]."""
    return np.stack([numbered(columns[name].ravel(), each) for name, each in bounds.items()], axis=1)


def _anchor(shared: Mapping[str, F64], name: str) -> F64:
    """The reference of a member's change; features other than the mean are relative to it."""
    return shared["mean"] if name == "mean" else shared["mean"] + shared[name]


def _mean_of(members: list[Any], rows: F64, shared: Mapping[str, F64]) -> F64:
    """Mean forecast of the members, [series, origins] on the log scale; NaN without members."""
    shape = shared["mean"].shape
    if not members:
        return np.full(shape, np.nan)
    found = [
        _anchor(shared, name) + member.predict(rows).reshape(shape)
        for name, member in zip(ANCHORS, members, strict=True)
    ]
    return np.asarray(np.mean(found, axis=0))


def _usable(past: F64, first: int, steps: int, ask: Ask) -> Bools:
    """True if an origin from `first` on has a newest value and an outcome. Shape [series, origins]."""
    found = np.zeros((len(past), past.shape[1] - first), np.bool_)
    for rows in blocks(*past.shape):
        came = outcomes(past[rows], steps, peak=ask.peak)[:, first:]
        found[rows] = ~np.isnan(came) & ~np.isnan(carried(past[rows])[:, first:])
    return found


def _spread_out(usable: Bools, count: int) -> tuple[Rows, Rows]:
    """Series and columns of at most `MOST_ROWS` of the `count` usable cells, evenly spaced over series and time."""
    wanted = np.linspace(0, count - 1, min(count, MOST_ROWS)).astype(np.int64)
    # the n-th usable cell, found series by series: the positions of all would take eight times the mask's memory
    before = np.concatenate([[0], np.cumsum(usable.sum(axis=1))])
    series = np.searchsorted(before, wanted, side="right") - 1
    columns = np.empty(len(wanted), np.int64)
    for row in np.unique(series).tolist():
        mine = series == row
        columns[mine] = np.flatnonzero(usable[row])[wanted[mine] - before[row]]
    return series, columns


def _came(past: F64, series: Rows, origins: Rows, steps: int, ask: Ask) -> F64:
    """Outcomes for the forecasts of single cells: see `outcomes`. Shape [cells]."""
    nearest = 1 if ask.peak else steps
    return np.asarray(past[series[:, None], origins[:, None] + np.arange(nearest, steps + 1)].max(axis=1))
