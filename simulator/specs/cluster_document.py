"""A cluster as the fields of a cluster file: what `read_cluster` reads back as an equal one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from simulator.specs.advance_spec import AdvanceSpec
from simulator.specs.clusterfile import ClusterSpec, PoolSpec
from simulator.specs.clusterqueues import ALL_MODELS, DISPLACE, QueueSpec

_AS_THEY_ARE = ("priority", "order", "strict", "borrow_limit", "lend_limit")
_VICTIMS = {value: name for name, value in DISPLACE.items()}
_QUEUE_DEFAULTS = {field.name: field.default for field in fields(QueueSpec)}


def cluster_document(spec: ClusterSpec) -> dict[str, Any]:
    """The content of a cluster file with this cluster."""
    document: dict[str, Any] = {"pools": [_pool(pool) for pool in spec.pools]}
    if spec.queues:
        document["queues"] = [_queue(queue) for queue in spec.queues]
    if spec.advance:
        document["reservations"] = [_reservation(each) for each in spec.advance]
    return document


def _pool(pool: PoolSpec) -> dict[str, Any]:
    """The fields of one pool. Switches and islands that span the pool stay so when nodes are added."""
    entry: dict[str, Any] = {
        "name": pool.name,
        "nodes": pool.nodes,
        "gpus_per_node": pool.gpus_per_node,
        "gpu_model": pool.gpu_model,
        "cpus": pool.cpus,
        "memory_mib": pool.memory_mib,
        "island": _island(pool),
        "nodes_per_leaf": pool.nodes_per_leaf if pool.nodes_per_leaf < pool.nodes else 0,
        "leaves_per_block": pool.leaves_per_block if pool.nodes_per_block < pool.nodes else 0,
        "zone": pool.zone,
        "spot": pool.spot,
        "price_weight": pool.price_weight,
        "absent": pool.absent or None,
        "sharing": pool.sharing.key if pool.sharing else None,
        "sharing_offers": [each.key for each in pool.sharing_offers if each.replicas > 1],
        "mig_scopes": list(pool.mig_scopes),
        "mig": [
            {"gpus_per_node": cut.gpus, "geometry": dict(Counter(place.profile for place in cut.placements))}
            for cut in pool.mig
        ],
    }
    return {name: value for name, value in entry.items() if value not in (None, [])}


def _island(pool: PoolSpec) -> str | int:
    if pool.nodes_per_island == 1:
        return "node"
    return "pool" if pool.nodes_per_island == pool.nodes else pool.nodes_per_island


def _queue(queue: QueueSpec) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": queue.name, "parent": queue.parent}
    if queue.guarantee:
        entry["guarantee"] = dict(queue.guarantee)
    if queue.limit is not None or queue.limit_by_model:
        entry["limit"] = _by_model(queue.limit, queue.limit_by_model)
    entry["weight"] = _by_model(queue.weight, queue.weight_by_model)
    for name in _AS_THEY_ARE:
        if getattr(queue, name) is not None:
            entry[name] = getattr(queue, name)
    for name in ("within_queue", "reclaim", "while_borrowing"):
        entry[name] = _VICTIMS[getattr(queue, name)]
    if queue.while_borrowing_priority != _QUEUE_DEFAULTS["while_borrowing_priority"]:
        entry["while_borrowing_priority"] = queue.while_borrowing_priority
    if queue.guarantee_kept:
        entry["guarantee_kept"] = queue.guarantee_kept
    return entry


def _by_model(whole: float | None, single: Mapping[str, float]) -> float | dict[str, float] | None:
    """A limit or a weight: one number, or a mapping where single GPU models have their own."""
    if not single:
        return whole
    return dict(single) if whole is None else {ALL_MODELS: whole, **single}


def _reservation(each: AdvanceSpec) -> dict[str, Any]:
    return {
        "name": each.name,
        "queue": each.queue,
        "gpu_model": each.gpu_model,
        "gpus": each.gpus,
        "from": each.start_s,
        "grace": each.grace_s,
    }
