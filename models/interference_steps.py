"""Did a replica become slower when a neighbour arrived? One window of minutes, judged as a whole. Pure.

A replica is compared with its siblings: their level moves with the load and the mix of requests as its own does, so
what is left of a rise is its own. The largest step of what is left must fall on the arrival.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.snapshot import F64, Bools

BEFORE_MIN, LEAST_BEFORE_MIN = 60, 6
"""Minutes before an arrival that are its reference, and the fewest since something else came or went."""
AROUND_MIN, REACH_MIN = 15, 12
EARLY_MIN, NEAR_MIN = 2, 4
"""Most minutes between the step and the arrival, either way (study, section 5)."""
LEAST_RISE = math.log(1.14)
LEAST_Z, LEAST_THIN_Z, THIN = 5.0, 3.3, 0.5
"""Least robust z; the second where less than half of the minutes have a latency, or nobody knows of how many requests:
the noise of single requests does not last.
"""
LEAST_PER_MIN = 6.0
"""Requests a minute below which a replica is sparse: 0.1 per second."""
LEAST_SEEN, LEAST_SEEN_BEFORE = 4, 5
"""Minutes with a latency after and before the arrival, below which it is sparse."""
MOST_MISSING = 1.0 / 3.0
"""Part of the minutes without any answer above which the window is a blackout."""
SHARP_MIN, SHARP = 8, math.log(1.15)
"""A sibling whose level before and after a minute differs by so much has changed sharply."""
LOAD_CHANGE = math.log(1.25)
"""Unless its requests changed by as much."""
HALF_REQUESTS = 10.0
"""Requests in a minute at which the noise of the requests is as large as that of the minutes."""
DISAGREE = 0.4
THIN_REACH_MIN = 10
LOAD_REACH_MIN, LEAST_LEARNED_MIN, MOST_SLOPE = 3, 60, 2.0
BLOCK_MIN, LEAST_BLOCKS = 5, 6
FLOOR = 0.02
"""Least noise of one minute: a level that never moves is rounded."""


@dataclass(frozen=True, slots=True)
class Step:
    """A rise that fell on an arrival. `rise` and `noise` are differences of mean log latency."""

    rise: float
    z: float
    own_before: float  # level of the replica before, log seconds
    against: str  # "siblings" or "load"
    offset: int = 0  # minutes from the arrival to the step


def weights(level: F64, requests: F64) -> F64:
    """How much each minute says: by its requests, 1 where they are unknown, 0 without a latency."""
    seen = np.isfinite(level)
    known = np.where(np.isfinite(requests), requests / (requests + HALF_REQUESTS), 1.0)
    return np.where(seen, known, 0.0)


def mean_of(values: F64, weight: F64) -> float:
    """The weighted mean of the values with a weight; NaN for none. The outer tenths are drawn in."""
    there = weight > 0
    if not there.any():
        return math.nan
    kept = values[there]
    if len(kept) > 4:
        ordered, outer = np.sort(kept), round(0.1 * (len(kept) - 1))
        kept = np.clip(kept, ordered[outer], ordered[-1 - outer])
    return float(kept @ weight[there] / weight[there].sum())


def smoothed(level: F64, weight: F64, reach: int) -> F64:
    """[series, minutes]: running weighted means over `reach` minutes to both sides; NaN where nothing is near."""
    kernel = np.ones(2 * reach + 1)
    filled = np.where(weight > 0, level, 0.0) * weight
    over = np.array([np.convolve(each, kernel, "same") for each in filled])
    under = np.array([np.convolve(each, kernel, "same") for each in weight])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(under > 0, over / under, np.nan)


def median_by_minute(rows: F64) -> F64:
    """The median over the rows with a value; NaN for none."""
    ordered = np.sort(rows, axis=0)
    count = np.isfinite(rows).sum(axis=0)
    minutes = np.arange(rows.shape[1])
    low, high = np.maximum(count - 1, 0) // 2, count // 2
    middle = 0.5 * (ordered[low, minutes] + ordered[np.minimum(high, len(rows) - 1), minutes])
    return np.where(count > 0, middle, np.nan)


def scale_of(values: F64) -> float:
    """Robust standard deviation of values around 0; 0 for none."""
    seen = values[np.isfinite(values)]
    return 1.4826 * float(np.median(np.abs(seen))) if len(seen) else 0.0


def noise_of(rest: F64, weight: F64) -> float:
    """Robust standard deviation of one minute, by differences: other steps do not count. Noise that lasts counts more.

    Means over five minutes of independent minutes vary by the root of a fifth; what they vary more is noise that lasts.
    """
    minute = scale_of(np.diff(rest[weight > 0])) / math.sqrt(2.0)
    blocks = len(rest) // BLOCK_MIN
    cut, cut_weight = (each[len(rest) - BLOCK_MIN * blocks :].reshape(blocks, BLOCK_MIN) for each in (rest, weight))
    under = cut_weight.sum(axis=1)
    means = (cut * cut_weight).sum(axis=1)[under > 0] / under[under > 0]
    lasting = scale_of(np.diff(means)) / math.sqrt(2.0) * math.sqrt(BLOCK_MIN) if len(means) > LEAST_BLOCKS else 0.0
    return max(minute, lasting, FLOOR)


def largest_step(rest: F64, weight: F64, at: int) -> int:
    """The minute from which on the level is highest against before, among those around the arrival; -1 for none.

    It weighs the minutes on both sides, so that a step near the end of what is known does not count more.
    """
    first, last = max(at - AROUND_MIN, 1), min(at + AROUND_MIN, len(rest) - 1)
    best, most = -1, -math.inf
    for begin in range(first, last + 1):
        left, right = slice(max(begin - REACH_MIN, 0), begin), slice(begin, begin + REACH_MIN)
        early, late = weight[left].sum(), weight[right].sum()
        if early > 0 and late > 0:
            gap = (weight[right] @ rest[right]) / late - (weight[left] @ rest[left]) / early
            score = gap * math.sqrt(early * late / (early + late))
            if score > most:
                best, most = begin, score
    return best


def without_load(level: F64, requests: F64, learn: slice) -> F64:
    """[minutes]: the level of a replica without what follows from its load, by its own history in `learn`.

    The load is the requests over a little more than the most that there were; the level grows with log 1/(1 - load).
    """
    known = np.isfinite(requests)
    if not known.any():
        return level
    calm = smoothed(np.where(known, requests, 0.0)[None], known.astype(float)[None], LOAD_REACH_MIN)[0]
    load = -np.log1p(-np.clip(calm / max(1.25 * float(np.nanquantile(calm, 0.99)), 1e-9), 0.0, 0.95))
    load = np.where(np.isfinite(load), load, 0.0)
    return level - _slope(level[learn], load[learn], weights(level[learn], requests[learn])) * load


def _slope(level: F64, load: F64, weight: F64) -> float:
    """How the level of a replica grows with its load; never falling."""
    there = weight > 0
    if there.sum() < LEAST_LEARNED_MIN:
        return 0.0
    x, y, w = load[there], level[there], weight[there]
    x, y = x - np.average(x, weights=w), y - np.average(y, weights=w)
    spread = float(np.average(x * x, weights=w))
    return min(max(float(np.average(x * y, weights=w)) / spread, 0.0), MOST_SLOPE) if spread > 1e-4 else 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """The minutes around one arrival: [minutes], siblings [siblings, minutes]. `at` is the place of the arrival.

    `since` is the place from which the minutes before count: what else arrived or left. `alone` is `own` without load,
    for a replica without siblings.
    """

    own: F64
    requests: F64
    siblings: F64
    sibling_requests: F64
    at: int
    since: int = 0
    alone: F64 | None = None


def step_at(window: Window) -> Step | str | None:
    """The step that fell on the arrival, why it cannot be judged, or None for no step."""
    weight = weights(window.own, window.requests)
    whole = weight.copy()
    weight[: window.since] = 0.0
    before, after = np.zeros(len(weight)), np.zeros(len(weight))
    before[: window.at], after[window.at + 1 :] = weight[: window.at], weight[window.at + 1 :]
    if reason := _unfit(window, before, after):
        return reason
    base, against, changes = _base(window)
    there = np.where(np.isfinite(base), weight, 0.0)
    own = window.own if against == "siblings" or window.alone is None else window.alone
    rest = np.where(whole > 0, own - np.where(np.isfinite(base), base, 0.0), 0.0)
    before, after = np.minimum(before, there), np.minimum(after, there)
    if (before > 0).sum() < LEAST_SEEN_BEFORE or (after > 0).sum() < LEAST_SEEN:
        return "sparse"
    rise = mean_of(rest, after) - mean_of(rest, before)
    noise = noise_of(rest[: window.at], np.where(np.isfinite(base), whole, 0.0)[: window.at])
    z = rise / (noise * math.sqrt(1.0 / _count(after) + 1.0 / _count(before)))
    thin = bool(np.mean(there[window.since :] > 0) < THIN) or not _counted(window)
    if rise < LEAST_RISE or z < (LEAST_THIN_Z if thin else LEAST_Z):
        return "sparse" if thin and rise >= LEAST_RISE else None
    if len(changes) > 1 and np.median(np.abs(changes - np.median(changes))) > DISAGREE * rise:
        return "siblings-disagree"
    begins = largest_step(rest, there, window.at)
    gap = _gap_around(there, window.at)
    if not -max(EARLY_MIN, gap) <= begins - window.at <= max(NEAR_MIN, gap):
        return None
    if released(window, rise):
        return "release"
    return Step(rise, z, mean_of(window.own, before), against, begins - window.at)


def _unfit(window: Window, before: F64, after: F64) -> str:
    if window.at - window.since < LEAST_BEFORE_MIN:
        return "short"
    silent = ~np.isfinite(window.own) & ~np.isfinite(window.requests)
    cut = silent[window.since :]
    if cut.mean() > MOST_MISSING or silent[window.at + 1 :].mean() > MOST_MISSING:
        return "blackout"
    if (before > 0).sum() < LEAST_SEEN_BEFORE or (after > 0).sum() < LEAST_SEEN:
        return "sparse"
    few = _counted(window) and float(np.nanmean(window.requests[window.since :])) < LEAST_PER_MIN
    return "sparse" if few else ""


def _counted(window: Window) -> bool:
    """True if the requests behind every latency are known."""
    return bool(np.isfinite(window.requests[np.isfinite(window.own)]).all())


def _base(window: Window) -> tuple[F64, str, F64]:
    """What a replica is compared with by minute, what that is, and how each sibling changed at the arrival."""
    weight = weights(window.siblings, window.sibling_requests) if len(window.siblings) else window.siblings
    usable, changes = [], []
    for row, each in enumerate(weight):
        early, late = np.zeros(len(each)), np.zeros(len(each))
        early[window.since : window.at], late[window.at + 1 :] = each[window.since : window.at], each[window.at + 1 :]
        if (early > 0).sum() >= LEAST_SEEN_BEFORE and (late > 0).sum() >= LEAST_SEEN:
            level = mean_of(window.siblings[row], early)
            usable.append(window.siblings[row] - level)
            changes.append(mean_of(window.siblings[row], late) - level)
    if len(usable) < 2:
        return np.zeros(len(window.own)), "load", np.array(changes)
    rows = np.array(usable)
    dense = np.isfinite(rows[:, window.since :]).mean() > 0.8
    return (
        median_by_minute(smoothed(rows, np.isfinite(rows).astype(float), 0 if dense else THIN_REACH_MIN)),
        "siblings",
        np.array(changes),
    )


def released(window: Window, rise: float) -> bool:
    """True if half of the siblings changed as sharply as the replica rose, at once or one after another."""
    if not len(window.siblings):
        return False
    from_ = max(window.since, window.at - 20 - SHARP_MIN)
    level, requests = window.siblings[:, from_:], window.sibling_requests[:, from_:]
    weight = weights(level, requests)
    steps, seen = _sharp(level, weight)
    with np.errstate(invalid="ignore", divide="ignore"):
        loads, _ = _sharp(np.log(np.maximum(requests, 1.0)), np.isfinite(requests).astype(float))
    noise = np.array(
        [scale_of(np.diff(np.where(one > 0, each, np.nan))) for each, one in zip(level, weight, strict=True)]
    )
    least = np.maximum(max(SHARP, 0.5 * rise), 4.0 * noise / math.sqrt(2.0) * math.sqrt(2.0 / SHARP_MIN))
    sharp = seen & (steps >= least[:, None]) & ~(np.abs(loads) >= LOAD_CHANGE)
    return bool(2 * sharp.any(axis=1).sum() > len(level))


def _sharp(level: F64, weight: F64) -> tuple[F64, Bools]:
    """[series, minutes]: mean of the minutes from each on minus that of those before it; where both are seen."""
    value = np.where(weight > 0, level, 0.0) * weight
    sums, under = (np.cumsum(np.pad(each, ((0, 0), (1, 0))), axis=1) for each in (value, weight))
    reach = SHARP_MIN
    if level.shape[1] < 2 * reach:
        return np.zeros((len(level), 0)), np.zeros((len(level), 0), np.bool_)
    middle = slice(reach, -reach)
    low, high = slice(None, -2 * reach), slice(2 * reach, None)
    before, after = under[:, middle] - under[:, low], under[:, high] - under[:, middle]
    with np.errstate(invalid="ignore", divide="ignore"):
        change = (sums[:, high] - sums[:, middle]) / after - (sums[:, middle] - sums[:, low]) / before
    seen = (before > 0) & (after > 0)
    return np.where(seen, change, 0.0), seen


def _count(weight: F64) -> float:
    """Minutes of full weight that these are worth."""
    total = float(weight.sum())
    return total * total / float((weight * weight).sum()) if total > 0 else 0.0


def _gap_around(weight: F64, at: int) -> int:
    """Minutes from the arrival to the farther of the nearest latencies before and after it."""
    seen = np.flatnonzero(weight > 0)
    left, right = seen[seen <= at], seen[seen > at]
    return int(max(at - left[-1] if len(left) else 0, right[0] - at if len(right) else 0))
