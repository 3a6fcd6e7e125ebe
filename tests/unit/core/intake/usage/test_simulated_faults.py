"""Doubts about the telemetry of simulated and of real GPUs: faults in transit are found, behaviour is not a fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from autopilot.core.hardware.dcgm import SIGNALS, Quality
from autopilot.core.intake.usage.plausibility import DOUBTS
from autopilot.core.intake.usage.rollup import ratios, rollups
from autopilot.core.intake.usage.table import extremes, usage_of
from autopilot.core.model.codes import Code
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import ClusterSnapshot
from collectors.window import WindowBuffer
from simulator.signals.behaviours import Archetype
from simulator.signals.telemetry import TelemetryGenerator
from simulator.signals.telemetry_entities import GpuState, TelemetryFaults, entities_of, idle_state
from tests.kits.core_world import holds, snapshot
from tests.kits.telemetry_world import inventory
from tests.kits.usage_world import facts_of

GPUS = 64


def simulated(faults: TelemetryFaults, state: GpuState | None = None) -> ClusterSnapshot:
    """An hour of samples through the ring buffer; GPU n runs archetype n mod 13 (0: idle) and is held unless idle."""
    world = inventory(GPUS // 8, 8)
    entities = entities_of(world)
    if state is None:
        state = idle_state(GPUS)
        state.archetype[:] = np.arange(GPUS) % int(Archetype.ROGUE)
        state.level[:], state.since_s[:] = 0.4, 0.0
        state.job_code[:] = np.where(state.archetype > 0, np.arange(GPUS), -1)
    generator, buffer = TelemetryGenerator(7, faults=faults), WindowBuffer(slot_s=15.0)
    for slot in range(20, 141):
        values, quality = generator.sample(slot, entities, state)
        buffer.put(generator.slot_time_s(slot), entities.id, values, quality)
    found = buffer.windowed(140 * 30.0)
    assert found.entity_ids.tolist() == entities.id.tolist()
    held = [holds(f"w{gpu}", 1, on=[gpu]) for gpu in range(GPUS) if state.job_code[gpu] >= 0]
    return replace(
        snapshot(f"{GPUS // 8}x8", held),
        telemetry=SignalTable(
            found.signals,
            found.windows_s,
            0.0,
            found.mean,
            found.maximum,
            found.samples,
            found.age_s,
            found.quality,
        ),
    )


def codes(snap: ClusterSnapshot) -> set[Code]:
    """Every reason that is given for some GPU."""
    return {DOUBTS[index] for index in facts_of(snap).doubts.tolist()}


@pytest.mark.parametrize(
    "faults",
    [
        TelemetryFaults(),
        TelemetryFaults(lost_scrape_ratio=0.2, blank_ratio=0.1),
        TelemetryFaults(gr_engine_only_ratio=0.5),
        TelemetryFaults(gpu_util_only_ratio=1.0),
    ],
    ids=["healthy", "lossy", "engine only", "utilization only"],
)
def test_no_behaviour_is_taken_for_a_fault(faults: TelemetryFaults) -> None:
    """Idle, hoarding, hung, bursty and busy work, also with lost scrapes and coarse counters, is in no doubt."""
    assert codes(simulated(faults)) == {Code.OK}


def test_an_exporter_that_repeats_itself_is_stuck() -> None:
    """An hour of the same numbers: every GPU that works, or that holds a program, is in doubt."""
    snap = simulated(TelemetryFaults(stuck_ratio=1.0, stuck_s=7200.0))
    found = [DOUBTS[index] for index in facts_of(snap).doubts.tolist()]
    assert found == [Code.TELEMETRY_STUCK] * GPUS


def test_a_silent_node_is_stale_and_not_stuck() -> None:
    """After half an hour without samples nothing is known: there is nothing to doubt."""
    snap = simulated(TelemetryFaults(outage_ratio=1.0, outage_s=1e6))
    assert codes(snap) == {Code.OK}
    assert np.isnan(usage_of(snap, 1e5).mean).all()


def test_a_rogue_on_a_free_gpu_puts_only_empty_holders_in_doubt() -> None:
    """Something busy without an allocation: a holder that never loaded a program may be the same GPU, no other is."""
    state = idle_state(GPUS)
    state.since_s[:], state.level[:] = 0.0, 0.4
    state.archetype[:4] = [Archetype.ROGUE, Archetype.IDLE, Archetype.HOARDER, Archetype.COMPUTE_TRAINING]
    state.job_code[1:4] = [1, 2, 3]
    found = facts_of(simulated(TelemetryFaults(), state)).doubts[:4].tolist()
    assert [DOUBTS[index] for index in found] == [Code.TELEMETRY_SWAPPED, Code.TELEMETRY_SWAPPED, Code.OK, Code.OK]


COLUMNS = {
    "sm_active_ratio": "sm_active",
    "tensor_active_ratio": "tensor_active",
    "dram_active_ratio": "dram_active",
    "fb_used_mib": "mem_used_mib",
    "power_w": "power_w",
}


def recorded(data: Path, run: str) -> ClusterSnapshot:
    """The steady phase (4 min) of a recorded run, scraped each 5 s, held by one gang of eight."""
    table = pq.read_table(data / "h100_telemetry_runs" / "gpu_1s.parquet").to_pandas()
    rows = table[(table.run == run) & (table.phase == "steady")].sort_values("t_s")
    rows["nvlink_bytes_s"] = rows.nvlink_tx_bytes_s + rows.nvlink_rx_bytes_s
    rows["pcie_bytes_s"] = rows.pcie_tx_bytes_s + rows.pcie_rx_bytes_s
    buffer = WindowBuffer(windows_s=(60.0, 120.0, 300.0), slot_s=5.0)
    names = np.array([f"GPU-{gpu}" for gpu in range(8)], object)
    start_s = float(rows.t_s.min())
    for t_s, second in rows[((rows.t_s - start_s) % 5).between(0, 0.5)].groupby("t_s"):
        values = np.full((len(SIGNALS), 8), np.nan, np.float32)
        for row, signal in enumerate(SIGNALS):
            column = COLUMNS.get(signal, signal)
            if column in second:
                values[row, second.gpu.to_numpy()] = second[column].to_numpy()
        buffer.put(float(str(t_s)), names, values, np.full(8, Quality.SM_ACTIVE, np.int8))
    found = buffer.windowed(float(rows.t_s.max()))
    columns = (found.mean, found.maximum, found.samples, found.age_s, found.quality)
    telemetry = SignalTable(found.signals, found.windows_s, 0.0, *columns)
    return replace(snapshot("1x8", [holds("gang", 8)]), telemetry=telemetry)


@pytest.mark.parametrize("run", ["b1", "i4", "t2", "t3", "t13_node0"])
def test_recorded_runs_are_measured_and_in_no_doubt(run: str, shared_data: Path | None) -> None:
    """Real H100s: a loaded model that idles and four kinds of work are told apart, and none is taken for a fault."""
    if shared_data is None:
        pytest.skip("needs h100_telemetry_runs in ../shared/data")
    snap = recorded(shared_data, run)
    use = usage_of(snap, 1000.0)
    assert codes(snap) == {Code.OK}
    assert use.faults.tolist() == [0]
    assert use.measured_ratio[1, 0] == 1.0
    low, _ = extremes(snap, "sm_active_ratio", 120.0)
    sm, power_w = float(use.of("sm_active_ratio", 120.0)[0]), float(use.of("power_w", 120.0)[0])
    fleet = ratios(rollups(snap)["fleet"], 120.0)
    assert fleet.gap_gpus[0] == pytest.approx(8 * (1 - sm))
    if run == "b1":
        assert (sm, low[0]) == (0.0, 0.0)
        assert 800 < power_w < 1100
        assert use.of("fb_used_mib", 120.0)[0] > 8 * 1024
    else:
        assert low[0] > 0.15
        assert power_w > 1500
    assert use.of("energy_j", 120.0)[0] == pytest.approx(power_w * 120.0)
