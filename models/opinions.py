"""Opinions on a job: quantiles of its log run time by several models, mixed per kind of job.

No model of run times is best everywhere: where history repeats, the last similar jobs are; where it does not, boosting
is (measured on the Philly, Alibaba and MIT files of docs/data-sources.md). For each kind of job the opinions are
weighted by their recent pinball loss, level by level; a kind with little history uses the weights of all jobs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from autopilot.core.model.forecast import LEVELS
from autopilot.core.model.snapshot import F64, Bools
from models.recent import F32, LEVELS_OF_KIN, Kept, first_known, newest_known, quantiles

OPINIONS = ("recent10", "recent40", "neighbours10", "boosted")
"""The last ten and the last forty to end, the last ten submitted that have ended, and gradient boosting."""

BOOSTED = OPINIONS.index("boosted")
SIBLINGS = 2
"""Further opinions of a job: without and with the correction by its siblings."""

KIND = LEVELS_OF_KIN.index("user")
"""The kin whose jobs share weights."""

MEDIAN = LEVELS.index(0.5)

LEAST_ENDED = 3
"""Minimum number of ended jobs for an opinion of a kin; below it the next wider one is used."""

NEIGHBOURS = 20
"""Ended neighbours in submit order, in addition to the forty, among which the most likely run time is searched."""

SAME_WIDTH = 0.35
"""Width of the kernel in logs: run times within a factor of 1.4 count as the same."""

FADE = 0.9
"""Weight of each job relative to the next newer one in the search for the most likely run time."""

OWN_WEIGHT = 1.0
"""Weight of the model's own median there, in jobs that have just ended."""

BELIEF_WINDOW = 100
"""Past jobs of a kind in its weights: an exponential window of about this length."""

ALL_WINDOW = 1000
"""The same for all jobs."""

PRIOR_JOBS = 10.0
"""Jobs at which a kind's own losses weigh as much as those of all jobs."""

SHARPNESS = 0.1
"""A loss higher by this fraction of the best one's has 1/e of its weight."""

MOST_KINDS = 20_000
"""Maximum number of kinds with weights."""

LARGEST_ERROR = 3.0
"""Errors in logs are capped at this in the weights: a factor of 20 is wrong, larger ones are no worse."""


def recent_opinions(kept: Kept) -> tuple[F64, F32]:
    """Opinions from the last jobs alone [jobs, opinions, levels] (NaN: none; boosting is left empty).

    Second, the candidates for the most likely run time (newest first): [jobs, candidates].
    """
    rows = np.arange(len(kept.count))
    kin = first_known(kept, LEAST_ENDED)
    ended = kept.ended[rows, kin]
    beside = newest_known(kept.submitted[rows, kin], NEIGHBOURS)
    given = (ended[:, :10], ended, beside[:, :10])
    answer = np.full((len(rows), len(OPINIONS), len(LEVELS)), np.nan)
    for number, values in enumerate(given):
        answer[:, number] = quantiles(values, LEVELS)
    return answer, np.concatenate([ended, beside], axis=1)


def most_likely(candidates: F32, boosted: F64) -> F64:
    """The most likely log run time of each job: where run times of similar jobs are densest, near the forecast of
    boosting.

    The mode of a kernel density over `candidates` [jobs, n], each weighted by its recency and by a normal of the spread
    of `boosted` [jobs, levels] around its median, which is a candidate too. Shape [jobs].
    """
    middle = boosted[:, MEDIAN].astype(np.float32)[:, None]
    spread = np.clip((boosted[:, MEDIAN + 2] - boosted[:, MEDIAN - 1]) / 2.0, 0.3, 3.0)[:, None]
    places = np.arange(candidates.shape[1])
    fade = FADE ** np.where(
        places < candidates.shape[1] - NEIGHBOURS, places, places - candidates.shape[1] + NEIGHBOURS
    )
    answer = np.empty(len(candidates))
    for start in range(0, len(candidates), 2048):
        part = slice(start, start + 2048)
        known = ~np.isnan(candidates[part])
        values = np.where(known, candidates[part], np.float32(0.0))
        near = np.exp(-0.5 * ((values - middle[part]) / spread[part]) ** 2)
        weight = np.concatenate([np.where(known, fade * near, 0.0), np.full((len(values), 1), OWN_WEIGHT)], axis=1)
        values = np.concatenate([values, middle[part]], axis=1)
        kernel = np.exp(-(((values[:, :, None] - values[:, None, :]) / np.float32(SAME_WIDTH)) ** 2))
        density = np.where(weight > 0.0, np.einsum("nij,nj->ni", kernel, weight.astype(np.float32)), -1.0)
        best = density.argmax(axis=1)[:, None, None]
        crowd = np.take_along_axis(kernel, best, axis=1)[:, 0] * weight
        answer[part] = (crowd * values).sum(axis=1) / crowd.sum(axis=1)
    return answer


def add_boosted(opinions: F64, candidates: F32, boosted: F64) -> None:
    """Enter the forecast of boosting [jobs, levels], its middle moved to the most likely run time, into `opinions`."""
    opinions[:, BOOSTED] = boosted
    opinions[:, BOOSTED, MEDIAN] = most_likely(candidates, boosted)


class Mixer:
    """Weights of the opinions for each kind of job, by rolling pinball loss."""

    def __init__(self, opinions: int = len(OPINIONS)) -> None:
        self._row: dict[Hashable, int] = {}
        self._loss = np.zeros((0, opinions, len(LEVELS)))
        self._jobs = np.zeros((0, opinions, 1))
        self._all_loss = np.zeros((opinions, len(LEVELS)))
        self._all_jobs = np.zeros((opinions, 1))

    def rows(self, kinds: Sequence[Hashable]) -> np.ndarray:
        """Row of each kind of job, new ones added. Shape [kinds]."""
        if len(self._row) > MOST_KINDS:  # start over: the weights of all jobs stay
            self._row.clear()
            self._loss[:], self._jobs[:] = 0.0, 0.0
        found = np.array([self._row.setdefault(kind, len(self._row)) for kind in kinds], np.int64)
        missing = len(self._row) - len(self._jobs)
        if missing > 0:
            more = max(missing, len(self._jobs), 64)
            self._loss = np.concatenate([self._loss, np.zeros((more, *self._loss.shape[1:]))])
            self._jobs = np.concatenate([self._jobs, np.zeros((more, *self._jobs.shape[1:]))])
        return found

    def weights(self, rows: np.ndarray, given: np.ndarray) -> F64:
        """Weights [jobs, opinions, levels], which sum to 1 over the opinions `given` [jobs, opinions]; 0 for the
        others.
        """
        usual = self._all_loss / np.maximum(self._all_jobs, 1e-9)
        loss = (self._loss[rows] + PRIOR_JOBS * usual) / (self._jobs[rows] + PRIOR_JOBS)
        loss = np.where(given[..., None], loss, np.inf)
        best = loss.min(axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):
            share = np.exp(-(loss - best) / (SHARPNESS * best + 1e-6))
        share = np.where(given[..., None], share, 0.0)
        return np.asarray(share / np.maximum(share.sum(axis=1, keepdims=True), 1e-300))

    def mix(self, rows: np.ndarray, opinions: F64) -> F64:
        """Mixed quantiles of the log run time [jobs, levels], non-decreasing; NaN without any opinion."""
        missing: Bools = np.isnan(opinions[:, :, MEDIAN])
        given = np.logical_not(missing)
        mixed = (self.weights(rows, given) * np.where(given[..., None], opinions, 0.0)).sum(axis=1)
        return np.where(missing.all(axis=1, keepdims=True), np.nan, ordered(mixed))

    def learn(self, row: int, opinions: F64, log_s: float) -> None:
        """Take in the outcome of one job, with its opinions [opinions, levels]."""
        missing: Bools = np.isnan(opinions[:, MEDIAN])
        error = np.where(missing[:, None], 0.0, log_s - opinions)
        error = np.clip(error, -LARGEST_ERROR, LARGEST_ERROR)
        levels = np.asarray(LEVELS)
        loss = np.maximum(levels * error, (levels - 1.0) * error)
        seen = np.where(missing, 0.0, 1.0)[:, None]
        self._loss[row] = self._loss[row] * (1.0 - seen / BELIEF_WINDOW) + loss
        self._jobs[row] = self._jobs[row] * (1.0 - seen / BELIEF_WINDOW) + seen
        self._all_loss = self._all_loss * (1.0 - seen / ALL_WINDOW) + loss
        self._all_jobs = self._all_jobs * (1.0 - seen / ALL_WINDOW) + seen


def corrected(mixer: Mixer, kinds: Sequence[Hashable], prior: F64, posterior: F64) -> tuple[F64, F64]:
    """The forecast of jobs at their submission [jobs, levels], and what `mixer` learns from [jobs, 2, levels].

    `prior` and `posterior` [jobs, levels] are the mixed opinions, and their correction by siblings
    (models/siblings.py); the losses of both determine how much siblings count. The middle stays the most likely run
    time.
    """
    held = np.stack([prior, posterior], axis=1)
    said = mixer.mix(mixer.rows(kinds), held)
    said[:, MEDIAN] = prior[:, MEDIAN]
    return ordered(said), held


def ordered(quantile: F64) -> F64:
    """Quantiles [jobs, levels] made non-decreasing without moving the middle one."""
    middle = quantile[:, MEDIAN : MEDIAN + 1]
    lower = np.minimum(np.sort(quantile[:, :MEDIAN], axis=1), middle)
    upper = np.maximum(np.sort(quantile[:, MEDIAN + 1 :], axis=1), middle)
    return np.concatenate([lower, middle, upper], axis=1)
