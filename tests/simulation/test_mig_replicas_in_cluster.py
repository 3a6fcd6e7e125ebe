"""A service whose replicas are MIG instances, with a burst, beside batch work on instances."""

from __future__ import annotations

from pathlib import Path

from autopilot.core.model.records import NoteCode, Proposal
from autopilot.records.replay import replay
from tests.kits.demand_world import Growing
from tests.kits.policies import simulated
from tests.simulation.kit import Ran, Setup, run, scenario

REGEOMETRY = simulated()

BURST = """
name: small-mig-burst
horizon: 80m
cluster:
  pools:
    - name: a100
      nodes: 2
      gpus_per_node: 2
      gpu_model: A100-80GB
      mig_scopes: [instance]
      mig: [{gpus_per_node: 1, geometry: {2g.20gb: 3}}, {gpus_per_node: 1, geometry: {%s}}]
  queues:
    - {name: product, guarantee: {A100-80GB: 4}, priority: 10}
    - {name: research}
jobs:
  groups:
    - {kind: train, tenants: [research], gpus: [1], mig_profile: 2g.20gb, %s}
services:
  - name: chat
    tenant: product
    mig_profile: 2g.20gb
    slots: 8
    prefill_tokens_per_s: 8000
    decode_tokens_per_s: 60
    objective: 20s
    load_time: 3m
    replicas: {initial: 2, min: 1, max: 5}
    autoscaler: {target: 0.7, period: 30s}
    requests: {mean_rps: 2, shape: azure, swing: 0, from: 6m,
      bursts: {per_day: 1, daily: [35m], factor: 4, rise: 10m, length: 20m}}
physics: real
telemetry: "off"
durations: exact
policies: [regeometry]
"""


def accepted(ran: Ran, action: str, reason: str) -> list[tuple[float, Proposal]]:
    """What one action did for one reason, and when."""
    return [
        (moment.observation.now_s, each)
        for moment in ran.tape.moments
        for each in moment.decision.plan.proposals
        if each.accepted and (each.action, each.reason) == (action, reason)
    ]


def runs_at_s(ran: Ran, replica: str) -> float:
    """When a replica was first seen to hold an instance of its profile."""
    for moment in ran.tape.moments:
        snapshot = moment.observation.snapshot
        held = snapshot.placements
        profiles = snapshot.instances.profile[held.instance[snapshot.workloads.id[held.workload] == replica]]
        if len(profiles):
            assert [snapshot.names.profiles[each] for each in profiles] == ["2g.20gb"]
            return moment.observation.now_s
    raise AssertionError(f"{replica} never ran")


def test_batch_on_instances_leaves_for_replicas_that_are_foreseen(tmp_path: Path) -> None:
    """The replica starts within minutes, one batch gang on an instance saves and ends later, no checker finds a fault,
    and the run is decided again alike.
    """
    path = tmp_path / "run.journal"
    text = BURST % ("2g.20gb: 3", "count: 60, duration: 14m, spread: 0.5, to: 70m")
    ran = run(scenario(text, tmp_path, 4), Setup(policy=REGEOMETRY, demand=Growing(1.8), journal=path))
    ran.close()
    assert ran.violated == set()
    made = accepted(ran, "make_room", "foreseen")
    assert made
    for at_s, room in made:
        assert [victim.how for victim in room.victims] == ["evict"]
        assert at_s < runs_at_s(ran, room.subject.name) < at_s + 120.0
    assert ran.simulated.run.complete
    assert NoteCode.INSTANCES_HELD in {note.code for moment in ran.tape.moments for note in moment.decision.notes}
    assert replay(path).identical


def test_idle_instances_are_cut_for_replicas_that_are_foreseen(tmp_path: Path) -> None:
    """Batch work holds the other instances of the profile, and none of it is stopped or moved."""
    text = BURST % ("1g.10gb: 7", "count: 4, duration: 75m, to: 1m")
    ran = run(scenario(text, tmp_path, 4), Setup(policy=REGEOMETRY, demand=Growing(1.8)))
    assert ran.violated == set()
    cuts = accepted(ran, "regeometry", "foreseen")
    assert cuts
    most = max(int(moment.observation.snapshot.services.ready_replicas[0]) for moment in ran.tape.moments)
    assert most >= 4
    assert not [each for moment in ran.tape.moments for each in moment.decision.plan.proposals if each.victims]
