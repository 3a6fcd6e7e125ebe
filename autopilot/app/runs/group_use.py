"""Use of the GPUs over a run by pool, tenant, queue, service and workload: allocated and active GPU time.

It is counted stay by stay, from the behaviours behind the simulated telemetry, so every policy of a call has it. The
groups of a level add up to the run's totals; a queue includes the queues below it. Of the workloads only those with the
largest gap are listed, and replicas count in their service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autopilot.app.runs.recorder import StayRecorder
from autopilot.core.model.snapshot import F64
from simulator.specs.clusterqueues import ROOT, QueueSpec
from simulator.world.cluster import Cluster

MOST_WORKLOADS = 20
MOST_PARENTS = 16
"""Followed levels of a queue tree; the cluster file refuses deeper ones and cycles."""


def group_use(
    stays: StayRecorder, cluster: Cluster, queues: Sequence[QueueSpec], services: Sequence[str], end_s: float
) -> dict[str, dict[str, dict[str, float | None]]]:
    """For each level the groups with held GPUs, and their GPU-seconds; empty if activity is not known."""
    held_gpu_s, active_gpu_s = stays.held_and_active()
    if not len(held_gpu_s) or np.isnan(active_gpu_s).any():
        return {}
    jobs, nodes, names = cluster.jobs, cluster.inventory.nodes, cluster.inventory.names
    rows = [stay[0] for stay in stays.stays]
    tenant = np.array([jobs.tenant[row] for row in rows])
    service = np.array([jobs.service[row] for row in rows])
    capacity_gpu_s = float(nodes.gpus.sum()) * end_s
    found = {
        "pool": _pools(stays, cluster, held_gpu_s, active_gpu_s, end_s, names.pools),
        "tenant": _groups(jobs.tenants, tenant, held_gpu_s, active_gpu_s, capacity_gpu_s),
        "service": _groups(services, service, held_gpu_s, active_gpu_s, capacity_gpu_s),
        "workload": _largest_gaps(jobs.id, np.where(service < 0, rows, -1), held_gpu_s, active_gpu_s, capacity_gpu_s),
    }
    if queues:
        found["queue"] = _queues(found["tenant"], {queue.name: queue.parent for queue in queues}, capacity_gpu_s)
    return {level: groups for level, groups in found.items() if groups}


def _row(held_gpu_s: float, active_gpu_s: float, capacity_gpu_s: float) -> dict[str, float | None]:
    """The figures of one group."""
    return {
        "held_gpu_s": held_gpu_s,
        "active_gpu_s": active_gpu_s,
        "gap_gpu_s": held_gpu_s - active_gpu_s,
        "allocation_ratio": held_gpu_s / capacity_gpu_s if capacity_gpu_s > 0 else None,
        "hardware_ratio": active_gpu_s / held_gpu_s if held_gpu_s > 0 else None,
        "real_utilization_ratio": active_gpu_s / capacity_gpu_s if capacity_gpu_s > 0 else None,
    }


def _groups(
    names: Sequence[str], group: np.ndarray[Any, np.dtype[Any]], held: F64, active: F64, capacity_gpu_s: float
) -> dict[str, dict[str, float | None]]:
    """Sums by group of each stay; -1: in none."""
    taken = group >= 0
    sums = [np.bincount(group[taken], each[taken], minlength=len(names)) for each in (held, active)]
    return {
        str(name): _row(float(sums[0][at]), float(sums[1][at]), capacity_gpu_s)
        for at, name in enumerate(names)
        if sums[0][at] > 0
    }


def _largest_gaps(
    names: Sequence[str], job: np.ndarray[Any, np.dtype[Any]], held: F64, active: F64, capacity_gpu_s: float
) -> dict[str, dict[str, float | None]]:
    """The workloads with the largest gap, the largest first. `job`: row of each stay, -1 if left out."""
    gap_gpu_s = np.bincount(job[job >= 0], (held - active)[job >= 0], minlength=len(names))
    first = np.argsort(-gap_gpu_s, kind="stable")[:MOST_WORKLOADS]
    place = {row: at for at, row in enumerate(first.tolist())}
    group = np.array([place.get(row, -1) for row in job.tolist()], np.int64)
    return _groups([names[row] for row in first], group, held, active, capacity_gpu_s)


def _pools(
    stays: StayRecorder, cluster: Cluster, held: F64, active: F64, end_s: float, names: Sequence[str]
) -> dict[str, dict[str, float | None]]:
    """Sums by pool; a stay on several pools is divided by its GPUs."""
    inventory = cluster.inventory
    pool_of = inventory.nodes.pool[inventory.gpus.node]
    sums = np.zeros((2, len(names)))
    for at, stay in enumerate(stays.stays):
        share = np.bincount(pool_of[list(stay[3])], minlength=len(names)) / len(stay[3])
        sums += np.outer((held[at], active[at]), share)
    size = np.bincount(inventory.nodes.pool, inventory.nodes.gpus, minlength=len(names))
    return {
        name: _row(float(sums[0, at]), float(sums[1, at]), float(size[at]) * end_s)
        for at, name in enumerate(names)
        if size[at]
    }


def _queues(
    tenants: Mapping[str, Mapping[str, float | None]], parents: Mapping[str, str], capacity_gpu_s: float
) -> dict[str, dict[str, float | None]]:
    """Sums over each queue and those below it; the work of a tenant is in the queue of its name."""
    sums: dict[str, list[float]] = {name: [0.0, 0.0] for name in parents}
    for tenant, use in tenants.items():
        queue = tenant
        for _ in range(MOST_PARENTS):
            if queue == ROOT or queue not in parents:
                break
            sums[queue][0] += use["held_gpu_s"] or 0.0
            sums[queue][1] += use["active_gpu_s"] or 0.0
            queue = parents[queue]
    return {name: _row(held, active, capacity_gpu_s) for name, (held, active) in sums.items() if held > 0}
