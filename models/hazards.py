"""Hazards of jobs by age, counted for each tenant and width, and the resulting index.

The hazard of an age bin is the number of jobs that ended in it divided by the time that jobs spent in it, in 1/s. Jobs
that have not ended, running, paused or preempted, count as time at risk (occurrence / exposure rates; piecewise
exponential model, Breslow 1974). The hazard of (tenant, width) is shrunk by one pseudo-event towards that of the
tenant, and that by one towards that of all jobs:

    h = (ended + 1) / (time at risk + 1 / h of the wider group)

The wider groups hold jobs of at least this width: a thousand tiny jobs of one GPU are no evidence for a gang of eight.
Names do not enter. Counts fade by half in `HALF_LIFE_S`.

The hazard index of a job of age a is the maximum over horizons t of P(it ends within t) / E[time spent within t], in
1/s: the Gittins index (Gittins 1979; Aalto, Ayesta and Righter 2009) under these hazards. It is evaluated at the lower
edge of the age bin, so that it changes a few dozen times in the life of a job. Horizons below `LEAST_HORIZON_S` are
left out: no gang is paused before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.snapshot import F64, I64

FIRST_EDGE_S, BINS = 30.0, 40
EDGES_S = np.concatenate([[0.0], FIRST_EDGE_S * np.sqrt(2.0) ** np.arange(BINS - 1)])
"""Lower edges of the age bins, in s: 0, 30 s, and each sqrt(2) times the one before, up to 182 days; the last is
open.
"""

WIDTH_S = np.append(np.diff(EDGES_S), np.inf)

FIRST_MEAN_S = 4 * 3600.0
"""Prior mean of the remaining run time: as long as the job has run so far (Lindy's law), but at least 4 h, as in
core/planning/ordering/job_order.py. It weighs as much as one event in each bin.
"""

FIRST_HAZARD = 1.0 / np.maximum(FIRST_MEAN_S, EDGES_S)

PSEUDO_EVENTS = 1.0
"""Weight of the wider group in each bin, in ended jobs."""

LEAST_HORIZON_S = 900.0
"""Shortest horizon of the index: the default of `preemption.min_runtime_s`, before which no gang is paused."""

HALF_LIFE_S = 30 * 86_400.0
"""Counts fade by half in this time. Measured as log score of the next jobs on the Philly file: P1 1.936 against 1.960
without fading, P2 .800 against .790.
"""

REFRESH_S = 3600.0
"""Age at which the hazards in use are renewed from the counts: an order does not change with every end."""

NEW_GROUP_S = 60.0
"""The same where a tenant or width is new."""

LEAST_ENDED = 10
"""Ended jobs of all tenants before anything is said."""

MOST_GROUPS = 20_000
"""Pairs of tenant and width kept at once, besides those of followed jobs: 40 bins x 2 columns x 8 bytes, 13 MB. Four
times that is needed while the hazards are renewed. Beyond it the counts of the less recently used half go to a nameless
tenant, by powers of two of the width.
"""

NAMELESS = ""

MOST_AGE_S = 1e9
"""An age above it, 32 years, is an error of its source."""


def bins_of(age_s: F64) -> I64:
    """The bin of each age. Shape of `age_s`."""
    return np.clip(np.searchsorted(EDGES_S, age_s, side="right") - 1, 0, BINS - 1)


def at_risk_s(age_s: F64) -> F64:
    """Time spent in each bin by jobs of this age. Shape [jobs, bins]."""
    return np.asarray(np.clip(age_s[:, None] - EDGES_S, 0.0, WIDTH_S))


def known_age_s(age_s: F64) -> F64:
    """Plausible ages; NaN for the others. Shape of `age_s`."""
    with np.errstate(invalid="ignore"):
        known: F64 = np.where((age_s >= 0.0) & (age_s <= MOST_AGE_S), age_s, np.nan)
    return known


@dataclass(frozen=True, slots=True)
class Counts:
    """Ended jobs and time at risk by group and age bin, both [groups, bins], of `tenant` and `width` [groups].

    A width is in thousandths of a GPU.
    """

    tenant: I64
    width: I64
    ended: F64
    risk_s: F64

    def hazards(self) -> F64:
        """Hazard of each group and bin, 1/s. Shape [groups, bins]."""
        every = _shrunk(*self._as_wide(np.zeros_like(self.tenant)), FIRST_HAZARD)
        tenant = _shrunk(*self._as_wide(self.tenant), every)
        return _shrunk(self.ended, self.risk_s, tenant)

    def _as_wide(self, owner: I64) -> tuple[F64, F64]:
        """Counts of all groups of the same `owner` [groups] that are at least as wide. Both [groups, bins]."""
        order = np.lexsort((-self.width, owner))
        owner, width = owner[order], self.width[order]
        new = np.append(True, owner[1:] != owner[:-1])
        first = np.flatnonzero(new)[np.cumsum(new) - 1]  # of the same owner
        last_alike = np.append((owner[1:] != owner[:-1]) | (width[1:] != width[:-1]), True)
        last = np.flatnonzero(last_alike)[np.searchsorted(np.flatnonzero(last_alike), np.arange(len(order)))]
        found = []
        for column in (self.ended, self.risk_s):
            total = np.cumsum(column[order], axis=0)
            before = np.where(first[:, None] > 0, total[first - 1], 0.0)
            answer = np.empty_like(total)
            answer[order] = np.maximum(total[last] - before, 0.0)
            found.append(answer)
        return found[0], found[1]


def _shrunk(ended: F64, risk_s: F64, wider: F64) -> F64:
    return np.asarray((ended + PSEUDO_EVENTS) / (risk_s + PSEUDO_EVENTS / wider))


def index_per_s(hazard: F64, age_s: F64, again_s: F64 | None = None) -> F64:
    """The hazard index of jobs of this age under `hazard` [jobs, bins], in 1/s. Shape [jobs].

    `again_s`: the time of a job to repeat lost progress first.

    Horizons are the upper edges of the bins at least `LEAST_HORIZON_S` away, and none: the job runs until it ends.
    """
    left_s = np.maximum(WIDTH_S - at_risk_s(age_s), 0.0)  # of each bin; inf in the open one
    with np.errstate(invalid="ignore"):
        passed = hazard * left_s
    lasting = np.exp(-np.cumsum(passed, axis=1))  # P(it outlives the bin)
    before = np.concatenate([np.ones((len(hazard), 1)), lasting[:, :-1]], axis=1)
    spent_s = np.cumsum(before * -np.expm1(-passed) / hazard, axis=1)
    if again_s is not None:
        spent_s = spent_s + again_s[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        far = np.cumsum(left_s, axis=1) >= LEAST_HORIZON_S
        ratio = np.where(far, (1.0 - lasting) / spent_s, 0.0)
    return np.asarray(ratio.max(axis=1))


def lasting_ratio(hazard: F64, age_s: F64) -> F64:
    """P(a job of this age outlives the lower edge of each bin). Shape [jobs, bins]; 1 up to its own bin."""
    left_s = np.maximum(WIDTH_S - at_risk_s(age_s), 0.0)
    passed = hazard[:, :-1] * left_s[:, :-1]
    gone = np.concatenate([np.zeros((len(hazard), 1)), np.cumsum(passed, axis=1)], axis=1)
    return np.asarray(np.exp(-gone))


def total_quantiles_s(hazard: F64, age_s: F64, levels: Sequence[float]) -> F64:
    """Quantiles of the total run time of jobs of this age. Shape [jobs, levels]; at least the age, rising.

    Inside a bin the hazard is constant: a quantile is where the cumulated hazard since `age_s` is -ln(1 - level).
    """
    gone = -np.log(np.maximum(lasting_ratio(hazard, age_s), 1e-300))
    target = -np.log1p(-np.asarray(levels))[None, :] * np.ones((len(hazard), 1))
    place = np.clip((gone[:, None, :] <= target[:, :, None]).sum(axis=2) - 1, 0, BINS - 1)
    place = np.maximum(place, bins_of(age_s)[:, None])
    rows = np.arange(len(hazard))[:, None]
    begin_s = np.maximum(EDGES_S[place], age_s[:, None])
    return np.asarray(begin_s + np.maximum(target - gone[rows, place], 0.0) / hazard[rows, place])


class Groups:
    """The counts of each (tenant, width)."""

    def __init__(self) -> None:
        self._row: dict[tuple[str, int], int] = {}
        self._ended = np.zeros((64, BINS))
        self._risk_s = np.zeros((64, BINS))
        self._used = np.zeros(64, np.int64)
        self._clock = 0
        self._faded_s = np.nan
        self.ended_jobs = 0

    def __len__(self) -> int:
        """Groups in use."""
        return len(self._row)

    def row_of(self, tenant: str, width: int) -> int:
        """The row of (tenant, width), made if needed."""
        row = self._row.setdefault((tenant, width), len(self._row))
        if row >= len(self._used):
            for name in ("_ended", "_risk_s", "_used"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
        self._clock += 1
        self._used[row] = self._clock
        return row

    def forget(self, kept: I64) -> I64:
        """Drop the less recently used half, except the rows `kept`. Returns the new row of each old one; -1: gone."""
        size = len(self)
        stay = np.zeros(size, np.bool_)
        stay[np.argsort(-self._used[:size], kind="stable")[: MOST_GROUPS // 2]] = True
        stay[kept] = True
        gone = [key for key, row in self._row.items() if not stay[row]]
        pooled = {key: (NAMELESS, 1 << max(key[1], 1).bit_length() - 1) for key in gone}
        for key in pooled.values():
            if key in self._row:
                stay[self._row[key]] = True
        place = np.where(stay, np.cumsum(stay) - 1, -1)
        ended, risk_s, old = self._ended[:size], self._risk_s[:size], self._row
        self._ended, self._risk_s, self._used = ended[stay], risk_s[stay], self._used[:size][stay]
        self._row = {key: int(place[row]) for key, row in old.items() if stay[row]}
        for key, into in pooled.items():
            if not stay[old[key]]:
                row = self.row_of(*into)
                self._ended[row] += ended[old[key]]
                self._risk_s[row] += risk_s[old[key]]
        return place

    def count(self, rows: I64, entry_s: F64, age_s: F64, ended: F64) -> None:
        """Add jobs of the groups `rows`, followed from one age to the other; `ended` is 1 if they ended there."""
        np.add.at(self._risk_s, rows, at_risk_s(age_s) - at_risk_s(entry_s))
        np.add.at(self._ended, (rows, bins_of(age_s)), ended)
        self.ended_jobs += int(ended.sum())

    def fade(self, now_s: float) -> None:
        """Let earlier counts weigh less."""
        if now_s > self._faded_s:
            kept = 0.5 ** ((now_s - self._faded_s) / HALF_LIFE_S)
            self._ended *= kept
            self._risk_s *= kept
        if not now_s <= self._faded_s:  # NaN too
            self._faded_s = now_s

    def with_open(self, rows: I64, entry_s: F64, age_s: F64) -> Counts:
        """The counts, with unfinished jobs as time at risk."""
        size, keys = len(self), list(self._row)
        codes = {tenant: code for code, tenant in enumerate(dict.fromkeys(tenant for tenant, _ in keys))}
        risk_s = self._risk_s[:size].copy()
        np.add.at(risk_s, rows, at_risk_s(age_s) - at_risk_s(entry_s))
        tenant = np.fromiter((codes[name] for name, _ in keys), np.int64, size)
        width = np.fromiter((width for _, width in keys), np.int64, size)
        return Counts(tenant, width, self._ended[:size].copy(), risk_s)

    def ended_of(self, rows: I64) -> F64:
        """Ended jobs of the groups `rows`, faded."""
        return np.asarray(self._ended[rows].sum(axis=1))

    def pairs(self) -> list[tuple[str, int]]:
        """(tenant, width) of each row."""
        return list(self._row)

    def restore(
        self, pairs: Sequence[tuple[str, int]], ended: F64, risk_s: F64, ended_jobs: int, counted_s: float
    ) -> None:
        """Begin with these counts, both [pairs, bins], faded to `counted_s`. Only before anything was counted."""
        rows = np.array([self.row_of(*pair) for pair in pairs], np.int64)
        self._ended[rows], self._risk_s[rows] = ended, risk_s
        self.ended_jobs, self._faded_s = ended_jobs, counted_s
