"""Microsoft Philly 2017: the publisher's `cluster_job_log` (JSON), the Sia extract (CSV), or our columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autopilot.core.model.errors import InputError
from simulator.traces.importers.common import (
    Imported,
    ImportOptions,
    layout_error,
    numbered,
    read_layout,
    timestamps_s,
)
from simulator.traces.own_columns import own_jobs
from simulator.traces.table_files import Progress, number_column

SIA_COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
STATUS = {"Pass": "completed", "Killed": "killed", "Failed": "failed"}


def read(path: Path, options: ImportOptions, progress: Progress) -> Imported:
    """Read any of the three layouts. Virtual clusters become tenants named `vc_...`."""
    del options
    if path.suffix.lower() in (".parquet", ".pq", ".csv"):
        frame = read_layout(path)
        if {"job_id", "submit_s", "duration_s"} <= set(frame.columns):
            own = own_jobs(frame, path, {})
            return Imported(own.frame, len(frame), notes=own.notes)
        if set(SIA_COLUMNS) <= set(frame.columns):
            return _from_sia(frame, path)
        raise layout_error(path, "philly", ("job_id, tenant, submit_s, ...", ", ".join(SIA_COLUMNS)), frame)
    return _from_job_log(path, progress)


def _from_sia(frame: Any, path: Path) -> Imported:
    import pandas as pd

    submit_s = timestamps_s(frame, "timestamp", path)
    order = submit_s.sort_values(kind="stable").index
    midnight = (submit_s.min() // 86400) * 86400
    jobs = pd.DataFrame(
        {
            "tenant": "vc_" + frame["cluster"].loc[order].astype(str),
            "submit_s": submit_s.loc[order] - midnight,
            "duration_s": number_column(frame, "duration", path).loc[order],
            "gpus": number_column(frame, "num_gpus", path).loc[order],
            "kind": "train",
        }
    )
    jobs.insert(0, "job_id", numbered("philly", len(jobs)))
    return Imported(jobs.reset_index(drop=True), len(frame), notes=["zero is midnight of the first submit"])


def _from_job_log(path: Path, progress: Progress) -> Imported:
    import pandas as pd

    progress("reading the job log", 0.0)
    try:
        log = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a whole JSON file (the Philly cluster_job_log): {error}") from error
    if not isinstance(log, list) or not log or not all(isinstance(job, dict) for job in log):
        raise InputError(f"{path}: the Philly cluster_job_log is a JSON list of jobs")
    dropped: dict[str, int] = {}
    rows = []
    for number, job in enumerate(log):
        row = _job(job, path, number)
        if isinstance(row, str):
            dropped[row] = dropped.get(row, 0) + 1
        else:
            rows.append(row)
        if number % 10_000 == 0:
            progress("reading the job log", number / len(log))
    if not rows:
        raise InputError(f"{path}: no job with a finished attempt")
    frame = pd.DataFrame(rows)
    for name in ("submit_s", "first_s", "last_s"):
        frame[name] = timestamps_s(frame, name, path)
    frame["duration_s"] = frame.pop("last_s") - frame["first_s"]
    frame["start_s"] = frame.pop("first_s")
    notes = ["duration is the last attempt's end minus the first attempt's start"]
    return Imported(frame, len(log), dropped, notes=notes)


def _job(job: dict[str, Any], path: Path, number: int) -> dict[str, Any] | str:
    """One entry of the log as a row, or the reason against it."""
    try:
        attempts = [each for each in job["attempts"] if each.get("start_time") and each.get("end_time")]
        attempts = [each for each in attempts if "None" not in (each["start_time"], each["end_time"])]
        if not attempts:
            return "no finished attempt" if job["attempts"] else "never scheduled"
        detail = attempts[-1]["detail"]
        return {
            "job_id": job["jobid"],
            "tenant": f"vc_{job['vc']}",
            "user": job.get("user"),
            "submit_s": job["submitted_time"],
            "first_s": attempts[0]["start_time"],
            "last_s": attempts[-1]["end_time"],
            "gpus": sum(len(machine["gpus"]) for machine in detail),
            "nodes": len(detail),
            "status": STATUS.get(job["status"], str(job["status"]).lower()),
            "kind": "train",
            "attempts": len(attempts),
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: job {number + 1}: the field {error} is missing or has another form") from error
