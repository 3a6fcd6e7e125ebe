"""Slurm accounting: `sacct --parsable2` output, the MIT Supercloud log (CSV), or our columns.

The fields to ask `sacct --allusers --parsable2` for are JobID, User, Account, JobName, Partition, State,
Submit, Start, End, Elapsed, Timelimit, NNodes, NCPUS, ReqTRES and AllocTRES; the first, State, the times and a list
of TRES are required. The
times are local and have no zone, so that they repeat or skip an hour where the clocks change: Elapsed counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from autopilot.core.model.errors import InputError
from autopilot.core.model.units import counted
from simulator.traces.importers.common import Imported, ImportOptions, layout_error, read_layout
from simulator.traces.own_columns import JOB_NAMES, own_jobs
from simulator.traces.table_files import Progress, number_column, read_table

SACCT = ("JobID", "Submit", "Start", "End", "State")
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
    del options
    progress("reading the accounting", 0.0)
    frame = _table(path)
    columns = set(frame.columns)
    if {"job_id", "tenant", "submit_s", "duration_s", "gpus"} <= columns:
        own = own_jobs(frame.rename(columns={"timelimit_s": "limit_s"}), path, {})
        return Imported(own.frame, len(frame), notes=[*_limits_note(own.frame), *own.notes])
    if set(MIT) <= columns:
        jobs = _from_mit(frame, path)
        return Imported(jobs, len(frame), notes=_limits_note(jobs))
    if set(SACCT) <= columns | ({"JobID"} if "JobIDRaw" in columns else set()):
        return _from_sacct(frame, path)
    raise layout_error(path, "slurm", (", ".join(SACCT), ", ".join(MIT), "job_id, tenant, submit_s, ..."), frame)


def _table(path: Path) -> Any:
    if path.suffix.lower() in (".parquet", ".pq"):
        return read_layout(path)
    try:
        with path.open(encoding="utf-8", errors="replace") as handle:
            head = handle.readline()
    except OSError:
        head = ""  # read_table gives the message
    if head.count("|") > head.count(","):
        return read_table(path, separator="|").rename(columns=lambda name: str(name).strip())
    return read_layout(path)


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


def _from_sacct(frame: Any, path: Path) -> Imported:
    """As `simulate --jobs` reads it, from the first submit on, without jobs that never ran or still run."""
    import pandas as pd

    own = own_jobs(frame, path, {})
    jobs = own.frame
    if "gpus" not in jobs:
        raise InputError(f"{path}: no column is read as gpus; ask sacct for AllocTRES and ReqTRES")
    unknown = ~(jobs["duration_s"] > 0)
    never = unknown & jobs["start_s"].isna()
    running = unknown & ~never & jobs["end_s"].isna()
    dropped = {
        reason: int(mask.sum()) for reason, mask in (("never started", never), ("still running", running)) if mask.any()
    }
    jobs = jobs[~never & ~running]
    zero = jobs["submit_s"].min()
    table: dict[str, Any] = {"tenant": "unknown"}
    table |= {name: jobs[name] for name in JOB_NAMES if name in jobs}
    table |= {name: jobs[name] - zero for name in ("submit_s", "start_s", "end_s")}
    result = pd.DataFrame(table | {"partition": jobs.get("Partition")})
    return Imported(result, len(frame), dropped, notes=[*_limits_note(result), *own.notes])
