"""The queue behind a service against closed forms, its counts, its changes, and replica control."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autopilot.core.model.errors import InputError, InvariantError
from autopilot.core.model.snapshot import F64
from simulator.inference.autoscaler import Autoscaler, AutoscalerSpec, metric_between
from simulator.inference.requests import Arrivals, Floats, ListedArrivals
from simulator.inference.serving import ServiceSim, serving_totals
from simulator.inference.serving_queue import RELATIVE_ERROR, LatencyCounts, _by_heap, fcfs_starts
from simulator.inference.serving_records import Served, ServiceSpec

REPETITIONS = 24


def service(slots: int = 1, objective_s: float | None = None) -> ServiceSpec:
    """A service that holds a slot one microsecond per output token."""
    return ServiceSpec(
        name="chat", slots=slots, prefill_tokens_per_s=1e9, decode_tokens_per_s=1e6, objective_s=objective_s
    )


def listed(t_s: list[float] | Floats, service_s: list[float] | Floats) -> ListedArrivals:
    """Arrivals for `service()`: a time and a service in seconds each."""
    tokens = np.rint(np.asarray(service_s) * 1e6).astype(np.int64)
    return ListedArrivals(Arrivals(np.asarray(t_s, dtype=np.float64), np.zeros_like(tokens), tokens))


def erlang_c(servers: int, offered: float) -> float:
    """Probability of waiting in M/M/c (Erlang, 1917)."""
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return last / (sum(terms) + last)


def waits(rng: np.random.Generator, servers: int, load: float, service_s: Floats) -> Floats:
    """Waits of Poisson arrivals at `load`, the first fifth left out as warm-up."""
    count = len(service_s)
    arrival_s = np.cumsum(rng.exponential(1 / (load * servers), count))
    start_s = fcfs_starts(arrival_s, service_s, np.zeros(servers), np.inf).start_s
    return np.asarray((start_s - arrival_s)[count // 5 :])


def within_error(samples: list[float], expected: float) -> bool:
    """Whether `expected` lies within four standard errors of the mean of independent runs."""
    error = float(np.std(samples, ddof=1)) / math.sqrt(len(samples))
    return abs(float(np.mean(samples)) - expected) < 4 * error


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (1, 0.8), (4, 0.7), (20, 0.9), (100, 0.95)])
def test_exponential_services_wait_as_erlang_says(rng: np.random.Generator, servers: int, load: float) -> None:
    """Mean wait, share of waiters and the tail of the wait equal M/M/c within statistical error."""
    runs = [waits(rng, servers, load, rng.exponential(1.0, 20_000)) for _ in range(REPETITIONS)]
    wait_ratio, drain_rate = erlang_c(servers, servers * load), servers * (1 - load)
    tail_s = 1 / drain_rate
    assert within_error([float(run.mean()) for run in runs], wait_ratio / drain_rate)
    assert within_error([float((run > 0).mean()) for run in runs], wait_ratio)
    assert within_error([float((run > tail_s).mean()) for run in runs], wait_ratio * math.exp(-1))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
def test_constant_services_wait_as_pollaczek_and_khinchine_say(rng: np.random.Generator, load: float) -> None:
    """The mean wait of M/D/1 is load / (2 (1 - load)) services, within statistical error."""
    runs = [waits(rng, 1, load, np.ones(20_000)) for _ in range(REPETITIONS)]
    assert within_error([float(run.mean()) for run in runs], load / (2 * (1 - load)))


def test_a_wrong_closed_form_is_noticed(rng: np.random.Generator) -> None:
    """A mean wait 15 % off is outside the error that the two tests above allow."""
    runs = [float(waits(rng, 4, 0.7, rng.exponential(1.0, 20_000)).mean()) for _ in range(REPETITIONS)]
    exact = erlang_c(4, 2.8) / (4 * 0.3)
    assert within_error(runs, exact)
    assert not within_error(runs, 1.15 * exact)


def test_a_service_shows_the_wait_tail_of_erlang_in_its_p99(rng: np.random.Generator) -> None:
    """p99 of M/M/1 latency is ln(100) / (mu - lambda); utilization is the load."""
    p99_s, busy = [], []
    for _ in range(REPETITIONS):
        arrival_s = np.cumsum(rng.exponential(1 / 0.7, 20_000))
        sim = ServiceSim(service(), listed(arrival_s, rng.exponential(1.0, 20_000)), replicas=1)
        sim.advance(float(arrival_s[-1]))
        p99_s.append(serving_totals([sim]).p99_latency_s or math.nan)
        busy.append(sim.counters().busy_slot_s / sim.counters().capacity_slot_s)
    assert within_error(p99_s, math.log(100) / 0.3)
    assert within_error(busy, 0.7)


@pytest.mark.parametrize("servers", [1, 3, 60, 700, 5000])
@pytest.mark.parametrize("load", [0.2, 0.8, 0.98, 1.2])
@pytest.mark.parametrize("shortest_s", [0.0, 1e-3])
def test_the_passes_and_the_heap_agree_to_the_last_bit(
    rng: np.random.Generator, servers: int, load: float, shortest_s: float
) -> None:
    """The vectorised solution equals one heap over all requests, ties and empty services included."""
    count = 12_000
    arrival_s = np.cumsum(rng.gamma(0.5, 2 / (load * servers), count))
    arrival_s[::7] = np.floor(arrival_s[::7])
    arrival_s.sort()
    service_s = rng.lognormal(-0.5, 1.0, count)
    service_s[::11] = shortest_s
    free_s = np.sort(rng.random(servers) * 3)
    fast = fcfs_starts(arrival_s, service_s, free_s, float(arrival_s[-1]))
    slow = _by_heap(arrival_s, service_s, free_s, float(arrival_s[-1]))
    assert np.array_equal(fast.start_s, slow.start_s)
    assert np.array_equal(fast.free_s, slow.free_s)


def test_latency_quantiles_are_within_the_stated_error(rng: np.random.Generator) -> None:
    """p50 and p99 of the counts are within 0.39 % of the nearest-rank quantiles."""
    latency_s = rng.lognormal(0.0, 3.0, 50_001)
    counts = LatencyCounts()
    counts.add(latency_s[:100])
    counts.add(latency_s[100:])
    for ratio, found in zip((0.5, 0.99), counts.quantiles_s(0.5, 0.99), strict=True):
        exact = np.sort(latency_s)[math.ceil(ratio * len(latency_s)) - 1]
        assert abs(found / exact - 1) <= RELATIVE_ERROR
    edges_s = np.array([0.5, 1.0, 2.5, 5.0, 10.0, 60.0])
    assert counts.below(edges_s).tolist() == [(latency_s < edge).sum() for edge in edges_s]


def test_latencies_outside_the_bins_are_counted_and_none_is_nan() -> None:
    """Zero and a century fall into the first and the last bin; nothing counted has no quantile."""
    counts = LatencyCounts()
    assert math.isnan(counts.quantiles_s(0.99)[0])
    counts.add(np.array([0.0, 3.2e9]))
    assert counts.total == counts.counts.sum() == 2
    assert counts.counts[0] == counts.counts[-1] == 1


def test_windows_count_arrivals_latencies_queue_and_busy_slots() -> None:
    """Three requests on one slot: the figures of each window are those worked out by hand."""
    sim = ServiceSim(service(objective_s=6.0), listed([1, 2, 13], [4, 6, 2]), replicas=1, window_s=10.0)
    sim.advance(30.0)
    windows = sim.windows()  # served in 1-5, 5-11, 13-15; latencies 4, 9, 2
    assert windows.end_s.tolist() == [10, 20, 30]
    assert windows.arrived.tolist() == [2, 1, 0]
    assert windows.arrival_rate_rps.tolist() == [0.2, 0.1, 0.0]
    assert windows.completed.tolist() == [1, 2, 0]
    assert windows.violations.tolist() == [0, 1, 0]
    assert windows.queue_depth.tolist() == [0, 0, 0]
    assert windows.utilization_ratio.tolist() == [0.9, 0.3, 0.0]
    assert windows.p99_latency_s[:2] == pytest.approx([4, 9], rel=RELATIVE_ERROR)
    assert math.isnan(windows.p99_latency_s[2])
    assert serving_totals([sim]).violation_ratio == pytest.approx(1 / 3)
    assert sim.recent_latency_s(0.99, 1) != sim.recent_latency_s(0.99, 1)  # NaN: none completed
    assert sim.recent_latency_s(0.99, 2) == pytest.approx(9, rel=RELATIVE_ERROR)


def test_without_replicas_requests_queue_and_become_overdue() -> None:
    """At zero replicas nothing starts; requests older than the objective count as violations."""
    sim = ServiceSim(service(objective_s=5.0), listed([0, 1, 8], [1, 1, 1]), window_s=5.0)
    sim.advance(10.0)
    assert (sim.queue_depth, sim.in_service, sim.completed) == (3, 0, 0)
    assert np.isnan(sim.windows().utilization_ratio).all()
    totals = serving_totals([sim])
    assert totals.p99_latency_s is None
    assert totals.violation_ratio == pytest.approx(2 / 3)
    sim.set_replicas(10.0, 1)
    sim.advance(20.0)
    assert (sim.queue_depth, sim.completed) == (0, 3)


def test_what_does_not_apply_is_none() -> None:
    """Without an objective there is no violation ratio, without requests no p99."""
    sim = ServiceSim(service(), listed([], []), replicas=1)
    sim.advance(100.0)
    totals = serving_totals([sim])
    assert (totals.requests, totals.p99_latency_s, totals.violation_ratio) == (0, None, None)
    assert np.isnan(sim.windows().violations).all()


def test_a_drained_replica_finishes_what_it_holds_and_takes_no_more() -> None:
    """The slots that get free first leave; the replica is released when its last one is idle."""
    served: list[Served] = []
    sim = ServiceSim(service(slots=2), listed([0, 0, 0, 5], [10, 20, 30, 1]), replicas=2, on_served=served.append)
    released_s = sim.set_replicas(5.0, 1)
    assert released_s.tolist() == [10.0]  # one slot idle at 5, one busy until 10
    sim.advance(40.0)
    start_of = {int(seq): start for part in served for seq, start in zip(part.seq, part.start_s, strict=True)}
    assert start_of == {0: 0.0, 1: 0.0, 2: 0.0, 3: 5.0}  # the fourth arrived before the drain took effect
    assert sim.counters().capacity_slot_s == pytest.approx(4 * 5 + 2 * 35 + 1 + 5)


def test_a_drained_service_is_released_when_its_last_request_ends() -> None:
    """Down to zero: each replica's release is the end of the last request in its slots."""
    sim = ServiceSim(service(slots=2), listed([0, 0, 0], [10, 20, 30]), replicas=2)
    assert sim.set_replicas(1.0, 0).tolist() == [10.0, 30.0]
    sim.advance(60.0)
    assert (sim.completed, sim.in_service) == (3, 0)


def test_a_lost_replica_puts_its_requests_back_at_the_head() -> None:
    """Lost requests start again before those that never started, and keep their arrival."""
    served: list[Served] = []
    sim = ServiceSim(
        service(slots=2), listed([0, 0, 0, 0, 1], [10, 10, 10, 10, 10]), replicas=2, on_served=served.append
    )
    assert sim.lose(4.0) == 2
    assert (sim.queue_depth, sim.in_service, sim.replicas, sim.requeued) == (3, 2, 1, 2)
    assert sim.counters().busy_slot_s == pytest.approx(16.0)  # the lost work was busy time
    sim.advance(50.0)
    rows = sorted(
        (int(q), float(s), float(w)) for p in served for q, s, w in zip(p.seq, p.start_s, p.latency_s, strict=True)
    )
    assert [start for _, start, _ in rows] == [10.0, 0.0, 10.0, 0.0, 20.0]
    assert [latency for _, _, latency in rows] == [20.0, 10.0, 20.0, 10.0, 29.0]


def test_a_lost_request_does_not_start_before_the_loss() -> None:
    """An idle slot takes a lost request over when it is lost, not when it arrived."""
    served: list[Served] = []
    sim = ServiceSim(service(slots=2), listed([0, 0], [10, 10]), replicas=2, on_served=served.append)
    assert sim.lose(4.0) == 1
    assert (sim.queue_depth, sim.in_service) == (0, 2)
    sim.advance(50.0)
    rows = [(int(q), float(s)) for part in served for q, s in zip(part.seq, part.start_s, strict=True)]
    assert sorted(rows) == [(0, 4.0), (1, 0.0)]


def test_requests_of_two_lost_replicas_wait_in_order_of_arrival() -> None:
    """What the second loss puts back is merged with what still waits from the first."""
    sim = ServiceSim(service(slots=2), listed([0, 1, 2, 3, 4], [90, 90, 90, 90, 90]), replicas=2)
    sim.lose(5.0)
    sim.lose(6.0)
    assert [seq for part in sim._waiting for seq in part.seq.tolist()] == [0, 1, 2, 3, 4]


def test_time_does_not_go_back_and_impossible_changes_are_refused() -> None:
    """A call in the past, more replicas lost than ready, or a negative count is broken code."""
    sim = ServiceSim(service(), listed([], []), replicas=1)
    sim.advance(10.0)
    with pytest.raises(InvariantError, match="time went back"):
        sim.advance(9.0)
    with pytest.raises(InvariantError, match="2 of 1 lost"):
        sim.lose(10.0, 2)
    with pytest.raises(InvariantError):
        sim.set_replicas(10.0, -1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("slots", 0), ("slots", -1)]
    + [
        (field, value)
        for field in ("prefill_tokens_per_s", "decode_tokens_per_s", "objective_s")
        for value in (0.0, -1.0, math.nan, math.inf)
    ],
)
def test_a_service_out_of_range_is_refused_by_field(field: str, value: float) -> None:
    """Each number of a service that cannot be is one error that names it."""
    good = {"slots": 1, "prefill_tokens_per_s": 1.0, "decode_tokens_per_s": 1.0, "objective_s": 1.0}
    with pytest.raises(InputError, match=field):
        ServiceSpec(name="chat", **{**good, field: value})  # type: ignore[arg-type]


# --- replica control --------------------------------------------------------------------------


def test_the_autoscaler_follows_the_ratio_of_metric_to_target() -> None:
    """Wanted = ceil(ready x metric / target), inside its limits, and ready after the delay."""
    scaler = Autoscaler(AutoscalerSpec(target=0.5, max_replicas=20))
    assert scaler.decide(0.0, 4, 0, 0.9, 40.0) == (8, 40.0, 8)
    assert Autoscaler(AutoscalerSpec(target=0.5, max_replicas=6)).decide(0.0, 4, 0, 0.9, 0.0).replicas == 6


def test_the_autoscaler_tolerates_a_tenth_and_the_unknown() -> None:
    """Inside the tolerance, without a measurement or without a ready replica nothing changes."""
    scaler = Autoscaler(AutoscalerSpec(target=0.5))
    for metric in (0.46, 0.55, math.nan):
        assert scaler.decide(0.0, 4, 0, metric, 0.0).replicas == 4
    assert scaler.decide(0.0, 0, 3, 1.0, 0.0).replicas == 3


def test_the_autoscaler_waits_five_minutes_before_it_shrinks() -> None:
    """A decrease goes to the highest wish of the last 300 s only."""
    scaler = Autoscaler(AutoscalerSpec(target=0.5))
    assert scaler.decide(0.0, 8, 0, 0.5, 0.0).replicas == 8
    assert [scaler.decide(t, 8, 0, 0.2, 0.0).replicas for t in (15.0, 150.0, 300.0)] == [8, 8, 8]
    scaled = scaler.decide(315.0, 8, 0, 0.2, 0.0)
    assert scaled.replicas == 4
    assert math.isnan(scaled.ready_at_s)


def test_a_floor_adds_replicas_and_never_takes_any() -> None:
    """Wanted is the larger of what the load needs and the floor, at once, and never above the owner's maximum."""
    for floor, metric, wanted, needed in ((6, 0.5, 6, 4), (6, 0.9, 8, 8), (0, 0.5, 4, 4), (30, 0.5, 10, 4)):
        scaling = Autoscaler(AutoscalerSpec(target=0.5)).decide(0.0, 4, 0, metric, 40.0, floor)
        assert (scaling.replicas, scaling.needed) == (wanted, needed)
        assert scaling.ready_at_s == pytest.approx(40.0) if wanted > 4 else math.isnan(scaling.ready_at_s)


def test_a_floor_that_ends_leaves_no_trace() -> None:
    """While it stands the need is measured as ever, and afterwards the replicas go at the next look."""
    scaler = Autoscaler(AutoscalerSpec(target=0.5, down_stabilisation_s=60.0))
    assert scaler.decide(0.0, 2, 0, 0.5, 0.0, 8).replicas == 8
    for t in range(15, 615, 15):
        assert scaler.decide(t, 8, 0, 0.125, 0.0, 8)[::2] == (8, 2)
    assert scaler.decide(615.0, 8, 0, 0.125, 0.0).replicas == 2


def test_the_autoscaler_does_not_count_starting_replicas_twice() -> None:
    """Replicas that start count as idle, so that one burst is not answered in every period."""
    scaler = Autoscaler(AutoscalerSpec(target=0.5, max_replicas=100))
    assert scaler.decide(0.0, 4, 4, 1.0, 0.0).replicas == 8
    assert scaler.decide(15.0, 4, 2, 1.0, 0.0).replicas == 8


def test_the_autoscaler_at_most_doubles_or_adds_four_in_fifteen_seconds() -> None:
    """The rise is limited by the larger of four replicas and the present count."""
    scaler = Autoscaler(AutoscalerSpec(target=0.1, max_replicas=1000))
    assert scaler.decide(0.0, 2, 0, 1.0, 0.0).replicas == 6
    assert scaler.decide(5.0, 6, 0, 1.0, 0.0).replicas == 6
    assert scaler.decide(15.0, 6, 0, 1.0, 0.0).replicas == 12


def test_the_metric_of_an_interval_is_busy_over_capacity_or_queue_per_replica() -> None:
    """One busy slot of two is one half; no ready replica has no metric."""
    sim = ServiceSim(service(slots=2), listed([0], [10]), replicas=1)
    before = sim.counters()
    sim.advance(10.0)
    assert metric_between(before, sim.counters(), sim.queue_depth, 1, "utilization") == 0.5
    assert metric_between(before, sim.counters(), 6, 2, "queue_per_replica") == 3.0
    assert math.isnan(metric_between(before, before, 6, 0, "utilization"))
    assert math.isnan(metric_between(before, before, 6, 0, "queue_per_replica"))


def closed_loop(arrival_s: F64, length_s: F64) -> tuple[ServiceSim, list[int]]:
    """An hour of a service with 4 slots a replica under an autoscaler with target 0.5, and its replicas by period."""
    sim = ServiceSim(service(slots=4), listed(arrival_s, length_s), replicas=1)
    scaler, starting = Autoscaler(AutoscalerSpec(target=0.5, max_replicas=50)), list[tuple[float, int]]()
    before, replicas = sim.counters(), list[int]()
    for now_s in np.arange(15.0, 3600.0, 15.0).tolist():
        due = sum(count for ready_at_s, count in starting if ready_at_s <= now_s)
        starting = [(ready_at_s, count) for ready_at_s, count in starting if ready_at_s > now_s]
        sim.set_replicas(now_s, sim.replicas + due)
        metric = metric_between(before, sim.counters(), sim.queue_depth, sim.replicas, "utilization")
        before, waiting = sim.counters(), sum(count for _, count in starting)
        wanted = scaler.decide(now_s, sim.replicas, waiting, metric, 60.0)
        if wanted.replicas > sim.replicas + waiting:
            starting.append((wanted.ready_at_s, wanted.replicas - sim.replicas - waiting))
        elif wanted.replicas < sim.replicas:
            sim.set_replicas(now_s, wanted.replicas)
        replicas.append(sim.replicas)
    return sim, replicas


def test_a_closed_loop_settles_where_the_target_is_met() -> None:
    """A constant load of 20 busy slots is met at target 0.5 by 10 replicas, or by one more within the tolerance."""
    sim, replicas = closed_loop(np.arange(0.0, 3600.0, 0.5), np.full(7_200, 10.0))
    assert set(replicas[-80:]) <= {10, 11}
    assert sim.windows().utilization_ratio[-20:].mean() == pytest.approx(20 / (4 * replicas[-1]), abs=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_a_closed_loop_keeps_the_peak_of_a_random_load(seed: int) -> None:
    """Poisson arrivals with a mean of 20 busy slots settle at the replicas for the peak of five minutes.

    The mean of a period has a standard deviation of 3.6 slots, its peak over 20 periods lies near 20 + 1.7 x 3.6 = 26
    slots, which need 13 to 14 replicas. The means of half an hour deviate by about 0.5 replicas and 0.5 busy slots; the
    bounds are five times that.
    """
    rng = np.random.default_rng(seed)
    sim, replicas = closed_loop(np.cumsum(rng.exponential(0.5, 8_000)), rng.exponential(10.0, 8_000))
    settled = np.array(replicas[-120:])
    assert settled.mean() == pytest.approx(13.5, abs=2.5)
    busy = sim.windows().utilization_ratio[-30:].mean() * 4 * settled.mean()
    assert busy == pytest.approx(20.0, abs=2.5)


def test_the_autoscaler_refuses_what_cannot_be() -> None:
    """Each field out of range is one error that names it."""
    for wrong, name in (
        ({"target": 0.0}, "target"),
        ({"target": 1.5}, "target"),
        ({"target": 0.5, "min_replicas": 5, "max_replicas": 4}, "min_replicas"),
        ({"target": 0.5, "metric": "luck"}, "metric"),
        ({"target": 0.5, "down_stabilisation_s": math.nan}, "down_stabilisation_s"),
    ):
        with pytest.raises(InputError, match=name):
            AutoscalerSpec(**wrong)
