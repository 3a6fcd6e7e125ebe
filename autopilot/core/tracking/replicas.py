"""Replicas of services: what is learned of them, what a forecast asks for, and how far it is trusted.

Learned are, from the snapshot alone: how long a replica takes to start, and how many requests/s one is to serve by its
owner's target and its objective. A forecast of demand over the lead time then says how many replicas are wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, floor, inf, isnan, log, nan
from statistics import NormalDist, median

import numpy as np

from autopilot.core.model.forecast import REQUESTS, Forecast
from autopilot.core.model.memory import ControllerMemory, ServiceRecord
from autopilot.core.model.policy import Effect, Policy, ScaleAhead
from autopilot.core.model.policy_bounds import DAY_S
from autopilot.core.model.records import Code, Observation
from autopilot.core.model.snapshot import F64, Bools, ClusterSnapshot, ServiceTable, State

MINUTE_S = 60.0
"""Length of the window behind the `recent_...` columns of ServiceTable."""

BIN_RATIO = 1.1
"""Loads are counted in bins that are a tenth apart: finer than the noise of a minute's requests."""

HALF_LIFE_S = DAY_S
"""What was learned of a load counts half after a day: models and prompts change with releases, not by the hour."""

LEAST_REQUESTS = 300.0
"""Requests behind a judgement on a load: below three hundred a share of one in a hundred is chance."""

FORGOTTEN_REQUESTS = 1.0
"""A bin with less than this is dropped from memory."""

LATEST = 32
"""Start-ups, and minutes at the owner's target, that are remembered."""

LEAST_MINUTES = 5
"""Minutes behind an estimate of the load at the owner's target."""

LEAST_LOAD_RATIO = 0.05
"""Below this part of the target a replica is idle, and the division says nothing."""

COLD_START_LEVEL = 0.9
"""Quantile of the measured start-ups that is the lead time (forecasting reference, section 4)."""


Loads = tuple[tuple[int, float, float], ...]
"""Requests, and those over the objective, by the bin of a replica's load."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a forecast asks of one service: `replicas` (-1: nothing is known) and whether that is to be believed."""

    row: int
    replicas: int
    demand_rps: float
    capacity_rps: float  # that one replica is to serve
    level: float
    within_s: float  # of the forecast's making: lead time and age, or its longest horizon
    lead_s: float
    forecast: Forecast | None
    series: int
    code: Code = Code.OK
    value: float = 0.0
    threshold: float = 0.0
    unit: str = ""
    reason: str = ""


# --- what is learned --------------------------------------------------------------------------------


def remember_services(memory: ControllerMemory, observation: Observation, policy: Policy) -> ControllerMemory:
    """Memory after looking at the services: start-ups, loads, and what trusted forecasts wish for."""
    services = observation.snapshot.services
    if not len(services.id) and not memory.services and not memory.starting_s:
        return memory
    now_s, dwell_s = observation.now_s, policy.scale_ahead.dwell_s
    records = {
        uid: _in_dwell(record, now_s, dwell_s)
        for uid, record in memory.services.items()
        if not record.minute_s < now_s - DAY_S
    }
    for row, uid in enumerate(services.uid.tolist()):
        records[uid] = _learn(records.get(uid, ServiceRecord()), services, row, now_s, policy)
    started, starting_s = _start_ups(memory, observation)
    for row, length_s in started:
        uid = str(services.uid[row])
        times_s = (*records[uid].cold_starts_s, length_s)[-LATEST:]
        records[uid] = replace(records[uid], cold_starts_s=times_s)
    for ahead in foresee(observation, records, policy):
        uid = str(services.uid[ahead.row])
        records[uid] = _wish(records[uid], ahead)
    return replace(memory, services=records, starting_s=starting_s)


def _start_ups(memory: ControllerMemory, observation: Observation) -> tuple[list[tuple[int, float]], dict[str, float]]:
    """(service, seconds) of replicas that began to serve since the last look, and those that start up now."""
    work, services = observation.snapshot.workloads, observation.snapshot.services
    rows = np.flatnonzero((work.service >= 0) & (work.service < len(services.id)))
    starting_s: dict[str, float] = {}
    ended: list[tuple[int, float]] = []
    for row in rows[np.isin(work.state[rows], (State.STARTING, State.RUNNING))].tolist():
        name, start_s = str(work.uid[row]), float(work.start_s[row])
        if work.state[row] == State.STARTING:
            starting_s[name] = start_s
        elif memory.starting_s.get(name) == start_s:
            ended.append((int(work.service[row]), observation.now_s - start_s))
    return ended, starting_s


def _learn(record: ServiceRecord, services: ServiceTable, row: int, now_s: float, policy: Policy) -> ServiceRecord:
    """The record after one more look; each whole minute is learned from once.

    For the objective only minutes count through which the number of ready replicas stood still and that began with
    nobody waiting: a queue left over from before says nothing about this minute's load. For the owner's target half a
    minute of rest is enough, and nobody waits: a replica with a queue is full, however much comes.
    """
    ready, stands = int(services.ready_replicas[row]), int(services.floor[row])
    if stands != record.floor:
        record = replace(record, floor=stands, raised_s=now_s if stands > record.floor else record.raised_s)
    if ready != record.ready:
        record = replace(record, ready=ready, ready_since_s=now_s)
    age_s = float(services.age_s[row])
    minute_s = now_s - age_s
    if not age_s <= policy.freshness.telemetry_s or minute_s < record.minute_s + MINUTE_S / 2:
        return record
    rps, over = float(services.recent_rps[row]), float(services.recent_violation_ratio[row])
    load_ratio = float(services.load_ratio[row])
    at_target = record.at_target_rps
    loads = _aged(record.loads, min(minute_s - record.minute_s, 366 * DAY_S))
    clear = bool(services.queue_depth[row] == 0)
    stood_s = minute_s - record.ready_since_s
    if ready > 0 and rps < inf and rps / ready > 0:
        if load_ratio >= LEAST_LOAD_RATIO and clear and stood_s >= MINUTE_S / 2:
            at_target = (*at_target, rps / ready / load_ratio)[-LATEST:]
        if record.clear and over >= 0 and stood_s >= MINUTE_S:
            loads = _counted(loads, rps / ready, rps * MINUTE_S, over)
    return replace(
        record,
        minute_s=minute_s,
        clear=clear,
        loads=loads,
        at_target_rps=at_target,
    )


def _aged(loads: Loads, passed_s: float) -> Loads:
    """The bins `passed_s` later: what is older counts less, and what counts next to nothing is forgotten."""
    kept = 0.5 ** (passed_s / HALF_LIFE_S)
    return tuple(
        (number, asked * kept, missed * kept) for number, asked, missed in loads if asked * kept >= FORGOTTEN_REQUESTS
    )


def _counted(loads: Loads, load_rps: float, requests: float, over: float) -> Loads:
    """The bins with one more minute."""
    here = floor(log(load_rps) / log(BIN_RATIO))
    bins = {number: (asked, missed) for number, asked, missed in loads}
    asked, missed = bins.get(here, (0.0, 0.0))
    bins[here] = (asked + requests, missed + requests * over)
    return tuple((number, *bins[number]) for number in sorted(bins) if bins[number][0] >= FORGOTTEN_REQUESTS)


def capacity_rps(record: ServiceRecord, violation_ratio: float) -> float:
    """Requests/s that one replica is to serve; NaN while nothing was learned.

    That is the load that the service's owner scales by, unless it was seen to be too much: a floor is what the owner's
    own autoscaler will ask for when the foreseen load is there. Where the owner's target is not known it is the highest
    load at which at most `violation_ratio` of the requests missed the objective.
    """
    good, bad = _judged(record.loads, violation_ratio)
    if len(record.at_target_rps) < LEAST_MINUTES:
        return good
    return min(median(record.at_target_rps), bad)


def _judged(loads: tuple[tuple[int, float, float], ...], violation_ratio: float) -> tuple[float, float]:
    """The highest load that kept the objective (NaN: none is known), and the lowest that did not (inf).

    The share of violations grows with the load: neighbouring bins that say otherwise are taken together (isotonic
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
    """How long a replica takes to serve: a high quantile of the latest start-ups, the policy's before there was any."""
    if not record.cold_starts_s:
        return rules.lead_s
    times_s = sorted(record.cold_starts_s)
    return times_s[ceil(COLD_START_LEVEL * (len(times_s) - 1))]


# --- what is wished for -----------------------------------------------------------------------------


def foresee(observation: Observation, records: Mapping[str, ServiceRecord], policy: Policy) -> list[Ahead]:
    """What the forecasts of this tick ask of every service; empty where nobody forecasts demand."""
    demand = [each for each in observation.forecasts.demand if each.kind == REQUESTS]
    if not demand:
        return []
    place = {name: (each, at) for each in demand for at, name in enumerate(each.series)}
    services = observation.snapshot.services
    return [
        _ahead(
            row,
            name,
            place.get(name),
            records.get(str(services.uid[row]), ServiceRecord()),
            observation,
            policy,
        )
        for row, name in enumerate(services.id.tolist())
    ]


def _ahead(
    row: int,
    name: str,
    found: tuple[Forecast, int] | None,
    record: ServiceRecord,
    observation: Observation,
    policy: Policy,
) -> Ahead:
    """What one service's forecast asks for."""
    rules, services, now_s = policy.scale_ahead, observation.snapshot.services, observation.now_s
    lead_s, capacity = lead_time_s(record, rules), capacity_rps(record, rules.violation_ratio)
    if found is None:
        return _unknown(row, lead_s, capacity, f"no forecast speaks about {name}")
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
        return _unknown(row, lead_s, capacity, f"the forecast abstains{': ' + why if why else ''}")
    if isnan(capacity):
        return _unknown(row, lead_s, capacity, "not yet known how much a replica is to serve")
    if needed < 0 or not services.age_s[row] <= policy.freshness.telemetry_s:
        return _unknown(row, lead_s, capacity, "its load is not known, or not fresh")
    most = min(int(services.max_replicas[row]), ceil(rules.most_ratio * max(needed, 1)))
    wanted = min(ceil(demand_rps / capacity - 1e-9), most)
    return _trusted(replace(said, replicas=wanted), age_s, level, rules)


def peak_quantiles(forecast: Forecast, series: int, within_s: float) -> F64:
    """Quantiles of the highest demand of a series within `within_s` of the forecast's making. Shape [levels], NaN:
    none.

    Between two horizons they lie on a straight line over the log of the time, a little above where they are: a highest
    demand grows the slower, the longer one waits for it.
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
    """The same at one level: between two on a straight line over the normal score, outside the nearest one.

    The lowest level is the middle of the demand itself; only those above are calibrated to be kept by its highest.
    """
    levels, values = forecast.levels, peak_quantiles(forecast, series, within_s)
    above = _first(levels, level - 1e-9)
    if above == 0 or level >= levels[above] - 1e-9:
        return float(values[above])
    low, here, high = (NormalDist().inv_cdf(each) for each in (levels[above - 1], level, levels[above]))
    share = (here - low) / (high - low)
    return float((1.0 - share) * values[above - 1] + share * values[above])


def _first(steps: tuple[float, ...], least: float) -> int:
    """The first of ascending `steps` that is at least `least`; the last where none is."""
    return next((at for at, step in enumerate(steps) if step >= least), len(steps) - 1)


def _unknown(row: int, lead_s: float, capacity: float, reason: str) -> Ahead:
    return Ahead(
        row, -1, nan, capacity, nan, nan, lead_s, None, -1, Code.FORECAST_UNKNOWN, nan, nan, "requests/s", reason
    )


def _trusted(ahead: Ahead, age_s: float, level: int, rules: ScaleAhead) -> Ahead:
    """The same with a judgement: fresh, steady, proven by enough outcomes, and calibrated, by the horizon that covers
    it.
    """
    forecast, series = ahead.forecast, ahead.series
    if forecast is None:
        return ahead
    if not 0.0 <= age_s <= rules.forecast_age_s:
        return _judge(ahead, Code.FORECAST_STALE, age_s, rules.forecast_age_s, "s since it was made")
    if len(forecast.drifting) and forecast.drifting[series]:
        return _judge(ahead, Code.FORECAST_DRIFTING, 1.0, 0.0, "models out of their usual error")
    horizon = _first(forecast.horizons_s, ahead.within_s)
    outcomes = float(forecast.outcomes[series, horizon]) if forecast.outcomes.size else 0.0
    if outcomes < rules.least_outcomes:
        return _judge(ahead, Code.FORECAST_UNPROVEN, outcomes, rules.least_outcomes, "outcomes so far")
    promised = forecast.levels[level]  # of a level between two that are promised the upper one has to be kept
    least = promised - rules.coverage_slack
    held = float(forecast.coverage[series, horizon, level]) if outcomes else promised  # taken at its word
    code = Code.OK if held >= least else Code.FORECAST_UNCALIBRATED
    return _judge(ahead, code, held, least, "of the outcomes within the promise")


def _judge(ahead: Ahead, code: Code, value: float, threshold: float, unit: str) -> Ahead:
    return replace(ahead, code=code, value=value, threshold=float(threshold), unit=unit)


def _in_dwell(record: ServiceRecord, now_s: float, dwell_s: float) -> ServiceRecord:
    """The record without wishes that are older than the dwell."""
    if not record.desired or now_s < record.desired[0][0] + dwell_s:
        return record
    return replace(record, desired=tuple(desired for desired in record.desired if now_s < desired[0] + dwell_s))


def _wish(record: ServiceRecord, ahead: Ahead) -> ServiceRecord:
    """The record with what a trusted forecast wishes for."""
    if ahead.code != Code.OK or ahead.forecast is None:
        return record
    made_s = ahead.forecast.made_s
    kept = [(at_s, desired) for at_s, desired in record.desired if desired > ahead.replicas and at_s < made_s]
    return replace(record, desired=(*kept, (made_s, ahead.replicas)))


def desired_replicas(record: ServiceRecord, ahead: Ahead, now_s: float, dwell_s: float) -> int:
    """The floor that is wished for: the highest trusted wish of the dwell time, and no less than what stands for a
    shorter time than that; -1 where nothing is known now.
    """
    if ahead.code != Code.OK:
        return ahead.replicas
    desired = max((desired for _, desired in record.desired), default=ahead.replicas)
    return max(desired, record.floor) if now_s < record.raised_s + dwell_s else desired


def ahead_mask(snapshot: ClusterSnapshot) -> Bools:
    """Replicas that wait and are not needed by the present load: the youngest of those beyond the need. Shape
    [workloads].

    Where the need is not known all are needed.
    """
    work, services = snapshot.workloads, snapshot.services
    mask = np.zeros(len(work.id), np.bool_)
    beyond = np.where(services.needed_replicas >= 0, services.replicas - services.needed_replicas, 0)
    for row in np.flatnonzero(beyond > 0).tolist():
        waiting = np.flatnonzero((work.service == row) & (work.state == State.PENDING))
        youngest_last = waiting[np.lexsort((waiting, work.submit_s[waiting]))]
        mask[youngest_last[max(len(waiting) - int(beyond[row]), 0) :]] = True
    return mask


def floor_timers_s(memory: ControllerMemory, observation: Observation, policy: Policy) -> list[float]:
    """When time alone changes a floor: a wish leaves the dwell time, a lease is half over, a forecast becomes stale."""
    rules, services = policy.scale_ahead, observation.snapshot.services
    if not policy.modes.on(Effect.FLOOR):
        return []
    timers = [at_s + rules.dwell_s for record in memory.services.values() for at_s, _ in record.desired]
    timers += [record.raised_s + rules.dwell_s for record in memory.services.values() if record.floor]
    timers += (services.floor_until_s[services.floor > 0] - rules.lease_s / 2).tolist()
    timers += [each.made_s + rules.forecast_age_s for each in observation.forecasts.demand]
    return timers
