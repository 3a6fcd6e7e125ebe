"""MIG geometry in whole runs: requests that otherwise wait are served, and changes that go wrong do no harm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autopilot.app.runs.world import World
from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.model.records import NoteCode
from autopilot.records.replay import replay
from tests.kits.policies import simulated
from tests.simulation.kit import Ran, Setup, run, scenario

REGEOMETRY = simulated()

CHURN = """
name: small-churn
horizon: 100m
cluster:
  pools:
    - {name: a100, nodes: 1, gpus_per_node: 4, gpu_model: A100-80GB, mig_scopes: [instance],
       mig: [{gpus_per_node: 3, geometry: {3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}}]}
jobs:
  groups:
    - {kind: notebook, count: 12, tenants: [a, b], gpus: [1], mig_profile: 1g.10gb, duration: 15m, to: 30m}
    - {kind: train, count: 10, tenants: [a, b], gpus: [1], mig_profile: 3g.40gb, duration: 15m, from: 35m, to: 90m}
    - {kind: train, count: 2, tenants: [a], gpus: [1], duration: 20m, to: 60m}
faults: {until: 100m, %s}
physics: real
telemetry: windowed
durations: exact
policies: [autopilot]
"""

WRONG = (
    "recut_failure_ratio: 0.3, recut_stuck_ratio: 0.2, recut_ignored_ratio: 0.3, recut_repair: 10m, node_mtbf: 4h, "
    "node_mttr: 8m, gpu_mtbf: 20h, view_loss_ratio: 0.02, conflict_ratio: 0.05, failure_ratio: 0.05, delay_ratio: 0.05"
)


BOTH_WAYS = """
name: both-ways
horizon: 240m
cluster:
  pools:
    - {name: a100, nodes: 1, gpus_per_node: 4, gpu_model: A100-80GB, mig_scopes: [instance, gpu],
       mig: [{gpus_per_node: 1, geometry: {3g.40gb: 2}}]}
jobs:
  groups:
    - {kind: train, count: 8, tenants: [a, b], gpus: [1], mig_profile: 3g.40gb, duration: 20m, to: 20m}
    - {kind: train, count: 3, tenants: [a, b], gpus: [4], duration: 20m, from: 130m, to: 150m}
    - {kind: train, count: 4, tenants: [a, b], gpus: [1], mig_profile: 3g.40gb, duration: 20m, from: 235m, to: 239m}
physics: real
telemetry: windowed
durations: exact
policies: [autopilot]
"""
"""First two instances a GPU are asked for, then all GPUs of the node as whole ones, then instances again."""


NODE_WAYS = """
name: node-ways
horizon: 280m
cluster:
  pools:
    - {name: a100, nodes: 2, gpus_per_node: 4, gpu_model: A100-80GB, mig_scopes: [node]}
jobs:
  groups:
    - {kind: train, count: 6, tenants: [a, b], gpus: [1], mig_profile: 3g.40gb, duration: 20m, to: 20m}
    - {kind: train, count: 4, tenants: [a, b], gpus: [4], duration: 20m, from: 130m, to: 150m}
    - {kind: train, count: 4, tenants: [a, b], gpus: [1], mig_profile: 3g.40gb, duration: 20m, from: 255m, to: 259m}
faults: {until: 280m, %s}
physics: real
telemetry: windowed
durations: exact
policies: [autopilot]
"""
"""Nodes of whole GPUs: instances are asked for, then all GPUs of a node at once, then instances again."""


def world(folder: Path, faults: str = "conflict_ratio: 0", seed: int = 0) -> World:
    """Small instances are asked for first, large ones later."""
    return scenario(CHURN % faults, folder, seed)


def waited_s(ran: Ran) -> float:
    """Mean wait for the first start."""
    cluster = ran.cluster
    first_s = np.array([cluster.first_start_s[job] for job in range(len(cluster.jobs))], float)
    return float((first_s - np.array(cluster.jobs.submit_s)).mean())


def test_requests_wait_less_than_under_static_cuts(tmp_path: Path) -> None:
    """Less than half as long, and no checker finds anything."""
    static = run(world(tmp_path), Setup(policy=simulated(modes__regeometry="off")))
    cut = run(world(tmp_path), Setup(policy=REGEOMETRY))
    assert cut.violated == static.violated == set()
    assert waited_s(cut) < waited_s(static) / 2


@pytest.mark.seeds(3)
def test_changes_that_go_wrong_do_no_harm(tmp_path: Path, soak_seed: int) -> None:
    """GPUs are quarantined and used again, all work ends, no checker finds anything, and replay decides the same."""
    journal = tmp_path / "run.journal"
    ran = run(world(tmp_path, WRONG, soak_seed), Setup(policy=REGEOMETRY, journal=journal))
    assert ran.violated == set()
    assert ran.simulated.run.complete
    codes = {note.code for moment in ran.tape.moments for note in moment.decision.notes}
    assert NoteCode.GPU_QUARANTINED in codes
    ran.close()
    assert replay(journal).identical


def test_gpus_turn_mig_mode_on_and_off_again(tmp_path: Path) -> None:
    """For requests, then for gangs of whole GPUs that could never start otherwise; no checker finds anything."""
    static = run(scenario(BOTH_WAYS.replace("[instance, gpu]", "[instance]"), tmp_path), Setup(policy=REGEOMETRY))
    cut = run(scenario(BOTH_WAYS, tmp_path), Setup(policy=REGEOMETRY))
    assert cut.violated == static.violated == set()
    assert turns(cut) == {"on", "off"}
    assert np.isnan(waited_s(static))
    assert waited_s(cut) < 600.0


def turns(ran: Ran) -> set[str]:
    """The ways in which GPUs turned MIG mode."""
    changes = [
        each.change
        for moment in ran.tape.moments
        for each in moment.decision.plan.proposals
        if isinstance(each.change, RecutGpu) and each.accepted
    ]
    modes = {(each.before is None, each.after is None) for each in changes}
    return {("off" if after else "on") for before, after in modes if before != after}


def test_idle_nodes_turn_mig_mode_on_and_off_again(tmp_path: Path) -> None:
    """The engine changes whole nodes: requests and gangs start that never could; no checker finds anything."""
    quiet = NODE_WAYS % "conflict_ratio: 0"
    static = run(scenario(quiet.replace("[node]", "[]"), tmp_path), Setup(policy=REGEOMETRY))
    cut = run(scenario(quiet, tmp_path), Setup(policy=REGEOMETRY))
    assert cut.violated == static.violated == set()
    assert turns(cut) == {"on", "off"}
    assert np.isnan(waited_s(static))
    assert waited_s(cut) < 900.0


def test_turns_of_mig_mode_that_go_wrong_do_no_harm(tmp_path: Path) -> None:
    """They fail half-way, hang, have no effect, and meet nodes that break: all work ends, and replay decides alike."""
    journal = tmp_path / "run.journal"
    ran = run(scenario(NODE_WAYS % WRONG, tmp_path), Setup(policy=REGEOMETRY, journal=journal))
    assert ran.violated == set()
    assert turns(ran) == {"on", "off"}
    assert ran.simulated.run.complete
    ran.close()
    assert replay(journal).identical
