"""Measures of one snapshot: utilizations with their gap, and fragmentation by cause.

The allocation ratio counts GPUs that are handed out, the hardware ratio their SM activity. Both are reported, because
their difference is the waste. Activity is known only where there is telemetry: the ratios cover the measured part and
are NaN where nothing is measured.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.fragmentation.measure import largest_gang, stranded_pending
from autopilot.core.model.records import Signals
from autopilot.core.model.snapshot import Bools, ClusterSnapshot, Recut, State
from autopilot.core.model.work import gpu_parts
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.usage.parts import FINE, GPU_UNITS, activity, parts_of

ACTIVITY_WINDOW_S = 300.0

NAN = float("nan")
UNMEASURED = Signals(NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, -1, (), NAN)
"""Measures of a tick without any data."""


def measure(snapshot: ClusterSnapshot, whatif: WhatIf) -> Signals:
    """All measures of one snapshot; `whatif` holds its unchanged capacity books."""
    work = snapshot.workloads
    usable = snapshot.gpus.healthy & whatif.node_ok[snapshot.gpus.node]
    capacity = float(usable.sum())
    allocated, active = _handed_out(snapshot)
    recut = _under_recut(snapshot, usable)
    pending = work.state == State.PENDING
    pending_gpus = float((work.gpus[pending] * gpu_parts(work, pending)).sum())
    stranded = tuple((cause, gpus) for cause, gpus in stranded_pending(snapshot, whatif).by_cause if gpus)
    return Signals(
        capacity_gpus=capacity,
        allocated_gpus=allocated,
        free_gpus=capacity - allocated - recut,
        pending_gpus=pending_gpus,
        allocation_ratio=allocated / capacity if capacity else float("nan"),
        hardware_ratio=active / allocated if allocated else float("nan"),
        real_utilization_ratio=active / capacity if capacity else float("nan"),
        gap_ratio=(allocated - active) / capacity if capacity else float("nan"),
        stranded_gpus=sum(gpus for _, gpus in stranded),
        largest_gang_gpus=largest_gang(whatif, np.ones(len(snapshot.nodes.id), np.bool_)),
        stranded_by_cause=stranded,
        recut_gpus=recut,
    )


def _under_recut(snapshot: ClusterSnapshot, usable: Bools) -> float:
    """GPUs whose geometry changes, less what work holds of them."""
    rows = np.flatnonzero(usable & (snapshot.gpus.recut != Recut.SETTLED))
    if not len(rows):
        return 0.0
    parts = parts_of(snapshot)
    held = np.isin(parts.gpu, rows)
    return max(len(rows) - int(parts.units[held].sum()) / GPU_UNITS, 0.0)


def _handed_out(snapshot: ClusterSnapshot) -> tuple[float, float]:
    """GPUs that are handed out, and the SM-active GPU equivalents among them; NaN if none is measured."""
    parts, telemetry = parts_of(snapshot), snapshot.telemetry
    held = int(parts.units.sum())
    if ACTIVITY_WINDOW_S not in telemetry.windows_s:
        return held / GPU_UNITS, NAN
    window = telemetry.windows_s.index(ACTIVITY_WINDOW_S)
    measured, active = (int(each.sum()) for each in activity(telemetry, parts, slice(window, window + 1)))
    return held / GPU_UNITS, active / FINE / measured * held / GPU_UNITS if measured else NAN
