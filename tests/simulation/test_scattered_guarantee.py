"""GPUs that a queue is owed are idle but scattered, and no queue is above its guarantee: others move together."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import World, build_world
from autopilot.core.model.policy import Policy
from autopilot.core.preemption import reclaim_borrowed
from tests.kits.policies import elastic, simulated
from tests.simulation.kit import Ran, Setup, run

WITHIN_S = 1200.0
POLICY = elastic(within_s=WITHIN_S, half_life_s=0.0)
BOUND_S = WITHIN_S + POLICY.preemption.grace_s + 10.0
"""The stated time, one grace and two ticks of 5 s."""
WIDE_S = 1200.0

CLUSTER = """
pools: [{name: default, nodes: 3, gpus_per_node: 8, gpu_model: A100-80GB}]
queues:
  - {name: owner, guarantee: {A100-80GB: 12}}
  - {name: other, guarantee: {A100-80GB: 12}}
"""


def jobs() -> str:
    """Each node gets a gang of four, one of one and a filler of three, which ends soon: three GPUs are idle on each.

    The wide gang of the owner comes then. It is the longest of all, so that nobody pauses for it.
    """
    rows = ["job_id,tenant,submit_s,duration_s,gpus"]
    for node in range(3):
        at_s = 60 * node
        rows += [f"four-{node},other,{at_s},40000,4", f"one-{node},owner,{at_s + 20},40000,1"]
        rows.append(f"filler-{node},owner,{at_s + 40},{900 - at_s},3")
    return "\n".join([*rows, f"wide,owner,{WIDE_S:g},60000,8"]) + "\n"


def played(folder: Path, policy: Policy = POLICY) -> Ran:
    """The run; run times are known exactly."""
    (folder / "cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    (folder / "jobs.csv").write_text(jobs(), encoding="utf-8")
    world: World = build_world(
        SimulateOptions(
            jobs=folder / "jobs.csv", cluster=str(folder / "cluster.yaml"), physics="charged", telemetry="off"
        )
    )
    return run(world, Setup(policy=policy, durations="exact"))


def test_others_move_together_within_the_bound(tmp_path: Path) -> None:
    """Not before the stated time: until then, nothing is done by contract."""
    ran = played(tmp_path)
    assert WIDE_S + WITHIN_S <= ran.cluster.first_start_s[9] <= WIDE_S + BOUND_S
    assert ran.simulated.owed.by_queue["owner"].longest_s <= BOUND_S
    assert ran.violated == set()


def test_a_strict_guarantee_does_not_wait_for_the_stated_time(tmp_path: Path) -> None:
    """The shipped policy shares no time: its bound is one grace and two ticks."""
    policy = simulated()
    ran = played(tmp_path, policy)
    bound_s = policy.preemption.grace_s + 10.0
    assert ran.cluster.first_start_s[9] <= WIDE_S + bound_s
    assert ran.simulated.owed.by_queue["owner"].longest_s <= bound_s


def test_without_it_the_owner_waits_for_the_end_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the spell is as long as the gangs of four run."""
    monkeypatch.setattr(reclaim_borrowed, "compact", lambda *_: None)
    assert played(tmp_path).simulated.owed.by_queue["owner"].longest_s > 30_000.0
