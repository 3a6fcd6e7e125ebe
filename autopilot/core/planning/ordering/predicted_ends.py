"""Predicted ends of work, as columns for planning, evaluated at the start of the review period."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autopilot.core.model.forecast import RuntimeForecast, remaining_quantiles_s
from autopilot.core.model.policy import Effect, Policy
from autopilot.core.model.snapshot import F64, I32, Bools, ClusterSnapshot, State, WorkloadTable
from autopilot.core.model.work import holding_mask, known_or, named, overdue_mask, progress_s, whole_gpus
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.ordering.job_order import UNKNOWN_INDEX_PER_S, gittins_per_s, mixed_index


def review_start(now_s: float, policy: Policy) -> float:
    """Start of the review period around `now_s`."""
    return float(np.floor(now_s / policy.review.batch_s) * policy.review.batch_s)


@dataclass(frozen=True, slots=True)
class Outlook:
    """Remaining run time of pending work and of work on GPUs, as of the start of the review period.

    `left_s` is [workloads, levels]: NaN without a forecast, and for ended work. Progress kept from earlier incarnations
    counts as served.
    """

    levels: tuple[float, ...]
    left_s: F64
    index_per_s: F64  # index of the remaining run time (job_order.py), [workloads]

    def quantile_s(self, rows: I32, level: float) -> F64:
        """One quantile of the remaining run time; inf without a forecast. Shape [rows]."""
        left = self.left_s[rows, self.levels.index(level)]
        return np.where(np.isnan(left), np.inf, left)

    def foretold(self, level: float) -> Bools:
        """True with a forecast of that quantile; else only a declared limit ends the work. Shape [workloads]."""
        return ~np.isnan(self.left_s[:, self.levels.index(level)])


def look_out(work: WorkloadTable, forecast: RuntimeForecast | None, policy: Policy, review_now_s: float) -> Outlook:
    """The outlook of one tick."""
    asked = {0.5, policy.reservation.level, policy.reservation.promise_level, policy.backfill.level}
    levels = tuple(sorted(asked | set(forecast.levels if forecast is not None else ())))
    left = np.full((len(work.id), len(levels)), np.nan)
    index = np.full(len(work.id), UNKNOWN_INDEX_PER_S)
    holds = holding_mask(work)
    rows = np.flatnonzero((work.state == State.PENDING) | holds).astype(np.int32)
    done_s, outlived_s = progress_s(work, rows, review_now_s)
    if forecast is not None:
        left[rows] = remaining_quantiles_s(forecast.levels, forecast.total_s[rows], done_s, levels, outlived_s)
    # without a forecast: as long again as it has run (Lindy's law), but at least the default run time
    lindy = 1.0 / np.maximum(1.0 / UNKNOWN_INDEX_PER_S, outlived_s)
    index[rows] = np.where(np.isnan(left[rows, 0]), lindy, gittins_per_s(levels, left[rows]))
    if forecast is not None and len(forecast.hazard_index_per_s) == len(work.id):
        index[rows] = mixed_index(index[rows], forecast.hazard_index_per_s[rows], policy.order)
    return Outlook(levels, left, index)


def _since(work: WorkloadTable, rows: I32, review_now_s: float) -> F64:
    """Start of work on GPUs; the start of the review if unknown. Shape [rows]."""
    return np.maximum(known_or(work.start_s[rows], review_now_s), 0.0)


class RunTimes(NamedTuple):
    """Run times of pending rows, capped by declared limits; inf without forecast and limit. Shape [rows]."""

    low_s: F64  # at the reservation level
    high_s: F64  # at the backfill level
    known: Bools  # whether the latter is


def run_times(work: WorkloadTable, policy: Policy, outlook: Outlook, rows: I32) -> RunTimes:
    """The run times of pending rows."""
    limit = np.where(np.isnan(work.limit_s[rows]), np.inf, work.limit_s[rows])
    low, high = (
        np.minimum(outlook.quantile_s(rows, level), limit)
        for level in (policy.reservation.level, policy.backfill.level)
    )
    return RunTimes(low, high, np.isfinite(high))


def gap_ends(work: WorkloadTable, policy: Policy, rows: I32, now_s: float, run_high_s: F64, known: Bools) -> F64:
    """End of each pending gang at the backfill level if it starts now. Shape [rows].

    Preemptible work of unknown length fits any gap, because it can be evicted; other work of unknown length fits none.
    """
    if not policy.modes.on(Effect.FILL):
        return np.full(len(rows), np.inf)
    ends = np.where(known, now_s + run_high_s, np.inf)
    return np.where(~known & work.preemptible[rows], now_s, ends)


def predicted_ends(work: WorkloadTable, policy: Policy, outlook: Outlook, review_now_s: float, level: float) -> F64:
    """Predicted end of each workload on GPUs, at a level of `outlook`. Shape [workloads]; inf for others."""
    ends = np.full(len(work.id), np.inf)
    rows = np.flatnonzero(holding_mask(work)).astype(np.int32)
    since = _since(work, rows, review_now_s)
    here = np.maximum(review_now_s - since, 0.0)
    by_limit = np.where(np.isnan(work.limit_s[rows]), np.inf, work.limit_s[rows] - here)
    left = np.minimum(outlook.quantile_s(rows, level), np.maximum(by_limit, policy.review.batch_s))
    ends[rows] = np.maximum(since, review_now_s) + left
    return ends


def gpu_free_at(whatif: WhatIf, end_s: F64) -> F64:
    """Predicted free time of each GPU: -inf if it is free, inf if it is unusable. Shape [gpus]."""
    held = whatif.snapshot.placements
    free_at = np.where(whatif.gpu_whole, -np.inf, np.inf)
    if len(held.gpu):
        busy = np.full(len(free_at), -np.inf)
        np.maximum.at(busy, held.gpu, end_s[held.workload])
        free_at = np.maximum(free_at, busy)
    return free_at


def may_reserve(
    snapshot: ClusterSnapshot,
    forecast: RuntimeForecast | None,
    policy: Policy,
    cooled_until_s: Mapping[str, float],
    rows: I32,
    now_s: float,
    review_now_s: float,
) -> Bools:
    """True for `rows` that may hold a reservation: whole GPUs, wide enough, not cooling down. Shape [rows].

    While the spread of the forecasts is too wide, only overdue gangs may: room held on a poor forecast is wasted.
    """
    rules, work = policy.reservation, snapshot.workloads
    if not rules.depth:
        return np.zeros(len(rows), np.bool_)
    may = whole_gpus(work, rows)
    if rules.whole_nodes_only and len(snapshot.nodes.gpus):
        may &= work.gpus[rows] >= int(snapshot.nodes.gpus.min())
    if not _confident(work, forecast, policy):
        may &= overdue_mask(work, rows, review_now_s, policy.order)
    cooling = [name for name, until_s in cooled_until_s.items() if until_s > now_s]
    if cooling:
        may &= ~named(work.uid[rows], cooling)
    return np.asarray(may)


def _confident(work: WorkloadTable, forecast: RuntimeForecast | None, policy: Policy) -> bool:
    """True if the median spread of the forecasts of running work is at most `reservation.max_spread_ratio`."""
    if forecast is None:
        return False
    rows = np.flatnonzero(holding_mask(work) & forecast.known)
    if not len(rows):
        return True
    low, high = forecast.levels.index(0.25), forecast.levels.index(0.75)
    spread = forecast.total_s[rows, high] / np.maximum(forecast.total_s[rows, low], 1.0)
    return bool(np.median(spread) <= policy.reservation.max_spread_ratio)
