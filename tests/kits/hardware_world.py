"""Nodes, GPUs and MIG instances for small worlds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from autopilot.core.hardware import mig
from autopilot.core.hardware.mig_profiles import gpu_model
from autopilot.core.model.snapshot import DTYPES, GpuTable, InstanceTable, NodeTable

PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")


class Hardware(NamedTuple):
    """The tables of nodes, GPUs and MIG instances."""

    nodes: NodeTable
    gpus: GpuTable
    instances: InstanceTable


def on_demand_bits(
    model: str, beside: Sequence[tuple[str, int]] = (), only: Sequence[tuple[str, int]] | None = None
) -> int:
    """The places of a model where claims could have instances made: those beside instances that exist, or these."""
    facts = gpu_model(model)
    places = [(facts.profiles[each.profile_index].name, each.start) for each in mig.placement_masks(facts)]
    may = [mig.is_legal(facts, [*beside, each]) and (only is None or each in only) for each in places]
    return sum(1 << number for number, open_now in enumerate(may) if open_now)


def hardware(
    shape: str,
    *,
    nodes: Mapping[str, Sequence[Any]] | None = None,
    unhealthy: Sequence[int] = (),
    xids: Mapping[int, int] | None = None,
    remaps: Mapping[int, int] | None = None,
    recuts: Mapping[int, int] | None = None,
    cuts: Mapping[int, Sequence[tuple[str, int]]] | None = None,
    on_demand: Mapping[int, int] | None = None,
) -> Hardware:
    """The hardware of `snapshot`, for tests that show different work on the same hardware."""
    count, per_node = (int(part) for part in shape.split("x"))
    cuts = cuts or {}
    total = count * per_node
    rows = np.arange(total, dtype=np.int32)
    gpus = GpuTable(
        uuid=np.array([f"GPU-{row}" for row in range(total)], object),
        node=(rows // per_node).astype(np.int32),
        index=(rows % per_node).astype(np.int32),
        healthy=~np.isin(rows, list(unhealthy)),
        mig=np.isin(rows, list(cuts)),
        xid=np.array([(xids or {}).get(row, 0) for row in range(total)], np.int32),
        remap=np.array([(remaps or {}).get(row, 0) for row in range(total)], np.int8),
        recut=np.array([(recuts or {}).get(row, 0) for row in range(total)], np.int8),
        on_demand=np.array([(on_demand or {}).get(row, -1) for row in range(total)], np.int64),
    )
    return Hardware(_nodes(count, per_node, nodes or {}), gpus, _instances(cuts))


def _nodes(count: int, per_node: int, overrides: Mapping[str, Sequence[Any]]) -> NodeTable:
    row = np.arange(count)
    columns: dict[str, Any] = {
        "id": [f"node-{n}" for n in range(count)],
        "pool": 0 * row,
        "gpu_model": 0 * row,
        "first_gpu": row * per_node,
        "gpus": 0 * row + per_node,
        "cpu_milli": 0 * row - 1,
        "memory_mib": 0 * row - 1,
        "island": row,
        "leaf": 0 * row,
        "block": 0 * row,
        "zone": 0 * row,
        "ready": row >= 0,
        "cordoned": row < 0,
        "spot": row < 0,
        "reclaim_at_s": np.nan * row,
        "labels": 0 * row,
        "hints": 0 * row,
        "mig_scopes": 0 * row + 1,
        "boot": [""] * count,
        "sharing": 0 * row,
        "replicas": 0 * row + 1,
        "sharing_offers": 0 * row,
        "scrubbed_s": np.nan * row,
    }
    columns.update(overrides)
    columns["labels"] = np.array(columns["labels"], np.uint8).reshape(len(row), -1)  # a byte holds eight labels
    return NodeTable(**{f.name: np.array(columns[f.name], DTYPES[str(f.type)]) for f in fields(NodeTable)})


def _instances(cuts: Mapping[int, Sequence[tuple[str, int]]]) -> InstanceTable:
    rows = [(gpu, number, *cut) for gpu in sorted(cuts) for number, cut in enumerate(cuts[gpu])]
    return InstanceTable(
        id=np.array([f"GPU-{gpu}/{7 + number}" for gpu, number, _, _ in rows], object),
        gpu=np.array([gpu for gpu, *_ in rows], np.int32),
        profile=np.array([PROFILES.index(profile) for *_, profile, _ in rows], np.int32),
        start=np.array([start for *_, start in rows], np.int32),
        gi_id=np.array([7 + number for _, number, *_ in rows], np.int32),
    )
