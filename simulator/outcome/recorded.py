"""What a job file says of its own starts: the column "as recorded" beside the policies."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.outcome.results import mean, quantile
from simulator.traces.job_trace import Floats, JobTrace
from simulator.traces.slurm.replay import LOST


def recorded_result(trace: JobTrace, gpus: int) -> dict[str, Any] | None:
    """The figures of a policy's block that follow from recorded starts and ends; None where the file has none.

    They are of the jobs that are replayed, on whatever the real cluster was: `gpus` of the simulated one are the
    capacity. MIG slices are no GPUs, so with them the shares of the capacity are unknown.
    """
    start, end = (_column(trace, name) for name in ("start_s", "end_s"))
    began = np.isfinite(start) & (start >= trace.submit_s)
    if not began.any():
        return None
    ended = began & np.isfinite(end) & (end >= start)
    queue = np.sort((start - trace.submit_s)[began]).tolist()
    jct = np.sort((end - trace.submit_s)[ended]).tolist()
    total = np.sort(np.maximum(end - trace.submit_s - trace.duration_s, 0.0)[ended]).tolist()
    useful_gpu_s = float((trace.gpu_share * trace.duration_s)[ended].sum())
    lost = np.nan_to_num(_column(trace, LOST))
    makespan_s = float(end[ended].max()) if ended.any() else None
    capacity_gpu_s = gpus * makespan_s if makespan_s and not (trace.mig_profile != "").any() else None
    lost_gpu_s = float(lost.sum()) if LOST in trace.extra else None
    return {
        "jobs": {
            "submitted": int(began.sum()),
            "finished": int(ended.sum()),
            "jct_s_mean": mean(jct),
            "jct_s_p50": quantile(jct, 0.50),
            "jct_s_p99": quantile(jct, 0.99),
            "queue_wait_s_mean": mean(queue),
            "queue_wait_s_p50": quantile(queue, 0.50),
            "queue_wait_s_p90": quantile(queue, 0.90),
            "queue_wait_s_p95": quantile(queue, 0.95),
            "queue_wait_s_p99": quantile(queue, 0.99),
            "total_wait_s_mean": mean(total),
            "total_wait_s_p99": quantile(total, 0.99),
            "longest_wait_s": max(total, default=None),
        },
        "makespan_s": makespan_s,
        "utilization": {
            "allocation_ratio": (useful_gpu_s + (lost_gpu_s or 0.0)) / capacity_gpu_s if capacity_gpu_s else None,
        },
        "disruptions": {"lost_gpu_s": lost_gpu_s},
    }


def _column(trace: JobTrace, name: str) -> Floats:
    values = trace.extra.get(name)
    return np.full(len(trace), np.nan) if values is None else np.array(values, np.float64)
