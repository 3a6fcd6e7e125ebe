"""What servers report of single replicas: a table of the snapshot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Texts = NDArray[np.object_]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ReplicaLatency:
    """One row for each replica that shares its GPU or node: the last whole minute of its latencies that is known."""

    id: Texts  # of the workload
    minute_s: F64  # begin of that minute
    requests: F64  # in that minute; NaN: unknown
    mean_log_s: F64  # mean of the natural logarithm of their latencies in seconds; NaN: unknown, or no request
    buckets: I64  # mark of the edges of its histogram: other edges have another one; 0: unknown
    age_s: F64


def sharing_replicas(service: I32, workload: I32, node: I32) -> I64:
    """Rows of the workloads that are replicas and hold something of a node on which others hold something.

    `service` is a column of workloads, the others of placements.
    """
    pairs = np.unique(np.stack([node, workload]), axis=1)
    nodes, first, count = np.unique(pairs[0], return_inverse=True, return_counts=True)
    there = np.unique(pairs[1][(count > 1)[first]]) if len(nodes) else pairs[1]
    return np.asarray(there[service[there] >= 0], np.int64)
