"""Replicas of services: their measurements in memory, and the floor derived from them.

Two quantities are measured, from the snapshot alone: the start-up time of a replica, and the requests/s for one replica
by its owner's target and its objective. With them, a forecast gives the desired number of replicas
(planning/foresight.py).
"""

from __future__ import annotations

from dataclasses import replace
from math import floor, inf, log, nan

import numpy as np

from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.replicas import ServiceRecord
from autopilot.core.model.objectives import missed_ratio
from autopilot.core.model.policy import ACTIONS_WITH, Effect, Policy
from autopilot.core.model.policy.bounds import DAY_S, RoomRules
from autopilot.core.model.records import Code, Observation
from autopilot.core.model.snapshot import ServiceTable, State
from autopilot.core.planning.foresight import BIN_RATIO, Ahead, foresee

MINUTE_S = 60.0
"""Window of the `recent_...` columns of ServiceTable."""


HALF_LIFE_S = DAY_S
"""Half-life of load measurements: models and prompts change with releases, not by the hour."""


FORGOTTEN_REQUESTS = 1.0
"""A bin with fewer requests than this is dropped from memory."""

LATEST = 32
"""Number of start-ups, and of minutes at the owner's target, kept in memory."""


LEAST_LOAD_RATIO = 0.05
"""Below this part of the target a replica is idle, and the estimate is meaningless."""


Loads = tuple[tuple[int, float, float], ...]
"""Requests, and those over the objective that was missed most, by the bin of a replica's load."""


# --- measurements -----------------------------------------------------------------------------------


def remember_services(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory updated from the services: start-ups, loads, and the replicas called for by trusted forecasts."""
    observation, policy, services = tick.observation, tick.policy, tick.observation.snapshot.services
    if not len(services.id) and not memory.replicas.services and not memory.replicas.starting_s:
        return memory
    now_s, dwell_s = observation.now_s, policy.scale_ahead.dwell_s
    records = {
        uid: _in_dwell(record, now_s, dwell_s)
        for uid, record in memory.replicas.services.items()
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
    return replace(memory, replicas=replace(memory.replicas, services=records, starting_s=starting_s))


def _room_made_s(memory: ControllerMemory, observation: Observation) -> dict[int, float]:
    """Time of the last request to leave for a still waiting replica of each service, by row."""
    starts = [
        each for each in memory.starts.pipelined_starts if each.action in ACTIONS_WITH[Effect.ROOM] and each.victims
    ]
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
        elif memory.replicas.starting_s.get(name) == start_s:
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


# --- desired replicas -------------------------------------------------------------------------------


def _in_dwell(record: ServiceRecord, now_s: float, dwell_s: float) -> ServiceRecord:
    """The record without desired replicas older than the dwell time."""
    if not record.desired or now_s < record.desired[0][0] + dwell_s:
        return record
    return replace(record, desired=tuple(desired for desired in record.desired if now_s < desired[0] + dwell_s))


def _wish(record: ServiceRecord, ahead: Ahead) -> ServiceRecord:
    """The record with the replicas called for by a trusted forecast."""
    if ahead.code != Code.OK or ahead.forecast is None:
        return record
    made_s = ahead.forecast.made_s
    kept = [(at_s, desired) for at_s, desired in record.desired if desired > ahead.replicas and at_s < made_s]
    return replace(record, desired=(*kept, (made_s, ahead.replicas)))


def desired_replicas(record: ServiceRecord, ahead: Ahead, now_s: float, dwell_s: float) -> int:
    """The desired floor: the highest number from trusted forecasts within the dwell time; -1 if unknown now.

    It is not below a floor raised more recently than that.
    """
    if ahead.code != Code.OK:
        return ahead.replicas
    desired = max((desired for _, desired in record.desired), default=ahead.replicas)
    return max(desired, record.floor) if now_s < record.raised_s + dwell_s else desired


def room_until_s(record: ServiceRecord, rules: RoomRules) -> float:
    """Earliest fall of the floor of a service with room made for it; -inf without such room.

    The room stands for the dwell time, and is returned at most once within `rules.reversal_s`.
    """
    if record.room_s <= record.returned_s:
        return -inf
    return max(record.room_s + rules.dwell_s, record.returned_s + rules.reversal_s)


def floor_timers_s(memory: ControllerMemory, planned: Planned) -> list[float]:
    """Times at which a floor may change: an entry leaves the dwell time, half a lease is over, a forecast is stale."""
    observation, policy = planned.observation, planned.policy
    rules, services = policy.scale_ahead, observation.snapshot.services
    if not policy.modes.on(Effect.FLOOR):
        return []
    timers = [at_s + rules.dwell_s for record in memory.replicas.services.values() for at_s, _ in record.desired]
    timers += [record.raised_s + rules.dwell_s for record in memory.replicas.services.values() if record.floor]
    timers += [room_until_s(record, policy.room) for record in memory.replicas.services.values() if record.floor]
    timers += (services.floor_until_s[services.floor > 0] - rules.lease_s / 2).tolist()
    timers += services.floor_until_s[~np.isnan(services.floor_until_s)].tolist()
    timers += [each.made_s + rules.forecast_age_s for each in observation.forecasts.demand]
    return timers
