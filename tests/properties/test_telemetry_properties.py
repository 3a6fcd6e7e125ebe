"""Telemetry is a function of seed, entity, slot and occupant: any order, any part, the same numbers."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.hardware.dcgm import SIGNALS
from simulator.signals.behaviours import LEVEL_POINTS, Archetype, board_of, draw_jobs, effective_level
from simulator.signals.noise import mixed
from simulator.signals.telemetry import METRICS, TelemetryGenerator
from simulator.signals.telemetry_entities import GpuState, TelemetryFaults, entities_of
from simulator.specs.clusterfile import shape_cluster
from simulator.specs.inventory import build_inventory

NODES, GPUS = 5, 4
ENTITIES = entities_of(build_inventory(shape_cluster(NODES, GPUS, "H100-80GB")))
COUNT = NODES * GPUS

seeds = st.integers(0, 2**63 - 1)
slot_lists = st.lists(st.integers(0, 10**7), min_size=1, max_size=8)
ratios = st.sampled_from([0.0, 0.3])
fault_records = st.builds(
    TelemetryFaults,
    lost_scrape_ratio=ratios,
    outage_ratio=ratios,
    stuck_ratio=ratios,
    blank_ratio=ratios,
    gr_engine_only_ratio=ratios,
    gpu_util_only_ratio=ratios,
)


@st.composite
def states(draw: st.DrawFn) -> GpuState:
    """Any occupants of the cluster's GPUs."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    archetype = rng.integers(0, len(Archetype), COUNT).astype(np.int8)
    level = rng.choice([0.0, 1.0, 0.3, 0.05, 0.999], COUNT).astype(np.float32)
    since_s = rng.choice([-np.inf, 0.0, 100.0, 1e6, 3e8, 1e12], COUNT)
    code = rng.integers(-1, 6, COUNT).astype(np.int32)
    gpus, memory_mib = rng.integers(1, 9, COUNT).astype(np.int32), rng.choice([np.nan, 0.0, 3e4], COUNT)
    return GpuState(code, archetype, level, since_s, gpus, memory_mib, rng.choice([np.nan, 1755.0], COUNT))


@given(seeds, slot_lists, states(), fault_records)
def test_slots_may_be_asked_for_in_any_order(
    seed: int, slots: list[int], state: GpuState, faults: TelemetryFaults
) -> None:
    """All slots at once, each alone, and in reverse give the same values and qualities."""
    generator = TelemetryGenerator(seed, faults=faults)
    values, quality = generator.values(np.array(slots), ENTITIES, state)
    back, back_quality = generator.values(np.array(slots[::-1]), ENTITIES, state)
    np.testing.assert_array_equal(values, back[:, ::-1])
    np.testing.assert_array_equal(quality, back_quality[::-1])
    for row, slot in enumerate(slots):
        alone, alone_quality = TelemetryGenerator(seed, faults=faults).sample(slot, ENTITIES, state)
        np.testing.assert_array_equal(values[:, row], alone)
        np.testing.assert_array_equal(quality[row], alone_quality)


@given(seeds, slot_lists, states(), fault_records, st.integers(0, NODES - 1))
def test_a_node_alone_reads_as_within_its_cluster(
    seed: int, slots: list[int], state: GpuState, faults: TelemetryFaults, node: int
) -> None:
    """What a node shows does not depend on which other nodes are asked."""
    generator, rows = TelemetryGenerator(seed, faults=faults), ENTITIES.rows_of(node)
    own = GpuState(*(getattr(state, field.name)[rows] for field in fields(GpuState)))
    whole = generator.metrics(np.array(slots), ENTITIES, state)
    np.testing.assert_array_equal(generator.metrics(np.array(slots), ENTITIES.take(rows), own), whole[:, :, rows])


@given(seeds, slot_lists, states())
def test_a_history_of_occupants_reads_as_its_slots_alone(seed: int, slots: list[int], state: GpuState) -> None:
    """Columns of shape [slots, entities] give the same as one question per slot."""
    generator = TelemetryGenerator(seed)
    history = GpuState(
        *(np.stack([np.roll(getattr(state, field.name), k) for k in range(len(slots))]) for field in fields(GpuState))
    )
    values, _ = generator.values(np.array(slots), ENTITIES, history)
    for row, slot in enumerate(slots):
        then = GpuState(*(getattr(history, field.name)[row] for field in fields(GpuState)))
        np.testing.assert_array_equal(values[:, row], generator.sample(slot, ENTITIES, then)[0])


@given(seeds, slot_lists, states(), fault_records)
def test_nothing_is_out_of_range(seed: int, slots: list[int], state: GpuState, faults: TelemetryFaults) -> None:
    """Ratios in 0..1, nothing negative or infinite, power and memory within the board, missing is NaN."""
    generator, board = TelemetryGenerator(seed, faults=faults), board_of("H100-80GB")
    values, quality = generator.values(np.array(slots), ENTITIES, state)
    known = values[~np.isnan(values)]
    assert (known >= 0).all()
    assert np.isfinite(known).all()
    for row, signal in enumerate(SIGNALS):
        most = {"fb_used_mib": board.memory_mib, "power_w": board.limit_w}.get(signal, 1e12)
        assert not (values[row] > (1.0 if signal.endswith("_ratio") else most)).any(), signal
    np.testing.assert_array_equal(quality == 0, np.isnan(values[0]))
    printed = generator.metrics(np.array(slots), ENTITIES, state)
    memory = printed[[METRICS.index(field) for field in (252, 251, 253)]].sum(axis=0)
    assert (np.isnan(memory) | (memory == board.memory_mib)).all()


@given(seeds, seeds)
def test_another_seed_is_another_fleet(one: int, other: int) -> None:
    """Two seeds agree only where they are equal."""
    rng = np.random.default_rng(0)
    state = GpuState(
        np.arange(COUNT, dtype=np.int32),
        np.full(COUNT, 3, np.int8),
        rng.random(COUNT).astype(np.float32),
        np.zeros(COUNT),
        np.full(COUNT, 8, np.int32),
        np.full(COUNT, np.nan),
        np.full(COUNT, np.nan),
    )
    first, _ = TelemetryGenerator(one).sample(50, ENTITIES, state)
    second, _ = TelemetryGenerator(other).sample(50, ENTITIES, state)
    assert np.array_equal(first, second, equal_nan=True) == (one == other)


@given(seeds, st.lists(st.text(max_size=12), max_size=20))
def test_a_drawn_level_is_one_of_its_archetype(seed: int, ids: list[str]) -> None:
    """Any text is a job id; levels are ratios and do not depend on the other jobs."""
    kinds, levels = draw_jobs(seed, ids)
    assert ((levels >= 0) & (levels <= 1)).all()
    assert Archetype.IDLE not in kinds
    np.testing.assert_allclose(effective_level(kinds, levels), levels, atol=1e-7)
    for row, job in enumerate(ids):
        assert draw_jobs(seed, [job])[0][0] == kinds[row]
    assert len(LEVEL_POINTS) == 7


def test_neighbouring_counters_are_unrelated() -> None:
    """Mixed counters are balanced in every bit, and neighbours share half of their bits."""
    counters = np.arange(100_000, dtype=np.uint64)
    bits = np.unpackbits(mixed(counters).view(np.uint8).reshape(-1, 8), axis=1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.01
    assert np.abs((bits[1:] != bits[:-1]).mean(axis=0) - 0.5).max() < 0.01
