"""A slow GPU holds up the gang on it, shows it, and the autopilot moves the gang away."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate
from autopilot.core.model.errors import InputError
from simulator.scenarios import load_scenario

SCENARIO = """
horizon: 3h
cluster: {pools: [{name: h100, nodes: 3, gpus_per_node: 8, gpu_model: H100-80GB}]}
jobs:
  groups:
    - {kind: compute-training, count: 1, tenants: [a], gpus: 16, duration: 3h, spread: 0.01, from: 0s, to: 1s,
       checkpoint_interval: 15m, checkpoint_gib: 10}
slow_gpus: [{node: NODE, gpu: 3, ratio: 2.0}]
durations: exact
policies: [fifo-skip, autopilot]
"""


def test_a_gang_on_a_slow_gpu_is_moved_and_ends_earlier(tmp_path: Path) -> None:
    """It has the slow member from its start on; without the move it takes 1.8 times as long."""
    path = tmp_path / "slow.yaml"
    path.write_text(SCENARIO.replace("NODE", "h100-000"), encoding="utf-8")
    found = simulate(SimulateOptions(scenario=str(path), journal=None, telemetry="windowed"))
    waits, moves = (each.simulated for each in found.policies)
    assert not moves.found.violations
    ends_s = [each.cluster.end_s[0] for each in (waits, moves)]
    assert ends_s[1] < 0.8 * ends_s[0]


def test_a_slow_gpu_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """With the node that it names."""
    path = tmp_path / "slow.yaml"
    path.write_text(SCENARIO.replace("NODE", "h100-009"), encoding="utf-8")
    with pytest.raises(InputError, match="no GPU 3 on node 'h100-009'"):
        simulate(SimulateOptions(scenario=str(path), journal=None))
    assert load_scenario(str(path)).slow_gpus[0].ratio == 2.0
