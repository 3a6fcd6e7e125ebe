"""Services beside training on one cluster: under the textbook orders and under the controller."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autopilot.controller import Controller, Wiring
from autopilot.core.intake.consistency import check_snapshot
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Mode, Modes, Policy
from autopilot.core.model.records import Command, Observation
from autopilot.core.model.snapshot import ClusterSnapshot, QueueTable, SloClass, make
from models.last_two import LastTwo
from simulator.baselines import BASELINES
from simulator.inference.deployments import requests_for
from simulator.inference.services import ServiceFleet
from simulator.outcome.results import Measured, policy_result
from simulator.running.cluster_actuator import ClusterActuator
from simulator.running.cluster_collector import ClusterCollector
from simulator.running.engine import Scheduler
from simulator.running.faults import Faults
from simulator.running.simulation import Simulated, Simulation
from simulator.running.turn import ControllerScheduler
from simulator.scenarios import Scenario, load_scenario
from simulator.specs.inventory import build_inventory
from simulator.traces.defaults import load_defaults
from simulator.world.cluster import Cluster
from simulator.world.physics import PHYSICS
from simulator.world.work import jobs_from_trace


class Ports:
    """Journal, memory, inbox, policy and leadership of one run in memory."""

    def __init__(self) -> None:
        self.snapshots: list[ClusterSnapshot] = []

    def intend(self, observation: Observation, *_rest: object) -> None:
        self.snapshots.append(observation.snapshot)

    def conclude(self, tick: int, outcomes: object) -> None:
        pass

    def load(self) -> ControllerMemory | None:
        return None

    def save(self, memory: ControllerMemory) -> None:
        pass

    def drain(self, now_s: float) -> tuple[Command, ...]:
        return ()

    def kill_switch(self) -> bool:
        return False

    def current(self) -> Policy:
        return Policy(modes=Modes(Mode.AUTO, Mode.AUTO))

    def fence(self) -> int | None:
        return 1


def one_queue(models: int) -> QueueTable:
    """The root alone."""
    table: QueueTable = make(QueueTable, id=["root"], parent=[-1], guarantee=np.zeros((1, models)))
    return table


def simulate(
    scenario: Scenario, policy: str, seed: int, ports: Ports | None = None, rate_scale: float = 1.0
) -> tuple[ServiceFleet, Simulated]:
    """One run of a scenario under one policy."""
    hardware = build_inventory(scenario.cluster)
    jobs = jobs_from_trace(load_defaults().fill(scenario.jobs(seed)), hardware)
    plan = requests_for(scenario.services, horizon_s=scenario.horizon_s, seed=seed, rate_scale=rate_scale)
    physics = PHYSICS[scenario.physics]
    fleet = ServiceFleet(plan, jobs, hardware, physics)

    def make(cluster: Cluster) -> Scheduler:
        if ports is None:
            return BASELINES[policy]()
        collector = ClusterCollector(cluster, one_queue(len(hardware.names.gpu_models)), {}, fleet.table)
        actuator = ClusterActuator(cluster)
        wiring = Wiring(
            [collector], [LastTwo()], {"admit": actuator, "evict": actuator}, ports, ports, ports, ports, ports
        )
        return ControllerScheduler(policy, Controller(wiring), actuator)

    simulation = Simulation(hardware, jobs, make, physics)
    fleet.arm(simulation.engine)
    if scenario.faults is not None:
        Faults(scenario.faults, seed).arm(simulation.engine, simulation.cluster)
    return fleet, simulation.run()


def slo(fleet: ServiceFleet, done: Simulated) -> dict[str, Any]:
    """The `slo` block of the JSON result."""
    totals = fleet.totals(done.run.end_s)
    assert totals is not None
    block: dict[str, Any] = policy_result(
        done,
        Measured(
            requests=totals.requests,
            p99_latency_s=totals.p99_latency_s,
            violation_ratio=totals.violation_ratio,
        ),
    )["slo"]
    return block


@pytest.mark.parametrize("policy", ["fifo", "fifo-skip", "sjf-skip", "gpu-time-skip", "easy", "static", "kueue"])
def test_services_run_beside_training_under_every_textbook_order(policy: str) -> None:
    """All jobs end, every request is counted once, no invariant is violated."""
    scenario = load_scenario("quickstart")
    fleet, done = simulate(scenario, policy, seed=1)
    block = slo(fleet, done)
    assert done.run.complete
    assert not done.found.violations
    asked = requests_for(scenario.services, horizon_s=scenario.horizon_s, seed=1).sources()[0]
    assert block["requests"] == len(asked.upto(scenario.horizon_s).t_s)
    assert block["p99_latency_s"] > 0
    assert 0 <= block["violation_ratio"] < 1
    sim = fleet._services[0].sim
    assert sim.arrived == sim.completed + sim.queue_depth + sim.in_service


@pytest.mark.parametrize("seed", range(8))
def test_services_survive_faults_with_all_their_requests(seed: int) -> None:
    """Nodes, GPUs and spot nodes go and come; when it is over, every request was served."""
    fleet, done = simulate(load_scenario("faulty"), "fifo-skip", seed)
    slo(fleet, done)
    assert done.run.complete
    assert not done.found.violations
    for service in fleet._services:
        assert (service.sim.completed, service.sim.queue_depth) == (service.sim.arrived, 0)
        assert set(service.ready) | set(service.starting) | set(service.draining) == {
            job for job in done.cluster.holding if done.cluster.jobs.service[job] == service.row
        }


def test_one_seed_is_one_run() -> None:
    """The same figures to the last bit, with faults on; another seed gives others."""
    runs = []
    for seed in (5, 5, 6):
        fleet, done = simulate(load_scenario("faulty"), "fifo-skip", seed)
        series = [tuple(row.replicas.tolist()) for row in fleet.series()]
        runs.append((slo(fleet, done), done.cluster.end_s, series))
    assert repr(runs[0]) == repr(runs[1])
    assert repr(runs[0]) != repr(runs[2])


def test_a_smaller_rate_needs_fewer_replicas() -> None:
    """Half the requests on half the replicas: about as long a wait, half of the GPUs."""
    scenario = load_scenario("quickstart")
    full, whole = simulate(scenario, "fifo-skip", 2)
    half, thinned = simulate(scenario, "fifo-skip", 2, rate_scale=0.5)
    ratio = slo(half, thinned)["requests"] / slo(full, whole)["requests"]
    assert 0.4 < ratio < 0.6
    assert half.series()[0].replicas.max() <= 3 < full.series()[0].replicas.max()


def test_the_controller_admits_replicas_and_sees_the_services() -> None:
    """Replicas appear in its snapshots as sheltered work; services with rate, latency and replicas."""
    ports = Ports()
    fleet, done = simulate(load_scenario("quickstart"), "autopilot", 1, ports)
    block = slo(fleet, done)
    assert done.run.complete
    assert not done.found.violations
    assert block["violation_ratio"] < 0.2
    busiest = max(ports.snapshots, key=lambda snapshot: int(snapshot.services.ready_replicas[0]))
    check_snapshot(busiest)
    assert busiest.services.ready_replicas[0] > 2
    assert busiest.services.rate_rps[0] > 0
    assert busiest.services.p99_s[0] > 0
    rows = np.flatnonzero(busiest.workloads.service >= 0)
    assert len(rows) >= busiest.services.replicas[0]
    assert (busiest.workloads.slo_class[rows] == SloClass.LATENCY_CRITICAL).all()
    assert not busiest.workloads.preemptible[rows].any()
    evicted = [job for job, count in enumerate(done.cluster.evictions) if count]
    assert all(done.cluster.jobs.service[job] < 0 for job in evicted)
