"""The queue tree: what each queue uses, and what its hard limits leave.

Limits count GPU entries (whole GPUs, shares or instances) along the whole path from a queue to the
root: a gang may start only where every ancestor has room for it.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.snapshot import F64, I32, ClusterSnapshot, QueueTable, holding_mask


def queue_use(snapshot: ClusterSnapshot) -> I32:
    """GPU entries held by each queue's own workloads and those below it. Shape [queues]."""
    work, held, queues = snapshot.workloads, snapshot.placements, snapshot.queues
    if not (queues.limit >= 0).any():
        return np.zeros(len(queues.id), np.int32)
    holding = holding_mask(work)[held.workload]
    use = np.bincount(work.queue[held.workload[holding]], minlength=len(queues.id)).astype(np.int32)
    for queue in range(len(queues.id) - 1, 0, -1):  # children stand behind their parents
        use[queues.parent[queue]] += use[queue]
    return use


def limit_room(queues: QueueTable, use: I32) -> F64:
    """GPUs that each queue may still take under its own limit and every ancestor's; inf without one.

    Shape [queues]; empty when no queue has a limit, so that the usual case costs nothing.
    """
    if not (queues.limit >= 0).any():
        return np.empty(0)
    room = np.where(queues.limit >= 0, (queues.limit - use).astype(float), np.inf)
    for queue in range(1, len(room)):
        room[queue] = min(room[queue], room[queues.parent[queue]])
    return np.asarray(room)


def spend_room(queues: QueueTable, room: F64, queue: int, gpus: int) -> None:
    """Lower `room` in place after a gang of `queue` was placed.

    Every queue that shares an ancestor with it may lose room; lowering them all by the gang's width
    along the path and to the ancestor's room elsewhere is exact for the path and safe for the rest.
    """
    path = queue
    while True:
        room[path] -= gpus
        if queues.parent[path] < 0:
            break
        path = int(queues.parent[path])
    for other in range(1, len(room)):
        room[other] = min(room[other], room[queues.parent[other]])
