"""Nodes that an autoscaler adds, in whole runs: a gang that fits nowhere asks for them, and starts when they come."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopilot.app.runs.world import World
from autopilot.core.nodes.provision import Provision
from autopilot.records.replay import replay
from simulator.world.growing import ARRIVES_S
from tests.kits.core_world import with_policy
from tests.simulation.kit import AUTOPILOT, Ran, Setup, run, scenario

GROWING = """
name: growing
horizon: 3h
cluster:
  pools:
    - {name: train, nodes: 6, gpus_per_node: 8, gpu_model: H100-80GB, absent: 4}
jobs:
  groups:
    - {kind: train, count: 2, tenants: [a], gpus: [8], duration: 90m, from: 0h, to: 1m}
    - {kind: train, count: 1, tenants: [a], gpus: [32], duration: 30m, from: 10m, to: 12m}
faults: {until: 3h, %s}
physics: real
telemetry: off
durations: exact
policies: [autopilot]
"""
GROWS = with_policy(AUTOPILOT, capacity={"pools": {"train": 6}})


def world(folder: Path, faults: str = "conflict_ratio: 0", seed: int = 0) -> World:
    """Two nodes that are there, and four that may come; one gang needs four."""
    return scenario(GROWING % faults, folder, seed)


def wide_start_s(ran: Ran) -> float:
    """When the wide gang started, after its submission."""
    cluster = ran.cluster
    row = max(range(len(cluster.jobs)), key=lambda job: cluster.jobs.shape_of(job).gpus)
    return cluster.first_start_s[row] - cluster.jobs.submit_s[row]


def test_a_gang_starts_on_the_nodes_that_it_asked_for(tmp_path: Path) -> None:
    """It waits for 5 minutes, asks, and the nodes need 5 more."""
    ran = run(world(tmp_path), Setup(policy=GROWS))
    assert ran.violated == set()
    assert ran.simulated.run.complete
    late_s = GROWS.capacity.after_s + ARRIVES_S
    assert late_s <= wide_start_s(ran) < late_s + 900.0
    proposals = [each for moment in ran.tape.moments for each in moment.decision.plan.proposals if each.accepted]
    asked = [each.change for each in proposals if isinstance(each.change, Provision)]
    assert [(each.pool, each.nodes) for each in asked] == [("train", 4)]  # the others are in use


@pytest.mark.parametrize("seed", range(2))
def test_with_faults_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    """Nodes fail and effects fail; all work ends, no checker finds anything, and replay decides the same."""
    journal = tmp_path / "run.journal"
    faults = "node_mtbf: 4h, node_mttr: 8m, view_loss_ratio: 0.02, conflict_ratio: 0.1, failure_ratio: 0.1"
    ran = run(world(tmp_path, faults, seed), Setup(policy=GROWS, journal=journal))
    assert ran.violated == set()
    assert ran.simulated.run.complete
    ran.close()
    assert replay(journal).identical
