"""Changes of MIG geometry: followed until their node shows the result, or quarantined.

    draining ──> changing       nothing runs there any more; it is settled as it was when the drain is given up
    changing ──> settled        the node shows the new geometry, or nothing began
    beside ──┤      ^           another GPU of its node changes, and the engine stops the whole node
    other ───┤      │           a change that was not started here: of its node, or of a person
             v      │
            quarantined         it failed half-way, passed its deadline, or reported success without effect

A quarantined GPU takes no new work and is not cut again, until its node reports one legal geometry without a change
under way in several lists in a row, or a person releases it. Its running work goes on. Its capacity is the one reported
by its node at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import replace
from math import inf

import numpy as np

from autopilot.core.hardware import mig
from autopilot.core.intake.sight import listed_s
from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.effects import InFlight
from autopilot.core.model.memory.geometry import RecutRecord
from autopilot.core.model.memory.halt import Failure
from autopilot.core.model.policy import Effect, Policy
from autopilot.core.model.records import About, Evidence, Geometry, Note, NoteCode, Observation, OutcomeKind
from autopilot.core.model.snapshot import Bools, ClusterSnapshot, Recut
from autopilot.core.model.work import named

HOUR_S = 3600.0


def geometry_of(snapshot: ClusterSnapshot, gpu: int) -> Geometry | None:
    """The instances of a GPU (row) by first slice, as (profile, start); None outside of MIG mode."""
    if not snapshot.gpus.mig[gpu]:
        return None
    table = snapshot.instances
    rows = np.flatnonzero((table.gpu == gpu) & (table.profile >= 0)).tolist()
    names = snapshot.names.profiles
    cuts = [(names[int(table.profile[row])], int(table.start[row])) for row in rows]
    return tuple(sorted(cuts, key=lambda cut: (cut[1], cut[0])))


def shows_geometry(snapshot: ClusterSnapshot, uuid: str, after: Geometry | None, scope: str) -> bool:
    """True if the GPU has the requested geometry, and no change under way."""
    rows = np.flatnonzero(snapshot.gpus.uuid == uuid).tolist()
    if not rows or snapshot.gpus.recut[rows[0]] != Recut.SETTLED:
        return False
    return same_geometry(geometry_of(snapshot, rows[0]), after, scope)


def same_geometry(one: Geometry | None, other: Geometry | None, scope: str) -> bool:
    """True for equal geometries; at the scope `node`, for equal numbers of each profile.

    An engine that changes whole nodes chooses the places itself.
    """
    if scope != "node" or one is None or other is None:
        return one == other
    return Counter(profile for profile, _ in one) == Counter(profile for profile, _ in other)


def turned_mode_s(record: RecutRecord | None) -> float:
    """Time of the GPU's last turn of MIG mode, also by a change before the latest one; -inf: no such change."""
    if record is None:
        return -inf
    turned = record.state == "settled" and (record.before is None) != (record.after is None)
    return record.since_s if turned else record.turned_s


def geometry_in_use(snapshot: ClusterSnapshot, gpu: int) -> Geometry:
    """The instances of a GPU (row) with work, as (profile, start)."""
    table, held = snapshot.instances, snapshot.placements
    rows = sorted(set(held.instance[(held.gpu == gpu) & (held.instance >= 0)].tolist()))
    return tuple((snapshot.names.profiles[int(table.profile[row])], int(table.start[row])) for row in rows)


def set_aside(memory: ControllerMemory, snapshot: ClusterSnapshot) -> Bools:
    """GPUs that take no new work, regardless of the report of their node: a change was sent, or ended badly. [gpus]."""
    held = [uuid for uuid, record in memory.geometry.recuts.items() if record.state != "settled"]
    return named(snapshot.gpus.uuid, held)


def quarantined(memory: ControllerMemory, snapshot: ClusterSnapshot) -> Bools:
    """GPUs whose last change went wrong, so that they take no new work. Shape [gpus]."""
    held = [uuid for uuid, record in memory.geometry.recuts.items() if record.state == "quarantined"]
    return named(snapshot.gpus.uuid, held)


def follow_recuts(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory after a fresh and complete view; with a note on each GPU that is quarantined or used again.

    The effect of a change ends with it, and a change that went wrong counts as failed. Changes started elsewhere are
    followed too, while the action is not off.
    """
    observation, policy = tick.observation, tick.policy
    found = _with_others(memory, observation, policy)
    if not found:
        return memory
    rows = {str(uuid): row for row, uuid in enumerate(observation.snapshot.gpus.uuid.tolist())}
    effects = {
        entry.instruction.subject.uid: entry
        for entry in memory.effects.in_flight.values()
        if entry.instruction.operation.cuts_gpu
    }
    refused = _refused(tick.before, observation)
    records, over = {}, set()
    failed: list[Failure] = []
    changing: set[int] = set()  # nodes
    for uuid, record in sorted(found.items(), key=lambda item: item[1].state == "beside"):  # those wait for the others
        row = rows.get(uuid)
        if record.state == "draining":
            after = _follow_drain(record, observation, policy)
        elif record.state == "beside":
            alone = row is None or int(observation.snapshot.gpus.node[row]) not in changing
            after = _follow_other(record, row, observation) if alone else record
        elif record.state == "changing":
            after = _follow(record, row, effects.get(uuid), uuid in refused, observation)
        elif record.state == "other":
            after = _follow_other(record, row, observation)
        elif record.state == "quarantined" and row is not None:
            after = _look(record, row, observation, policy)
        else:
            after = record
        if after.state == "changing" and row is not None:
            changing.add(int(observation.snapshot.gpus.node[row]))
        if after.state != record.state:
            tick.notes += _notes(uuid, record, after)
            over.add(uuid)
            if record.state == "changing" and after.state == "quarantined":
                failed.append(Failure(observation.now_s, uuid, ""))
        if not _forgotten(after, observation.now_s, policy):
            records[uuid] = after
    in_flight = {
        key: entry for key, entry in memory.effects.in_flight.items() if entry.instruction.subject.uid not in over
    }
    return replace(
        memory,
        geometry=replace(memory.geometry, recuts=records),
        effects=replace(memory.effects, in_flight=in_flight),
        halt=replace(memory.halt, failed=(*memory.halt.failed, *failed)),
    )


def _with_others(memory: ControllerMemory, observation: Observation, policy: Policy) -> dict[str, RecutRecord]:
    """The records, and one for each change reported by a node and not started here."""
    found, snapshot = dict(memory.geometry.recuts), observation.snapshot
    if not policy.modes.on(Effect.RECUT):
        return found
    for row in np.flatnonzero(snapshot.gpus.recut != Recut.SETTLED).tolist():
        uuid = str(snapshot.gpus.uuid[row])
        if uuid not in found or found[uuid].state in {"settled", "draining"}:
            pool, present = int(snapshot.nodes.pool[snapshot.gpus.node[row]]), geometry_of(snapshot, row)
            known = found.get(uuid)
            deadline_s = observation.now_s + policy.regeometry.deadline_s
            found[uuid] = RecutRecord(
                snapshot.names.pools[pool] if 0 <= pool < len(snapshot.names.pools) else "",
                present,
                present,
                observation.now_s,
                deadline_s,
                state="other",
                starts_s=known.starts_s if known is not None else (),
                turned_s=turned_mode_s(known),
            )
    return found


def _refused(before: ControllerMemory, observation: Observation) -> set[str]:
    """GPUs with a change refused before it began."""
    refused = {
        outcome.instruction_id
        for outcome in observation.outcomes
        if outcome.kind in {OutcomeKind.CONFLICT, OutcomeKind.FAILED}
    }
    return {entry.instruction.subject.uid for key, entry in before.effects.in_flight.items() if key in refused}


def _follow(
    record: RecutRecord, row: int | None, effect: InFlight | None, refused: bool, observation: Observation
) -> RecutRecord:
    """A change under way, after a view."""
    snapshot, late = observation.snapshot, observation.now_s >= record.deadline_s
    if row is None:
        return _quarantined(record, observation.now_s, "its node no longer lists the GPU") if late else record
    state, present = int(snapshot.gpus.recut[row]), geometry_of(snapshot, row)
    if state == Recut.CHANGING and not late:
        return record if record.began else replace(record, began=True)
    if state == Recut.SETTLED and (
        same_geometry(present, record.after, record.scope) or (refused and not record.began)
    ):
        return replace(record, state="settled", since_s=observation.now_s, after=present)
    if late:
        return _quarantined(record, observation.now_s, "it did not end by its deadline")
    if state == Recut.FAILED:
        return _quarantined(record, observation.now_s, "it failed half-way")
    if record.began or effect is None:
        how = "it had no effect" if present == record.before else "the node shows another geometry"
        return _quarantined(record, observation.now_s, how)
    return record


def _follow_drain(record: RecutRecord, observation: Observation, policy: Policy) -> RecutRecord:
    """A drain, after a view: it is given up at its deadline, and when the action is switched off."""
    if observation.now_s < record.deadline_s and policy.modes.on(Effect.RECUT):
        return record
    return replace(record, state="settled", since_s=observation.now_s, after=record.before)


def _follow_other(record: RecutRecord, row: int | None, observation: Observation) -> RecutRecord:
    """A change not started here, after a view."""
    state = int(observation.snapshot.gpus.recut[row]) if row is not None else Recut.CHANGING
    if state == Recut.SETTLED and row is not None:
        present = geometry_of(observation.snapshot, row)
        return replace(record, state="settled", since_s=observation.now_s, after=present)
    if state == Recut.FAILED:
        return _quarantined(record, observation.now_s, "its node reports that it failed")
    if observation.now_s >= record.deadline_s:
        return _quarantined(record, observation.now_s, "it did not end by its deadline")
    return record


def _quarantined(record: RecutRecord, now_s: float, reason: str) -> RecutRecord:
    return replace(record, state="quarantined", since_s=now_s, reason=reason, views=0, seen=None)


def _look(record: RecutRecord, row: int, observation: Observation, policy: Policy) -> RecutRecord:
    """A quarantined GPU, after a view: it counts lists with the same legal geometry and no change under way."""
    snapshot, at_s = observation.snapshot, listed_s(observation)
    if at_s <= record.viewed_s:
        return record
    present = geometry_of(snapshot, row)
    if snapshot.gpus.recut[row] != Recut.SETTLED or not _legal(snapshot, row, present):
        return replace(record, views=0, viewed_s=at_s)
    views = record.views + 1 if record.views and present == record.seen else 1
    found = replace(record, seen=present, views=views, viewed_s=at_s, after=present)
    return replace(found, state="settled", since_s=observation.now_s) if views >= policy.regeometry.views else found


def _legal(snapshot: ClusterSnapshot, row: int, present: Geometry | None) -> bool:
    code = int(snapshot.nodes.gpu_model[snapshot.gpus.node[row]])
    model = mig.find_gpu_model(snapshot.names.gpu_models[code]) if code >= 0 else None
    return model is not None and mig.is_legal(model, present or ())


def _forgotten(record: RecutRecord, now_s: float, policy: Policy) -> bool:
    """Nothing depends on a settled change any more."""
    rules = policy.regeometry
    return record.state == "settled" and now_s >= record.since_s + max(rules.dwell_s, rules.return_s, HOUR_S)


def _notes(uuid: str, before: RecutRecord, after: RecutRecord) -> list[Note]:
    if after.state == "quarantined":
        return [Note(NoteCode.GPU_QUARANTINED, About.GPU, uuid, facts=(Evidence("why", after.reason),))]
    if before.state == "draining" and after.state == "settled":
        return [Note(NoteCode.DRAIN_GIVEN_UP, About.GPU, uuid, round(after.since_s - before.since_s, 3), "s")]
    if before.state == "quarantined":
        return [Note(NoteCode.GPU_USED_AGAIN, About.GPU, uuid, float(after.views), "lists")]
    return []


def changes_in_hour(memory: ControllerMemory, pool: str, now_s: float) -> int:
    """Changes of a pool begun within the last hour."""
    records = [record for record in memory.geometry.recuts.values() if record.pool == pool]
    return sum(start_s + HOUR_S > now_s for record in records for start_s in record.starts_s)


def enter_recuts(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory with the changes and drains that begin now, and without the drains that are over."""
    recuts, now_s = dict(memory.geometry.recuts), planned.now_s
    for proposal in planned.plan.proposals:
        if proposal.accepted:
            late_s = now_s + proposal.change.deadline_s(planned.policy)
            recuts = dict(proposal.change.recorded(recuts, proposal.subject.uid, now_s, late_s))
    recuts = beside(let_go(recuts, planned.drained, now_s), planned.observation.snapshot, now_s)
    return replace(memory, geometry=replace(memory.geometry, recuts=recuts))


def recut_timers_s(memory: ControllerMemory, planned: Planned) -> list[float]:
    """Ends of deadlines, dwells, times of no return and hours of the limit on changes.

    Also the next look at a quarantined GPU that seems to be repaired.
    """
    rules, now_s, timers = planned.policy.regeometry, planned.now_s, []
    for record in memory.geometry.recuts.values():
        timers += [record.deadline_s] if record.state in {"draining", "changing", "beside", "other"} else []
        timers += [now_s + planned.policy.views.look_again_s] if record.state == "quarantined" and record.views else []
        timers += [record.since_s + rules.dwell_s, record.since_s + rules.return_s, record.turned_s + rules.return_s]
        timers += [start_s + HOUR_S for start_s in record.starts_s]
    return timers


def begun(records: Mapping[str, RecutRecord], uuid: str, record: RecutRecord) -> dict[str, RecutRecord]:
    """Records with a change that begins now."""
    known = records.get(uuid)
    starts = tuple(start for start in known.starts_s if start + HOUR_S > record.since_s) if known is not None else ()
    started = replace(record, starts_s=(*starts, record.since_s), turned_s=turned_mode_s(known))
    return {**records, uuid: started}


def drained(records: Mapping[str, RecutRecord], begins: Mapping[str, RecutRecord]) -> dict[str, RecutRecord]:
    """Records with the GPUs of a drain that begins now."""
    found = dict(records)
    for uuid, record in begins.items():
        known = records.get(uuid)
        starts_s = known.starts_s if known is not None else ()
        found[uuid] = replace(record, starts_s=starts_s, turned_s=turned_mode_s(known))
    return found


def let_go(records: Mapping[str, RecutRecord], uuids: Container[str], now_s: float) -> dict[str, RecutRecord]:
    """Records with the drain of these GPUs ended."""
    return {
        uuid: replace(record, state="settled", since_s=now_s, after=record.before)
        if uuid in uuids and record.state == "draining"
        else record
        for uuid, record in records.items()
    }


def beside(records: Mapping[str, RecutRecord], snapshot: ClusterSnapshot, now_s: float) -> dict[str, RecutRecord]:
    """Records with the other GPUs of nodes stopped as a whole by a change that begins now."""
    begins = {
        uuid: record
        for uuid, record in records.items()
        if record.state == "changing" and record.scope == "node" and record.since_s == now_s
    }
    found = dict(records)
    if not begins:
        return found
    uuids, node = snapshot.gpus.uuid.tolist(), snapshot.gpus.node.tolist()
    deadline_s = {node[row]: begins[uuid].deadline_s for row, uuid in enumerate(uuids) if uuid in begins}
    for row, uuid in enumerate(uuids):
        known = records.get(uuid)
        if node[row] not in deadline_s or uuid in begins or (known is not None and known.state == "quarantined"):
            continue
        present = geometry_of(snapshot, row)
        starts_s = known.starts_s if known is not None else ()
        pool = next(iter(begins.values())).pool
        found[uuid] = RecutRecord(
            pool,
            present,
            present,
            now_s,
            deadline_s[node[row]],
            state="beside",
            scope="node",
            starts_s=starts_s,
            turned_s=turned_mode_s(known),
        )
    return found
