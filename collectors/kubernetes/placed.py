"""The table of placements: what each pod holds on its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from autopilot.core.model.snapshot import PlacementTable, empty, make
from collectors.kubernetes.inventory import Nodes


def placement_table(
    holding: Mapping[str, tuple[str, str]], leaving: Mapping[str, bool], nodes: Nodes, row_of: Callable[[str], int]
) -> PlacementTable:
    """One row for each GPU, share or instance that a pod holds.

    `holding` has the gang and the node of each pod, by uid; `row_of` the row of a gang, -1 for none.
    """
    workloads: list[int] = []
    node_column: list[int] = []
    leaving_column: list[bool] = []
    gpus: list[int] = []
    parts: list[int] = []
    milli: list[int] = []
    assumed_column: list[bool] = []
    assumed = _assumed_pods(holding, nodes)
    for uid, (key, node) in holding.items():
        row, at = row_of(key), nodes.slots.get(node)
        held = at.held.get(uid) if at is not None else None
        if row < 0 or not held:
            continue
        node_row, first = nodes.first_rows[node]
        count = len(held)
        workloads += [row] * count
        node_column += [node_row] * count
        leaving_column += [leaving[uid]] * count
        assumed_column += [uid in assumed] * count
        for index, part, share in held:
            gpus.append(first + index)
            parts.append(nodes.part_rows[node, index, part] if part >= 0 else -1)
            milli.append(share)
    if not workloads:
        nothing: PlacementTable = empty(PlacementTable)
        return nothing
    table: PlacementTable = make(
        PlacementTable,
        workload=workloads,
        node=node_column,
        gpu=gpus,
        instance=parts,
        milli=milli,
        leaving=leaving_column,
        rank=np.zeros(len(workloads), np.int32),
        assumed=assumed_column,
    )
    return table


def _assumed_pods(holding: Mapping[str, tuple[str, str]], nodes: Nodes) -> set[str]:
    """Pods whose GPUs are assumed; `holding` as in `placement_table`."""
    on = {node for _, node in holding.values()}
    found: set[str] = set()
    for node in on & nodes.slots.keys():
        found |= nodes.slots[node].assumed(lambda uid: holding[uid][0] if uid in holding else uid)
    return found
