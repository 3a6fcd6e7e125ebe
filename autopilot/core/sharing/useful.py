"""Useful utilization of a cluster: SM activity that brings work forward."""

from __future__ import annotations

import numpy as np

from autopilot.core.intake.signals import ACTIVITY_WINDOW_S
from autopilot.core.intake.usage.parts import FINE, GPU_UNITS, activity, attributed, parts_of
from autopilot.core.model.memory.profiles import LoneProfile
from autopilot.core.sharing.facts import SharedRates
from autopilot.core.sharing.sharers import Sharers


def useful_utilization_ratio(sharers: Sharers, rates: SharedRates) -> float:
    """SM-active GPU equivalents that are useful, over the capacity: an estimate.

    Two jobs that stall each other look active. On shared GPUs the SM activity of each alone times its rate counts,
    measured if it can be, else predicted; elsewhere the measured activity, a lower bound where GPUs are not measured.
    NaN without telemetry, and where one of the sharers is not known.
    """
    snapshot = sharers.snapshot
    telemetry, capacity = snapshot.telemetry, len(snapshot.gpus.uuid)
    if ACTIVITY_WINDOW_S not in telemetry.windows_s or not capacity:
        return float("nan")
    at, parts = telemetry.windows_s.index(ACTIVITY_WINDOW_S), attributed(parts_of(snapshot))
    measured, steps = activity(telemetry, parts, slice(at, at + 1))
    if not measured.any():
        return float("nan")
    useful = steps[0][~np.isin(parts.gpu, list(sharers.rows))].sum() / FINE / GPU_UNITS
    for row, gpus in sharers.gpus.items():
        lone = sharers.profile(row, sharers.way(gpus[0]).gpu_model)
        rate = rates.predicted[row] if np.isnan(rates.measured[row]) else min(rates.measured[row], 1.0)
        useful += lone.sm_ratio * rate * len(gpus) if isinstance(lone, LoneProfile) else np.nan
    return float(useful) / capacity
