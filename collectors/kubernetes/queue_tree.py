"""A queue tree while it is built, and as the table of the snapshot; the queues of KAI and of plain namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autopilot.contract.notes import shown
from autopilot.core.model.records import Gap
from autopilot.core.model.snapshot import Displace, QueueOrder, QueueTable
from collectors.kubernetes import quantity
from collectors.kubernetes.asks import GPU
from collectors.kubernetes.kai_wire import KaiQueue
from collectors.kubernetes.wire import Object, ResourceQuota

ROOT = ""
"""The name of the root as a parent."""

MOST = 2**31 - 1


@dataclass(slots=True)
class Queue:
    """One queue. `guarantee` counts GPUs by model; a limit of -1 is none."""

    name: str
    parent: str = ROOT
    guarantee: dict[str, int] = field(default_factory=dict)
    limit: int = -1
    weight: float = 1.0
    priority: int = 0
    order: int = QueueOrder.INDEX
    strict: bool = False
    borrow_limit: int = -1
    lend_limit: int = -1
    within_queue: int = Displace.LOWER
    reclaim: int = Displace.ANY
    while_borrowing: int = Displace.NEVER
    while_borrowing_priority: int = MOST
    limit_by_model: dict[str, int] = field(default_factory=dict)
    guarantee_kept: int = 0


@dataclass(frozen=True, slots=True)
class QueueTree:
    """The table with the row of each queue by name."""

    engine: str  # the owner of these queues: "kueue", "kai" or "namespaces"
    table: QueueTable
    rows: Mapping[str, int]
    gaps: tuple[Gap, ...] = ()


def tree_of(engine: str, queues: Iterable[Queue], models: Sequence[str], gaps: Iterable[Gap] = ()) -> QueueTree:
    """The table of these queues, parents first. A cycle stays one: the core lets no work of it start."""
    by_name = {each.name: each for each in queues}
    depth: dict[str, int] = {}

    def depth_of(name: str) -> int:
        path: list[str] = []
        while name in by_name and name not in depth and name not in path:
            path.append(name)
            name = by_name[name].parent
        below = depth.get(name, 0 if name not in path else MOST)
        for place, each in enumerate(reversed(path)):
            depth[each] = min(below + place + 1, MOST)
        return 0

    for name in by_name:
        depth_of(name)
    ordered = [Queue(ROOT), *sorted(by_name.values(), key=lambda each: (depth[each.name], each.name))]
    rows = {each.name: row for row, each in enumerate(ordered)}
    by_model = any(each.limit_by_model for each in ordered)
    columns: dict[str, Any] = {
        "id": np.array(["root", *(_shown(each.name) for each in ordered[1:])], object),
        "parent": np.array([-1, *(rows.get(each.parent, 0) for each in ordered[1:])], np.int32),
        "guarantee": np.array([[each.guarantee.get(model, 0) for model in models] for each in ordered], np.int32),
        "limit_by_model": np.array(
            [[each.limit_by_model.get(model, -1) for model in models if by_model] for each in ordered], np.int32
        ),
        "weight_by_model": np.empty((len(ordered), 0), np.float64),
        "weight": np.array([each.weight for each in ordered], np.float64),
        "strict": np.array([each.strict for each in ordered], np.bool_),
    }
    for name in ("limit", "priority", "borrow_limit", "lend_limit", "while_borrowing_priority"):
        columns[name] = np.array([getattr(each, name) for each in ordered], np.int32)
    for name in ("order", "within_queue", "reclaim", "while_borrowing", "guarantee_kept"):
        columns[name] = np.array([getattr(each, name) for each in ordered], np.int8)
    return QueueTree(engine, QueueTable(**columns), rows, tuple(gaps))


def _shown(name: str) -> str:
    """The id of a queue; a queue with the name of the root gets another one."""
    return name if name != "root" else "root/root"


def spread(gpus: int, capacity: Mapping[str, int]) -> dict[str, int]:
    """A number of GPUs of any model, divided over the models in proportion to the GPUs that exist."""
    total = sum(capacity.values())
    if not total:
        return {}
    shares = {model: gpus * count // total for model, count in capacity.items()}
    rest = gpus - sum(shares.values())
    for model in sorted(capacity, key=lambda model: -((gpus * capacity[model]) % total))[:rest]:
        shares[model] += 1
    return shares


def kai_tree(queues: Iterable[KaiQueue], models: Sequence[str], capacity: Mapping[str, int]) -> QueueTree:
    """The queues of KAI: a quota of GPUs of any model, a limit, and a weight for the rest. -1 is unlimited."""
    found, total = [], sum(capacity.values())
    for each in queues:
        gpu = each.spec.resources.gpu
        quota = total if gpu.quota < 0 else min(int(gpu.quota), MOST)
        found.append(
            Queue(
                each.metadata.name,
                each.spec.parent_queue or ROOT,
                spread(quota, capacity),
                limit=-1 if gpu.limit < 0 else min(int(gpu.limit), MOST),
                weight=max(gpu.over_quota_weight, 0.0),
                priority=each.spec.priority or 0,
            )
        )
    return tree_of("kai", found, models)


def check(found: Object) -> None:
    """Raise `ValueError` for a ResourceQuota with an unreadable limit of GPUs."""
    if isinstance(found, ResourceQuota):
        for name, value in _gpu_limits(found):
            if quantity.parse(value) is None:
                raise ValueError(f"{name} is {shown(value)}, which is no quantity")


def _gpu_limits(found: ResourceQuota) -> list[tuple[str, Any]]:
    hard = found.spec.hard or {}
    return [(name, hard[name]) for name in (f"requests.{GPU}", f"limits.{GPU}") if hard.get(name) is not None]


def namespace_tree(namespaces: Iterable[str], quotas: Iterable[ResourceQuota], models: Sequence[str]) -> QueueTree:
    """One queue for each namespace, limited by its ResourceQuotas for GPUs; without guarantees."""
    limits: dict[str, int] = {}
    for each in quotas:
        for _, value in _gpu_limits(each):
            namespace = each.metadata.namespace
            limits[namespace] = min(limits.get(namespace, MOST), quantity.whole(value))
    found = [Queue(name, limit=limits.get(name, -1)) for name in sorted({*namespaces, *limits})]
    return tree_of("namespaces", found, models)
