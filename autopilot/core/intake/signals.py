"""Measures of one snapshot: utilizations with their gap, and fragmentation by cause.

The allocation ratio counts GPUs that are handed out, the hardware ratio their SM activity. Both are reported, because
their difference is the waste. Activity is known only where there is telemetry: the ratios cover the measured part and
are NaN where nothing is measured.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.model.records import Signals
from autopilot.core.model.snapshot import F64, Bools, ClusterSnapshot, State
from autopilot.core.model.work import gpu_parts, whole_gpus
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.usage.parts import FINE, GPU_UNITS, activity, parts_of

ACTIVITY_WINDOW_S = 300.0

NAN = float("nan")
UNMEASURED = Signals(NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, -1, ())
"""Measures of a tick without any data."""


def measure(snapshot: ClusterSnapshot, whatif: WhatIf) -> Signals:
    """All measures of one snapshot; `whatif` holds its unchanged capacity books."""
    work = snapshot.workloads
    usable = snapshot.gpus.healthy & whatif.node_ok[snapshot.gpus.node]
    capacity = float(usable.sum())
    allocated, active = _handed_out(snapshot)
    pending = work.state == State.PENDING
    pending_gpus = float((work.gpus[pending] * gpu_parts(work, pending)).sum())
    stranded = _stranded(snapshot, whatif, pending)
    return Signals(
        capacity_gpus=capacity,
        allocated_gpus=allocated,
        free_gpus=capacity - allocated,
        pending_gpus=pending_gpus,
        allocation_ratio=allocated / capacity if capacity else float("nan"),
        hardware_ratio=active / allocated if allocated else float("nan"),
        real_utilization_ratio=active / capacity if capacity else float("nan"),
        gap_ratio=(allocated - active) / capacity if capacity else float("nan"),
        stranded_gpus=sum(gpus for _, gpus in stranded),
        largest_gang_gpus=_largest_gang(snapshot, whatif),
        stranded_by_cause=stranded,
    )


def _instance_part(snapshot: ClusterSnapshot) -> F64:
    """The part of its GPU that each MIG instance counts: an equal share among the instances of that GPU."""
    gpu, there = snapshot.instances.gpu, snapshot.instances.profile >= 0
    counts = np.bincount(gpu[there], minlength=len(snapshot.gpus.uuid))
    return np.asarray(np.where(there, 1.0 / np.maximum(counts[gpu], 1), 0.0))


def _handed_out(snapshot: ClusterSnapshot) -> tuple[float, float]:
    """GPUs that are handed out, and the SM-active GPU equivalents among them; NaN if none is measured."""
    parts, telemetry = parts_of(snapshot), snapshot.telemetry
    held = int(parts.units.sum())
    if ACTIVITY_WINDOW_S not in telemetry.windows_s:
        return held / GPU_UNITS, NAN
    window = telemetry.windows_s.index(ACTIVITY_WINDOW_S)
    measured, active = (int(each.sum()) for each in activity(telemetry, parts, slice(window, window + 1)))
    return held / GPU_UNITS, active / FINE / measured * held / GPU_UNITS if measured else NAN


def _largest_gang(snapshot: ClusterSnapshot, whatif: WhatIf) -> int:
    """The widest gang of whole GPUs that fits now: on one node, or on entirely free nodes."""
    free, total = whatif.node_free, snapshot.nodes.gpus
    if not len(free):
        return 0
    return int(max(free.max(initial=0), free[free == total].sum()))


def _stranded(snapshot: ClusterSnapshot, whatif: WhatIf, pending: Bools) -> tuple[tuple[str, float], ...]:
    """Free GPUs that no pending gang can use, by cause; none while no gang waits."""
    work, free = snapshot.workloads, whatif.node_free
    if not pending.any():
        return ()
    causes = []
    whole = pending & whole_gpus(work)
    shared = bool((work.gpu_milli[pending] > 0).any())
    if whole.any() and not shared:
        member = np.minimum(work.gpus_per_member[whole], work.gpus[whole])
        least = int(member.min())
        remainder = float(free[free < least].sum())
        if remainder:
            causes.append(("node_remainder", remainder))
        rest = free[free >= least]
        if len(rest) and int(work.min_gpus[whole].min()) > int(rest.sum()):
            causes.append(("gang_too_wide", float(rest.sum())))
    wanted = np.unique(work.mig_profile[pending])
    idle = whatif.instance_alive & (whatif.instance_used == 0)
    if (wanted >= 0).any() and idle.any():
        useless = idle & ~np.isin(whatif.instance_profile, wanted)
        if useless.any():
            causes.append(
                (
                    "mig_geometry",
                    float(_instance_part(snapshot)[useless[: len(snapshot.instances.gpu)]].sum()),
                )
            )
    return tuple(causes)
