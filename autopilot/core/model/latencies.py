"""What servers report of single replicas: a table of the snapshot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Texts = NDArray[np.object_]
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
