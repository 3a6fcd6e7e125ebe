"""Joining batches: rows, ages, gaps; the better source wins, and values that no source reports are unknown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.intake.assemble import assemble
from autopilot.core.model.errors import InvariantError
from autopilot.core.model.records import Batch, Gap, Inventory, Telemetry, Work
from autopilot.core.model.snapshot import ClusterSnapshot, Recut
from tests.kits.core_world import holds, snapshot, waits

SNAP = snapshot("1x2", [holds("a", 1), waits("p")], cuts={1: [("1g.10gb", 0)]})


def inventory(snap: ClusterSnapshot = SNAP) -> Inventory:
    """The hardware half."""
    return Inventory(snap.names, snap.nodes, snap.gpus, snap.instances)


def work(snap: ClusterSnapshot = SNAP) -> Work:
    """The work half."""
    return Work(snap.names.tenants, snap.workloads, snap.placements, snap.services, snap.queues)


def telemetry(ids: list[str], mean: list[float], age_s: float = 1.0, quality: int = 1) -> Telemetry:
    """One signal in one window."""
    column = np.array(mean, np.float32)[None, None, :]
    count = len(ids)
    return Telemetry(
        ("sm_active_ratio",),
        (300.0,),
        np.array(ids, object),
        column,
        column,
        np.ones((1, count), np.int32),
        np.full(count, age_s, np.float32),
        np.full(count, quality, np.int8),
    )


def test_halves_are_joined_with_their_ages() -> None:
    """Each half is as old as the batch that brought it."""
    snap, gaps = assemble([Batch("i", 90.0, inventory=inventory()), Batch("w", 97.0, work=work())], 100.0)
    assert (snap.inventory_age_s, snap.work_age_s) == (10.0, 3.0)
    assert snap.names.tenants == SNAP.names.tenants
    assert snap.workloads.id.tolist() == ["a", "p"]
    assert gaps == ()


def test_what_nobody_brought_is_empty_and_infinitely_old() -> None:
    """No batch, no facts: empty tables of infinite age, which freezes what rests on them."""
    snap, _ = assemble([], 100.0)
    assert (len(snap.nodes.id), len(snap.workloads.id)) == (0, 0)
    assert (snap.inventory_age_s, snap.work_age_s) == (float("inf"), float("inf"))
    assert snap.telemetry.signals == ()


def test_signals_of_a_gpu_that_changes_its_geometry_are_unknown() -> None:
    """Those of its instances too; other GPUs keep theirs."""
    changing = snapshot("1x2", cuts={1: [("1g.10gb", 0)]}, recuts={1: Recut.CHANGING})
    measured = telemetry(["GPU-0", "GPU-1", "GPU-1/7"], [0.5, 0.6, 0.7])
    snap, _ = assemble([Batch("i", 90.0, inventory=inventory(changing)), Batch("t", 90.0, telemetry=measured)], 100.0)
    table = snap.telemetry
    assert np.isnan(table.mean[0, 0]).tolist() == [False, True, True]
    assert table.samples[0].tolist() == [1, 0, 0]
    assert np.isinf(table.age_s).tolist() == [False, True, True]


def test_the_newer_batch_wins() -> None:
    """Of two batches about the same half the newer counts, in whatever order they come."""
    newer = snapshot("1x2", [waits("new")], cuts={1: [("1g.10gb", 0)]})
    batches = [
        Batch("w", 99.0, work=work(newer)),
        Batch("i", 99.0, inventory=inventory()),
        Batch("w", 50.0, work=work()),
    ]
    assert assemble(batches, 100.0)[0].workloads.id.tolist() == ["new"]
    assert assemble(batches[::-1], 100.0)[0].workloads.id.tolist() == ["new"]


def test_gaps_are_kept_with_their_reasons() -> None:
    """Every gap of every batch reaches the observation."""
    gap, other = Gap("a", "node-0", "", "down"), Gap("b", "", "x", "old")
    assert assemble([Batch("a", 1.0, gaps=(gap,)), Batch("b", 1.0, gaps=(other,))], 1.0)[1] == (gap, other)


def test_telemetry_stands_in_the_order_of_the_hardware() -> None:
    """Rows are GPUs, then instances; an entity without samples is NaN, without samples and infinitely old."""
    found = telemetry(["GPU-1/7", "elsewhere", "GPU-0"], [0.3, 0.9, 0.5])
    table = assemble([Batch("i", 100.0, inventory=inventory()), Batch("t", 98.0, telemetry=found)], 100.0)[0].telemetry
    assert table.mean[0, 0].tolist() == pytest.approx([0.5, np.nan, 0.3], nan_ok=True)
    assert table.age_s.tolist() == [3.0, np.inf, 3.0]
    assert table.samples[0].tolist() == [1, 0, 1]


def test_the_better_source_wins_for_each_entity() -> None:
    """The better counter, then the fresher sample, one entity at a time."""
    one = telemetry(["GPU-0", "GPU-1", "GPU-1/7"], [0.1, 0.1, 0.1], age_s=1.0, quality=1)
    two = telemetry(["GPU-0", "GPU-1"], [0.2, 0.2], age_s=5.0, quality=3)
    three = telemetry(["GPU-1/7"], [0.3], age_s=0.5, quality=1)
    batches = [
        Batch("i", 10.0, inventory=inventory()),
        *(Batch("t", 10.0, telemetry=t) for t in (one, two, three)),
    ]
    table = assemble(batches, 10.0)[0].telemetry
    assert table.mean[0, 0].tolist() == pytest.approx([0.2, 0.2, 0.3])
    assert table.mean.dtype == np.float32


def test_a_source_with_other_windows_is_left_out_and_named() -> None:
    """Its columns cannot be joined; the gap says whose windows count."""
    one, two = telemetry(["GPU-0"], [0.1]), telemetry(["GPU-0"], [0.2], quality=3)
    two = replace(two, windows_s=tuple(2 * each for each in two.windows_s))
    batches = [
        Batch("i", 10.0, inventory=inventory()),
        Batch("a", 10.0, telemetry=one),
        Batch("b", 10.0, telemetry=two),
    ]
    found, gaps = assemble(batches, 10.0)
    assert found.telemetry.mean[0, 0, 0] == pytest.approx(0.1)
    assert [(gap.source, gap.signal) for gap in gaps] == [("b", "telemetry")]
    assert "its windows differ from those of a" in gaps[0].reason


def test_a_source_that_fell_silent_does_not_hide_another() -> None:
    """A better counter without samples of the last minutes loses to a lesser one that is measured now."""
    silent = telemetry(["GPU-0", "GPU-1"], [0.1, 0.1], age_s=400.0, quality=3)
    silent = replace(silent, samples=np.array([[0, 1]], np.int32))
    plain = telemetry(["GPU-0", "GPU-1"], [0.2, 0.2], age_s=5.0, quality=1)
    for order in ((silent, plain), (plain, silent)):
        batches = [Batch("i", 10.0, inventory=inventory()), *(Batch("t", 10.0, telemetry=each) for each in order)]
        assert assemble(batches, 10.0)[0].telemetry.mean[0, 0, :2].tolist() == pytest.approx([0.2, 0.1])


def test_halves_that_contradict_each_other_stop_the_tick() -> None:
    """Placements on GPUs that the inventory has not are a broken invariant, never a guess."""
    small = snapshot("1x1")
    wide = snapshot("1x4", [holds("a", 4)])
    with pytest.raises(InvariantError, match="points outside"):
        assemble([Batch("i", 1.0, inventory=inventory(small)), Batch("w", 1.0, work=work(wide))], 1.0)
