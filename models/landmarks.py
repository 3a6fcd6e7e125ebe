"""Time left of jobs that still run after 5 min, 30 min, 1 h, 2 h, 8 h, 24 h.

Boosting on what was known at submission and the time run so far, fitted on jobs that outlived each landmark; every
landmark has its own calibration, because the raw quantiles promise too much on every trace that was looked at. The floor is the conditional quantile of all jobs that outlived the landmark; which of the two is believed
how far at a landmark is decided by their rolling pinball loss (models/opinions.py: Mixer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.forecast import LEVELS
from autopilot.core.snapshot import F64, I32
from models.recent import quantiles
from models.runtime_boosting import Boosted, BoostingRules, fit_boosted

LANDMARKS_S = (300.0, 1800.0, 3600.0, 7200.0, 28_800.0, 86_400.0)
"""Times run at which the time left is forecast anew."""

LEAST_OUTLIVED = 30
"""Jobs that must have outlived a landmark before their quantiles are given; below, the landmark before speaks."""


@dataclass(frozen=True, slots=True)
class Landmarks:
    """Quantiles of the log of the time left at each landmark: for all jobs alike [landmarks, levels], and boosted."""

    usual: F64
    boosted: Boosted | None

    def opinions(self, features: F64, landmark: I32) -> F64:
        """Quantiles of the log of the time left of jobs that have run LANDMARKS_S[landmark]: [jobs, 2, levels].

        First what holds for all jobs, then boosting; NaN where there is none.
        """
        usual = self.usual[landmark]
        boosted = np.full(usual.shape, np.nan)
        if self.boosted is not None and len(features):
            boosted = self.boosted.predict(with_landmark(features, landmark))
        return np.stack([usual, boosted], axis=1)


def with_landmark(features: F64, landmark: I32) -> F64:
    """Features with the log of the time run so far as one more column."""
    return np.column_stack([features, np.log(np.asarray(LANDMARKS_S)[landmark])])


def usual_left(log_s: F64, weight: F64, levels: Sequence[float]) -> F64:
    """The floor: quantiles of log(run time - landmark) of all jobs that outlived it. [landmarks, levels].

    `weight` [jobs] are those of models/censoring.py; jobs count as often as they stand for others (rounded).
    """
    answer = np.full((len(LANDMARKS_S), len(levels)), np.nan)
    ended_s = np.repeat(np.exp(log_s), np.rint(weight).astype(np.int64))
    for number, landmark_s in enumerate(LANDMARKS_S):
        left = ended_s[ended_s > landmark_s] - landmark_s
        if len(left) >= LEAST_OUTLIVED:
            answer[number] = quantiles(np.log(np.maximum(left, 1.0)), levels)
        elif number:
            answer[number] = answer[number - 1]
    return answer


def fit_landmarks(features: F64, log_s: F64, weight: F64, rules: BoostingRules, seed: int = 0) -> Landmarks:
    """Fit on ended jobs in order of time."""
    parts = []
    for number, landmark_s in enumerate(LANDMARKS_S):
        rows = np.flatnonzero(np.exp(log_s) > landmark_s)
        parts.append((rows, np.full(len(rows), number, np.int32)))
    rows = np.concatenate([part[0] for part in parts])
    landmark = np.concatenate([part[1] for part in parts])
    order = np.argsort(rows, kind="stable")  # in order of time, the landmarks of a job side by side
    rows, landmark = rows[order], landmark[order]
    left = np.log(np.maximum(np.exp(log_s[rows]) - np.asarray(LANDMARKS_S)[landmark], 1.0))
    boosted = fit_boosted(with_landmark(features[rows], landmark), left, weight[rows], LEVELS, rules, seed)
    return Landmarks(usual_left(log_s, weight, LEVELS), boosted)
