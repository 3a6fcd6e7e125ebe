"""The starts recorded in a job file: the column "as recorded" beside the policies, and each start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.outcome.results import mean, quantile
from simulator.traces.job_trace import Floats, JobTrace, Texts
from simulator.traces.slurm.replay import LOST


def recorded_result(trace: JobTrace, gpus: int) -> dict[str, Any] | None:
    """The figures of a policy's block by recorded starts and ends; None if the file has none.

    They are of the replayed jobs, on the real cluster of their time: `gpus` of the simulated one are the
    capacity. MIG slices are no GPUs, so with them the shares of the capacity are unknown.
    """
    start, end = (trace.amounts(name) for name in ("start_s", "end_s"))
    began = np.isfinite(start) & (start >= trace.submit_s)
    if not began.any():
        return None
    ended = began & np.isfinite(end) & (end >= start)
    queue = np.sort((start - trace.submit_s)[began]).tolist()
    jct = np.sort((end - trace.submit_s)[ended]).tolist()
    total = np.sort(np.maximum(end - trace.submit_s - trace.duration_s, 0.0)[ended]).tolist()
    useful_gpu_s = float((trace.gpu_share * trace.duration_s)[ended].sum())
    lost = np.nan_to_num(trace.amounts(LOST))
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
            "total_wait_s_p50": quantile(total, 0.50),
            "total_wait_s_p90": quantile(total, 0.90),
            "total_wait_s_p99": quantile(total, 0.99),
            "longest_wait_s": max(total, default=None),
        },
        "makespan_s": makespan_s,
        "utilization": {
            "allocation_ratio": (useful_gpu_s + (lost_gpu_s or 0.0)) / capacity_gpu_s if capacity_gpu_s else None,
        },
        "disruptions": {"lost_gpu_s": lost_gpu_s},
    }


@dataclass(frozen=True, slots=True)
class Recorded:
    """The starts in a job file, one entry for each of its jobs, in order; NaN if the file has none.

    `groups`: by kind (`user`, `account`, `partition`, `qos`) the name of each job, "" for none. `gpus_by_model`:
    of the simulated cluster; `node_gpus`: of its widest node. `eligible`: the file has the times of eligibility.
    """

    submit_s: Floats
    start_s: Floats
    end_s: Floats
    duration_s: Floats
    lost_s: Floats  # of earlier runs of a requeued job
    gpus: Floats
    models: Texts
    groups: Mapping[str, Texts]
    gpus_by_model: Mapping[str, int]
    node_gpus: int
    eligible: bool
    first_s: float  # the first submit since 1970; NaN without dates

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """The jobs with a recorded start."""
        return np.isfinite(self.start_s) & (self.start_s >= self.submit_s)

    def held(self) -> npt.NDArray[np.float64]:
        """The holds of GPUs: row, from, to and GPUs. A requeued job held them in each run."""
        end_s = np.where(np.isnan(self.end_s), self.start_s + self.duration_s, self.end_s)  # running: as assumed
        ran = self.known & np.isfinite(end_s) & (self.gpus > 0)
        again = ran & (self.lost_s > 0)
        last_s = np.where(again, np.maximum(end_s - self.duration_s, self.start_s), self.start_s)
        first = np.flatnonzero(again)
        rows = np.concatenate((np.flatnonzero(ran), first))
        froms = np.concatenate((last_s[ran], self.start_s[first]))
        tos = np.concatenate((end_s[ran], np.minimum(self.start_s + self.lost_s, last_s)[first]))
        return np.stack((rows, froms, tos, self.gpus[rows]), axis=1)


def recorded_starts(trace: JobTrace, gpus_by_model: Mapping[str, int], node_gpus: int) -> Recorded | None:
    """The recorded starts of a trace; None if it has none."""
    start = trace.amounts("start_s")
    found = Recorded(
        submit_s=trace.submit_s,
        start_s=np.maximum(start, trace.submit_s) if len(trace) else start,  # whole seconds
        end_s=trace.amounts("end_s"),
        duration_s=trace.duration_s,
        lost_s=np.nan_to_num(trace.amounts(LOST)) / np.maximum(trace.gpu_share, 1e-3),
        gpus=np.where(trace.mig_profile != "", 0.0, trace.gpu_share),
        models=trace.gpu_type,
        groups={
            "user": trace.user,
            "account": trace.tenant,
            "partition": trace.words("partition"),
            "qos": trace.words("qos"),
        },
        gpus_by_model=gpus_by_model,
        node_gpus=node_gpus,
        eligible=bool(np.isfinite(trace.amounts("eligible_s")).any()),
        first_s=trace.start_s if trace.start_s is not None else np.nan,
    )
    return found if found.known.any() else None
