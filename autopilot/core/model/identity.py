"""Identity of objects (uid) and of their requests (digest): neither names nor row numbers are stable."""

from __future__ import annotations

from hashlib import blake2s

import numpy as np

from autopilot.core.model.snapshot import ClusterSnapshot, ServiceTable, WorkloadTable

_ASKED = (
    "gpus",
    "gpus_per_member",
    "min_gpus",
    "gpu_milli",
    "mig_profile",
    "gpu_models",
    "gpu_memory_mib",
    "cpu_milli",
    "memory_mib",
    "topology",
    "selector",
)


def rows_by_uid(table: WorkloadTable | ServiceTable) -> dict[str, int]:
    """Rows by uid; rows without a uid are left out."""
    rows = dict(zip(table.uid.tolist(), range(len(table.uid)), strict=True))
    rows.pop("", None)
    return rows


def shape_digest(snapshot: ClusterSnapshot, row: int) -> str:
    """A short digest of the request and queue of a workload; it changes when either changes."""
    work, members = snapshot.workloads, snapshot.members
    asked = [int(getattr(work, name)[row]) for name in _ASKED]
    mine = np.flatnonzero(members.workload == row) if len(members.workload) else ()
    parts = [(int(members.gpus[each]), int(members.selector[each])) for each in mine]
    queue = str(snapshot.queues.id[int(work.queue[row])])
    return blake2s(f"{asked}|{parts}|{queue}".encode(), digest_size=6).hexdigest()
