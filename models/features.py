"""Features of the global model of demand: a series relative to its recent past and its last days.

All are on the scale z = log(1 + y / scale), with `scale` the usual demand of the series, and most of them relative to
its exponential mean, so that services of every size are comparable.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter1d, minimum_filter1d

from autopilot.core.model.snapshot import F64, Bools
from models.baselines import exponential_means
from models.demand import DAY_S, Ask, carried

Rows = NDArray[np.int64]

RATE = 0.3
"""Weight of the newest value in the exponential mean that changes are measured from."""

SLOW_RATE = 0.05
"""Weight of the newest change in the measure of restlessness."""

LAGS = (0, 1, 2, 3, 6, 12)
WINDOWS = (3, 6, 18, 36)
DAYS = (1, 2, 3)
AROUND = 2
"""Steps on either side of the same time yesterday over which the maximum is taken."""

CELLS_AT_ONCE = 500
"""Cells whose past is extracted at once: three days of minutes of them are 17 MB."""

WARM_STEPS = 240
"""Steps before the first origin from which exponential means are computed."""


def at_cells(values: F64, scale: F64, rows: Rows, origins: Rows, steps: int, ask: Ask) -> dict[str, F64]:
    """All features of the horizon `steps` at single cells of `values` [series, steps], each [cells].

    `rows` and `origins` [cells] are the positions of the cells, `scale` [series] is the usual demand. Only the past
    needed by a cell is extracted from its series, so a fit on few of many cells computes nothing for the others.
    """
    reach = max(max(DAYS) * ask.day, ask.day + AROUND, WARM_STEPS)
    parts: list[dict[str, F64]] = []
    for begin in range(0, len(rows), CELLS_AT_ONCE):
        row, origin = rows[begin : begin + CELLS_AT_ONCE], origins[begin : begin + CELLS_AT_ONCE]
        cut = np.full((len(row), reach + 1), np.nan)
        for place, (series, column) in enumerate(zip(row.tolist(), origin.tolist(), strict=True)):
            back = min(column, reach)
            cut[place, reach - back :] = values[series, column - back : column + 1]
        shared = common(cut, scale[row], reach, ask, origin[:, None])
        columns = shared | ahead(cut, scale[row], shared["mean"], reach, steps, ask)
        parts.append({name: column[:, 0] for name, column in columns.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def names_of(ask: Ask) -> frozenset[str]:
    """Names of all features computed for `ask`."""
    nothing = np.zeros((1, 1))
    shared = common(nothing, np.ones(1), 0, ask)
    return frozenset(shared | ahead(nothing, np.ones(1), shared["mean"], 0, ask.steps[0], ask))


def common(values: F64, scale: F64, first: int, ask: Ask, gone: Rows | None = None) -> dict[str, F64]:
    """Features common to every horizon, each [series, origins]; `mean` is the reference of changes.

    `scale` [series] is the usual demand. Only the columns inside the windows are used. `gone`: steps of the series
    before each origin [series or 1, origins], if `values` are extracts.
    """
    if gone is None:
        gone = np.arange(first, values.shape[1])[None, :]
    start = max(0, first - max(WARM_STEPS, ask.day))
    z, at = np.log1p(carried(values[:, start:]) / scale[:, None]), first - start
    warm = max(0, at - WARM_STEPS)
    mean = np.asarray(exponential_means(z[:, warm:], np.array([RATE]))[0][:, at - warm :])
    found = {"mean": mean}
    for lag in LAGS:
        found[f"lag {lag}"] = _before(z, at, lag) - mean
    for width in (*WINDOWS, ask.day):
        whole = gone >= width - 1
        found[f"highest {width}"] = _window(z, at, width, whole, highest=True) - mean
        found[f"lowest {width}"] = _window(z, at, width, whole, highest=False) - mean
    for width in (6, 36, ask.day):
        average, spread = _moments(z, at, width, gone >= width - 1)
        found[f"average {width}"], found[f"spread {width}"] = average - mean, spread
    found["restless"] = _restless(z, at)
    angle = 2.0 * np.pi * gone * ask.step_s / DAY_S
    found["sine"] = np.broadcast_to(np.sin(angle), mean.shape)
    found["cosine"] = np.broadcast_to(np.cos(angle), mean.shape)
    return found


def ahead(values: F64, scale: F64, mean: F64, first: int, steps: int, ask: Ask) -> dict[str, F64]:
    """Features of one horizon: the same time on the days before, and its sequel."""

    def z_before(lag: int) -> F64:
        return np.asarray(np.log1p(_before(values, first, lag) / scale[:, None]))

    found = {}
    for days in DAYS:
        back = days * ask.day
        then = z_before(back - steps) if back > steps else np.full(mean.shape, np.nan)
        found[f"same {days}"] = then - mean
        found[f"change {days}"] = then - z_before(back)
    around = [z_before(ask.day - steps + side) for side in range(-AROUND, AROUND + 1) if ask.day - steps + side > 0]
    found["same highest"] = (np.max(around, axis=0) if around else np.full(mean.shape, np.nan)) - mean
    return found


def _before(z: F64, first: int, lag: int) -> F64:
    """Z `lag` steps before each origin, NaN before the start."""
    found = np.full((len(z), z.shape[1] - first), np.nan)
    begin = max(0, lag - first)
    if begin < found.shape[1]:
        found[:, begin:] = z[:, first + begin - lag : z.shape[1] - lag]
    return found


def _window(z: F64, first: int, width: int, whole: Bools, *, highest: bool) -> F64:
    """Highest or lowest z of the last `width` steps; NaN with a shorter history (`whole`) or without known values."""
    start = max(0, first - width + 1)
    near = z[:, start:]
    empty = -np.inf if highest else np.inf
    filled = np.where(np.isnan(near), empty, near)
    if z.shape[1] - first == 1:
        found = filled.max(axis=1) if highest else filled.min(axis=1)
        found = found[:, None]
    else:
        kernel = maximum_filter1d if highest else minimum_filter1d
        # the filter is centred; its origin moves it to end at the column
        found = kernel(filled, width, axis=1, origin=(width - 1) // 2, mode="constant", cval=empty)
        found = found[:, first - start :]
    return np.asarray(np.where(whole & np.isfinite(found), found, np.nan))


def _moments(z: F64, first: int, width: int, whole: Bools) -> tuple[F64, F64]:
    """Mean and standard deviation of the known values of the last `width` steps; NaN with a shorter history
    (`whole`).
    """
    start = max(0, first - width + 1)
    near = z[:, start:]
    known = ~np.isnan(near)
    filled = np.where(known, near, 0.0)

    def sums(part: F64) -> F64:
        if first - start == part.shape[1] - 1:  # one origin
            return np.asarray(part.sum(axis=1, keepdims=True))
        total = np.cumsum(np.pad(part, ((0, 0), (1, 0))), axis=1)
        last = np.arange(first - start, near.shape[1])
        return np.asarray(total[:, last + 1] - total[:, np.maximum(last + 1 - width, 0)])

    count = sums(known.astype(float))
    whole = whole & (count > 0.5)
    mean = sums(filled) / np.maximum(count, 1.0)
    spread = np.sqrt(np.maximum(sums(filled**2) / np.maximum(count, 1.0) - mean**2, 0.0))
    return np.where(whole, mean, np.nan), np.where(whole, spread, np.nan)


def _restless(z: F64, first: int) -> F64:
    """Root of the exponential mean of squared changes."""
    start = max(0, first - WARM_STEPS)
    changes = np.diff(z[:, start:], axis=1, prepend=np.nan) ** 2
    return np.asarray(np.sqrt(exponential_means(changes, np.array([SLOW_RATE]))[0][:, first - start :]))
