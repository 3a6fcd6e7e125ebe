"""Work whose GPUs are assumed: what is measured on them does not count as its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.intake.usage.activity import Activity, entity_activity, work_activity
from autopilot.core.intake.usage.rollup import ratios, rollups
from autopilot.core.intake.usage.table import extremes, usage_of
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.recovery.hangs import doing_nothing
from tests.kits import hang_world, idle_world
from tests.kits.core_world import decide, evicted, holds, observe, snapshot
from tests.kits.ticking_world import EAGER
from tests.kits.usage_world import facts_of, measured

ACTIVITY = {"sm_active_ratio": [0.8, 0.8, 0.0, 0.4], "power_w": [600.0, 600.0, 70.0, 400.0]}


def assumed(snap: ClusterSnapshot, *names: str) -> ClusterSnapshot:
    """The snapshot in which no source says which GPUs this work holds."""
    mine = np.isin(snap.workloads.id[snap.placements.workload], names)
    return replace(snap, placements=replace(snap.placements, assumed=mine))


def seen(observation: Observation, *names: str) -> Observation:
    """`assumed` of an observation."""
    return replace(observation, snapshot=assumed(observation.snapshot, *names))


def test_its_use_is_unknown_and_its_neighbours_known() -> None:
    """Activity, energy and extremes are NaN, and not estimated; what it holds is known."""
    snap = assumed(measured(snapshot("1x4", [holds("a", 2, [0, 1]), holds("b", 1, [2])]), ACTIVITY), "a")
    use = usage_of(snap, 3600.0)
    low, _ = extremes(snap, "sm_active_ratio", 300.0)
    assert use.of("sm_active_ratio", 300.0) == pytest.approx([np.nan, 0.0], nan_ok=True)
    assert use.of("energy_j", 60.0) == pytest.approx([np.nan, 70.0 * 60], nan_ok=True)
    assert low == pytest.approx([np.nan, 0.0], nan_ok=True)
    assert use.measured_ratio[1].tolist() == [0.0, 1.0]
    assert use.held_gpus.tolist() == [2.0, 1.0]
    assert not use.estimated.any()


def test_the_fleet_is_measured_and_tenants_are_not() -> None:
    """Whoever holds a GPU, its activity is that of the fleet and of its pool."""
    work = [holds("a", 2, [0, 1], tenant=0), holds("b", 1, [2], tenant=1)]
    snap = assumed(measured(snapshot("1x4", work), ACTIVITY), "a")
    found = {level: ratios(each, 300.0) for level, each in rollups(snap).items()}
    assert found["fleet"].active_gpus[0] == pytest.approx(1.6)
    assert found["pool"].active_gpus[0] == pytest.approx(1.6)
    assert found["tenant"].active_gpus[:2] == pytest.approx([np.nan, 0.0], nan_ok=True)


@pytest.mark.parametrize(("names", "found"), [([], ["3"]), (["b"], []), (["a"], []), (["a", "b"], [])], ids=str)
def test_as_many_busy_gpus_as_it_may_hold_are_no_strays(names: Sequence[str], found: list[str]) -> None:
    """A GPU that is busy beside it may be the one that it holds."""
    busy = measured(snapshot("1x4", [holds("a", 1, [0]), holds("b", 1, [2])]), {"sm_active_ratio": [0, 0, 0, 0.9]})
    assert [each.entity_id for each in facts_of(assumed(busy, *names)).strays] == [
        busy.gpus.uuid[int(k)] for k in found
    ]


def test_more_busy_gpus_than_it_may_hold_are_strays() -> None:
    """One of three is explained by a gang of one, on its own node only."""
    busy = measured(snapshot("2x4", [holds("a", 1, [0])]), {"sm_active_ratio": [0, 0.9, 0.9, 0.9, 0.9, 0, 0, 0]})
    assert [each.entity_id for each in facts_of(assumed(busy, "a")).strays] == [
        str(busy.gpus.uuid[k]) for k in (2, 3, 4)
    ]


def test_it_is_not_judged_idle() -> None:
    """Idle by the counters of GPUs that it may not hold: unknown."""
    snap = idle_world.measured(snapshot("1x8", [holds("a", 1, start_s=0.0), holds("b", 1, start_s=0.0)]), {})
    found = work_activity(assumed(snap, "a"), entity_activity(snap, Policy()), idle_world.NOW_S)
    assert found.activity.tolist() == [Activity.UNKNOWN, Activity.IDLE]
    assert found.idle_gpus.tolist() == [0.0, 1.0]


def test_it_is_not_judged_to_do_nothing() -> None:
    """A gang whose assumed GPUs are silent may work on others."""
    silent = hang_world.measured(hang_world.training(), dict.fromkeys(range(4), 0.0))
    assert doing_nothing(silent.snapshot, EAGER).tolist() == [True, False]
    assert not doing_nothing(assumed(silent.snapshot, "g"), EAGER).any()


def test_an_error_of_a_gpu_that_it_may_not_hold_does_not_stop_it() -> None:
    """XID 95 where a gang is known to be, and where it is assumed to be."""
    observation = observe(snapshot("2x8", [holds("g", 8, range(8))], xids={3: 95}))
    assert evicted(decide(observation, EAGER)) == ["g"]
    assert evicted(decide(seen(observation, "g"), EAGER)) == []
