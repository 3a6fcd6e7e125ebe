"""Replicas of services: measurements, the replicas that a forecast calls for, and whether it is trusted.

Two quantities are measured, from the snapshot alone: the start-up time of a replica, and the requests/s that one
replica should serve by its owner's target and its objective. With them, a forecast of the demand over the lead time
gives the desired number of replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, floor, inf, isnan, log, nan
from statistics import NormalDist, median

import numpy as np

from autopilot.core.model.forecast import REQUESTS, Forecast
from autopilot.core.model.memory import ControllerMemory, ServiceRecord
from autopilot.core.model.objectives import missed_ratio
from autopilot.core.model.policy import ACTIONS_WITH, Effect, Policy, ScaleAhead
from autopilot.core.model.policy_bounds import DAY_S, RoomRules
from autopilot.core.model.records import Code, Evidence, NoteCode, Observation
from autopilot.core.model.snapshot import F64, Bools, ClusterSnapshot, ServiceTable, State

MINUTE_S = 60.0
"""Window of the `recent_...` columns of ServiceTable."""

BIN_RATIO = 1.1
"""Ratio between load bins: one tenth is finer than the noise of a minute's requests."""

HALF_LIFE_S = DAY_S
"""Half-life of load measurements: models and prompts change with releases, not by the hour."""

LEAST_REQUESTS = 300.0
"""Requests needed to judge a load: below three hundred, a share of one in a hundred is chance."""

FORGOTTEN_REQUESTS = 1.0
"""A bin with fewer requests than this is dropped from memory."""

LATEST = 32
"""Number of start-ups, and of minutes at the owner's target, kept in memory."""

LEAST_MINUTES = 5
"""Minutes needed for an estimate of the load at the owner's target."""

LEAST_LOAD_RATIO = 0.05
"""Below this part of the target a replica is idle, and the estimate is meaningless."""

COLD_START_LEVEL = 0.9
"""Quantile of the measured start-ups used as lead time (forecasting reference, section 4)."""


Loads = tuple[tuple[int, float, float], ...]
"""Requests, and those over the objective that was missed most, by the bin of a replica's load."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """The replicas that a forecast calls for in one service (`replicas`, -1: unknown), and whether it is trusted."""

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


# --- measurements -----------------------------------------------------------------------------------


def remember_services(memory: ControllerMemory, observation: Observation, policy: Policy) -> ControllerMemory:
    """Memory updated from the services: start-ups, loads, and the replicas that trusted forecasts call for."""
    services = observation.snapshot.services
    if not len(services.id) and not memory.services and not memory.starting_s:
        return memory
    now_s, dwell_s = observation.now_s, policy.scale_ahead.dwell_s
    records = {
        uid: _in_dwell(record, now_s, dwell_s)
        for uid, record in memory.services.items()
        if not record.minute_s < now_s - DAY_S
    }
    room_s = _room_made_s(memory, observation)
    worst, unknown = missed_ratio(services)
    missed = np.where(unknown, nan, worst).tolist()
    for row, uid in enumerate(services.uid.tolist()):
        if row in room_s:
            record = records.get(uid, ServiceRecord())
            records[uid] = replace(record, room_s=max(record.room_s, room_s[row]))
        records[uid] = _learn(records.get(uid, ServiceRecord()), services, row, missed[row], now_s, policy)
    started, starting_s = _start_ups(memory, observation)
    for row, length_s in started:
        uid = str(services.uid[row])
        times_s = (*records[uid].cold_starts_s, length_s)[-LATEST:]
        records[uid] = replace(records[uid], cold_starts_s=times_s)
    for ahead in foresee(observation, records, policy):
        uid = str(services.uid[ahead.row])
        records[uid] = _wish(records[uid], ahead)
    return replace(memory, services=records, starting_s=starting_s)


def _room_made_s(memory: ControllerMemory, observation: Observation) -> dict[int, float]:
    """When work was last told to leave for a replica of each service that still waits for it, by row."""
    starts = [each for each in memory.pipelined_starts if each.action in ACTIONS_WITH[Effect.ROOM] and each.victims]
    if not starts:
        return {}
    work, made_s = observation.snapshot.workloads, dict[int, float]()
    for start in starts:
        for service in work.service[work.uid == start.uid].tolist():
            made_s[service] = max(made_s.get(service, -inf), start.since_s)
    return made_s


def _start_ups(memory: ControllerMemory, observation: Observation) -> tuple[list[tuple[int, float]], dict[str, float]]:
    """(service, seconds) of replicas that began to serve since the last tick, and the replicas starting up now."""
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


def _learn(
    record: ServiceRecord, services: ServiceTable, row: int, over: float, now_s: float, policy: Policy
) -> ServiceRecord:
    """The record after one more tick; each whole minute is counted once. `over`: the share of requests over an
    objective.

    For the objectives, a minute counts only if the number of ready replicas was constant and no request waited at its
    start: an earlier queue is not due to the load of this minute. For the owner's target, half a minute with a constant
    number of replicas is enough, and no request may wait: a replica with a queue is full at any arrival rate.
    """
    ready, stands = int(services.ready_replicas[row]), int(services.floor[row])
    if stands != record.floor:
        falls = stands < record.floor
        record = replace(
            record,
            floor=stands,
            raised_s=record.raised_s if falls else now_s,
            returned_s=now_s if falls and record.room_s > record.returned_s else record.returned_s,
        )
    if ready != record.ready:
        record = replace(record, ready=ready, ready_since_s=now_s)
    age_s = float(services.age_s[row])
    minute_s = now_s - age_s
    if not age_s <= policy.freshness.telemetry_s or minute_s < record.minute_s + MINUTE_S / 2:
        return record
    rps = float(services.recent_rps[row])
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
    """The bins `passed_s` later: counts decay, and bins below the least count are dropped."""
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
    """Requests/s that one replica should serve; NaN without measurements.

    It is the owner's target load, unless that load was measured to be too high: a floor anticipates what the owner's
    autoscaler will request under the forecast load. If the target is unknown, it is the highest load at which at most
    `violation_ratio` of the requests missed the objective.
    """
    good, bad = _judged(record.loads, violation_ratio)
    if len(record.at_target_rps) < LEAST_MINUTES:
        return good
    return min(median(record.at_target_rps), bad)


def _judged(loads: tuple[tuple[int, float, float], ...], violation_ratio: float) -> tuple[float, float]:
    """The highest load that met the objective (NaN: unknown), and the lowest that missed it (inf: unknown).

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
    """Lead time of a replica: a high quantile of the latest start-ups, or that of the policy without any."""
    if not record.cold_starts_s:
        return rules.lead_s
    times_s = sorted(record.cold_starts_s)
    return times_s[ceil(COLD_START_LEVEL * (len(times_s) - 1))]


# --- desired replicas -------------------------------------------------------------------------------


def foresee(observation: Observation, records: Mapping[str, ServiceRecord], policy: Policy) -> list[Ahead]:
    """The replicas that the forecasts of this tick call for, by service; empty without forecasts of demand."""
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
    """The replicas that the forecast of one service calls for."""
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
    """(probability that the demand exceeds `served_rps`, expected excess in requests/s), from the quantiles.

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
    """Index of the first of ascending `steps` that is at least `least`; the last if none is."""
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


def _in_dwell(record: ServiceRecord, now_s: float, dwell_s: float) -> ServiceRecord:
    """The record without desired replicas that are older than the dwell time."""
    if not record.desired or now_s < record.desired[0][0] + dwell_s:
        return record
    return replace(record, desired=tuple(desired for desired in record.desired if now_s < desired[0] + dwell_s))


def _wish(record: ServiceRecord, ahead: Ahead) -> ServiceRecord:
    """The record with the replicas that a trusted forecast calls for."""
    if ahead.code != Code.OK or ahead.forecast is None:
        return record
    made_s = ahead.forecast.made_s
    kept = [(at_s, desired) for at_s, desired in record.desired if desired > ahead.replicas and at_s < made_s]
    return replace(record, desired=(*kept, (made_s, ahead.replicas)))


def desired_replicas(record: ServiceRecord, ahead: Ahead, now_s: float, dwell_s: float) -> int:
    """The desired floor: the highest number from trusted forecasts within the dwell time; -1 if unknown now.

    It is not below a floor that was raised more recently than that.
    """
    if ahead.code != Code.OK:
        return ahead.replicas
    desired = max((desired for _, desired in record.desired), default=ahead.replicas)
    return max(desired, record.floor) if now_s < record.raised_s + dwell_s else desired


def room_until_s(record: ServiceRecord, rules: RoomRules) -> float:
    """Until when the floor of a service may not fall, because room was made for it: for the dwell time, and so that
    room is returned at most once within `rules.reversal_s`. -inf without such room.
    """
    if record.room_s <= record.returned_s:
        return -inf
    return max(record.room_s + rules.dwell_s, record.returned_s + rules.reversal_s)


def ahead_mask(snapshot: ClusterSnapshot) -> Bools:
    """Pending replicas that the present load does not need: the youngest ones beyond the need. Shape [workloads].

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


def floor_timers_s(memory: ControllerMemory, observation: Observation, policy: Policy) -> list[float]:
    """Times at which a floor may change: an entry leaves the dwell time, half a lease is over, a forecast is stale."""
    rules, services = policy.scale_ahead, observation.snapshot.services
    if not policy.modes.on(Effect.FLOOR):
        return []
    timers = [at_s + rules.dwell_s for record in memory.services.values() for at_s, _ in record.desired]
    timers += [record.raised_s + rules.dwell_s for record in memory.services.values() if record.floor]
    timers += [room_until_s(record, policy.room) for record in memory.services.values() if record.floor]
    timers += (services.floor_until_s[services.floor > 0] - rules.lease_s / 2).tolist()
    timers += services.floor_until_s[~np.isnan(services.floor_until_s)].tolist()
    timers += [each.made_s + rules.forecast_age_s for each in observation.forecasts.demand]
    return timers
