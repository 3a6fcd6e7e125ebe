"""Utilization by service, tenant, queue and pool: the groups of a level add up to the fleet, exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.intake.signals import measure
from autopilot.core.intake.usage.rollup import LEVELS, NO_WORKLOAD, ratios, rollups
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.placement.whatif import WhatIf
from tests.kits.core_world import Item, holds, queue_tree, snapshot
from tests.kits.usage_world import facts_of, measured

NAN = float("nan")
ACTIVITY = st.one_of(st.floats(0.0, 1.0, width=32), st.sampled_from([NAN, -1.0, 50.0]))


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSnapshot:
    """Three nodes with whole GPUs, shares and MIG instances of several tenants and queues, and activity."""
    of = st.tuples(st.integers(0, 2), st.integers(0, 3))
    items: list[Item] = []
    for gpu in range(8):
        tenant, queue = draw(of)
        kind = draw(st.sampled_from(["free", "whole", "shares"]))
        if kind == "whole":
            items.append(holds(f"w{gpu}", 1, on=[gpu], tenant=tenant, queue=queue))
        for number in range(draw(st.integers(1, 3)) if kind == "shares" else 0):
            milli = draw(st.sampled_from([100, 250, 333, 500]))
            items.append(holds(f"s{gpu}.{number}", 1, on=[gpu], gpu_milli=milli, tenant=tenant, queue=queue))
    cuts = {gpu: [("1g.10gb", 0), ("2g.20gb", 2), ("3g.40gb", 4)] for gpu in range(8, 12)}
    for instance in range(12):
        tenant, queue = draw(of)
        if draw(st.booleans()):
            items.append(holds(f"i{instance}", 1, on=[instance], mig_profile=instance % 3, tenant=tenant, queue=queue))
    queues = queue_tree(("a", 0, -1), ("b", 0, -1), ("a/1", 1, -1))
    snap = snapshot("3x4", items, cuts=cuts, queues=queues)
    return measured(snap, {"sm_active_ratio": [draw(ACTIVITY) for _ in range(12 + 12)]})


@given(clusters())
@settings(max_examples=60, deadline=None)
def test_groups_add_up_to_the_fleet(snap: ClusterSnapshot) -> None:
    """Held, measured and active units of the groups of a level, with the row of no workload, are those of the fleet."""
    found = rollups(snap)
    fleet = found["fleet"]
    for level in ("pool", "tenant"):
        each = found[level]
        assert each.names[-1] == NO_WORKLOAD
        assert each.held_units.sum() == fleet.held_units.sum()
        assert each.measured_units.sum(axis=1).tolist() == fleet.measured_units.sum(axis=1).tolist()
        assert each.active_units.sum(axis=1).tolist() == fleet.active_units.sum(axis=1).tolist()
    queue = found["queue"]
    assert queue.active_units[:, 0].tolist() == fleet.active_units[:, 0].tolist()
    assert queue.held_units[0] == fleet.held_units[0]
    assert queue.held_units[1] >= queue.held_units[3]


@given(clusters())
@settings(max_examples=60, deadline=None)
def test_the_fleet_is_what_the_signals_state(snap: ClusterSnapshot) -> None:
    """One truth: the observation's utilizations are those of the fleet."""
    signals, fleet = measure(snap, WhatIf(snap)), ratios(rollups(snap)["fleet"], 300.0)
    assert signals.allocated_gpus == fleet.held_gpus[0]
    for one, two in (
        (signals.allocation_ratio, fleet.allocation_ratio),
        (signals.hardware_ratio, fleet.hardware_ratio),
        (signals.real_utilization_ratio, fleet.real_utilization_ratio),
    ):
        assert one == pytest.approx(two[0], nan_ok=True)


def test_utilization_of_tenants_and_queues() -> None:
    """A tenant with an idle GPU has a gap; a queue includes the queues below it."""
    work = [holds("a", 2, tenant=0, queue=3), holds("b", 1, tenant=1, queue=2)]
    snap = snapshot("1x4", work, queues=queue_tree(("x", 0, -1), ("y", 0, -1), ("x/1", 1, -1)))
    found = rollups(measured(snap, {"sm_active_ratio": [0.5, 0.0, 1.0, 0.0]}))
    tenants = ratios(found["tenant"], 300.0)
    assert tenants.held_gpus.tolist() == [2, 1, 0, 0]
    assert tenants.gap_gpus[:2] == pytest.approx([1.5, 0.0])
    assert tenants.hardware_ratio[:2] == pytest.approx([0.25, 1.0])
    assert tenants.real_utilization_ratio[:2] == pytest.approx([0.125, 0.25])
    assert np.isnan(tenants.hardware_ratio[2:]).all()
    assert found["queue"].held_units[:4].tolist() == [84_000, 56_000, 28_000, 56_000]
    assert found["queue"].workloads.tolist() == [2, 1, 1, 1, 0]
    assert found["tenant"].workloads.tolist() == [1, 1, 0, 0]


def test_what_is_not_measured_is_neither_active_nor_idle_and_is_stated() -> None:
    """Half of a tenant's GPUs are measured: held = active + gap + not measured."""
    snap = measured(snapshot("1x4", [holds("a", 4)]), {"sm_active_ratio": [0.75, 0.75, NAN, NAN]})
    found = ratios(rollups(snap)["tenant"], 300.0)
    assert (found.active_gpus[0], found.gap_gpus[0], found.measured_ratio[0]) == (1.5, 0.5, 0.5)
    assert (found.hardware_ratio[0], found.real_utilization_ratio[0]) == (0.375, 0.375)
    nothing = found.active_gpus[1], found.gap_gpus[1], found.real_utilization_ratio[1]
    assert nothing == (0.0, 0.0, 0.0), "of a tenant that holds nothing"
    blind = ratios(rollups(measured(snap, {}))["tenant"], 300.0)
    assert np.isnan(blind.active_gpus[0])
    assert np.isnan(blind.gap_gpus[0])


def test_a_busy_gpu_that_no_workload_holds_is_reported() -> None:
    """It is named with its node and activity, and its activity is no part of the tenants' utilization."""
    snap = measured(
        snapshot("2x2", [holds("a", 1)], cuts={3: [("1g.10gb", 0), ("3g.40gb", 4)]}),
        {"sm_active_ratio": [0.5, 0.7, 0.01, 0.4, NAN, 0.9]},
    )
    found = facts_of(snap).strays
    assert [(each.entity_id, each.node) for each in found] == [("GPU-1", "node-0"), ("GPU-3/8", "node-1")]
    assert [each.activity_ratio for each in found] == pytest.approx([0.7, 0.9])
    fleet = rollups(snap)["fleet"]
    assert ratios(fleet, 300.0).hardware_ratio[0] == pytest.approx(0.5)
    assert fleet.active_units[1, -1] > 0


def test_what_ended_work_left_in_the_windows_is_no_stray() -> None:
    """The activity of work that ended half a minute ago falls in the short window first."""
    snap = measured(snapshot("1x2"), {"sm_active_ratio": [0.8, 0.8]})
    mean = snap.telemetry.mean.copy()
    mean[0, 0, 0] = 0.4  # the last minute
    ended = replace(snap, telemetry=replace(snap.telemetry, mean=mean))
    assert [each.entity_id for each in facts_of(ended).strays] == ["GPU-1"]


def test_every_level_is_there_without_work_and_telemetry() -> None:
    """An empty cluster has rows, without ratios."""
    found = rollups(snapshot("1x2"))
    assert tuple(found) == LEVELS
    assert np.isnan(ratios(found["fleet"], 300.0).hardware_ratio).all()
    assert facts_of(snapshot("1x2")).strays == ()
