"""Calibrated quantiles of run times: coverage at each level is as nominal.

A score is the distance of the log run time above a quantile. Margins are conformal quantiles of the last scores of jobs
of the same kind (Mondrian groups: size and vagueness of the forecast), shrunk towards those of all jobs if a group has
few.

Censoring: the ended jobs of a day are its short ones, and a running job has a score of at least its run time so
far. Quantiles are therefore those of the product-limit estimate over both (models/censoring.py), so that a
running job counts from its first second. The middle level is unchanged: it is the most likely run time.

The target level adapts with each settled promise (adaptive conformal inference: Gibbs and Candès, NeurIPS 2021): broken
once the job exceeds it, kept once its time is up, and not before. Feedback that is late and comes for many at once must
move it less, or the level oscillates: a step is divided by the number of open promises of the group, which were made
independently of each other, so that one event which breaks them all moves it about as far as one miss.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autopilot.core.model.forecast import LEVELS
from autopilot.core.model.snapshot import F64, I32, I64
from models.censoring import censored_quantile
from models.conformal import default_rate
from models.opinions import MEDIAN, ordered

SIZES_S = (600.0, 7200.0, 86_400.0)
"""Bounds of the size classes by the middle forecast: minutes, up to two hours, up to a day, longer."""

VAGUE = float(np.log(2.0))
"""Half span of the 0.25 to 0.9 quantiles, in logs, above which a forecast is vague: a factor of two either way."""

GROUPS = 2 * (len(SIZES_S) + 1)

WINDOW = 1000
"""Jobs kept of each group, including running ones: 300 to 2,000 by reference."""

POOL_SCORES = 2000
"""Scores of all jobs for the common margin, evenly spread over the groups."""

PRIOR_SCORES = 50.0
"""Scores at which a group's own margin weighs as much as that of all jobs."""

LEAST_SCORES = 30
"""Minimum number of ended jobs for any correction."""

STALE_JOBS = 16
"""Jobs begun or ended after which margins are recomputed."""

HIGHEST, LOWEST = 0.998, 0.01
"""Bounds of the target level."""

PROMISED = tuple(number for number in range(len(LEVELS)) if number != MEDIAN)


def groups_of(log_quantile: F64) -> I32:
    """Group of each job: its size class by the middle of `log_quantile` [jobs, levels], with vague forecasts in
    separate groups.
    """
    size = np.searchsorted(np.log(SIZES_S), log_quantile[:, MEDIAN])
    half_span = (log_quantile[:, MEDIAN + 2] - log_quantile[:, MEDIAN - 1]) / 2.0
    return np.asarray(size + (len(SIZES_S) + 1) * (half_span > VAGUE), np.int32)


@dataclass(slots=True)
class Promise:
    """Quantiles of the log of a running time, and the added margins."""

    raw: F64
    margin: F64
    group: int
    beside: I64  # open promises of the group when it was made, itself included, by level
    turn: int = -1  # number in its group's window; -1: has not begun
    open: list[int] = field(default_factory=list)  # levels not settled yet, by the time at which they break

    def bound_s(self, number: int) -> float:
        """Run time beyond which the promise of a level is broken."""
        return float(np.exp(self.raw[number] + self.margin[number]))


class Intervals:
    """Margins for each group and level, learned from promises and their outcomes, final or in progress."""

    def __init__(self) -> None:
        self._promises: dict[Hashable, Promise] = {}  # of jobs that have not ended
        self._next_s: dict[Hashable, float] = {}  # run time at which the first open promise of a job breaks
        self._kept: list[tuple[float, int, int, int]] = []  # (when its time is up, level, group, beside)
        self._raw = np.full((GROUPS, WINDOW, len(LEVELS)), np.nan)
        self._log_s = np.full((GROUPS, WINDOW), np.nan)
        self._ended = np.zeros((GROUPS, WINDOW), np.bool_)
        self._count = np.zeros(GROUPS, np.int64)
        self._aim = np.repeat(np.asarray(LEVELS)[:, None], GROUPS, axis=1)
        self._open = np.zeros((len(LEVELS), GROUPS), np.int64)
        self._margin = np.zeros((GROUPS, len(LEVELS)))
        self._news = 0

    def __len__(self) -> int:
        """Number of promises of unfinished jobs."""
        return len(self._promises)

    @property
    def stale(self) -> bool:
        """True if the next margins will be recomputed: the time to report the run times so far of the running jobs."""
        return self._news >= STALE_JOBS

    def add(self, name: Hashable, raw: F64, margin: F64, group: int) -> None:
        """Record the promise for a job: `raw` [levels] with `margin` [levels] added."""
        self._open[list(PROMISED), group] += 1
        made = Promise(raw, margin, group, self._open[:, group].copy(), -1, list(PROMISED))
        made.open.sort(key=made.bound_s)
        self._promises[name], self._next_s[name] = made, made.bound_s(made.open[0])

    def ran(self, names: Sequence[Hashable], ran_s: F64) -> None:
        """Take the run times so far of the running jobs: lower bounds of their scores, and some promises are broken."""
        for name, spent_s in zip(names, ran_s.tolist(), strict=True):
            made = self._promises.get(name)
            if made is not None and spent_s > 0.0:
                self._note(made, spent_s)
                if spent_s > self._next_s[name]:
                    self._next_s[name] = self._break(made, spent_s)

    def end(self, name: Hashable, ran_s: float, now_s: float) -> None:
        """A job ended after `ran_s`: an open promise was broken since the last update, or will be kept at the end of
        its time.
        """
        made = self._promises.pop(name, None)
        if made is None:
            return
        del self._next_s[name]
        self._break(made, ran_s)
        self._note(made, ran_s)
        self._news += 1
        if self._count[made.group] - made.turn <= WINDOW:
            self._ended[made.group, made.turn % WINDOW] = True
        for number in made.open:
            up_s = now_s + made.bound_s(number) - ran_s
            heapq.heappush(self._kept, (up_s, number, made.group, int(made.beside[number])))

    def settle(self, now_s: float) -> None:
        """Settle the kept promises at the end of their time."""
        while self._kept and self._kept[0][0] <= now_s:
            _, number, group, beside = heapq.heappop(self._kept)
            self._settle(number, group, beside, missed=False)

    def forget(self, name: Hashable) -> None:
        """Drop the promise for a job without an outcome."""
        made = self._promises.pop(name, None)
        if made is not None:
            del self._next_s[name]
            self._open[made.open, made.group] -= 1
            if made.turn >= 0 and self._count[made.group] - made.turn <= WINDOW:
                self._log_s[made.group, made.turn % WINDOW] = np.nan

    def _note(self, made: Promise, ran_s: float) -> None:
        """Enter a job's time so far into the window of its group, joined at its first sight as running."""
        group = made.group
        if made.turn < 0:
            made.turn = int(self._count[group])
            place = made.turn % WINDOW
            self._raw[group, place], self._ended[group, place] = made.raw, False
            self._count[group] += 1
            self._news += 1
        if self._count[group] - made.turn <= WINDOW:
            self._log_s[group, made.turn % WINDOW] = np.log(max(ran_s, 1.0))

    def _break(self, made: Promise, ran_s: float) -> float:
        """Break what a job outlived that has run `ran_s`; the run time at which the next level breaks (inf: none)."""
        while made.open and ran_s > made.bound_s(made.open[0]):
            number = made.open.pop(0)
            self._settle(number, made.group, int(made.beside[number]), missed=True)
        return made.bound_s(made.open[0]) if made.open else float("inf")

    def _settle(self, number: int, group: int, beside: int, *, missed: bool) -> None:
        rate = float(default_rate(np.asarray(min(1.0 - LEVELS[number], LEVELS[number]))))
        step = rate / max(int(self._open[number, group]), beside)
        self._open[number, group] -= 1
        aim = self._aim[number, group] + step * (missed - (1.0 - LEVELS[number]))
        self._aim[number, group] = min(max(aim, LOWEST), HIGHEST)

    def margins(self, group: I32) -> F64:
        """Margins in logs [jobs, levels]; 0 as long as too little has come."""
        if self.stale:
            self._news = 0
            self._renew()
        return self._margin[group]

    def _renew(self) -> None:
        known = ~np.isnan(self._log_s)
        if np.count_nonzero(known & self._ended) < LEAST_SCORES:
            return
        stride = -(-int(known.sum()) // POOL_SCORES)
        scores = self._log_s[..., None] - self._raw
        pool, pool_ended = scores[known][::stride], self._ended[known][::stride]
        for number in PROMISED:
            aims, values = self._aim[number].tolist(), np.sort(pool[:, number])
            of_all = censored_quantile(pool[:, number], pool_ended, self._aim[number])
            of_all = np.minimum(of_all, values[-1])  # beyond the largest nothing is known
            for group in range(GROUPS):
                mine = known[group]
                count, own = int(mine.sum()), np.inf
                if count:
                    aim = np.asarray(aims[group])
                    own = float(censored_quantile(scores[group, mine, number], self._ended[group, mine], aim))
                share = count / (count + PRIOR_SCORES) if np.isfinite(own) else 0.0
                common = float(of_all[group])
                self._margin[group, number] = share * own + (1.0 - share) * common if share else common

    def apply(self, log_quantile: F64, group: I32) -> tuple[F64, F64]:
        """Calibrated quantiles, and the margins in them: both [jobs, levels]."""
        margin = self.margins(group)
        return ordered(log_quantile + margin), margin
