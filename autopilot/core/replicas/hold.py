"""Room for replicas soon called for by a forecast, kept from work that would outlive it.

Work that borrows may start on any free GPUs. While the load of a service rises, such work would be stopped minutes
later for the next replica. The forecasts trusted by `scale_ahead` give the number of replicas expected to be needed by
each service within `room.keep_s`. For replicas without GPUs yet, within the quota, GPUs free by then are held. Work of
the service's queue may use them, and so may work that is sure to end before. Above the guarantee of the queue, the room
is open to work inside the guarantees of others. Nothing is stopped for a hold. Replicas on MIG instances have instances
of their profile held, by number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from math import ceil, inf, isnan

import numpy as np

from autopilot.core.model.forecast import Forecast
from autopilot.core.model.policy import Effect
from autopilot.core.model.records import About, Code, Evidence, Note, NoteCode, Reservation
from autopilot.core.model.snapshot import I32
from autopilot.core.model.work import holding_mask
from autopilot.core.placement.shapes import Shape, suitable_nodes
from autopilot.core.planning.context import Context
from autopilot.core.planning.foresight import Ahead, demand_at, judged
from autopilot.core.planning.plan_state import Held

LEVEL = 0.5
"""Quantile of the demand that room is kept for: a replica that is needed more likely than not."""


def hold_replicas(ctx: Context) -> None:
    """Hold room for the replicas expected to be needed by each service, while floors and room are automatic."""
    modes, rules = ctx.policy.modes, ctx.policy.room
    if not rules.keep_s or not (modes.auto(Effect.FLOOR) and modes.auto(Effect.ROOM)):
        return
    work = ctx.observation.snapshot.workloads
    wanted = {ahead.row: (ahead, count) for ahead in ctx.foreseen if (count := _replicas(ctx, ahead)) > 0}
    if not wanted:
        return
    replicas = np.flatnonzero(work.service >= 0)
    example = dict(zip(work.service[replicas].tolist(), replicas.tolist(), strict=True))  # its last row, by service
    holding = np.bincount(work.service[replicas[holding_mask(work)[replicas]]], minlength=max(wanted) + 1)
    held = Counter[int]()  # GPUs or instances that are held, by queue
    for service, (ahead, count) in wanted.items():
        row, missing = example.get(service, -1), count - int(holding[service])
        if row < 0 or missing <= 0:
            continue
        shape = ctx.shape(row, int(work.gpus[row]))
        if shape.milli or shape.members + (shape.tail > 0) != 1:
            continue
        start_s = -inf if ahead.forecast is None else ahead.forecast.made_s + _within_s(ctx, ahead.forecast)
        if start_s <= ctx.now_s:  # the forecast is older than the time that room is kept for
            continue
        queue, hold = int(work.queue[row]), _hold if shape.whole_gpus else _hold_instances
        may, inside = _by_quota(ctx, row, shape.gpus, missing, held[queue])
        if may:
            ctx.plan.wake_at(start_s)
            held[queue] += hold(ctx, ahead, row, shape, (may, inside), start_s)


def _replicas(ctx: Context, ahead: Ahead) -> int:
    """The replicas needed by a service within `room.keep_s`, more likely than not; -1 without a trusted forecast."""
    forecast = ahead.forecast
    if forecast is None or ahead.code != Code.OK or isnan(ahead.capacity_rps):
        return -1
    within_s = _within_s(ctx, forecast)
    demand_rps = demand_at(forecast, ahead.series, within_s, LEVEL)
    trusted = judged(replace(ahead, within_s=within_s), ctx.now_s, ctx.policy.scale_ahead).code == Code.OK
    if isnan(demand_rps) or not trusted:
        return -1
    most = int(ctx.observation.snapshot.services.max_replicas[ahead.row])
    return min(ceil(demand_rps / ahead.capacity_rps - 1e-9), most)


def _within_s(ctx: Context, forecast: Forecast) -> float:
    """The time for which room is kept ahead (s): `room.keep_s`, or the longest horizon of the forecast."""
    return min(ctx.policy.room.keep_s, forecast.horizons_s[-1])


def _by_quota(ctx: Context, row: int, gpus: int, most: int, held: int) -> tuple[int, int]:
    """Replicas like that of `row` within quota, up to `most`, and those of them inside the guarantee of their queue.

    `held`: for other services of the queue.
    """
    quota = ctx.quota
    counts = range(1, most + 1)
    may = bisect_left(counts, True, key=lambda count: quota.may_start(row, held + count * gpus) is not None)
    return may, quota.guaranteed(may, lambda count: quota.claim(row, held + count * gpus))


def _hold_instances(
    ctx: Context, ahead: Ahead, row: int, shape: Shape, replicas: tuple[int, int], start_s: float
) -> int:
    """Hold MIG instances free by then for `replicas` (in all, inside the guarantee); their number.

    Any remaining instances will do.
    """
    snapshot = ctx.observation.snapshot
    whatif, node = ctx.whatif, snapshot.gpus.node
    suits = (suitable_nodes(whatif, shape, ctx.gpu_memory_mib, empty=True) & whatif.node_ok)[node] & whatif.gpu_ok
    held, free_at_s = snapshot.placements, np.full(len(snapshot.instances.gpu), -inf)
    on = held.instance >= 0
    np.maximum.at(free_at_s, held.instance[on], ctx.end_s[held.workload[on]])
    ready = whatif.instance_alive & (whatif.instance_profile == shape.profile) & suits[whatif.instance_gpu]
    rows = np.flatnonzero(ready & (free_at_s <= start_s)).astype(np.int32)
    left = len(rows) - sum(each.record.gpus for each in ctx.plan.held if np.isin(rows, each.instances).any())
    count = min(replicas[0] * shape.gpus, left)
    if count <= 0:
        return 0
    service, queue = str(snapshot.services.id[ahead.row]), int(snapshot.workloads.queue[row])
    nodes = np.unique(node[whatif.instance_gpu[rows[-count:]]])
    names = tuple(snapshot.nodes.id[nodes].tolist())
    record = Reservation(f"expected replicas of {service}", 0, count, start_s, start_s, start_s, names)
    no_gpus, spare = np.zeros_like(nodes), np.full_like(nodes, np.iinfo(np.int32).max // 2)  # whole GPUs are not held
    others = np.array([left - count], np.int32)
    lent = np.array([max(count - replicas[1] * shape.gpus, 0)], np.int32)
    ctx.plan.hold(Held(-1, record, shape, start_s, nodes, no_gpus, spare, queue, rows, others, lent))
    facts = (
        Evidence("instances", count, "MIG instances"),
        Evidence("profile", snapshot.names.profiles[shape.profile]),
        Evidence("replicas", replicas[0], "replicas"),
    )
    ctx.plan.note(Note(NoteCode.INSTANCES_HELD, About.SERVICE, service, round(start_s - ctx.now_s, 3), "s", facts))
    return count


def _hold(ctx: Context, ahead: Ahead, row: int, shape: Shape, replicas: tuple[int, int], start_s: float) -> int:
    """Hold GPUs free by then for `replicas` (in all, inside the guarantee) like the workload at `row`; their number."""
    snapshot = ctx.observation.snapshot
    ready = np.bincount(snapshot.gpus.node[ctx.plan.gpu_free_at_s <= start_s], minlength=len(snapshot.nodes.id)).astype(
        np.int32
    )
    for held in ctx.plan.held:
        ready[held.nodes] = np.minimum(ready[held.nodes], np.maximum(held.spare, 0))
    suits = suitable_nodes(ctx.whatif, shape, ctx.gpu_memory_mib, empty=True)
    counts, inside = (_chosen(np.where(suits, ready, 0).astype(np.int32), shape.gpus, count) for count in replicas)
    nodes = np.flatnonzero(counts).astype(np.int32)
    if not len(nodes):
        return 0
    gpus, queue = int(counts.sum()), int(snapshot.workloads.queue[row])
    service = str(snapshot.services.id[ahead.row])
    names = tuple(snapshot.nodes.id[nodes].tolist())
    record = Reservation(f"expected replicas of {service}", 0, gpus, start_s, start_s, start_s, names)
    spare = (ready[nodes] - counts[nodes]).astype(np.int32)
    lent = (counts - inside)[nodes]
    ctx.plan.hold(Held(-1, record, shape, start_s, nodes, counts[nodes], spare, queue, lent=lent))
    facts = Evidence("gpus", gpus, "GPUs"), Evidence("replicas", replicas[0], "replicas")
    ctx.plan.note(Note(NoteCode.REPLICAS_HELD, About.SERVICE, service, round(start_s - ctx.now_s, 3), "s", facts))
    return gpus


def _chosen(ready: I32, gpus: int, replicas: int) -> I32:
    """GPUs to hold on each node, for a number of replicas of `gpus` each. Shape [nodes].

    Replicas with a fit go on the nodes with the least room. For a replica without one, the node with the most ready
    GPUs is held: work will be displaced there anyway, and work started there now would be displaced with it.
    """
    counts = np.zeros_like(ready)
    for _ in range(replicas):
        left = ready - counts
        fits = np.flatnonzero(left >= gpus)
        if len(fits):
            counts[fits[np.argmin(left[fits])]] += gpus
            continue
        node = int(np.argmax(left))
        if left[node] <= 0:
            break
        counts[node] += left[node]
    return counts
