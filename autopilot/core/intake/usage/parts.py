"""What workloads hold, in exact parts of GPUs, and what was measured on each: one part for each placement.

A part is counted in integers of 1/28,000 GPU (`GPU_UNITS`): thousandths of a shared GPU and compute slices of a MIG
instance (sevenths or quarters) are both whole numbers of it, so sums by tenant and of the fleet are equal, not close.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autopilot.core.hardware.dcgm import TELEMETRY, Reach, board_slices, profile_slices
from autopilot.core.model.pairs import pairs_of
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import F32, GPU_MILLI, I32, I64, Bools, ClusterSnapshot

GPU_UNITS = 28 * GPU_MILLI
"""Units of one whole GPU."""

FINE = 1 << 24
"""Steps of an activity in exact sums: the resolution of a float32."""

HIGHEST: dict[str, float] = {each.name: each.highest for each in TELEMETRY}
"""A value of one GPU or instance above this is a fault of its source."""

EVERY = slice(None)

_NOWHERE = np.iinfo(np.int32).max  # no row of any telemetry

_REACH = {each.name: each.reach for each in TELEMETRY}


@dataclass(frozen=True, slots=True)
class Parts:
    """One row per placement. `entity` is a row of the telemetry: GPUs first, then instances."""

    workload: I32
    gpu: I32
    entity: I32
    units: I64  # of the GPU that it holds, in 1/28,000
    shared: Bools  # others may use the same entity: its activity is divided in proportion
    instance: Bools  # a MIG instance: it has ratios and memory of its own, power and traffic are those of the GPU
    assumed: Bools  # which GPU of its node it is, no source says


def parts_of(snapshot: ClusterSnapshot) -> Parts:
    """The parts that all workloads hold, in the order of the placements.

    What is booked beyond a whole GPU is scaled down to it; several holders of one instance have equal parts of it.
    """
    held, gpus = snapshot.placements, len(snapshot.gpus.uuid)
    instance = held.instance >= 0
    units = held.milli.astype(np.int64) * (GPU_UNITS // GPU_MILLI)
    entity, shared = held.gpu, ~instance & (held.milli < GPU_MILLI)
    if instance.any():
        entity = np.where(instance, gpus + held.instance, held.gpu).astype(np.int32)
        cut, _ = instance_units(snapshot)
        holders = np.bincount(held.instance[instance], minlength=len(cut))
        shared = shared | (instance & (holders[held.instance] > 1))
        units = np.where(instance, cut[held.instance] // np.maximum(holders, 1)[held.instance], units)
    booked = np.bincount(held.gpu, units, minlength=1)[held.gpu]
    over = booked > GPU_UNITS
    if over.any():
        shared = shared | (over & ~instance)
        units = np.where(over, units * GPU_UNITS // np.maximum(booked, 1).astype(np.int64), units)
    return Parts(held.workload, held.gpu, entity, units, shared, instance, held.assumed)


def attributed(parts: Parts) -> Parts:
    """The parts, with no telemetry for those that are assumed. The same object where none is assumed."""
    if not parts.assumed.any():
        return parts
    gpu, entity = (np.where(parts.assumed, _NOWHERE, each).astype(np.int32) for each in (parts.gpu, parts.entity))
    return replace(parts, gpu=gpu, entity=entity)


def instance_units(snapshot: ClusterSnapshot) -> tuple[I64, Bools]:
    """Units of each MIG instance, and where they are a guess. Shape [instances].

    An instance has its compute slices of its GPU. Where the profile is unknown, or the slices of a GPU add up to more
    than it has, its instances divide it: equally, or in proportion.
    """
    instances, names = snapshot.instances, snapshot.names
    count = len(snapshot.gpus.uuid)
    there = instances.profile >= 0
    model = snapshot.nodes.gpu_model[snapshot.gpus.node[instances.gpu]]
    kinds, kind = pairs_of(model, instances.profile)
    by_kind = [_slice_units(names.gpu_models, names.profiles, *pair) for pair in kinds]
    units = np.where(there, np.array(by_kind, np.int64)[kind], 0)
    cut = np.bincount(instances.gpu[there], minlength=count)[instances.gpu]
    unknown = there & (units < 0)
    mixed = np.bincount(instances.gpu[unknown], minlength=count)[instances.gpu] > 0
    units = np.where(there & mixed, GPU_UNITS // np.maximum(cut, 1), units)
    whole = np.bincount(instances.gpu, units, minlength=count).astype(np.int64)[instances.gpu]
    over = there & (whole > GPU_UNITS)
    units = np.where(over, units * GPU_UNITS // np.maximum(whole, 1), units)
    return units, there & (mixed | over)


def _slice_units(models: tuple[str, ...], profiles: tuple[str, ...], model: int, profile: int) -> int:
    """Units of one instance of a profile; -1 where the name is no profile of that model."""
    if not 0 <= profile < len(profiles):
        return -1
    slices, total = profile_slices(profiles[profile]), board_slices(models[model] if model >= 0 else "")
    return GPU_UNITS * slices // total if slices is not None and 0 < slices <= total else -1


def gathered(column: F32, signal: str, parts: Parts) -> F32:
    """A signal [..., entities] by part, NaN where it is missing. Shape [..., parts].

    Power is measured for the whole GPU: an instance counts its share of it. Traffic is not known for an instance.
    """
    entity = parts.gpu if _REACH[signal] == Reach.GPU else parts.entity
    missing = entity >= column.shape[-1]
    if _REACH[signal] == Reach.NONE:
        missing = missing | parts.instance
    if not missing.any():
        return np.take(column, entity, axis=-1)
    if not column.shape[-1]:
        return np.full((*column.shape[:-1], len(entity)), np.nan, np.float32)
    found = np.take(column, np.where(missing, 0, entity), axis=-1)
    found[..., missing] = np.nan
    return found


def plausible(signal: str, values: F32) -> Bools:
    """Where `values` of single GPUs are possible: not NaN, not negative, and not above `HIGHEST`."""
    return np.asarray((values >= 0.0) & (values <= HIGHEST[signal]))


def activity(telemetry: SignalTable, parts: Parts, window: slice = EVERY) -> tuple[I64, I64]:
    """Units with known SM activity, and SM activity x units in 1/FINE of a unit. Both [windows, parts]."""
    if "sm_active_ratio" not in telemetry.signals:
        none = np.zeros((len(telemetry.windows_s[window]), len(parts.units)), np.int64)
        return none, none
    mean = gathered(telemetry.means("sm_active_ratio")[window], "sm_active_ratio", parts)
    known = plausible("sm_active_ratio", mean)
    steps = np.rint(np.where(known, np.minimum(mean, 1.0), 0.0) * FINE).astype(np.int64)
    return np.where(known, parts.units, 0), steps * parts.units
