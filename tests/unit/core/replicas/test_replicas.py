"""What is learned of services, and what forecasts ask of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.forecast import TOKENS, Forecast, Forecasts
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.replicas import ReplicasMemory, ServiceRecord
from autopilot.core.model.objects import ServingRole
from autopilot.core.model.policy import Policy, ScaleAhead
from autopilot.core.model.records import Code, Evidence, NoteCode, Observation
from autopilot.core.model.snapshot import ServiceTable, State, make
from autopilot.core.planning.foresight import Ahead, ahead_mask, capacity_rps, foresee, lead_time_s, peak_quantiles
from autopilot.core.replicas.follow import remember_services
from autopilot.records.memory import memory_text, read_memory_text
from tests.kits.core_world import holds, observe, snapshot, waits
from tests.kits.demand_world import HORIZONS_S, forecast
from tests.kits.ticks import follow

RULES = ScaleAhead(level=0.99, dwell_s=600.0)
POLICY = Policy(scale_ahead=RULES)
LEARNED = ServiceRecord(at_target_rps=(2.0,) * 8)
"""A record that says: two requests/s a replica."""


def services(**columns: Any) -> ServiceTable:
    """One service, well and known, unless `columns` say otherwise."""
    usual: dict[str, Any] = {
        "id": ["chat"],
        "uid": ["chat"],
        "objective_s": [10.0],
        "p99_s": [5.0],
        "age_s": [0.0],
        "ready_replicas": [2],
        "replicas": [2],
        "min_replicas": [1],
        "max_replicas": [20],
        "needed_replicas": [2],
        "load_ratio": [1.0],
        "recent_rps": [4.0],
        "recent_violation_ratio": [0.0],
        "queue_depth": [0.0],
    }
    table: ServiceTable = make(ServiceTable, **(usual | columns))
    return table


def seen(now_s: float, *demand: Forecast, work: Any = (), **columns: Any) -> Observation:
    """An observation of that service."""
    snap = replace(snapshot("2x8", work), services=services(**columns))
    return replace(observe(snap, now_s), forecasts=Forecasts(demand=demand))


def asked(
    *demand: Forecast,
    record: ServiceRecord = LEARNED,
    now_s: float = 0.0,
    policy: Policy = POLICY,
    **columns: Any,
) -> Ahead:
    """What the forecasts ask of the service."""
    (ahead,) = foresee(seen(now_s, *demand, **columns), {"chat": record}, policy)
    return ahead


def minutes(
    loads: list[tuple[float, float]], ready: int = 1, queue: tuple[float, ...] = (), **columns: Any
) -> ServiceRecord:
    """What is learned from minutes of (requests/s, share of violations) with a given number of ready replicas."""
    memory = follow(remember_services, ControllerMemory(), seen(0.0, ready_replicas=[ready], age_s=[np.inf]), POLICY)
    for number, (rps, over) in enumerate(loads, 1):
        waiting = queue[number - 1] if queue else 0.0
        observation = seen(
            60.0 * number,
            ready_replicas=[ready],
            recent_rps=[rps],
            recent_violation_ratio=[over],
            queue_depth=[waiting],
            **columns,
        )
        memory = follow(remember_services, memory, observation, POLICY)
    return memory.replicas.services["chat"]


# --- what a replica serves --------------------------------------------------------------------------


def test_a_replica_serves_the_highest_load_that_kept_the_objective() -> None:
    """Up to 10 requests/s nothing is late, above a tenth is: ten it is, within a bin of a tenth."""
    record = minutes([(rps, 0.0) for rps in (6.0, 8.0, 10.0) * 3] + [(12.0, 0.1)] * 3, load_ratio=[np.nan])
    assert 9.0 < capacity_rps(record, 0.01) <= 10.0


def test_a_pool_learns_from_its_own_objectives_alone() -> None:
    """Late first tokens show that a pool of prefill is full, and say nothing about the pool of decode beside it."""
    late: dict[str, Any] = {
        "objective_s": [np.nan],
        "ttft_objective_s": [0.5],
        "itl_objective_s": [0.05],
        "recent_itl_violation_ratio": [0.0],
        "load_ratio": [np.nan],
    }
    loads = [(10.0, np.nan)] * 3

    def serves(role: ServingRole, ttft: float) -> float:
        found = minutes(loads, recent_ttft_violation_ratio=[ttft], role=[role], **late)
        return capacity_rps(found, 0.01)

    assert 9.0 < serves(ServingRole.DECODE, 0.5) <= 10.0
    assert np.isnan(serves(ServingRole.WHOLE, 0.5))
    assert 9.0 < serves(ServingRole.WHOLE, 0.0) <= 10.0
    assert np.isnan(serves(ServingRole.WHOLE, np.nan)), "an objective that is not measured is not met"
    assert 9.0 < serves(ServingRole.DECODE, np.nan) <= 10.0


def test_one_bad_minute_at_a_low_load_condemns_no_higher_one() -> None:
    """The share of violations grows with the load: neighbours that say otherwise are taken together."""
    loads = [(6.0, 0.0)] * 3 + [(4.0, 0.02)] + [(8.0, 0.0)] * 20
    assert 7.0 < capacity_rps(minutes(loads, load_ratio=[np.nan]), 0.01) <= 8.0


def test_minutes_that_began_with_a_queue_say_nothing_about_their_load() -> None:
    """What is late then is the load of the minutes before; without that rule nothing would be known to be served."""
    loads, queue = [(5.0, 0.5)] * 20, (3.0,) * 20
    assert np.isnan(capacity_rps(minutes(loads, queue=queue, load_ratio=[np.nan]), 0.01))
    assert minutes(loads, queue=queue).loads == ()
    assert minutes(loads).loads != ()


def test_the_owners_target_counts_where_it_was_not_seen_to_be_too_much() -> None:
    """At half its target two replicas serve four requests/s: four each at the target, unless three were too many."""
    half = minutes([(4.0, 0.0)] * 10, ready=2, load_ratio=[0.5])
    assert capacity_rps(half, 0.01) == pytest.approx(4.0)
    # a tenth of the requests late at 1.1^11 = 2.85 a replica
    worse = replace(half, loads=((11, 1000.0, 100.0),))
    assert capacity_rps(worse, 0.01) == pytest.approx(1.1**11)
    # the owner keeps more in hand than the objective needs
    better = replace(half, loads=((20, 1000.0, 0.0),))
    assert capacity_rps(better, 0.01) == pytest.approx(4.0)


def test_a_broken_reading_is_no_load() -> None:
    """One that no fleet serves, or none at all: nothing is learned, and the decision goes on."""
    for rps in (np.inf, np.nan, 5e-324):
        assert minutes([(rps, 0.0)] * 5, ready=2).loads == ()


def test_what_was_learned_fades_while_nothing_is_asked() -> None:
    """A bad hour before a release counts half after an idle day, whichever minutes were counted since."""
    bad = minutes([(10.0, 0.2)] * 61)
    memory = ControllerMemory(replicas=ReplicasMemory(services={"chat": bad}))
    for number in range(1, 24 * 60):
        memory = follow(
            remember_services, memory, seen(3660.0 + 60.0 * number, ready_replicas=[1], recent_rps=[0.0]), POLICY
        )
    (left,) = memory.replicas.services["chat"].loads
    assert left[1] == pytest.approx(bad.loads[0][1] / 2, rel=0.02)


def test_little_traffic_proves_nothing() -> None:
    """Three hundred requests are needed to see one in a hundred, and five minutes to know the owner's target."""
    assert np.isnan(capacity_rps(minutes([(0.5, 0.0)] * 5, load_ratio=[np.nan]), 0.01))
    assert np.isnan(capacity_rps(minutes([(0.5, 0.0)] * 4), 0.01))
    assert capacity_rps(minutes([(0.5, 0.0)] * 8), 0.01) == pytest.approx(0.5)


def test_nothing_is_learned_while_replicas_come_and_go_or_telemetry_is_old() -> None:
    """A minute counts when the ready replicas stood still through it, its figures are fresh, and once."""
    memory = ControllerMemory()
    for number in range(1, 20):
        memory = follow(remember_services, memory, seen(60.0 * number, ready_replicas=[1 + number % 2]), POLICY)
    assert memory.replicas.services["chat"].at_target_rps == ()
    assert minutes([(5.0, 0.0)] * 9, age_s=[181.0]).at_target_rps == ()
    often = ControllerMemory()
    for number in range(1, 31):
        often = follow(remember_services, often, seen(10.0 * number, age_s=[(10.0 * number) % 60]), POLICY)
    assert len(often.replicas.services["chat"].at_target_rps) == 5
    # the first began before the first look
    assert often.replicas.services["chat"].loads[0][1] == pytest.approx(4 * 240, rel=0.01)


# --- the lead time ----------------------------------------------------------------------------------


def test_the_lead_time_is_a_high_quantile_of_measured_start_ups() -> None:
    """From taking its GPUs to serving, by replica; the policy's figure before there is one."""
    memory = ControllerMemory()
    for number in range(10):
        start_s, length_s = 1000.0 * number, 60.0 + 10 * number
        replica: dict[str, Any] = {"service": 0, "start_s": start_s}
        for now_s, state in ((start_s, State.STARTING), (start_s + length_s, State.RUNNING)):
            work = [holds(f"chat/{number}", 1, state=int(state), **replica)]
            memory = follow(remember_services, memory, seen(now_s, work=work), POLICY)
    record = memory.replicas.services["chat"]
    assert record.cold_starts_s == tuple(60.0 + 10 * number for number in range(10))
    assert lead_time_s(record, RULES) == 150.0
    assert lead_time_s(ServiceRecord(), RULES) == RULES.lead_s
    assert memory.replicas.starting_s == {}


def test_a_replica_that_was_restarted_meanwhile_is_not_measured() -> None:
    """Another start time is another start-up."""
    memory = ControllerMemory()
    for start_s, state in ((0.0, State.STARTING), (50.0, State.RUNNING)):
        work = [holds("chat/1", 1, service=0, start_s=start_s, state=int(state))]
        memory = follow(remember_services, memory, seen(100.0, work=work), POLICY)
    assert memory.replicas.services["chat"].cold_starts_s == ()


# --- what is asked for ------------------------------------------------------------------------------


def test_replicas_are_the_upper_quantile_over_what_one_serves() -> None:
    """Eleven requests/s at 0.99, two a replica: six."""
    demand = forecast({"chat": (6.0, 8.0, 11.0)})
    sure = replace(POLICY, scale_ahead=replace(RULES, level=0.99))
    assert (asked(demand, policy=sure).replicas, asked(demand, policy=sure).level) == (6, 0.99)


@pytest.mark.parametrize(("level", "rps"), [(0.5, 6.0), (0.8, 7.3134), (0.9, 8.0), (0.95, 9.0432), (0.999, 11.0)])
def test_between_two_levels_the_demand_follows_the_normal_score(level: float, rps: float) -> None:
    """A bell curve's quantiles are those in between; above the highest level nothing is made up."""
    demand = forecast({"chat": (6.0, 8.0, 11.0)})
    said = asked(demand, policy=replace(POLICY, scale_ahead=replace(RULES, level=level)))
    assert said.demand_rps == pytest.approx(rps, abs=1e-4)
    assert said.level == min(level, 0.99)


def test_the_demand_is_that_within_lead_time_and_age() -> None:
    """A forecast of 40 s ago has 80 of its first 120 s left; between horizons by the log of the time; the longest at
    most.
    """
    assert HORIZONS_S == (120.0, 600.0)
    values = np.array([[[1.0, 1.0, 1.0], [5.0, 5.0, 5.0]]])
    demand = forecast({"chat": 0.0}, values=values)

    def demanded(start_up_s: float, now_s: float = 0.0) -> tuple[float, float]:
        said = asked(demand, record=replace(LEARNED, cold_starts_s=(start_up_s,)), now_s=now_s)
        return said.within_s, said.demand_rps

    assert demanded(1.0) == demanded(80.0, 40.0) == (120.0, 1.0)
    assert demanded(10_000.0) == demanded(600.0) == (600.0, 5.0)
    middle_s = float(np.sqrt(120.0 * 600.0))
    assert demanded(middle_s - 40.0, 40.0) == pytest.approx((middle_s, 3.0))
    unknown = forecast({"chat": 0.0}, values=np.array([[[np.nan] * 3, [5.0, 5.0, 5.0]]]))
    assert peak_quantiles(unknown, 0, middle_s).tolist() == [5.0, 5.0, 5.0]
    assert np.isnan(peak_quantiles(unknown, 0, 60.0)).all()


def test_a_wild_forecast_is_bounded() -> None:
    """By the owner's maximum, and by a multiple of what the load needs."""
    wild = forecast({"chat": 1e9})
    assert asked(wild).replicas == int(RULES.most_ratio) * 2
    assert asked(wild, needed_replicas=[15]).replicas == 20
    assert asked(wild, needed_replicas=[0]).replicas == int(RULES.most_ratio)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"needed_replicas": [-1]}, NoteCode.LOAD_UNKNOWN),
        ({"age_s": [181.0]}, NoteCode.LOAD_UNKNOWN),
        ({"age_s": [float("nan")]}, NoteCode.LOAD_UNKNOWN),
        ({"record": ServiceRecord()}, NoteCode.REPLICA_LOAD_UNKNOWN),
        ({"id": ["other"]}, NoteCode.NO_FORECAST),
    ],
)
def test_what_is_unknown_asks_for_nothing(columns: dict[str, Any], why: NoteCode) -> None:
    """No number is invented, and the reason is recorded."""
    ahead = asked(forecast({"chat": 100.0}), **columns)
    assert (ahead.replicas, ahead.code) == (-1, Code.FORECAST_UNKNOWN)
    assert ahead.unknown == why


def test_a_model_that_abstains_is_quoted() -> None:
    """NaN is no demand of zero."""
    ahead = asked(forecast({"chat": float("nan")}, reasons=("3 points of history",)))
    assert (ahead.replicas, ahead.unknown) == (-1, NoteCode.FORECAST_ABSTAINS)
    assert ahead.facts == (Evidence("reason", "3 points of history"),)
    assert foresee(seen(0.0, forecast({"chat": 9.0}, kind=TOKENS)), {"chat": LEARNED}, POLICY) == []


@pytest.mark.parametrize(
    ("more", "now_s", "code", "value"),
    [
        ({}, 180.0, Code.OK, 0.995),
        ({}, 181.0, Code.FORECAST_STALE, 181.0),
        ({"made_s": 10.0}, 0.0, Code.FORECAST_STALE, -10.0),
        ({"drifting": np.array([True])}, 0.0, Code.FORECAST_DRIFTING, 1.0),
        ({"outcomes": np.full((1, 2), 29, np.int32)}, 0.0, Code.FORECAST_UNPROVEN, 29.0),
        ({"outcomes": np.empty((0, 0), np.int32)}, 0.0, Code.FORECAST_UNPROVEN, 0.0),
        ({"coverage": np.full((1, 2, 3), 0.955)}, 0.0, Code.FORECAST_UNCALIBRATED, 0.955),
        ({"coverage": np.full((1, 2, 3), 0.965)}, 0.0, Code.OK, 0.965),
        ({"coverage": np.full((1, 2, 3), np.nan)}, 0.0, Code.FORECAST_UNCALIBRATED, np.nan),
    ],
)
def test_a_forecast_is_believed_when_it_is_fresh_steady_proven_and_calibrated(
    more: dict[str, Any], now_s: float, code: Code, value: float
) -> None:
    """Each with its number; what is not stated is not known to be good."""
    ahead = asked(forecast({"chat": 9.0}, **more), now_s=now_s)
    assert ahead.code == code
    assert ahead.value == pytest.approx(value, nan_ok=True)
    assert ahead.replicas == 5


def test_wishes_are_a_falling_staircase_of_what_was_trusted() -> None:
    """Higher wishes replace lower ones before them; what is older than the dwell, or not trusted, is not there."""
    record = replace(LEARNED, minute_s=0.0)
    memory = ControllerMemory(replicas=ReplicasMemory(services={"chat": record}))
    peaks = {0.0: 8.0, 60.0: 14.0, 120.0: 10.0, 180.0: 4.0, 240.0: 6.0}
    for now_s, peak in peaks.items():
        memory = follow(
            remember_services, memory, seen(now_s, forecast({"chat": peak}, now_s), recent_rps=[np.nan]), POLICY
        )
    assert memory.replicas.services["chat"].desired == ((60.0, 7), (120.0, 5), (240.0, 3))
    doubtful = forecast({"chat": 16.0}, 300.0, drifting=np.array([True]))
    memory = follow(remember_services, memory, seen(300.0, doubtful, recent_rps=[np.nan]), POLICY)
    assert memory.replicas.services["chat"].desired == ((60.0, 7), (120.0, 5), (240.0, 3))
    memory = follow(remember_services, memory, seen(660.0, recent_rps=[np.nan]), POLICY)
    assert memory.replicas.services["chat"].desired == ((120.0, 5), (240.0, 3))
    assert memory_text(read_memory_text(memory_text(memory), "test")) == memory_text(memory)


def test_a_service_out_of_sight_for_a_while_is_not_forgotten() -> None:
    """A collector that broke takes no knowledge away; a service gone for a day is dropped."""
    memory = ControllerMemory(replicas=ReplicasMemory(services={"chat": replace(LEARNED, minute_s=0.0)}))
    empty = observe(snapshot("1x8", []), 3600.0)
    assert "chat" in follow(remember_services, memory, empty, POLICY).replicas.services
    assert follow(remember_services, memory, replace(empty, now_s=90_000.0), POLICY).replicas.services == {}


# --- who is only foreseen ---------------------------------------------------------------------------


def test_the_youngest_replicas_beyond_the_need_are_ahead_of_it() -> None:
    """Five are wanted, three needed: the two youngest that wait are only foreseen, though the floor is gone already."""
    work = [
        holds("chat/1", 1, service=0),
        *(waits(f"chat/{n}", 1, service=0, submit_s=float(n)) for n in (5, 3, 4, 2)),
        waits("job", 1),
    ]
    for floor in (5, 0):
        snap = seen(0.0, work=work, replicas=[5], needed_replicas=[3], floor=[floor]).snapshot
        assert sorted(snap.workloads.id[ahead_mask(snap)].tolist()) == ["chat/4", "chat/5"]
    for columns in ({"replicas": [3], "needed_replicas": [3]}, {"replicas": [5], "needed_replicas": [-1]}):
        assert not ahead_mask(seen(0.0, work=work, **columns).snapshot).any()
