"""GPUs of a pool that may be cut now, alone or in units, by the scope of its engine.

`instance`: idle instances change, the others of the GPU continue. `gpu`: a GPU changes as a whole, once it is idle.
`node`: the engine stops all GPU clients of the node, so its GPUs change once all of them are idle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from autopilot.core.geometry.cutting import PoolState
from autopilot.core.geometry.follow import turned_mode_s
from autopilot.core.geometry.instance_requests import counts_in
from autopilot.core.geometry.layouts import bits_of
from autopilot.core.geometry.pools import Books, Pool
from autopilot.core.hardware.xid_facts import out_of_use
from autopilot.core.model.memory.geometry import RecutRecord
from autopilot.core.model.snapshot import I32, Bools, Recut
from autopilot.core.planning.context import Context
from autopilot.core.planning.held_instances import barred_instances

Places = tuple[int, ...]
"""GPUs of a unit, as places in a pool."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A pool in the form needed by the choice. Units are empty for the scope `instance`.

    `leaving` [gpus]: idle GPUs that may leave MIG mode. `idle`: idle units. `busy`: units that could be drained, those
    with least in use first. `drained`: units after their drain, so that they may be cut. `draining`: a unit of the pool
    is being drained.
    """

    scope: str
    state: PoolState
    leaving: Bools
    idle: tuple[Places, ...]
    busy: tuple[Places, ...]
    drained: tuple[Places, ...]
    draining: bool


def books_of(ctx: Context) -> Books:
    """The books of the tick. GPUs evicted by this plan are still in use, and so is room held for expected replicas."""
    whatif = ctx.whatif
    held = _held(ctx)
    held[barred_instances(ctx, np.inf)] = True
    return Books(
        whatif.instance_gpu,
        whatif.instance_profile,
        whatif.instance_start,
        whatif.instance_alive,
        (whatif.instance_used > 0) | held,
        whatif.gpu_used > 0,
    )


def _held(ctx: Context) -> Bools:
    """Instances with work now. Shape [instances]."""
    placed = ctx.observation.snapshot.placements.instance
    held = np.zeros(len(ctx.whatif.instance_gpu), np.bool_)
    held[placed[placed >= 0]] = True
    return held


def _reserved(ctx: Context) -> Bools:
    """Nodes with whole GPUs reserved for a gang. Shape [nodes]."""
    found = np.zeros(len(ctx.observation.snapshot.nodes.id), np.bool_)
    for held in ctx.plan.held:
        found[held.nodes[held.counts > 0]] = True
    return found


def look_at(ctx: Context, pool: Pool, scope: str) -> Seen:
    """The pool now: GPUs that may change, and instances being made."""
    snapshot, rules, whatif = ctx.observation.snapshot, ctx.policy.regeometry, ctx.whatif
    uuids = snapshot.gpus.uuid[pool.rows].tolist()
    records = records_of(ctx, uuids)
    in_use = _in_use(ctx)
    node = snapshot.gpus.node[pool.rows]
    busy = in_use[pool.rows] if scope != "node" else _by_node(ctx, in_use)[node]
    gpu_ok = whatif.gpu_ok[pool.rows].copy()
    drains = [(place, record) for place, record in records if record.state == "draining"]
    if drains:  # set aside for this: they may change as soon as nothing runs in their scope
        sound, by_node = _sound_gpus(ctx), _by_node(ctx, in_use)
        for place, record in drains:
            there = by_node[node[place]] if record.scope == "node" else in_use[pool.rows[place]]
            gpu_ok[place] = bool(sound[pool.rows[place]]) and not there
    may = pool.sound & gpu_ok & (whatif.node_ok & (snapshot.nodes.mig_scopes > 0))[node]
    starting = np.zeros(len(snapshot.gpus.uuid), np.bool_)  # a change would meet a start that is under way
    starting[whatif.instance_gpu[(whatif.instance_used > 0) & ~_held(ctx)]] = True
    may &= ~starting[pool.rows]
    whole = ~pool.in_mig & (whatif.gpu_used[pool.rows] == 0)
    may &= pool.in_mig | (whole & ~_reserved(ctx)[node])
    barred = np.full(len(pool.rows), -1, np.int64)
    coming = np.zeros(len(pool.layouts.profiles), np.int64)
    turned = np.zeros(len(pool.rows), np.bool_)  # into MIG mode or out of it, a short time ago: not back yet
    for place, record in records:
        turned[place] = ctx.now_s < turned_mode_s(record) + rules.return_s
        if record.state == "draining":
            if not gpu_ok[place]:
                coming += counts_in(pool, bits_in(pool, record.after or ()))
            continue
        if record.state != "settled" or ctx.now_s < record.since_s + rules.dwell_s:
            may[place] = False
            if scope == "node":
                may[node == node[place]] = False
        if record.state == "changing":
            coming += counts_in(pool, bits_in(pool, set(record.after or ()) - set(record.before or ())))
        elif ctx.now_s < record.since_s + rules.return_s and record.before is not None:
            barred[place] = bits_in(pool, record.before)
    free = np.where(gpu_ok, pool.free, 0)  # elsewhere nothing new starts
    drainable = may.copy()
    if scope != "instance":
        may &= ~busy
    may &= ~(whole & turned)
    leaving = may & pool.in_mig & (pool.used == 0) & ~turned
    state = PoolState(pool.used, free, whole & may, may, barred, np.zeros(len(pool.rows), np.int64), coming)
    units = _units(scope, may, node)
    ended = {place for place, _ in drains if gpu_ok[place]}
    return Seen(
        scope,
        state,
        leaving,
        units,
        _drainable(ctx, pool, scope, drainable & busy, node),
        tuple(unit for unit in _units(drains[0][1].scope, _marked(ended, len(may)), node)) if ended else (),
        bool(drains),
    )


def as_if_idle(ctx: Context, pool: Pool, scope: str, places: Places, moved: Iterable[int]) -> PoolState:
    """The pool once nothing runs on these GPUs. The workloads `moved` (rows) then hold such instances elsewhere."""
    state = look_at(ctx, pool, scope).state
    at, may = list(places), np.zeros(len(state.may_change), np.bool_)
    may[at] = pool.sound[at]
    used, free = state.used.copy(), state.free.copy()
    free[at] |= used[at]
    used[at] = 0
    coming = state.coming.copy()
    bit_of_row = _bits_held(ctx, pool)
    for row in moved:
        coming -= sum((counts_in(pool, bits) for bits in bit_of_row.get(row, ())), np.zeros_like(coming))
    whole = state.whole | (may & ~pool.in_mig)
    return replace(state, used=used, free=free, may_change=may, whole=whole, coming=coming)


def _bits_held(ctx: Context, pool: Pool) -> dict[int, list[int]]:
    """The instances of each workload (row) in the pool, as bit sets."""
    snapshot = ctx.observation.snapshot
    held, table, names = snapshot.placements, snapshot.instances, snapshot.names.profiles
    found: dict[int, list[int]] = {}
    for row, instance in zip(held.workload.tolist(), held.instance.tolist(), strict=True):
        if instance >= 0 and np.isin(table.gpu[instance], pool.rows):
            cut = (names[int(table.profile[instance])], int(table.start[instance]))
            found.setdefault(row, []).append(bits_in(pool, [cut]))
    return found


def idle_gpus(ctx: Context, gpus: I32) -> float:
    """The idle part of these GPUs (rows), in GPUs. An instance is an equal part of its GPU."""
    whatif = ctx.whatif
    cut = whatif.gpu_cuts[gpus] > 0
    used = np.where(
        cut, whatif.gpu_cuts_used[gpus] / np.maximum(whatif.gpu_cuts[gpus], 1), whatif.gpu_used[gpus] / 1000
    )
    return float((1.0 - used).sum())


def node_rows(ctx: Context, gpu: int) -> I32:
    """All GPUs (rows) of the node of a GPU."""
    gpus = ctx.observation.snapshot.gpus
    return np.flatnonzero(gpus.node == gpus.node[gpu]).astype(np.int32)


def bits_in(pool: Pool, cuts: Iterable[tuple[str, int]]) -> int:
    """The bit set of the instances with a profile that counts in the pool."""
    return bits_of(pool.layouts.model, [cut for cut in cuts if cut[0] in pool.layouts.profiles])


def records_of(ctx: Context, uuids: list[str]) -> list[tuple[int, RecutRecord]]:
    """The latest changes of these GPUs, by place."""
    if not ctx.memory.geometry.recuts:
        return []
    place = {uuid: number for number, uuid in enumerate(uuids)}
    return [(place[uuid], record) for uuid, record in ctx.memory.geometry.recuts.items() if uuid in place]


def _in_use(ctx: Context) -> Bools:
    """GPUs with any work. Shape [gpus]."""
    whatif = ctx.whatif
    used = whatif.gpu_used > 0
    used[whatif.instance_gpu[(whatif.instance_used > 0) | _held(ctx)]] = True
    return np.asarray(used)


def _by_node(ctx: Context, gpus: Bools) -> Bools:
    """Nodes with any of these GPUs. Shape [nodes]."""
    found = np.zeros(len(ctx.observation.snapshot.nodes.id), np.bool_)
    found[ctx.observation.snapshot.gpus.node[gpus]] = True
    return found


def _sound_gpus(ctx: Context) -> Bools:
    """GPUs that may be used, including those set aside by the autopilot itself. Shape [gpus]."""
    snapshot = ctx.observation.snapshot
    bad = out_of_use(snapshot.nodes, snapshot.gpus)[1]
    return np.asarray(snapshot.gpus.healthy & ~bad & (snapshot.gpus.recut == Recut.SETTLED))


def _units(scope: str, may: Bools, node: I32) -> tuple[Places, ...]:
    """GPUs that change together, among those in `may`."""
    places = np.flatnonzero(may).tolist()
    if scope == "gpu":
        return tuple((place,) for place in places)
    if scope == "instance":
        return ()
    by_node: dict[int, list[int]] = {}
    for place in places:
        by_node.setdefault(int(node[place]), []).append(place)
    return tuple(tuple(each) for each in by_node.values())


def _drainable(ctx: Context, pool: Pool, scope: str, may: Bools, node: I32) -> tuple[Places, ...]:
    """Units in use, those with least in use first."""
    units = _units(scope, may, node)

    def in_use(unit: Places) -> tuple[float, int]:
        rows = pool.rows[list(unit)] if scope == "gpu" else node_rows(ctx, int(pool.rows[unit[0]]))
        return len(rows) - idle_gpus(ctx, rows), unit[0]

    return tuple(sorted(units, key=in_use))


def _marked(places: Iterable[int], count: int) -> Bools:
    found = np.zeros(count, np.bool_)
    found[list(places)] = True
    return found
