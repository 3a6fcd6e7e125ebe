"""Placement of the textbook policies: on the fullest fitting node.

Work of a node or more takes entirely free nodes of lowest index, and for the remainder the fullest other fitting
node; narrower work takes the fullest fitting node, lowest index on ties, and never spans nodes. Shares take the
fullest fitting GPU, MIG work the instances of lowest row.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

from autopilot.core.hardware.mig import find_gpu_model
from autopilot.core.model.units import counted
from simulator.world.hardware import FREE, Hardware, bits
from simulator.world.work import Shape


class Spot(NamedTuple):
    """GPUs for one job, and its instances if it requires MIG."""

    gpus: list[int]
    instances: tuple[int, ...] = ()


def find_spot(hardware: Hardware, shape: Shape, allowed: int = -1) -> Spot | None:
    """Free GPUs for `shape` on the nodes of the bit set `allowed`, or None if it does not fit now."""
    if hardware.stopped or hardware.closed:
        allowed &= ~_stopped(hardware)
    if shape.plain:
        gpus = _whole(hardware, shape, allowed) if allowed != -1 else _anywhere(hardware, shape)
        return Spot(gpus) if gpus is not None else None
    allowed &= hardware.eligible(shape)
    for domain in _domains(hardware, shape, allowed):
        if shape.profile:
            spot = _instances(hardware, shape, domain)
        elif shape.milli:
            spot = _share(hardware, shape, domain)
        else:
            gpus = _whole(hardware, shape, domain)
            spot = Spot(gpus) if gpus is not None else None
        if spot is not None:
            return spot
    return None


def _stopped(hardware: Hardware) -> int:
    """Nodes closed during the change of a MIG geometry or of sharing, as a bit set."""
    found = 0
    for gpu in hardware.stopped | hardware.closed:
        found |= hardware.node_bit[hardware.node_of[gpu]]
    return found


def _anywhere(hardware: Hardware, shape: Shape) -> list[int] | None:
    """The common case: one member, any node."""
    need = shape.gpus
    if need > shape.per_member:
        return _whole(hardware, shape, -1)
    for nodes in hardware.by_free[need:]:
        if nodes:
            return hardware.lowest_free((nodes & -nodes).bit_length() - 1, need)
    return None


def _whole(hardware: Hardware, shape: Shape, allowed: int) -> list[int] | None:
    members, rest = divmod(shape.gpus, shape.per_member) if shape.per_member else (0, 0)
    gpus: list[int] = []
    used = 0
    if members == 1 and not rest:
        members, rest = 0, shape.gpus
    for _ in range(members):
        node = _fitting(hardware, shape, shape.per_member, allowed & ~used)
        if node < 0:
            node = _again(hardware, shape, gpus, allowed)
            if node < 0:
                return None
        gpus += _next_free(hardware, node, shape.per_member, gpus)
        used |= hardware.node_bit[node]
    if rest:
        node = _fitting(hardware, shape, rest, allowed & ~used)
        if node < 0:
            node = -1 if shape.spread else _room(hardware, gpus, rest, used)
            if node < 0:
                return None
        gpus += _next_free(hardware, node, rest, gpus)
    return gpus


def _fitting(hardware: Hardware, shape: Shape, need: int, allowed: int) -> int:
    """The fullest node with `need` free GPUs (and the CPUs and memory of a member), or -1."""
    host = bool(shape.cpu_milli or shape.memory_mib)
    for nodes in hardware.by_free[need:]:
        for node in bits(nodes & allowed):
            if not host or _has_host(hardware, shape, node, 1):
                return node
    return -1


def _again(hardware: Hardware, shape: Shape, gpus: list[int], allowed: int) -> int:
    """A node for one more member beside those of the same gang, or -1."""
    if shape.spread:
        return -1
    for node in dict.fromkeys(hardware.node_of[gpu] for gpu in gpus):
        mine = sum(hardware.node_of[gpu] == node for gpu in gpus)
        members = mine // shape.per_member + 1
        room = hardware.free[node] - mine >= shape.per_member
        if room and allowed & hardware.node_bit[node] and _has_host(hardware, shape, node, members):
            return node
    return -1


def _room(hardware: Hardware, gpus: list[int], need: int, used: int) -> int:
    for node in bits(used):
        if hardware.free[node] - sum(hardware.node_of[gpu] == node for gpu in gpus) >= need:
            return node
    return -1


def _next_free(hardware: Hardware, node: int, count: int, taken: list[int]) -> list[int]:
    mine = sum(hardware.node_of[gpu] == node for gpu in taken)
    return hardware.lowest_free(node, mine + count)[mine:]


def _has_host(hardware: Hardware, shape: Shape, node: int, members: int) -> bool:
    cpu = not hardware.limits_cpu[node] or members * shape.cpu_milli <= hardware.cpu_free[node]
    return cpu and (not hardware.limits_memory[node] or members * shape.memory_mib <= hardware.memory_free[node])


def _share(hardware: Hardware, shape: Shape, allowed: int) -> Spot | None:
    fitting = [
        (hardware.free_milli(gpu), gpu)
        for gpu in hardware.shares
        if hardware.healthy[gpu]
        and hardware.free_milli(gpu) >= shape.milli
        and hardware.is_open(hardware.node_of[gpu])
        and allowed >> hardware.node_of[gpu] & 1
        and _has_host(hardware, shape, hardware.node_of[gpu], 1)
    ]
    if fitting:
        return Spot([min(fitting)[1]])
    node = _fitting(hardware, shape, 1, allowed)
    return Spot(hardware.lowest_free(node, 1)) if node >= 0 else None


def _instances(hardware: Hardware, shape: Shape, allowed: int) -> Spot | None:
    rows: list[int] = []
    members: dict[int, int] = {}
    for gpu, cuts in sorted(hardware.cut.items()):
        node = hardware.node_of[gpu]
        if not (hardware.healthy[gpu] and hardware.is_open(node) and allowed >> node & 1):
            continue
        for row in cuts:
            free = hardware.instance_holder[row] == FREE and hardware.instances[row].profile == shape.profile
            more = members.get(node, 0) + 1
            if free and not (shape.spread and more > 1) and _has_host(hardware, shape, node, more):
                rows.append(row)
                members[node] = more
                if len(rows) == shape.gpus:
                    return Spot([hardware.instances[each].gpu for each in rows], tuple(rows))
    return None


def _domains(hardware: Hardware, shape: Shape, allowed: int) -> Iterator[int]:
    """Sets of nodes open to a gang together: all, or each domain in the order of its first node."""
    if not shape.topology:
        yield allowed
        return
    domains: dict[int, int] = {}
    for node in bits(allowed):
        code = hardware.domain[shape.topology][node]
        domains[code] = domains.get(code, 0) | hardware.node_bit[node]
    yield from domains.values()


def never_fits(hardware: Hardware, shape: Shape, allowed: int = -1) -> str:
    """The reason of `shape` not to start even on an empty, healthy cluster; "" if it could."""
    nodes = hardware.eligible(shape) & allowed
    if not nodes and shape.gpus:
        return "no GPU of a model and memory that it may use"
    if shape.profile:
        return _never_cut(hardware, shape, nodes)
    if shape.milli:
        return (
            ""
            if any(_members(hardware, shape, node, 1) for node in bits(nodes))
            else "no node has the CPUs or memory, or a GPU that is not partitioned for MIG"
        )
    least = ceil(shape.min_gpus / shape.per_member) if shape.per_member else 0
    best = 0
    for domain in _domains(hardware, shape, nodes):
        full = sum(_members(hardware, shape, node, shape.per_member) for node in bits(domain))
        rest = shape.min_gpus % shape.per_member if shape.per_member else 0
        best = max(best, full + bool(rest and _rest_room(hardware, shape, domain, rest)))
    return "" if best >= least else f"room for at most {best} of its {counted(least, 'member')}"


def _members(hardware: Hardware, shape: Shape, node: int, per_member: int) -> int:
    """Members of whole GPUs or shares on an empty node."""
    count = _whole_gpus(hardware, node) // per_member
    table = hardware.inventory.nodes
    if shape.cpu_milli and hardware.limits_cpu[node]:
        count = min(count, int(table.cpu_milli[node]) // shape.cpu_milli)
    if shape.memory_mib and hardware.limits_memory[node]:
        count = min(count, int(table.memory_mib[node]) // shape.memory_mib)
    return min(count, 1) if shape.spread else count


def _whole_gpus(hardware: Hardware, node: int) -> int:
    """Unpartitioned GPUs of a node."""
    first = int(hardware.inventory.nodes.first_gpu[node])
    return hardware.node_gpus[node] - sum(hardware.mig[first : first + hardware.node_gpus[node]])


def _rest_room(hardware: Hardware, shape: Shape, nodes: int, rest: int) -> bool:
    """True if the smaller last member fits beside the full ones."""
    for node in bits(nodes):
        members = _members(hardware, shape, node, shape.per_member)
        if _whole_gpus(hardware, node) - members * shape.per_member >= rest and not (shape.spread and members):
            return True
    return False


def _never_cut(hardware: Hardware, shape: Shape, nodes: int) -> str:
    names = hardware.inventory.names.gpu_models
    most = 0
    for node in bits(nodes):
        model = find_gpu_model(names[hardware.model_of[node]])
        for profile in model.profiles if model else ():
            if profile.name == shape.profile:
                most += hardware.node_gpus[node] * profile.max_instances
    if not most:
        return f"no GPU here has the MIG profile {shape.profile}"
    return "" if most >= shape.gpus else f"at most {counted(most, 'instance')} of {shape.profile}"
