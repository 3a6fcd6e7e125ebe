"""Telemetry in doubt: each planted fault is found, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.hardware.dcgm import SIGNALS, Quality
from autopilot.core.intake.usage.plausibility import DOUBTS
from autopilot.core.model.codes import Code
from autopilot.core.model.snapshot import ClusterSnapshot
from tests.kits.core_world import holds, snapshot
from tests.kits.usage_world import facts_of, measured

NAN = float("nan")
OK = Code.OK


def healthy(shape: str = "2x4") -> ClusterSnapshot:
    """A gang on the first four GPUs with telemetry that varies; the others are free and idle."""
    snap = snapshot(shape, [holds("a", 4)])
    busy, rest = [0.6, 0.61, 0.59, 0.6], len(snap.gpus.uuid) - 4
    found = measured(
        snap,
        {
            "sm_active_ratio": busy + [0.0] * rest,
            "sm_occupancy_ratio": [0.3] * 4 + [0.0] * rest,
            "tensor_active_ratio": [0.2] * 4 + [0.0] * rest,
            "power_w": [500.0] * 4 + [70.0] * rest,
            "fb_used_mib": [30_000.0] * 4 + [4.0] * rest,
        },
        samples=20,
    )
    highest = found.telemetry.mean * np.float32(1.02)
    return replace(found, telemetry=replace(found.telemetry, maximum=highest))


def codes(snap: ClusterSnapshot) -> list[Code]:
    """The doubt about each GPU, then each instance."""
    return [DOUBTS[index] for index in facts_of(snap).doubts.tolist()]


def changed(snap: ClusterSnapshot, signal: str, gpu: int, value: float, highest: float | None = None) -> None:
    """Overwrite one signal of one GPU in every window."""
    row = SIGNALS.index(signal)
    snap.telemetry.mean[row, :, gpu] = value
    snap.telemetry.maximum[row, :, gpu] = value * 1.01 if highest is None else highest


def test_healthy_telemetry_is_in_no_doubt() -> None:
    """Working GPUs vary, and idle ones read exactly 0 with a power that moves."""
    assert codes(healthy()) == [OK] * 8
    assert facts_of(healthy()).gaps == ()
    assert codes(snapshot("1x2", [holds("a", 1)])) == [OK, OK]


def stuck(snap: ClusterSnapshot) -> None:
    """One number, repeated."""
    changed(snap, "sm_active_ratio", 1, 0.61, 0.61)


def at_one(snap: ClusterSnapshot) -> None:
    """Constant at 1."""
    changed(snap, "sm_active_ratio", 1, 1.0, 1.0)


def idle_and_stuck(snap: ClusterSnapshot) -> None:
    """Activity of 0 beside a power that never moves."""
    changed(snap, "sm_active_ratio", 1, 0.0, 0.0)
    changed(snap, "sm_occupancy_ratio", 1, 0.0, 0.0)
    changed(snap, "tensor_active_ratio", 1, 0.0, 0.0)
    changed(snap, "power_w", 1, 120.0, 120.0)


def percent(snap: ClusterSnapshot) -> None:
    """45 where .45 is due."""
    changed(snap, "dram_active_ratio", 1, 45.0)


def a_hundredth(snap: ClusterSnapshot) -> None:
    """.006 where .6 is due: the other counters contradict it."""
    changed(snap, "sm_active_ratio", 1, 0.006, 0.0062)


def negative(snap: ClusterSnapshot) -> None:
    """Negative power."""
    changed(snap, "power_w", 1, -3.0)


def absurd(snap: ClusterSnapshot) -> None:
    """A gigawatt."""
    changed(snap, "power_w", 1, 1e9)


def infinite(snap: ClusterSnapshot) -> None:
    """An infinite rate."""
    changed(snap, "nvlink_bytes_s", 1, float("inf"))


def tensor_without_sm(snap: ClusterSnapshot) -> None:
    """Tensor pipes busier than the SMs that they are in."""
    changed(snap, "tensor_active_ratio", 1, 0.9)


def zero_at_work(snap: ClusterSnapshot) -> None:
    """All activity at 0 at the power of a GPU that works."""
    for signal in ("sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio"):
        changed(snap, signal, 1, 0.0, 0.0)


def swapped(snap: ClusterSnapshot) -> None:
    """The telemetry of GPU 1, which works, and of GPU 6 on another node, which is free, under each other's name."""
    for column in (snap.telemetry.mean, snap.telemetry.maximum):
        column[..., [1, 6]] = column[..., [6, 1]]


def seen_twice(snap: ClusterSnapshot) -> None:
    """One UUID on two nodes."""
    snap.gpus.uuid[6] = snap.gpus.uuid[1]


def other_node(snap: ClusterSnapshot) -> None:
    """A placement that locates the GPU on another node."""
    snap.placements.node[1] = 1


def old(snap: ClusterSnapshot) -> None:
    """Five minutes without a sample."""
    snap.telemetry.age_s[1] = 300.0


FAULTS: list[tuple[Callable[[ClusterSnapshot], None], Code, set[int]]] = [
    (stuck, Code.TELEMETRY_STUCK, {1}),
    (at_one, Code.TELEMETRY_STUCK, {1}),
    (idle_and_stuck, Code.TELEMETRY_STUCK, {1}),
    (percent, Code.TELEMETRY_SCALE, {1}),
    (a_hundredth, Code.TELEMETRY_SCALE, {1}),
    (negative, Code.TELEMETRY_IMPOSSIBLE, {1}),
    (absurd, Code.TELEMETRY_IMPOSSIBLE, {1}),
    (infinite, Code.TELEMETRY_IMPOSSIBLE, {1}),
    (tensor_without_sm, Code.TELEMETRY_IMPOSSIBLE, {1}),
    (zero_at_work, Code.TELEMETRY_IMPOSSIBLE, {1}),
    (swapped, Code.TELEMETRY_SWAPPED, {1, 6}),
    (seen_twice, Code.TELEMETRY_SWAPPED, {1, 6}),
    (other_node, Code.TELEMETRY_OWNER, {1}),
    (old, Code.STALE_TELEMETRY, {1}),
]


@pytest.mark.parametrize(("plant", "code", "rows"), FAULTS, ids=[plant.__name__ for plant, _, _ in FAULTS])
def test_a_planted_fault_is_found(plant: Callable[[ClusterSnapshot], None], code: Code, rows: set[int]) -> None:
    """Each fault puts the GPUs that it touches in doubt, with its reason, and no other GPU."""
    snap = healthy()
    plant(snap)
    assert codes(snap) == [code if row in rows else OK for row in range(8)]


def test_two_holders_of_one_gpu_contradict_each_other() -> None:
    """Two workloads that each hold the whole GPU: which of them is idle cannot be told."""
    snap = measured(snapshot("1x2", [holds("a", 1, on=[0]), holds("b", 1, on=[0])]), {"sm_active_ratio": [0.4, 0.0]})
    assert codes(snap) == [Code.TELEMETRY_OWNER, OK]


def test_few_or_coarse_samples_may_be_equal() -> None:
    """Five equal samples are chance, and GPU utilization stands at 100 % for hours."""
    few = healthy()
    at_one(few)
    few.telemetry.samples[:, 1] = 5
    assert codes(few)[1] == OK
    coarse = healthy()
    at_one(coarse)
    coarse.telemetry.quality[1] = Quality.GPU_UTIL
    assert codes(coarse)[1] == OK


def test_power_at_the_limit_of_the_board_is_constant() -> None:
    """A board at its power limit reports the limit; its activity varies."""
    snap = healthy()
    changed(snap, "power_w", 1, 700.0, 700.0)
    assert codes(snap)[1] == OK


def test_an_idle_holder_with_a_program_loaded_is_not_swapped() -> None:
    """Something busy elsewhere does not shelter a hoarder that keeps a model in memory."""
    snap = healthy()
    swapped(snap)
    changed(snap, "fb_used_mib", 1, 40_000.0)
    assert codes(snap)[1] == OK


def test_an_instance_shares_the_doubt_about_the_identity_of_its_gpu() -> None:
    """A GPU that is listed twice makes its instances doubtful too."""
    snap = snapshot("2x1", [holds("i", 1, on=[0], mig_profile=2)], cuts={0: [("3g.40gb", 0), ("3g.40gb", 4)]})
    snap.gpus.uuid[1] = snap.gpus.uuid[0]
    assert codes(measured(snap, {"sm_active_ratio": [0.1, 0.0, 0.2, 0.3]})) == [Code.TELEMETRY_SWAPPED] * 4


def test_impossible_values_and_unknown_profiles_are_gaps() -> None:
    """Each signal is one gap with the first entity and its value; an unknown profile is one, with the instance."""
    snap = healthy()
    negative(snap)
    changed(snap, "power_w", 2, -7.0)
    found = facts_of(snap).gaps
    assert [(gap.object_id, gap.signal) for gap in found] == [("GPU-1", "power_w")]
    assert found[0].reason == "-3 is not possible and 1 others: it is not used"
    cut = snapshot("1x1", cuts={0: [("1g.10gb", 0), ("3g.40gb", 4)]})
    odd = replace(cut, names=replace(cut.names, profiles=("1g.10gb", "2g.20gb", "half", "7g.80gb")))
    assert [(gap.source, gap.object_id) for gap in facts_of(odd).gaps] == [
        ("inventory", "GPU-0/7"),
        ("inventory", "GPU-0/8"),
    ]


def test_busy_gpus_that_no_workload_holds_are_a_gap() -> None:
    """One gap for all of them, with the first and its node; GPUs that work holds, and quiet free ones, are none."""
    snap = measured(snapshot("2x2", [holds("a", 1)]), {"sm_active_ratio": [0.5, 0.7, 0.01, 0.9]})
    (gap,) = facts_of(snap).gaps
    assert (gap.object_id, gap.signal) == ("GPU-1", "sm_active_ratio")
    assert gap.reason.startswith(
        "busy on node-0 although no workload holds it, and 1 others with it: find its processes"
    )
    assert facts_of(measured(snapshot("1x2", [holds("a", 1)]), {"sm_active_ratio": [0.5, 0.01]})).gaps == ()
