"""The consistency of the tables of a snapshot."""

from __future__ import annotations

from dataclasses import fields

from autopilot.core.model.errors import invariant
from autopilot.core.model.latencies import ReplicaLatency
from autopilot.core.model.ranks import RankTable
from autopilot.core.model.snapshot import (
    AdvanceTable,
    ClusterSnapshot,
    GpuTable,
    InstanceTable,
    MemberTable,
    NodeTable,
    PlacementTable,
    QueueTable,
    ServiceTable,
    WorkloadTable,
)

_COLUMNS = {
    name: tuple(column.name for column in fields(table))
    for name, table in (
        ("nodes", NodeTable),
        ("gpus", GpuTable),
        ("instances", InstanceTable),
        ("workloads", WorkloadTable),
        ("members", MemberTable),
        ("placements", PlacementTable),
        ("services", ServiceTable),
        ("queues", QueueTable),
        ("advance", AdvanceTable),
        ("ranks", RankTable),
        ("latencies", ReplicaLatency),
    )
}
"""Columns by table."""


def check_snapshot(snapshot: ClusterSnapshot) -> None:
    """Raise `InvariantError` if tables are inconsistent (column lengths, row numbers out of range)."""
    for name, columns in _COLUMNS.items():
        table = getattr(snapshot, name)
        lengths = {len(getattr(table, column)) for column in columns}
        invariant(len(lengths) <= 1, f"columns of {name} differ in length: {sorted(lengths)}")
    inside = snapshot.services.part_of
    bounds = (
        ("gpus.node", snapshot.gpus.node, len(snapshot.nodes.id)),
        ("instances.gpu", snapshot.instances.gpu, len(snapshot.gpus.uuid)),
        ("placements.gpu", snapshot.placements.gpu, len(snapshot.gpus.uuid)),
        ("placements.workload", snapshot.placements.workload, len(snapshot.workloads.id)),
        ("members.workload", snapshot.members.workload, len(snapshot.workloads.id)),
        ("services.part_of", inside[inside >= 0], len(inside)),
    )
    for name, column, size in bounds:
        if len(column):
            invariant(0 <= int(column.min()) and int(column.max()) < size, f"{name} points outside its table")
