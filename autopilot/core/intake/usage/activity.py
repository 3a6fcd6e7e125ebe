"""Whether GPUs are idle, from windowed telemetry, and whether the work on them is.

A GPU is idle when SM, DRAM and tensor activity, the links, the video engines and power are all low in every sample of
the window. One
signal is not enough: memory-bound decoding keeps the SMs nearly idle and DRAM busy, loading keeps both idle and PCIe
busy, a spinning collective keeps only the SMs busy, and a kernel that only keeps the GPU warm shows 1 to 3 % of SM
activity and nothing else. What is not measured is unknown, never idle.

The verdict is weaker (`ESTIMATED`) where the evidence is: a counter that says only whether some kernel ran, power that
cannot be attributed to a MIG instance, or a GPU that several workloads share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from autopilot.core.hardware.dcgm import Quality
from autopilot.core.hardware.idle_power import loaded_idle_w
from autopilot.core.intake.sight import fresh_samples
from autopilot.core.intake.usage.contradiction import contradicted, memory_changes
from autopilot.core.intake.usage.parts import GPU_UNITS, parts_of
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy.idle import Idle
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import F32, F64, I8, I32, Bools, ClusterSnapshot, State
from autopilot.core.model.work import running_since

UTIL_RATIO = 0.01
"""Duty cycle up to which a GPU without finer counters counts as idle, in every sample."""
VIDEO_RATIO = 0.01
"""Use of a video engine from which a GPU decodes or encodes: it needs no SM, and hardly any memory traffic."""


class Activity(IntEnum):
    """What is known of a GPU or a workload."""

    UNKNOWN = 0
    BUSY = 1
    ESTIMATED = 2  # idle by weak evidence: it may only be recommended
    IDLE = 3


@dataclass(frozen=True, slots=True)
class Window:
    """One window of the telemetry of E entities, [E] by the name of the signal; NaN, or no column: not measured.

    `wanted` are the samples that the window should have, `age_s` the age of the newest one, `idle_w` the power of a
    loaded GPU of that model without work.
    """

    mean: Mapping[str, F32]
    maximum: Mapping[str, F32]
    samples: I32
    wanted: F64
    age_s: F32
    quality: I8
    idle_w: F64


def judge(window: Window, rules: Idle, freshest_s: float, skew_s: float = 0.0) -> I8:
    """The `Activity` of each entity. Shape [E].

    `freshest_s` is the greatest age of the newest sample, `skew_s` how far in the future it may lie.
    """
    nothing = np.full(len(window.samples), np.nan, np.float32)
    sm, dram, tensor, video, memory, high_w = (
        window.maximum.get(name, nothing)
        for name in (
            "sm_active_ratio",
            "dram_active_ratio",
            "tensor_active_ratio",
            "video_ratio",
            "fb_used_mib",
            "power_w",
        )
    )
    nvlink, pcie, mean_w = (window.mean.get(name, nothing) for name in ("nvlink_bytes_s", "pcie_bytes_s", "power_w"))
    with np.errstate(invalid="ignore"):
        enough = (window.samples > 0) & (window.samples >= rules.covered_ratio * window.wanted)
        fresh = fresh_samples(window.age_s, freshest_s, skew_s)
        stuck = (high_w == mean_w) & (window.samples > 1) & (high_w > 0)  # real power moves
        busy = (sm > rules.sm_ratio) | (dram > rules.dram_ratio) | (tensor > rules.tensor_ratio)
        busy |= (pcie > rules.link_bytes_s) | (nvlink > rules.link_bytes_s)
        busy |= (high_w > rules.power_ratio * window.idle_w) | (video > VIDEO_RATIO)
        low = memory >= 0  # a GPU without a reading of its memory is not known to be held
        fine = (window.quality == Quality.SM_ACTIVE) & (sm <= rules.sm_ratio)
        fine &= (dram <= rules.dram_ratio) & (tensor <= rules.tensor_ratio)
        coarse = sm <= UTIL_RATIO
        powered = high_w <= rules.power_ratio * window.idle_w
    found = np.full(len(window.samples), Activity.UNKNOWN, np.int8)
    found[coarse | fine] = Activity.ESTIMATED
    found[fine & powered] = Activity.IDLE
    found[~low] = Activity.UNKNOWN
    found[busy] = Activity.BUSY
    found[~(enough & fresh) | stuck] = Activity.UNKNOWN
    return found


def entity_activity(snapshot: ClusterSnapshot, policy: Policy) -> I8:
    """The `Activity` of each GPU, then of each instance, over the longest window. Shape [GPUs + instances]."""
    table = snapshot.telemetry
    count = len(snapshot.gpus.uuid) + len(snapshot.instances.id)
    if not table.windows_s or table.mean.shape[2] != count:
        return np.zeros(count, np.int8)
    window = window_of(table, _idle_power(snapshot), int(np.argmax(table.windows_s)))
    found = judge(window, policy.idle, policy.freshness.telemetry_s, policy.clock.max_skew_s)
    found[(contradicted(snapshot) | memory_changes(snapshot)) & (found != Activity.BUSY)] = Activity.UNKNOWN
    return found


def awake_mask(snapshot: ClusterSnapshot, policy: Policy) -> Bools:
    """Work that is busy in the shortest window, whatever the longer ones say. Shape [workloads]."""
    table, parts = snapshot.telemetry, parts_of(snapshot)
    awake = np.zeros(len(snapshot.workloads.id), np.bool_)
    if table.windows_s:
        window = window_of(table, _idle_power(snapshot), int(np.argmin(table.windows_s)))
        busy = judge(window, policy.idle, policy.freshness.telemetry_s, policy.clock.max_skew_s) == Activity.BUSY
        awake[parts.workload[busy[parts.entity]]] = True
    return awake


def window_of(table: SignalTable, idle_w: F64, at: int) -> Window:
    """One window of a table, by index. The shortest one shows how often samples come."""
    shortest = int(np.argmin(table.windows_s))
    wanted = table.samples[shortest] * (table.windows_s[at] / table.windows_s[shortest])
    return Window(
        dict(zip(table.signals, table.mean[:, at], strict=True)),
        dict(zip(table.signals, table.maximum[:, at], strict=True)),
        table.samples[at],
        wanted.astype(float),
        table.age_s,
        table.quality,
        idle_w,
    )


def _idle_power(snapshot: ClusterSnapshot) -> F64:
    """Power of a loaded GPU without work, by entity; NaN for instances, whose power is not measured."""
    by_model = np.array([loaded_idle_w(name) for name in snapshot.names.gpu_models] or [np.nan])
    gpus = by_model[snapshot.nodes.gpu_model[snapshot.gpus.node]]
    return np.concatenate([gpus, np.full(len(snapshot.instances.id), np.nan)])


@dataclass(frozen=True, slots=True)
class Holdings:
    """What each workload holds, and how much of it is idle. Arrays are [workloads]."""

    activity: I8  # of the workload
    held_gpus: F64  # shares and instances count their part of a GPU
    idle_gpus: F64  # held, and idle at least by weak evidence


def work_activity(snapshot: ClusterSnapshot, entity: I8, now_s: float) -> Holdings:
    """The verdict on each workload.

    Work that starts, saves, waits for a member of its gang, or runs for less than the window is not judged: `UNKNOWN`.
    Work on assumed GPUs (`PlacementTable.assumed`) is not judged either. The counters of a GPU with several holders are
    the device's, copied to each: its activity is that of none of them, and only its rest is weak evidence on all.
    """
    work = snapshot.workloads
    count, parts = len(work.id), parts_of(snapshot)
    rows, code = parts.workload, entity[parts.entity].copy()
    holders = np.bincount(parts.entity, minlength=len(entity))
    several = holders[parts.entity] > 1
    code[parts.assumed] = Activity.UNKNOWN
    code[several & (code == Activity.BUSY)] = Activity.UNKNOWN
    code[(parts.shared | several) & (code == Activity.IDLE)] = Activity.ESTIMATED
    part = parts.units / GPU_UNITS
    found = combine(code, rows, count)
    length_s = max(snapshot.telemetry.windows_s, default=0.0)
    with np.errstate(invalid="ignore"):
        judged = (work.state == State.RUNNING) & ~work.stuck & np.isnan(work.stale_since_s)
        judged &= now_s - running_since(work) >= length_s
        judged &= np.isnan(work.start_s) | (now_s - work.start_s >= length_s)  # a resize starts its GPUs anew
        saved = now_s - work.last_checkpoint_s < 0  # it writes one
    found[~judged | saved] = Activity.UNKNOWN
    idle = (code >= Activity.ESTIMATED) & judged[rows]
    return Holdings(
        found,
        np.bincount(rows, part, minlength=count).astype(float),
        np.bincount(rows, part * idle, minlength=count).astype(float),
    )


def combine(entity: I8, work: I32, count: int) -> I8:
    """The activity of each of `count` workloads: busy where one of its GPUs is, else the weakest evidence of them.

    `entity` is the activity of a GPU, `work` the workload that holds it; both are [placements]. `UNKNOWN` without GPUs.
    """
    found = np.full(count, Activity.IDLE, np.int8)
    np.minimum.at(found, work, np.where(entity == Activity.BUSY, np.int8(Activity.IDLE), entity))
    found[np.bincount(work, minlength=count) == 0] = Activity.UNKNOWN
    found[work[entity == Activity.BUSY]] = Activity.BUSY
    return found


def idle_mask(found: I8) -> Bools:
    """Idle at least by weak evidence."""
    return np.asarray(found >= Activity.ESTIMATED)
