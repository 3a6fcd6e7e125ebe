"""The shares that the device plugin of a node gives the pod of a job."""

from __future__ import annotations

from autopilot.core.sharing.apart import lands_apart
from simulator.world.hardware import Hardware
from simulator.world.placing import Spot, find_spot
from simulator.world.work import Shape


def find_place(hardware: Hardware, shape: Shape, allowed: int) -> Spot | None:
    """Free GPUs on the nodes of the bit set `allowed`, else shares; None where it does not fit now."""
    return find_spot(hardware, shape, allowed) or _find_shares(hardware, shape, allowed)


def _find_shares(hardware: Hardware, shape: Shape, allowed: int) -> Spot | None:
    """GPUs of one shared node of the bit set `allowed`, for work of one pod; None where it finds no room.

    The node with the most shares given out is taken, and on it the GPUs with the fewest. A pod that would get two
    shares of one GPU finds no room: the simulation does not show that.
    """
    if not shape.whole or shape.gpus > max(shape.per_member, 1):
        return None
    split, found = hardware.split, list[tuple[int, int]]()
    for node, replicas in split.shares.items():
        first = hardware.first_gpu[node]
        rows = range(first, first + hardware.node_gpus[node])
        given = [len(split.on[gpu]) if hardware.healthy[gpu] else replicas for gpu in rows]
        fits = hardware.is_open(node) and first not in hardware.closed and lands_apart(given, replicas, shape.gpus)
        if fits and allowed & hardware.node_bit[node]:
            found.append((-sum(given), node))
    if not found:
        return None
    node = min(found)[1]
    first = hardware.first_gpu[node]
    sound = [gpu for gpu in range(first, first + hardware.node_gpus[node]) if hardware.healthy[gpu]]
    return Spot(sorted(sorted(sound, key=lambda gpu: len(split.on[gpu]))[: shape.gpus]))
