"""Slurm accounting: `sacct --parsable2` output, the MIT Supercloud log (CSV), or our columns.

The fields to ask `sacct --allusers --parsable2` for are JobID, User, Account, JobName, Partition, State,
Submit, Start, End, Elapsed, Timelimit, NNodes, NCPUS and ReqTRES; the first, State and the times are required. The
times are local and have no zone, so that they repeat or skip an hour where the clocks change: Elapsed counts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from autopilot.core.model.units import counted
from simulator.traces.importers.common import Imported, ImportOptions, layout_error, read_layout, timestamps_s
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
_CLOCK = re.compile(r"^(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?$")
_GPU = re.compile(r"gres/gpu(?::[\w.-]+)?=(\d+)")


def read(path: Path, options: ImportOptions, progress: Progress) -> Imported:
    """Read the jobs (their steps are skipped). Time limits become `limit_s`, unlimited stays unknown."""
    del options
    progress("reading the accounting", 0.0)
    frame = _table(path)
    columns = set(frame.columns)
    if {"job_id", "tenant", "submit_s", "duration_s", "gpus"} <= columns:
        jobs = frame.rename(columns={"timelimit_s": "limit_s"})
        return Imported(jobs, len(frame), notes=_limits_note(jobs))
    if set(MIT) <= columns:
        jobs = _from_mit(frame, path)
        return Imported(jobs, len(frame), notes=_limits_note(jobs))
    if set(SACCT) <= columns:
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
    import pandas as pd

    step = frame["JobID"].astype("string").str.contains(".", regex=False)
    jobs = frame[~step]
    never = jobs["Start"].isin(["Unknown", "None", ""]) | jobs["Start"].isna()
    running = ~never & (jobs["End"].isin(["Unknown", "None", ""]) | jobs["End"].isna())
    dropped = {
        reason: int(mask.sum()) for reason, mask in (("never started", never), ("still running", running)) if mask.any()
    }
    jobs = jobs[~never & ~running]
    times = {name: timestamps_s(jobs, name, path) for name in ("Submit", "Start", "End")}
    zero = times["Submit"].min()
    ran = times["End"] - times["Start"]
    elapsed = next((jobs[name].map(_elapsed_s) for name in ("Elapsed", "ElapsedRaw") if name in jobs), ran)
    duration = elapsed.where(elapsed.notna(), ran)
    duration = duration.where(duration >= 0)
    requested = jobs["ReqTRES" if "ReqTRES" in jobs else "AllocTRES"] if {"ReqTRES", "AllocTRES"} & set(jobs) else None
    table = {
        "job_id": jobs["JobID"],
        "tenant": jobs["Account"] if "Account" in jobs else jobs.get("User", "unknown"),
        "user": jobs.get("User"),
        "name": jobs.get("JobName"),
        "submit_s": times["Submit"] - zero,
        "start_s": times["Start"] - zero,
        "end_s": (times["End"] - zero).where(ran >= duration, times["Start"] - zero + duration),
        "duration_s": duration,
        "gpus": 0.0 if requested is None else requested.astype("string").fillna("").map(_gpus_of),
        "nodes": number_column(jobs, "NNodes", path) if "NNodes" in jobs else np.nan,
        "cpus": number_column(jobs, "NCPUS", path) if "NCPUS" in jobs else np.nan,
        "status": jobs["State"].str.split().str[0].str.lower(),
        "limit_s": jobs["Timelimit"].map(clock_s) if "Timelimit" in jobs else np.nan,
        "partition": jobs.get("Partition"),
    }
    result = pd.DataFrame(table)
    notes = _limits_note(result)
    if differ := int((duration.notna() & (duration != ran)).sum()):
        notes.append(f"{counted(differ, 'job has|jobs have')} another run time than End - Start; Elapsed counts")
    if unknown := int(duration.isna().sum()):
        notes.append(
            f"{counted(unknown, 'job ends|jobs end')} before the start; without Elapsed the run time is unknown"
        )
    if step.any():
        notes.append(f"{int(step.sum()):,} job steps skipped (their job counts)")
    return Imported(result, len(frame), dropped, notes=notes)


def _elapsed_s(text: object) -> float:
    """Seconds of Elapsed, or of ElapsedRaw, which is a number."""
    try:
        return float(str(text))
    except ValueError:
        return clock_s(text)


def _gpus_of(tres: str) -> float:
    """GPUs of a TRES list: the plain `gres/gpu=4`, else the sum over the types."""
    plain = re.search(r"gres/gpu=(\d+)", tres)
    return float(plain[1]) if plain else float(sum(map(int, _GPU.findall(tres))))


def clock_s(text: object) -> float:
    """Seconds of Slurm's `[days-][hours:]minutes:seconds`; NaN for UNLIMITED, Partition_Limit or nothing."""
    match = _CLOCK.match(str(text).strip())
    if match is None:
        return float("nan")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)
