"""The mix of demand: arriving gangs by size and MIG profile, pool and hour of the day.

Arrivals are Poisson with a separate rate for each pool and hour of the day, and each is of one kind. The uncertainty of
a rate is a gamma distribution and of the kinds a Dirichlet (the conjugate priors), so that the number of arrivals
is close to negative binomial. An hour of the day without data uses its pool, and a pool without data uses all pools
(empirical Bayes). Old arrivals decay with a half-life. Arrivals in clusters spread wider than Poisson; the factor is
learned from past forecasts (a quasi-Poisson factor; Wedderburn 1974).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.errors import invariant
from autopilot.core.model.snapshot import F64, I32, I64, Bools

HOUR_S = 3600.0
HOURS = 24
HALF_LIFE_S = 7 * 24 * HOUR_S
"""A week: the mix follows a new project within days, and a quiet weekend does not erase it."""

COURSE_ARRIVALS = 4.0
"""Arrivals at which an hour of the day counts as much as its pool: the shape of a gamma prior with a standard
deviation of half the mean, about that of a rate that is 0.8 higher by day and 0.8 lower by night."""

POOL_ARRIVALS = 1.0
"""Arrivals at which a pool counts as much as all pools: pools differ by their whole mean."""

MIX_ARRIVALS = 10.0
"""Arrivals at which the kinds of a pool and hour count as much as those of its pool, and of all pools."""

LEAST_H = 1.0
"""Minimum hours of data for a forecast."""

SPREAD_H = 24.0
"""Number of past forecast hours at which the learned spread counts as much as the assumed one."""

FIRST_SPREAD = 2.0
"""Variance over mean that is assumed at first: gangs are submitted in twos and threes."""

LARGEST_GANG = 1024


def gang_sizes() -> tuple[int, ...]:
    """The size classes of gangs: powers of two up to `LARGEST_GANG` GPUs."""
    return tuple(2**power for power in range(LARGEST_GANG.bit_length()))


def size_kind(gpus: I32) -> I32:
    """The index in `gang_sizes` of each gang: the smallest sufficient size. [gangs]; larger ones are the largest."""
    power = np.ceil(np.log2(np.maximum(np.asarray(gpus, float), 1.0)))
    return np.asarray(np.minimum(power, LARGEST_GANG.bit_length() - 1), np.int32)


@dataclass(frozen=True, slots=True)
class MixForecast:
    """Expected arrivals in [from_s, to_s).

    `expected` [pools, kinds] arrivals; `counts` [pools, kinds, levels] their quantiles; `shares` [pools, kinds] the
    expected fraction of each kind among the arrivals, `share_bounds` [pools, kinds, levels] its quantiles. Rows are NaN
    where `known` is False: less than an hour of data. `watched_h` [pools]: decayed hours of data.
    """

    from_s: float
    to_s: float
    kinds: tuple[str, ...]
    levels: tuple[float, ...]
    expected: F64
    counts: F64
    shares: F64
    share_bounds: F64
    known: Bools
    watched_h: F64
    spread: float  # variance over mean of the arrivals in an hour


class DemandMix:
    """Learns arrivals window by window and forecasts the next."""

    name = "mix"

    def __init__(self, pools: int, kinds: Sequence[str], half_life_s: float = HALF_LIFE_S) -> None:
        self.kinds = tuple(kinds)
        self._half_life_s = half_life_s
        self._arrived = np.zeros((pools, HOURS, len(self.kinds)))  # decayed arrivals
        self._watched_h = np.zeros(HOURS)  # decayed hours; all pools are observed together
        self._now_s: float | None = None
        self._open_s: float | None = None  # start of the current hour
        self._open_arrived = np.zeros(pools)
        self._open_expected = np.full(pools, np.nan)
        self._error, self._weight = FIRST_SPREAD * SPREAD_H, SPREAD_H

    def grow(self, pools: int, kinds: Sequence[str]) -> None:
        """Add pools and kinds without arrivals, behind those that it has."""
        more_pools, more_kinds = pools - len(self._arrived), len(kinds) - len(self.kinds)
        invariant(more_pools >= 0 and tuple(kinds[: len(self.kinds)]) == self.kinds, "mix: it only grows")
        self.kinds = tuple(kinds)
        self._arrived = np.pad(self._arrived, ((0, more_pools), (0, 0), (0, more_kinds)))
        self._open_arrived = np.pad(self._open_arrived, (0, more_pools))
        self._open_expected = np.pad(self._open_expected, (0, more_pools), constant_values=np.nan)

    @property
    def spread(self) -> float:
        """Variance over mean of the arrivals of an hour; at least 1, that of Poisson."""
        return max(self._error / self._weight, 1.0)

    def learn(self, to_s: float, at_s: F64, pool: I32, kind: I32) -> None:
        """Take in all arrivals since the last call, up to `to_s`; no arrivals are information, too.

        `at_s`, `pool`, `kind` are [arrivals]; each lies after the last call's end (the first call's window begins with
        its first arrival, or is empty). A clock that goes backwards teaches nothing.
        """
        times = np.asarray(at_s, float)
        pools, kinds = np.asarray(pool, np.int64), np.asarray(kind, np.int64)
        invariant(len(times) == len(pools) == len(kinds), "mix: each arrival has a time, a pool and a kind")
        inside = (pools >= 0) & (pools < len(self._arrived)) & (kinds >= 0) & (kinds < len(self.kinds))
        invariant(bool(inside.all()), "mix: an arrival has an unknown pool or kind")
        if self._now_s is None:
            self._now_s = float(times.min()) if len(times) else to_s
        if not np.isfinite(to_s) or to_s <= self._now_s:
            return
        wanted = (times >= self._now_s) & (times < to_s)
        times, pools, kinds = times[wanted], pools[wanted], kinds[wanted]
        while self._now_s < to_s:
            end_s = min((np.floor(self._now_s / HOUR_S) + 1) * HOUR_S, to_s)
            part = (times >= self._now_s) & (times < end_s)
            self._hour(end_s, pools[part], kinds[part])

    def _hour(self, end_s: float, pools: I64, kinds: I64) -> None:
        """Take in a stretch that lies within one hour."""
        assert self._now_s is not None  # noqa: S101 - set before
        start_s = float(np.floor(self._now_s / HOUR_S) * HOUR_S)
        if self._open_s != start_s:
            self._open_s = start_s
            self._open_arrived = np.zeros(len(self._arrived))
            whole = self._now_s == start_s and self._watched_h.sum() >= LEAST_H
            unknown = np.full(len(self._arrived), np.nan)
            self._open_expected = self._outlook(_hour_of(start_s))[0] if whole else unknown
        fade = 0.5 ** ((end_s - self._now_s) / self._half_life_s)
        self._arrived *= fade
        self._watched_h *= fade
        hour = _hour_of(start_s)
        np.add.at(self._arrived[:, hour], (pools, kinds), 1.0)
        self._watched_h[hour] += (end_s - self._now_s) / HOUR_S
        self._open_arrived += np.bincount(pools, minlength=len(self._arrived))
        self._now_s = end_s
        if end_s == start_s + HOUR_S and np.isfinite(self._open_expected).all():
            self._learn_spread()

    def _learn_spread(self) -> None:
        """Compare the past hour with its forecast."""
        fade = 0.5 ** (HOUR_S / self._half_life_s)
        expected = float(self._open_expected.sum())
        if expected > 0.0:
            wrong = float(((self._open_arrived - self._open_expected) ** 2).sum()) / expected
            self._error = self._error * fade + wrong
            self._weight = self._weight * fade + 1.0

    def _outlook(self, hour: int) -> tuple[F64, F64, F64]:
        """Arrivals of all kinds per hour of each pool at an hour of the day [pools], the arrivals that this is based on
        [pools], and the Dirichlet's concentration of their kinds [pools, kinds].
        """
        watched = max(float(self._watched_h.sum()), 1e-9)
        by_pool = self._arrived.sum(axis=1)  # pools, kinds
        everywhere = by_pool.sum(axis=0)
        usual_share = (everywhere + 1e-9) / (everywhere + 1e-9).sum()
        usual = everywhere.sum() / (watched * max(len(by_pool), 1))
        of_pool = (by_pool.sum(axis=1) + POOL_ARRIVALS) / (watched + POOL_ARRIVALS / max(usual, 1e-9))
        share = (by_pool + MIX_ARRIVALS * usual_share) / (by_pool.sum(axis=1, keepdims=True) + MIX_ARRIVALS)
        here = self._arrived[:, hour]
        behind = here.sum(axis=1) + COURSE_ARRIVALS
        total = of_pool * behind / (of_pool * self._watched_h[hour] + COURSE_ARRIVALS)
        return total, behind, here + MIX_ARRIVALS * share

    def forecast(self, from_s: float, to_s: float, levels: tuple[float, ...] = (0.5, 0.9, 0.99)) -> MixForecast:
        """Expected arrivals in [from_s, to_s), at most a week."""
        from scipy.special import betaincinv
        from scipy.stats import nbinom

        invariant(from_s < to_s <= from_s + 7 * 24 * HOUR_S, "mix: a forecast is for up to a week")
        mean, variance, concentration = self._moments(from_s, to_s)
        watched = float(self._watched_h.sum())
        known = np.full(len(mean), watched >= LEAST_H)
        alpha = np.maximum(concentration, 1e-6)
        total = alpha.sum(axis=1, keepdims=True)
        asked = np.asarray(levels)
        # a negative binomial of this mean and variance; its variance lies above its mean
        excess = np.maximum(variance, mean * 1.0001 + 1e-12)
        chance = np.clip(mean / excess, 1e-9, 1 - 1e-9)
        number = np.maximum(mean * chance / (1 - chance), 1e-9)
        counts = nbinom.ppf(asked, number[..., None], chance[..., None])
        bounds = betaincinv(alpha[..., None], np.maximum(total - alpha, 1e-6)[..., None], asked)
        row = known[:, None]
        return MixForecast(
            from_s,
            to_s,
            self.kinds,
            levels,
            np.where(row, mean, np.nan),
            np.where(row[..., None], np.maximum(counts, 0.0), np.nan),
            np.where(row, alpha / total, np.nan),
            np.where(row[..., None], bounds, np.nan),
            known,
            np.full(len(mean), watched),
            self.spread,
        )

    def sample(self, from_s: float, to_s: float, draws: int, rng: np.random.Generator) -> I64:
        """Draws of possible arrivals in [from_s, to_s): [draws, pools, kinds]. Raises `InvariantError` before anything
        was learned.
        """
        invariant(self._watched_h.sum() >= LEAST_H, "mix: no data yet; request a forecast first")
        mean, variance, _ = self._moments(from_s, to_s)
        excess = np.maximum(variance, mean * 1.0001 + 1e-12)
        chance = np.clip(mean / excess, 1e-9, 1 - 1e-9)
        number = np.maximum(mean * chance / (1 - chance), 1e-9)
        return np.asarray(rng.negative_binomial(number, chance, (draws, *mean.shape)), np.int64)

    def _moments(self, from_s: float, to_s: float) -> tuple[F64, F64, F64]:
        """Mean and variance of the arrivals of each pool and kind, and the Dirichlet's concentration of the shares.

        The rate of a kind is the product of two independent unknowns: the rate of all (gamma) and its share (beta).
        """
        shape = (len(self._arrived), len(self.kinds))
        mean, unsure, alpha = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        weight = np.zeros(len(self._arrived))
        at_s = from_s
        while at_s < to_s:
            end_s = min((np.floor(at_s / HOUR_S) + 1) * HOUR_S, to_s)
            total, behind, concentration = self._outlook(_hour_of(at_s))
            total = total * (end_s - at_s) / HOUR_S
            whole = concentration.sum(axis=1, keepdims=True)
            share = concentration / whole
            expected = total[:, None] * share
            of_share = (1.0 - share) / (share * (whole + 1.0))
            mean += expected
            # the same unknowns apply to each hour of the window: deviations add, not variances
            unsure += expected * np.sqrt(1.0 / behind[:, None] + of_share)
            heavy = np.maximum(total, 1e-12)
            alpha += heavy[:, None] * concentration
            weight += heavy
            at_s = end_s
        return mean, self.spread * (mean + unsure**2), alpha / weight[:, None] / self.spread


def _hour_of(at_s: float) -> int:
    return int(at_s // HOUR_S) % HOURS
