"""Samples about the cluster: use, fragmentation, idle work, waiting work, services. Pure, and computed once a tick."""

from __future__ import annotations

from itertools import compress

import numpy as np

from autopilot.core.geometry.follow import quarantined, set_aside
from autopilot.core.hardware.dcgm import Quality
from autopilot.core.intake.sight import fresh_samples
from autopilot.core.intake.signals import ACTIVITY_WINDOW_S
from autopilot.core.intake.usage.activity import Activity, entity_activity, work_activity
from autopilot.core.intake.usage.rollup import ROOM, ratios, rollups
from autopilot.core.model.codes import NOT_STARTED, Code
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.objectives import missed_ratio, promised_s
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Decision, Observation
from autopilot.core.model.snapshot import F64, GPU_MILLI, Bools, ClusterSnapshot, QueueTable, Recut, State
from autopilot.core.model.work import entry_milli, gpu_parts
from autopilot.core.placement.fragmentation.measure import measure_fragmentation
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.recovery.half_started import half_started
from autopilot.metrics.samples import Samples
from autopilot.metrics.sharing_samples import put_neighbours, put_sharing, put_slow
from autopilot.metrics.table import MOST_IDLE_BORROWERS, MOST_QUEUES, TENANT_USE, USE

NOT_OURS = frozenset({Code.TOO_WIDE, Code.EXCLUDED, Code.CHECK, Code.NO_PODS, Code.SUSPENDED, Code.LIMIT})
"""Refusals after which work waits for its owner, an operator or an external check."""

PROPOSED = "proposed"


def put_cluster(
    out: Samples, observation: Observation, decision: Decision, memory: ControllerMemory, policy: Policy
) -> None:
    """All samples about the cluster of one tick that has a view of it."""
    snapshot = observation.snapshot
    put_use(out, observation)
    put_shape(out, observation, memory)
    put_owners(out, observation, policy)
    put_pending(out, observation, decision, policy)
    put_services(out, snapshot, observation.now_s)
    put_sharing(out, observation, memory)
    put_neighbours(out, observation, memory)
    put_slow(out, observation)
    put_telemetry(out, snapshot, policy)


def put_use(out: Samples, observation: Observation) -> None:
    """Capacity with its parts, both utilizations and their gap: fleet, pools, and tenants with held or waiting work."""
    present = _tenants(observation.snapshot).tolist()
    for level, found in rollups(observation.snapshot, ("fleet", "pool", "tenant")).items():
        use, names = ratios(found, ACTIVITY_WINDOW_S), found.names[:-1]
        for what in TENANT_USE if level == "tenant" else [name for name, _, _ in USE]:
            values = (found.gpus(what) if what in ROOM else getattr(use, what))[:-1].tolist()
            if level == "fleet":
                out.put(f"fleet_{what}", values[0])
            elif level == "pool":
                out.column(f"pool_{what}", values, names)
            else:
                out.column(f"tenant_{what}", compress(values, present), compress(names, present))


def _tenants(snapshot: ClusterSnapshot) -> Bools:
    """Tenants that hold GPUs or wait. Shape [tenants]."""
    work, present = snapshot.workloads, np.zeros(len(snapshot.names.tenants), np.bool_)
    live = (work.state < State.SUCCEEDED) & (work.tenant >= 0)
    present[work.tenant[live]] = True
    return present


def put_shape(out: Samples, observation: Observation, memory: ControllerMemory) -> None:
    """Free GPUs by node, changing and quarantined geometries, fragmentation by cause.

    GPUs that take no new work because of a change of their geometry are neither free nor lost.
    """
    snapshot = observation.snapshot
    nodes, gpus = snapshot.nodes, snapshot.gpus
    whatif = WhatIf(snapshot)
    whatif.set_aside(np.flatnonzero(set_aside(memory, snapshot)).astype(np.int32))
    names, ok = nodes.id.tolist(), whatif.node_ok
    pools = [snapshot.names.pools[pool] for pool in nodes.pool[ok].tolist()]
    out.column("node_free_gpus", whatif.node_free[ok].tolist(), compress(names, ok.tolist()), pools)
    states = {
        "changing": gpus.recut == Recut.CHANGING,
        "failed": gpus.recut == Recut.FAILED,
        "quarantined": quarantined(memory, snapshot) & (gpus.recut == Recut.SETTLED),
    }
    for state, found_in in states.items():
        at, count = np.unique(gpus.node[found_in], return_counts=True)
        for node, number in zip(at.tolist(), count.tolist(), strict=True):
            out.put("node_recut_gpus", number, names[node], state)
    found = measure_fragmentation(snapshot, whatif, observation.forecasts.mix)
    for model, gpus_wide in found.largest_gang_gpus:
        out.put("largest_gang_gpus", gpus_wide, model)
    for pool in found.pools:
        out.put("fragmentation_ratio", pool.index_ratio, pool.pool)
        for demand, loss in (("pending", pool.pending), ("expected", pool.expected)):
            for cause, stranded in loss.by_cause if loss is not None else ():
                out.put("stranded_gpus", stranded, pool.pool, cause, demand)


def put_owners(out: Samples, observation: Observation, policy: Policy) -> None:
    """Idle work by tenant, and what queues hold above their guarantee."""
    snapshot = observation.snapshot
    work, queues = snapshot.workloads, snapshot.queues
    found = work_activity(snapshot, entity_activity(snapshot, policy), observation.now_s)
    judged = found.activity != Activity.UNKNOWN
    tenants, known = len(snapshot.names.tenants), judged & (work.tenant >= 0)
    held = np.bincount(work.tenant[work.tenant >= 0], found.held_gpus[work.tenant >= 0], tenants)
    idle = np.bincount(work.tenant[known], found.idle_gpus[known], tenants)
    for row in np.unique(work.tenant[known & (found.held_gpus > 0)]).tolist():
        out.put("tenant_hoarding_ratio", idle[row] / held[row], snapshot.names.tenants[row])
    use, idle_use = (np.zeros(len(queues.id)) for _ in range(2))
    np.add.at(use, work.queue, found.held_gpus)
    np.add.at(idle_use, work.queue[judged], found.idle_gpus[judged])
    for row in range(len(queues.id) - 1, 0, -1):  # children come after their parents
        use[queues.parent[row]] += use[row]
        idle_use[queues.parent[row]] += idle_use[row]
    names, guarantee = queues.id.tolist(), queues.guarantee.sum(axis=1)
    borrowed = np.maximum(use - guarantee, 0.0)
    borrowed[:1] = 0.0  # the root
    out.column("queue_guaranteed_gpus", guarantee[1:].tolist(), names[1:])
    out.column("queue_borrowed_gpus", borrowed[1:].tolist(), names[1:])
    idle_borrowed = np.minimum(borrowed, idle_use)
    rows = np.intersect1d(np.flatnonzero(borrowed), work.queue[judged]).tolist()
    for row in sorted(rows, key=lambda row: (-idle_borrowed[row], names[row]))[:MOST_IDLE_BORROWERS]:
        out.put("queue_borrowed_idle_gpus", idle_borrowed[row], names[row])
    limits = _limits(queues)
    limited = np.flatnonzero(np.isfinite(limits[1:])) + 1
    for row in limited[np.argsort(-use[limited], kind="stable")][: MOST_QUEUES + 1].tolist():
        out.put("queue_limit_gpus", limits[row], names[row])


def _limits(queues: QueueTable) -> F64:
    """GPUs that each queue may hold at most: the least of its limit and guarantee + borrowing limit; inf: no limit."""
    own = np.where(queues.limit >= 0, queues.limit, np.inf)
    return np.minimum(
        own, np.where(queues.borrow_limit >= 0, queues.guarantee.sum(axis=1) + queues.borrow_limit, np.inf)
    )


def put_pending(out: Samples, observation: Observation, decision: Decision, policy: Policy) -> None:
    """Pending work by reason, and by tenant with the age of the oldest that the autopilot may start."""
    snapshot, refusals = observation.snapshot, decision.plan.refusals
    work = snapshot.workloads
    pending = work.state == State.PENDING
    gpus = np.zeros(len(work.id))
    gpus[pending] = work.gpus[pending] * gpu_parts(work, pending)
    reason = np.full(len(work.id), -1)
    if decision.halted:
        reasons = ["halted"]
        reason[pending] = 0
    else:
        reasons = [*(str(code) for code in refusals.codes), PROPOSED]
        reason[pending] = len(reasons) - 1
        reason[refusals.workload] = refusals.code
    for row, name in enumerate(reasons):
        chosen = pending & (reason == row)
        if chosen.any() or name == PROPOSED:
            out.put("pending_workloads", float(chosen.sum()), name)
            out.put("pending_gpus", float(gpus[chosen].sum()), name)
    theirs = np.array([name in NOT_OURS for name in reasons], np.bool_)
    ours = pending & ~theirs[reason]
    parts = entry_milli(snapshot.placements) / GPU_MILLI
    held = np.bincount(snapshot.placements.workload, parts, minlength=len(work.id))
    lost = sum(gap.signal == NOT_STARTED for gap in observation.gaps)
    out.put("elsewhere_not_started_workloads", float(lost))
    out.put("half_started_gpus", float(held[half_started(snapshot, policy, observation.now_s)].sum()))
    tenants, present = snapshot.names.tenants, _tenants(snapshot).tolist()
    known, oldest_s = work.tenant >= 0, np.full(len(tenants), np.inf)
    by_tenant = np.bincount(work.tenant[known], gpus[known], len(tenants))
    out.column("tenant_pending_gpus", compress(by_tenant.tolist(), present), compress(tenants, present))
    np.minimum.at(oldest_s, work.tenant[known & ours], work.submit_s[known & ours])
    out.column("tenant_oldest_pending_seconds", (observation.now_s - oldest_s).tolist(), tenants)


def put_services(out: Samples, snapshot: ClusterSnapshot, now_s: float) -> None:
    """Latency, load and replicas of each service."""
    table = snapshot.services
    names = [str(name) for name in table.id.tolist()]
    with np.errstate(invalid="ignore"):
        late_rps = np.where(table.recent_rps == 0, 0.0, missed_ratio(table)[0] * table.recent_rps)
    promises_s = promised_s(table)
    columns = {
        "service_p99_seconds": table.p99_s,
        "service_objective_seconds": table.objective_s,
        "service_ttft_p99_seconds": table.ttft_p99_s,
        "service_ttft_objective_seconds": promises_s[1],
        "service_itl_p99_seconds": table.itl_p99_s,
        "service_itl_objective_seconds": promises_s[2],
        "service_requests_per_second": table.recent_rps,
        "service_late_requests_per_second": late_rps,
        "service_queued_requests": table.queue_depth,
    }
    for name, column in columns.items():
        out.column(name, column.tolist(), names)
    needed = np.where(table.needed_replicas >= 0, table.needed_replicas, np.nan)
    floor = np.where(table.floor_until_s > now_s, table.floor, 0)
    ceiling = np.where((table.ceiling_until_s > now_s) & (table.ceiling >= 0), table.ceiling, np.nan)
    states = {"present": table.replicas, "ready": table.ready_replicas, "needed": needed}
    states |= {"floor": floor, "ceiling": ceiling}
    for state, column in states.items():
        out.column("service_replicas", column.tolist(), names, [state] * len(names))


def put_telemetry(out: Samples, snapshot: ClusterSnapshot, policy: Policy) -> None:
    """GPUs by the counter behind their fresh SM activity; a cut GPU counts by the best of its instances."""
    table, gpus = snapshot.telemetry, len(snapshot.gpus.uuid)
    best = np.zeros(gpus, np.int8)
    if len(table.quality) == gpus + len(snapshot.instances.id):
        fresh = fresh_samples(table.age_s, policy.freshness.telemetry_s, policy.clock.max_skew_s)
        quality = np.where(fresh, table.quality, np.int8(Quality.NONE)).astype(np.int8)
        best = quality[:gpus].copy()
        np.maximum.at(best, snapshot.instances.gpu, quality[gpus:])
    for quality_of in Quality:
        out.put("telemetry_gpus", float((best == quality_of).sum()), quality_of.name.lower())
