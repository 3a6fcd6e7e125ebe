"""MIG instances: those that exist, and those that a claim could have made. GPUs in use fill first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autopilot.core.model.records import Code, Evidence
from autopilot.core.model.snapshot import I32, Bools, Topology
from autopilot.core.placement.kinds.base import Kind, Team, Wanted, joined_labels
from autopilot.core.placement.shapes import Fit, Miss, level_of, shape_of, suitable_nodes
from autopilot.core.placement.whatif import Layout, WhatIf


def find_instances(whatif: WhatIf, wanted: Wanted) -> Fit | Miss:
    """Free or possible MIG instances of the profile, one a member, on the GPU with the most instances in use.

    At most `room` whole GPUs of a node are opened.
    """
    gpus, shape, barred = whatif.snapshot.gpus, wanted.shape, wanted.barred
    suits = suitable_nodes(whatif, shape, wanted.memory_mib_of_model)
    found = whatif.usable_instances(shape.profile)
    if barred is not None and len(barred):
        found = found[~np.isin(found, barred)]
    if len(whatif.places):
        found = np.concatenate([found, find_places(whatif, shape.profile, suits, wanted.room)])
    gpu = whatif.gpus_of(found)
    if shape.gpus == 1 and len(found):  # the usual case: most often the best of all suits
        best = whatif.gpu_cuts_used[gpu].argmax()
        if suits[gpus.node[gpu[best]]]:
            return on_instances(whatif, found[best : best + 1])
    found = found[suits[gpus.node[gpu]]]
    if len(found) < shape.gpus:
        return Miss(Code.MIG_GEOMETRY, float(len(found)), float(shape.gpus))
    if shape.per_member > 1:  # the instances of one member lie on one node
        here = np.bincount(gpus.node[whatif.gpus_of(found)], minlength=len(suits))
        members = here // shape.per_member
        if int(members.sum()) < -(-shape.gpus // shape.per_member):
            return Miss(Code.MIG_GEOMETRY, float(members.sum() * shape.per_member), float(shape.gpus))
        found = found[np.argsort(-members[gpus.node[whatif.gpus_of(found)]], kind="stable")]
        node = gpus.node[whatif.gpus_of(found)]
        starts = np.concatenate([[0], np.flatnonzero(np.diff(node)) + 1])
        number = np.arange(len(found)) - np.repeat(starts, np.diff(np.append(starts, len(found))))
        found = found[number < members[node] * shape.per_member]
        return on_instances(whatif, found[: shape.gpus])
    return on_instances(whatif, fullest_first(whatif, found)[: shape.gpus])


def find_places(whatif: WhatIf, profile: int, suits: Bools, room: I32) -> I32:
    """Possible instances (rows) of a profile beside each other, on suitable nodes, by GPU and first slice.

    All instances of a profile on a GPU have one length, so the first free slices leave room for the most of them.
    Uncut GPUs are opened as far as there is `room` [nodes], the lowest numbers first.
    """
    places, node = whatif.places, whatif.snapshot.gpus.node
    at = np.flatnonzero(places.profile == profile).astype(np.int32)
    at = at[suits[node[places.gpu[at]]]]
    at = at[whatif.open(at + places.first)]
    gpu, uncut = places.gpu[at], ~whatif.cut(places.gpu[at])
    fresh = np.unique(gpu[uncut])
    _, begins, number = np.unique(node[fresh], return_index=True, return_inverse=True)
    fresh = fresh[np.arange(len(fresh)) - begins[number] < room[node[fresh]]]
    at = at[~uncut | np.isin(gpu, fresh)]
    taken, chosen = np.zeros(len(node), np.int32), [np.empty(0, np.int32)]
    for start in np.unique(places.start[at]).tolist():  # at most one place of a GPU each
        here = at[places.start[at] == start]
        here = here[(taken[places.gpu[here]] & places.mask[here]) == 0]
        taken[places.gpu[here]] |= places.mask[here]
        chosen.append(here)
    return (np.sort(np.concatenate(chosen)) + places.first).astype(np.int32)


def free_instances(whatif: WhatIf) -> Bools:
    """Existing instances without a holder. Shape [instances]."""
    return np.asarray(whatif.instance_alive & (whatif.instance_used == 0))


def fullest_first(whatif: WhatIf, instances: I32) -> I32:
    """These instances in order of the instances in use on their GPU, most first."""
    return instances[np.argsort(-whatif.gpu_cuts_used[whatif.gpus_of(instances)], kind="stable")]


def on_instances(whatif: WhatIf, order: I32) -> Fit:
    """These free instances as a place."""
    gpu = whatif.gpus_of(order)
    busy = float(whatif.gpu_cuts_used[gpu].mean())
    layout = Layout(gpu, order, np.zeros(len(order), np.int32))
    evidence = Evidence("instances_in_use_on_gpu", busy, "instances")
    return Fit(layout, whatif.snapshot.gpus.node[gpu], busy, (evidence,))


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


def find_members(whatif: WhatIf, team: Team, room: I32) -> Fit | Miss:  # noqa: ARG001 - as every `find_members`
    """Free instances for members that differ, those of one member on one node; as many members as fit."""
    node_of = whatif.snapshot.gpus.node
    level = level_of(whatif.snapshot.nodes, int(whatif.snapshot.workloads.topology[team.row]))
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
            whatif, replace(base, selector=joined_labels(base.selector, pod.selector)), team.memory_mib_of_model
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


KIND = Kind("instances", lambda shape: shape.profile >= 0, find_instances, find_members)
