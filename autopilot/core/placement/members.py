"""Places for gangs of differing members: each member finds its own node, higher ranks first.

Members ask for whole GPUs, or for MIG instances of one profile or several. A member that finds no node is left out, as
long as the minimum of the gang starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autopilot.core.model.records import Code, Evidence
from autopilot.core.model.snapshot import F64, I32, Topology
from autopilot.core.placement.fit import on_nodes
from autopilot.core.placement.parts import free_instances, fullest_first, on_instances
from autopilot.core.placement.shapes import Fit, Miss, Shape, level_of, shape_of, suitable_nodes
from autopilot.core.placement.whatif import WhatIf


@dataclass(frozen=True, slots=True)
class Team:
    """A gang of differing members, with its limits.

    `members`: rows of MemberTable. `may_be(gpus)`: True if quota allows a start at this width.
    """

    row: int
    members: Sequence[int]
    may_be: Callable[[int], bool]
    memory_mib_of_model: F64
    spread: bool  # the emptiest node first


def find_members(whatif: WhatIf, team: Team, room: I32) -> Fit | Miss:
    """Room for at least the minimum of members, each on one node that suits it; as many as fit.

    Fullest node first (the emptiest, where the policy spreads).
    """
    work, nodes = whatif.snapshot.workloads, whatif.snapshot.nodes
    level = level_of(nodes, int(work.topology[team.row]))
    if work.mig_profile[team.row] >= 0:
        return _find_instances(whatif, team, level)
    if level is None:
        return _inside(whatif, team, room)
    answers = [
        _inside(whatif, team, np.where(level == domain, room, 0).astype(np.int32))
        for domain in np.unique(level).tolist()
    ]
    found = [fit for fit in answers if isinstance(fit, Fit)]
    if found:
        return max(found, key=lambda fit: len(fit.layout))
    return answers[0] if answers else Miss(Code.CAPACITY, 0.0, float(work.min_gpus[team.row]))


def _inside(whatif: WhatIf, team: Team, room: I32) -> Fit | Miss:
    """The same on the nodes with `room`."""
    snapshot, rows = whatif.snapshot, team.members
    table = snapshot.members
    base, least = shape_of(snapshot, team.row), int(snapshot.workloads.min_gpus[team.row])
    order = sorted(rows, key=lambda member: (-int(table.rank[member]), member))
    needed = int(np.searchsorted(np.cumsum(table.gpus[order]), least)) + 1  # the first that make the minimum
    wide_first = [*sorted(order[:needed], key=lambda member: -int(table.gpus[member])), *order[needed:]]
    nodes, counts = _seat(whatif, team, room, base, order)
    if sum(counts) < least:  # the wide ones first leave less in the way
        nodes, counts = _seat(whatif, team, room, base, wide_first)
    if sum(counts) < least:
        return Miss(Code.CAPACITY, float(sum(counts)), float(least))
    chosen, where = np.unique(np.array(nodes, np.int32), return_inverse=True)
    total = np.bincount(where, counts).astype(np.int32)
    return on_nodes(whatif, chosen, total, 0.0, (Evidence("members", len(nodes), f"of {len(rows)} that differ"),))


def _seat(whatif: WhatIf, team: Team, room: I32, base: Shape, order: list[int]) -> tuple[list[int], list[int]]:
    """Nodes and GPUs of the members in this order, as many as fit; beyond the minimum as far as quotas go."""
    table, least = whatif.snapshot.members, int(whatif.snapshot.workloads.min_gpus[team.row])
    free, cpu, memory = room.copy(), whatif.node_cpu.copy(), whatif.node_memory.copy()
    nodes: list[int] = []
    counts: list[int] = []
    for member in order:
        gpus = int(table.gpus[member])
        if sum(counts) >= least and not team.may_be(sum(counts) + gpus):
            continue
        selector = _both(base.selector, whatif.snapshot.names.selectors[int(table.selector[member])])
        shape = replace(base, members=1, per_member=gpus, tail=0, selector=selector)
        fits = suitable_nodes(whatif, shape, team.memory_mib_of_model) & (free >= gpus)
        fits &= (cpu >= base.cpu_milli) & (memory >= base.host_memory_mib)
        if fits.any():
            node = int(np.argmin(np.where(fits, -free if team.spread else free, np.iinfo(np.int32).max)))
            free[node] = 0 if base.topology == Topology.SPREAD else free[node] - gpus
            cpu[node] -= base.cpu_milli
            memory[node] -= base.host_memory_mib
            nodes.append(node)
            counts.append(gpus)
    return nodes, counts


def _both(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The labels of two selectors."""
    return tuple(sorted({*one, *other})) if other else one


# --- MIG instances -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pod:
    """One member: instances by profile, the labels of its node, and its rank."""

    wants: tuple[tuple[int, int], ...]  # (profile, instances)
    selector: tuple[int, ...]
    rank: int

    @property
    def count(self) -> int:
        """Instances of all profiles."""
        return sum(count for _, count in self.wants)


def _find_instances(whatif: WhatIf, team: Team, level: I32 | None) -> Fit | Miss:
    """The same with free instances: the instances of one member lie on one node."""
    node_of = whatif.snapshot.gpus.node
    least, pods = int(whatif.snapshot.workloads.min_gpus[team.row]), _pods(whatif, team)
    free = fullest_first(
        whatif, np.flatnonzero(free_instances(whatif) & whatif.gpu_ok[whatif.instance_gpu]).astype(np.int32)
    )
    node = node_of[whatif.instance_gpu[free]]
    domains = (
        [np.ones(len(free), np.bool_)]
        if level is None
        else [level[node] == domain for domain in np.unique(level[node]).tolist()]
    )
    found: list[int] = []
    for inside in domains:
        for order in (pods, sorted(pods, key=lambda pod: -pod.count)):  # the wide ones first leave less in the way
            taken = _seat_instances(whatif, team, order, free[inside])
            if len(taken) >= least and len(taken) > len(found):
                found = taken
                break
    if not found:
        wanted = {profile for pod in pods for profile, _ in pod.wants}
        there = int(np.isin(whatif.instance_profile[free], list(wanted)).sum())
        return Miss(Code.MIG_GEOMETRY, float(there), float(least))
    return on_instances(whatif, np.array(found, np.int32))


def _pods(whatif: WhatIf, team: Team) -> list[_Pod]:
    """Members of a gang of MIG instances, those of higher rank first."""
    table = whatif.snapshot.members
    by_pod: dict[str, list[int]] = {}
    for member in team.members:
        by_pod.setdefault(str(table.pod[member]) or str(table.id[member]), []).append(member)
    pods = [
        _Pod(
            tuple((int(table.mig_profile[each]), int(table.gpus[each])) for each in rows),
            whatif.snapshot.names.selectors[int(table.selector[rows[0]])],
            int(table.rank[rows[0]]),
        )
        for rows in by_pod.values()
    ]
    return sorted(pods, key=lambda pod: -pod.rank)


def _seat_instances(whatif: WhatIf, team: Team, pods: Sequence[_Pod], free: I32) -> list[int]:
    """Instances of the members in this order, as many as fit; beyond the minimum as far as quotas go."""
    snapshot = whatif.snapshot
    node_of, base, least = snapshot.gpus.node, shape_of(snapshot, team.row), int(snapshot.workloads.min_gpus[team.row])
    left: dict[tuple[int, int], list[int]] = {}  # by node and profile, the next one last
    for each in free[::-1].tolist():
        key = (int(node_of[whatif.instance_gpu[each]]), int(whatif.instance_profile[each]))
        left.setdefault(key, []).append(each)
    taken, used = list[int](), set[int]()
    for pod in pods:
        if len(taken) >= least and not team.may_be(len(taken) + pod.count):
            continue
        suits = suitable_nodes(
            whatif, replace(base, selector=_both(base.selector, pod.selector)), team.memory_mib_of_model
        )
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
        node = min(nodes, key=lambda each: (-room[each] if team.spread else room[each], each))
        used.add(node)
        taken += [left[node, profile].pop() for profile, count in pod.wants for _ in range(count)]
    return taken
