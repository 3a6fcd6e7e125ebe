"""What simulated GPUs look like to DCGM: archetypes, time, faults, MIG and shared GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autopilot.core.hardware import dcgm
from autopilot.core.model.errors import InputError
from simulator.signals.behaviours import (
    BEHAVIOURS,
    Archetype,
    board_of,
    effective_level,
    sm_active_gpu_s,
)
from simulator.signals.telemetry import SIMULATED, TelemetryGenerator
from simulator.signals.telemetry_entities import TelemetryFaults, entities_of, idle_state
from tests.kits.telemetry_world import (
    DRAM,
    MEMORY,
    NVLINK,
    OCCUPANCY,
    PCIE,
    POWER,
    SM,
    TENSOR,
    inventory,
    running,
)

ROWS = list(map(dcgm.SIGNALS.index, SIMULATED))


def two_hours(archetype: Archetype, level: float = 0.3, gpus: int = 64) -> np.ndarray[Any, Any]:
    """Signals of two hours of samples on `gpus` GPUs."""
    values, _ = TelemetryGenerator(5).values(
        np.arange(20, 260), entities_of(inventory(gpus // 8, 8)), running(gpus, archetype, level)
    )
    return values


# --- what the archetypes look like --------------------------------------------------------------


@pytest.mark.parametrize("archetype", list(Archetype))
def test_every_archetype_stays_within_what_hardware_can_show(archetype: Archetype) -> None:
    """Ratios lie in 0..1, occupancy and tensor activity below SM activity, power and memory within the board."""
    board = board_of("H100-80GB")
    for level in (0.0, 0.02, 0.3, 0.7, 1.0):
        values = two_hours(archetype, level, 8)[ROWS]
        assert not np.isnan(values).any()
        assert (values >= 0).all()
        assert (values[:4] <= 1).all()
        assert (values[OCCUPANCY] <= values[SM] + 1e-6).all()
        assert (values[TENSOR] <= values[SM] + 1e-6).all()
        assert (values[MEMORY] < board.memory_mib).all()
        assert (values[POWER] >= 0.9 * board.idle_w).all()
        assert (values[POWER] <= board.limit_w).all()


@pytest.mark.parametrize("archetype", list(Archetype))
def test_samples_average_to_the_level_of_the_job(archetype: Archetype) -> None:
    """The mean of many samples is the job's mean SM activity, whatever the pattern."""
    expected = effective_level(np.array([archetype]), np.array([0.25]))[0]
    chance = 0.1 if archetype == Archetype.NOTEBOOK else 0.02  # 1,500 bursts, on by chance
    assert two_hours(archetype, 0.25)[SM].mean() == pytest.approx(expected, rel=chance, abs=1e-6)


def test_a_hoarder_holds_memory_and_does_nothing() -> None:
    """A hoarder has memory in use, no activity of any kind, and the power of a loaded idle board."""
    values = two_hours(Archetype.HOARDER, 0.9)
    assert values[MEMORY].min() > 5_000
    assert values[[SM, TENSOR, NVLINK]].max() == 0
    assert values[DRAM].max() < 1e-4
    assert 105 < values[POWER].min() <= values[POWER].max() < 130


def test_a_decoder_is_memory_bound_and_not_idle() -> None:
    """A decoder's SMs are low to middling while its DRAM is busy, well above any hoarder."""
    low, high = BEHAVIOURS[Archetype.DECODE].levels[1], BEHAVIOURS[Archetype.DECODE].levels[-2]
    for level in (low, high):
        values = two_hours(Archetype.DECODE, level)
        assert 0.1 < values[SM].mean() < 0.5
        assert values[DRAM].min() > 0.3
        assert values[DRAM].mean() > 1.5 * values[SM].mean()
        assert values[POWER].min() > 200


def test_a_hung_collective_looks_busy_and_is_dead() -> None:
    """A hung collective has SMs near 1 with tensor and NVLink near 0 and flat power."""
    values = two_hours(Archetype.HUNG)
    assert values[SM].min() > 0.98
    assert values[[TENSOR, NVLINK]].max() == 0
    assert values[POWER].std(axis=0).max() < 1.0


def test_communication_heavy_training_moves_in_steps() -> None:
    """NVLink is busiest where the SMs are least: the two move against each other."""
    values = two_hours(Archetype.COMMUNICATION_TRAINING, 0.5, 8)
    ties = [np.corrcoef(values[SM, :, g], values[NVLINK, :, g])[0, 1] for g in range(8)]
    assert max(ties) < -0.8
    assert values[SM].std(axis=0).min() > 0.05


def test_a_notebook_sleeps_most_of_the_time() -> None:
    """A notebook is idle in two thirds of its samples and busy in bursts."""
    sm = two_hours(Archetype.NOTEBOOK, 0.05)[SM]
    assert 0.5 < (sm < 0.01).mean() < 0.85
    assert sm.max() > 0.1


def test_nvlink_is_silent_for_a_job_of_one_gpu() -> None:
    """A job without a second GPU has no NVLink traffic."""
    state = running(8, Archetype.COMPUTE_TRAINING)
    state.gpus[:4] = 1
    values, _ = TelemetryGenerator(5).values(np.arange(10), entities_of(inventory(1, 8)), state)
    assert values[NVLINK, 1:, :4].max() == 0 < values[NVLINK, 1:, 4:].min()


def test_an_empty_gpu_reads_as_idle_hardware() -> None:
    """No occupant: no activity, a few MiB, and less power than a loaded board."""
    values, quality = TelemetryGenerator(5).sample(3, entities_of(inventory(1, 8)), idle_state(8))
    assert values[SM].max() == 0
    assert values[MEMORY].max() < 100
    assert values[POWER].max() < 80
    assert set(quality) == {dcgm.Quality.SM_ACTIVE}


# --- time ---------------------------------------------------------------------------------------


def test_a_sample_is_the_mean_of_its_watch_interval() -> None:
    """A job that came in the middle of the interval shows half of its activity; before it, none."""
    state = running(8, Archetype.COMPUTE_TRAINING, 0.8, since_s=105.0)
    values, _ = TelemetryGenerator(5).values(np.array([3, 4, 5]), entities_of(inventory(1, 8)), state)
    assert values[SM, 0].max() == 0
    np.testing.assert_allclose(values[SM, 1], 0.4, rtol=0.05)
    np.testing.assert_allclose(values[SM, 2], 0.8, rtol=0.05)


def test_two_scrapes_in_one_watch_interval_read_the_same() -> None:
    """With a watch interval of 30 s and a scrape each 15 s, scrapes come in equal pairs."""
    generator = TelemetryGenerator(5, scrape_interval_s=15.0, watch_interval_s=30.0)
    values, _ = generator.values(np.arange(10, 18), entities_of(inventory(1, 8)), running(8, Archetype.SMALL_TRAINING))
    np.testing.assert_array_equal(values[:, ::2], values[:, 1::2])
    assert (values[SM, 2] != values[SM, 0]).any()


def test_a_scrape_is_known_after_its_delay() -> None:
    """The newest known slot lags by the delay."""
    generator = TelemetryGenerator(5, delay_s=10.0)
    assert [generator.known_slot(t) for t in (9.0, 10.0, 39.0, 40.0)] == [-1, 0, 0, 1]
    assert generator.slot_time_s(4) == 120.0


def test_integrals_follow_level_time_and_share() -> None:
    """Expected SM-active GPU-seconds are level x time within the bounds x share."""
    kinds = np.array([Archetype.COMPUTE_TRAINING, Archetype.HOARDER, Archetype.DECODE])
    found = sm_active_gpu_s(
        kinds, np.array([0.5, 0.5, 0.2]), np.array([0.0, 0.0, 90.0]), 50.0, 100.0, np.array([1.0, 1.0, 0.5])
    )
    np.testing.assert_allclose(found, [25.0, 0.0, 1.0])


# --- faults -------------------------------------------------------------------------------------


def test_lost_scrapes_and_outages_take_whole_nodes() -> None:
    """Either all entities of a node have values at a slot or none; outages last."""
    faults = TelemetryFaults(lost_scrape_ratio=0.1, outage_ratio=0.05, outage_s=300.0)
    generator, entities = TelemetryGenerator(5, faults=faults), entities_of(inventory(10, 8))
    values, quality = generator.values(np.arange(400), entities, running(80, Archetype.DECODE))
    missing = np.isnan(values[ROWS]).reshape(len(ROWS), 400, 10, 8)
    assert (missing == missing[:1, :, :, :1]).all()
    assert 0.1 < missing[0, :, :, 0].mean() < 0.2
    assert (quality[np.isnan(values[SM])] == dcgm.Quality.NONE).all()


def test_a_stuck_exporter_repeats_itself() -> None:
    """While stuck, every slot of the stretch reads as its first."""
    generator = TelemetryGenerator(5, faults=TelemetryFaults(stuck_ratio=1.0, stuck_s=300.0))
    values, _ = generator.values(np.arange(100, 120), entities_of(inventory(1, 8)), running(8, Archetype.DECODE))
    np.testing.assert_array_equal(values[:, :10], np.repeat(values[:, :1], 10, axis=1))
    assert (values[SM, 10] != values[SM, 0]).any()


def test_a_new_instance_has_no_profiling_values_for_one_interval() -> None:
    """Before its re-geometry nothing, then one interval without PROF fields, then values."""
    world = inventory(1, 2, {1: [("3g.40gb", 0), ("3g.40gb", 4)]})
    since_s = np.array([-np.inf, 100.0, 100.0, 100.0])
    entities = entities_of(world, since_s)
    values, _ = TelemetryGenerator(5).values(np.array([3, 4, 5]), entities, running(4, Archetype.DECODE))
    assert np.isnan(values[:, 0, 2:]).all()
    assert np.isnan(values[SM, 1, 2:]).all()
    assert not np.isnan(values[MEMORY, 1, 2:]).any()
    assert not np.isnan(values[SM, 2, 2:]).any()
    assert not np.isnan(values[SM, :, 0]).any()


def test_a_node_without_sm_active_falls_back_and_says_so() -> None:
    """Default counters give the engine ratio, no profiling at all gives the util percentage."""
    state, entities = running(8, Archetype.LIGHT_INFERENCE, 0.2), entities_of(inventory(1, 8))
    best, _ = TelemetryGenerator(5).sample(20, entities, state)
    engine, engine_quality = TelemetryGenerator(5, faults=TelemetryFaults(gr_engine_only_ratio=1.0)).sample(
        20, entities, state
    )
    util, util_quality = TelemetryGenerator(5, faults=TelemetryFaults(gpu_util_only_ratio=1.0)).sample(
        20, entities, state
    )
    assert set(engine_quality) == {dcgm.Quality.GR_ENGINE}
    assert set(util_quality) == {dcgm.Quality.GPU_UTIL}
    assert (engine[SM] > 2 * best[SM]).all()
    assert np.abs(util[SM] - engine[SM]).max() <= 0.0051
    assert np.isnan(engine[[OCCUPANCY, NVLINK]]).all()
    assert not np.isnan(engine[[TENSOR, DRAM, PCIE]]).any()
    assert np.isnan(util[[OCCUPANCY, TENSOR, DRAM, NVLINK, PCIE]]).all()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"lost_scrape_ratio": 1.5}, "lost_scrape_ratio"),
        ({"blank_ratio": float("nan")}, "blank_ratio"),
        ({"outage_s": 0.0}, "outage_s"),
        ({"blank_style": "zero"}, "blank_style"),
        ({"hostname_label": "host"}, "hostname_label"),
    ],
)
def test_faults_that_mean_nothing_are_refused(wrong: dict[str, Any], named: str) -> None:
    """A wrong fault names its field and what is allowed."""
    with pytest.raises(InputError, match=named):
        TelemetryFaults(**wrong)


def test_intervals_that_mean_nothing_are_refused() -> None:
    """A scrape interval of 0 s is an input error."""
    with pytest.raises(InputError, match="scrape_interval_s"):
        TelemetryGenerator(1, scrape_interval_s=0.0)
    with pytest.raises(InputError, match="delay_s"):
        TelemetryGenerator(1, delay_s=float("nan"))


# --- MIG and shared GPUs ------------------------------------------------------------------------


def test_a_cut_gpu_shows_its_instances_by_share() -> None:
    """One busy 1g instance makes a seventh of a busy board; power and links belong to the board."""
    world = inventory(1, 1, {0: [("1g.10gb", k) for k in range(7)]})
    state = idle_state(8)
    state.archetype[1], state.level[1], state.job_code[1] = Archetype.SMALL_TRAINING, 0.7, 4
    values, _ = TelemetryGenerator(5).sample(50, entities_of(world), state)
    assert values[SM, 0] == pytest.approx(values[SM, 1] / 7, rel=1e-6)
    assert np.isnan(values[[NVLINK, PCIE, POWER]][:, 1:]).all()
    board = board_of("H100-80GB")
    assert board.idle_w < values[POWER, 0] < board.idle_w + board.limit_w / 6
    assert values[MEMORY, 0] == values[MEMORY, 1:].sum()
    assert values[MEMORY, 1] < 12 * 1024
