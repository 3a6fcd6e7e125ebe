"""A burst beside work that rests on borrowed GPUs and work that is busy: the idle work makes the room."""

from __future__ import annotations

from pathlib import Path

from tests.kits.core_world import with_policy
from tests.kits.demand_world import Growing
from tests.kits.policies import simulated
from tests.simulation.kit import Setup, run, scenario

RECLAIM = with_policy(simulated(), idle={"gone_s": 0.0, "batch_grace_s": 300.0})

BURST = """
name: small-idle-burst
horizon: 64m
cluster:
  pools:
    - {name: h100, nodes: 1, gpus_per_node: 8, gpu_model: H100-80GB}
  queues:
    - {name: product, guarantee: {H100-80GB: 6}, priority: 10}
    - {name: research}
    - {name: training}
jobs:
  groups:
    - {kind: hoarder, name: work, count: 3, tenants: [research], gpus: [1], duration: 62m, spread: 0.01, to: 1m}
    - {kind: train, name: work, count: 3, tenants: [training], gpus: [1], duration: 62m, spread: 0.01, to: 1m}
services:
  - name: chat
    tenant: product
    slots: 8
    prefill_tokens_per_s: 8000
    decode_tokens_per_s: 60
    objective: 20s
    load_time: 3m
    replicas: {initial: 2, min: 1, max: 5}
    autoscaler: {target: 0.7, period: 30s}
    requests: {mean_rps: 2, shape: azure, swing: 0, from: 33m,
      bursts: {per_day: 1, daily: [45m], factor: 4, rise: 8m, length: 8m}}
physics: real
telemetry: windowed
durations: last-two
policies: [reclaim-idle]
"""


def test_idle_work_is_suspended_for_a_burst_and_busy_work_goes_on(tmp_path: Path) -> None:
    """Every replica that is foreseen takes the GPU of work that rests, after its notice and grace; no checker finds a
    fault.
    """
    ran = run(scenario(BURST, tmp_path, 4), Setup(policy=RECLAIM, demand=Growing(1.8)))
    assert ran.violated == set()
    taking = [
        (each.action, each.reason, victim.workload.rpartition("-")[0])
        for moment in ran.tape.moments
        for each in moment.decision.plan.proposals
        if each.accepted
        for victim in each.victims
    ]
    assert taking == [("make_room", "foreseen_on_idle", "work-0")] * 3
    most = max(int(moment.observation.snapshot.services.ready_replicas[0]) for moment in ran.tape.moments)
    assert most == 5
