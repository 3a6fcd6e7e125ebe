"""Slurm accounting: `sacct --parsable2` and `--json` output, the MIT Supercloud log (CSV), or our columns.

`simulator.traces.slurm` reads the output of Slurm, as `simulate --jobs` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from autopilot.core.model.units import counted
from simulator.traces.importers.common import Imported, ImportOptions, layout_error, read_layout
from simulator.traces.own_columns import own_jobs
from simulator.traces.slurm.accounting import read_accounting
from simulator.traces.slurm.text import first_line, split_header
from simulator.traces.table_files import Progress, check_file, number_column

MIT = ("id_job", "time_submit", "time_start", "time_end", "tres_req")
MIT_GPU_TRES = ("1001", "1002")
"""TRES numbers of the Supercloud's GPUs (Tesla and Volta), as its documentation lists them."""

MIT_STATES = {
    3: "completed",
    4: "cancelled",
    5: "failed",
    6: "timeout",
    7: "node_fail",
    8: "preempted",
    11: "oom",
}
UNLIMITED = 4_294_967_295.0


def read(path: Path, options: ImportOptions, progress: Progress) -> Imported:
    """Read the jobs (their steps are skipped). Time limits become `limit_s`, unlimited stays unknown."""
    progress("reading the accounting", 0.0)
    check_file(path)
    if path.suffix.lower() not in (".parquet", ".pq"):
        columns = set(split_header(first_line(path)))
        if not ({"job_id", "tenant", "submit_s"} <= columns or set(MIT) <= columns):
            found = read_accounting(path, timezone=options.timezone, shards_per_gpu=options.shards_per_gpu)
            return Imported(found.frame, found.rows_read, found.dropped, notes=found.notes)
    frame = read_layout(path)
    columns = set(frame.columns)
    if {"job_id", "tenant", "submit_s", "duration_s", "gpus"} <= columns:
        own = own_jobs(frame.rename(columns={"timelimit_s": "limit_s"}), path, {})
        return Imported(own.frame, len(frame), notes=[*_limits_note(own.frame), *own.notes])
    if set(MIT) <= columns:
        jobs = _from_mit(frame, path)
        return Imported(jobs, len(frame), notes=_limits_note(jobs))
    raise layout_error(path, "slurm", ("those of sacct", ", ".join(MIT), "job_id, tenant, submit_s, ..."), frame)


def _limits_note(jobs: Any) -> list[str]:
    unlimited = int(jobs["limit_s"].isna().sum()) if "limit_s" in jobs else len(jobs)
    return [f"{counted(unlimited, 'job has|jobs have')} no time limit"] if unlimited else []


def _from_mit(frame: Any, path: Path) -> Any:
    import pandas as pd

    times = {name: number_column(frame, f"time_{name}", path) for name in ("submit", "start", "end")}
    zero = times["submit"].min()
    requested = frame["tres_req"].astype("string").fillna("")
    limit = number_column(frame, "timelimit", path)
    state = number_column(frame, "state", path)
    jobs = pd.DataFrame(
        {
            "tenant": "u" + frame["id_user"].astype(str).str.split(".").str[0],
            "submit_s": times["submit"] - zero,
            "start_s": (times["start"] - zero).where(times["start"] > 0),
            "end_s": (times["end"] - zero).where(times["end"] > 0),
            "duration_s": (times["end"] - times["start"]).where(times["start"] > 0),
            "gpus": sum(
                requested.str.extract(rf"(?:^|,){tres}=(\d+)")[0].astype("float64").fillna(0) for tres in MIT_GPU_TRES
            ),
            "nodes": number_column(frame, "nodes_alloc", path) if "nodes_alloc" in frame else np.nan,
            "status": state.map(MIT_STATES),
            "kind": frame["job_type"].str.lower() if "job_type" in frame else None,
            "cpus": number_column(frame, "cpus_req", path) if "cpus_req" in frame else np.nan,
            "limit_s": (limit * 60).where(limit < UNLIMITED),
            "partition": frame.get("partition"),
        }
    )
    # Job numbers of the published copies are rounded, hence not unique: the row says which job it is.
    jobs.insert(0, "job_id", [f"mit-{row}" for row in range(len(jobs))])
    return jobs
