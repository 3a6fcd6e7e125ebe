"""Alibaba cluster-trace-gpu-v2025 (Prism): instances of recommendation inference services."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from simulator.traces.importers.common import Imported, ImportOptions, layout_error, read_layout
from simulator.traces.table_files import Progress, number_column

PUBLISHED = ("instance_sn", "role", "app_name", "gpu_request", "creation_time", "deletion_time")


def read(path: Path, options: ImportOptions, progress: Progress) -> Imported:
    """Read the instances; one from before the trace starts at 0, one still there ends with it."""
    del options
    progress("reading the instances", 0.0)
    frame = read_layout(path)
    if {"job_id", "tenant", "submit_s", "end_s", "gpus"} <= set(frame.columns):
        jobs = frame.copy()
        for name in ("submit_s", "start_s", "end_s"):
            jobs[name] = number_column(frame, name, path)
        if "memory_gib" in frame:
            jobs["memory_mib"] = (number_column(frame, "memory_gib", path) * 1024).round()
    elif set(PUBLISHED) <= set(frame.columns):
        jobs = _from_publisher(frame, path)
    else:
        raise layout_error(path, "dlrm", (", ".join(PUBLISHED), "job_id, tenant, submit_s, end_s, gpus, ..."), frame)
    end_of_trace_s = float(np.nanmax(jobs[["submit_s", "start_s", "end_s"]].to_numpy(dtype=np.float64)))
    before, still = jobs["submit_s"].isna(), jobs["end_s"].isna()
    jobs["submit_s"] = jobs["submit_s"].fillna(0.0)
    jobs["start_s"] = jobs["start_s"].fillna(jobs["submit_s"])
    jobs["end_s"] = jobs["end_s"].fillna(end_of_trace_s)
    jobs["duration_s"] = jobs["end_s"] - jobs["start_s"]
    jobs["censored"] = before | still
    notes = [
        f"{int(before.sum()):,} instances existed before the trace: they are submitted at 0",
        f"{int(still.sum()):,} instances outlived the trace: they end at its last event, {end_of_trace_s:,.0f} s",
    ]
    assumed = {"submit_s": int(before.sum()), "duration_s": int((before | still).sum())}
    return Imported(jobs, len(frame), assumed=assumed, notes=notes)


def _from_publisher(frame: Any, path: Path) -> Any:
    import pandas as pd

    jobs = pd.DataFrame(
        {
            "job_id": frame["instance_sn"],
            "tenant": frame["app_name"],
            "submit_s": number_column(frame, "creation_time", path),
            "start_s": number_column(frame, "scheduled_time", path) if "scheduled_time" in frame else np.nan,
            "end_s": number_column(frame, "deletion_time", path),
            "gpus": number_column(frame, "gpu_request", path),
            "nodes": 1,
            "kind": "inference_" + frame["role"].astype(str),
        }
    )
    jobs["status"] = np.where(jobs["end_s"].isna(), "running", "deleted")
    if "cpu_request" in frame:
        jobs["cpus"] = number_column(frame, "cpu_request", path)
    if "memory_request" in frame:
        jobs["memory_mib"] = (number_column(frame, "memory_request", path) * 1024).round()
    for ours, theirs in (("rdma_pct", "rdma_request"), ("max_instance_per_node", "max_instance_per_node")):
        if theirs in frame:
            jobs[ours] = number_column(frame, theirs, path)
    return jobs[jobs["job_id"].notna()]
