"""The hardware of a cluster specification as tables: nodes, GPUs, MIG instances with their names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, uuid5

import numpy as np

from autopilot.core.hardware.mig import Placement
from autopilot.core.hardware.mig_facts import MODELS
from autopilot.core.model.objects import MIG_SCOPES, Sharing
from autopilot.core.model.records import Inventory
from autopilot.core.model.snapshot import GpuTable, InstanceTable, Names, NodeTable, empty

if TYPE_CHECKING:
    from simulator.specs.clusterfile import ClusterSpec, PoolSpec

FIRST_GI_ID = 7
"""Lowest id given to a simulated GPU instance (the driver gives 7..13 to the smallest profiles)."""


def build_inventory(spec: ClusterSpec) -> Inventory:
    """Every node, GPU and instance of `spec`, all healthy, in the order of the pools."""
    models = tuple(dict.fromkeys(pool.gpu_model for pool in spec.pools))
    profiles = tuple(dict.fromkeys(p.name for m in MODELS if m.name in models for p in m.profiles))
    names = Names(
        gpu_models=models,
        pools=tuple(pool.name for pool in spec.pools),
        profiles=profiles,
        sharing_configs=tuple(dict.fromkeys(each for pool in spec.pools for each in pool.sharing_offers)),
    )
    nodes = _nodes(spec, names)
    gpus, geometries = _gpus(spec, nodes)
    return Inventory(names, nodes, gpus, _instances(gpus, geometries, profiles))


def _nodes(spec: ClusterSpec, names: Names) -> NodeTable:
    columns: dict[str, list[Any]] = {
        name: []
        for name in (
            "id",
            "pool",
            "model",
            "gpus",
            "cpu",
            "memory",
            "island",
            "leaf",
            "block",
            "zone",
            "spot",
            "mig_scopes",
            "ready",
            "sharing",
            "replicas",
            "offers",
        )
    }
    zones, island, leaf, block = dict[str, int](), 0, 0, 0
    for code, pool in enumerate(spec.pools):
        count = pool.nodes
        digits = max(3, len(str(count - 1)))
        columns["id"] += [f"{pool.name}-{k:0{digits}}" for k in range(count)]
        columns["pool"] += [code] * count
        columns["model"] += [names.gpu_models.index(pool.gpu_model)] * count
        columns["gpus"] += [pool.gpus_per_node] * count
        columns["cpu"] += [-1 if pool.cpus is None else pool.cpus * 1000] * count
        columns["memory"] += [-1 if pool.memory_mib is None else pool.memory_mib] * count
        columns["island"] += [island + k // pool.nodes_per_island for k in range(count)]
        columns["leaf"] += [leaf + k // pool.nodes_per_leaf for k in range(count)]
        columns["block"] += [block + k // pool.nodes_per_block for k in range(count)]
        columns["zone"] += [zones.setdefault(pool.zone, len(zones))] * count
        columns["spot"] += [pool.spot] * count
        columns["mig_scopes"] += [sum(1 << MIG_SCOPES.index(each) for each in pool.mig_scopes)] * count
        columns["ready"] += [k < count - pool.absent for k in range(count)]
        columns["sharing"] += [pool.sharing.sharing if pool.sharing else Sharing.WHOLE] * count
        columns["replicas"] += [pool.sharing.replicas if pool.sharing else 1] * count
        columns["offers"] += [sum(1 << names.sharing_configs.index(each) for each in pool.sharing_offers)] * count
        island, leaf, block = (columns[name][-1] + 1 for name in ("island", "leaf", "block"))
    total = len(columns["id"])
    per_node = np.array(columns["gpus"], np.int32)
    return NodeTable(
        id=np.array(columns["id"], object),
        pool=np.array(columns["pool"], np.int32),
        gpu_model=np.array(columns["model"], np.int32),
        first_gpu=(np.cumsum(per_node) - per_node).astype(np.int32),
        gpus=per_node,
        cpu_milli=np.array(columns["cpu"], np.int64),
        memory_mib=np.array(columns["memory"], np.int64),
        island=np.array(columns["island"], np.int32),
        leaf=np.array(columns["leaf"], np.int32),
        block=np.array(columns["block"], np.int32),
        zone=np.array(columns["zone"], np.int32),
        ready=np.array(columns["ready"], bool),
        cordoned=np.zeros(total, bool),
        spot=np.array(columns["spot"], bool),
        reclaim_at_s=np.full(total, np.nan),
        labels=np.empty((total, 0), np.uint8),
        hints=np.zeros(total, np.int64),
        mig_scopes=np.array(columns["mig_scopes"], np.int8),
        boot=np.full(total, "", object),
        sharing=np.array(columns["sharing"], np.int8),
        replicas=np.array(columns["replicas"], np.int32),
        sharing_offers=np.array(columns["offers"], np.int64),
        scrubbed_s=np.full(total, np.nan),
    )


def _gpus(spec: ClusterSpec, nodes: NodeTable) -> tuple[GpuTable, list[tuple[Placement, ...]]]:
    geometries: list[tuple[Placement, ...]] = []
    for pool in spec.pools:
        geometries += list(_node_geometries(pool)) * pool.nodes
    node = np.repeat(np.arange(len(nodes.id), dtype=np.int32), nodes.gpus)
    index = np.arange(len(node), dtype=np.int32) - nodes.first_gpu[node]
    uuids = [f"GPU-{uuid5(NAMESPACE_OID, f'{nodes.id[n]}/{k}')}" for n, k in zip(node, index, strict=True)]
    mig = np.array([bool(geometry) for geometry in geometries], bool)
    return GpuTable(
        np.array(uuids, object),
        node,
        index,
        np.ones(len(node), bool),
        mig,
        np.zeros(len(node), np.int32),
        np.zeros(len(node), np.int8),
        np.zeros(len(node), np.int8),
        np.full(len(node), -1, np.int64),
    ), geometries


def _node_geometries(pool: PoolSpec) -> Iterator[tuple[Placement, ...]]:
    for part in pool.mig:
        yield from [part.placements] * part.gpus
    yield from [()] * (pool.gpus_per_node - sum(part.gpus for part in pool.mig))


def _instances(gpus: GpuTable, geometries: list[tuple[Placement, ...]], profiles: tuple[str, ...]) -> InstanceTable:
    rows = [
        (gpu, FIRST_GI_ID + k, placement)
        for gpu, geometry in enumerate(geometries)
        for k, placement in enumerate(sorted(geometry, key=lambda each: each.start))
    ]
    if not rows:
        table: InstanceTable = empty(InstanceTable)
        return table
    return InstanceTable(
        id=np.array([f"{gpus.uuid[gpu]}/{gi}" for gpu, gi, _ in rows], object),
        gpu=np.array([gpu for gpu, _, _ in rows], np.int32),
        profile=np.array([profiles.index(placement.profile) for _, _, placement in rows], np.int32),
        start=np.array([placement.start for _, _, placement in rows], np.int32),
        gi_id=np.array([gi for _, gi, _ in rows], np.int32),
    )
