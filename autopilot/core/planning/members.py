"""Gangs whose members differ: each member finds its own node, those of higher rank first.

Members ask for whole GPUs, or for MIG instances of one profile or several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.records import Code, Evidence
from autopilot.core.model.snapshot import I32, Topology
from autopilot.core.placement.fit import (
    Fit,
    Miss,
    Shape,
    instances_spot,
    level_of,
    shape_of,
    spot_on,
    suitable_nodes,
)
from autopilot.core.planning.context import Context


def find_members(ctx: Context, at: int) -> Fit | Miss:
    """Room for at least the minimum of members, each on one node that suits it; as many as fit.

    Fullest node first (the emptiest, where the policy spreads).
    """
    row = int(ctx.pending[at])
    snapshot = ctx.observation.snapshot
    level = level_of(snapshot.nodes, int(snapshot.workloads.topology[row]))
    if snapshot.workloads.mig_profile[row] >= 0:
        return _find_instances(ctx, at, level)
    room = ctx.room(float(ctx.gap_end_s[at]))
    if level is None:
        return _inside(ctx, at, room)
    spots = [
        _inside(ctx, at, np.where(level == domain, room, 0).astype(np.int32)) for domain in np.unique(level).tolist()
    ]
    found = [fit for fit in spots if isinstance(fit, Fit)]
    if found:
        return max(found, key=lambda fit: len(fit.layout.gpu))
    return spots[0] if spots else Miss(Code.CAPACITY, 0.0, float(snapshot.workloads.min_gpus[row]))


def _inside(ctx: Context, at: int, room: I32) -> Fit | Miss:
    """The same on the nodes where `room` leaves something."""
    row = int(ctx.pending[at])
    snapshot = ctx.observation.snapshot
    table, rows = snapshot.members, ctx.members[row]
    base, least = shape_of(snapshot, row), int(snapshot.workloads.min_gpus[row])
    order = sorted(rows, key=lambda member: (-int(table.rank[member]), member))
    needed = int(np.searchsorted(np.cumsum(table.gpus[order]), least)) + 1  # the first that make the minimum
    wide_first = [*sorted(order[:needed], key=lambda member: -int(table.gpus[member])), *order[needed:]]
    nodes, counts = _seat(ctx, at, room, base, order)
    if sum(counts) < least:  # the wide ones first leave less in the way
        nodes, counts = _seat(ctx, at, room, base, wide_first)
    if sum(counts) < least:
        return Miss(Code.CAPACITY, float(sum(counts)), float(least))
    chosen, where = np.unique(np.array(nodes, np.int32), return_inverse=True)
    total = np.bincount(where, counts).astype(np.int32)
    return spot_on(ctx.whatif, chosen, total, 0.0, (Evidence("members", len(nodes), f"of {len(rows)} that differ"),))


def _seat(ctx: Context, at: int, room: I32, base: Shape, order: list[int]) -> tuple[list[int], list[int]]:
    """Nodes and GPUs of the members in this order, as many as fit; beyond the minimum as far as quotas go."""
    table = ctx.observation.snapshot.members
    least = int(ctx.observation.snapshot.workloads.min_gpus[ctx.pending[at]])
    free, spread = room.copy(), ctx.policy.placement.fill < 0
    cpu, memory = ctx.whatif.node_cpu.copy(), ctx.whatif.node_memory.copy()
    nodes: list[int] = []
    counts: list[int] = []
    for member in order:
        gpus = int(table.gpus[member])
        if sum(counts) >= least and ctx.may_start(at, sum(counts) + gpus) is not None:
            continue
        shape = _member_shape(base, gpus, int(table.selector[member]))
        fits = suitable_nodes(ctx.whatif, shape, ctx.gpu_memory_mib) & (free >= gpus)
        fits &= (cpu >= base.cpu_milli) & (memory >= base.host_memory_mib)
        if fits.any():
            node = int(np.argmin(np.where(fits, -free if spread else free, np.iinfo(np.int32).max)))
            free[node] = 0 if base.topology == Topology.SPREAD else free[node] - gpus
            cpu[node] -= base.cpu_milli
            memory[node] -= base.host_memory_mib
            nodes.append(node)
            counts.append(gpus)
    return nodes, counts


def _member_shape(base: Shape, gpus: int, selector: int) -> Shape:
    return replace(base, members=1, per_member=gpus, tail=0, selector=base.selector | selector)


# --- MIG instances -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pod:
    """One member: instances by profile, what its node must carry, and its rank."""

    wants: tuple[tuple[int, int], ...]  # (profile, instances)
    selector: int
    rank: int

    @property
    def count(self) -> int:
        """Instances of all profiles."""
        return sum(count for _, count in self.wants)


def _find_instances(ctx: Context, at: int, level: I32 | None) -> Fit | Miss:
    """The same with free instances: the instances of one member lie on one node."""
    row, whatif = int(ctx.pending[at]), ctx.whatif
    work, node_of = ctx.observation.snapshot.workloads, ctx.observation.snapshot.gpus.node
    least, pods = int(work.min_gpus[row]), _pods(ctx, row)
    free = np.flatnonzero(whatif.instance_alive & (whatif.instance_used == 0) & whatif.gpu_ok[whatif.instance_gpu])
    in_use = (whatif.instance_used > 0) & whatif.instance_alive
    busy = np.bincount(whatif.instance_gpu, in_use, minlength=len(node_of))
    free = free[np.argsort(-busy[whatif.instance_gpu[free]], kind="stable")]  # the GPU with most in use first
    node = node_of[whatif.instance_gpu[free]]
    domains = (
        [np.ones(len(free), np.bool_)]
        if level is None
        else [level[node] == domain for domain in np.unique(level[node]).tolist()]
    )
    found: list[int] = []
    for inside in domains:
        for order in (
            pods,
            sorted(pods, key=lambda pod: -pod.count),
        ):  # the wide ones first leave less in the way
            taken = _seat_instances(ctx, at, order, free[inside], least)
            if len(taken) >= least and len(taken) > len(found):
                found = taken
                break
    if not found:
        wanted = {profile for pod in pods for profile, _ in pod.wants}
        there = int(np.isin(whatif.instance_profile[free], list(wanted)).sum())
        return Miss(Code.MIG_GEOMETRY, float(there), float(least))
    return instances_spot(whatif, np.array(found, np.int32))


def _pods(ctx: Context, row: int) -> list[_Pod]:
    """Members of a gang of MIG instances, those of higher rank first."""
    table = ctx.observation.snapshot.members
    by_pod: dict[str, list[int]] = {}
    for member in ctx.members[row]:
        by_pod.setdefault(str(table.pod[member]) or str(table.id[member]), []).append(member)
    pods = [
        _Pod(
            tuple((int(table.mig_profile[each]), int(table.gpus[each])) for each in rows),
            int(table.selector[rows[0]]),
            int(table.rank[rows[0]]),
        )
        for rows in by_pod.values()
    ]
    return sorted(pods, key=lambda pod: -pod.rank)


def _seat_instances(ctx: Context, at: int, pods: Sequence[_Pod], free: NDArray[np.intp], least: int) -> list[int]:
    """Instances of the members in this order, as many as fit; beyond the minimum as far as quotas go."""
    whatif, row = ctx.whatif, int(ctx.pending[at])
    node_of, base = ctx.observation.snapshot.gpus.node, shape_of(ctx.observation.snapshot, row)
    left: dict[tuple[int, int], list[int]] = {}  # by node and profile, the next one last
    for each in free[::-1].tolist():
        key = (int(node_of[whatif.instance_gpu[each]]), int(whatif.instance_profile[each]))
        left.setdefault(key, []).append(each)
    spread, taken, used = ctx.policy.placement.fill < 0, list[int](), set[int]()
    for pod in pods:
        if len(taken) >= least and ctx.may_start(at, len(taken) + pod.count) is not None:
            continue
        suits = suitable_nodes(whatif, replace(base, selector=base.selector | pod.selector), ctx.gpu_memory_mib)
        nodes = [
            node
            for node in dict.fromkeys(node for node, _ in left)
            if suits[node]
            and not (base.topology == Topology.SPREAD and node in used)
            and all(len(left.get((node, profile), ())) >= count for profile, count in pod.wants)
        ]
        if not nodes:
            continue
        room = {node: sum(len(left[node, profile]) for profile, _ in pod.wants) for node in nodes}
        node = min(nodes, key=lambda each: (-room[each] if spread else room[each], each))
        used.add(node)
        taken += [left[node, profile].pop() for profile, count in pod.wants for _ in range(count)]
    return taken
