"""Allocation, hardware and real utilization with the gap in GPUs: by workload, service, tenant, queue, pool, and fleet.

Every group is a sum of integers over parts, so the groups of a level add up to the fleet exactly. A GPU without a
workload belongs to the last group of each level (`NO_WORKLOAD`); its activity is no part of a utilization.

Capacity is every GPU of the inventory: held + free + out of use. Held GPUs are active, in the gap, or not measured. An
unmeasured held GPU counts as neither active nor idle, so lost telemetry raises no sum and no ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopilot.core.hardware.takes_work import takes_work
from autopilot.core.intake.usage.parts import (
    FINE,
    GPU_UNITS,
    Parts,
    activity,
    attributed,
    gathered,
    instance_units,
    parts_of,
    plausible,
)
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import F64, I32, I64, Bools, ClusterSnapshot

NO_WORKLOAD = "held by no workload"
LEVELS = ("fleet", "pool", "tenant", "queue", "service")
WITH_WORKLOADS = (*LEVELS, "workload")

_PLACES = ("fleet", "pool")
"""Levels for which it does not matter which work holds a GPU."""

ROOM = ("capacity_gpus", "free_gpus", "out_of_use_gpus")
"""Figures of the GPUs themselves, for the fleet and pools."""

STRAY_RATIO = 0.05
"""SM activity from which on a GPU that no workload holds counts as busy: an idle driver and an exporter stay below."""

_FALLING = 0.9  # of the longer window: activity that falls below is what ended work left in it


@dataclass(frozen=True, slots=True)
class Rollup:
    """The groups of one level, [groups]; the last one is `NO_WORKLOAD`. Sums with a window are [windows, groups].

    `capacity_units` and its free and unusable parts are those of the pool at the level of pools, and of the fleet at
    any other level: there, ratios are parts of the fleet's. A queue includes the queues below it. Work without a
    service is in no group of the level `service`.
    """

    level: str
    names: tuple[str, ...]
    windows_s: tuple[float, ...]
    capacity_units: I64
    free_units: I64  # without work, open to new work
    out_of_use_units: I64  # without work, closed to new work
    held_units: I64
    measured_units: I64
    active_units: I64  # in 1/FINE of a unit
    workloads: I64  # that hold GPUs; a workload on several pools counts in each

    def gpus(self, name: str) -> F64:
        """One of `ROOM`, in GPUs. Shape [groups]."""
        return np.asarray(getattr(self, f"{name.removesuffix('_gpus')}_units") / GPU_UNITS)


@dataclass(frozen=True, slots=True)
class Ratios:
    """The utilizations of the groups of a level over one window, [groups]. NaN: no held GPU is measured.

    All but `held_gpus`, `measured_ratio` and `allocation_ratio` are lower bounds if `measured_ratio` is below 1.
    """

    held_gpus: F64
    active_gpus: F64  # SM-active GPU equivalents of the measured held GPUs
    gap_gpus: F64  # measured - active: held GPUs known to be idle
    measured_ratio: F64  # share of what is held with known SM activity
    allocation_ratio: F64  # held / capacity
    hardware_ratio: F64  # active / held
    real_utilization_ratio: F64  # active / capacity


@dataclass(frozen=True, slots=True)
class Stray:
    """A busy GPU or MIG instance that no workload holds."""

    entity_id: str
    node: str
    activity_ratio: float
    window_s: float


def rollups(snapshot: ClusterSnapshot, levels: Sequence[str] = LEVELS) -> dict[str, Rollup]:
    """The groups of each of these levels; those of the level `fleet` are the whole and `NO_WORKLOAD`."""
    parts = parts_of(snapshot)
    everywhere, sure = activity(snapshot.telemetry, parts), attributed(parts)
    known = everywhere if sure is parts else activity(snapshot.telemetry, sure)
    unheld_measured, unheld_active = activity(snapshot.telemetry, unheld_parts(snapshot, parts))
    room = np.stack(room_of(snapshot, parts, usable_gpus(snapshot)))
    found = {}
    for level in levels:
        names, group = _groups(snapshot, level, parts)
        count = len(names)
        measured, active = everywhere if level in _PLACES else known
        sums = [_by_group(each, group, count) for each in (parts.units[None, :], measured, active)]
        workloads = _workloads(group, parts.workload, count)
        if level == "queue":
            for row, parent in reversed(list(enumerate(snapshot.queues.parent.tolist()))):
                for each in (*sums, workloads[None, :]) if parent >= 0 else ():
                    each[:, parent] += each[:, row]
        own = np.repeat(room.sum(axis=1)[:, None], count + 1, axis=1)
        if level == "pool":
            own[:, :count] = _by_group(room, snapshot.nodes.pool[snapshot.gpus.node], count)[:, :count]
        sums[1][:, -1], sums[2][:, -1] = unheld_measured.sum(axis=1), unheld_active.sum(axis=1)
        found[level] = Rollup(
            level,
            (*names, NO_WORKLOAD),
            snapshot.telemetry.windows_s,
            own[0],
            own[1],
            own[2],
            sums[0][0],
            sums[1],
            sums[2],
            workloads,
        )
    return found


def fleet_of(snapshot: ClusterSnapshot, parts: Parts, usable: Bools, window_s: float) -> Rollup:
    """The fleet of `rollups` over one window, without `NO_WORKLOAD` and without a count of workloads."""
    windows_s = snapshot.telemetry.windows_s
    at = windows_s.index(window_s) if window_s in windows_s else len(windows_s)
    measured, active = activity(snapshot.telemetry, parts, slice(at, at + 1))
    capacity, free, out_of_use = (each.sum(keepdims=True) for each in room_of(snapshot, parts, usable))
    return Rollup(
        "fleet",
        ("fleet",),
        windows_s[at : at + 1],
        capacity,
        free,
        out_of_use,
        parts.units.sum(keepdims=True),
        measured.sum(axis=1, keepdims=True),
        active.sum(axis=1, keepdims=True),
        np.zeros(1, np.int64),
    )


def room_of(snapshot: ClusterSnapshot, parts: Parts, usable: Bools) -> tuple[I64, I64, I64]:
    """Of each GPU all of it, the free part, and the part out of use, in units. Shapes [gpus].

    `parts` hold the rest; `usable` GPUs take work. A GPU out of use takes none: it is not healthy or has an error, its
    geometry changes, or its node is not ready, cordoned, condemned or called back.
    """
    whole = np.full(len(snapshot.gpus.uuid), GPU_UNITS, np.int64)
    left = whole - np.bincount(parts.gpu, parts.units, minlength=len(whole)).astype(np.int64)
    return whole, np.where(usable, left, 0), np.where(usable, 0, left)


def _groups(snapshot: ClusterSnapshot, level: str, parts: Parts) -> tuple[tuple[str, ...], NDArray[np.integer]]:
    """Names of the groups of a level, and the group of each part; -1: in none."""
    work = snapshot.workloads
    if level == "fleet":
        return ("fleet",), np.zeros(len(parts.units), np.int32)
    if level == "pool":
        return snapshot.names.pools, snapshot.nodes.pool[snapshot.gpus.node[parts.gpu]]
    if level == "tenant":
        return snapshot.names.tenants, work.tenant[parts.workload]
    if level == "workload":
        return tuple(work.id.tolist()), parts.workload
    table, column = (snapshot.queues, work.queue) if level == "queue" else (snapshot.services, work.service)
    return tuple(table.id.tolist()), column[parts.workload]


def _by_group(rows: I64, group: NDArray[np.integer], count: int) -> I64:
    """Exact sums of `rows` [rows, parts] by group, with a last column of zeros. Shape [rows, count + 1].

    Sums of floats are exact below 2**53: the steps of `FINE` and the units above them are summed apart.
    """
    taken = (group >= 0) & (group < count)
    place, values = group[taken], rows[:, taken]
    out = np.zeros((len(rows), count + 1), np.int64)
    for row, each in zip(out, values, strict=True):
        above = np.bincount(place, each // FINE, minlength=count + 1).astype(np.int64)
        row[:] = above * FINE + np.bincount(place, each % FINE, minlength=count + 1).astype(np.int64)
    return out


def _workloads(group: NDArray[np.integer], workload: I32, count: int) -> I64:
    """Workloads that hold GPUs, by group, with a last 0. Shape [count + 1]."""
    taken = (group >= 0) & (group < count)
    pairs = np.unique(workload[taken].astype(np.int64) * (count + 1) + group[taken])
    return np.bincount(pairs % (count + 1), minlength=count + 1).astype(np.int64)


def usable_gpus(snapshot: ClusterSnapshot) -> Bools:
    """GPUs that may take work in their free part."""
    node_ok, gpu_ok = takes_work(snapshot.nodes, snapshot.gpus)
    return np.asarray(gpu_ok & node_ok[snapshot.gpus.node])


def unheld_parts(snapshot: ClusterSnapshot, parts: Parts) -> Parts:
    """GPUs and MIG instances that no workload holds any part of, as parts of no workload (-1).

    The parent of an instance is left out: its telemetry repeats that of its instances.
    """
    gpus, instances = len(snapshot.gpus.uuid), snapshot.instances
    units, _ = instance_units(snapshot)
    there = np.concatenate([np.ones(gpus, np.bool_), instances.profile >= 0])
    there[parts.entity] = False
    there[instances.gpu[instances.profile >= 0]] = False
    entity = np.flatnonzero(there).astype(np.int32)
    gpu = np.concatenate([np.arange(gpus, dtype=np.int32), instances.gpu])[entity]
    size = np.concatenate([np.full(gpus, GPU_UNITS), units])[entity]
    instance = entity >= gpus
    nothing = np.zeros_like(instance)
    return Parts(np.full(len(entity), -1, np.int32), gpu, entity, size, nothing, instance, nothing)


def ratios(found: Rollup, window_s: float) -> Ratios:
    """The utilizations of a level over one window. A group without GPUs has no activity and no gap."""
    held, capacity = found.held_units / GPU_UNITS, found.capacity_units / GPU_UNITS
    measured_units, active_units = np.zeros((2, len(held)), np.int64)
    if window_s in found.windows_s:
        window = found.windows_s.index(window_s)
        measured_units, active_units = found.measured_units[window], found.active_units[window]
    owned = np.ones(len(held), np.bool_)
    owned[-1] = found.names[-1] != NO_WORKLOAD
    known = (measured_units > 0) | (owned & (held == 0))
    active = np.where(known, active_units / (FINE * GPU_UNITS), np.nan)
    gap = np.where(known & owned, (measured_units * FINE - active_units) / (FINE * GPU_UNITS), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        holds = held > 0
        return Ratios(
            held_gpus=held,
            active_gpus=active,
            gap_gpus=gap,
            measured_ratio=np.where(holds, measured_units / found.held_units, np.nan),
            allocation_ratio=np.where(capacity > 0, held / capacity, np.nan),
            hardware_ratio=np.where(holds, active / held, np.nan),
            real_utilization_ratio=np.where((capacity > 0) & owned, active / capacity, np.nan),
        )


def busy_mask(telemetry: SignalTable, parts: Parts) -> Bools:
    """Parts that are busy over the two shortest windows, and not falling.

    What ended work leaves in the longer window is not counted. Shape [parts].
    """
    if "sm_active_ratio" not in telemetry.signals or len(telemetry.windows_s) < 2:
        return np.zeros(len(parts.units), np.bool_)
    column = telemetry.means("sm_active_ratio")
    short, long = np.argsort(telemetry.windows_s)[:2].tolist()
    recent, before = gathered(column[[short, long]], "sm_active_ratio", parts)
    known = plausible("sm_active_ratio", recent) & plausible("sm_active_ratio", before)
    with np.errstate(invalid="ignore"):
        return np.asarray(known & (recent >= STRAY_RATIO) & (before >= STRAY_RATIO) & (recent >= _FALLING * before))


def _beyond_assumed(snapshot: ClusterSnapshot, held: Parts, unheld: Parts, busy: NDArray[np.intp]) -> NDArray[np.intp]:
    """The busy parts that work on assumed GPUs cannot explain. Such work may hold any GPU of its node, but no more GPUs
    than it was assumed to hold.
    """
    if not held.assumed.any():
        return busy
    nodes = snapshot.gpus.node
    hidden = np.bincount(nodes[held.gpu[held.assumed]], minlength=len(snapshot.nodes.id))
    node = nodes[unheld.gpu[busy]]
    order = np.argsort(node, kind="stable")
    place = np.empty(len(busy), np.int64)  # of each among the busy ones of its node
    place[order] = np.arange(len(busy)) - np.searchsorted(node[order], node[order])
    return np.asarray(busy[place >= hidden[node]])


def strays(snapshot: ClusterSnapshot, held: Parts) -> tuple[Stray, ...]:
    """Busy GPUs and instances that no workload holds, by row. `held`: the parts that workloads hold.

    Something uses such a GPU without an allocation, so it must not be treated as free without looking.
    """
    telemetry, parts = snapshot.telemetry, unheld_parts(snapshot, held)
    busy = _beyond_assumed(snapshot, held, parts, np.flatnonzero(busy_mask(telemetry, parts)))
    if not len(busy):
        return ()
    short = int(np.argmin(telemetry.windows_s))
    recent = gathered(telemetry.means("sm_active_ratio")[short], "sm_active_ratio", parts)
    names = np.concatenate([snapshot.gpus.uuid, snapshot.instances.id])
    return tuple(
        Stray(
            str(names[parts.entity[at]]),
            str(snapshot.nodes.id[snapshot.gpus.node[parts.gpu[at]]]),
            float(recent[at]),
            float(telemetry.windows_s[short]),
        )
        for at in busy.tolist()
    )
