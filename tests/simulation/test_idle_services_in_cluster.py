"""An idle service beside training that waits: it is scaled down after its notice, and is back when requests come."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopilot.app.runs.world import World
from autopilot.controller import Controller
from autopilot.core.idle.ceiling import Ceiling
from autopilot.records.replay import replay
from simulator.running.simulation import Simulation
from tests.kits.core_world import with_policy
from tests.kits.policies import simulated
from tests.simulation.kit import Ran, Setup, run, scenario

RECLAIM = with_policy(simulated(), idle={"gone_s": 0.0, "batch_grace_s": 300.0})

END_S = 6600.0
"""Requests end here."""
RESTING = """
name: resting
horizon: 110m
cluster:
  pools:
    - {name: h100, nodes: 1, gpus_per_node: 8, gpu_model: H100-80GB}
  queues:
    - {name: product, guarantee: {H100-80GB: 6}, priority: 10}
    - {name: research, guarantee: {H100-80GB: 2}}
jobs:
  groups:
    - {kind: compute-training, count: 16, tenants: [research], gpus: [2], duration: 30m, spread: 0.1, to: 100m}
services:
  - name: hoard-chat
    tenant: product
    slots: 8
    prefill_tokens_per_s: 8000
    decode_tokens_per_s: 60
    objective: 20s
    load_time: 2m
    gpus_per_replica: 2
    slo_class: batch
    preemptible: true
    replicas: {initial: 3, min: 3, max: 3, least: LEAST}
    requests: {mean_rps: 0.5, shape: azure, swing: 0, from: 90m}
physics: real
telemetry: windowed
durations: last-two
policies: [reclaim-idle]
"""


def world(folder: Path, least: str = "0") -> World:
    """Three replicas that rest for an hour and a half, then have requests."""
    return scenario(RESTING.replace("LEAST", least), folder, seed=4)


def changes(ran: Ran) -> list[tuple[float, int, str]]:
    """When ceilings were set, renewed and lifted, and why."""
    return [
        (moment.observation.now_s, each.change.replicas, each.reason)
        for moment in ran.tape.moments
        for each in moment.decision.plan.proposals
        if isinstance(each.change, Ceiling) and each.accepted
    ]


def ready(ran: Ran) -> list[tuple[float, int]]:
    """Ready replicas over time."""
    return [
        (moment.observation.now_s, int(moment.observation.snapshot.services.ready_replicas[0]))
        for moment in ran.tape.moments
    ]


@pytest.fixture(scope="module")
def resting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """The run to zero and back, with its journal."""
    folder = tmp_path_factory.mktemp("resting")
    journal = folder / "run.journal"
    ran = run(world(folder), Setup(policy=RECLAIM, journal=journal))
    ran.close()
    return ran, journal


def test_to_zero_and_back(resting: tuple[Ran, Path]) -> None:
    """Other work has its GPUs until requests arrive; then it has all of its replicas again within its start-up."""
    ran, _ = resting
    assert ran.violated == set()
    steps = [each for each in changes(ran) if each[0] < END_S]
    assert [(replicas, why) for _, replicas, why in steps if why != "renewed"] == [(0, "idle"), (-1, "returned")]
    assert min(count for at_s, count in ready(ran) if at_s < 5400.0 and at_s > steps[0][0]) == 0
    lifted_s = steps[-1][0]
    assert 5400.0 <= lifted_s < 5400.0 + 180.0
    assert max(count for at_s, count in ready(ran) if at_s < lifted_s + 900.0 and at_s > lifted_s) == 3


def test_it_is_decided_again_alike(resting: tuple[Ran, Path]) -> None:
    """The journal holds all that the decisions rest on."""
    assert replay(resting[1]).identical


def ends_with_the_requests(simulation: Simulation, _controller: Controller) -> None:
    """Though training goes on."""
    simulation.engine.horizon_s = END_S


def test_it_stops_at_the_minimum_of_its_owner(tmp_path: Path) -> None:
    """One replica stays; requests at it lift the ceiling."""
    ran = run(world(tmp_path, "1"), Setup(policy=RECLAIM, change=ends_with_the_requests))
    assert ran.violated == set()
    done = [(replicas, why) for at_s, replicas, why in changes(ran) if why != "renewed" and at_s < END_S]
    assert done == [(1, "idle"), (-1, "returned")]
