"""Rolling adaptive conformal calibration: nominal coverage, for any calibrated model.

A *score* is the distance of the outcome above the forecast, on a scale of comparable errors (square root for demand,
logarithm for time). A *margin* is added to the forecast on this scale so that a given share of outcomes stays below.
Margins are taken from the last scores of a group, and from those of all groups of its pool if its own cannot resolve
the level; the target level adapts with each miss (adaptive conformal inference: Gibbs and Candès, NeurIPS 2021, here on
the logarithm of the miss rate, so that it stays positive).

One `Adaptive` holds one score for each observation. A model with a score for each level has one `Adaptive` per level.
Feedback may come late and out of order: the caller passes each score with the margins of that time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autopilot.core.model.errors import invariant
from autopilot.core.model.snapshot import F64, I32

Scores = NDArray[np.float32] | F64

WINDOW = 500
"""Scores kept for each group: 300 to 2,000 by reference; short enough to follow a change of regime."""

BELIEF = 5.0
"""Scores beyond a level, in a group's window, at which its own quantile weighs as much as its pool's."""

PRIOR = 5.0
"""Scores at which a group's own scale weighs as much as its pool's."""

TAIL = 0.2
"""Fraction of the scores, the largest, from which a level that the window cannot resolve is extrapolated."""

TAIL_SCORES = 20
"""Minimum number of scores for extrapolation; below it the margin is infinite and the caller abstains."""

POOL_SCORES = 20_000
"""Maximum number of scores in a pool's quantiles: every k-th of the window, where there are more."""

WIDEST, NARROWEST = 12.0, -1.6
"""Bounds of the log of (nominal / target miss rate): from 160,000 times fewer to five times as many."""


def conformal_quantile(scores: ArrayLike, level: float, weights: ArrayLike | None = None) -> float:
    """The smallest score with at least `level` of the mass below or at it, the next score's own mass at infinity.

    Without weights: the ceil((n + 1) level)-th smallest of n. It covers an exchangeable next score with
    probability `level` or more (Vovk et al. 2005). With `weights` (covariate shift, or inverse probabilities of
    having been seen: Tibshirani et al., NeurIPS 2019) the next score has the mean weight. NaN scores are left out.
    Infinite if the scores are too few for the level.
    """
    values = np.asarray(scores, float).ravel()
    masses = np.ones(len(values)) if weights is None else np.asarray(weights, float).ravel()
    invariant(len(masses) == len(values), "each score needs its weight")
    kept = ~np.isnan(values) & (masses > 0.0)
    values, masses = values[kept], masses[kept]
    if not len(values):
        return float("inf")
    order = np.argsort(values, kind="stable")
    below = np.cumsum(masses[order])
    # slightly less, because (n + 1) level is seldom exact in floating point: 100 x 0.99 must give the 99th
    wanted = level * (below[-1] + masses.mean()) * (1.0 - 1e-12)
    place = int(np.searchsorted(below, wanted, side="left"))
    return float(values[order[place]]) if place < len(values) else float("inf")


class Adaptive:
    """Margins for `groups` x `levels` from rolling windows, with an adaptive miss rate.

    `pool` gives each group the number of its pool; by default all are in one. `comparable`: the scores of all
    groups are in the same unit, so a pool compares them as they are; otherwise each in units of its group's own mean
    absolute score. `belief` is `BELIEF` by default. `rate` is the step of the adaptive level for each level, in
    units of the miss rate (gamma of the paper). `overlap` is the number of scores of its group affected by one event
    (a forecast over h steps, made at every step, misses one burst up to h times): steps are divided by it.
    """

    def __init__(
        self,
        levels: Sequence[float],
        groups: int,
        *,
        window: int = WINDOW,
        pool: ArrayLike | None = None,
        rate: Sequence[float] | None = None,
        comparable: bool = False,
        belief: float = BELIEF,
        overlap: float = 1.0,
    ) -> None:
        self.levels = tuple(levels)
        invariant(
            all(0.0 < level < 1.0 for level in self.levels) and list(self.levels) == sorted(self.levels),
            "levels lie between 0 and 1 and rise",
        )
        self._nominal = 1.0 - np.asarray(self.levels)
        gamma = default_rate(self._nominal) if rate is None else np.asarray(rate, float)
        self._step = gamma / self._nominal / overlap
        self._window, self._comparable, self._belief = window, comparable, belief
        self._scores = np.full((0, window), np.nan, np.float32)
        self._weights: NDArray[np.float32] | None = None
        self._wider = np.zeros((0, len(self.levels)))
        self._count = np.zeros(0, np.int64)
        self._pool = np.zeros(0, np.int32)
        self._rows_of_pools: list[NDArray[np.intp] | slice] | None = None  # found when they are asked for
        self.grow(groups, pool)

    @property
    def groups(self) -> int:
        """The number of groups."""
        return len(self._count)

    @property
    def history(self) -> I32:
        """Scores in the window of each group. Shape [groups]."""
        return np.minimum(self._count, self._window).astype(np.int32)

    @property
    def miss_rate(self) -> F64:
        """The current target miss rate. Shape [groups, levels]."""
        return np.asarray(self._nominal * np.exp(-self._wider))

    def grow(self, groups: int, pool: ArrayLike | None = None) -> None:
        """Add `groups` groups without scores, of the given pools (all of pool 0 by default)."""
        pools = np.zeros(groups, np.int32) if pool is None else np.asarray(pool, np.int32)
        invariant(len(pools) == groups, "each group is in one pool")
        self._scores = np.vstack([self._scores, np.full((groups, self._window), np.nan, np.float32)])
        if self._weights is not None:
            self._weights = np.vstack([self._weights, np.ones((groups, self._window), np.float32)])
        self._wider = np.vstack([self._wider, np.zeros((groups, len(self.levels)))])
        self._count = np.concatenate([self._count, np.zeros(groups, np.int64)])
        self._pool = np.concatenate([self._pool, pools])
        self._rows_of_pools = None

    def forget(self, group: ArrayLike) -> None:
        """Reset the groups `group`, for reuse under another name."""
        rows = np.asarray(group, np.int64)
        self._scores[rows] = np.nan
        self._wider[rows] = 0.0
        self._count[rows] = 0
        self._pool[rows] = 0  # as a new group is
        self._rows_of_pools = None

    def learn(self, group: ArrayLike, scores: ArrayLike, promised: ArrayLike, weights: ArrayLike | None = None) -> None:
        """Take in `scores` [n] of the groups `group` [n], and the margins `promised` [n, levels] of that time.

        A group may occur several times, oldest first. A NaN score is ignored; if the promise is not finite the score
        enters the window and the level stays. `weights` [n] are inverse probabilities of being observed (1: all are).
        """
        rows, values = np.asarray(group, np.int64), np.asarray(scores, float)
        margins = np.asarray(promised, float).reshape(len(values), len(self.levels))
        masses = None if weights is None else np.asarray(weights, float)
        kept = ~np.isnan(values)
        if not kept.all():
            rows, values, margins = rows[kept], values[kept], margins[kept]
            masses = None if masses is None else masses[kept]
        for chosen in _rounds(rows):
            part = None if masses is None else masses[chosen]
            self._learn_once(rows[chosen], values[chosen], margins[chosen], part)

    def _learn_once(self, rows: NDArray[np.int64], values: F64, margins: F64, masses: F64 | None) -> None:
        """`learn` for groups with one score each."""
        place = self._count[rows] % self._window
        # beyond single precision a score only means "as large as can be"
        self._scores[rows, place] = _within(values, -1e30, 1e30)
        if masses is not None and self._weights is None:
            self._weights = np.ones(self._scores.shape, np.float32)
        if self._weights is not None:
            self._weights[rows, place] = 1.0 if masses is None else masses
        self._count[rows] += 1
        missed = values[:, None] > margins
        heavy = 1.0 if masses is None else (masses / max(float(masses.mean()), 1e-9))[:, None]
        moved = self._wider[rows] + heavy * self._step * (missed - self._nominal)
        settled = np.where(np.isfinite(margins), _within(moved, NARROWEST, WIDEST), self._wider[rows])
        self._wider[rows] = settled

    def margin(self) -> F64:
        """Margins [groups, levels], non-decreasing along a row; infinite if even the pool has too few scores."""
        if not self.groups:
            return np.zeros((0, len(self.levels)))
        rate = _within(self.miss_rate, 1e-12, 0.5 + 0.5 * self._nominal)
        scale = self._scale()
        pooled = np.full(rate.shape, np.inf)
        for rows in self._by_pool():
            pooled[rows] = self._pooled(rows, scale[rows], rate[rows])
        if np.isinf(self._belief):  # only the pool counts
            return np.asarray(np.maximum.accumulate(pooled, axis=1))
        own = _row_quantiles(*self._sorted(), rate)
        history = self.history[:, None]
        beyond = history * self._nominal
        share = np.where(history >= TAIL_SCORES, beyond / (beyond + self._belief), 0.0)
        with np.errstate(invalid="ignore"):
            mixed = share * np.where(share > 0.0, own, 0.0) + (1.0 - share) * pooled
        return np.asarray(np.maximum.accumulate(np.where(np.isfinite(pooled), mixed, pooled), axis=1))

    @property
    def _used(self) -> int:
        """Filled part of the window over all groups: everything behind is NaN."""
        return int(self.history.max(initial=0))

    def _sorted(self) -> tuple[Scores, F64 | None, F64]:
        """Windows in ascending order (NaN last), the weight up to each score (None: equal weights), and in total."""
        scores = self._scores[:, : self._used]
        if self._weights is None:
            return np.asarray(np.sort(scores, axis=1)), None, self.history.astype(float)
        order = np.argsort(scores, axis=1)
        ordered = np.take_along_axis(scores, order, axis=1)
        masses = np.where(np.isnan(ordered), 0.0, np.take_along_axis(self._weights, order, axis=1))
        below = np.cumsum(masses, axis=1)
        total = below[:, -1] if below.shape[1] else np.zeros(len(below))  # every group may have been forgotten
        return ordered, below, np.asarray(total, float)

    def _scale(self) -> F64:
        """Mean absolute score of each group, shrunk towards its pool's while it has few. Shape [groups]."""
        if self._comparable:
            return np.ones(self.groups)
        count = self.history.astype(float)
        size = np.nansum(np.abs(self._scores), axis=1, dtype=float)
        scale = np.ones(self.groups)
        for pool in np.unique(self._pool).tolist():
            rows = self._pool == pool
            seen = rows & (count > 0)
            usual = float(np.median(size[seen] / count[seen])) if seen.any() else 1.0
            scale[rows] = (size[rows] + PRIOR * usual) / (count[rows] + PRIOR)
        return np.maximum(scale, 1e-12)

    def _by_pool(self) -> list[NDArray[np.intp] | slice]:
        """Rows of the groups of each pool."""
        if self._rows_of_pools is None:
            pools = np.unique(self._pool).tolist()
            self._rows_of_pools = [slice(None)]
            if len(pools) > 1:
                self._rows_of_pools = [np.flatnonzero(self._pool == pool) for pool in pools]
        return self._rows_of_pools

    def _pooled(self, rows: NDArray[np.intp] | slice, scale: F64, rate: F64) -> F64:
        """Quantiles of all scores of one pool, each in units of its group's scale, converted to each group's scale."""
        stride = max(1, int(self.history[rows].sum()) // POOL_SCORES)
        used = self._used
        flat = self._scores[rows, :used].ravel()
        known = np.flatnonzero(~np.isnan(flat))[::stride]
        unit = 1.0 if self._comparable else scale[known // max(used, 1)]
        scores = np.asarray(flat[known] / unit)
        ordered = np.asarray(np.sort(scores))
        below = None
        if self._weights is not None:
            order = np.argsort(scores)
            below = np.cumsum(self._weights[rows, :used].ravel()[known][order], dtype=float)[None, :]
        total = np.array([len(known) if below is None or not len(known) else below[0, -1]], float)
        shape = rate.shape
        found = _row_quantiles(ordered[None, :], below, total, rate.reshape(1, -1)).reshape(shape)
        return np.asarray(found * scale[:, None])


def default_rate(miss_rate: F64) -> F64:
    """Steps of the adaptive level: 0.01 at 0.9 and 0.003 at 0.99 (measured on request traces), between
    and beyond by the power law through them.
    """
    return np.asarray(0.01 * (miss_rate / 0.1) ** np.log10(0.01 / 0.003))


def _row_quantiles(ordered: Scores, below: F64 | None, total: F64, rate: F64) -> F64:
    """Conformal quantiles at miss rates `rate` [rows, m] of rows of scores in rising order (NaN last).

    `below` is the weight up to each score (None: one each) and `total` the weight of a row. A rate beyond the
    row's resolution is extrapolated by the exponential tail of its largest scores (peaks over threshold: Pickands 1975,
    with shape 0), infinite below `TAIL_SCORES` scores.
    """
    count = (~np.isnan(ordered)).sum(axis=1) if ordered.size else np.zeros(len(ordered), np.int64)
    if not ordered.shape[1]:
        return np.full(rate.shape, np.inf)
    own = total / np.maximum(count, 1)
    wanted = (1.0 - rate) * (total + own)[:, None] * (1.0 - 1e-12)
    place = _places(below, wanted)
    last = np.maximum(count - 1, 0)[:, None]
    found = ordered[np.arange(len(ordered))[:, None], np.minimum(place, last)].astype(float)
    beyond = place > last
    rows = np.flatnonzero(beyond.any(axis=1))
    if len(rows):
        extended = _extended(ordered[rows], count[rows], rate[rows])
        found[rows] = np.where(beyond[rows], np.maximum(extended, found[rows]), found[rows])
    too_few = np.where(beyond, count[:, None] < TAIL_SCORES, count[:, None] == 0)
    return np.where(too_few, np.inf, found)


def _extended(ordered: Scores, count: NDArray[np.int64], rate: F64) -> F64:
    """Scores at miss rates `rate` [rows, m] beyond the largest of `count` [rows] in rising order (NaN last).

    The tail: mean excess over the threshold u; P(score > x) = mass * exp(-(x - u) / excess).
    """
    last = np.maximum(count - 1, 0)[:, None]
    start = np.minimum(np.ceil((1.0 - TAIL) * count).astype(np.int64)[:, None], last)
    threshold = ordered[np.arange(len(ordered))[:, None], np.maximum(start - 1, 0)].astype(float)
    inside = np.arange(ordered.shape[1]) >= start
    excess = np.where(inside & ~np.isnan(ordered), ordered - threshold, 0.0).sum(axis=1, keepdims=True)
    mean_excess = excess / np.maximum(count[:, None] - start, 1)
    mass = (count[:, None] - start) / np.maximum(count[:, None] + 1.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(threshold + mean_excess * np.log(np.maximum(mass, 1e-12) / rate))


def _places(below: F64 | None, wanted: F64) -> NDArray[np.int64]:
    """Index of the first score whose weight from below reaches `wanted`, one past the last if none does."""
    if below is None:
        return np.asarray(np.ceil(wanted - 1e-9).astype(np.int64) - 1)
    if len(below) == 1:
        return np.asarray(np.searchsorted(below[0], wanted[0], side="left")[None, :], np.int64)
    reached = [(below < wanted[:, [column]]).sum(axis=1) for column in range(wanted.shape[1])]
    return np.stack(reached, axis=1).astype(np.int64)


def _within(values: F64, least: float, most: ArrayLike) -> F64:
    """As `np.clip`, in a quarter of its time for the few values of a step."""
    return np.asarray(np.minimum(np.maximum(values, least), most))


def _rounds(rows: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """Positions of `rows` in rounds without a repeated row, the first occurrences first."""
    if (rows[1:] > rows[:-1]).all() or len(np.unique(rows)) == len(rows):
        return [np.arange(len(rows))]
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    start = np.maximum.accumulate(np.where(first, np.arange(len(rows)), 0))
    turn = np.empty(len(rows), np.int64)
    turn[order] = np.arange(len(rows)) - start
    return [np.flatnonzero(turn == each) for each in range(int(turn.max()) + 1)]


class Delivered:
    """Share of promises kept over the last days, for each group and level, from the promises as they were made."""

    DAYS = 6

    def __init__(self, groups: int, levels: int) -> None:
        self._kept = np.zeros((groups, levels, self.DAYS + 1))
        self._made = np.zeros((groups, levels, self.DAYS + 1))
        self._day = 0

    def grow(self, groups: int) -> None:
        """Add `groups` groups without promises."""
        more = np.zeros((groups, *self._kept.shape[1:]))
        self._kept, self._made = np.concatenate([self._kept, more]), np.concatenate([self._made, more])

    def forget(self, group: ArrayLike) -> None:
        """Reset the groups `group`, for reuse under another name."""
        rows = np.asarray(group, np.int64)
        self._kept[rows] = 0.0
        self._made[rows] = 0.0

    def note(self, now_s: float, group: ArrayLike, scores: ArrayLike, promised: ArrayLike) -> None:
        """Count promises `promised` [n, levels] against `scores` [n] arrived at `now_s`; NaN on either side: no
        promise.
        """
        values, margins = np.asarray(scores, float)[:, None], np.asarray(promised, float)
        self._turn(now_s)
        known = np.isfinite(margins) & ~np.isnan(values)
        place = self._day % (self.DAYS + 1)
        np.add.at(self._made[:, :, place], np.asarray(group, np.int64), known)
        np.add.at(self._kept[:, :, place], np.asarray(group, np.int64), known & (values <= margins))

    def ratio(self, now_s: float) -> F64:
        """Promises kept / made over the last week (today and six days before); NaN if none was made. Shape [groups,
        levels].
        """
        self._turn(now_s)
        made = self._made.sum(axis=2)
        return np.where(made > 0, self._kept.sum(axis=2) / np.maximum(made, 1.0), np.nan)

    @property
    def promises(self) -> F64:
        """Promises counted. Shape [groups, levels]."""
        return np.asarray(self._made.sum(axis=2))

    def _turn(self, now_s: float) -> None:
        """Clear the days passed since the last call; a backward clock is ignored."""
        day = int(now_s // 86_400.0)
        for passed in range(max(self._day + 1, day - self.DAYS), day + 1):
            self._kept[:, :, passed % (self.DAYS + 1)] = 0.0
            self._made[:, :, passed % (self.DAYS + 1)] = 0.0
        self._day = max(self._day, day)
