"""Whole GPUs to be had by turning MIG mode off: for waiting gangs, and for those expected by the demand mix.

A waiting gang is seated member by member on the nodes with the fewest GPUs to change. A GPU that leaves MIG mode for it
is worth the run time of the gang, as an instance is worth that of its request; at most the time until room reserved for
the gang. All GPUs needed by a gang change, or none. If the engine changes whole nodes, these are GPUs of idle nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autopilot.core.geometry.cuttable import Seen, records_of
from autopilot.core.geometry.cutting import Cut, PoolState, chances_of
from autopilot.core.geometry.instance_requests import mix_within
from autopilot.core.geometry.pools import Pool
from autopilot.core.model.memory.geometry import RecutRecord
from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import F64, I32, I64, Topology
from autopilot.core.placement.shapes import Shape, host_members, suitable_nodes
from autopilot.core.planning.context import Context
from autopilot.core.planning.places import within_limits

GANGS = 8
"""Gangs that are looked at for a pool in a tick, in the order of service."""
MEMBERS = 256
"""Most members of such a gang."""

_MANY = 1 << 20
"""More than the GPUs of any node."""


@dataclass(frozen=True, slots=True)
class WholeGang:
    """A gang (position) and the GPUs (places in the pool) that would leave MIG mode for it, each with its worth.

    `nodes`: its nodes with GPUs that become whole already. Without `places` these serve it alone.
    """

    at: int
    places: frozenset[int]
    worth_gpu_s: float
    nodes: frozenset[int]


@dataclass(frozen=True, slots=True)
class WholeNeeds:
    """The needs for whole GPUs of a pool.

    `gangs`: waiting ones, in the order of service. `kept` (places): free whole GPUs beside those that leave MIG mode
    for them. `chances` [depth]: of requests for at least 1, 2, ... whole GPUs beyond those free on other nodes or in
    other pools. `expected`: mean number of requested GPUs.
    """

    gangs: tuple[WholeGang, ...]
    kept: frozenset[int]
    chances: F64
    expected: float


NO_NEEDS = WholeNeeds((), frozenset(), np.zeros(0), 0.0)


def whole_needs(ctx: Context, pool: Pool, seen: Seen, switch_s: float, most: int) -> WholeNeeds:
    """The needs for whole GPUs of the pool. At most `most` GPUs change for one gang."""
    node = ctx.observation.snapshot.gpus.node[pool.rows]
    seats = _Seats(ctx, node, seen)
    gangs = [
        found
        for at in _waiting(ctx, pool)
        if (worth_gpu_s := _worth_gpu_s(ctx, at, switch_s)) > 0
        and (found := seats.seat(at, worth_gpu_s, most)) is not None
    ]
    used = np.flatnonzero(np.isin(node, list(seats.used)) & seen.state.whole)
    kept = frozenset(used.tolist())
    chances, expected, free = _expected(ctx, pool, switch_s + ctx.policy.review.batch_s)
    elsewhere = free - int(seats.taken.sum()) - int(seen.state.whole.sum()) + len(kept)
    return WholeNeeds(tuple(gangs), kept, chances[max(elsewhere, 0) :], expected)


def with_needs(state: PoolState, seen: Seen, needs: WholeNeeds, gangs: Sequence[WholeGang]) -> PoolState:
    """The pool with the worth of its GPUs as whole ones to these gangs."""
    leaves_gpu_s = np.where(seen.leaving, 0.0, np.nan)
    for gang in gangs:
        leaves_gpu_s[list(gang.places)] = gang.worth_gpu_s
    stays = np.ones(len(leaves_gpu_s), np.bool_)
    stays[list(needs.kept)] = False
    return replace(state, whole=state.whole & stays, may_change=state.may_change & stays, leaves_gpu_s=leaves_gpu_s)


def partly_whole(gangs: Sequence[WholeGang], cuts: Sequence[Cut]) -> int:
    """The last of the gangs with some of its GPUs, but not all, leaving MIG mode; -1: none."""
    left = {cut.gpu for cut in cuts if cut.switches < 0}
    return max((number for number, gang in enumerate(gangs) if gang.places & left and gang.places - left), default=-1)


def made_whole(ctx: Context, pool: Pool, gang: WholeGang) -> tuple[str, ...]:
    """UUIDs of the GPUs that become whole for a gang: those leaving MIG mode now, and those of earlier changes."""
    gpus = ctx.observation.snapshot.gpus
    coming = [row for row, record in records_of(ctx, gpus.uuid.tolist()) if _comes(record)] if gang.nodes else []
    earlier = [row for row in coming if int(gpus.node[row]) in gang.nodes]
    rows = [*pool.rows[sorted(gang.places)].tolist(), *sorted(earlier)]
    return tuple(str(gpus.uuid[row]) for row in rows)


def _waiting(ctx: Context, pool: Pool) -> list[int]:
    """Gangs of whole GPUs with too few of them free, or too few on one node, that may use those of the pool."""
    work, found = ctx.observation.snapshot.workloads, list[int]()
    for at in ctx.waiting(frozenset({Code.CAPACITY, Code.FRAGMENTED})):
        row = int(ctx.pending[at])
        shape = _shape(ctx, at)
        if (
            ctx.is_uniform(row)
            and work.topology[row] in {Topology.NONE, Topology.SPREAD}
            and 0 < shape.members + (shape.tail > 0) <= MEMBERS
            and (not shape.models or shape.models >> pool.model & 1)
            and ctx.may_start(at, shape.gpus) is None
        ):
            found.append(at)
            if len(found) == GANGS:
                break
    return found


def _shape(ctx: Context, at: int) -> Shape:
    row = int(ctx.pending[at])
    return within_limits(ctx, row, ctx.shape(row, ctx.pending_table.least_gpus[at]))


def _worth_gpu_s(ctx: Context, at: int, switch_s: float) -> float:
    """Worth of one GPU to a gang: the longer time of its use, up to the horizon."""
    row = int(ctx.pending[at])
    run_s = float(ctx.run_low_s[at]) if ctx.known[at] else ctx.policy.regeometry.life_s
    start_s = min((held.start_s for held in ctx.plan.held if held.row == row), default=np.inf)
    return min(run_s, ctx.policy.horizon_s, start_s - ctx.now_s - switch_s)


class _Seats:
    """Nodes as gangs are seated on them one after the other."""

    def __init__(self, ctx: Context, node: I32, seen: Seen) -> None:
        self._ctx = ctx
        count = len(ctx.observation.snapshot.nodes.id)
        self._free: dict[int, list[int]] = {}  # by node: GPUs that may leave MIG mode, the next one last
        for place in np.flatnonzero(seen.leaving).tolist()[::-1]:
            self._free.setdefault(int(node[place]), []).append(place)
        self._coming = _coming(ctx)
        self.taken: I64 = np.zeros(count, np.int64)  # GPUs that are whole, or become so already
        self.used: set[int] = set()

    def seat(self, at: int, worth_gpu_s: float, most: int) -> WholeGang | None:
        """The needs of the gang; None if it finds no room, or too many GPUs would change."""
        ctx, shape = self._ctx, _shape(self._ctx, at)
        suits = suitable_nodes(ctx.whatif, shape, ctx.gpu_memory_mib)
        room = ctx.room(float(ctx.gap_end_s[at]), int(ctx.pending[at])).astype(np.int64)
        free = np.maximum(room + self._coming - self.taken, 0)
        own = np.zeros(len(free), np.int64)
        for node, places in self._free.items():
            own[node] = len(places)
        hosts = np.full(len(free), MEMBERS + 1, np.int64)
        if shape.asks_hosts:
            hosts = host_members(shape, ctx.whatif.node_cpu, ctx.whatif.node_memory).astype(np.int64)
        lacking, takes = np.zeros(len(free), np.int64), np.zeros(len(free), np.int64)
        for size in [shape.per_member] * shape.members + [shape.tail] * (shape.tail > 0):
            lacks = np.maximum(size - free, 0)
            fits = suits & (hosts > 0) & (lacks <= own)
            if not fits.any() or lacking.sum() > most:
                return None
            # the fewest changes, then the fullest node, then the lowest row
            node = int(np.argmin(np.where(fits, lacks * _MANY + free, np.iinfo(np.int64).max)))
            lacking[node] += lacks[node]
            takes[node] += size - lacks[node]
            own[node] -= lacks[node]
            free[node] -= size - lacks[node]
            hosts[node] = 0 if shape.topology == Topology.SPREAD else hosts[node] - 1
        if lacking.sum() > most or not (lacking.any() or (takes[self._coming > 0] > 0).any()):
            return None
        places = [self._free[node].pop() for node in np.flatnonzero(lacking).tolist() for _ in range(lacking[node])]
        self.taken += takes
        self.used.update(np.flatnonzero(takes).tolist())
        coming = np.flatnonzero((takes > 0) & (self._coming > 0)).tolist()
        return WholeGang(at, frozenset(places), worth_gpu_s, frozenset(coming))


def _coming(ctx: Context) -> I64:
    """GPUs of each node that will be free whole ones at the end of the change of their node. Shape [nodes].

    They leave MIG mode, or stay whole while the engine stops their node for others.
    """
    found = np.zeros(len(ctx.observation.snapshot.nodes.id), np.int64)
    if any(_comes(record) for record in ctx.memory.geometry.recuts.values()):
        gpus = ctx.observation.snapshot.gpus
        for row, record in records_of(ctx, gpus.uuid.tolist()):
            found[gpus.node[row]] += _comes(record) and bool(gpus.healthy[row])
    return found


def _comes(record: RecutRecord) -> bool:
    return record.state in {"changing", "beside"} and record.after is None


def _expected(ctx: Context, pool: Pool, within_s: float) -> tuple[F64, float, int]:
    """Members of one whole GPU expected by the demand mix and open to the pool.

    The chance [depth] of requests for at least 1, 2, ..., their mean number, and the free GPUs suited to them.
    """
    found, names = mix_within(ctx, within_s), ctx.observation.snapshot.names.gpu_models
    if found is None:
        return np.zeros(0), 0.0, 0
    mix, horizon, part, levels = found
    counts, mean, models = np.zeros(len(levels)), 0.0, 0
    for row, kind in enumerate(mix.kinds):
        single = not kind.profile and not kind.gpu_milli and kind.gpus_per_member == 1
        if not single or (kind.gpu_models and names[pool.model] not in kind.gpu_models):
            continue
        counts += mix.counts[row, horizon, : len(levels)] * kind.gpus * part
        mean += float(mix.expected[row, horizon]) * kind.gpus * part
        models |= sum(1 << code for code, name in enumerate(names) if not kind.gpu_models or name in kind.gpu_models)
    chances = chances_of(levels, np.ceil(counts)[None, :])[0]
    nodes = ctx.observation.snapshot.nodes
    suits = (models >> np.maximum(nodes.gpu_model, 0).astype(np.int64) & 1 == 1) & (nodes.gpu_model >= 0)
    free = int(ctx.whatif.node_free[suits].sum())
    return chances, mean, free
