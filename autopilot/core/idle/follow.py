"""Evidence over hours: the start of idle times, the answers of owners, and the cost of returns.

All work is looked at once in each `idle.scan_s`, at multiples of it, so ticks in between change nothing. A look at a
busy workload, or at a change of its memory, ends its record. A look without knowledge (blackout, start-up, re-cut)
neither ends it nor counts for it. Outcomes of notices, suspensions and returns are followed at every tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import floor, inf

import numpy as np

from autopilot.core.idle.sizing import watched
from autopilot.core.intake.usage.activity import Activity, Holdings, entity_activity, idle_mask, work_activity
from autopilot.core.intake.usage.contradiction import contradicted, memory_changes
from autopilot.core.intake.usage.parts import parts_of
from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.idle import IdleMemory, IdleOwner, IdleRecord, IdleStep
from autopilot.core.model.policy import Effect, Policy
from autopilot.core.model.policy.bounds import DAY_S
from autopilot.core.model.records import Outcome, OutcomeKind
from autopilot.core.model.snapshot import F64, Bools, ClusterSnapshot, Gate, State
from autopilot.core.model.work import held_gpus, holding_mask, named

DAYS = 8
"""Days of the score that are kept."""
STEPS = (Effect.NOTIFY, Effect.MARK, Effect.PARK, Effect.CEILING)
"""Effects of the actions on idle work."""
HOUR_S = 3600.0
KEPT_OUT = (Gate.REJECTED, Gate.SUSPENDED)
"""Gates of work that was stopped and waits for a person."""
_STANDS = (IdleStep.SEEN, IdleStep.NOTIFIED, IdleStep.MARKED)


def remember_idle(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory with the idle work of this observation; empty while no action on it is on."""
    policy, known = tick.policy, memory.idle
    if not any(policy.modes.on(effect) for effect in STEPS):
        return memory if known == IdleMemory() else replace(memory, idle=IdleMemory())
    snapshot, now_s = tick.observation.snapshot, tick.now_s
    rows = {str(uid): row for row, uid in enumerate(snapshot.workloads.uid.tolist())} if known.records else {}
    known = _followed(known, snapshot, rows, now_s, policy)
    if known.shrunk:
        asked = {
            each.instruction.subject.uid
            for each in memory.effects.in_flight.values()
            if each.instruction.operation.bounds
        }
        known = _shrunk_followed(known, snapshot, asked, now_s, policy)
    grid_s = floor(now_s / policy.idle.scan_s) * policy.idle.scan_s
    if grid_s > known.look_s and snapshot.telemetry.windows_s:
        known = _looked(known, snapshot, now_s, grid_s, policy)
    return memory if known is memory.idle else replace(memory, idle=known)


def settle_notices(
    memory: ControllerMemory, outcomes: Iterable[Outcome], _now_s: float, _policy: Policy
) -> ControllerMemory:
    """Memory with the notices given. An outcome counts in a blind tick too."""
    done = {each.instruction_id: each for each in outcomes if each.kind == OutcomeKind.DONE}
    if not done or not memory.idle.records:
        return memory
    records = dict(memory.idle.records)
    for key, entry in memory.effects.in_flight.items():
        uid = entry.instruction.subject.uid
        record = records.get(uid) if entry.instruction.operation.notifies else None
        if key in done and record is not None and record.step == IdleStep.SEEN:
            records[uid] = replace(record, step=IdleStep.NOTIFIED, step_s=done[key].at_s)
    return replace(memory, idle=replace(memory.idle, records=records))


def next_look_s(memory: ControllerMemory, snapshot: ClusterSnapshot, policy: Policy) -> float:
    """Time of the next look at all work; inf without telemetry or work."""
    if not snapshot.telemetry.windows_s or not len(snapshot.placements.gpu):
        return inf
    return memory.idle.look_s + policy.idle.scan_s


def owner_of(snapshot: ClusterSnapshot, row: int) -> str:
    """The owner of the work: the tenant, and the user if one is stated."""
    work = snapshot.workloads
    return f"{snapshot.names.tenants[int(work.tenant[row])]}/{work.user[row]}"


def patience(owner: IdleOwner | None, policy: Policy) -> float:
    """Factor on the window and the graces of an owner: returns raise it, and so does their cost."""
    if owner is None:
        return 1.0
    cost = owner.waited_gpu_s / max(owner.freed_gpu_s, 1.0)
    return float(min(1.0 + owner.early_returns + cost, policy.idle.most_patience))


def return_cost_gpu_s(owner: IdleOwner | None, freed_gpu_s: float, policy: Policy) -> float:
    """Expected cost of an owner's return while others use the freed GPUs.

    Measured as his patience is: GPU-seconds of waiting for each one freed, and his early returns. 0 without a record.
    """
    return (patience(owner, policy) - 1.0) * freed_gpu_s


def enter_steps(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory with the accepted marks of a plan, and its scaled-down services with their former replicas."""
    records, shrunk = dict(memory.idle.records), dict(memory.idle.shrunk)
    for each in planned.plan.proposals:
        if not each.accepted:
            continue
        uid, service = each.subject.uid, each.change.shrunk(each.subject)
        if each.change.marks and uid in records:
            records[uid] = replace(records[uid], step=IdleStep.MARKED, step_s=planned.now_s)
        if service is not None:
            shrunk.setdefault(uid, service)
    if records == memory.idle.records and len(shrunk) == len(memory.idle.shrunk):
        return memory
    return replace(memory, idle=replace(memory.idle, records=records, shrunk=shrunk))


# --- at every tick ------------------------------------------------------------------------------------


def _followed(
    known: IdleMemory, snapshot: ClusterSnapshot, rows: Mapping[str, int], now_s: float, policy: Policy
) -> IdleMemory:
    """Suspensions, returns and restarts, as the objects show them."""
    work = snapshot.workloads
    records, owners = dict(known.records), dict(known.owners)
    for uid, record in known.records.items():
        row = rows.get(uid)
        if row is None:
            if record.step not in _STANDS or now_s >= record.gone_s + policy.idle.rename_s:
                del records[uid]
            elif record.gone_s == inf:
                records[uid] = replace(record, gone_s=now_s)
            continue
        owner, pending = owners.get(record.owner, IdleOwner()), int(work.state[row]) == State.PENDING
        if record.step in _STANDS and pending:
            if record.step != IdleStep.SEEN and work.gate[row] in KEPT_OUT:
                records[uid] = replace(record, step=IdleStep.SUSPENDED, step_s=now_s)
                owners[record.owner] = replace(owner, suspensions=owner.suspensions + 1, last_s=now_s)
            else:
                del records[uid]  # it was stopped for another reason
        elif record.step == IdleStep.SUSPENDED and not (pending and work.gate[row] in KEPT_OUT):
            away_s = now_s - record.step_s
            records[uid] = replace(record, step=IdleStep.RETURNED, step_s=now_s)
            owners[record.owner] = _returned(owner, away_s, record.gpus, now_s, policy)
        elif record.step == IdleStep.RETURNED and work.state[row] not in {State.PENDING, State.STARTING}:
            waited_s = max(now_s - record.step_s, 0.0)
            owners[record.owner] = replace(
                owner, waited_gpu_s=owner.waited_gpu_s + waited_s * record.gpus, last_s=now_s
            )
            del records[uid]
    owners = {name: each for name, each in owners.items() if now_s < each.last_s + policy.idle.forget_s}
    if records == known.records and owners == known.owners:
        return known
    return replace(known, records=records, owners=owners)


def _shrunk_followed(
    known: IdleMemory, snapshot: ClusterSnapshot, asked: set[str], now_s: float, policy: Policy
) -> IdleMemory:
    """Services scaled down: the ceiling is seen, it ends, and the replicas serve again."""
    services, shrunk, owners = snapshot.services, dict(known.shrunk), dict(known.owners)
    records: Mapping[str, IdleRecord] = known.records
    rows = {str(uid): row for row, uid in enumerate(services.uid.tolist())}
    for uid, record in known.shrunk.items():
        row, owner = rows.get(uid), owners.get(record.owner, IdleOwner())
        if row is None:
            if uid not in asked:
                del shrunk[uid]
        elif services.ceiling[row] >= 0:
            if record.since_s == inf:
                shrunk[uid] = replace(record, since_s=now_s)
                owners[record.owner] = replace(owner, suspensions=owner.suspensions + 1, last_s=now_s)
        elif record.since_s == inf:
            if uid not in asked:
                del shrunk[uid]  # it came to nothing
        elif record.returned_s == inf:
            away_s = now_s - record.since_s
            shrunk[uid] = replace(record, returned_s=now_s)
            records = _without_service(records, snapshot, row, record.owner)
            owners[record.owner] = _returned(owner, away_s, record.gpus, now_s, policy)
        elif services.ready_replicas[row] >= min(record.had, int(services.replicas[row])):
            waited_s = max(now_s - record.returned_s, 0.0)
            owners[record.owner] = replace(
                owner, waited_gpu_s=owner.waited_gpu_s + waited_s * record.gpus, last_s=now_s
            )
            del shrunk[uid]
    if shrunk == known.shrunk and owners == known.owners:
        return known
    return replace(known, records=records, shrunk=shrunk, owners=owners)


def _returned(owner: IdleOwner, away_s: float, gpus: float, now_s: float, policy: Policy) -> IdleOwner:
    """An owner, back after `away_s`."""
    return replace(
        owner,
        returns=owner.returns + 1,
        early_returns=owner.early_returns + (away_s < policy.idle.early_s),
        freed_gpu_s=owner.freed_gpu_s + away_s * gpus,
        last_s=now_s,
    )


def _without_service(
    records: Mapping[str, IdleRecord], snapshot: ClusterSnapshot, service: int, owner: str
) -> dict[str, IdleRecord]:
    """Records without those of a service of a returned owner, so that its new replicas do not continue the old ones."""
    work = snapshot.workloads
    replicas = set(work.uid[work.service == service].tolist())
    return {
        uid: each
        for uid, each in records.items()
        if uid not in replicas and not (each.gone_s < inf and each.owner == owner)
    }


# --- at a look ----------------------------------------------------------------------------------------


def _looked(known: IdleMemory, snapshot: ClusterSnapshot, now_s: float, grid_s: float, policy: Policy) -> IdleMemory:
    """Records and score after a look at all work."""
    work, window_s = snapshot.workloads, max(snapshot.telemetry.windows_s)
    entity, doubted_s = entity_activity(snapshot, policy), _doubted(known, snapshot, now_s, window_s, policy)
    dark = named(snapshot.nodes.id, doubted_s)[snapshot.gpus.node]
    entity[np.concatenate([dark, dark[snapshot.instances.gpu]]) & (entity != Activity.BUSY)] = Activity.UNKNOWN
    found = work_activity(snapshot, entity, now_s)
    records = dict(known.records)
    concerned = idle_mask(found.activity) | (named(work.uid, records) if records else False)
    if any(record.gone_s < inf for record in records.values()):
        concerned = concerned | holding_mask(work)
    held, changes = _entities(snapshot, np.flatnonzero(concerned)), _changes(snapshot)
    for row in np.flatnonzero(concerned & holding_mask(work)).tolist():
        uid, activity = str(work.uid[row]), int(found.activity[row])
        record = records.get(uid) or _inherited(records, owner_of(snapshot, row), held[row])
        if activity == Activity.BUSY or changes[row]:
            records.pop(uid, None)
        elif activity == Activity.UNKNOWN and record is not None:
            records[uid] = replace(record, entities=held[row], gone_s=inf)
        elif activity != Activity.UNKNOWN:
            fresh = IdleRecord(owner_of(snapshot, row), held[row], 0.0, now_s - window_s, now_s, estimated=False)
            records[uid] = replace(
                record or fresh,
                entities=held[row],
                gpus=float(found.held_gpus[row]),
                seen_s=now_s,
                estimated=activity == Activity.ESTIMATED,
                gone_s=inf,
            )
    score = _score(known, snapshot, found, now_s)
    first = floor(grid_s / HOUR_S) > floor(known.look_s / HOUR_S) if known.look_s > -inf else True
    return replace(
        known,
        records=records,
        held_gpu_s=score,
        sizes=watched(known.sizes, snapshot, now_s),
        doubted_s=doubted_s,
        look_s=grid_s,
        hour_s=now_s if first else known.hour_s,
    )


def _changes(snapshot: ClusterSnapshot) -> Bools:
    """Work with a change of used memory on a GPU or instance. Shape [workloads]."""
    parts, found = parts_of(snapshot), np.zeros(len(snapshot.workloads.id), np.bool_)
    found[parts.workload[memory_changes(snapshot)[parts.entity]]] = True
    return found


def _doubted(
    known: IdleMemory, snapshot: ClusterSnapshot, now_s: float, window_s: float, policy: Policy
) -> dict[str, float]:
    """Nodes with contradicted counters: now, or so lately that the longest window may still contain their zeros."""
    gpus = snapshot.gpus
    ends_s = policy.idle.scan_s + window_s
    found = {node: at_s for node, at_s in known.doubted_s.items() if now_s < at_s + ends_s}
    rows = np.unique(gpus.node[contradicted(snapshot)[: len(gpus.uuid)]])
    return found | dict.fromkeys(snapshot.nodes.id[rows].tolist(), now_s)


def _inherited(records: dict[str, IdleRecord], owner: str, entities: tuple[str, ...]) -> IdleRecord | None:
    """The record of a deleted object of the same owner on one of the same GPUs; it moves to the new object."""
    for uid, record in records.items():
        if record.gone_s < inf and record.owner == owner and not set(record.entities).isdisjoint(entities):
            del records[uid]
            return record
    return None


def _entities(snapshot: ClusterSnapshot, rows: np.ndarray) -> dict[int, tuple[str, ...]]:
    """Names of the GPUs and instances of each of these workloads, by row."""
    held = snapshot.placements
    found: dict[int, list[str]] = {row: [] for row in rows.tolist()}
    for entry in np.flatnonzero(np.isin(held.workload, rows)).tolist():
        instance = int(held.instance[entry])
        name = snapshot.instances.id[instance] if instance >= 0 else snapshot.gpus.uuid[int(held.gpu[entry])]
        found[int(held.workload[entry])].append(str(name))
    return {row: tuple(sorted(names)) for row, names in found.items()}


def _score(
    known: IdleMemory, snapshot: ClusterSnapshot, found: Holdings, now_s: float
) -> dict[str, tuple[tuple[int, float, float], ...]]:
    """GPU-seconds held idle by tenant and day, with the time since the last look added to its day."""
    past_s = min(now_s - known.look_s, DAY_S) if known.look_s > -inf else 0.0
    today, names = floor(now_s / DAY_S), snapshot.names.tenants
    shares = _shares(snapshot, found)
    owned, borrowed = shares.owned_gpus * past_s, shares.borrowed_gpus * past_s
    score = {
        name: tuple(each for each in days if each[0] > today - DAYS)
        for name, days in known.held_gpu_s.items()
        if days[-1][0] > today - DAYS
    }
    for code in np.flatnonzero(owned + borrowed > 0).tolist():
        days = score.get(names[code], ())
        last = days[-1] if days and days[-1][0] == today else (today, 0.0, 0.0)
        kept = days[:-1] if days and days[-1][0] == today else days
        score[names[code]] = (*kept, (today, last[1] + float(owned[code]), last[2] + float(borrowed[code])))
    return score


@dataclass(frozen=True, slots=True)
class IdleScore:
    """GPUs of running work by tenant: those open to judgement, and the idle ones within and above the guarantee.

    Arrays are [tenants]. Work idle by weak evidence only is judged, and does not count as idle.
    """

    judged_gpus: F64
    owned_gpus: F64
    borrowed_gpus: F64


def idle_score(snapshot: ClusterSnapshot, policy: Policy, now_s: float) -> IdleScore:
    """The score at one moment, over the longest window of the telemetry."""
    return _shares(snapshot, work_activity(snapshot, entity_activity(snapshot, policy), now_s))


def _shares(snapshot: ClusterSnapshot, found: Holdings) -> IdleScore:
    count, has_owner = len(snapshot.names.tenants), snapshot.workloads.tenant >= 0
    idle = np.where(found.activity == Activity.IDLE, found.idle_gpus, 0.0)
    above = idle * borrowed_share(snapshot)[snapshot.workloads.queue]
    judged = np.where(found.activity != Activity.UNKNOWN, found.held_gpus, 0.0)

    def by_tenant(gpus: F64) -> F64:
        return np.asarray(np.bincount(snapshot.workloads.tenant[has_owner], gpus[has_owner], minlength=count), float)

    return IdleScore(by_tenant(judged), by_tenant(idle - above), by_tenant(above))


def borrowed_share(snapshot: ClusterSnapshot) -> F64:
    """The share of each queue's GPUs above its guarantee. Shape [queues]."""
    queues = snapshot.queues
    held = held_gpus(snapshot, snapshot.workloads.queue, len(queues.id))
    owned = queues.guarantee.sum(axis=1) if queues.guarantee.size else np.zeros(len(queues.id))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(held > 0, (held - owned) / held, 0.0)
    return np.asarray(np.clip(share, 0.0, 1.0))
