"""GPUs shared by software: nodes whose GPUs have a number of equal shares, and the work on them.

Work that asks for whole GPUs gets one share of each of as many GPUs of one node, as a pod that asks NVIDIA's device
plugin for GPUs gets replicas. Parts of a GPU and MIG instances are refused there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from autopilot.core.model.records import Inventory
from autopilot.core.model.snapshot import GPU_MILLI
from simulator.world.allocation import BROKEN, FREE, SPLIT, Held, Refusal
from simulator.world.work import Shape


class Whole(Protocol):
    """What is read and changed of the hardware (simulator/world/hardware.py)."""

    inventory: Inventory
    first_gpu: list[int]
    node_gpus: list[int]
    node_of: list[int]
    holder: list[int]
    healthy: list[bool]
    gpu_bit: list[int]
    free_mask: list[int]

    def is_open(self, node: int) -> bool:
        """True if the node takes work."""

    def set_free(self, node: int, count: int) -> None:
        """Set the number of free GPUs of the node."""


class Split:
    """The split nodes of the hardware; false without any. `on[gpu]`: the jobs on a GPU of theirs, in order of start."""

    def __init__(self, hardware: Whole) -> None:
        """As the inventory states it."""
        self._hardware = hardware
        self.shares: dict[int, int] = {}  # node -> shares of each of its GPUs
        self.on: dict[int, list[int]] = {}
        for node, replicas in enumerate(hardware.inventory.nodes.replicas.tolist()):
            if replicas > 1:
                self.set(node, replicas)

    def __bool__(self) -> bool:
        return bool(self.shares)

    def concerns(self, gpus: Iterable[int]) -> bool:
        """True if any of these GPUs is split."""
        return any(gpu in self.on for gpu in gpus)

    def set(self, node: int, replicas: int) -> None:
        """Split the GPUs of a node without work into so many shares each; 1: make them whole again."""
        hardware = self._hardware
        rows = range(hardware.first_gpu[node], hardware.first_gpu[node] + hardware.node_gpus[node])
        mask = 0
        for gpu in rows:
            if replicas > 1:
                self.on.setdefault(gpu, [])
                hardware.holder[gpu] = SPLIT
            else:
                self.on.pop(gpu, None)
                hardware.holder[gpu] = FREE if hardware.healthy[gpu] else BROKEN
                mask |= hardware.gpu_bit[gpu] * hardware.healthy[gpu]
        if replicas > 1:
            self.shares[node] = replicas
        else:
            self.shares.pop(node, None)
        hardware.free_mask[node] = mask
        hardware.set_free(node, mask.bit_count())

    def take(self, job: int, shape: Shape, gpus: Sequence[int]) -> Held | Refusal:
        """Give a job one share of each of these GPUs, all of them or none."""
        hardware = self._hardware
        nodes = {hardware.node_of[gpu] for gpu in gpus}
        node = next(iter(nodes))
        if len(set(gpus)) < len(gpus):
            return Refusal.GPU_TWICE
        if not shape.whole:
            return Refusal.SPLIT
        if len(gpus) != shape.gpus:
            return Refusal.WRONG_COUNT
        if len(nodes) > 1:
            return Refusal.APART
        if not hardware.is_open(node):
            return Refusal.NODE_UNFIT
        for gpu in gpus:
            if not hardware.healthy[gpu]:
                return Refusal.GPU_BROKEN
            if len(self.on[gpu]) >= self.shares[node]:
                return Refusal.GPU_BUSY
        for gpu in gpus:
            self.on[gpu].append(job)
        return Held(tuple(gpus), (), {node: 0}, GPU_MILLI // self.shares[node] * len(gpus))

    def give(self, job: int, gpus: Sequence[int]) -> None:
        """Take its shares back."""
        for gpu in gpus:
            self.on[gpu].remove(job)
