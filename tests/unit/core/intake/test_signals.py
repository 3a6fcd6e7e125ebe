"""Measures of a snapshot: together they say what is allocated, what is used, and what is wasted and why."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import numpy as np
import pytest

from autopilot.core.intake.signals import measure
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.placement.whatif import WhatIf
from tests.kits.core_world import holds, snapshot, waits


def with_activity(snap: ClusterSnapshot, mean: list[float]) -> ClusterSnapshot:
    """SM activity over five minutes, GPUs first, then instances."""
    column = np.array(mean, np.float32)[None, None, :]
    count = len(mean)
    table = SignalTable(
        ("sm_active_ratio",),
        (300.0,),
        0.0,
        column,
        column,
        np.ones((1, count), np.int32),
        np.zeros(count, np.float32),
        np.ones(count, np.int8),
    )
    return replace(snap, telemetry=table)


def test_allocation_and_hardware_stand_together() -> None:
    """Real utilization is allocation x hardware, and the gap is what is held and idle."""
    snap = with_activity(snapshot("1x8", [holds("a", 4), waits("p", 6)]), [0.5, 0.5, 1.0, 0.0, 0, 0, 0, 0])
    found = measure(snap, WhatIf(snap))
    assert (found.capacity_gpus, found.allocated_gpus, found.free_gpus, found.pending_gpus) == (8, 4, 4, 6)
    assert found.allocation_ratio == 0.5
    assert found.hardware_ratio == pytest.approx(0.5)
    assert found.real_utilization_ratio == pytest.approx(0.25)
    assert found.gap_ratio == pytest.approx(0.25)


def test_what_is_not_measured_is_not_zero() -> None:
    """Without telemetry the ratios that rest on it are NaN; with a part of it they are lower bounds."""
    snap = snapshot("1x8", [holds("a", 4)])
    found = measure(snap, WhatIf(snap))
    assert isnan(found.hardware_ratio)
    assert isnan(found.real_utilization_ratio)
    assert isnan(found.gap_ratio)
    part = with_activity(snap, [0.6, np.nan, np.nan, np.nan, 0, 0, 0, 0])
    signals = measure(part, WhatIf(part))
    assert (signals.hardware_ratio, signals.measured_ratio) == pytest.approx((0.15, 0.25))


def test_a_cluster_without_gpus_has_no_ratios() -> None:
    """With no capacity a ratio is NaN, not zero and not an error."""
    snap = snapshot("1x0")
    found = measure(snap, WhatIf(snap))
    assert found.capacity_gpus == 0
    assert isnan(found.allocation_ratio)
    assert isnan(found.hardware_ratio)


def test_gpus_out_of_use_are_capacity() -> None:
    """A busy node that is cordoned is allocated, and an idle one is out of use: neither shrinks the cluster."""
    nodes = {"cordoned": [True, True, False], "ready": [True, True, True]}
    snap = snapshot("3x8", [holds("a", 6, on=range(6)), holds("b", 8, on=range(16, 24))], nodes=nodes, unhealthy=[6])
    found = measure(snap, WhatIf(snap))
    assert (found.capacity_gpus, found.allocated_gpus, found.free_gpus, found.out_of_use_gpus) == (24, 14, 0, 10)
    assert found.allocation_ratio == pytest.approx(14 / 24)


def test_shares_and_instances_count_as_parts() -> None:
    """A share counts its thousandths, an instance its compute slices, as usage does; a destroyed one is no part."""
    cuts = {7: [("3g.40gb", 0), ("3g.40gb", 4), ("1g.10gb", 7)]}
    snap = snapshot(
        "1x8",
        [holds("s", 1, on=[0], gpu_milli=250), holds("i", 1, on=[0], mig_profile=2, tenant=1)],
        cuts=cuts,
    )
    snap.instances.profile[2] = -3
    assert measure(snap, WhatIf(snap)).allocated_gpus == pytest.approx(0.25 + 3 / 7)


def test_nothing_is_stranded_while_nobody_waits() -> None:
    """Free GPUs are stranded only against what waits."""
    snap = snapshot("2x8", [holds("a", 7)])
    assert measure(snap, WhatIf(snap)).stranded_by_cause == ()


def test_stranded_gpus_by_cause() -> None:
    """What waits and would fit in another shape, by cause; a lack of capacity is not fragmentation."""
    parts = [holds("a", 4, on=range(4)), holds("b", 4, on=range(8, 12))]
    snap = snapshot("2x8", [*parts, waits("p", 8)])
    assert measure(snap, WhatIf(snap)).stranded_by_cause == (("node_remainder", 8.0),)
    assert measure(snap, WhatIf(snap)).stranded_gpus == 8.0
    short = snapshot("2x8", [*parts, waits("p", 16)])
    assert measure(short, WhatIf(short)).stranded_by_cause == ()
    cut = snapshot(
        "1x8",
        [holds("a", 7, on=range(7)), waits("p", 1, mig_profile=2)],
        cuts={7: [("1g.10gb", 0), ("1g.10gb", 1)]},
    )
    ((cause, gpus),) = measure(cut, WhatIf(cut)).stranded_by_cause
    assert cause == "mig_geometry"
    assert gpus == pytest.approx(3 / 7)


def test_the_widest_gang_that_fits() -> None:
    """On one node its free GPUs; over several, wholly free nodes."""
    snap = snapshot("3x8", [holds("a", 1)])
    assert measure(snap, WhatIf(snap)).largest_gang_gpus == 16
    snap = snapshot("1x8", [holds("a", 1)])
    assert measure(snap, WhatIf(snap)).largest_gang_gpus == 7
