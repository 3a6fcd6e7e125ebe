"""Measurements of services by their servers and gateways, before the join with the services of the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from autopilot.core.model.latencies import ReplicaLatency
from autopilot.core.model.snapshot import F64, Texts, empty


@dataclass(frozen=True, slots=True)
class ServiceSignals:
    """Measurements of services by name, from their servers or gateways. NaN: not measured.

    `p99_s`, `ttft_p99_s`, `itl_p99_s`, `violation_ratio` and `rate_rps` cover five minutes, `recent_...` and
    `tokens_per_s` at least the last one.
    """

    service: Texts
    p99_s: F64
    violation_ratio: F64
    rate_rps: F64
    queue_depth: F64
    tokens_per_s: F64
    recent_rps: F64
    recent_violation_ratio: F64
    kv_cache_ratio: F64
    replicas: F64  # that report
    age_s: F64
    gateway_rps: F64  # requests/s in front of the service: known also while it has no replica
    ttft_p99_s: F64
    itl_p99_s: F64
    recent_ttft_violation_ratio: F64
    recent_itl_violation_ratio: F64
    latencies: ReplicaLatency = field(default_factory=lambda: empty(ReplicaLatency))


def of_replicas(latencies: ReplicaLatency) -> ServiceSignals:
    """Signals that hold the latencies of replicas alone."""
    columns: dict[str, Any] = {each.name: np.empty(0) for each in fields(ServiceSignals)}
    return ServiceSignals(**columns | {"service": np.empty(0, object), "latencies": latencies})
