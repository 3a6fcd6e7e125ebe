"""Queues of the KAI scheduler, reduced to the fields in use."""

from __future__ import annotations

import msgspec

from collectors.kubernetes.wire import Int32, Object, Struct


class KaiAmount(Struct):
    """Quota of one resource; -1 is unlimited."""

    quota: float = 0.0
    over_quota_weight: float = 1.0
    limit: float = -1.0


class KaiResources(Struct):
    """Quotas of a queue."""

    gpu: KaiAmount = msgspec.field(default_factory=KaiAmount)


class KaiQueueSpec(Struct):
    """A queue."""

    parent_queue: str = ""
    priority: Int32 | None = None
    resources: KaiResources = msgspec.field(default_factory=KaiResources)


class KaiQueue(Object):
    """A queue of the KAI scheduler."""

    spec: KaiQueueSpec = msgspec.field(default_factory=KaiQueueSpec)
