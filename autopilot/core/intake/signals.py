"""Measures of one snapshot: utilizations with their gap, and fragmentation by cause.

The allocation ratio counts allocated GPUs, the hardware ratio their SM activity; the difference is the waste. Activity
is known only with telemetry: the ratios are lower bounds for the measured share of the allocated GPUs, and NaN without
any measurement. No decision reads them.
"""

from __future__ import annotations

from math import isnan

import numpy as np

from autopilot.core.intake.usage.parts import GPU_UNITS, Parts, parts_of
from autopilot.core.intake.usage.rollup import fleet_of, ratios, room_of
from autopilot.core.model.records import Observation, Signals
from autopilot.core.model.snapshot import Bools, ClusterSnapshot, Recut, State
from autopilot.core.model.work import gpu_parts
from autopilot.core.placement.fragmentation.measure import largest_gang, stranded_pending
from autopilot.core.placement.whatif import WhatIf

ACTIVITY_WINDOW_S = 300.0

NAN = float("nan")
UNMEASURED = Signals(NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, -1, (), NAN)
"""Measures of a tick without a trusted view of the cluster."""


def sees_the_cluster(observation: Observation) -> bool:
    """False for a tick without a trusted view: its snapshot is evidence of nothing, and no face shows it."""
    return not isnan(observation.signals.capacity_gpus)


def measure(snapshot: ClusterSnapshot, whatif: WhatIf, parts: Parts | None = None) -> Signals:
    """All measures of one snapshot; `whatif` holds its unchanged capacity books, `parts` what workloads hold."""
    work, parts = snapshot.workloads, parts_of(snapshot) if parts is None else parts
    usable = whatif.gpu_ok & whatif.node_ok[snapshot.gpus.node]
    fleet = fleet_of(snapshot, parts, usable, ACTIVITY_WINDOW_S)
    use, capacity = ratios(fleet, ACTIVITY_WINDOW_S), int(fleet.capacity_units[0]) / GPU_UNITS
    pending = work.state == State.PENDING
    pending_gpus = float((work.gpus[pending] * gpu_parts(work, pending)).sum())
    stranded = tuple((cause, gpus) for cause, gpus in stranded_pending(snapshot, whatif).by_cause if gpus)
    return Signals(
        capacity_gpus=capacity,
        allocated_gpus=float(use.held_gpus[0]),
        free_gpus=int(fleet.free_units[0]) / GPU_UNITS,
        pending_gpus=pending_gpus,
        allocation_ratio=float(use.allocation_ratio[0]),
        hardware_ratio=float(use.hardware_ratio[0]),
        real_utilization_ratio=float(use.real_utilization_ratio[0]),
        gap_ratio=float(use.gap_gpus[0]) / capacity if capacity else NAN,
        stranded_gpus=sum(gpus for _, gpus in stranded),
        largest_gang_gpus=largest_gang(whatif, np.ones(len(snapshot.nodes.id), np.bool_)),
        stranded_by_cause=stranded,
        recut_gpus=_under_recut(snapshot, whatif, parts, usable),
        out_of_use_gpus=int(fleet.out_of_use_units[0]) / GPU_UNITS,
        measured_ratio=float(use.measured_ratio[0]),
    )


def _under_recut(snapshot: ClusterSnapshot, whatif: WhatIf, parts: Parts, usable: Bools) -> float:
    """GPUs out of use only because their geometry changes, minus the part held by work."""
    gpus = snapshot.gpus
    rows = np.flatnonzero(gpus.healthy & whatif.node_ok[gpus.node] & (gpus.recut != Recut.SETTLED))
    if not len(rows):
        return 0.0
    _, _, unused = room_of(snapshot, parts, usable)
    return int(unused[rows].sum()) / GPU_UNITS
