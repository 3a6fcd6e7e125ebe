"""GPUs whose counters contradict each other about activity.

DCGM reads activity and traffic from the profiling counters of the GPU, and power from the driver. The profiling
counters can stand at 0 while the GPU works (dcgm-exporter 662, DCGM 303). A GPU without computation draws little more
power than a loaded idle GPU. Every verdict for a stop asks here. Contradicted counters are unknown, not idle. One
service reads the profiling counters of all GPUs of a node: if it fails for most active GPUs, the zeros of the others
are unknown too.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.hardware.idle_power import LOADED_IDLE_W, WORKS_POWER, loaded_idle_w
from autopilot.core.model.snapshot import F32, F64, Bools, ClusterSnapshot

MOST_IDLE_W = max(LOADED_IDLE_W.values())
"""For a model without a known power: more than its own in all likelihood, so that little is contradicted."""

NOTHING_RATIO = 0.01
"""Highest activity of a window with which a GPU counts as one that did nothing."""

CONTRADICTS_RATIO = 0.1
"""Occupancy or tensor activity this far above SM activity contradicts it: both need an active SM."""

TRAFFIC_BYTES_S = 2e7
"""Mean traffic of links from which copies explain the power."""

CHANGES_MIB = 8.0
"""Change of the memory in use from which a program works there. On recorded GPUs that are held without work the memory
is constant, to the last MiB.
"""

LEAST_WINDOW_S = 300.0
"""A shorter window says little: counters of one scrape are means of different seconds."""


def contradicted(snapshot: ClusterSnapshot) -> Bools:
    """GPUs, then MIG instances, with silent counters and a power of active work.

    Counters at 0 are contradicted too on a node, or in a source, with more GPUs active by their power alone than by
    their counters. An instance has no power of its own: it is contradicted with its GPU. Tensor cores and warps need an
    active SM: active ones beside SMs at 0 contradict them, also without power.
    """
    table, gpus = snapshot.telemetry, len(snapshot.gpus.uuid)
    found = np.zeros(gpus, np.bool_)
    longest_s = max(table.windows_s, default=0.0)
    for window, width_s in enumerate(table.windows_s):
        if width_s >= LEAST_WINDOW_S or width_s == longest_s:
            with np.errstate(invalid="ignore"):
                found |= _active_without_sm(snapshot, window)
                works = power_over_idle(snapshot, window, MOST_IDLE_W) > WORKS_POWER
                if works.any():
                    highest = _measured(snapshot, "sm_active_ratio", table.maximum, window)
                    idle, lit = _did_nothing(snapshot, window), highest > NOTHING_RATIO
                    found |= works & idle
                    found |= (highest == 0.0) & idle & _unreliable(snapshot, works & ~lit, lit)
    return np.concatenate([found, found[snapshot.instances.gpu]])


def memory_changes(snapshot: ClusterSnapshot) -> Bools:
    """GPUs, then MIG instances, whose memory in use changes inside a window or between two: a program lives there.

    It may load data, compute on the CPU, or work beside counters that have stopped. Its activity is unknown.
    """
    table, count = snapshot.telemetry, len(snapshot.gpus.uuid) + len(snapshot.instances.id)
    if table.mean.shape[2] != count or not table.windows_s:
        return np.zeros(count, np.bool_)
    highest, lowest = np.fmax.reduce(table.maxima("fb_used_mib")), np.fmin.reduce(table.means("fb_used_mib"))
    with np.errstate(invalid="ignore"):
        return np.asarray(highest - lowest > CHANGES_MIB)


def _active_without_sm(snapshot: ClusterSnapshot, window: int) -> Bools:
    """GPUs with SMs at 0 in a window and active tensor cores or warps. Shape [gpus]."""
    sm, tensor, occupancy = (
        _measured(snapshot, signal, snapshot.telemetry.maximum, window)
        for signal in ("sm_active_ratio", "tensor_active_ratio", "sm_occupancy_ratio")
    )
    return np.asarray((sm <= NOTHING_RATIO) & (np.fmax(tensor, occupancy) > CONTRADICTS_RATIO))


def _unreliable(snapshot: ClusterSnapshot, dark: Bools, lit: Bools) -> Bools:
    """GPUs on a node, or in a source, with more `dark` than `lit` GPUs. Shape [gpus]."""
    source = snapshot.telemetry.source[: len(dark)]
    of_source = source.astype(np.int32) + 1 if len(source) else np.zeros(len(dark), np.int32)
    found = np.zeros(len(dark), np.bool_)
    for group in (snapshot.gpus.node, of_source):
        found |= (np.bincount(group, dark) > np.bincount(group, lit))[group]
    return found


def power_over_idle(snapshot: ClusterSnapshot, window: int, other_w: float = np.nan) -> F64:
    """Mean power of each GPU in a window / power of a loaded GPU of its model without work; NaN: not known.

    `other_w`: the divisor in watts for a model that `LOADED_IDLE_W` lacks. Shape [gpus].
    """
    idle_w = np.nan_to_num([loaded_idle_w(name) for name in snapshot.names.gpu_models] or [np.nan], nan=other_w)
    power_w = _measured(snapshot, "power_w", snapshot.telemetry.mean, window)
    return np.asarray(power_w / idle_w[snapshot.nodes.gpu_model[snapshot.gpus.node]], np.float64)


def _did_nothing(snapshot: ClusterSnapshot, window: int) -> Bools:
    """GPUs with measured SM activity and no sign of work or traffic in the counters. Shape [gpus]."""
    high = snapshot.telemetry.maximum
    found = _measured(snapshot, "sm_active_ratio", high, window) <= NOTHING_RATIO
    for signal in ("tensor_active_ratio", "dram_active_ratio", "video_ratio"):
        found &= ~(_measured(snapshot, signal, high, window) > NOTHING_RATIO)
    return np.asarray(found & ~copying(snapshot, window))


def copying(snapshot: ClusterSnapshot, window: int) -> Bools:
    """GPUs whose links carry data in a window: something loads, saves or exchanges there. Shape [gpus]."""
    mean = snapshot.telemetry.mean
    rates = [_measured(snapshot, signal, mean, window) for signal in ("nvlink_bytes_s", "pcie_bytes_s")]
    return np.asarray((rates[0] > TRAFFIC_BYTES_S) | (rates[1] > TRAFFIC_BYTES_S))


def _measured(snapshot: ClusterSnapshot, signal: str, column: F32, window: int) -> F32:
    """One signal in a window; NaN where it is not measured. Shape [gpus]."""
    table, gpus = snapshot.telemetry, len(snapshot.gpus.uuid)
    if signal not in table.signals or column.shape[2] < gpus:
        return np.full(gpus, np.nan, np.float32)
    return np.asarray(column[table.signals.index(signal), window, :gpus])
