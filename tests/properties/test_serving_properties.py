"""A service under any sequence of advances, scalings and losses."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.inference.requests import Arrivals, ListedArrivals
from simulator.inference.serving import ServiceSim
from simulator.inference.serving_records import Served, ServiceSpec
from simulator.inference.synthetic_requests import SHAPES, ServiceLoad, SyntheticArrivals

HORIZON_S = 400.0

# (time, what, count): what 0 = advance only, 1 = set_replicas(count), 2 = lose(count)
changes = st.lists(st.tuples(st.integers(0, 399), st.integers(0, 2), st.integers(0, 5)), max_size=8).map(sorted)
cuts = st.lists(st.floats(0, HORIZON_S), max_size=12).map(sorted)


@dataclass
class Run:
    """A service and what it served."""

    sim: ServiceSim
    served: list[Served] = field(default_factory=list)

    def columns(self) -> Served:
        parts = self.served or [Served(np.empty(0, np.int64), *np.empty((4, 0)))]
        joined = Served._make(map(np.concatenate, zip(*parts, strict=True)))
        order = np.argsort(joined.seq, kind="stable")
        return Served._make(column[order] for column in joined)


def start(seed: int, slots: int, replicas: int, rate_rps: float) -> Run:
    """Arrivals with ties and bursts; services from nothing to a minute."""
    rng = np.random.default_rng(seed)
    t_s = np.cumsum(rng.gamma(0.4, 1 / (0.4 * rate_rps), int(rate_rps * HORIZON_S)))
    t_s[::3] = np.floor(t_s[::3])
    t_s = np.sort(t_s[t_s <= HORIZON_S])
    tokens = np.minimum(rng.lognormal(4.5, 1.5, len(t_s)), 3000).astype(np.int64)
    arrivals = ListedArrivals(Arrivals(t_s, tokens // 2, tokens))
    spec = ServiceSpec(name="chat", slots=slots, prefill_tokens_per_s=5e3, decode_tokens_per_s=50.0, objective_s=10.0)
    served: list[Served] = []
    return Run(ServiceSim(spec, arrivals, replicas=replicas, window_s=25.0, on_served=served.append), served)


def play(run: Run, plan: list[tuple[int, int, int]], extra_cuts: list[float]) -> None:
    """The changes in time order, with `advance` at each cut; conservation after each step."""
    steps = [(float(t), 1, what, count) for t, what, count in plan] + [(t, 0, 0, 0) for t in extra_cuts]
    for time_s, _, what, count in sorted(steps):
        if what == 1:
            run.sim.set_replicas(time_s, count)
        elif what == 2:
            run.sim.lose(time_s, min(count, run.sim.replicas))
        else:
            run.sim.advance(time_s)
        conserved(run)
    run.sim.advance(HORIZON_S)
    conserved(run)


def conserved(run: Run) -> None:
    """No request is in two places or in none, and slots match those who hold them."""
    sim = run.sim
    assert sim.arrived == sim.completed + sim.queue_depth + sim.in_service
    assert sim.queue_depth == sum(len(part.seq) for part in sim._waiting)
    assert sim.completed == sim.latencies().total == sum(len(part.seq) for part in run.served)
    assert len(sim._free_s) == sim.replicas * sim.spec.slots
    waiting = np.concatenate([np.empty(0, np.int64), *(part.seq for part in sim._waiting)])
    assert (np.diff(waiting) > 0).all()
    ready = np.sort(sim._running.end_s[~sim._running.draining])
    assert np.array_equal(ready, sim._free_s[sim._free_s > sim.now_s])
    if sim._waiting and sim.replicas:
        assert sim._free_s[0] > sim.now_s  # nobody waits beside an idle slot


services = {
    "seed": st.integers(0, 10_000),
    "slots": st.integers(1, 4),
    "replicas": st.integers(0, 5),
    "rate_rps": st.sampled_from([0.1, 0.5, 2.0]),
}


@given(**services, plan=changes)
def test_every_request_is_served_once_and_never_faster_than_its_service(
    seed: int, slots: int, replicas: int, rate_rps: float, plan: list[tuple[int, int, int]]
) -> None:
    """Arrived = served + waiting + in service after any change; each served once, latency >= service."""
    run = start(seed, slots, replicas, rate_rps)
    play(run, plan, [])
    served = run.columns()
    assert len(np.unique(served.seq)) == len(served.seq)
    assert (served.latency_s >= served.service_s).all()
    assert (served.start_s >= served.arrival_s).all()
    run.sim.set_replicas(HORIZON_S, 5)
    while run.sim.completed < run.sim.arrived:
        run.sim.advance(run.sim.now_s + 1000.0)
    assert run.sim.completed == run.sim.arrived


@given(**services, plan=changes, extra_cuts=cuts)
def test_cutting_the_time_changes_nothing(
    seed: int,
    slots: int,
    replicas: int,
    rate_rps: float,
    plan: list[tuple[int, int, int]],
    extra_cuts: list[float],
) -> None:
    """More calls of `advance` give the same outcome, windows and counters to the last bit."""
    one, many = start(seed, slots, replicas, rate_rps), start(seed, slots, replicas, rate_rps)
    play(one, plan, [])
    play(many, plan, extra_cuts)
    for left, right in zip(one.columns(), many.columns(), strict=True):
        assert np.array_equal(left, right)
    left_windows, right_windows = np.array(one.sim._rows), np.array(many.sim._rows)
    assert np.array_equal(left_windows, right_windows, equal_nan=True)
    assert one.sim.counters() == many.sim.counters()
    assert np.array_equal(one.sim._free_s, many.sim._free_s)


@given(**services, plan=changes)
def test_without_losses_requests_start_in_order_of_arrival(
    seed: int, slots: int, replicas: int, rate_rps: float, plan: list[tuple[int, int, int]]
) -> None:
    """Starts never decrease along the order of arrival, however the replicas change."""
    run = start(seed, slots, replicas, rate_rps)
    play(run, [change for change in plan if change[1] != 2], [])
    run.sim.advance(HORIZON_S)
    running = run.sim._running
    seq = np.concatenate([run.columns().seq, running.seq])
    start_s = np.concatenate([run.columns().start_s, running.start_s])
    assert (np.diff(start_s[np.argsort(seq)]) >= 0).all()


@given(**services)
def test_utilization_is_a_share_and_its_sum_is_the_service_time(
    seed: int, slots: int, replicas: int, rate_rps: float
) -> None:
    """Windows lie in [0, 1]; busy slot-seconds of a finished run are the services served."""
    run = start(seed, slots, max(1, replicas), rate_rps)
    run.sim.advance(HORIZON_S + 3e4)
    ratio = run.sim.windows().utilization_ratio
    assert ((ratio >= 0) & (ratio <= 1)).all()
    total_s = run.columns().service_s.sum()
    assert abs(run.sim.counters().busy_slot_s - total_s) <= 1e-6 * (1 + run.sim.completed)


@given(seed=st.integers(0, 1000), extra_cuts=st.lists(st.floats(0, 3000), max_size=8).map(sorted))
def test_synthetic_requests_do_not_depend_on_how_they_are_asked_for(seed: int, extra_cuts: list[float]) -> None:
    """Any cuts give the same requests to the last bit, each once and in order."""
    load = ServiceLoad(name="chat", mean_rps=0.5, shape=SHAPES["mooncake"])
    whole = SyntheticArrivals(np.random.default_rng(seed), load, 3000.0).upto(3000.0)
    source = SyntheticArrivals(np.random.default_rng(seed), load, 3000.0)
    parts = [source.upto(cut_s) for cut_s in [*extra_cuts, 3000.0]]
    for name in Arrivals._fields:
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert np.array_equal(joined, getattr(whole, name))
    assert (np.diff(whole.t_s) >= 0).all()
