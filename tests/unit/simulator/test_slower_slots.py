"""Slots of replicas that share their GPUs: slower, and changed while requests run."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest

from simulator.inference.serving import ServiceSim
from simulator.inference.serving_queue import RELATIVE_ERROR, fcfs_starts, starts_at_rates
from simulator.world.facts import Paced
from tests.kits.service_kit import calls, services
from tests.unit.simulator.test_services import World
from tests.unit.simulator.test_serving import listed, service


def test_slots_at_full_speed_start_as_equal_ones(rng: np.random.Generator) -> None:
    """With every rate at 1 the starts are those of equal servers, to the last bit."""
    arrival_s, service_s = np.cumsum(rng.exponential(0.3, 400)), rng.exponential(1.0, 400)
    equal, rated = (
        fcfs_starts(arrival_s, service_s, np.zeros(4), 90.0),
        starts_at_rates(arrival_s, service_s, np.zeros(4), np.ones(4), 90.0),
    )
    assert equal.start_s.tolist() == rated.start_s.tolist()
    assert equal.free_s.tolist() == rated.free_s.tolist()


def test_a_slower_replica_holds_its_requests_for_longer() -> None:
    """By hand: of two replicas with a slot each, the later to get free is at half its speed from 10 to 28 s."""
    sim = ServiceSim(service(objective_s=25.0), listed([0.0, 5.0, 12.0, 60.0], [20.0, 10.0, 10.0, 10.0]), replicas=2)
    sim.set_rates(10.0, [1.0, 0.5])  # the first request has 10 s left, so it would end at 30 s
    sim.advance(20.0)
    assert (sim.completed, sim.in_service) == (1, 2)  # the second ended at 15 s, and the third took its slot
    sim.set_rates(28.0, [1.0, 1.0])
    sim.advance(28.9)
    assert (sim.completed, sim.in_service) == (2, 1)
    sim.advance(80.0)
    assert (sim.completed, sim.violations) == (4, 1)
    assert sim.latencies().quantiles_s(1.0)[0] == pytest.approx(29.0, rel=RELATIVE_ERROR)
    assert sim.counters().busy_slot_s == pytest.approx(29 + 10 + 10 + 10)


@pytest.mark.parametrize("rates", [(1.0, 1.0, 1.0), (0.5, 1.0, 0.8), (0.4, 0.4, 0.4)])
def test_rates_do_not_depend_on_how_time_is_cut(rng: np.random.Generator, rates: tuple[float, ...]) -> None:
    """One step or many give the same latencies, and no request is lost; slower slots take longer."""
    arrival_s, service_s = np.cumsum(rng.exponential(0.4, 300)), rng.exponential(1.0, 300)
    found = []
    for step_s in (400.0, 7.0):
        sim = ServiceSim(service(slots=2), listed(arrival_s, service_s), replicas=3, window_s=1000.0)
        sim.set_rates(0.0, rates)
        for at_s in np.arange(step_s, 400.0, step_s):
            sim.advance(float(at_s))
        sim.advance(400.0)
        found.append((sim.completed, sim.counters().busy_slot_s))
    assert found[0] == found[1]
    assert found[0][0] == 300
    assert found[0][1] >= service_s.sum() / max(rates) - 1e-3


def test_a_request_of_a_slow_replica_that_is_lost_starts_anew_at_the_speed_of_its_next_slot() -> None:
    """It takes its own time again, not the longer one of the replica that went."""
    sim = ServiceSim(service(), listed([0.0], [10.0]), replicas=1)
    sim.set_rates(0.0, [0.25])
    sim.advance(5.0)
    assert sim.lose(5.0) == 1
    sim.set_replicas(5.0, 1)
    sim.advance(15.0)
    assert sim.completed == 1


def test_the_slots_of_a_replica_go_at_its_rate() -> None:
    """The only replica goes at half its speed from 100 s on: the second request takes twice as long as the first."""

    def slow(world: World, now_s: float) -> None:
        world.cluster.publish(Paced(now_s, next(iter(world.cluster.holding)), 0.5, 0.0, 1.0))

    world = World(services(calls([10.0, 200.0], 20), 600.0), during=[(100.0, slow)])
    windows = world.fleet.series()[0]
    assert [each for each in windows.p99_s.tolist() if not isnan(each)] == pytest.approx([20.0, 40.0], rel=0.01)
