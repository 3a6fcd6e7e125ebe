"""The conformal layer of demand: coverage at 0.9 and 0.99 is as nominal, for any model below.

Scores are differences of square roots (which stabilize the variance of counts, and have no pole at zero), in units of
the root of the usual demand of their series and the spread stated by the model itself, so series of a class are
comparable and a model aware of its uncertainty gets wider margins then. A level is resolved by a series' own window
if it is long enough; 0.99 is resolved by all series of one horizon together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.snapshot import F64, Bools
from models.conformal import WINDOW, Adaptive
from models.demand import rising

OWN_MISSES = 5.0
"""Misses at a level in a series' window at which its own quantile weighs as much as the pool's."""

MEMORY_MISSES = 10.0
"""Excess misses that move the target miss rate by a factor of e. A shorter memory follows chance: margins that jump
with each miss would make capacity flap.
"""

SPREAD_SHARE = 0.5
"""Fraction of the unit that is the model's own spread; the rest is the root of the usual demand."""

POOLED_ABOVE = 0.95
"""Above this level a window of some hundred overlapping forecasts is uninformative: only the pool counts."""

Rows = NDArray[np.int64]


class Layer:
    """Margins for each series and horizon at the upper levels; the median is the model's own.

    `stated` [series, horizons]: True if the model states a spread (`states_spread`). Models stating one, and those
    leaving it to the layer, have different scores, so each pool is of one sort; new series state none.
    """

    def __init__(
        self,
        levels: Sequence[float],
        series: int,
        steps: Sequence[int],
        *,
        stated: Bools | None = None,
        window: int = WINDOW,
    ) -> None:
        self.levels, self.steps = tuple(levels), tuple(steps)
        pools = np.zeros((series, len(self.steps)), np.int32) if stated is None else stated.astype(np.int32)
        self._upper = [place for place, level in enumerate(self.levels) if level > 0.5]
        self._parts = [
            [self._adaptive(self.levels[place], series, window, pools[:, horizon]) for place in self._upper]
            for horizon in range(len(self.steps))
        ]

    @staticmethod
    def _adaptive(level: float, series: int, window: int, pool: NDArray[np.int32]) -> Adaptive:
        belief = OWN_MISSES if level <= POOLED_ABOVE else np.inf
        rate = ((1.0 - level) / MEMORY_MISSES,)
        return Adaptive((level,), series, window=window, pool=pool, comparable=True, belief=belief, rate=rate)

    def grow(self, series: int) -> None:
        """Add series without history."""
        for part in self._parts:
            for adaptive in part:
                adaptive.grow(series)

    def forget(self, rows: Rows) -> None:
        """Reset series, for reuse under another name."""
        for part in self._parts:
            for adaptive in part:
                adaptive.forget(rows)

    @property
    def outcomes(self) -> NDArray[np.int32]:
        """Scores in the window of each series and horizon. Shape [series, horizons]."""
        return np.stack([part[0].history for part in self._parts], axis=1)

    def margins(self) -> F64:
        """Margins on the roots in their units: [series, horizons, levels], 0 at the median and below."""
        return np.stack([self.margins_at(horizon) for horizon in range(len(self.steps))], axis=1)

    def margins_at(self, horizon: int) -> F64:
        """`margins` of one horizon. Shape [series, levels]."""
        part = self._parts[horizon]
        found = np.zeros((part[0].groups, len(self.levels)))
        for place, adaptive in zip(self._upper, part, strict=True):
            found[:, place] = adaptive.margin()[:, 0]
        return found

    def learn(self, horizon: int, rows: Rows, raw: F64, root: F64, came: F64, margins: F64) -> None:
        """Take in the outcomes `came` [n] for the forecasts `raw` [n, levels] of `rows` with the `margins` [n, levels]
        of that time.
        """
        known = ~np.isnan(raw).any(axis=1) & ~np.isnan(came)
        rows, raw, root, came, margins = rows[known], raw[known], root[known], came[known], margins[known]
        if not len(rows):
            return
        scores = (np.sqrt(came)[:, None] - np.sqrt(raw)) / units(raw, root)[:, None]
        for place, adaptive in zip(self._upper, self._parts[horizon], strict=True):
            adaptive.learn(rows, scores[:, place], margins[:, [place]])


def states_spread(raw: F64) -> Bools:
    """True for forecasts `raw` [series, origins, horizons, levels] of distinct quantiles. Shape [series, horizons]."""
    with np.errstate(invalid="ignore"):
        return np.asarray((raw[..., -1] > raw[..., 0]).any(axis=1))


def units(raw: F64, root: F64) -> F64:
    """Unit of the scores of forecasts `raw` [..., levels], lowest level first, of series with `root` of usual
    demand.
    """
    spread = np.sqrt(raw[..., -1]) - np.sqrt(raw[..., 0])
    return np.asarray((1.0 - SPREAD_SHARE) * root + SPREAD_SHARE * spread)


def promised(raw: F64, margins: F64, root: F64) -> F64:
    """Upper quantiles from a model's `raw` ones [..., levels], the margins, and the `usual` demand's root [...].

    NaN if the model abstains or a margin is infinite (too little data for that level).
    """
    with np.errstate(invalid="ignore", over="ignore"):
        roots = np.sqrt(raw) + margins * units(raw, root)[..., None]
        return rising(np.maximum(roots, 0.0) ** 2)


def replayed(layer: Layer, raw: F64, came: F64, root: F64, *, refresh: int = 1) -> F64:
    """Promises for a row of origins, each outcome learned once it is known. Margins are renewed every `refresh` steps.

    `raw` [series, origins, horizons, levels], `came` [series, origins, horizons], `root` [series]. Shape of `raw`.
    """
    found = np.full(raw.shape, np.nan)
    rows = np.arange(len(raw), dtype=np.int64)
    given = np.full(raw.shape, np.nan)
    margins = np.zeros((0, 0, 0))
    for origin in range(raw.shape[1]):
        for horizon, ahead in enumerate(layer.steps):
            then = origin - ahead
            if then >= 0:
                layer.learn(horizon, rows, raw[:, then, horizon], root, came[:, then, horizon], given[:, then, horizon])
        if origin % refresh == 0:
            margins = layer.margins()
        given[:, origin] = margins
        found[:, origin] = promised(raw[:, origin], margins, np.repeat(root[:, None], len(layer.steps), axis=1))
    return found
