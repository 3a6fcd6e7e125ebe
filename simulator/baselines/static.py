"""Separate nodes for each tenant: a cluster without sharing."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, inf

from simulator.baselines.textbook import Textbook, by_submit
from simulator.world.cluster import Cluster


class Static:
    """Nodes split between the tenants, first come first served with skip-ahead inside each part."""

    name = "static"

    def __init__(self, guarantee_nodes: Mapping[str, int] | None = None) -> None:
        """`guarantee_nodes` by tenant; without it nodes are split by GPU-seconds."""
        self._guarantee = dict(guarantee_nodes or {})

    def attach(self, cluster: Cluster) -> None:
        """Split the nodes of `cluster`, in their order, tenants in the order of their names."""
        self._cluster = cluster
        self.nodes = split_nodes(cluster, self._guarantee)
        self._parts: list[Textbook] = []
        first = 0
        for count in self.nodes:
            part = Textbook(self.name, by_submit, skip=True, allowed=((1 << count) - 1) << first)
            part.attach(cluster)
            self._parts.append(part)
            first += count

    def _part(self, job: int) -> Textbook:
        tenant = self._cluster.jobs.tenant[job]
        while tenant >= len(self._parts):  # a tenant that was added later has no nodes
            part = Textbook(self.name, by_submit, skip=True, allowed=0)
            part.attach(self._cluster)
            self._parts.append(part)
        return self._parts[tenant]

    def on_submit(self, job: int, now_s: float) -> None:
        """Insert it into its tenant's queue."""
        self._part(job).on_submit(job, now_s)

    def on_requeue(self, job: int, now_s: float) -> None:
        """Return it to its tenant's queue."""
        self._part(job).on_requeue(job, now_s)

    def on_end(self, job: int, now_s: float) -> None:
        """Room was freed in its tenant's part."""
        self._part(job).on_end(job, now_s)

    def on_change(self, now_s: float) -> None:
        """Any job may fit again."""
        for part in self._parts:
            part.on_change(now_s)

    def decide(self, now_s: float) -> None:
        """One pass in each part."""
        for part in self._parts:
            part.decide(now_s)


def split_nodes(cluster: Cluster, guarantee: Mapping[str, int] | None = None) -> list[int]:
    """Nodes of each tenant: as guaranteed, else by GPU-seconds.

    Largest remainder; each tenant gets at least the nodes of its widest gang, as far as there are nodes.
    """
    jobs, total = cluster.jobs, len(cluster.hardware.node_gpus)
    weight, least = [0.0] * len(jobs.tenants), [0] * len(jobs.tenants)
    for job, tenant in enumerate(jobs.tenant):
        shape = jobs.shape_of(job)
        duration_s = jobs.duration_s[job]
        weight[tenant] += shape.full_milli * (duration_s if duration_s < inf else 0.0)
        least[tenant] = max(least[tenant], ceil(shape.gpus / shape.per_member) if shape.per_member else 1)
    if guarantee:
        weight = [float(guarantee.get(name, 0)) for name in jobs.tenants]
    return largest_remainder(weight, total, least)


def largest_remainder(weight: list[float], total: int, least: list[int]) -> list[int]:
    """Whole numbers adding up to `total` in proportion to `weight`, none below its `least` if possible."""
    whole = sum(weight) or 1.0
    exact = [total * each / whole for each in weight]
    shares = [floor(each) for each in exact]
    by_remainder = sorted(range(len(weight)), key=lambda k: (shares[k] - exact[k], k))
    for k in by_remainder[: max(0, total - sum(shares))]:
        shares[k] += 1
    if sum(least) > total:
        return shares
    while any(share < low for share, low in zip(shares, least, strict=True)):
        poorest = next(k for k, low in enumerate(least) if shares[k] < low)
        richest = max(range(len(shares)), key=lambda k: (shares[k] - max(exact[k], least[k]), shares[k] - least[k]))
        if shares[richest] <= least[richest]:
            richest = max(range(len(shares)), key=lambda k: shares[k] - least[k])
        shares[richest] -= 1
        shares[poorest] += 1
    return shares
