"""Whether telemetry can be true: a reason for each GPU and MIG instance that is in doubt.

Only what is certain is judged, from one snapshot alone: values that no hardware gives, values that contradict each
other, and values without the noise that every counter has. Idle GPUs read exactly 0 for hours, which is no fault.
What relies on an entity in doubt is held (guard `telemetry`); everything else goes on.

The noise: SM activity of working H100s differed between nearly all of 270 one-second means of four runs, and the power
of idle ones between 12 and 73 of 248. Engine activity and GPU utilization are coarse and may stay at 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autopilot.core.hardware.dcgm import RATIO_SLACK, Quality
from autopilot.core.hardware.xid_facts import Remedy, remedies
from autopilot.core.intake.usage.contradiction import CONTRADICTS_RATIO
from autopilot.core.intake.usage.parts import HIGHEST, Parts, instance_units
from autopilot.core.intake.usage.rollup import Stray, busy_mask, unheld_parts
from autopilot.core.model.codes import Code
from autopilot.core.model.records import Gap
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import F32, GPU_MILLI, I8, Bools, ClusterSnapshot

DOUBTS: tuple[Code, ...] = (
    Code.OK,
    Code.STALE_TELEMETRY,
    Code.TELEMETRY_STUCK,
    Code.TELEMETRY_IMPOSSIBLE,
    Code.TELEMETRY_SCALE,
    Code.TELEMETRY_SWAPPED,
    Code.TELEMETRY_OWNER,
)
"""Reasons, the most certain last: it wins where several apply. `doubts` answers with indices of it."""

_STALE, _STUCK, _IMPOSSIBLE, _SCALE, _SWAPPED, _OWNER = (np.int8(code) for code in range(1, len(DOUBTS)))

LEAST_SAMPLES = 8
"""Fewer samples of a window can be equal by chance, or because the exporter refreshed only once or twice."""

SAME_RATIO = 1e-6
"""Mean and maximum that differ by less are one value, repeated: means are kept as float32."""

EMPTY_MIB = 1024.0
"""A GPU with less memory in use than this has no program loaded: a CUDA context and a model take more."""

IDLE_RATIO = 0.01


def doubts(snapshot: ClusterSnapshot, parts: Parts, silent: Bools, stale_s: float) -> I8:
    """For each GPU, then each instance: an index of `DOUBTS`, 0 where nothing speaks against its telemetry.

    `parts`: what workloads hold. `silent`: entities whose counters contradict each other (`contradicted`).
    `stale_s`: telemetry older than this is stale. An entity that was never measured is in no doubt: it is unknown.
    """
    gpus, instances = len(snapshot.gpus.uuid), len(snapshot.instances.id)
    found, telemetry = np.zeros(gpus + instances, np.int8), snapshot.telemetry
    size = min(len(telemetry.age_s), len(found))
    if size and telemetry.windows_s:
        seen = found[:size]
        age_s = telemetry.age_s[:size]
        seen[(age_s > stale_s) & np.isfinite(age_s)] = _STALE
        seen[_stuck(telemetry)[:size]] = _STUCK
        impossible, scale = _impossible(telemetry)
        seen[impossible[:size]] = _IMPOSSIBLE
        seen[silent[:size]] = _IMPOSSIBLE
        seen[scale[:size]] = _SCALE
        found[_swapped(snapshot, parts)] = _SWAPPED
    found[np.flatnonzero(_seen_twice(snapshot))] = _SWAPPED
    found[_contradicting_owners(snapshot)] = _OWNER
    cut = found[snapshot.instances.gpu]
    found[gpus:] = np.where(cut >= _SWAPPED, cut, found[gpus:])  # an instance is the GPU that it is cut from
    return found


def gaps_of(snapshot: ClusterSnapshot, silent: Bools, strange: Sequence[Stray]) -> tuple[Gap, ...]:
    """A gap for each signal with impossible values, each unknown MIG profile, GPUs that are busy without a workload,
    GPUs whose counters contradict each other (`silent`), and each XID without a known remedy. `strange`: what is busy
    without a workload.
    """
    telemetry, found = snapshot.telemetry, [*_unknown_profiles(snapshot), *_busy_without_workload(strange)]
    found += _contradictions(snapshot, silent) + _unclear_errors(snapshot)
    names = np.concatenate([snapshot.gpus.uuid, snapshot.instances.id])
    for row, signal in enumerate(telemetry.signals):
        if signal not in HIGHEST:
            continue
        wrong = np.flatnonzero(_any(_not_possible(signal, telemetry.mean[row]))[: len(names)])
        if len(wrong):
            first = str(names[wrong[0]])
            more = f" and {len(wrong) - 1} others" if len(wrong) > 1 else ""
            value = _worst(telemetry.mean[row][:, wrong[0]], signal)
            found.append(Gap("telemetry", first, signal, f"{value:g} is not possible{more}: it is not used"))
    return tuple(found)


def _unknown_profiles(snapshot: ClusterSnapshot) -> list[Gap]:
    """One gap for each profile whose instances have no known share of their GPU."""
    instances, names = snapshot.instances, snapshot.names.profiles
    if not len(instances.id):
        return []
    _, guessed = instance_units(snapshot)
    first: dict[int, int] = {}
    for row in np.flatnonzero(guessed).tolist():
        first.setdefault(int(instances.profile[row]), row)
    return [
        Gap(
            "inventory",
            str(instances.id[row]),
            "profile",
            f"the compute slices of {names[code] if code < len(names) else code!r} are unknown or too many for this "
            "GPU: its instances divide the GPU",
        )
        for code, row in first.items()
    ]


def _busy_without_workload(found: Sequence[Stray]) -> list[Gap]:
    """One gap for all busy GPUs that no workload holds: who uses them is not known."""
    if not found:
        return []
    more = f", and {len(found) - 1} others with it" if len(found) > 1 else ""
    reason = f"busy on {found[0].node} although no workload holds it{more}: find its processes before work starts there"
    return [Gap("telemetry", found[0].entity_id, "sm_active_ratio", reason)]


def _unclear_errors(snapshot: ClusterSnapshot) -> list[Gap]:
    """One gap for each XID whose remedy a person must decide."""
    gpus, found = snapshot.gpus, []
    unclear = remedies(gpus.xid) == Remedy.INSPECT
    for code in np.unique(gpus.xid[unclear]).tolist():
        rows = np.flatnonzero(gpus.xid == code)
        others = f"; {len(rows) - 1} other GPUs have it too" if len(rows) > 1 else ""
        reason = f"XID {code} names no remedy: inspect the GPU; until then it gets no new work{others}"
        found.append(Gap("telemetry", str(gpus.uuid[rows[0]]), "xid_code", reason))
    return found


def _contradictions(snapshot: ClusterSnapshot, silent: Bools) -> list[Gap]:
    """One gap for each node with GPUs whose counters contradict each other: it names their exporter."""
    gpus, telemetry, found = snapshot.gpus, snapshot.telemetry, []
    rows = np.flatnonzero(silent[: len(gpus.uuid)])
    for node in np.unique(gpus.node[rows]).tolist():
        mine = rows[gpus.node[rows] == node]
        code = int(telemetry.source[mine[0]]) if len(telemetry.source) else -1
        source = telemetry.sources[code] if 0 <= code < len(telemetry.sources) else "telemetry"
        reason = (
            f"the counters of {len(mine)} GPUs of {snapshot.nodes.id[node]} show no activity while power or others "
            "there do: their activity is unknown, and none counts as idle or hung; restart the exporter of the node"
        )
        found.append(Gap(source, str(gpus.uuid[mine[0]]), "sm_active_ratio", reason))
    return found


def _worst(values: F32, signal: str) -> float:
    """The first impossible value of one entity."""
    return float(values[_not_possible(signal, values)][0])


def _not_possible(signal: str, values: F32) -> Bools:
    """Values that are there and not possible; infinities are not possible either."""
    return np.asarray((values < 0.0) | (values > HIGHEST[signal]))


def _any(values: Bools) -> Bools:
    """Where any window has it: [windows, entities] by entity."""
    return np.asarray(np.logical_or.reduce(values, axis=0))


def _column(telemetry: SignalTable, signal: str) -> F32 | None:
    """Means of one signal, [windows, entities]; None where it is not collected."""
    return telemetry.mean[telemetry.signals.index(signal)] if signal in telemetry.signals else None


def _constant(telemetry: SignalTable, signal: str, window: int) -> Bools:
    """Where every sample of a window was the same number. Shape [entities]."""
    if signal not in telemetry.signals:
        return np.zeros(len(telemetry.age_s), np.bool_)
    row = telemetry.signals.index(signal)
    mean, highest = telemetry.mean[row, window], telemetry.maximum[row, window]
    enough = telemetry.samples[window] >= LEAST_SAMPLES
    return np.asarray(enough & (np.abs(highest - mean) <= SAME_RATIO * np.abs(highest)))


def _stuck(telemetry: SignalTable) -> Bools:
    """SM activity above 0 that repeats one number in a window of 5 min or more, or power that does for all windows.

    Judged where SM_ACTIVE is counted. Power alone may stand at the board's limit, so it counts with SM activity of 0.
    """
    fine = telemetry.quality == Quality.SM_ACTIVE
    sm = _column(telemetry, "sm_active_ratio")
    found = np.zeros(len(telemetry.age_s), np.bool_)
    if sm is None:
        return found
    for window, width_s in enumerate(telemetry.windows_s):
        if width_s >= 300.0:
            found |= fine & (sm[window] > 0.0) & _constant(telemetry, "sm_active_ratio", window)
    longest = int(np.argmax(telemetry.windows_s))
    if telemetry.windows_s[longest] >= 1800.0:
        found |= fine & (sm[longest] == 0.0) & _constant(telemetry, "power_w", longest)
    return found


def _impossible(telemetry: SignalTable) -> tuple[Bools, Bools]:
    """Values that no hardware gives, or that contradict each other; and ratios that are percentages."""
    wrong, scale = np.zeros(len(telemetry.age_s), np.bool_), np.zeros(len(telemetry.age_s), np.bool_)
    for row, signal in enumerate(telemetry.signals):
        if signal in HIGHEST:
            wrong |= _any(_not_possible(signal, telemetry.mean[row]) | _not_possible(signal, telemetry.maximum[row]))
            if signal.endswith("_ratio"):
                top = np.fmax.reduce(telemetry.maximum[row], axis=0, initial=0.0)
                scale |= (top > 1.0 + RATIO_SLACK) & (top <= 100.0 * (1.0 + RATIO_SLACK))
    sm = _column(telemetry, "sm_active_ratio")
    for signal in ("sm_occupancy_ratio", "tensor_active_ratio"):
        part = _column(telemetry, signal)
        if sm is not None and part is not None:
            above = _any(part > sm + CONTRADICTS_RATIO) & (telemetry.quality == Quality.SM_ACTIVE)
            wrong |= above
            scale |= above & _any(part / 10.0 > sm)  # without overflow where sm is absurd
    return wrong, scale


def _seen_twice(snapshot: ClusterSnapshot) -> Bools:
    """GPUs whose UUID another row has too. Shape [gpus]."""
    uuids = snapshot.gpus.uuid
    if len(set(uuids.tolist())) == len(uuids):
        return np.zeros(len(uuids), np.bool_)
    _, inverse, counts = np.unique(uuids.astype(str), return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse] > 1)


def _swapped(snapshot: ClusterSnapshot, parts: Parts) -> NDArray[np.integer]:
    """Entities whose telemetry may be that of another one.

    While a GPU that no workload holds is busy, a held GPU of the same model that is idle with nothing loaded may be
    the same GPU under another name: both are in doubt. A holder that idles with a program loaded is not.
    """
    telemetry = snapshot.telemetry
    free = unheld_parts(snapshot, parts)
    busy = free.entity[busy_mask(telemetry, free)]
    sm, memory = _column(telemetry, "sm_active_ratio"), _column(telemetry, "fb_used_mib")
    if not len(busy) or sm is None or memory is None:
        return np.empty(0, np.int32)
    model = snapshot.nodes.gpu_model[snapshot.gpus.node]
    models = np.unique(model[np.concatenate([np.arange(len(model)), snapshot.instances.gpu])[busy]])
    short = int(np.argmin(telemetry.windows_s))
    entity, gpu = parts.entity[parts.entity < len(telemetry.age_s)], parts.gpu[parts.entity < len(telemetry.age_s)]
    empty = (sm[short, entity] <= IDLE_RATIO) & (memory[short, entity] < EMPTY_MIB) & np.isin(model[gpu], models)
    return np.concatenate([busy, entity[empty]]) if empty.any() else np.empty(0, np.int32)


def _contradicting_owners(snapshot: ClusterSnapshot) -> NDArray[np.integer]:
    """Entities that several workloads hold as a whole, or that a placement locates on another node."""
    held = snapshot.placements
    plain = held.instance < 0
    booked = np.bincount(held.gpu[plain], held.milli[plain], minlength=len(snapshot.gpus.uuid))
    holders = np.bincount(held.instance[~plain], minlength=len(snapshot.instances.id))
    astray = held.gpu[held.node != snapshot.gpus.node[held.gpu]]
    return np.concatenate([np.flatnonzero(booked > GPU_MILLI), len(booked) + np.flatnonzero(holders > 1), astray])
