"""Replicas called for by a forecast, and the trust in it.

A forecast of the demand over the lead time of a service, divided by the load for one replica, gives the desired number
of replicas. The measurements of a service stand in its record (model/memory/replicas.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, inf, isnan, log, nan
from statistics import NormalDist, median

import numpy as np

from autopilot.core.model.forecast import REQUESTS, Forecast
from autopilot.core.model.memory.replicas import ServiceRecord
from autopilot.core.model.policy import Policy, ScaleAhead
from autopilot.core.model.records import Code, Evidence, NoteCode, Observation
from autopilot.core.model.snapshot import F64, Bools, ClusterSnapshot, State

BIN_RATIO = 1.1
"""Ratio between load bins: one tenth is finer than the noise of a minute's requests."""

LEAST_REQUESTS = 300.0
"""Requests needed to judge a load: below three hundred, a share of one in a hundred is chance."""

LEAST_MINUTES = 5
"""Minutes needed for an estimate of the load at the owner's target."""


COLD_START_LEVEL = 0.9
"""Quantile of the measured start-ups used as lead time (forecasting reference, section 4)."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Replicas called for by the forecast of one service (`replicas`, -1: unknown), and the judgement of it."""

    row: int
    replicas: int
    demand_rps: float
    capacity_rps: float  # requests/s that one replica should serve
    level: float
    within_s: float  # since the forecast was made: lead time plus age, at most its longest horizon
    lead_s: float
    forecast: Forecast | None
    series: int
    code: Code = Code.OK
    value: float = 0.0
    threshold: float = 0.0
    unit: str = ""
    at_least: bool = False  # `threshold` is the least that is asked for; else the most
    unknown: NoteCode | None = None  # why `replicas` is -1
    facts: tuple[Evidence, ...] = ()  # behind `unknown`


def capacity_rps(record: ServiceRecord, violation_ratio: float) -> float:
    """Requests/s for one replica; NaN without measurements.

    It is the owner's target load, unless that load was measured to be too high: a floor anticipates the request of the
    owner's autoscaler under the forecast load. If the target is unknown, it is the highest load with at most
    `violation_ratio` of the requests beyond the objective.
    """
    good, bad = _judged(record.loads, violation_ratio)
    if len(record.at_target_rps) < LEAST_MINUTES:
        return good
    return min(median(record.at_target_rps), bad)


def _judged(loads: tuple[tuple[int, float, float], ...], violation_ratio: float) -> tuple[float, float]:
    """The highest load within the objective (NaN: unknown), and the lowest beyond it (inf: unknown).

    The share of violations is assumed to grow with the load; adjacent bins that contradict this are pooled (isotonic
    regression by pooling adjacent violators, Ayer et al. 1955).
    """
    blocks: list[list[float]] = []  # requests, violations, first bin, last bin
    for number, asked, missed in loads:
        blocks.append([asked, missed, number, number])
        while len(blocks) > 1 and blocks[-2][1] * blocks[-1][0] >= blocks[-1][1] * blocks[-2][0]:
            upper = blocks.pop()
            blocks[-1] = [blocks[-1][0] + upper[0], blocks[-1][1] + upper[1], blocks[-1][2], upper[3]]
    good, bad = nan, inf
    for asked, missed, first, last in blocks:
        if asked < LEAST_REQUESTS:
            continue
        if missed <= violation_ratio * asked:
            good = float(BIN_RATIO**last)
        else:
            bad = min(bad, float(BIN_RATIO**first))
    return good, bad


def lead_time_s(record: ServiceRecord, rules: ScaleAhead) -> float:
    """Lead time of a replica (s): a high quantile of the latest start-ups; without any, the lead time of the policy."""
    if not record.cold_starts_s:
        return rules.lead_s
    times_s = sorted(record.cold_starts_s)
    return times_s[ceil(COLD_START_LEVEL * (len(times_s) - 1))]


def foresee(observation: Observation, records: Mapping[str, ServiceRecord], policy: Policy) -> list[Ahead]:
    """Replicas called for by the forecasts of this tick, by service; empty without forecasts of demand."""
    demand = [each for each in observation.forecasts.demand if each.kind == REQUESTS]
    if not demand:
        return []
    place = {name: (each, at) for each in demand for at, name in enumerate(each.series)}
    services = observation.snapshot.services
    return [
        _ahead(
            row,
            place.get(name),
            records.get(str(services.uid[row]), ServiceRecord()),
            observation,
            policy,
        )
        for row, name in enumerate(services.id.tolist())
    ]


def _ahead(
    row: int,
    found: tuple[Forecast, int] | None,
    record: ServiceRecord,
    observation: Observation,
    policy: Policy,
) -> Ahead:
    """Replicas called for by the forecast of one service."""
    rules, services, now_s = policy.scale_ahead, observation.snapshot.services, observation.now_s
    lead_s, capacity = lead_time_s(record, rules), capacity_rps(record, rules.violation_ratio)
    if found is None:
        return _unknown(row, lead_s, capacity, NoteCode.NO_FORECAST)
    forecast, series = found
    age_s = now_s - forecast.made_s
    within_s = min(max(lead_s + age_s, forecast.horizons_s[0]), forecast.horizons_s[-1])
    level = _first(forecast.levels, rules.level - 1e-9)
    demand_rps = demand_at(forecast, series, within_s, rules.level)
    needed = int(services.needed_replicas[row])
    said = Ahead(
        row, -1, demand_rps, capacity, min(rules.level, forecast.levels[level]), within_s, lead_s, forecast, series
    )
    if isnan(demand_rps):
        why = forecast.reasons[series] if forecast.reasons else ""
        return _unknown(row, lead_s, capacity, NoteCode.FORECAST_ABSTAINS, Evidence("reason", why or "no reason given"))
    if isnan(capacity):
        return _unknown(row, lead_s, capacity, NoteCode.REPLICA_LOAD_UNKNOWN)
    if needed < 0 or not services.age_s[row] <= policy.freshness.telemetry_s:
        return _unknown(row, lead_s, capacity, NoteCode.LOAD_UNKNOWN)
    most = min(int(services.max_replicas[row]), ceil(rules.most_ratio * max(needed, 1)))
    wanted = min(ceil(demand_rps / capacity - 1e-9), most)
    return judged(replace(said, replicas=wanted), now_s, rules)


def peak_quantiles(forecast: Forecast, series: int, within_s: float) -> F64:
    """Quantiles of the highest demand of a series within `within_s` after the forecast was made.

    Shape [levels]; NaN: unknown. Between two horizons they are interpolated linearly in the log of the time. This is
    slightly conservative, because the growth of the highest demand slows with time.
    """
    steps = forecast.horizons_s
    after = _first(steps, within_s)
    values = forecast.values[series, after]
    if after == 0 or within_s >= steps[after]:
        return np.asarray(values)
    share = log(within_s / steps[after - 1]) / log(steps[after] / steps[after - 1])
    between = (1.0 - share) * forecast.values[series, after - 1] + share * values
    return np.asarray(np.where(np.isnan(between), values, between))


def demand_at(forecast: Forecast, series: int, within_s: float, level: float) -> float:
    """`peak_quantiles` at one level: linear in the normal score between two levels, else the nearest level.

    The lowest level is the median of the demand itself; only the higher levels are calibrated for its maximum.
    """
    levels, values = forecast.levels, peak_quantiles(forecast, series, within_s)
    above = _first(levels, level - 1e-9)
    if above == 0 or level >= levels[above] - 1e-9:
        return float(values[above])
    low, here, high = (NormalDist().inv_cdf(each) for each in (levels[above - 1], level, levels[above]))
    share = (here - low) / (high - low)
    return float((1.0 - share) * values[above - 1] + share * values[above])


def beyond_served(ahead: Ahead, served_rps: float, within_s: float) -> tuple[float, float]:
    """(probability of a demand above `served_rps`, expected excess in requests/s), from the quantiles.

    The quantile function is linear between two levels and constant beyond the outer ones.
    """
    forecast = ahead.forecast
    if forecast is None:
        return 0.0, 0.0
    levels = np.array([0.0, *forecast.levels, 1.0])
    values = peak_quantiles(forecast, ahead.series, within_s)
    values = np.array([values[0], *values, values[-1]])
    if isnan(float(values.sum())):
        return 0.0, 0.0
    grid = np.linspace(0.0, 1.0, 201)
    excess = np.maximum(np.interp(grid, levels, values) - served_rps, 0.0)
    return float((excess > 0).mean()), float(excess.mean())


def _first(steps: tuple[float, ...], least: float) -> int:
    """Index of the first of ascending `steps` of at least `least`; the last if none is."""
    return next((at for at, step in enumerate(steps) if step >= least), len(steps) - 1)


def _unknown(row: int, lead_s: float, capacity: float, why: NoteCode, *facts: Evidence) -> Ahead:
    code, unit = Code.FORECAST_UNKNOWN, "requests/s"
    return Ahead(row, -1, nan, capacity, nan, nan, lead_s, None, -1, code, nan, nan, unit, False, why, facts)


def judged(ahead: Ahead, now_s: float, rules: ScaleAhead) -> Ahead:
    """`ahead` with a judgement of its forecast at `now_s`; without a forecast it is unknown.

    The forecast must be fresh, not drifting, with enough outcomes, and calibrated at the covering horizon.
    """
    forecast, series = ahead.forecast, ahead.series
    if forecast is None:
        return _judge(ahead, Code.FORECAST_UNKNOWN, nan, nan, "requests/s")
    age_s, level = now_s - forecast.made_s, _first(forecast.levels, rules.level - 1e-9)
    if not 0.0 <= age_s <= rules.forecast_age_s:
        return _judge(ahead, Code.FORECAST_STALE, age_s, rules.forecast_age_s, "s since it was made")
    if len(forecast.drifting) and forecast.drifting[series]:
        return _judge(ahead, Code.FORECAST_DRIFTING, 1.0, 0.0, "models out of their usual error")
    horizon = _first(forecast.horizons_s, ahead.within_s)
    outcomes = float(forecast.outcomes[series, horizon]) if forecast.outcomes.size else 0.0
    if outcomes < rules.least_outcomes:
        return _judge(ahead, Code.FORECAST_UNPROVEN, outcomes, rules.least_outcomes, "outcomes so far", at_least=True)
    promised = forecast.levels[level]  # for a level between two promised levels, the upper one must be kept
    least = promised - rules.coverage_slack
    held = float(forecast.coverage[series, horizon, level]) if outcomes else promised  # taken at its word
    code = Code.OK if held >= least else Code.FORECAST_UNCALIBRATED
    return _judge(ahead, code, held, least, "of the outcomes within the promise", at_least=True)


def _judge(ahead: Ahead, code: Code, value: float, threshold: float, unit: str, *, at_least: bool = False) -> Ahead:
    return replace(ahead, code=code, value=value, threshold=float(threshold), unit=unit, at_least=at_least)


def ahead_mask(snapshot: ClusterSnapshot) -> Bools:
    """Pending replicas beyond the need of the present load: the youngest ones. Shape [workloads].

    If the need is unknown, all are needed.
    """
    work, services = snapshot.workloads, snapshot.services
    mask = np.zeros(len(work.id), np.bool_)
    beyond = np.where(services.needed_replicas >= 0, services.replicas - services.needed_replicas, 0)
    for row in np.flatnonzero(beyond > 0).tolist():
        waiting = np.flatnonzero((work.service == row) & (work.state == State.PENDING))
        youngest_last = waiting[np.lexsort((waiting, work.submit_s[waiting]))]
        mask[youngest_last[max(len(waiting) - int(beyond[row]), 0) :]] = True
    return mask
