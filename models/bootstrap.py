"""Paired block bootstrap of a ratio of mean losses, and of a coverage.

Losses of neighbouring origins are dependent, so whole stretches of time are drawn, not single origins (Künsch 1989);
the stretches wrap around the end (Politis and Romano 1992), so every origin is equally likely. Losses of two
models at one time are drawn together: the comparison is paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import ndtr

from autopilot.core.model.snapshot import F64, I64

DRAWN_AT_ONCE = 2_000_000
"""Blocks drawn in one array: bounds the memory of a resampling to some tens of MiB."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Losses of two models summed by the time of their origins.

    `time_s`, `one`, `other` and `origins` are [times]; times are distinct and rising.
    """

    time_s: F64
    one: F64
    other: F64
    origins: I64

    @classmethod
    def of(cls, time_s: F64, one: F64, other: F64) -> Sums:
        """Sum up losses [origins] made at `time_s` [origins], non-decreasing; NaN is left out of both."""
        judged = ~(np.isnan(one) | np.isnan(other))
        times, at = np.unique(np.asarray(time_s, float)[judged], return_inverse=True)
        count = len(times)
        return cls(
            times,
            np.asarray(np.bincount(at, np.asarray(one, float)[judged], count), float),
            np.asarray(np.bincount(at, np.asarray(other, float)[judged], count), float),
            np.bincount(at, minlength=count),
        )

    @property
    def ratio(self) -> float:
        """Mean loss of the one over that of the other; 1 if both are zero, infinite if only the other is."""
        return float(_ratios(np.array([self.one.sum()]), np.array([self.other.sum()]))[0])

    def cut(self, begin: int, end: int) -> Sums:
        """The times in [begin, end)."""
        part = slice(begin, end)
        return Sums(self.time_s[part], self.one[part], self.other[part], self.origins[part])


def window_edges(time_s: F64, windows: int) -> list[tuple[int, int]]:
    """[begin, end) of the parts of `time_s` (non-decreasing) in `windows` equal spans of time.

    A part may be empty. No times: no parts.
    """
    if len(time_s) == 0:
        return []
    cuts = np.linspace(time_s[0], time_s[-1], windows + 1)[1:-1]
    inner = np.searchsorted(time_s, cuts, side="left").tolist()
    edges = [0, *inner, len(time_s)]
    return list(pairwise(edges))


def ratio_bounds(
    sums: Sums, overlap_s: float, error_ratio: float, resamples: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Lower and upper bound of the ratio of mean losses, each wrong with probability `error_ratio`.

    Percentiles of the resampled ratio. With fewer than two blocks: (0, infinite).
    """
    drawn = _draw((sums.one, sums.other), block_length(sums.time_s, overlap_s), resamples, rng)
    if drawn is None:
        return 0.0, float("inf")
    ratios = _ratios(drawn[0], drawn[1])
    # the nearest draw instead of an interpolation: one of two neighbours may be infinite
    low = np.quantile(ratios, error_ratio, method="lower")
    high = np.quantile(ratios, 1.0 - error_ratio, method="higher")
    return float(low), float(high)


def chance_not_behind(sums: Sums, overlap_s: float, resamples: int, rng: np.random.Generator) -> float:
    """The probability of a ratio this high if the one loses no more than the other.

    The log of the resampled ratio is taken as normal, so that probabilities far below 1 / resamples can be computed, as
    many comparisons need. 1 with fewer than two blocks.
    """
    drawn = _draw((sums.one, sums.other), block_length(sums.time_s, overlap_s), resamples, rng)
    if drawn is None:
        return 1.0
    ratios = _ratios(drawn[0], drawn[1])
    if not np.isfinite(ratios).all() or not (ratios > 0.0).all():
        return float((np.count_nonzero(ratios <= 1.0) + 1) / (resamples + 1))
    logs = np.log(ratios)
    spread = float(logs.std())
    if spread == 0.0:
        return 0.0 if sums.ratio > 1.0 else 1.0
    return float(ndtr(-np.log(sums.ratio) / spread))


def coverage_bound(
    time_s: F64, covered: F64, overlap_s: float, error_ratio: float, resamples: int, rng: np.random.Generator
) -> float:
    """Upper bound of the share of `covered` [origins] (1 or 0), wrong with probability `error_ratio`.

    1 with fewer than two blocks.
    """
    sums = Sums.of(time_s, covered, np.ones(len(covered)))
    drawn = _draw((sums.one, sums.other), block_length(sums.time_s, overlap_s), resamples, rng)
    if drawn is None:
        return 1.0
    return float(np.quantile(drawn[0] / drawn[1], 1.0 - error_ratio, method="higher"))


def block_length(time_s: F64, overlap_s: float) -> int:
    """Times in a block: the cube root of all (the optimal rate of Hall, Horowitz and Jing 1995), at least
    as many as lie inside `overlap_s`.
    """
    count = len(time_s)
    if count < 2:
        return 1
    spacing_s = float(np.median(np.diff(time_s)))
    overlapping = int(np.ceil(overlap_s / spacing_s)) if spacing_s > 0 else 1
    return max(1, int(np.ceil(count ** (1 / 3))), min(overlapping, count))


def _draw(columns: Sequence[F64], block: int, resamples: int, rng: np.random.Generator) -> tuple[F64, ...] | None:
    """Sums of each column over resampled blocks, each [resamples]; None for fewer than two blocks."""
    count = len(columns[0])
    blocks = count // block
    if blocks < 2:
        return None
    in_blocks = [_block_sums(column, block) for column in columns]
    drawn: list[list[F64]] = [[] for _ in columns]
    at_once = max(1, DRAWN_AT_ONCE // blocks)
    for begin in range(0, resamples, at_once):
        starts = rng.integers(0, count, size=(min(at_once, resamples - begin), blocks))
        for parts, sums in zip(drawn, in_blocks, strict=True):
            parts.append(sums[starts].sum(axis=1))
    return tuple(np.concatenate(parts) for parts in drawn)


def _block_sums(values: F64, block: int) -> F64:
    """Sum of `block` values from each place on, around the end. Shape as `values`."""
    total = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[: block - 1]]))])
    return np.asarray(total[block:] - total[:-block])


def _ratios(one: F64, other: F64) -> F64:
    """The one over the other; 1 if both are 0, infinite if only the other is."""
    both = (one <= 0) & (other <= 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(both, 1.0, one / other)
