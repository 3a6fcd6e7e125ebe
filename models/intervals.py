"""Calibrated quantiles of run times: what is promised at a level is delivered at that level.

A score is how far the log run time lay above a quantile. Margins are conformal quantiles of the last scores of jobs of
the same kind (Mondrian groups: size and vagueness of the forecast), drawn towards those of all jobs where a group has
seen little, at a level that moves with each miss (adaptive conformal inference, models/conformal.py).

Censoring: a promise is settled when its time is up, kept or broken, and not before: else the short jobs of a day, which
end first, would speak for its long ones, and a day of many submissions would look like a day of kept promises. A broken
one has what the job has run so far as its score, which is put right at its end. The middle level is left alone: it is
the most likely run time.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.forecast import LEVELS
from autopilot.core.snapshot import F64, I32
from models.conformal import conformal_quantile, default_rate
from models.opinions import MEDIAN, ordered

SIZES_S = (600.0, 7200.0, 86_400.0)
"""Bounds of the size classes by the middle forecast: minutes, up to two hours, up to a day, longer."""

VAGUE = float(np.log(2.0))
"""Half span of the 0.25 to 0.9 quantiles, in logs, above which a forecast is vague: a factor of two either way."""

GROUPS = 2 * (len(SIZES_S) + 1)

WINDOW = 400
"""Scores kept of each group and level: 300 to 2,000 by reference."""

PRIOR_SCORES = 50.0
"""Scores at which a group's own margin weighs as much as that of all jobs."""

LEAST_SCORES = 30
"""Scores of all jobs below which nothing is corrected."""

STALE_SCORES = 16
"""New scores of a level after which its margins are made anew."""

HIGHEST, LOWEST = 0.998, 0.01
"""Bounds of the level that is aimed at."""

PROMISED = tuple(number for number in range(len(LEVELS)) if number != MEDIAN)


def groups_of(log_quantile: F64) -> I32:
    """Group of each job: its size class by the middle of `log_quantile` [jobs, levels], apart for vague forecasts."""
    size = np.searchsorted(np.log(SIZES_S), log_quantile[:, MEDIAN])
    half_span = (log_quantile[:, MEDIAN + 2] - log_quantile[:, MEDIAN - 1]) / 2.0
    return np.asarray(size + (len(SIZES_S) + 1) * (half_span > VAGUE), np.int32)


class Intervals:
    """Margins for each group and level, learned from promises and what came of them."""

    def __init__(self) -> None:
        self._scores = np.full((len(LEVELS), GROUPS, WINDOW), np.nan)
        self._count = np.zeros((len(LEVELS), GROUPS), np.int64)
        self._aim = np.repeat(np.asarray(LEVELS)[:, None], GROUPS, axis=1)
        self._margin = np.zeros((GROUPS, len(LEVELS)))
        self._news = np.zeros(len(LEVELS), np.int64)

    def note(self, number: int, group: int, score: float, margin: float) -> int:
        """Settle a promise of level `number`: its score, against the margin then. Returns a ticket for `revise`."""
        turn = int(self._count[number, group])
        self._scores[number, group, turn % WINDOW] = score
        self._count[number, group] += 1
        missed = float(score > margin)
        rate = float(default_rate(np.asarray(min(1.0 - LEVELS[number], LEVELS[number]))))
        aim = self._aim[number, group] + rate * (missed - (1.0 - LEVELS[number]))
        self._aim[number, group] = min(max(aim, LOWEST), HIGHEST)
        self._news[number] += 1
        return turn

    def revise(self, number: int, group: int, turn: int, score: float) -> None:
        """Put a score right that was a lower bound when it was settled."""
        if self._count[number, group] - turn <= WINDOW:
            self._scores[number, group, turn % WINDOW] = score

    def margins(self, group: I32) -> F64:
        """Margins in logs [jobs, levels]; 0 as long as a level has too little to go by."""
        for number in PROMISED:
            if self._news[number] >= STALE_SCORES:
                self._news[number] = 0
                self._renew(number)
        return self._margin[group]

    def _renew(self, number: int) -> None:
        scores = self._scores[number]
        flat = np.sort(scores[~np.isnan(scores)])
        if len(flat) < LEAST_SCORES:
            return
        for group in range(GROUPS):
            count = min(int(self._count[number, group]), WINDOW)
            aim = float(self._aim[number, group])
            of_all = float(flat[min(int(np.ceil((len(flat) + 1) * aim)), len(flat)) - 1])
            own = conformal_quantile(scores[group, :count], aim) if count else np.inf
            share = count / (count + PRIOR_SCORES) if np.isfinite(own) else 0.0
            self._margin[group, number] = share * own + (1.0 - share) * of_all if share else of_all

    def apply(self, log_quantile: F64, group: I32) -> tuple[F64, F64]:
        """Calibrated quantiles, and the margins in them: both [jobs, levels]."""
        margin = self.margins(group)
        return ordered(log_quantile + margin), margin
