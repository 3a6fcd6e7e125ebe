"""What the forecasts say about when work ends: columns for planning, evaluated at the start of the review."""

from __future__ import annotations

import numpy as np

from autopilot.core.forecast import remaining_quantile_s
from autopilot.core.policy import Mode, Policy
from autopilot.core.records import Observation
from autopilot.core.snapshot import F64, GPU_MILLI, I32, ClusterSnapshot, holding_mask
from autopilot.core.whatif import WhatIf


def lost_work_gpu_s(snapshot: ClusterSnapshot, at_s: float) -> F64:
    """Work that stopping each gang at `at_s` would lose: GPUs x (time since its last checkpoint, else since its
    start, and what a restart takes). Shape [workloads]; 0 for work that holds nothing.
    """
    work, held = snapshot.workloads, snapshot.placements
    gpus = np.bincount(
        held.workload, np.where(held.instance < 0, held.milli / GPU_MILLI, 1.0), minlength=len(work.id)
    )
    since_s = np.fmax(work.start_s, work.last_checkpoint_s)
    lost_s = np.maximum(at_s - since_s, 0.0) + np.nan_to_num(work.restart_s)
    return np.asarray(gpus * np.nan_to_num(lost_s))


def review_start(now_s: float, policy: Policy) -> float:
    """Start of the review period that `now_s` lies in."""
    return float(np.floor(now_s / policy.review.batch_s) * policy.review.batch_s)


def run_times(observation: Observation, policy: Policy, rows: I32) -> tuple[F64, F64, np.ndarray]:
    """Run time of pending rows at the reservation and the backfill level, capped by declared limits.

    Progress kept from earlier incarnations is subtracted. NaN forecasts become the limit, or inf.
    """
    work, forecast = observation.snapshot.workloads, observation.forecasts.runtimes
    limit = np.where(np.isnan(work.limit_s[rows]), np.inf, work.limit_s[rows])
    if forecast is None:
        return limit.copy(), limit, np.isfinite(limit)
    served = work.served_s[rows]
    quantiles = []
    for level in (policy.reservation.level, policy.backfill.level):
        left = remaining_quantile_s(forecast.levels, forecast.total_s[rows], served, level)
        quantiles.append(np.minimum(np.where(np.isnan(left), np.inf, left), limit))
    return quantiles[0], quantiles[1], np.isfinite(quantiles[1])


def gap_ends(observation: Observation, policy: Policy, rows: I32, run_high_s: F64, known: np.ndarray) -> F64:
    """When each pending gang, started now, is gone at the backfill level. Shape [rows].

    Preemptible work of unknown length may use any gap (it can be evicted), other unknown work none.
    """
    if policy.modes.backfill == Mode.OFF:
        return np.full(len(rows), np.inf)
    ends = np.where(known, observation.now_s + run_high_s, np.inf)
    return np.where(~known & observation.snapshot.workloads.preemptible[rows], observation.now_s, ends)


def predicted_ends(observation: Observation, policy: Policy, review_now_s: float) -> F64:
    """Predicted end of each holding workload at the reservation level. Shape [workloads]."""
    work, forecast = observation.snapshot.workloads, observation.forecasts.runtimes
    ends = np.full(len(work.id), np.inf)
    rows = np.flatnonzero(holding_mask(work))
    since = np.maximum(np.nan_to_num(work.start_s[rows], nan=review_now_s), 0.0)
    here = np.maximum(review_now_s - since, 0.0)
    from_s = np.maximum(since, review_now_s)
    left = np.full(len(rows), np.nan)
    if forecast is not None and len(rows):
        left = remaining_quantile_s(forecast.levels, forecast.total_s[rows], work.served_s[rows] + here,
                                    policy.reservation.level)  # fmt: skip
    by_limit = np.where(np.isnan(work.limit_s[rows]), np.inf, work.limit_s[rows] - here)
    left = np.minimum(np.where(np.isnan(left), np.inf, left), np.maximum(by_limit, policy.review.batch_s))
    ends[rows] = from_s + left
    return ends


def gpu_free_at(whatif: WhatIf, end_s: F64) -> F64:
    """When each GPU comes free by prediction. Shape [gpus]."""
    held = whatif.snapshot.placements
    free_at = np.where(whatif.gpu_usable, -np.inf, np.inf)
    if len(held.gpu):
        busy = np.full(len(free_at), -np.inf)
        np.maximum.at(busy, held.gpu, end_s[held.workload])
        free_at = np.maximum(free_at, busy)
    return free_at
