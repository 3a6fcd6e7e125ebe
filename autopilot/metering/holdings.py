"""GPUs held by each workload between two ticks.

A snapshot shows the cluster before the effects of its tick, so the time between two ticks is read from both ends. Work
in the later one held its GPUs from its start on; work only in the earlier one, or sent to its GPUs by it, held them
until its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autopilot.core.intake.signals import sees_the_cluster
from autopilot.core.intake.usage.parts import GPU_UNITS, Parts, instance_units, parts_of
from autopilot.core.model.records import Instruction, Observation, Slot
from autopilot.core.model.snapshot import GPU_MILLI, I32, I64, ClusterSnapshot, State
from autopilot.metering.amounts import to_ticks

ENDED = (State.SUCCEEDED, State.FAILED)


@dataclass(frozen=True, slots=True)
class Seen:
    """The view of one tick, kept until the next one."""

    at: int  # 1/1,024 s
    snapshot: ClusterSnapshot
    parts: Parts
    uids: tuple[str, ...]  # of every workload row
    started: tuple[tuple[str, tuple[Slot, ...]], ...]  # by id of the workload: the ordered slots of its start
    stranded_gpus: float  # NaN: not measured
    trusted: bool  # the whole cluster was seen
    inventory: ClusterSnapshot  # the last one in which it was; the capacity of a gap is counted from it


@dataclass(frozen=True, slots=True)
class Held:
    """Parts of one snapshot, each with the time of its holding."""

    snapshot: ClusterSnapshot
    uids: tuple[str, ...]
    parts: Parts
    begin: I64
    end: I64


def seen(observation: Observation, sent: Iterable[Instruction] = (), before: Seen | None = None) -> Seen:
    """The part of a tick for metering. A tick without a trusted view measured no signals.

    `sent`: the instructions of the tick. Not its proposals: a start delayed by its victims is one of an earlier tick,
    and a held one is none.
    """
    snapshot = observation.snapshot
    trusted = sees_the_cluster(observation)
    started = tuple((each.subject.name, each.operation.slots) for each in sent if each.operation.needs_room)
    return Seen(
        to_ticks(observation.now_s),
        snapshot,
        parts_of(snapshot),
        uids_of(snapshot),
        started,
        float(observation.signals.stranded_gpus),
        trusted,
        snapshot if trusted or before is None else before.inventory,
    )


def uids_of(snapshot: ClusterSnapshot) -> tuple[str, ...]:
    """The identity of each workload row: its uid, or its id if the source states no uid."""
    work = snapshot.workloads
    return tuple(uid or name for uid, name in zip(work.uid.tolist(), work.id.tolist(), strict=True))


def held_between(before: Seen, now: Seen) -> list[Held]:
    """All parts held between two ticks."""
    return [_present(before, now), *_gone(before, now)]


def _present(before: Seen, now: Seen) -> Held:
    """Parts of the later snapshot, each from the start of its workload, or from the earlier tick."""
    start = _ticks(now.snapshot.workloads.start_s, before.at)[now.parts.workload]
    begin = np.clip(start, before.at, now.at)
    return Held(now.snapshot, now.uids, now.parts, begin, np.full(len(begin), now.at, np.int64))


def _gone(before: Seen, now: Seen) -> list[Held]:
    """Work on GPUs after the earlier tick that holds none now, or runs in a later incarnation.

    It held them until its end, or until the later tick if the time of its end is not known.
    """
    holds = {now.uids[row] for row in np.unique(now.parts.workload).tolist()}
    rows = {uid: row for row, uid in enumerate(now.uids)}
    found: list[Held] = []
    started = dict(before.started)
    left = [
        row
        for row in np.unique(before.parts.workload).tolist()
        if before.uids[row] not in holds and before.snapshot.workloads.id[row] not in started
    ]
    if left:
        mine = np.isin(before.parts.workload, left)
        found.append(_until_end(before, now, _take(before.parts, mine), rows))
    return found + [
        _until_end(before, now, _parts_of_slots(before.snapshot, row, started), rows)
        for row in _started_and_gone(before, now, holds, rows, started)
    ]


def _started_and_gone(
    before: Seen, now: Seen, holds: set[str], rows: dict[str, int], started: dict[str, tuple[Slot, ...]]
) -> list[int]:
    """Rows of work started by the earlier decision and gone from its GPUs again.

    The start is certain if the later snapshot shows its time or a later incarnation; else it may have failed.
    """
    found = []
    names = before.snapshot.workloads.id.tolist() if started else []
    for row in (row for row, name in enumerate(names) if name in started):
        place = rows.get(before.uids[row])
        if before.uids[row] in holds or place is None:
            continue
        work, was = now.snapshot.workloads, before.snapshot.workloads
        ran = to_ticks(work.start_s[place]) >= before.at if np.isfinite(work.start_s[place]) else False
        if ran or work.incarnation[place] > was.incarnation[row]:
            found.append(row)
    return found


def _until_end(before: Seen, now: Seen, parts: Parts, rows: dict[str, int]) -> Held:
    """Parts of the earlier snapshot, each until its workload ended."""
    work = now.snapshot.workloads
    end = np.full(len(parts.workload), now.at, np.int64)
    begin = np.full(len(parts.workload), before.at, np.int64)
    for row in np.unique(parts.workload).tolist():
        place = rows.get(before.uids[row])
        if place is not None and work.state[place] in ENDED and np.isfinite(work.ended_s[place]):
            mine = parts.workload == row
            end[mine] = min(max(to_ticks(work.ended_s[place]), before.at), now.at)
    return Held(before.snapshot, before.uids, parts, begin, end)


def _parts_of_slots(snapshot: ClusterSnapshot, row: int, started: dict[str, tuple[Slot, ...]]) -> Parts:
    """The parts of a start absent from all snapshots."""
    slots = started[snapshot.workloads.id[row]]
    gpus = {uuid: at for at, uuid in enumerate(snapshot.gpus.uuid.tolist())}
    instances = {name: at for at, name in enumerate(snapshot.instances.id.tolist()) if name}
    known = [slot for slot in slots if slot.gpu in gpus and (not slot.instance or slot.instance in instances)]
    cut, _ = instance_units(snapshot) if any(slot.instance for slot in known) else (np.empty(0, np.int64), None)
    gpu = np.array([gpus[slot.gpu] for slot in known], np.int32)
    inside = np.array([bool(slot.instance) for slot in known], np.bool_)
    at = np.array([instances.get(slot.instance, 0) for slot in known], np.int32)
    whole = np.array([slot.milli * (GPU_UNITS // GPU_MILLI) for slot in known], np.int64)
    units = np.where(inside, cut[at] if len(cut) else 0, whole)
    entity = np.where(inside, len(gpus) + at, gpu).astype(np.int32)
    workload = np.full(len(known), row, np.int32)
    shared, none = ~inside & (units < GPU_UNITS), np.zeros(len(known), np.bool_)
    return Parts(workload, gpu, entity, units.astype(np.int64), shared, inside, none)


def _take(parts: Parts, mask: Any) -> Parts:
    return Parts(*(getattr(parts, name)[mask] for name in Parts.__slots__))


def _ticks(times_s: np.ndarray, unknown: int) -> I64:
    """Times in 1/1,024 s; NaN becomes `unknown`."""
    return np.where(np.isfinite(times_s), np.rint(np.nan_to_num(times_s) * 1024), unknown).astype(np.int64)


def rows_in(snapshot: ClusterSnapshot, other: ClusterSnapshot) -> I32 | None:
    """The telemetry row in `other` of each GPU and instance of `snapshot`, -1 if it is not there.

    None if both have the same rows.
    """
    names, others = (np.concatenate([each.gpus.uuid, each.instances.id]) for each in (snapshot, other))
    same_gpus = snapshot.gpus.uuid is other.gpus.uuid or np.array_equal(snapshot.gpus.uuid, other.gpus.uuid)
    if same_gpus and np.array_equal(snapshot.instances.id, other.instances.id):
        return None
    place = {name: row for row, name in enumerate(others.tolist()) if name}
    return np.array([place.get(name, -1) for name in names.tolist()], np.int32)


def moved(parts: Parts, rows: I32 | None) -> Parts:
    """Parts with the entities and GPUs of another snapshot's rows; missing ones have an entity beyond its end."""
    if rows is None:
        return parts
    beyond = np.int32(np.iinfo(np.int32).max)
    entity, gpu = rows[parts.entity], rows[parts.gpu]
    return replace(parts, entity=np.where(entity < 0, beyond, entity), gpu=np.where(gpu < 0, beyond, gpu))
