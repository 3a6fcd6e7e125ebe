"""Nodes added by an autoscaler: absent at first, ready some time after the request."""

from __future__ import annotations

from simulator.world.breakable import Breakable

ARRIVE = 6
"""Kind of the event that a node has come, for the engine; its subject is a node."""
ARRIVES_S = 300.0
"""Time from a request until its nodes are ready. An assumption: clouds take 2 to 10 minutes for a GPU node."""


class Growing:
    """The absent nodes of a cluster: those unready at its beginning."""

    def __init__(self, cluster: Breakable) -> None:
        """Nothing is asked for yet."""
        self._cluster = cluster
        nodes, names = cluster.hardware.inventory.nodes, cluster.hardware.inventory.names.pools
        self._absent = {row: names[int(nodes.pool[row])] for row in range(len(nodes.id)) if not nodes.ready[row]}
        self._coming: set[int] = set()

    def absent(self, node: int) -> bool:
        """True if the node is still to come."""
        return node in self._absent

    def ask(self, pool: str, nodes: int, now_s: float) -> str:
        """Add nodes to a pool, all or none; the reason of a refusal, "" if they come."""
        rows = [row for row, name in self._absent.items() if name == pool and row not in self._coming]
        if len(rows) < nodes:
            return f"pool {pool} can grow by {len(rows)} nodes, not by {nodes}"
        for row in rows[:nodes]:
            self._coming.add(row)
            self._cluster.schedule(now_s + ARRIVES_S, ARRIVE, row, 0)
        return ""

    def arrive(self, node: int, now_s: float) -> None:
        """The node is there and ready."""
        self._coming.discard(node)
        del self._absent[node]
        self._cluster.restore_node(node, now_s)
