"""Room on the nodes as a checker computes it: idle GPUs, and those idle without possible victims."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.records import Inventory
from simulator.world.facts import GpuChanged, NodeChanged, Recut, Turned

Counts = NDArray[np.int64]


class Floor:
    """Nodes and GPUs open to work on whole GPUs."""

    def __init__(self, inventory: Inventory) -> None:
        """State of the inventory."""
        nodes, gpus = inventory.nodes, inventory.gpus
        self.node_of: list[int] = gpus.node.tolist()
        self.model_of: list[int] = nodes.gpu_model.tolist()
        self._model = np.array(nodes.gpu_model, np.int64)
        self._open = np.array(nodes.ready & ~nodes.cordoned, bool)
        self._whole = np.array(gpus.healthy & ~gpus.mig & (nodes.replicas[gpus.node] <= 1), bool)
        self._sound = np.array(gpus.healthy, bool)
        self._node = np.array(gpus.node, np.int64)

    def node(self, fact: NodeChanged) -> None:
        """A node becomes schedulable or unschedulable."""
        self._open[fact.node] = fact.ready and not fact.cordoned

    def gpu(self, fact: GpuChanged) -> None:
        """A GPU becomes healthy or unhealthy."""
        self._sound[fact.gpu] = self._whole[fact.gpu] = fact.healthy

    def recut(self, fact: Recut) -> None:
        """A GPU is partitioned, or whole again."""
        self._whole[fact.gpu] = self._sound[fact.gpu] and not fact.instances

    def turned(self, fact: Turned) -> None:
        """Its GPUs are given out whole, or not: they are shared, or change."""
        here = self._node == fact.node
        self._whole[here] = self._sound[here] & (fact.replicas == 1 and not fact.begins)

    def idle(self, held: Iterable[int]) -> Counts:
        """Whole GPUs by node beside the `held` ones. Shape [nodes]."""
        free = self._whole.copy()
        rows = np.fromiter(held, np.int64)
        free[rows] = False
        found = np.bincount(self._node[free], minlength=len(self._open))
        return np.asarray(found * self._open)

    def put(self, room: Counts, gpus: int, per_member: int, model: int) -> bool:
        """Take a gang of whole GPUs of one model out of `room`, each member on one node, the fullest fitting one.

        False, with `room` unchanged, if it does not fit.
        """
        fits = np.where(self._model == model, room, 0)
        taken: list[tuple[int, int]] = []
        left = gpus
        while left:
            member = min(per_member, left)
            nodes = np.flatnonzero(fits >= member)
            if not len(nodes):
                for node, count in taken:
                    room[node] += count
                return False
            node = int(nodes[np.argmin(fits[nodes])])
            room[node] -= member
            fits[node] -= member
            taken.append((node, member))
            left -= member
        return True
