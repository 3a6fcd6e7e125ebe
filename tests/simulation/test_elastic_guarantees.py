"""Elastic guarantees in a cluster: an owner runs short for the stated time, not longer, and the checker sees to it."""

from __future__ import annotations

from pathlib import Path

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import World, build_world
from autopilot.core.capabilities.actions import ACTIONS
from tests.kits.policies import elastic, simulated
from tests.simulation.kit import Setup, run

WITHIN_S = 1200.0
POLICY = elastic(within_s=WITHIN_S, half_life_s=0.0)
STRICT = simulated(tenancy__time_sharing=True, tenancy__usage_half_life_s=0.0)
BOUND_S = WITHIN_S + POLICY.preemption.grace_s + 10.0
"""The stated time, one grace and two ticks of 5 s."""
"""Past use does not count: by it the guest, who held everything, would come after the owner at once."""

CLUSTER = """
pools: [{name: default, nodes: 2, gpus_per_node: 8, gpu_model: A100-80GB}]
queues:
  - {name: owner, guarantee: {A100-80GB: 8}}
  - {name: guest}
"""
JOBS = """job_id,tenant,submit_s,duration_s,gpus
guest-0,guest,0,14400,8
guest-1,guest,0,14400,8
mine-0,owner,600,20000,4
mine-1,owner,1200,20000,4
"""


def lent(folder: Path) -> World:
    """The guest holds everything for four hours; the owner of a half comes after ten minutes, with longer work."""
    (folder / "cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    (folder / "jobs.csv").write_text(JOBS, encoding="utf-8")
    return build_world(
        SimulateOptions(
            jobs=folder / "jobs.csv",
            cluster=str(folder / "cluster.yaml"),
            physics="charged",
            telemetry="off",
        )
    )


def test_an_elastic_owner_has_its_guarantee_back_after_the_stated_time(tmp_path: Path) -> None:
    """Not before: its work is longer than the guest's. Both of its jobs start then, and no checker objects."""
    ran = run(lent(tmp_path), Setup(policy=POLICY, durations="exact"))
    starts_s = [ran.cluster.first_start_s[job] for job in (2, 3)]
    assert all(600.0 + WITHIN_S <= start_s <= 600.0 + BOUND_S for start_s in starts_s)
    assert WITHIN_S <= ran.simulated.owed.by_queue["owner"].longest_s <= BOUND_S
    assert ran.violated == set()


def test_a_strict_owner_has_it_back_at_once(tmp_path: Path) -> None:
    """With time shared, as without."""
    ran = run(
        lent(tmp_path),
        Setup(policy=STRICT, durations="exact"),
    )
    assert ran.simulated.owed.by_queue["owner"].longest_s <= STRICT.preemption.grace_s + 10.0
    assert ran.violated == set()


def test_a_controller_that_forgets_to_take_back_is_caught(tmp_path: Path) -> None:
    """Planted: without the action that reclaims, the owner waits for the guest's end."""
    careless = tuple(action for action in ACTIONS if action.name != "reclaim_borrowed")
    assert run(lent(tmp_path), Setup(policy=POLICY, durations="exact", actions=careless)).violated == {"guarantees"}
