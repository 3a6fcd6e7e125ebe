"""Measured use by workload: weighted, complete or marked, and never zero where nothing was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.hardware.dcgm import SIGNALS
from autopilot.core.intake.usage.table import extremes, usage_of
from autopilot.core.model.snapshot import empty_signals
from tests.kits.core_world import holds, snapshot, waits
from tests.kits.usage_world import measured

NAN = float("nan")
SM, POWER = SIGNALS.index("sm_active_ratio"), SIGNALS.index("power_w")


def test_ratios_are_means_and_amounts_are_sums() -> None:
    """Two GPUs of one gang: the mean of their activity, the sum of their power, traffic and memory."""
    snap = measured(
        snapshot("1x4", [holds("a", 2), waits("p", 1)]),
        {
            "sm_active_ratio": [0.2, 0.6, 0.9, 0.9],
            "tensor_active_ratio": [0.1, 0.3, 0, 0],
            "power_w": [300.0, 500.0, 70, 70],
            "nvlink_bytes_s": [1e9, 3e9, 0, 0],
            "fb_used_mib": [1000, 3000, 0, 0],
        },
    )
    use = usage_of(snap, 3600.0)
    assert use.of("sm_active_ratio", 300.0) == pytest.approx([0.4, NAN], nan_ok=True)
    assert use.of("tensor_active_ratio", 300.0)[0] == pytest.approx(0.2)
    assert use.of("power_w", 60.0)[0] == pytest.approx(800.0)
    assert use.of("energy_j", 60.0)[0] == pytest.approx(48_000.0)
    assert use.of("nvlink_bytes_s", 60.0)[0] == pytest.approx(4e9)
    assert use.of("fb_used_mib", 60.0)[0] == pytest.approx(4000)
    assert np.isnan(use.of("dram_active_ratio", 300.0)).all()
    assert np.isnan(use.of("sm_active_ratio", 77.0)).all()
    assert use.held_gpus.tolist() == [2.0, 0.0]
    assert not use.estimated.any()


def test_age_and_samples_are_those_of_the_worst_part() -> None:
    """One GPU without fresh samples makes the row as old as that GPU."""
    snap = measured(
        snapshot("1x2", [holds("a", 2)]), {"sm_active_ratio": [0.5, 0.5]}, samples=[8, 3], age_s=[4.0, 90.0]
    )
    use = usage_of(snap, 3600.0)
    assert (use.age_s[0], use.samples[1, 0], use.quality[0]) == (90.0, 3, 3)


def test_a_missing_part_is_unknown_and_not_zero() -> None:
    """The mean is that of the measured part; amounts count the missing GPU like the others and are estimated."""
    snap = measured(snapshot("1x2", [holds("a", 2)]), {"sm_active_ratio": [0.6, NAN], "power_w": [400.0, NAN]})
    use = usage_of(snap, 3600.0)
    assert use.of("sm_active_ratio", 300.0)[0] == pytest.approx(0.6)
    assert use.measured_ratio[1, 0] == 0.5
    assert use.of("power_w", 300.0)[0] == pytest.approx(800.0)
    assert (use.estimated[SM, 1, 0], use.estimated[POWER, 1, 0]) == (False, True)
    blind = usage_of(replace(snap, telemetry=empty_signals()), 3600.0)
    assert blind.mean.shape == (len(SIGNALS), 0, 1)
    assert np.isinf(blind.age_s).all()
    dark = usage_of(measured(snap, {}), 3600.0)
    assert np.isnan(dark.mean).all()
    assert np.isnan(dark.energy_j).all()
    assert dark.measured_ratio[1, 0] == 0.0


@pytest.mark.parametrize(
    ("signal", "wrong"),
    [
        ("power_w", -20.0),
        ("power_w", 1e7),
        ("power_w", float("inf")),
        ("sm_active_ratio", -0.1),
        ("sm_active_ratio", 42.0),
        ("fb_used_mib", -1.0),
        ("pcie_bytes_s", 1e18),
    ],
)
def test_an_impossible_value_is_not_measured(signal: str, wrong: float) -> None:
    """Negative or absurd values are left out and counted; the other GPU alone is the value."""
    values = {"sm_active_ratio": [0.5, 0.5], signal: [0.25, wrong]}
    use = usage_of(measured(snapshot("1x2", [holds("a", 2)]), values), 3600.0)
    whole = 0.25 if signal.endswith("_ratio") else 0.5
    assert use.of(signal, 300.0)[0] == pytest.approx(whole)
    assert use.faults.tolist() == [1]


def test_a_ratio_slightly_above_one_is_one() -> None:
    """Counters are not sampled at one instant: 1.005 is 1, not a fault."""
    use = usage_of(measured(snapshot("1x1", [holds("a", 1)]), {"sm_active_ratio": [1.005]}), 3600.0)
    assert use.of("sm_active_ratio", 300.0).tolist() == [1.0]
    assert use.faults.tolist() == [0]


def test_shares_of_a_gpu_are_divided_in_proportion_and_estimated() -> None:
    """Profiling counters are never per process: each share has the GPU's activity, and its part of the power."""
    work = [holds("a", 1, on=[0], gpu_milli=250), holds("b", 1, on=[0], gpu_milli=500), holds("c", 1, on=[1])]
    snap = measured(snapshot("1x2", work), {"sm_active_ratio": [0.4, 0.8], "power_w": [400.0, 700.0]})
    use = usage_of(snap, 3600.0)
    assert use.held_gpus.tolist() == [0.25, 0.5, 1.0]
    assert use.of("power_w", 300.0) == pytest.approx([100.0, 200.0, 700.0])
    assert use.estimated[SM, 1].tolist() == [True, True, False]
    assert use.active_units[1] / use.measured_units[1] / 2**24 == pytest.approx([0.4, 0.4, 0.8])


def test_an_instance_has_its_own_ratios_and_a_part_of_the_power() -> None:
    """A MIG instance counts its compute slices; power is known of the GPU only, traffic of no instance."""
    work = [holds("i", 1, on=[1], mig_profile=2), holds("j", 1, on=[0], mig_profile=0)]
    snap = measured(
        snapshot("1x2", work, cuts={0: [("1g.10gb", 0), ("3g.40gb", 4)]}),
        {
            "sm_active_ratio": [0.9, 0.0, 0.5, 0.7],
            "power_w": [700.0, 70.0, NAN, NAN],
            "fb_used_mib": [9000, 0, 2000, 6000],
            "nvlink_bytes_s": [5e9, 0, NAN, NAN],
        },
    )
    use = usage_of(snap, 3600.0)
    assert use.held_gpus == pytest.approx([3 / 7, 1 / 7])
    assert use.of("sm_active_ratio", 300.0) == pytest.approx([0.7, 0.5])
    assert use.of("fb_used_mib", 300.0) == pytest.approx([6000, 2000])
    assert use.of("power_w", 300.0) == pytest.approx([300.0, 100.0])
    assert np.isnan(use.of("nvlink_bytes_s", 300.0)).all()
    assert (use.estimated[SM, 1].any(), use.estimated[POWER, 1].all()) == (False, True)


def test_a_gpu_is_never_held_beyond_its_whole() -> None:
    """Two whole GPUs and a share of one, and a whole GPU beside an instance of it: together they hold it once."""
    work = [holds("a", 1, [0]), holds("b", 1, [0]), holds("c", 1, [0], gpu_milli=500)]
    work += [holds("d", 1, [1]), holds("e", 1, [0], mig_profile=2)]
    use = usage_of(snapshot("1x2", work, cuts={1: [("3g.40gb", 0)]}), 3600.0)
    assert use.held_gpus == pytest.approx([0.4, 0.4, 0.2, 0.7, 0.3], abs=1e-4)


def test_an_unknown_profile_has_an_equal_part() -> None:
    """Names of a profile that the model does not have: the instances of that GPU divide it equally."""
    snap = snapshot("1x1", [holds("i", 1, on=[1], mig_profile=2)], cuts={0: [("1g.10gb", 0), ("3g.40gb", 4)]})
    odd = replace(snap, names=replace(snap.names, profiles=("1g.10gb", "2g.20gb", "half", "7g.80gb")))
    use = usage_of(measured(odd, {"sm_active_ratio": [0.5, 0.5, 0.5]}), 3600.0)
    assert use.held_gpus.tolist() == [0.5]


def test_a_window_before_the_start_is_not_covered() -> None:
    """A window that reaches back before the start holds what others did on these GPUs: estimated, energy since then."""
    values = {"sm_active_ratio": [0.5], "power_w": [400.0]}
    use = usage_of(measured(snapshot("1x1", [holds("a", 1, start_s=1000.0)]), values), 1300.0)
    assert use.covered[:, 0].tolist() == [True, True, False]
    assert use.estimated[SM, :, 0].tolist() == [False, False, True]
    assert use.energy_j[:, 0].tolist() == [24_000.0, 120_000.0, 120_000.0]


def test_an_idle_gpu_inside_a_gang_shows_in_the_lowest_mean() -> None:
    """The mean of a gang hides one idle GPU; the extremes show it."""
    snap = measured(snapshot("1x4", [holds("a", 4, on=[3, 0, 1, 2])]), {"sm_active_ratio": [0.9, 0.9, 0.0, 0.9]})
    low, high = extremes(snap, "sm_active_ratio", 300.0)
    assert (low.tolist(), high.tolist()) == ([0.0], [pytest.approx(0.9)])


def test_the_order_of_placements_does_not_matter() -> None:
    """Collectors list placements in any order."""
    snap = measured(snapshot("1x4", [holds("a", 2), holds("b", 2)]), {"sm_active_ratio": [0.1, 0.2, 0.3, 0.4]})
    rows = np.array([3, 0, 2, 1])
    held = snap.placements
    mixed = replace(snap, placements=type(held)(*(getattr(held, name)[rows] for name in held.__slots__)))
    one, two = usage_of(snap, 3600.0), usage_of(mixed, 3600.0)
    assert one.active_units.tolist() == two.active_units.tolist()
    assert two.of("sm_active_ratio", 300.0) == pytest.approx([0.15, 0.35])
