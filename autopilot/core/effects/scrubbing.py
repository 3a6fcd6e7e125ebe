"""The hint to scrub what one tenant leaves before untrusted work of another gets it.

The driver clears memory when a process ends. Who must not rely on that verifies it, or resets the GPU, between tenants.
Memory holds who had each GPU and MIG instance last, as complete views showed it. Where the source guesses which GPU of
a node work holds, that is unknown, as for all GPUs that it may hold instead, and no hint is given.

A MIG instance is reset by its destruction, so an instance that is made anew is as if nobody had used it. A node states
the time at which its free GPUs and instances were scrubbed or verified (`NodeTable.scrubbed_s`).
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from autopilot.core.model.capability import Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.holders import HoldersMemory, LastHolder
from autopilot.core.model.objects import Scrub, Trust
from autopilot.core.model.policy.bounds import DAY_S
from autopilot.core.model.snapshot import GPU_MILLI, I32, ClusterSnapshot, Texts
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context

AWAY_S = DAY_S
"""So long a GPU that left the inventory is remembered: as many entries as the cluster has had GPUs within a day."""


def remember_holders(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory with the holders that this observation shows, and the end of those that have left."""
    known, snapshot = memory.holders.last, tick.observation.snapshot
    now, unsure = _holders(snapshot), _unsure(snapshot)
    there = {*snapshot.gpus.uuid.tolist(), *snapshot.instances.id.tolist()}
    last = {}
    for key, holder in known.items():
        if key in now or key in unsure:
            continue
        left = holder if holder.left_s < inf else replace(holder, left_s=tick.before.now_s)
        if key not in there and (key.partition("/")[0] in there or tick.now_s - left.left_s > AWAY_S):
            continue  # an instance that was destroyed, or a GPU that is away for long
        last[key] = left
    last |= now
    return memory if last == known else replace(memory, holders=HoldersMemory(last))


def _holders(snapshot: ClusterSnapshot) -> dict[str, LastHolder]:
    """The sure holders of each GPU and instance now; without GPUs and instances with an unknown holder."""
    held, work, tenants = snapshot.placements, snapshot.workloads, snapshot.names.tenants
    rows = np.flatnonzero(~held.assumed & (work.tenant[held.workload] >= 0))
    keys = np.where(held.instance >= 0, _instance_ids(snapshot, held.instance), snapshot.gpus.uuid[held.gpu])[rows]
    codes = work.tenant[held.workload[rows]]
    across = work.trust[held.workload[rows]] == Trust.ACROSS
    alone: dict[tuple[int, bool], LastHolder] = {}  # one object for all of a tenant: equal ones compare fast
    found: dict[str, LastHolder] = {}
    for key, code, each in zip(keys.tolist(), codes.tolist(), across.tolist(), strict=True):
        mine = alone.get((code, each))
        if mine is None:
            mine = alone[code, each] = LastHolder((tenants[code],), each)
        other = found.setdefault(key, mine)
        if other is not mine:
            both = tuple(sorted({*other.tenants, *mine.tenants}))
            found[key] = LastHolder(both, other.across and mine.across)
    return found


def _instance_ids(snapshot: ClusterSnapshot, rows: I32) -> Texts:
    ids = snapshot.instances.id
    return ids[np.maximum(rows, 0)] if len(ids) else np.full(len(rows), "", object)


def _unsure(snapshot: ClusterSnapshot) -> set[str]:
    """GPUs and instances that work may have whose place on its node is a guess, or whose tenant is unknown."""
    held, gpus = snapshot.placements, snapshot.gpus
    unsure = held.assumed | (snapshot.workloads.tenant[held.workload] < 0)
    if not unsure.any():
        return set()
    there = np.isin(gpus.node, np.unique(held.node[unsure]))
    return {*gpus.uuid[there].tolist(), *snapshot.instances.id[there[snapshot.instances.gpu]].tolist()}


def to_scrub(ctx: Context, row: int, layout: Layout) -> Scrub | None:
    """What of the place of a start may come from another tenant without trust on both sides; None for nothing.

    The kubelet chooses the GPUs of a node: all that are free there count, up to as many as start there.
    """
    last = ctx.memory.holders.last
    if not last:
        return None
    snapshot, whatif = ctx.observation.snapshot, ctx.whatif
    work, nodes, ids = snapshot.workloads, snapshot.nodes, snapshot.instances.id
    code = int(work.tenant[row])
    tenants, across = (snapshot.names.tenants[code],) if code >= 0 else (), work.trust[row] == Trust.ACROSS

    def taints(key: str, node: int) -> bool:
        """Whether the last holder of a GPU or instance leaves something for this work to see."""
        holder = last.get(key)
        if holder is None or holder.tenants == tenants or (across and holder.across):
            return False
        return not holder.left_s <= nodes.scrubbed_s[node] <= ctx.now_s + ctx.policy.clock.max_skew_s

    slots = resettable = 0
    for node in np.unique(snapshot.gpus.node[layout.gpu]).tolist():
        mine = layout.only(snapshot.gpus.node[layout.gpu] == node)
        cut = ~mine.plain & (mine.instance < len(ids))
        of_node = slice(int(nodes.first_gpu[node]), int(nodes.first_gpu[node] + nodes.gpus[node]))
        rows = np.arange(of_node.start, of_node.stop, dtype=np.int32)
        whole = mine.plain & (mine.milli == GPU_MILLI)
        free = rows[whatif.gpu_usable[of_node] & (whatif.gpu_used[of_node] == 0)] if whole.any() else rows[:0]
        plain = np.union1d(free, mine.gpu[whole | (mine.plain & (whatif.gpu_used[mine.gpu] <= mine.milli))])
        gpus = sum(taints(str(snapshot.gpus.uuid[each]), node) for each in plain.tolist())
        parts = sum(taints(str(ids[each]), node) for each in mine.instance[cut].tolist())
        slots += min(gpus, int(mine.plain.sum())) + parts
        resettable += parts if nodes.mig_scopes[node] else 0
    return Scrub(slots, slots == resettable) if slots else None
