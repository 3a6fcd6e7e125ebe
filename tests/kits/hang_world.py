"""Small worlds with telemetry of every GPU, in which some gangs do nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from autopilot.core.model.records import Observation
from autopilot.core.model.signal_table import SignalTable
from tests.kits.core_world import holds, observe, snapshot

CHECKPOINTS: dict[str, Any] = {"start_s": 0.0, "checkpoint_interval_s": 1800.0}


def measured(
    observation: Observation,
    active: dict[int, float],
    *,
    dram: float = 0.0,
    tensor: float = 0.0,
    links: float = 0.0,
    pcie: float = 0.0,
    power_w: float = 110.0,
    age_s: float = 30.0,
    samples: tuple[int, int] = (2, 60),
) -> Observation:
    """The observation with telemetry of every GPU over 60 s and 1800 s: `active` by GPU row, 0.7 where not named."""
    count = len(observation.snapshot.gpus.uuid)
    signals = (
        "sm_active_ratio",
        "tensor_active_ratio",
        "dram_active_ratio",
        "nvlink_bytes_s",
        "pcie_bytes_s",
        "power_w",
    )
    sm = np.array([active.get(gpu, 0.7) for gpu in range(count)], np.float32)
    busy = np.array([gpu not in active for gpu in range(count)])
    rows = [sm, *(np.where(busy, 0.5, value) for value in (tensor, dram)), np.where(busy, 1e9, links)]
    rows += [np.where(busy, 1e8, pcie), np.where(busy, 600.0, power_w)]
    table = np.repeat(np.array(rows, np.float32)[:, None, :], 2, axis=1)
    highest = table * np.where(np.array(signals) == "power_w", 1.05, 1.0).astype(np.float32)[:, None, None]
    counts = np.repeat(np.array(samples, np.int32)[:, None], count, axis=1)
    telemetry = SignalTable(
        signals,
        (60.0, 1800.0),
        0.0,
        table,
        highest,
        counts,
        np.full(count, age_s, np.float32),
        np.full(count, 3, np.int8),
    )
    return replace(observation, snapshot=replace(observation.snapshot, telemetry=telemetry))


def training(**columns: Any) -> Observation:
    """A gang of four GPUs that began at 0, at 10,000 s, beside another."""
    return observe(snapshot("1x8", [holds("g", 4, range(4), **columns), holds("o", 4, range(4, 8))]), 10_000.0)


def fleet(now_s: float, hung: set[int], count: int = 20, *, zeros: bool = False, **columns: Any) -> Observation:
    """Gangs g0, g1, ... of four GPUs, two on each node; those of `hung` do nothing, all by a broken exporter."""
    work = [holds(f"g{gang}", 4, range(4 * gang, 4 * gang + 4), **{**CHECKPOINTS, **columns}) for gang in range(count)]
    idle = {gpu: 0.0 for gpu in range(4 * count) if zeros or gpu // 4 in hung}
    return measured(observe(snapshot(f"{(count + 1) // 2}x8", work), now_s), idle)
