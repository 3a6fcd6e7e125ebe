"""Unfinished jobs: their information, and the weights of ended ones.

At any moment the ended jobs are too short on average: the long ones of the same days still run. A job
ended after t represents 1 / P(it could be followed for t) jobs (inverse probability of censoring weighting; Robins and
Rotnitzky 1992), the probability by the product-limit estimate (Kaplan and Meier 1958) of the time followed.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.model.snapshot import F64, Bools

MOST_WEIGHT = 10.0
"""Maximum weight of one job: beyond it the variance of the weights would cost more than their bias saves."""


def followed_ratio(spent_s: F64, ended: Bools, at_s: F64) -> F64:
    """P(a job is followed for longer than `at_s`), by the product-limit estimate. Shape of `at_s`.

    `spent_s` [jobs] is the run time of those that `ended`, and for the others their run time so far.
    """
    order = np.argsort(spent_s, kind="stable")
    times, lost = spent_s[order], ~ended[order]
    risk = np.arange(len(times), 0, -1)
    kept = np.cumprod(1.0 - lost / risk)
    before = np.searchsorted(times, at_s, side="left")
    return np.where(before > 0, kept[np.maximum(before - 1, 0)], 1.0)


def completion_weights(spent_s: F64, ended: Bools) -> F64:
    """Weight of each job: 0 for running ones, else 1 / P(followed for this long), at most `MOST_WEIGHT`."""
    if not len(spent_s):
        return np.zeros(0)
    ratio = followed_ratio(spent_s, ended, spent_s)
    return np.where(ended, np.minimum(1.0 / np.maximum(ratio, 1e-9), MOST_WEIGHT), 0.0)


def censored_quantile(values: F64, ended: Bools, level: F64) -> F64:
    """Quantiles at `level` of values that are lower bounds for jobs that have not `ended`. Shape of `level`.

    By the product-limit estimate, one more job of unknown outcome at risk: without censoring this is the conformal
    quantile, the ceil((n + 1) level)-th smallest (Vovk et al. 2005). Infinite if the values do not reach it.
    """
    order = np.argsort(values, kind="stable")
    risk = np.arange(len(order), 0, -1) + 1.0
    done = 1.0 - np.cumprod(1.0 - ended[order] / risk)
    # slightly less: a product of fractions is seldom exact in floating point
    place = np.searchsorted(done, np.asarray(level) - 1e-12, side="left")
    return np.append(values[order], np.inf)[place]
