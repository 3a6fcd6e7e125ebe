"""Sums of spans of time: their GPUs at a time, and their area."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Span = tuple[float, float, float]
"""(from, to, GPUs)."""
Steps = tuple[F64, F64]
"""Times in ascending order, and the value from each time on; before the first it is 0."""


def area_gpu_s(spans: Sequence[Span], until_s: float) -> float:
    """GPU-seconds of the spans up to a time."""
    return float(sum(max(min(to_s, until_s) - from_s, 0.0) * gpus for from_s, to_s, gpus in spans))


def steps_of(spans: Sequence[Span], until_s: float) -> Steps:
    """The GPUs held by the spans together."""
    changes = [
        change
        for from_s, to_s, gpus in spans
        if min(to_s, until_s) > from_s
        for change in ((from_s, gpus), (to_s, -gpus))
    ]
    return sums_of(changes, until_s)


def sums_of(changes: Sequence[tuple[float, float]], until_s: float) -> Steps:
    """The running sum of (time, change) pairs in any order."""
    if not changes:
        return np.zeros(1), np.zeros(1)
    times, each = np.array(sorted(changes), float).T
    return np.minimum(times, until_s), np.cumsum(each)


def value_at(steps: Steps, at_s: F64) -> F64:
    """The value from each of these times on."""
    place = np.searchsorted(steps[0], at_s, side="right") - 1
    return np.where(place >= 0, steps[1][np.maximum(place, 0)], 0.0)


def together(steps: Sequence[Steps], until_s: float) -> tuple[F64, list[F64]]:
    """The lengths of the intervals without any of these changes, up to a time, and the values of each in them."""
    at_s = np.unique(np.concatenate([each[0] for each in steps] + [np.array([0.0, until_s])]))
    at_s = at_s[(at_s >= 0.0) & (at_s <= until_s)]
    return np.diff(at_s), [value_at(each, at_s[:-1]) for each in steps]
