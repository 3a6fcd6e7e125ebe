"""Telemetry for the small worlds of core_world: windows of every signal, GPUs first, then instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from autopilot.core.hardware.dcgm import SIGNALS, WINDOWS_S, Quality
from autopilot.core.intake.signals import UNMEASURED
from autopilot.core.intake.usage.facts import SnapshotFacts
from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Observation
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import ClusterSnapshot

DEFAULTS = Policy(name="defaults")


def facts_of(snap: ClusterSnapshot, policy: Policy = DEFAULTS) -> SnapshotFacts:
    """The facts of one snapshot."""
    return SnapshotFacts(observation=Observation(0, 0.0, snap, UNMEASURED, Forecasts()), policy=policy)


def measured(
    snap: ClusterSnapshot,
    signals: Mapping[str, Sequence[float]],
    *,
    samples: int | Sequence[int] = 4,
    age_s: float | Sequence[float] = 5.0,
    windows_s: tuple[float, ...] = WINDOWS_S,
) -> ClusterSnapshot:
    """`snap` with these values by entity in every window; signals that are not named were not measured."""
    count = len(snap.gpus.uuid) + len(snap.instances.id)
    mean = np.full((len(SIGNALS), len(windows_s), count), np.nan, np.float32)
    for name, values in signals.items():
        mean[SIGNALS.index(name)] = np.array(values, np.float32)
    table = SignalTable(
        SIGNALS,
        windows_s,
        0.0,
        mean,
        mean,
        np.broadcast_to(np.array(samples, np.int32), (len(windows_s), count)).copy(),
        np.broadcast_to(np.array(age_s, np.float32), (count,)).copy(),
        np.full(count, Quality.SM_ACTIVE, np.int8),
    )
    return replace(snap, telemetry=table)
