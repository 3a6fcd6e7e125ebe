"""The mean log latency of a histogram: what a neighbour moves, and a single slow request does not."""

from __future__ import annotations

import numpy as np

from autopilot.core.model.snapshot import F64


def middles(edges_s: F64) -> F64:
    """[buckets]: the mean log latency of the requests of each bucket, the last one above all edges."""
    log = np.log(edges_s)
    inner = 0.5 * (log[1:] + log[:-1])
    return np.concatenate([[log[0] - 0.35], inner, [log[-1] + 0.35]])


def mean_log(counts: F64, edges_s: F64) -> F64:
    """The mean log latency of each row of counts [rows, edges + 1]; NaN for no request or an unknown count."""
    total = counts.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, counts @ middles(edges_s) / total, np.nan)
