"""Recorded GPUs that work are never in doubt, idle or hung; and neither are they where counters fall to 0.

The recordings: an H100 and an H200 in tests/data/nvml, and five runs on eight H100s where ../shared/data is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autopilot.core.hardware.dcgm import SIGNALS, Quality
from autopilot.core.intake.usage.activity import Activity, entity_activity
from autopilot.core.model.policy import Policy
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import F32, ClusterSnapshot
from autopilot.core.recovery.hangs import doing_nothing
from collectors.window import WindowBuffer
from tests.kits.core_world import MODELS, holds, snapshot
from tests.kits.usage_world import facts_of

ROOT = Path(__file__).resolve().parents[2]
POLICY = Policy(name="shipped")
GPUS, SCRAPE_S, HOUR = 8, 30.0, 120
IDLE = {"h100 none", "h100 held", "h200 none", "h200 held", "h200 keep_alive", "b1"}
"""Recordings of GPUs without work, or with a kernel that only keeps them warm."""
PROFILING = slice(0, 6)

Readings = Mapping[str, F32]
"""By recording: [readings, signals, GPUs], each reading 5 s or less after the one before."""


def of_nvml() -> dict[str, F32]:
    """The loads of one GPU, as those of eight that began one after another."""
    found = {}
    for gpu in ("h100", "h200"):
        said: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "nvml" / f"{gpu}.json").read_text("utf-8"))
        for load, recorded in said["loads"].items():
            rows = np.array(recorded["rows"][1:], np.float32)
            rows = np.pad(rows, ((0, 0), (0, len(SIGNALS) - rows.shape[1])), constant_values=np.nan)
            found[f"{gpu} {load}"] = np.stack([np.roll(rows, shift, axis=0) for shift in range(GPUS)], axis=2)
    return found


@lru_cache(maxsize=1)
def of_runs(path: Path) -> dict[str, F32]:
    """The steady phases of the recorded runs, every 5 s."""
    import pyarrow.parquet as pq

    frame = pq.read_table(path).to_pandas()
    frame["nvlink"] = frame.nvlink_tx_bytes_s + frame.nvlink_rx_bytes_s
    frame["pcie"] = frame.pcie_tx_bytes_s + frame.pcie_rx_bytes_s
    names = ["sm_active", "", "tensor_active", "dram_active", "nvlink", "pcie", "mem_used_mib", "power_w"]
    names += [""] * (len(SIGNALS) - len(names))  # signals that the recordings lack
    found = {}
    for run, steady in frame[frame.phase == "steady"].groupby("run"):
        each = [steady[steady.gpu == gpu].sort_values("t_s").iloc[::5] for gpu in range(GPUS)]
        size = min(map(len, each))
        columns = [
            [gpu[name].to_numpy(np.float32)[:size] if name else np.full(size, np.nan, np.float32) for name in names]
            for gpu in each
        ]
        found[str(run)] = np.array(columns, np.float32).transpose(2, 1, 0)
    return found


def played(readings: Readings, change: Callable[[F32], None] = lambda _values: None) -> ClusterSnapshot:
    """An hour of a node for each recording, repeated, with a gang of eight on each; `change` alters what is scraped."""
    work = [holds(name, GPUS, start_s=0.0) for name in readings]
    nodes = {"gpu_model": [MODELS.index("H100-80GB")] * len(readings)}
    plain = snapshot(f"{len(readings)}x{GPUS}", work, nodes=nodes)
    buffer, uuids = WindowBuffer(slot_s=SCRAPE_S / 2), plain.gpus.uuid
    for scrape in range(HOUR + 1):
        values = np.concatenate([rows[scrape % len(rows)] for rows in readings.values()], axis=1)
        change(values)
        buffer.put(scrape * SCRAPE_S, uuids, values, np.full(len(uuids), Quality.SM_ACTIVE, np.int8))
    seen = buffer.windowed(HOUR * SCRAPE_S)
    columns = (seen.mean, seen.maximum, seen.samples, seen.age_s, seen.quality)
    return replace(plain, telemetry=SignalTable(SIGNALS, seen.windows_s, HOUR * SCRAPE_S, *columns))


def verdicts(snap: ClusterSnapshot) -> dict[str, set[str]]:
    """The verdicts on the GPUs of each recording: `doubt`, `idle`, `hung`."""
    in_doubt = facts_of(snap, POLICY).doubts > 0
    idle = entity_activity(snap, POLICY) >= Activity.ESTIMATED
    hung, held = doing_nothing(snap, POLICY), snap.placements
    found: dict[str, set[str]] = {}
    for row, name in enumerate(snap.workloads.id.tolist()):
        mine = held.gpu[held.workload == row]
        said = {"doubt": in_doubt[mine].any(), "idle": (idle & ~in_doubt)[mine].any(), "hung": hung[row]}
        found[name] = {word for word, true in said.items() if true}
    return found


@pytest.fixture
def readings(shared_data: Path | None, ran_on: Callable[[str], None]) -> Readings:
    """All recordings that are there."""
    runs = None if shared_data is None else shared_data / "h100_telemetry_runs" / "gpu_1s.parquet"
    there = runs is not None and runs.exists()
    ran_on("h100_telemetry_runs and tests/data/nvml" if there else "tests/data/nvml")
    return of_nvml() | (of_runs(runs) if there and runs is not None else {})


def test_no_recorded_gpu_that_works_is_in_doubt_idle_or_hung(readings: Readings) -> None:
    """Those without work are told from the others, and are in no doubt either."""
    found = verdicts(played(readings))
    assert {name: said for name, said in found.items() if name not in IDLE and said} == {}
    assert {name for name in IDLE & found.keys() if "doubt" in found[name]} == set()
    assert {name for name in IDLE & found.keys() if "idle" in found[name]} == IDLE & found.keys()


@pytest.mark.parametrize("lost", [0.0, np.nan], ids=["stand at 0", "vanish"])
def test_recorded_work_whose_profiling_counters_fail_is_neither_idle_nor_hung(readings: Readings, lost: float) -> None:
    """Power shows for most that they work. For the others the zeros of the same exporters say nothing."""

    def fail(values: F32) -> None:
        values[PROFILING] = lost

    found = verdicts(played(readings, fail))
    assert {name: said for name, said in found.items() if name not in IDLE and said - {"doubt"}} == {}


def test_recorded_work_without_one_family_is_neither_idle_nor_hung(readings: Readings) -> None:
    """Each signal but SM activity is unknown in turn. One kernel that waits for the host shows in its copies alone."""
    for signal in range(1, len(SIGNALS)):

        def fail(values: F32, row: int = signal) -> None:
            values[row] = np.nan

        alone = {"h100 one_block"} if SIGNALS[signal] == "pcie_bytes_s" else set()
        found = verdicts(played(readings, fail))
        assert {name: said for name, said in found.items() if name not in IDLE | alone and said} == {}, SIGNALS[signal]
